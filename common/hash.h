/* Hashing for tables whose keys come from clients: a seed that clients cannot know, and functions that use
 * it. Without the seed, a client could compute keys that all collide. Stateless: any thread. */
#ifndef TD_COMMON_HASH_H
#define TD_COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>

/* A random number that other processes cannot predict. */
uint64_t td_random_u64(void);
uint64_t td_hash_bytes(uint64_t seed, const void *bytes, size_t n);

static inline uint64_t td_hash_mix(uint64_t a, uint64_t b)
{
  unsigned __int128 p = (unsigned __int128)a * b;
  return (uint64_t)p ^ (uint64_t)(p >> 64);
}
static inline uint64_t td_hash_u64(uint64_t seed, uint64_t v)
{
  return td_hash_mix(v ^ seed, 0xD6E8FEB86659FD93u ^ seed);
}

#endif
