/* Life tables of answers: see answers.h. */
#include "scheduler/answers.h"

#include <math.h>
#include <stdlib.h>

/* How fast averages follow, after the first few. */
#define AVERAGE_STEP (1.0 / 16)
/* Who got further than any that was seen is as likely as not to get twice as far: so many end in a quarter of
 * an octave. */
#define ENDS_UNSEEN (1 - 0.8409)
/* No table is so sure that nobody gets past a bin. */
#define ENDS_MOST 0.999
/* Who is here for less than one in so many of the time that answers take counts less. */
#define SHORT_STAY 10
/* Ends are taken to be between lengths so much further apart than those of the same variance: what is sampled
 * varies more, and the next end of all is an early one. */
#define WIDER 1.1
/* Prompt tokens after which what was before counts half. */
#define PROMPT_WINDOW_TOKENS 4e6

uint32_t td_answers_bin(double tokens)
{
  uint32_t n = (uint32_t)fmin(tokens, UINT32_MAX);
  if (n < 4)
    return n;
  uint32_t octave = 31 - (uint32_t)__builtin_clz(n);
  return 4 * (octave - 1) + (n >> (octave - 2) & 3);
}

double td_answers_bin_first(uint32_t bin)
{
  return bin < 4 ? bin : (double)((uint64_t)(4 + bin % 4) << (bin / 4 - 1));
}

static uint32_t bin_of(uint32_t tokens)
{
  uint32_t bin = td_answers_bin(tokens);
  return bin < TD_ANSWER_BINS ? bin : TD_ANSWER_BINS - 1;
}

static double mean_of_all(const td_answers *a, uint32_t bin)
{
  return a->n_ends[bin] > 0 ? a->sum_ends[bin] / a->n_ends[bin] : 0;
}

/* Of whole numbers between these, all alike. */
static double mean_of(double first, double last) { return (first + last) / 2; }

static double mean_square_of(double first, double last)
{
  double n = last - first + 1;
  return mean_of(first, last) * mean_of(first, last) + (n * n - 1) / 12;
}

static void sum_up(const td_answers *a, td_answer_life *l)
{
  double ends = 0;
  l->summed_at = a->n_noted;
  l->lasts[0] = 1;
  for (uint32_t i = 0; i < TD_ANSWER_BINS; i++) {
    if (l->n_seen[i] > 0)
      ends = l->ends[i];
    else if (a->n_ends[i] > 0)
      ends = mean_of_all(a, i);
    else
      ends = fmin(ends, ENDS_UNSEEN);
    l->lasts[i + 1] = l->lasts[i] * (1 - fmin(ends, ENDS_MOST));
  }
  l->tokens[TD_ANSWER_BINS] = l->squares[TD_ANSWER_BINS] = 0; /* from the end: small rests are exact too */
  for (uint32_t i = TD_ANSWER_BINS; i-- > 0;) {
    double first = td_answers_bin_first(i), last = td_answers_bin_first(i + 1) - 1;
    double mass = l->lasts[i] - l->lasts[i + 1];
    l->tokens[i] = l->tokens[i + 1] + mass * mean_of(first, last);
    l->squares[i] = l->squares[i + 1] + mass * mean_square_of(first, last);
  }
}

bool td_answers_init(td_answers *a, uint32_t n_accounts)
{
  *a = (td_answers){.n_accounts = n_accounts, .n_noted = 1};
  a->accounts = calloc(n_accounts + 1, sizeof *a->accounts);
  return a->accounts != NULL;
}

void td_answers_deinit(td_answers *a)
{
  free(a->accounts);
  a->accounts = NULL;
}

static td_answer_account *account_of(td_answers *a, uint32_t account)
{
  TD_BUG_ON(account >= a->n_accounts);
  if (account >= a->n_used)
    a->n_used = account + 1;
  return &a->accounts[account];
}

/* How much an answer counts. A place is busy, at any moment, with an answer of mean_squares / mean_tokens in
 * the mean. Who is here, in the queue and in a place, for much less than that counts less: or a client whose
 * answers all stop at once, and that sends the next when it has one, would outnumber those that use the
 * places. Where there is a queue it cannot. */
static double weight_of(td_answer_account *of, uint32_t n_tokens, uint64_t n_steps)
{
  double share = 1, step = 1;
  if (of->has_life) {
    share = fmin(1, SHORT_STAY * (double)n_steps * of->mean_tokens / of->mean_squares);
    step = share * share * AVERAGE_STEP;
  }
  of->mean_tokens += step * (n_tokens - of->mean_tokens);
  of->mean_squares += step * ((double)n_tokens * n_tokens - of->mean_squares);
  return share * share;
}

static void see(td_answers *a, td_answer_life *l, uint32_t bin, bool ended, double weight)
{
  double old = l->ends[bin], step = AVERAGE_STEP;
  if (l->n_seen[bin] == 0) {
    l->ends[bin] = (float)mean_of_all(a, bin);
    a->n_ends[bin]++;
    old = 0;
  }
  if (l->n_seen[bin] < 1 / AVERAGE_STEP)
    step = fmax(step, 1.0 / (l->n_seen[bin] + 2));
  l->ends[bin] += (float)(weight * step * (ended - l->ends[bin]));
  a->sum_ends[bin] = fmax(0, a->sum_ends[bin] + l->ends[bin] - old);
  if (l->n_seen[bin] < UINT8_MAX)
    l->n_seen[bin]++;
}

void td_answers_note(td_answers *a, uint32_t account, uint32_t n_tokens, uint64_t n_steps, bool cut)
{
  td_answer_account *of = account_of(a, account);
  uint32_t last = bin_of(n_tokens);
  double weight = weight_of(of, n_tokens, n_steps);
  for (uint32_t i = 1; i < last + !cut; i++)
    see(a, &of->life, i, i == last, weight);
  of->has_life = true;
  a->n_noted++;
}

void td_answers_wait(td_answers *a, uint32_t account, uint32_t max_new, uint32_t prompt_tokens, int n)
{
  td_answer_account *of = account_of(a, account);
  uint32_t bin = bin_of(max_new);
  of->n_waiting += (uint32_t)n;
  of->n_asked[bin] += (uint32_t)n;
  of->waiting_tokens += (uint64_t)n * prompt_tokens;
  a->n_asked[bin] += (uint32_t)n;
  a->asked_tokens[bin] += (uint64_t)n * max_new;
}

void td_answers_start(td_answers *a, uint32_t account, uint32_t expected_tokens, uint32_t computed_tokens)
{
  td_answer_account *of = account_of(a, account);
  if (of->expected_tokens > PROMPT_WINDOW_TOKENS) {
    of->expected_tokens /= 2;
    of->computed_tokens /= 2;
  }
  of->expected_tokens += expected_tokens;
  of->computed_tokens += computed_tokens;
}

double td_answers_computed_share(const td_answer_account *a)
{
  return a->expected_tokens > 0 ? a->computed_tokens / a->expected_tokens : 1;
}

/* Of all that are longer than so many tokens: their chance, and the sums of chance times length and its
 * square. In a bin all lengths are alike. */
typedef struct tail {
  double chance, tokens, squares;
} tail;

static tail longer_than(const td_answer_life *l, uint32_t n_tokens)
{
  uint32_t bin = bin_of(n_tokens + 1);
  double first = td_answers_bin_first(bin), mass = l->lasts[bin] - l->lasts[bin + 1];
  double before = n_tokens + 1 - first, part = mass * before / (td_answers_bin_first(bin + 1) - first);
  return (tail){l->lasts[bin] - part, l->tokens[bin] - part * mean_of(first, n_tokens),
                l->squares[bin] - (before > 0 ? part * mean_square_of(first, n_tokens) : 0)};
}

td_answer_chance td_answers_chance(const td_answers *a, uint32_t account, uint32_t age, uint32_t max_new)
{
  td_answer_life *l = &a->accounts[a->accounts[account].has_life ? account : a->n_accounts].life;
  td_answer_chance c = {.full = 1};
  if (age + 1 >= max_new)
    return c;
  if (l->summed_at != a->n_noted)
    sum_up(a, l);
  tail lasts = longer_than(l, age), full = longer_than(l, max_new - 1);
  double early = lasts.chance - full.chance;
  if (!(early > 0))
    return c;
  double mean = (lasts.tokens - full.tokens) / early,
         variance = (lasts.squares - full.squares) / early - mean * mean;
  double rest = fmin(fmax(1, mean - age), max_new - age),
         half = fmin(rest, WIDER * sqrt(3 * fmax(0, variance)));
  c.full = full.chance / lasts.chance;
  c.from = fmax(0, rest - half);
  c.to = fmax(c.from + 1, fmin(rest + half, max_new - age));
  return c;
}
