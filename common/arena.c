/* Bump allocator: see arena.h. */
#include "common/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"

struct td_arena_block {
  td_arena_block *next;
  size_t cap_bytes, used_bytes;
  _Alignas(16) unsigned char data[];
};

enum { BLOCK_BYTES = 16 * 1024 };

void td_arena_init(td_arena *a, size_t max_bytes)
{
  a->head = NULL;
  a->used_bytes = 0;
  a->max_bytes = max_bytes;
  a->no_memory = false;
}

void td_arena_deinit(td_arena *a)
{
  while (a->head) {
    td_arena_block *next = a->head->next;
    free(a->head);
    a->head = next;
  }
  a->used_bytes = 0;
}

/* Adds a block for an allocation of that size. A block that the allocation fills goes behind the head, so
 * that the head's free room stays in use. */
static td_arena_block *block_add(td_arena *a, size_t bytes)
{
  size_t cap = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
  td_arena_block *block = malloc(sizeof *block + cap);
  if (!block) {
    a->no_memory = true;
    return NULL;
  }
  block->cap_bytes = cap;
  block->used_bytes = 0;
  if (a->head && bytes >= BLOCK_BYTES) {
    block->next = a->head->next;
    a->head->next = block;
  } else {
    block->next = a->head;
    a->head = block;
  }
  return block;
}

void *td_arena_alloc(td_arena *a, size_t n)
{
  if (n > SIZE_MAX / 4)
    return NULL;
  size_t bytes = (n + 15) & ~(size_t)15;
  if (bytes > a->max_bytes - a->used_bytes)
    return NULL;
  td_arena_block *block = a->head;
  if (!block || bytes > block->cap_bytes - block->used_bytes) {
    block = block_add(a, bytes);
    if (!block)
      return NULL;
  }
  void *p = block->data + block->used_bytes;
  block->used_bytes += bytes;
  a->used_bytes += bytes;
  return memset(p, 0, bytes);
}

void *td_arena_alloc_array(td_arena *a, size_t count, size_t size)
{
  size_t bytes;
  if (!td_mul_size(count, size, &bytes))
    return NULL;
  return td_arena_alloc(a, bytes);
}

char *td_arena_strdup(td_arena *a, const char *s, size_t n)
{
  if (n == SIZE_MAX)
    return NULL;
  char *copy = td_arena_alloc(a, n + 1);
  if (copy && n > 0)
    memcpy(copy, s, n);
  return copy;
}
