/* Chooses tokens: greedy, or temperature, min-p, top-k, top-p and a draw. kernels/sample_math.h defines every
 * step.
 *
 * Nothing is sorted. top-k and top-p each find the lowest logit that stays, one digit of its key at a
 * time. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/sample_math.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* Returns the highest key t such that the tokens with key >= t together reach `want` (tokens, or weight).
 * Returns the lowest key if they never do. Each pass keeps the tokens whose keys have the digits found so
 * far. */
static uint32_t find_threshold(cpu_sampler_scratch *s, uint32_t n, bool by_count, uint64_t want)
{
  uint32_t prefix = 0;
  for (int shift = 2 * DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) { /* 10 + 11 + 11 bits */
    uint64_t sums[DIGITS] = {0};
    for (uint32_t i = 0; i < n; i++)
      sums[s->keys[i] >> shift & (DIGITS - 1)] += by_count ? 1 : s->key_weights[i];
    uint32_t digit = DIGITS - 1, kept = 0, lowest = 0;
    while (lowest < DIGITS - 1 && sums[lowest] == 0)
      lowest++;
    while (digit > lowest && sums[digit] < want)
      want -= sums[digit--];
    prefix |= digit << shift;
    for (uint32_t i = 0; i < n; i++)
      if ((s->keys[i] >> shift & (DIGITS - 1)) == digit) {
        s->keys[kept] = s->keys[i];
        s->key_weights[kept++] = s->key_weights[i];
      }
    n = kept;
  }
  return prefix;
}

/* Copies the tokens that still have weight to s->keys and s->key_weights. Returns their number. */
static uint32_t collect(cpu_sampler_scratch *s, const float *logits, uint32_t n, uint64_t *total)
{
  uint32_t kept = 0;
  *total = 0;
  for (uint32_t i = 0; i < n; i++) {
    s->keys[kept] = td_sample_key(logits[i]);
    s->key_weights[kept] = s->weights[i];
    *total += s->weights[i];
    kept += s->weights[i] != 0;
  }
  return kept;
}

static void drop_below(cpu_sampler_scratch *s, const float *logits, uint32_t n, uint32_t key)
{
  for (uint32_t i = 0; i < n; i++)
    s->weights[i] = td_sample_key(logits[i]) >= key ? s->weights[i] : 0;
}

/* Sets the weights of tokens that min-p, top-k and top-p drop to 0. Returns the sum of the rest. */
static uint64_t restrict_weights(cpu_sampler_scratch *s, const td_sampling *p, const float *logits,
                                 uint32_t n)
{
  uint64_t total;
  uint32_t least = td_sample_least(p->min_p);
  for (uint32_t i = 0; least > 1 && i < n; i++)
    s->weights[i] = s->weights[i] >= least ? s->weights[i] : 0;
  uint32_t kept = collect(s, logits, n, &total);
  if (p->top_k > 0 && (uint32_t)p->top_k < kept) {
    drop_below(s, logits, n, find_threshold(s, kept, true, (uint64_t)p->top_k));
    kept = collect(s, logits, n, &total);
  }
  if (p->top_p < 1) {
    drop_below(s, logits, n, find_threshold(s, kept, false, td_sample_want(total, p->top_p)));
    collect(s, logits, n, &total);
  }
  return total;
}

/* The logits of a special row as the sampler reads them (kernels/sample_state.h). words NULL: the slot has no
 * state. mask NULL: any token may be chosen. */
static const float *adjust(cpu_sampler_scratch *s, const float *logits, uint32_t n,
                           const td_sample_state *state, const uint16_t *words, const uint32_t *mask,
                           uint32_t n_tokens)
{
  for (uint32_t i = 0; i < n; i++)
    s->adjusted[i] = td_sample_adjust(state, words ? words[i] : 0, !mask || td_sample_is_allowed(mask, i),
                                      (int32_t)i, logits[i], n_tokens);
  return s->adjusted;
}

/* Returns -1 for a NaN, +inf or no finite value. */
static int32_t choose(cpu_backend *be, cpu_sampler_scratch *s, const float *logits, uint32_t n,
                      const td_plan_row *row)
{
  const td_sampling *p = &be->sampling[row->slot];
  float max;
  int32_t best = be->isa->argmax(logits, n, &max);
  if (best < 0)
    return -1;
  if (td_sample_is_greedy(p->temperature))
    return best;
  uint64_t total = be->isa->weights(logits, n, max, td_sample_inv_temperature(p->temperature), s->weights);
  if (p->min_p > 0 || p->top_k > 0 || p->top_p < 1)
    total = restrict_weights(s, p, logits, n);
  uint64_t left = td_sample_draw(td_sample_random(p->seed, row->kv_len), total);
  for (uint32_t i = 0; i < n; i++) {
    if (left < s->weights[i])
      return (int32_t)i;
    left -= s->weights[i];
  }
  return best;
}

/* Chooses the token of the row's last logits, and counts it in the slot's state. */
static int32_t sample_row(cpu_backend *be, cpu_sampler_scratch *s, const float *logits, uint32_t n,
                          const td_plan_row *row, const uint32_t *mask)
{
  uint32_t index = be->cache.state_of[row->slot];
  TD_BUG_ON(index == TD_NO_STATE && !td_sampling_is_plain(&be->sampling[row->slot]));
  if (index == TD_NO_STATE)
    return choose(be, s, mask ? adjust(s, logits, n, NULL, NULL, mask, 0) : logits, n, row);
  uint16_t *words = be->words + (size_t)index * be->config.max_vocab;
  int32_t id = choose(be, s, adjust(s, logits, n, &be->states[index], words, mask, row->kv_len), n, row);
  if (id >= 0)
    words[id] = td_sample_count_once_more(words[id]);
  return id;
}

typedef struct sample_job {
  cpu_backend *be;
  const td_sample_params *p;
} sample_job;

static bool wants_logprobs(const cpu_backend *be, const td_plan_logits *l)
{
  return l->target != TD_SAMPLE_HERE || be->sampling[be->plan->rows[l->row].slot].wants_logprobs;
}

/* Writes the log-probabilities of an entry's target, or of the chosen token. */
static void write_logprobs(cpu_backend *be, const float *logits, uint32_t n, uint32_t entry, int32_t id)
{
  const td_plan_logits *l = &be->plan->logits[entry];
  cpu_outcome *o = cpu_outcome_current(be);
  if (wants_logprobs(be, l))
    td_cpu_logprobs(be->isa, logits, n, id, be->sampling[be->plan->rows[l->row].slot].n_top,
                    &o->logprobs[(size_t)entry * TD_STEP_IDS], o->top + (size_t)entry * o->top_stride);
}

static void sample_task(void *arg, uint32_t task, uint32_t thread)
{
  const sample_job *j = arg;
  const td_sample_input *input = j->be->input;
  const td_plan_logits *l = &j->be->plan->logits[task];
  const float *logits = cpu_floats(j->p->logits) + (size_t)task * j->p->vocab;
  cpu_outcome *o = cpu_outcome_current(j->be);
  int32_t id = l->target;
  if (id == TD_SAMPLE_HERE) {
    if (input && input->late && input->late[task]) {
      o->flags[task] = TD_LOGITS_LATE;
      return;
    }
    id = sample_row(j->be, &j->be->sampler[thread], logits, j->p->vocab, &j->be->plan->rows[l->row],
                    input && input->masks ? input->masks[task] : NULL);
    o->n_ids[task] = id >= 0;
    o->flags[task] = id >= 0 ? 0 : TD_LOGITS_NAN;
    o->ids[task * TD_STEP_IDS] = id >= 0 ? id : 0;
  }
  write_logprobs(j->be, logits, j->p->vocab, task, id);
}

/* Finds which log-probabilities the step's entries ask for, before they are computed. */
static void size_logprobs(const cpu_backend *be, cpu_outcome *o)
{
  o->has_logprobs = false;
  o->top_stride = 0;
  for (uint32_t i = 0; i < be->plan->n_logits; i++) {
    const td_plan_logits *l = &be->plan->logits[i];
    uint32_t n_top = be->sampling[be->plan->rows[l->row].slot].n_top;
    if (!wants_logprobs(be, l))
      continue;
    o->has_logprobs = true;
    o->top_stride = n_top > o->top_stride ? n_top : o->top_stride;
  }
}

void td_cpu_sample(cpu_backend *be, const td_sample_params *p, uint32_t n_rows)
{
  sample_job j = {be, p};
  TD_BUG_ON(p->vocab > be->config.max_vocab || p->vocab == 0);
  size_logprobs(be, cpu_outcome_current(be));
  td_thread_pool_run(be->pool, sample_task, &j, be->plan->n_logits);
}
