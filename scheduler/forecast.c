/* When will there be room? What Retry-After and the predicted queue delay are made of.
 *
 * Two things hold a newcomer up: prompts before it, which the budget lets through at so many tokens a step;
 * and places and pages, which come free as answers end. How long an answer will be is not known: what is, is how long others of
 * its account got lately (answers.h). From that and its age, each running answer has a chance to have ended by any step; their sum is
 * how many will have ended by then, so the k-th end from now is read off it. Time is steps' without prompts, and more for each
 * prompt token that comes in between. O(running + accounts), no state but averages. */
#include <math.h>

#include "scheduler/internal.h"

enum { BINS = 124 };     /* of steps: four in an octave */
enum { ENDS_SEEN = 16 }; /* the gap between ends is of so many */
/* The k-th of events that come at random is as likely before as after the moment by which so many are expected. */
#define MEDIAN_LEVEL(k) ((k) - 1.0 / 3)
/* Who goes on for so many times what an answer takes holds its place, and frees none for a newcomer. */
enum { HOLDS_FOR = 4 };
/* Of those that go to their max_new the longest are this share of all: they hold their places, and say nothing of the others. */
#define OUTLIERS 0.1

static uint32_t n_waiting(const td_sched *s) { return s->order.n_queued + s->order.n_following; }

/* What runs or may start at once, as far as it decides when it ends. */
typedef struct load {
  uint32_t n_running, n_decodes, n_held; /* held: decodes that keep their places for long */
  uint32_t n_joining;                    /* of those that wait, for whom there are places */
  uint64_t kv_tokens, prompt_tokens, prompt_rest, pages;
  double waiting_tokens, waiting_each; /* of prompts, less what the tree will have of them */
  /* Answers to come, of those that wait or are still prompts; else of others like those that run. */
  double n_full, n_early, early_from, early_to; /* that go to max_new; that do not, and sums of between what lengths they end */
  double full_at[TD_ANSWER_BINS], full_tokens[TD_ANSWER_BINS]; /* the former by their max_new, and its sum */
  double full, from, to; /* share of the former; the latter end at any step between these */
  double answer;         /* steps that an answer takes */
  /* Ends of those that run and join. */
  double points[BINS], density[BINS]; /* in a bin; for each step of all bins up to it */
  double ends[BINS + 1];              /* that will have come by the bin's first step */
  uint32_t horizon;                   /* by this bin all have ended that do not hold their places */
  double decode_us, hybrid_us, decode_now_us, hybrid_now_us; /* a step without and with prompts, when some have joined and now */
  uint32_t chunk, chunk_now;                                 /* of prompts in the latter */
} load;

/* So many ends at each step up to `steps`. */
static void add_rate(load *l, double steps, double rate)
{
  uint32_t bin = td_answers_bin(steps);
  l->density[bin] += rate;
  l->points[bin] += rate * (steps - td_answers_bin_first(bin));
}

static void add_answer(load *l, const td_sched *s, const td_request *r)
{
  td_answer_chance c = td_answers_chance(&s->answers, r->account, r->n_tokens - r->n_prompt, r->max_tokens - r->n_prompt);
  l->points[td_answers_bin(r->max_tokens - r->n_tokens)] += c.full;
  double rest = c.full * (r->max_tokens - r->n_tokens) + (1 - c.full) * (c.from + c.to) / 2;
  l->n_held += rest > HOLDS_FOR * l->answer;
  if (c.full == 1)
    return;
  add_rate(l, c.to, (1 - c.full) / (c.to - c.from));
  add_rate(l, c.from, -(1 - c.full) / (c.to - c.from));
}

/* n answers to come. */
static void add_to_come(load *l, const td_sched *s, uint32_t account, double max_new, uint32_t n)
{
  td_answer_chance c = td_answers_chance(&s->answers, account, 0, (uint32_t)max_new);
  uint32_t bin = td_answers_bin(max_new);
  if (bin >= TD_ANSWER_BINS)
    bin = TD_ANSWER_BINS - 1;
  l->full_at[bin] += n * c.full;
  l->full_tokens[bin] += n * c.full * max_new;
  l->n_full += n * c.full;
  l->n_early += n * (1 - c.full);
  l->early_from += n * (1 - c.full) * c.from;
  l->early_to += n * (1 - c.full) * c.to;
}

static uint32_t asked_of(const td_request *r) { return r->max_tokens - r->n_prompt; }

/* Those that wait, and their prompts. */
static void collect_waiting(load *l, const td_sched *s)
{
  const td_answers *a = &s->answers;
  for (uint32_t i = 0; i < a->n_used; i++) {
    const td_answer_account *of = &a->accounts[i];
    if (of->n_waiting == 0)
      continue;
    l->waiting_tokens += (double)of->waiting_tokens * td_answers_computed_share(of);
    for (uint32_t b = 0; b < TD_ANSWER_BINS; b++)
      if (of->n_asked[b] > 0)
        add_to_come(l, s, i, (double)a->asked_tokens[b] / a->n_asked[b], of->n_asked[b]);
  }
}

static void collect_prompts(load *l, const td_sched *s)
{
  for (uint32_t i = 0; i < l->n_running; i++) {
    const td_request *r = &s->table.requests[s->table.running[i]];
    l->pages += r->n_pages;
    if (r->state == TD_REQUEST_DECODE)
      continue;
    l->prompt_tokens += r->n_tokens;
    l->prompt_rest += r->n_tokens - r->n_computed;
    add_to_come(l, s, r->account, asked_of(r), 1);
  }
  bool none = l->n_full + l->n_early == 0;
  for (uint32_t i = 0; none && i < l->n_running; i++) {
    const td_request *r = &s->table.requests[s->table.running[i]];
    add_to_come(l, s, r->account, asked_of(r), 1);
  }
}

/* What an answer takes must be known. */
static void collect_decodes(load *l, const td_sched *s)
{
  for (uint32_t i = 0; i < l->n_running; i++) {
    const td_request *r = &s->table.requests[s->table.running[i]];
    if (r->state != TD_REQUEST_DECODE)
      continue;
    l->n_decodes++;
    l->kv_tokens += r->n_tokens;
    add_answer(l, s, r);
  }
}

static void sum_up_to_come(load *l)
{
  double n = l->n_full + l->n_early, longest = OUTLIERS * n, n_counted = l->n_early, tokens = (l->early_from + l->early_to) / 2;
  l->full = n > 0 ? l->n_full / n : 1;
  l->from = l->n_early > 0 ? l->early_from / l->n_early : 0;
  l->to = l->n_early > 0 ? l->early_to / l->n_early : 1;
  for (uint32_t i = TD_ANSWER_BINS; i-- > 0;) {
    double out = fmin(longest, l->full_at[i]), counts = l->full_at[i] - out;
    longest -= out;
    n_counted += counts;
    tokens += l->full_at[i] > 0 ? counts * l->full_tokens[i] / l->full_at[i] : 0;
  }
  l->answer = n_counted > 0 ? fmax(1, tokens / n_counted) : 1;
}

/* Of those that run and join, without those that hold their places for long; all if these are all. */
static double turning(const load *l)
{
  uint32_t n_all = l->n_running + l->n_joining;
  return l->n_held < n_all ? n_all - l->n_held : n_all;
}

/* Answers to prompts that run or join start one behind the other, as those are computed: so many by then, and the sum of that over all
 * steps before. */
static void begun_by(const load *l, double steps, double *n, double *sum)
{
  double n_all = l->n_running - l->n_decodes + l->n_joining;
  double takes = ((double)l->prompt_rest + l->n_joining * l->waiting_each) / l->chunk;
  double share = takes > 0 ? fmin(fmax(steps / takes, 0), 1) : steps >= 0;
  *n = n_all * share;
  *sum = n_all * (share * share * takes / 2 + fmax(0, steps - takes));
}

static double begun_and_ended(const load *l, double steps)
{
  double n, sum, sum_before, ended = 0;
  for (uint32_t i = 0; i < TD_ANSWER_BINS && l->n_full > 0; i++) {
    if (!(l->full_at[i] > 0))
      continue;
    begun_by(l, steps - l->full_tokens[i] / l->full_at[i], &n, &sum);
    ended += l->full * n * l->full_at[i] / l->n_full;
  }
  begun_by(l, steps - l->from, &n, &sum);
  begun_by(l, steps - l->to, &n, &sum_before);
  return ended + (1 - l->full) * (sum - sum_before) / (l->to - l->from);
}

/* Ends by each bin: of those that run and join, and of those that take their places, who are as likely to end early. */
static void sum_up(load *l)
{
  double own = 0, density = 0, n_turning = turning(l);
  for (uint32_t i = BINS; i-- > 0;) {
    double here = l->density[i];
    l->density[i] = density; /* of the bins above */
    density += here;
  }
  l->horizon = BINS;
  for (uint32_t i = 0; i < BINS; i++) {
    double steps = td_answers_bin_first(i + 1);
    own += l->points[i] + l->density[i] * (steps - td_answers_bin_first(i));
    double ended = own + begun_and_ended(l, steps);
    double taken = ended * (1 - l->full) * steps / l->answer / 2; /* places, and left again */
    if (l->waiting_each > 0) /* not before their prompts are computed */
      taken = fmin(taken, fmax(0, (steps * l->chunk - (double)l->prompt_rest) / l->waiting_each - l->n_joining) / 2);
    l->ends[i + 1] = fmax(l->ends[i], ended + taken);
    if (n_turning - ended < 0.5) {
      l->horizon = i + 1;
      return;
    }
  }
}

/* Steps until k have ended; when all have, their places have been taken by others like them. */
static double steps_to_end(const load *l, uint32_t k)
{
  double level = MEDIAN_LEVEL(k), all = l->ends[l->horizon], n_turning = turning(l);
  if (n_turning == 0 || k == 0 || !(all > 0))
    return 0;
  double rounds = floor(level / all), steps = rounds * all * l->answer / n_turning;
  level -= rounds * all;
  uint32_t i = 0;
  while (i + 1 < l->horizon && l->ends[i + 1] < level)
    i++;
  double first = td_answers_bin_first(i), here = l->ends[i + 1] - l->ends[i];
  steps += first + (td_answers_bin_first(i + 1) - first) * (here > 0 ? fmin(1, (level - l->ends[i]) / here) : 1);
  return steps;
}

/* What so many steps take, if so many others are let in meanwhile. */
static double time_of(const load *l, double steps, double n_others)
{
  double tokens = (double)l->prompt_rest + (l->n_joining + n_others) * l->waiting_each;
  return steps * l->decode_us + fmin(tokens, steps * l->chunk) * (l->hybrid_us - l->decode_us) / l->chunk;
}

static double pages_each(const td_sched *s, const load *l) { return ceil((l->waiting_each + 1) / s->config.page_tokens); }

/* Ends that a newcomer needs: places and pages for those before it and itself. */
static uint32_t ends_needed(const td_sched *s, const load *l)
{
  uint32_t n_new = n_waiting(s) + 1, places = s->config.max_running - l->n_running, k = 0;
  if (n_new > places)
    k = n_new - places;
  double need = n_new * pages_each(s, l) + s->reserved_pages + l->n_running;
  double lack = need - td_sched_available_pages(s);
  if (lack > 0 && l->pages > 0)
    k = (uint32_t)fmax(k, fmin(ceil(lack * l->n_running / (double)l->pages), 1e9));
  return k;
}

/* A step of these decodes, and one with as many prompt tokens as it takes; returns how many. */
static uint32_t step_times(const td_sched *s, uint32_t n_decodes, double kv_tokens, double *decode_us,
                           double *hybrid_us)
{
  td_budget b = s->budget;
  if (n_decodes >= s->config.step_tokens)
    n_decodes = s->config.step_tokens - 1;
  td_budget_begin(&b);
  td_budget_add_decodes(&b, n_decodes, (uint64_t)kv_tokens);
  td_budget_end_decodes(&b);
  *decode_us = n_decodes > 0 ? td_budget_predict_us(&b, &b.work) : 0;
  uint32_t chunk = td_budget_chunk(&b, 0, s->config.step_tokens); /* as if there were prompts enough */
  if (chunk == 0) /* a policy that waits for whole prompts to fit */
    chunk = s->config.step_tokens;
  td_budget_add_chunk(&b, chunk, chunk, false);
  *hybrid_us = td_budget_predict_us(&b, &b.work);
  return chunk;
}

/* Who joins decodes only when its prompt is computed, and some have ended by then: as many decode at once as prompts come in an
 * answer's time, if that is fewer. */
static void foresee_steps(load *l, const td_sched *s)
{
  double n = l->n_running - l->n_decodes + l->n_joining, tokens = (double)l->prompt_tokens + l->n_joining * l->waiting_each;
  double kv_each = n > 0 ? tokens / n + l->answer / 2 : 0, rest = (double)l->prompt_rest + l->n_joining * l->waiting_each;
  l->chunk_now = step_times(s, l->n_decodes, (double)l->kv_tokens, &l->decode_now_us, &l->hybrid_now_us);
  if (rest > 0)
    n = fmin(n, fmax(1, l->answer * l->chunk_now * n / rest - l->n_decodes));
  l->chunk = step_times(s, l->n_decodes + (uint32_t)n, (double)l->kv_tokens + n * kv_each, &l->decode_us, &l->hybrid_us);
}

static load load_of(const td_sched *s)
{
  load l = {.n_running = s->table.n_running};
  uint32_t places = s->config.max_running - l.n_running;
  collect_waiting(&l, s);
  l.waiting_each = n_waiting(s) > 0 ? l.waiting_tokens / n_waiting(s) : 0;
  double pages = (double)td_sched_available_pages(s) - s->reserved_pages - l.n_running;
  double room = fmax(0, pages) / (pages_each(s, &l) + 1); /* and one to grow */
  l.n_joining = (uint32_t)fmin(fmin(n_waiting(s), places), room);
  collect_prompts(&l, s);
  sum_up_to_come(&l);
  collect_decodes(&l, s);
  foresee_steps(&l, s);
  sum_up(&l);
  return l;
}

td_sched_forecast td_sched_foresee(const td_sched *s)
{
  td_sched_forecast f = {0};
  if (!s->budget.has_cost || s->table.n_running + n_waiting(s) == 0)
    return f;
  load l = load_of(s);
  double before = l.waiting_tokens + (double)l.prompt_rest;
  uint32_t k = ends_needed(s, &l);
  f.prompt_token_us = l.hybrid_now_us / l.chunk_now;
  f.step_us = before > 0 ? l.hybrid_now_us : l.decode_now_us;
  double ends_us = k > 0 ? time_of(&l, steps_to_end(&l, k), k - 1) : 0;
  f.start_us = f.step_us / 2 + fmax(before * f.prompt_token_us, ends_us);
  f.next_end_us = time_of(&l, steps_to_end(&l, 1), 0);
  f.end_gap_us = (time_of(&l, steps_to_end(&l, 1 + ENDS_SEEN), ENDS_SEEN) - f.next_end_us) / ENDS_SEEN;
  return f;
}
