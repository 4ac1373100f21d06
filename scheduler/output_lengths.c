/* Life tables of answers: see output_lengths.h. */
#include "scheduler/output_lengths.h"

#include <stdlib.h>

/* Weight of a new answer in the moving averages, after the first few. */
#define AVERAGE_STEP (1.0 / 16)
/* An answer longer than all seen has an even chance to get twice as long: this share ends in each bin (1 -
 * 2^-1/4). */
#define ENDS_UNSEEN (1 - 0.8409)
/* The most that may end in a bin: a table is never sure that no answer gets past it. */
#define ENDS_MOST 0.999
/* A smaller share of answers that end before max_new is taken as 0. */
#define LEAST_EARLY 1e-6
/* An answer that is here for less than 1 / SHORT_STAY of the time that answers take counts less. */
#define SHORT_STAY 10
/* The first part of the ends to come begins earlier than its mean says, by this share of its half. The
 * table has few answers, and the next end of all is an early one. */
#define EARLIER 0.15
/* Answers of other accounts after which an account's table is summed up again. Not after each: there may
 * be a thousand accounts. */
#define OTHERS_NOTED 64
/* Prompt tokens after which earlier ones count half. */
#define PROMPT_WINDOW_TOKENS 4e6

static uint32_t bin_of(uint32_t tokens)
{
  uint32_t bin = td_output_lengths_bin(tokens);
  return bin < TD_LENGTH_BINS ? bin : TD_LENGTH_BINS - 1;
}

/* Unlike fmin and fmax, these need not handle NaN, so they are faster. */
static inline double smaller(double x, double y) { return x < y ? x : y; }
static inline double larger(double x, double y) { return x > y ? x : y; }

static double mean_of_all(const td_output_lengths *a, uint32_t bin)
{
  return a->n_ends[bin] > 0 ? a->sum_ends[bin] / a->n_ends[bin] : 0;
}

/* The mean of equally likely whole numbers from first to last. */
static double mean_of(double first, double last) { return (first + last) / 2; }

static void sum_up(const td_output_lengths *a, td_length_table *l)
{
  double ends = 0;
  l->summed_at = a->n_observed;
  l->lasts[0] = 1;
  for (uint32_t i = 0; i < TD_LENGTH_BINS; i++) {
    if (l->n_seen[i] > 0)
      ends = l->ends[i];
    else if (a->n_ends[i] > 0)
      ends = mean_of_all(a, i);
    else
      ends = smaller(ends, ENDS_UNSEEN);
    l->lasts[i + 1] = l->lasts[i] * (1 - smaller(ends, ENDS_MOST));
  }
  l->tokens[TD_LENGTH_BINS] = 0; /* from the end, so that small remainders are exact too */
  for (uint32_t i = TD_LENGTH_BINS; i-- > 0;) {
    double mean = a->first[i] + (a->width[i] - 1) / 2;
    l->tokens[i] = l->tokens[i + 1] + (l->lasts[i] - l->lasts[i + 1]) * mean;
  }
}

bool td_output_lengths_init(td_output_lengths *a, uint32_t n_accounts)
{
  *a = (td_output_lengths){.n_accounts = n_accounts, .n_observed = 1};
  for (uint32_t i = 0; i < TD_LENGTH_BINS; i++) {
    a->first[i] = td_output_lengths_bin_first(i);
    a->width[i] = td_output_lengths_bin_first(i + 1) - a->first[i];
    a->per_width[i] = 1 / a->width[i];
  }
  a->accounts = calloc(n_accounts + 1, sizeof *a->accounts);
  return a->accounts != NULL;
}

void td_output_lengths_deinit(td_output_lengths *a)
{
  free(a->accounts);
  a->accounts = NULL;
}

static td_account_lengths *account_of(td_output_lengths *a, uint32_t account)
{
  TD_BUG_ON(account >= a->n_accounts);
  if (account >= a->n_used)
    a->n_used = account + 1;
  return &a->accounts[account];
}

/* The weight of an answer. At any moment, the mean length of the answers that hold places is mean_squares
 * / mean_tokens. An answer whose request was here (queued and running) for much less than that counts
 * less. Otherwise a client whose answers all stop immediately, and which then sends the next request,
 * would outnumber the requests that use the places. With a queue it cannot. */
static double weight_of(td_account_lengths *of, uint32_t n_tokens, uint64_t n_steps)
{
  double share = 1, step = 1;
  if (of->has_life) {
    share = smaller(1, SHORT_STAY * (double)n_steps * of->mean_tokens / of->mean_squares);
    step = share * share * AVERAGE_STEP;
  }
  of->mean_tokens += step * (n_tokens - of->mean_tokens);
  of->mean_squares += step * ((double)n_tokens * n_tokens - of->mean_squares);
  return share * share;
}

static void observe_bin(td_output_lengths *a, td_length_table *l, uint32_t bin, bool ended, double weight)
{
  double old = l->ends[bin], step = AVERAGE_STEP;
  if (l->n_seen[bin] == 0) {
    l->ends[bin] = (float)mean_of_all(a, bin);
    a->n_ends[bin]++;
    old = 0;
  }
  if (l->n_seen[bin] < 1 / AVERAGE_STEP)
    step = larger(step, 1.0 / (l->n_seen[bin] + 2));
  l->ends[bin] += (float)(weight * step * (ended - l->ends[bin]));
  a->sum_ends[bin] = larger(0, a->sum_ends[bin] + l->ends[bin] - old);
  if (l->n_seen[bin] < UINT8_MAX)
    l->n_seen[bin]++;
}

void td_output_lengths_observe(td_output_lengths *a, uint32_t account, uint32_t n_tokens, uint64_t n_steps,
                               bool cut)
{
  td_account_lengths *of = account_of(a, account);
  uint32_t last = bin_of(n_tokens);
  double weight = weight_of(of, n_tokens, n_steps);
  for (uint32_t i = 1; i < last + !cut; i++)
    observe_bin(a, &of->life, i, i == last, weight);
  of->has_life = true;
  of->life.summed_at = 0;
  a->n_observed++;
}

void td_output_lengths_count_waiting(td_output_lengths *a, uint32_t account, uint32_t max_new,
                                     uint32_t prompt_tokens, int n)
{
  td_account_lengths *of = account_of(a, account);
  uint32_t bin = bin_of(max_new);
  of->n_waiting += (uint32_t)n;
  of->n_by_max_new[bin] += (uint32_t)n;
  if (n > 0 && of->n_by_max_new[bin] == 1)
    of->max_new_bins[bin / 64] |= (uint64_t)1 << bin % 64;
  else if (of->n_by_max_new[bin] == 0)
    of->max_new_bins[bin / 64] &= ~((uint64_t)1 << bin % 64);
  of->waiting_tokens += (uint64_t)n * prompt_tokens;
  a->n_by_max_new[bin] += (uint32_t)n;
  a->max_new_tokens[bin] += (uint64_t)n * max_new;
}

void td_output_lengths_start(td_output_lengths *a, uint32_t account, uint32_t expected_uncached_tokens,
                             uint32_t uncached_tokens)
{
  td_account_lengths *of = account_of(a, account);
  if (of->expected_uncached_tokens > PROMPT_WINDOW_TOKENS) {
    of->expected_uncached_tokens /= 2;
    of->uncached_tokens /= 2;
  }
  of->expected_uncached_tokens += expected_uncached_tokens;
  of->uncached_tokens += uncached_tokens;
}

double td_output_lengths_uncached_ratio(const td_account_lengths *a)
{
  return a->expected_uncached_tokens > 0 ? a->uncached_tokens / a->expected_uncached_tokens : 1;
}

/* Of all answers longer than n_tokens: their chance, and the sum of chance x length. `bin` is the bin of
 * n_tokens + 1. Inside a bin all lengths are equally likely. */
typedef struct tail {
  double chance, tokens;
} tail;

static tail longer_than(const td_output_lengths *a, const td_length_table *l, double n_tokens, uint32_t bin)
{
  double first = a->first[bin], mass = l->lasts[bin] - l->lasts[bin + 1];
  double part = mass * (n_tokens + 1 - first) * a->per_width[bin];
  return (tail){l->lasts[bin] - part, l->tokens[bin] - part * mean_of(first, n_tokens)};
}

/* Cuts the answers between two tails into parts of equal chance. It goes through the bins only once,
 * because it is done for all running requests. */
static void cut_in_parts(const td_output_lengths *a, const td_length_table *l, tail from, tail to,
                         uint32_t bin, double at[TD_LENGTH_PARTS + 1])
{
  double mean[TD_LENGTH_PARTS], part = (from.chance - to.chance) / TD_LENGTH_PARTS, per_part = 1 / part;
  double chance = from.chance;
  for (uint32_t i = 0; i < TD_LENGTH_PARTS; i++) {
    tail end = to;
    if (i + 1 < TD_LENGTH_PARTS) {
      chance -= part;
      while (bin + 1 < TD_LENGTH_BINS && l->lasts[bin + 1] > chance)
        bin++;
      double mass = l->lasts[bin] - l->lasts[bin + 1], over = l->lasts[bin] - chance;
      at[i + 1] = a->first[bin] - 1 + (mass > over ? over / mass : 1) * a->width[bin];
      end = longer_than(a, l, at[i + 1], bin);
    }
    mean[i] = (from.tokens - end.tokens) * per_part;
    from = end;
  }
  /* The outer bounds follow from the means of the outer parts. */
  at[0] = larger(at[0], 2 * mean[0] - at[1] - EARLIER * (at[1] - mean[0]));
  at[TD_LENGTH_PARTS] = smaller(at[TD_LENGTH_PARTS], 2 * mean[TD_LENGTH_PARTS - 1] - at[TD_LENGTH_PARTS - 1]);
}

td_length_chance td_output_lengths_chance(const td_output_lengths *a, uint32_t account, uint32_t age,
                                          uint32_t max_new)
{
  bool has_life = a->accounts[account].has_life;
  td_length_table *l = &a->accounts[has_life ? account : a->n_accounts].life;
  td_length_chance c = {.full = 1};
  if (age + 1 >= max_new)
    return c;
  if (l->summed_at == 0 || a->n_observed - l->summed_at > (has_life ? OTHERS_NOTED : 0))
    sum_up(a, l);
  uint32_t bin = bin_of(age + 1);
  tail lasts = longer_than(a, l, age, bin), full = longer_than(a, l, max_new - 1, bin_of(max_new));
  if (!(lasts.chance - full.chance > LEAST_EARLY * lasts.chance))
    return c;
  double at[TD_LENGTH_PARTS + 1] = {age, [TD_LENGTH_PARTS] = max_new - 1}, before = 0, rest = max_new - age;
  cut_in_parts(a, l, lasts, full, bin, at);
  c.full = full.chance / lasts.chance;
  for (uint32_t i = 0; i <= TD_LENGTH_PARTS; i++)
    c.at[i] = before = smaller(rest, larger(at[i] - age, before));
  return c;
}
