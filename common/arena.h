/* A bump allocator: many small allocations with one lifetime, freed at once, with a hard cap.
 * One arena per request, per parsed file, per rendered template. Not thread-safe. */
#ifndef TD_COMMON_ARENA_H
#define TD_COMMON_ARENA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct td_arena_block td_arena_block;

typedef struct td_arena {
  td_arena_block *head; /* the block in use, owned; full ones behind it */
  size_t used_bytes;    /* sum of all allocations */
  size_t max_bytes;     /* cap on used_bytes; memory taken is below twice used_bytes + 16 KiB */
  bool no_memory;       /* an allocation failed for lack of memory, not at the cap */
} td_arena;

void td_arena_init(td_arena *a, size_t max_bytes);
void td_arena_deinit(td_arena *a);
/* Zeroed, 16-byte aligned memory, or NULL when the cap or memory is reached. n may be 0. */
void *td_arena_alloc(td_arena *a, size_t n);
/* count * size, checked. */
void *td_arena_alloc_array(td_arena *a, size_t count, size_t size);
/* NUL-terminated copy of n bytes. */
char *td_arena_strdup(td_arena *a, const char *s, size_t n);

#endif
