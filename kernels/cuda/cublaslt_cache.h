/* What was measured about cuBLASLt's algorithms, in memory and in a text file: one line for each (shape,
 * bucket of rows).
 *
 * Plain C and no CUDA, so that it is tested where no GPU is. An algorithm is opaque here: the words of a
 * cublasLtMatmulAlgo_t, good only for the device, driver and library that the file's identity line names. */
#ifndef TD_KERNELS_CUDA_CUBLASLT_CACHE_H
#define TD_KERNELS_CUDA_CUBLASLT_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/cache.h"

enum { TD_LT_ALGO_WORDS = 8 };

typedef struct td_lt_entry {
  uint32_t n_out, n_in, bucket;
  bool f32, bias;
  float us; /* of one linear, measured */
  uint64_t algo[TD_LT_ALGO_WORDS];
} td_lt_entry;

typedef struct td_lt_cache {
  td_lt_entry *entries; /* no two of one shape and bucket */
  size_t n, capacity;
} td_lt_cache;

void td_lt_cache_init(td_lt_cache *c);
void td_lt_cache_deinit(td_lt_cache *c);

/* The bucket that serves linears of n rows (n > 0): the smallest one that holds them. */
uint32_t td_lt_bucket(uint32_t n);

const td_lt_entry *td_lt_cache_find(const td_lt_cache *c, uint32_t n_out, uint32_t n_in, bool f32, bool bias,
                                    uint32_t bucket);
/* Adds or replaces. */
TD_MUST_CHECK td_status td_lt_cache_put(td_lt_cache *c, const td_lt_entry *e, td_error *err);

/* All or nothing: a text that is damaged, of another version or of another identity gives an error and an
 * empty cache. */
TD_MUST_CHECK td_status td_lt_cache_parse(td_lt_cache *c, const char *text, size_t n_bytes,
                                          const char *identity, td_error *err);
/* folder/linears-IDENTITY.txt; false: too long. */
bool td_lt_cache_path(const char *folder, const char *identity, char out[TD_CACHE_PATH_BYTES]);
/* The same of a file. TD_OK and *found = false where there is none. */
TD_MUST_CHECK td_status td_lt_cache_read(td_lt_cache *c, const char *path, const char *identity, bool *found,
                                         td_error *err);
TD_MUST_CHECK td_status td_lt_cache_write(const td_lt_cache *c, const char *path, const char *identity,
                                          td_error *err);

#endif
