/* The results of tuning: for each (shape, bucket of rows) the chosen cuBLASLt algorithm and its time, in
 * memory and as one line of a text file.
 *
 * Plain C without CUDA, so that it can be tested without a GPU. An algorithm is opaque here: the words of a
 * cublasLtMatmulAlgo_t, valid only for the device, driver and library that the file's identity line names. */
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
  float us; /* measured time of one linear */
  uint64_t algo[TD_LT_ALGO_WORDS];
} td_lt_entry;

typedef struct td_lt_cache {
  td_lt_entry *entries; /* at most one for each shape and bucket */
  size_t n, capacity;
} td_lt_cache;

void td_lt_cache_init(td_lt_cache *c);
void td_lt_cache_deinit(td_lt_cache *c);

/* The bucket of linears of n rows (n > 0): the smallest multiple of its step that is at least n. */
uint32_t td_lt_bucket(uint32_t n);

const td_lt_entry *td_lt_cache_find(const td_lt_cache *c, uint32_t n_out, uint32_t n_in, bool f32, bool bias,
                                    uint32_t bucket);
/* Adds an entry, or replaces the one of the same shape and bucket. */
TD_MUST_CHECK td_status td_lt_cache_put(td_lt_cache *c, const td_lt_entry *e, td_error *err);

/* Takes a whole text or nothing: if it is damaged or has another version or identity, returns an error and
 * leaves the cache empty. */
TD_MUST_CHECK td_status td_lt_cache_parse(td_lt_cache *c, const char *text, size_t n_bytes,
                                          const char *identity, td_error *err);
/* Writes folder/linears-IDENTITY.txt to out; returns false if that is too long. */
bool td_lt_cache_path(const char *folder, const char *identity, char out[TD_CACHE_PATH_BYTES]);
/* Parses a file. If there is none, returns TD_OK and sets *found = false. */
TD_MUST_CHECK td_status td_lt_cache_read(td_lt_cache *c, const char *path, const char *identity, bool *found,
                                         td_error *err);
TD_MUST_CHECK td_status td_lt_cache_write(const td_lt_cache *c, const char *path, const char *identity,
                                          td_error *err);

#endif
