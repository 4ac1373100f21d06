/* SHA-256 (FIPS 180-4), computed incrementally. */
#ifndef TD_PULL_SHA256_H
#define TD_PULL_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { TD_SHA256_HEX_BYTES = 65 };

typedef struct td_sha256 {
  uint32_t state[8];
  uint64_t n_bytes;
  uint8_t block[64]; /* bytes that do not fill a block yet */
} td_sha256;

void td_sha256_begin(td_sha256 *s);
void td_sha256_add(td_sha256 *s, const void *bytes, size_t n);
/* Writes the hash as lowercase hex. `s` cannot be used any more. */
void td_sha256_end(td_sha256 *s, char hex[TD_SHA256_HEX_BYTES]);

#endif
