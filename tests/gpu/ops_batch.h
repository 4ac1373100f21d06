/* Rows with a past, for test_ops's sections about attention: random q, k and v, in pages scattered over a
 * KV store; uploads to the device, the step under test, and the float64 reference.
 *
 * Values of a token are stored at the index of its page, so that a prefix that rows share is made, written
 * and rotated once. Uploads are done in steps with as many tokens and rows as fit, because on a GPU the
 * number of steps determines the time. */
#ifndef TD_TESTS_GPU_OPS_BATCH_H
#define TD_TESTS_GPU_OPS_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "ops_harness.h"

typedef struct heads {
  uint32_t n_heads, n_kv_heads, head_dim, page_tokens, window;
  td_rope_style style;
  bool norm;
  uint32_t rotary_dim; /* 0: all of head_dim */
} heads;

static inline uint32_t rotated_dim(const heads *h) { return h->rotary_dim ? h->rotary_dim : h->head_dim; }

typedef struct batch_row {
  uint32_t q_len, kv_len; /* the step's tokens, and all */
  uint32_t n_shared;      /* number of first tokens, in whole pages, that belong to another row */
  uint32_t q_at, q_from;  /* offset in tokens of the q of tokens from q_from on in batch.q */
  int32_t pages[MAX_CONTEXT / 16];
} batch_row;

typedef struct batch {
  const heads *h;
  uint32_t n_rows, n_pages;
  batch_row *rows;
  float *q;               /* of the rows' last q_len tokens: [tokens, n_heads * head_dim] */
  float *kv;              /* [n_pages * page_tokens, 2 * n_kv_heads * head_dim]: k|v before k is rotated */
  float *q_norm, *k_norm; /* NULL: none */
  td_rope_kv_params rope;
} batch;

/* rows: {query tokens, tokens of KV}. shares[r] {row, tokens}: the first tokens of row r, in whole pages, are
 * those of an earlier row; NULL: none are. */
batch *batch_make(const heads *h, const uint32_t (*rows)[2], const uint32_t (*shares)[2], uint32_t n_rows);
void batch_free(batch *b);
/* Its k|v, to be changed before it is written. */
float *batch_kv_at(const batch *b, const batch_row *row, uint32_t token);

/* Writes NaN where the step itself writes, and after the row's end, because neither may be read. Then the
 * past over the rest. */
void batch_poison(const batch *b);
void batch_write(const batch *b);

/* The step: the last q_len tokens of all these rows, which are b's or copies of them with other lengths.
 * Returns [tokens, n_heads * head_dim]; the caller frees. */
td_devptr batch_qkv(const batch *b, const batch_row *rows,
                    uint32_t n_rows); /* q of those tokens, as a GEMM would leave it */
float *batch_attend(const batch *b, const batch_row *rows, uint32_t n_rows);
double *batch_reference(const batch *b, const batch_row *rows, uint32_t n_rows);
uint32_t batch_tokens(const batch_row *rows, uint32_t n_rows);
void batch_attention_ops(const batch *b, td_devptr qkv, td_devptr out, td_op ops[2]);

#endif
