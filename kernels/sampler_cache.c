/* See sampler_cache.h. */
#include "kernels/sampler_cache.h"

#include <stdlib.h>

td_status td_sampler_cache_init(td_sampler_cache *c, uint32_t n_slots, uint32_t n_states, td_error *err)
{
  *c = (td_sampler_cache){.n_slots = n_slots, .n_states = n_states};
  c->state_of = malloc(n_slots * sizeof *c->state_of);
  c->slot_of = malloc(n_states * sizeof *c->slot_of);
  c->last_used = calloc(n_states, sizeof *c->last_used);
  if (!c->state_of || !c->slot_of || !c->last_used) {
    td_sampler_cache_deinit(c);
    return td_fail(err, TD_ERR_NOMEM, "no memory for the sampler state of %u slots", n_slots);
  }
  memset(c->state_of, 0xff, n_slots * sizeof *c->state_of);
  memset(c->slot_of, 0xff, n_states * sizeof *c->slot_of);
  return TD_OK;
}

void td_sampler_cache_deinit(td_sampler_cache *c)
{
  free(c->state_of);
  free(c->slot_of);
  free(c->last_used);
  *c = (td_sampler_cache){0};
}

void td_sampler_cache_release(td_sampler_cache *c, uint32_t slot)
{
  uint32_t index = c->state_of[slot];
  if (index == TD_NO_STATE)
    return;
  c->state_of[slot] = TD_NO_STATE;
  c->slot_of[index] = UINT32_MAX;
  c->last_used[index] = 0;
}

bool td_sampler_cache_acquire(td_sampler_cache *c, uint32_t slot, uint32_t *index, uint32_t *evicted_slot)
{
  uint32_t best = c->state_of[slot];
  bool is_new = best == TD_NO_STATE;
  *evicted_slot = UINT32_MAX;
  if (is_new) {
    best = 0;
    for (uint32_t i = 1; i < c->n_states; i++)
      best = c->last_used[i] < c->last_used[best] ? i : best;
    *evicted_slot = c->slot_of[best];
    if (*evicted_slot != UINT32_MAX)
      c->state_of[*evicted_slot] = TD_NO_STATE;
    c->state_of[slot] = best;
    c->slot_of[best] = slot;
  }
  c->last_used[best] = ++c->n_uses;
  *index = best;
  return is_new;
}

static int by_id(const void *a, const void *b)
{
  int32_t x = ((const td_sample_listed *)a)->id, y = ((const td_sample_listed *)b)->id;
  return x < y ? -1 : x > y;
}

/* Lists biases and forbidden ids, one entry for each id. */
static void make_list(const td_sampling *s, uint32_t n_prompt, td_sample_state *state)
{
  uint32_t n = 0, n_different = 0;
  td_sample_listed *l = state->listed;
  TD_BUG_ON(s->n_bias > TD_LOGIT_BIAS_MAX || s->n_end_ids > TD_END_IDS_MAX);
  for (uint32_t i = 0; i < s->n_bias; i++)
    l[n++] = (td_sample_listed){.id = s->bias[i].id, .bias = s->bias[i].bias};
  for (uint32_t i = 0; s->min_tokens > 0 && i < s->n_end_ids; i++)
    l[n++] = (td_sample_listed){.id = s->end_ids[i], .forbidden_below = n_prompt + s->min_tokens};
  qsort(l, n, sizeof *l, by_id);
  for (uint32_t i = 0; i < n; i++) {
    td_sample_listed *last = n_different > 0 ? &l[n_different - 1] : NULL;
    if (last && last->id == l[i].id) {
      last->bias += l[i].bias; /* one of the two biases is 0 */
      last->forbidden_below =
          last->forbidden_below > l[i].forbidden_below ? last->forbidden_below : l[i].forbidden_below;
    } else {
      l[n_different++] = l[i];
    }
  }
  state->n_listed = n_different;
}

void td_sample_state_make(const td_sampling *s, const td_sample_history *h, uint32_t vocab,
                          td_sample_state *state, uint16_t *words)
{
  state->presence = s->presence_penalty;
  state->frequency = s->frequency_penalty;
  state->repetition = s->repetition_penalty > 0 ? s->repetition_penalty : 1;
  make_list(s, h->n_prompt, state);
  memset(words, 0, vocab * sizeof *words);
  for (uint32_t i = 0; i < h->n_prompt; i++)
    words[h->tokens[i]] |= TD_WORD_PROMPT;
  for (uint32_t i = h->n_prompt; i < h->n_tokens; i++)
    words[h->tokens[i]] = td_sample_count_once_more(words[h->tokens[i]]);
  for (uint32_t i = 0; i < state->n_listed; i++) {
    uint32_t id = (uint32_t)state->listed[i].id;
    if (id < vocab)
      words[id] |= TD_WORD_LISTED;
  }
}
