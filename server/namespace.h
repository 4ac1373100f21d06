/* Which prefix cache a request uses: its key's, or with `cache_salt` one of that salt's inside the key's.
 *
 * A key's own namespace is its place in the key file. A salted one is a keyed hash of both, with the top bit
 * set, so the two kinds never meet; two salted ones meet with a chance of 2^-63, and nobody can aim at it
 * without the secret, which is drawn at start. Source: SipHash-2-4 (Aumasson, Bernstein 2012). */
#ifndef TD_SERVER_NAMESPACE_H
#define TD_SERVER_NAMESPACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct td_namespace_secret {
  uint64_t k0, k1;
} td_namespace_secret;

uint64_t td_siphash(const td_namespace_secret *key, const void *data, size_t n);
uint64_t td_namespace_of(const td_namespace_secret *secret, uint32_t account,
                         const char *salt); /* salt NULL: none */

#endif
