/* When will there be room? What Retry-After and the predicted queue delay are made of.
 *
 * Two things hold a newcomer up: prompts before it, which the budget lets through at so many tokens a step;
 * and places and pages, which come free as answers end. How long an answer will be is not known, only the
 * most it may be; the share of it that answers have used lately is. The k-th end from now is read off a
 * histogram of what the running ones still have to say. O(running), no state but that share. */
#include <math.h>

#include "scheduler/internal.h"

enum { LENGTH_BINS = 32 };
/* How fast the share of max_new that answers use is learned. */
#define SHARE_STEP (1.0 / 16)

void td_sched_note_answer(td_sched *s, const td_request *r)
{
  double share = (double)(r->n_tokens - r->n_prompt) / (r->max_tokens - r->n_prompt);
  s->answer_share += SHARE_STEP * (share - s->answer_share);
}

static uint32_t n_waiting(const td_sched *s) { return s->order.n_queued + s->order.n_following; }

/* What runs, as far as it decides when it ends. */
typedef struct load {
  uint32_t n_decodes, bins[LENGTH_BINS]; /* [i]: that have 2^(i-1) to 2^i - 1 steps to go */
  uint64_t kv_tokens, prompt_rest, pages;
  double steps_sum; /* that whole answers take */
} load;

static uint32_t bin_of(double steps)
{
  uint32_t i = 0;
  for (; steps >= 1 && i + 1 < LENGTH_BINS; steps /= 2)
    i++;
  return i;
}

static load load_of(const td_sched *s)
{
  load l = {0};
  for (uint32_t i = 0; i < s->table.n_running; i++) {
    const td_request *r = &s->table.requests[s->table.running[i]];
    uint32_t may_be = r->max_tokens - r->n_prompt, left = r->max_tokens - r->n_tokens;
    if (r->state == TD_REQUEST_DECODE) {
      l.n_decodes++;
      l.kv_tokens += r->n_tokens;
    } else {
      l.prompt_rest += r->n_tokens - r->n_computed;
    }
    l.pages += r->n_pages;
    l.steps_sum += fmax(1, s->answer_share * may_be);
    l.bins[bin_of(
        fmax(1, s->answer_share * left))]++; /* exact if all go to the end, and if any length is as likely */
  }
  return l;
}

/* Steps until k of those that run have ended; when all have, their places have been taken by others like
 * them. */
static double steps_to_end(const td_sched *s, const load *l, uint32_t k)
{
  uint32_t n = s->table.n_running, before = 0, i = 0;
  if (n == 0 || k == 0)
    return 0;
  double rounds = (k - 1) / n * l->steps_sum / n;
  k = (k - 1) % n + 1;
  for (; before + l->bins[i] < k; i++)
    before += l->bins[i];
  double low = ldexp(1, (int)i - 1);
  return rounds + low + low * (k - before - 0.5) / l->bins[i];
}

/* Ends that a newcomer needs: places and pages for those before it and itself. */
static uint32_t ends_needed(const td_sched *s, const load *l)
{
  uint32_t n_new = n_waiting(s) + 1, places = s->config.max_running - s->table.n_running, k = 0;
  if (n_new > places)
    k = n_new - places;
  double each = n_waiting(s) > 0 ? (double)s->order.waiting_prompt_tokens / n_waiting(s) : 0;
  double need = n_new * ceil((each + 1) / s->config.page_tokens) + s->reserved_pages + s->table.n_running;
  double lack = need - td_sched_available_pages(s);
  if (lack > 0 && l->pages > 0)
    k = (uint32_t)fmax(k, fmin(ceil(lack * s->table.n_running / (double)l->pages), 1e9));
  return k;
}

td_sched_forecast td_sched_foresee(const td_sched *s)
{
  td_sched_forecast f = {0};
  if (!s->budget.has_cost || s->table.n_running + n_waiting(s) == 0)
    return f;
  load l = load_of(s);
  td_budget b = s->budget;
  double hits = s->prefix_query_tokens ? (double)s->prefix_hit_tokens / (double)s->prefix_query_tokens : 0;
  double waiting = (double)s->order.waiting_prompt_tokens * (1 - hits);
  double before = waiting + (double)l.prompt_rest;
  td_budget_begin(&b);
  td_budget_add_decodes(&b, l.n_decodes, l.kv_tokens);
  td_budget_end_decodes(&b);
  double decode_us = l.n_decodes > 0 ? td_budget_predict_us(&b, &b.work) : 0;
  uint32_t chunk = td_budget_chunk(&b, 0, s->config.step_tokens); /* as if there were prompts enough */
  if (chunk == 0) /* a policy that waits for whole prompts to fit */
    chunk = s->config.step_tokens;
  td_budget_add_chunk(&b, chunk, chunk, false);
  double hybrid_us = td_budget_predict_us(&b, &b.work);
  f.prompt_token_us = hybrid_us / chunk;
  f.step_us = before > 0 ? hybrid_us : decode_us;

  uint32_t k = ends_needed(s, &l);
  /* each that ends lets one in, whose prompt lengthens some steps */
  double prompt_us = n_waiting(s) > 0 ? waiting / n_waiting(s) / chunk * (hybrid_us - decode_us) : 0;
  double ends_us = k > 0 ? steps_to_end(s, &l, k) * decode_us + (k - 1) * prompt_us : 0;
  f.start_us = f.step_us / 2 + fmax(before * f.prompt_token_us, ends_us);
  f.next_end_us = steps_to_end(s, &l, 1) * f.step_us;
  f.end_gap_us =
      s->table.n_running > 0 ? l.steps_sum / s->table.n_running / s->table.n_running * f.step_us : 0;
  return f;
}
