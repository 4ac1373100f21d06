/* What answers and prompts were like lately, account by account: what the forecast goes by.
 *
 * Lengths are a life table: for each bin of lengths, which share of the answers that got so far ended there
 * by itself. An answer that max_new cut says only that it got so far. So one that ends after three tokens
 * says nothing of those that are past three, and many of one token nothing of long ones. Each account has a
 * table of its own: nobody's answers decide what is thought of another's. For lengths that an account's
 * answers have not reached, the mean of all accounts stands in, each with one voice however much it sends;
 * who is beyond all of them is expected to last as long again. Source: Kaplan and Meier, 1958.
 *
 * O(bins) when an answer ends and for the first question behind it, O(1) for others. */
#ifndef TD_SCHEDULER_OUTPUT_LENGTHS_H
#define TD_SCHEDULER_OUTPUT_LENGTHS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum { TD_LENGTH_BINS = 96 }; /* four an octave: up to 16M tokens, the longest context */

typedef struct td_length_table {
  float ends[TD_LENGTH_BINS]; /* the share that ended in the bin, an average */
  uint8_t n_seen[TD_LENGTH_BINS];
  /* Of these, when somebody asks: the chance to be at least as long as a bin's first length, and the sum of
   * chance times length from there on. */
  double lasts[TD_LENGTH_BINS + 1], tokens[TD_LENGTH_BINS + 1];
  uint64_t summed_at; /* n_noted then; 0: not since the last of its own */
} td_length_table;

typedef struct td_account_lengths {
  td_length_table life;
  bool has_life;
  double mean_tokens, mean_squares;                /* of the lengths of its answers, cut ones among them */
  uint32_t n_waiting, n_asked[TD_LENGTH_BINS];     /* those that wait, all and by their max_new */
  uint64_t asked_bins[(TD_LENGTH_BINS + 63) / 64]; /* a bit for each bin with any */
  uint64_t waiting_tokens; /* of their prompts, that nobody seemed to have computed when they came */
  double expected_tokens, computed_tokens; /* of such, when they were started */
} td_account_lengths;

typedef struct td_output_lengths {
  td_account_lengths *accounts;    /* [n_accounts + 1]; the last is for those of which nothing is known */
  uint32_t n_accounts, n_used;     /* none beyond the first n_used was ever seen */
  double sum_ends[TD_LENGTH_BINS]; /* over accounts */
  uint32_t n_ends[TD_LENGTH_BINS]; /* accounts in it */
  uint64_t n_noted;
  double first[TD_LENGTH_BINS], width[TD_LENGTH_BINS],
      per_width[TD_LENGTH_BINS]; /* lengths of a bin, how many */
  uint64_t asked_tokens[TD_LENGTH_BINS];
  uint32_t n_asked[TD_LENGTH_BINS]; /* max_new of all that wait, and their number, by bin */
} td_output_lengths;

TD_MUST_CHECK bool td_output_lengths_init(td_output_lengths *a, uint32_t n_accounts);
void td_output_lengths_deinit(td_output_lengths *a);

/* Four in an octave, the first for 0. */
static inline uint32_t td_output_lengths_bin(double tokens)
{
  uint32_t n = tokens < UINT32_MAX ? (uint32_t)tokens : UINT32_MAX;
  if (n < 4)
    return n;
  uint32_t octave = 31 - (uint32_t)__builtin_clz(n);
  return 4 * (octave - 1) + (n >> (octave - 2) & 3);
}

static inline double td_output_lengths_bin_first(uint32_t bin)
{
  return bin < 4 ? bin : (double)((uint64_t)(4 + bin % 4) << (bin / 4 - 1));
}

/* It ended by itself or was cut, so many steps after its request came. */
void td_output_lengths_note(td_output_lengths *a, uint32_t account, uint32_t n_tokens, uint64_t n_steps,
                            bool cut);
/* A request begins or ceases (n = -1) to wait. */
void td_output_lengths_wait(td_output_lengths *a, uint32_t account, uint32_t max_new, uint32_t prompt_tokens,
                            int n);
/* It starts for the first time: so much of its prompt is left to compute. */
void td_output_lengths_start(td_output_lengths *a, uint32_t account, uint32_t expected_tokens,
                             uint32_t computed_tokens);

enum { TD_LENGTH_PARTS = 3 };
typedef struct td_length_chance {
  double full; /* that it goes on to max_new */
  /* Else how many tokens it has to go: as many such end in each part, between these, spread evenly. */
  double at[TD_LENGTH_PARTS + 1];
} td_length_chance;
/* Of an answer of `age` tokens so far. */
td_length_chance td_output_lengths_chance(const td_output_lengths *a, uint32_t account, uint32_t age,
                                          uint32_t max_new);

/* The share of prompt tokens that seem uncached that is computed: others come with the same meanwhile. */
double td_output_lengths_computed_share(const td_account_lengths *a);

#endif
