/* KV events between two threads: see kv_feed.h. */
#include "engine/kv_feed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/log.h"

enum { MASK = TD_KV_FEED_EVENTS - 1 };

td_status td_kv_feed_init(td_kv_feed *f, uint32_t page_tokens, td_error *err)
{
  f->page_tokens = page_tokens;
  f->fd = -1;
  f->events = calloc(TD_KV_FEED_EVENTS, sizeof *f->events);
  f->tokens = calloc((size_t)TD_KV_FEED_EVENTS * page_tokens, sizeof *f->tokens);
  if (!f->events || !f->tokens)
    return td_fail(err, TD_ERR_NOMEM, "no memory for KV events");
  f->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (f->fd < 0)
    return td_fail(err, TD_ERR_IO, "eventfd: %s", strerror(errno));
  return TD_OK;
}

void td_kv_feed_deinit(td_kv_feed *f)
{
  if (f->events && f->fd >= 0)
    close(f->fd);
  free(f->events);
  free(f->tokens);
  f->events = NULL;
  f->tokens = NULL;
}

static void store_event(td_kv_feed *f, uint64_t at, const td_page_event *e)
{
  int32_t *tokens = f->tokens + (at & MASK) * f->page_tokens;
  if (e->is_stored)
    memcpy(tokens, e->tokens, f->page_tokens * sizeof *tokens);
  f->events[at & MASK] = (td_engine_kv_event){.is_stored = e->is_stored,
                                              .name = e->name,
                                              .before = e->before,
                                              .namespace_id = e->namespace_id,
                                              .tokens = e->is_stored ? tokens : NULL};
}

/* The engine sets has_left_over before it reads n_consumed a last time. The reader stores n_consumed before
 * it reads has_left_over. So at least one of the two sees the other's store. */
static bool has_room(td_kv_feed *f, uint64_t at)
{
  if (at - atomic_load_explicit(&f->n_consumed, memory_order_acquire) < TD_KV_FEED_EVENTS)
    return true;
  atomic_store(&f->has_left_over, true);
  return at - atomic_load(&f->n_consumed) < TD_KV_FEED_EVENTS;
}

void td_kv_feed_fill(td_kv_feed *f, td_sched *s)
{
  uint64_t first = atomic_load_explicit(&f->n_stored, memory_order_relaxed), at = first, one = 1;
  td_page_event e;
  while (has_room(f, at) && td_sched_take_page_event(s, &e))
    store_event(f, at++, &e);
  if (at == first)
    return;
  atomic_store_explicit(&f->n_stored, at, memory_order_release);
  if (write(f->fd, &one, sizeof one) < 0 && errno != EAGAIN) /* EAGAIN: the eventfd is readable already */
    td_warn("waking the publisher of KV events: %s", strerror(errno));
}

uint32_t td_kv_feed_read(td_kv_feed *f, const td_engine_kv_event **out, uint32_t max, bool *must_wake_engine)
{
  atomic_store(&f->n_consumed, f->n_read);
  *must_wake_engine = atomic_exchange(&f->has_left_over, false);
  uint64_t n = atomic_load_explicit(&f->n_stored, memory_order_acquire) - f->n_read;
  uint64_t to_end = TD_KV_FEED_EVENTS - (f->n_read & MASK);
  n = n < max ? n : max;
  n = n < to_end ? n : to_end;
  *out = &f->events[f->n_read & MASK];
  f->n_read += n;
  return (uint32_t)n;
}
