/* Counts allocations and makes one of them fail. The linker puts these functions in place of libc's
 * (tests/CMakeLists.txt); a test must register them itself with a shared library. */
#ifndef TD_TESTS_ALLOCATIONS_FIXTURE_H
#define TD_TESTS_ALLOCATIONS_FIXTURE_H

#include <stdbool.h>
#include <stdlib.h>

static long fails_at = -1, n_calls, n_alive; /* fails_at: which call, from 0 on; -1: none */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t alignment, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n);
void __wrap_free(void *p);

static bool may_allocate(void) { return n_calls++ != fails_at; }

static void *counted(void *p)
{
  n_alive += p != NULL;
  return p;
}

void *__wrap_malloc(size_t n) { return counted(may_allocate() ? __real_malloc(n) : NULL); }

void *__wrap_calloc(size_t n, size_t size) { return counted(may_allocate() ? __real_calloc(n, size) : NULL); }

void *__wrap_aligned_alloc(size_t alignment, size_t n)
{
  return counted(may_allocate() ? __real_aligned_alloc(alignment, n) : NULL);
}

void *__wrap_realloc(void *p, size_t n)
{
  void *moved = may_allocate() ? __real_realloc(p, n) : NULL;
  n_alive += moved && !p;
  return moved;
}

void __wrap_free(void *p)
{
  n_alive -= p != NULL;
  __real_free(p);
}

#endif
