/* A bump allocator: many small allocations that are freed together, with a hard cap. One arena per request,
 * per parsed file, per rendered template. Not thread-safe. */
#ifndef TD_COMMON_ARENA_H
#define TD_COMMON_ARENA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct td_arena_block td_arena_block;

typedef struct td_arena {
  td_arena_block *head; /* the block in use, owned; followed by full ones */
  size_t used_bytes;    /* sum of all allocations */
  size_t max_bytes;     /* cap on used_bytes; allocates at most 2 * used_bytes + 16 KiB */
  bool no_memory;       /* malloc failed; false if the cap was reached */
} td_arena;

void td_arena_init(td_arena *a, size_t max_bytes);
void td_arena_deinit(td_arena *a);
/* Zeroed, 16-byte aligned memory. NULL if the cap is reached or malloc fails. n may be 0. */
void *td_arena_alloc(td_arena *a, size_t n);
/* As td_arena_alloc(count * size), with overflow checked. */
void *td_arena_alloc_array(td_arena *a, size_t count, size_t size);
/* NUL-terminated copy of n bytes. */
char *td_arena_strdup(td_arena *a, const char *s, size_t n);

#endif
