/* When will there be room? What Retry-After and the predicted queue delay are made of.
 *
 * Two things hold a newcomer up: prompts before it, which the budget lets through at so many tokens a step;
 * and places and pages, which come free as answers end. How long an answer will be is not known: what is, is which share of
 * them went to max_new lately, and how much of it the others used. From that and its age, each running answer has a chance to
 * have ended by any step; their sum is how many will have ended by then, so the k-th end from now is read off it. Time is
 * steps' without prompts, and more for each prompt token that comes in between. O(running), no state but averages. */
#include <math.h>

#include "scheduler/internal.h"

enum { BINS = 124 }; /* of steps: four in an octave */
enum { ENDS_SEEN = 16 }; /* the gap between ends is of so many */
/* How fast the averages follow. */
#define AVERAGE_STEP (1.0 / 16)
/* The k-th of events that come at random is as likely before as after the moment by which so many are expected. */
#define MEDIAN_LEVEL(k) ((k) - 1.0 / 3)

/* One that asked for less than those that run counts less: by many of one token nobody decides what is thought of long ones. */
void td_sched_note_answer(td_sched *s, const td_request *r)
{
  double asked = r->max_tokens - r->n_prompt, share = (r->n_tokens - r->n_prompt) / asked;
  double step = AVERAGE_STEP * fmin(1, asked * s->table.n_running / (double)s->table.asked_tokens);
  s->answer_share += step * (share - s->answer_share);
  s->answer_full += step * ((r->n_tokens == r->max_tokens) - s->answer_full);
  s->answer_asked += AVERAGE_STEP * (asked - s->answer_asked);
  s->any_answer = true;
}

void td_sched_note_request(td_sched *s, uint32_t max_new)
{
  if (s->any_answer) /* who goes before its answer ends says nothing of those that stay */
    return;
  s->answer_asked += (s->answer_asked > 0 ? AVERAGE_STEP : 1) * (max_new - s->answer_asked);
}

static uint32_t n_waiting(const td_sched *s) { return s->order.n_queued + s->order.n_following; }

/* What runs or may start at once, as far as it decides when it ends. */
typedef struct load {
  uint32_t n_running, n_joining, n_decodes; /* joining: of those that wait, for whom there are places */
  uint64_t kv_tokens, prompt_tokens, prompt_rest, pages;
  double waiting_tokens, waiting_each; /* of prompts, less what the tree will have of them */
  double full, early;                  /* share of answers that go to their end; of it that the others use */
  double answer;                       /* steps that an answer takes */
  double points[BINS], density[BINS];  /* ends in a bin; for each step of all bins up to it */
  double ends[BINS + 1];               /* that will have come by the bin's first step */
  uint32_t horizon;                    /* by this bin all of those have ended */
  double decode_us, hybrid_us, decode_now_us, hybrid_now_us; /* a step without and with prompts, when some have joined and now */
  uint32_t chunk, chunk_now;                                 /* of prompts in the latter */
} load;

static uint32_t bin_of(double steps)
{
  uint32_t n = (uint32_t)fmin(steps, UINT32_MAX);
  if (n < 4)
    return n;
  uint32_t octave = 31 - (uint32_t)__builtin_clz(n);
  return 4 * (octave - 1) + (n >> (octave - 2) & 3);
}

static double first_step_of(uint32_t bin)
{
  return bin < 4 ? bin : (double)((uint64_t)(4 + bin % 4) << (bin / 4 - 1));
}

/* An end that comes at any step up to `steps` alike. */
static void add_spread(load *l, double steps, double share)
{
  uint32_t bin = bin_of(steps);
  l->density[bin] += share / steps;
  l->points[bin] += share / steps * (steps - first_step_of(bin));
}

/* A running answer. If no length below max_new is likelier than another, it may end at any step up to twice the average; whoever is
 * past that is one that goes to the end, or will not last much longer. */
static void add_answer(load *l, const td_request *r)
{
  double rest = r->max_tokens - r->n_tokens, age = r->n_tokens - r->n_prompt;
  double mean = l->early * (r->max_tokens - r->n_prompt), lives_on = fmax(0, 1 - age / (2 * mean));
  double others = (1 - l->full) * lives_on, full = l->full + others > 0 ? l->full / (l->full + others) : 0;
  double within = fmax(1, fmin(rest, fmax(2 * mean - age, mean / 2)));
  l->points[bin_of(rest)] += full;
  add_spread(l, within, 1 - full);
}

static void collect(load *l, const td_sched *s)
{
  for (uint32_t i = 0; i < l->n_running; i++) {
    const td_request *r = &s->table.requests[s->table.running[i]];
    l->pages += r->n_pages;
    if (r->state == TD_REQUEST_DECODE) {
      l->n_decodes++;
      l->kv_tokens += r->n_tokens;
      add_answer(l, r);
    } else {
      l->prompt_tokens += r->n_tokens;
      l->prompt_rest += r->n_tokens - r->n_computed;
    }
  }
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

static double begun_and_ended(const load *l, double steps, double asked)
{
  double n_full, n, sum, sum_before, within = fmax(1, 2 * l->early * asked);
  begun_by(l, steps - asked, &n_full, &sum);
  begun_by(l, steps, &n, &sum);
  begun_by(l, steps - within, &n, &sum_before);
  return l->full * n_full + (1 - l->full) * (sum - sum_before) / within;
}

/* Ends by each bin: of those that run and join, and of those that take their places, who are as likely to end early. */
static void sum_up(load *l, double asked)
{
  double n_all = l->n_running + l->n_joining, own = 0, density = 0;
  for (uint32_t i = BINS; i-- > 0;) {
    double here = l->density[i];
    l->density[i] = density; /* of the bins above */
    density += here;
  }
  l->horizon = BINS;
  for (uint32_t i = 0; i < BINS; i++) {
    double steps = first_step_of(i + 1);
    own += l->points[i] + l->density[i] * (steps - first_step_of(i));
    double ended = own + begun_and_ended(l, steps, asked);
    double taken = ended * (1 - l->full) * steps / l->answer / 2; /* places, and left again */
    if (l->waiting_each > 0) /* not before their prompts are computed */
      taken = fmin(taken, fmax(0, (steps * l->chunk - (double)l->prompt_rest) / l->waiting_each - l->n_joining) / 2);
    l->ends[i + 1] = fmax(l->ends[i], ended + taken);
    if (n_all - ended < 0.5) {
      l->horizon = i + 1;
      return;
    }
  }
}

/* Steps until k have ended; when all have, their places have been taken by others like them. */
static double steps_to_end(const load *l, uint32_t k)
{
  double level = MEDIAN_LEVEL(k), all = l->ends[l->horizon], n = l->n_running + l->n_joining;
  if (n == 0 || k == 0 || !(all > 0))
    return 0;
  double rounds = floor(level / all), steps = rounds * all * l->answer / n;
  level -= rounds * all;
  uint32_t i = 0;
  while (i + 1 < l->horizon && l->ends[i + 1] < level)
    i++;
  double first = first_step_of(i), here = l->ends[i + 1] - l->ends[i];
  steps += first + (first_step_of(i + 1) - first) * (here > 0 ? fmin(1, (level - l->ends[i]) / here) : 1);
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
  load l = {.n_running = s->table.n_running, .full = s->answer_full, .answer = fmax(1, s->answer_share * s->answer_asked)};
  uint32_t places = s->config.max_running - l.n_running;
  double computed = (double)(s->prefix_query_tokens - s->prefix_hit_tokens); /* less than expected: others came with the same meanwhile */
  double share = s->expected_tokens > 0 ? computed / (double)s->expected_tokens : 1;
  l.early = l.full < 1 ? fmax(0.001, (s->answer_share - l.full) / (1 - l.full)) : 1;
  l.waiting_tokens = (double)s->order.waiting_uncached_tokens * share;
  l.waiting_each = n_waiting(s) > 0 ? l.waiting_tokens / n_waiting(s) : 0;
  double pages = (double)td_sched_available_pages(s) - s->reserved_pages - l.n_running;
  double room = fmax(0, pages) / (pages_each(s, &l) + 1); /* and one to grow */
  l.n_joining = (uint32_t)fmin(fmin(n_waiting(s), places), room);
  collect(&l, s);
  foresee_steps(&l, s);
  sum_up(&l, fmax(1, s->answer_asked));
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
