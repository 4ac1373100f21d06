/* Which prefix cache a request uses: that of its key, or, if it sends a `cache_salt`, a separate one for
 * this salt within the key's.
 *
 * A key's own namespace is its position in the key file. A salted namespace is a keyed hash of position and
 * salt with the top bit set, so the two kinds never collide. Two salted namespaces collide with a
 * probability of 2^-63. Nobody can search for a collision without the secret, which is drawn at start.
 * Source: SipHash-2-4 (Aumasson, Bernstein 2012). */
#ifndef TD_SERVER_NAMESPACE_H
#define TD_SERVER_NAMESPACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct td_namespace_secret {
  uint64_t k0, k1;
} td_namespace_secret;

uint64_t td_siphash(const td_namespace_secret *key, const void *data, size_t n);
uint64_t td_namespace_of(const td_namespace_secret *secret, uint32_t account,
                         const char *salt); /* salt may be NULL */

#endif
