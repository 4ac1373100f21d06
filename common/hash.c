/* Seeded hashes: see hash.h. */
#include "common/hash.h"

#include <string.h>
#include <sys/random.h>

#include "common/clock.h"

enum { RANDOM_WORDS = 32 }; /* requested in one call, which costs more than the words */

uint64_t td_random_u64(void)
{
  static _Thread_local uint64_t words[RANDOM_WORDS];
  static _Thread_local int n_left;
  if (n_left == 0 && getrandom(words, sizeof words, GRND_NONBLOCK) == (ssize_t)sizeof words)
    n_left = RANDOM_WORDS;
  if (n_left > 0) {
    uint64_t v = words[--n_left];
    words[n_left] = 0; /* memory that is disclosed later must not reveal numbers in use */
    return v;
  }
  uint64_t now = td_clock_ns(); /* the kernel's pool is not ready: hard to guess must suffice */
  return td_hash_mix(now << 32 ^ now >> 32 ^ (uintptr_t)&now, 0x9E3779B97F4A7C15u);
}

static uint64_t load64(const unsigned char *p, size_t n)
{
  uint64_t w = 0;
  memcpy(&w, p, n);
  return w;
}

uint64_t td_hash_bytes(uint64_t seed, const void *bytes, size_t n)
{
  const unsigned char *p = bytes;
  uint64_t h = seed ^ n * 0x9E3779B97F4A7C15u;
  for (; n > 8; p += 8, n -= 8)
    h = td_hash_mix(h ^ load64(p, 8), 0xD6E8FEB86659FD93u ^ seed);
  return td_hash_mix(h ^ load64(p, n), 0xA0761D6478BD642Fu ^ seed);
}
