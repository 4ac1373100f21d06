/* The forecast: when will there be room for a new request? Retry-After and the predicted queue delay come
 * from it.
 *
 * Two things delay a new request. The prompts before it pass at the budget's tokens a step. Places and
 * pages come free as answers end. The length of a running answer is unknown, but the recent lengths of its
 * account's answers are known (output_lengths.h). From these and its age, each running answer has a chance
 * to have ended by any step. The sum of the chances is how many will have ended by then, and from it the
 * time of the k-th end follows. Time is the time of steps without prompts, plus a time for each prompt
 * token in between. O(running + accounts), no state but averages. */
#include <math.h>

#include "scheduler/internal.h"

enum { BINS = 124 };     /* bins of steps: four in an octave */
enum { ENDS_SEEN = 16 }; /* the time between ends is the mean over this many */
/* Of events that come at random, the k-th is equally likely before and after the time by which this many
 * are expected. */
#define MEDIAN_LEVEL(k) ((k)-1.0 / 3)
/* ROUNDS_MAX: rounds of places being taken again that are summed one by one. HALVINGS: steps of the
 * bisection for the time of the k-th end. */
enum { ROUNDS_MAX = 8, HALVINGS = 20 };
#define STEPS_MAX 0x1p60
/* The least number of steps that a part of an answer's possible ends is spread over. */
#define NARROWEST 0.25
/* An answer that is expected to go on for more than this many mean answers holds its place, and frees none
 * for a new request. */
enum { HOLDS_FOR = 4 };
/* Answers end in bunches, and then as many prompts start together. So steps are predicted as if this many
 * more prompts waited. */
enum { BUNCH = 8 };
/* Of the answers that go to their max_new, the longest, up to this share of all answers, do not count in
 * the mean length: they hold their places. */
#define OUTLIERS 0.1

static uint32_t n_waiting(const td_sched *s) { return s->order.n_queued + s->order.n_following; }

/* Free places for an account that runs something already, like most accounts that wait. */
static uint32_t places_of(const td_sched *s)
{
  uint32_t n_free = td_sched_free_places(s), n_kept = td_places_kept(&s->places);
  return n_free > n_kept ? n_free - n_kept : 0;
}

/* The running requests, and the waiting ones that may start immediately ("joining"), as far as they decide
 * when answers end. */
typedef struct load {
  uint32_t n_running, n_decodes, n_held; /* held: decodes that keep their places for long (HOLDS_FOR) */
  uint32_t n_joining;                    /* waiting requests for which there are places and pages */
  uint64_t kv_tokens, prompt_tokens, prompt_rest, pages;
  uint64_t prompt_pages, unshared_pages; /* of running prompts: all pages, and those that no other request
                                          * uses */
  double waiting_tokens, waiting_each;   /* of waiting prompts, less what the tree will have: in all, and for
                                          * each */
  /* Answers to come, of waiting requests and running prompts; if there are none, of requests like the
   * running ones. */
  double n_full, n_early, early_at[TD_LENGTH_PARTS + 1]; /* how many go to max_new; how many end before, and
                                                          * sums of their parts' bounds */
  double full_at[TD_LENGTH_BINS], full_tokens[TD_LENGTH_BINS]; /* n_full by bin of max_new, and the sum of
                                                                * max_new */
  double full, at[TD_LENGTH_PARTS + 1]; /* share that goes to max_new; the others end in parts of equal
                                         * chance between these bounds */
  double answer;                        /* mean steps of an answer */
  /* Expected ends of running and joining requests. */
  double points[BINS], density[BINS]; /* points: ends in a bin. density: rates that stop in a bin; they
                                       * hold in all bins below it, and sum_up adds them up for each */
  double ends[BINS + 1];              /* ends expected by the bin's first step */
  uint32_t horizon;                   /* by this bin all requests have ended that do not hold their places */
  double read;                        /* share of the decodes' KV that is read from memory; the rest is
                                       * shared */
  double decode_us, hybrid_us, decode_now_us,
      hybrid_now_us;         /* a step without and with prompts; when some have joined, and now */
  uint32_t chunk, chunk_now; /* prompt tokens of a hybrid step; when some have joined, and now */
} load;

static inline double at_least(double x, double least)
{
  return x > least ? x : least;
} /* unlike fmax, without NaN */

/* Adds `rate` ends at each step up to `steps`. */
static void add_rate(load *l, double steps, double rate)
{
  uint32_t bin = td_output_lengths_bin(steps);
  l->density[bin] += rate;
  l->points[bin] += rate * (steps - td_output_lengths_bin_first(bin));
}

static double mean_of(const double at[TD_LENGTH_PARTS + 1])
{
  double sum = (at[0] + at[TD_LENGTH_PARTS]) / 2;
  for (uint32_t i = 1; i < TD_LENGTH_PARTS; i++)
    sum += at[i];
  return sum / TD_LENGTH_PARTS;
}

static void add_answer(load *l, const td_sched *s, const td_request *r)
{
  td_length_chance c = td_output_lengths_chance(&s->answers, r->account, r->n_tokens - r->n_prompt,
                                                r->max_tokens - r->n_prompt);
  double rest = c.full * (r->max_tokens - r->n_tokens) + (1 - c.full) * mean_of(c.at);
  l->n_held += rest > HOLDS_FOR * l->answer;
  l->points[td_output_lengths_bin(r->max_tokens - r->n_tokens)] += c.full;
  if (c.full == 1)
    return;
  double share = (1 - c.full) / TD_LENGTH_PARTS, rate = 0;
  for (uint32_t i = 0; i < TD_LENGTH_PARTS; i++) { /* a rate holds up to where the next part begins */
    c.at[i + 1] = at_least(c.at[i + 1], c.at[i] + NARROWEST);
    double here = share / (c.at[i + 1] - c.at[i]);
    add_rate(l, c.at[i], rate - here);
    rate = here;
  }
  add_rate(l, c.at[TD_LENGTH_PARTS], rate);
}

/* Adds n answers to come. */
static void add_to_come(load *l, const td_sched *s, uint32_t account, double max_new, uint32_t n)
{
  td_length_chance c = td_output_lengths_chance(&s->answers, account, 0, (uint32_t)max_new);
  uint32_t bin = td_output_lengths_bin(max_new);
  if (bin >= TD_LENGTH_BINS)
    bin = TD_LENGTH_BINS - 1;
  l->full_at[bin] += n * c.full;
  l->full_tokens[bin] += n * c.full * max_new;
  l->n_full += n * c.full;
  l->n_early += n * (1 - c.full);
  for (uint32_t i = 0; i <= TD_LENGTH_PARTS; i++)
    l->early_at[i] += n * (1 - c.full) * c.at[i];
}

static uint32_t max_new_of(const td_request *r) { return r->max_tokens - r->n_prompt; }

/* Adds the waiting requests and their prompts. */
static void collect_waiting(load *l, const td_sched *s)
{
  const td_output_lengths *a = &s->answers;
  for (uint32_t i = 0; i < a->n_used; i++) {
    const td_account_lengths *of = &a->accounts[i];
    if (of->n_waiting == 0)
      continue;
    l->waiting_tokens += (double)of->waiting_tokens * td_output_lengths_uncached_ratio(of);
    for (uint32_t w = 0; w < sizeof of->max_new_bins / sizeof *of->max_new_bins; w++)
      for (uint64_t bits = of->max_new_bins[w]; bits != 0; bits &= bits - 1) {
        uint32_t b = 64 * w + (uint32_t)__builtin_ctzll(bits);
        add_to_come(l, s, i, (double)a->max_new_tokens[b] / a->n_by_max_new[b], of->n_by_max_new[b]);
      }
  }
}

static void collect_prompts(load *l, const td_sched *s)
{
  for (uint32_t i = 0; i < l->n_running; i++) {
    const td_request *r = &s->table.requests[s->table.running[i]];
    l->pages += r->n_pages;
    if (r->state == TD_REQUEST_DECODE)
      continue;
    l->prompt_pages += r->n_pages;
    l->unshared_pages += td_sched_unshared_pages(s, r);
    l->prompt_tokens += r->n_tokens;
    l->prompt_rest += r->n_tokens - r->n_computed;
    add_to_come(l, s, r->account, max_new_of(r), 1);
  }
  bool none = l->n_full + l->n_early == 0;
  for (uint32_t i = 0; none && i < l->n_running; i++) {
    const td_request *r = &s->table.requests[s->table.running[i]];
    add_to_come(l, s, r->account, max_new_of(r), 1);
  }
}

/* Adds the decodes. l->answer must be known. */
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
  uint64_t saved =
      td_cost_saved_tokens(td_sched_repeated_kv(s, l->pages - l->prompt_pages, l->unshared_pages));
  l->read = l->kv_tokens > 0 ? 1 - (double)saved / (double)l->kv_tokens : 1;
}

static void sum_up_to_come(load *l)
{
  double n = l->n_full + l->n_early, longest = OUTLIERS * n, n_counted = l->n_early,
         tokens = mean_of(l->early_at);
  l->full = n > 0 ? l->n_full / n : 1;
  for (uint32_t i = 0; i <= TD_LENGTH_PARTS && l->n_early > 0; i++)
    l->at[i] = l->early_at[i] / l->n_early;
  for (uint32_t i = TD_LENGTH_BINS; i-- > 0;) {
    double out = fmin(longest, l->full_at[i]), counts = l->full_at[i] - out;
    longest -= out;
    n_counted += counts;
    tokens += l->full_at[i] > 0 ? counts * l->full_tokens[i] / l->full_at[i] : 0;
  }
  l->answer = n_counted > 0 ? fmax(1, tokens / n_counted) : 1;
}

/* Running and joining requests that do not hold their places for long; if all do, all of them. */
static double turning(const load *l)
{
  uint32_t n_all = l->n_running + l->n_joining;
  return l->n_held < n_all ? n_all - l->n_held : n_all;
}

/* Answers of running and joining prompts begin one after the other, as the prompts are computed. *n: how
 * many have begun by `steps`; *sum: the sum of *n over all steps before. */
static void begun_by(const load *l, double steps, double *n, double *sum)
{
  double n_all = l->n_running - l->n_decodes + l->n_joining;
  double takes = ((double)l->prompt_rest + l->n_joining * l->waiting_each) / l->chunk;
  double share = steps <= 0 ? takes == 0 && steps == 0 : steps < takes ? steps / takes : 1;
  *n = n_all * share;
  *sum = n_all * (share * share * takes / 2 + at_least(steps - takes, 0));
}

static double begun_and_ended(const load *l, double steps)
{
  double n, sum, sum_before, ended = 0, part = (1 - l->full) / TD_LENGTH_PARTS;
  for (uint32_t i = 0; i < TD_LENGTH_BINS && l->n_full > 0; i++) {
    if (!(l->full_at[i] > 0))
      continue;
    begun_by(l, steps - l->full_tokens[i] / l->full_at[i], &n, &sum);
    ended += l->full * n * l->full_at[i] / l->n_full;
  }
  for (uint32_t i = 0; part > 0 && i < TD_LENGTH_PARTS; i++) {
    double to = at_least(l->at[i + 1], l->at[i] + NARROWEST);
    begun_by(l, steps - l->at[i], &n, &sum);
    begun_by(l, steps - to, &n, &sum_before);
    ended += part * (sum - sum_before) / (to - l->at[i]);
  }
  return ended;
}

/* How many prompts that do not join yet can have been computed by `steps`. */
static double others_by(const load *l, double steps)
{
  return l->waiting_each > 0
             ? fmax(0, (steps * l->chunk - (double)l->prompt_rest) / l->waiting_each - l->n_joining)
             : INFINITY;
}

/* Sums up the ends by each bin: of running and joining requests, and of those that take their places and
 * are equally likely to end early. */
static void sum_up(load *l)
{
  double own = 0, density = 0, n_turning = turning(l);
  for (uint32_t i = BINS; i-- > 0;) {
    double here = l->density[i];
    l->density[i] = density;
    density += here;
  }
  l->horizon = BINS;
  for (uint32_t i = 0; i < BINS; i++) {
    double steps = td_output_lengths_bin_first(i + 1);
    own += l->points[i] + l->density[i] * (steps - td_output_lengths_bin_first(i));
    double ended = own + begun_and_ended(l, steps);
    double taken = ended * (1 - l->full) * steps / l->answer / 2; /* places that were taken again, and
                                                                   * whose new answers have ended */
    taken = fmin(taken, others_by(l, steps) / 2);
    l->ends[i + 1] = fmax(l->ends[i], ended + taken);
    if (n_turning - ended < 0.5) {
      l->horizon = i + 1;
      return;
    }
  }
}

/* Ends of running and joining requests by `steps`. */
static double ends_by(const load *l, double steps)
{
  if (steps <= 0)
    return 0;
  uint32_t i = td_output_lengths_bin(steps);
  if (i >= l->horizon)
    return l->ends[l->horizon];
  double first = td_output_lengths_bin_first(i);
  return l->ends[i] +
         (l->ends[i + 1] - l->ends[i]) * (steps - first) / (td_output_lengths_bin_first(i + 1) - first);
}

/* Those ends, plus the ends of the requests that take their places, and so on: each round is one answer
 * later. */
static double all_ends_by(const load *l, double steps, double round)
{
  double own = ends_by(l, steps), others = 0, rest = steps - round;
  for (uint32_t i = 1; i < ROUNDS_MAX && rest > 0; i++, rest -= round)
    others += ends_by(l, rest);
  others += fmax(0, rest) * l->ends[l->horizon] / round;
  if (steps < td_output_lengths_bin_first(l->horizon)) /* later, the time of prompts is counted separately */
    others = fmin(others, others_by(l, steps));
  return own + others;
}

/* Steps until k answers have ended. */
static double steps_to_end(const load *l, uint32_t k)
{
  double level = MEDIAN_LEVEL(k), all = l->ends[l->horizon], n_turning = turning(l);
  if (n_turning == 0 || k == 0 || !(all > 0))
    return 0;
  double round = all * l->answer / n_turning, high = 1;
  while (high < STEPS_MAX && all_ends_by(l, high, round) < level)
    high *= 2;
  double low = high / 2; /* bisects between powers of two, so that a larger k never gives an earlier time, by
                          * however little */
  for (uint32_t i = 0; i < HALVINGS; i++) {
    double middle = (low + high) / 2;
    *(all_ends_by(l, middle, round) < level ? &low : &high) = middle;
  }
  return high;
}

/* The time of `steps` steps, if n_others more requests are admitted meanwhile. The table may fall and the
 * corrections differ, but more requests never make this time shorter. */
static double time_of(const load *l, double steps, double n_others)
{
  double tokens = (double)l->prompt_rest + (l->n_joining + n_others) * l->waiting_each;
  return steps * l->decode_us +
         fmin(tokens, steps * l->chunk) * at_least(l->hybrid_us - l->decode_us, 0) / l->chunk;
}

static double pages_each(const td_sched *s, const load *l)
{
  return ceil((l->waiting_each + 1) / s->config.page_tokens);
}

/* How many ends a new request needs, for places and pages of those before it and of itself. */
static uint32_t ends_needed(const td_sched *s, const load *l)
{
  uint32_t n_new = n_waiting(s) + 1, places = places_of(s), k = 0;
  if (n_new > places)
    k = n_new - places;
  double need = n_new * pages_each(s, l) + s->reserved_pages + l->n_running;
  double lack = need - td_sched_available_pages(s);
  if (lack > 0 && l->pages > 0)
    k = (uint32_t)fmax(k, fmin(ceil(lack * l->n_running / (double)l->pages), 1e9));
  return k;
}

/* The times of a step of these decodes, and of one with as many prompt tokens as the budget gives while
 * n_prompts wait. Returns that number of tokens. */
static uint32_t step_times(const td_sched *s, uint32_t n_decodes, double kv_tokens, uint32_t n_prompts,
                           double *decode_us, double *hybrid_us)
{
  td_budget b = s->budget;
  if (n_decodes >= s->config.step_tokens)
    n_decodes = s->config.step_tokens - 1;
  td_budget_begin(&b);
  td_budget_add_decodes(&b, n_decodes, (uint64_t)kv_tokens);
  td_budget_end_decodes(&b, (td_budget_prompts){n_prompts + BUNCH, 0});
  *decode_us = n_decodes > 0 ? td_budget_predict_us(&b, &b.work) : 0;
  uint32_t chunk = td_budget_chunk(&b, 0, s->config.step_tokens); /* as if there were enough prompts */
  if (chunk == 0) /* the policy waits until a whole prompt fits */
    chunk = s->config.step_tokens;
  td_budget_add_chunk(&b, chunk, chunk, false);
  *hybrid_us = td_budget_predict_us(&b, &b.work);
  return chunk;
}

/* Predicts step times, now and when prompts have joined. A joining request decodes only when its prompt is
 * computed, and by then other answers have ended. So at most as many decode together as prompts are
 * computed in an answer's time. */
static void forecast_steps(load *l, const td_sched *s)
{
  double n = l->n_running - l->n_decodes + l->n_joining,
         tokens = (double)l->prompt_tokens + l->n_joining * l->waiting_each;
  double kv_each = n > 0 ? tokens / n + l->answer / 2 : 0,
         rest = (double)l->prompt_rest + l->n_joining * l->waiting_each;
  uint32_t n_prompts = l->n_running - l->n_decodes + l->n_joining;
  l->chunk_now = step_times(s, l->n_decodes, l->read * (double)l->kv_tokens, n_prompts, &l->decode_now_us,
                            &l->hybrid_now_us);
  if (rest > 0)
    n = fmin(n, fmax(1, l->answer * l->chunk_now * n / rest - l->n_decodes));
  l->chunk = step_times(s, l->n_decodes + (uint32_t)n, l->read * ((double)l->kv_tokens + n * kv_each),
                        n_prompts - (uint32_t)n, &l->decode_us, &l->hybrid_us);
}

static load load_of(const td_sched *s)
{
  load l = {.n_running = s->table.n_running};
  uint32_t places = places_of(s);
  collect_waiting(&l, s);
  l.waiting_each = n_waiting(s) > 0 ? l.waiting_tokens / n_waiting(s) : 0;
  double pages = (double)td_sched_available_pages(s) - s->reserved_pages - l.n_running;
  double room = fmax(0, pages) / (pages_each(s, &l) + 1); /* + 1: one page to grow */
  l.n_joining = (uint32_t)fmin(fmin(n_waiting(s), places), room);
  collect_prompts(&l, s);
  sum_up_to_come(&l);
  collect_decodes(&l, s);
  forecast_steps(&l, s);
  return l;
}

/* k: how many ends a new request needs. If k > 0, sum_up(l) must have run. */
static td_sched_forecast start_of(const load *l, uint32_t k)
{
  td_sched_forecast f = {0};
  double before = l->waiting_tokens + (double)l->prompt_rest;
  f.prompt_token_us = l->hybrid_now_us / l->chunk_now;
  f.step_us = before > 0 ? l->hybrid_now_us : l->decode_now_us;
  double ends_us = k > 0 ? time_of(l, steps_to_end(l, k), k - 1) : 0;
  f.start_us = f.step_us / 2 + fmax(before * f.prompt_token_us, ends_us);
  return f;
}

static bool says_nothing(const td_sched *s)
{
  return !s->budget.has_cost || s->table.n_running + n_waiting(s) == 0;
}

/* If there are places and pages, the new request waits for no end, and little is to compute. */
double td_sched_forecast_start_us(const td_sched *s)
{
  if (says_nothing(s))
    return 0;
  load l = load_of(s);
  uint32_t k = ends_needed(s, &l);
  if (k > 0)
    sum_up(&l);
  return start_of(&l, k).start_us;
}

td_sched_forecast td_sched_make_forecast(const td_sched *s)
{
  if (says_nothing(s))
    return (td_sched_forecast){0};
  load l = load_of(s);
  sum_up(&l);
  td_sched_forecast f = start_of(&l, ends_needed(s, &l));
  f.next_end_us = time_of(&l, steps_to_end(&l, 1), 0);
  f.end_interval_us = (time_of(&l, steps_to_end(&l, 1 + ENDS_SEEN), ENDS_SEEN) - f.next_end_us) / ENDS_SEEN;
  return f;
}
