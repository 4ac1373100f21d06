/* See ops_cuts.h. */
#include "ops_cuts.h"

#include <stdio.h>

#include "ops_attention.h"
#include "ops_harness.h"

enum { ROWS = 40 };

/* Decodes, most of which share a prefix, and a chunk after the same prefix. */
static void test_shared(const heads *h)
{
  enum { PREFIX = 512 };
  uint32_t rows[ROWS][2], shares[ROWS][2];
  for (uint32_t r = 0; r < ROWS; r++) {
    rows[r][0] = r + 1 == ROWS ? 150 : 1;
    rows[r][1] = PREFIX + 170 + 11 * r;
    shares[r][0] = r > 0 ? r - 1 : 0;
    shares[r][1] = r > 0 && r != 9 ? PREFIX : 0;
  }
  test_attention_mixed_shared(h, (const uint32_t(*)[2])rows, (const uint32_t(*)[2])shares, ROWS);
}

/* Batch number `number`, independent of the tests before. */
static void test_batch(const heads *h, const uint32_t (*rows)[2], uint32_t n_rows, uint32_t number,
                       double *kept[CUTS_BATCHES])
{
  rng_seed((number + 1) * 0x9e3779b97f4a7c15ull);
  test_attention_kept(h, rows, n_rows, &kept[number]);
}

void test_cuts(const heads *h, const td_attention_policy *cut, bool tiny, double *kept[CUTS_BATCHES])
{
  /* Chunks without earlier keys, thin ones after many keys, and both with an odd tile at the end. */
  static const uint32_t chunks[][2] = {{40, 3300}, {33, 1025}, {7, 1290}, {1, 700}, {130, 2000}, {100, 100}};
  static const uint32_t small[][2] = {{20, 700}, {1, 300}, {1, 40}};
  uint32_t rows[ROWS][2];
  printf("cut %s\n", cut ? cut->name : "auto");
  test_batch(h, small, 3, 0, kept);
  if (cut && cut->always_shares)
    test_shared(h);
  if (tiny)
    return;
  test_batch(h, chunks, 6, 1, kept);
  test_batch(h, (const uint32_t[][2]){{300, 4000}}, 1, 2, kept);
  for (uint32_t r = 0; r < ROWS; r++) { /* more decodes than a few SMs hold, long and short */
    rows[r][0] = r == 30 ? 200 : 1;
    rows[r][1] = r == 30 ? 1500 : r % 3 ? 20 + 7 * r : 900 + 13 * r;
  }
  test_batch(h, (const uint32_t(*)[2])rows, ROWS, 3, kept);
}
