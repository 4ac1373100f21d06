/* Recent lengths of answers and prompts for each account. The forecast uses them.
 *
 * Answer lengths are a life table: for each bin of lengths, the share of the answers that reached the bin and
 * ended in it by themselves. An answer that max_new cut only shows that it reached its length. So an answer
 * that ends after three tokens says nothing about those that are past three, and many answers of one token
 * say nothing about long ones. Each account has a table of its own, so its answers do not decide what is
 * expected of another's. For lengths that an account's answers have not reached, the mean over accounts is
 * used, in which each account counts once however much it sends. An answer longer than all seen is expected
 * to last as long again. Source: Kaplan and Meier, 1958.
 *
 * O(bins) when an answer ends and for the first query after that, O(1) for other queries. */
#ifndef TD_SCHEDULER_OUTPUT_LENGTHS_H
#define TD_SCHEDULER_OUTPUT_LENGTHS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum { TD_LENGTH_BINS = 96 }; /* four an octave: up to 16M tokens, the longest context */

typedef struct td_length_table {
  float ends[TD_LENGTH_BINS]; /* moving average of the share that ended in the bin */
  uint8_t n_seen[TD_LENGTH_BINS];
  /* Summed up from these on a query: the chance to reach a bin's first length, and the sum of chance x
   * length from there on. */
  double lasts[TD_LENGTH_BINS + 1], tokens[TD_LENGTH_BINS + 1];
  uint64_t summed_at; /* n_observed at that time; 0: the account had an answer since */
} td_length_table;

typedef struct td_account_lengths {
  td_length_table life;
  bool has_life;
  double mean_tokens, mean_squares;                  /* of the lengths of its answers, cut ones included */
  uint32_t n_waiting, n_by_max_new[TD_LENGTH_BINS];  /* waiting requests: all, and by bin of max_new */
  uint64_t max_new_bins[(TD_LENGTH_BINS + 63) / 64]; /* a bit for each bin of n_by_max_new that is not 0 */
  uint64_t waiting_tokens; /* prompt tokens of waiting requests that were expected, at arrival, to be
                            * computed */
  double expected_uncached_tokens, uncached_tokens; /* of started requests: expected at arrival to be
                                                     * uncached, and found so */
} td_account_lengths;

typedef struct td_output_lengths {
  td_account_lengths *accounts;    /* [n_accounts + 1]; the last is used for accounts without answers */
  uint32_t n_accounts, n_used;     /* only the first n_used were ever seen */
  double sum_ends[TD_LENGTH_BINS]; /* over accounts */
  uint32_t n_ends[TD_LENGTH_BINS]; /* accounts in that sum */
  uint64_t n_observed;
  double first[TD_LENGTH_BINS], width[TD_LENGTH_BINS],
      per_width[TD_LENGTH_BINS]; /* a bin's first length, the number of its lengths, and 1 / width */
  uint64_t max_new_tokens[TD_LENGTH_BINS];
  uint32_t n_by_max_new[TD_LENGTH_BINS]; /* waiting requests of all accounts by bin of max_new: sum of
                                          * max_new, number */
} td_output_lengths;

TD_MUST_CHECK bool td_output_lengths_init(td_output_lengths *a, uint32_t n_accounts);
void td_output_lengths_deinit(td_output_lengths *a);

/* The bin of a length: four bins in an octave; bin 0 is for 0. */
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

/* Notes an answer of n_tokens that ended by itself or was cut by max_new, n_steps after its request came. */
void td_output_lengths_observe(td_output_lengths *a, uint32_t account, uint32_t n_tokens, uint64_t n_steps,
                               bool cut);
/* A request begins (n = 1) or ceases (n = -1) to wait. */
void td_output_lengths_count_waiting(td_output_lengths *a, uint32_t account, uint32_t max_new,
                                     uint32_t prompt_tokens, int n);
/* A request starts for the first time. expected_uncached_tokens: as given to td_output_lengths_count_waiting.
 * uncached_tokens: prompt tokens that are left to compute. */
void td_output_lengths_start(td_output_lengths *a, uint32_t account, uint32_t expected_uncached_tokens,
                             uint32_t uncached_tokens);

enum { TD_LENGTH_PARTS = 3 };
typedef struct td_length_chance {
  double full; /* the chance that the answer goes on to max_new */
  /* Otherwise, how many tokens it has to go. It is equally likely to end in each of the parts between
   * these bounds, and evenly likely inside a part. */
  double at[TD_LENGTH_PARTS + 1];
} td_length_chance;
/* The chances of an answer that has `age` tokens so far. */
td_length_chance td_output_lengths_chance(const td_output_lengths *a, uint32_t account, uint32_t age,
                                          uint32_t max_new);

/* The share of the tokens expected at arrival to be computed that really are: meanwhile other requests
 * compute the same prefix. */
double td_output_lengths_uncached_ratio(const td_account_lengths *a);

#endif
