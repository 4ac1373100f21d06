/* Pace of a body: see body_pace.h. */
#include "server/body_pace.h"

static uint64_t slot_ms(uint64_t window_ms)
{
  return window_ms > TD_BODY_PACE_SLOTS ? window_ms / TD_BODY_PACE_SLOTS : 1;
}

void td_body_pace_begin(td_body_pace *p, uint64_t n_bytes, uint64_t now_ms, uint64_t window_ms)
{
  *p = (td_body_pace){.slots = {n_bytes}, .n = 1, .next = 1, .slot_end_ms = now_ms + slot_ms(window_ms)};
}

bool td_body_pace_is_slow(td_body_pace *p, uint64_t n_bytes, uint64_t now_ms, uint64_t window_ms,
                          uint64_t bytes_per_s)
{
  uint64_t need = bytes_per_s * slot_ms(window_ms) * TD_BODY_PACE_SLOTS;
  if (now_ms >= p->slot_end_ms + window_ms) { /* not called for a whole window: begin again */
    td_body_pace_begin(p, n_bytes, now_ms, window_ms);
    return false;
  }
  for (; now_ms >= p->slot_end_ms; p->slot_end_ms += slot_ms(window_ms)) {
    bool whole = p->n == TD_BODY_PACE_SLOTS; /* if so, slots[next] holds the bytes of one window ago */
    uint64_t fresh = n_bytes - p->slots[p->next];
    p->slots[p->next] = n_bytes;
    p->next = (p->next + 1) % TD_BODY_PACE_SLOTS;
    p->n += !whole;
    if (whole && fresh * 1000 < need)
      return true;
  }
  return false;
}
