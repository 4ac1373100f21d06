/* The attention section of test_ops: rope_kv and attention, several rows with a past, in pages scattered
 * over the store. */
#ifndef TD_TESTS_GPU_OPS_ATTENTION_H
#define TD_TESTS_GPU_OPS_ATTENTION_H

#include "ops_batch.h"

/* rows: {query tokens, tokens of KV}; against float64. */
void test_attention(const heads *h, const uint32_t (*rows)[2], uint32_t n_rows);
/* The same with a reference that is computed once for all runs with the same batch of random numbers. *kept:
 * NULL at first; the caller frees it. */
void test_attention_kept(const heads *h, const uint32_t (*rows)[2], uint32_t n_rows, double **kept);
/* Steps over one KV store: n_rows decodes, n_fewer of them twice, and all again, with other queries each
 * time. On a GPU, fewer rows have more KV splits, the last of one key, and leftovers of one step must not
 * affect another. */
void test_attention_again(const heads *h, uint32_t n_rows, uint32_t n_fewer, uint32_t n_tokens);
/* The same; shares: {earlier row, number of tokens in whole pages} with which a row begins. */
void test_attention_mixed_shared(const heads *h, const uint32_t (*rows)[2], const uint32_t (*shares)[2],
                                 uint32_t n_rows);
/* Decodes that begin with the same pages, three levels of them. */
void test_attention_shared(const heads *h, uint32_t n_rows, const uint32_t tokens[3]);
/* The same with values a million times as large, as small, and all zero. */
void test_attention_shared_values(const heads *h, uint32_t n_rows, const uint32_t tokens[3]);
/* One element of a shared prefix's values is NaN: it must appear in all rows that share it, and in no others.
 */
void test_attention_shared_nan(const heads *h);
/* Two stores with different heads and windows, in which the rows of one step have pages. Each op gets its own
 * store's plan, whichever was made last, in a step of one of them or of both, and again when the other one is
 * gone. Decodes of shared prefixes, with a prompt's chunk among them if `mixed`. */
void test_attention_of_two_stores(const heads *first, const heads *second, bool mixed);
/* The batch rule: the same bits for any chunking of a prompt, and whatever else is in the step. */
void test_attention_alone(const heads *h, uint32_t len);
/* NaN in a row's past must appear in the output: all heads of all its tokens see it, and no other row does.
 */
void test_attention_passes_nan_on(const heads *h);

/* A captured step of decodes gives the same bits as the queued one, and does not read too early what the step
 * itself writes. The backend must not have a captured step yet that would serve 5 rows: one call per backend.
 */
void test_attention_captured(const heads *h);
/* The same for 37 and 40 rows, most with few keys; call this one instead of the former. */
void test_attention_captured_short(const heads *h);
/* The same for eight pairs of rows, each with a long prefix. */
void test_attention_captured_long(const heads *h);

#endif
