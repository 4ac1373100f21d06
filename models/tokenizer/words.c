/* Words of a text and their ids, so that a word which comes again is not merged again.
 *
 * A table of fixed size for one call of the encoder: a word has one place, and a later word takes it. It
 * holds short words of few ids. Words that collide, even by design, cost what they cost without it. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS_BITS = 12 };

struct td_words {
  uint64_t seed;
  td_word slots[1 << WORDS_BITS];
};

td_words *td_words_create(void)
{
  td_words *w = calloc(1, sizeof *w);
  if (w)
    w->seed = td_random_u64();
  return w;
}

static inline uint64_t eight(const unsigned char *p)
{
  uint64_t v;
  memcpy(&v, p, 8);
  return v;
}

/* All of fewer than eight bytes. */
static inline uint64_t few(const unsigned char *p, size_t n)
{
  uint32_t a, b;
  if (n < 4)
    return p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16;
  memcpy(&a, p, 4);
  memcpy(&b, p + n - 4, 4);
  return a | (uint64_t)b << 32;
}

td_word *td_words_at(td_words *w, const unsigned char *word, size_t n)
{
  uint64_t first = n < 8 ? few(word, n) : eight(word), last = n < 8 ? 0 : eight(word + n - 8);
  uint64_t h = td_hash_mix(first ^ w->seed, last ^ 0x9E3779B97F4A7C15u);
  if (n > 16)
    h = td_hash_mix(h ^ eight(word + 8), eight(word + n - 16) ^ 0xD6E8FEB86659FD93u);
  return &w->slots[(h ^ n) >> 7 & ((1 << WORDS_BITS) - 1)];
}
