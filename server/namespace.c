/* Prefix-cache namespaces: see namespace.h. */
#include "server/namespace.h"

#include <string.h>

typedef struct sip {
  uint64_t v[4];
} sip;

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void sip_rounds(sip *s, int n)
{
  uint64_t a = s->v[0], b = s->v[1], c = s->v[2], d = s->v[3];
  while (n-- > 0) {
    a += b;
    b = rotate(b, 13) ^ a;
    a = rotate(a, 32);
    c += d;
    d = rotate(d, 16) ^ c;
    a += d;
    d = rotate(d, 21) ^ a;
    c += b;
    b = rotate(b, 17) ^ c;
    c = rotate(c, 32);
  }
  *s = (sip){{a, b, c, d}};
}

static uint64_t load_le(const unsigned char *p, size_t n)
{
  uint64_t x = 0;
  while (n-- > 0)
    x = x << 8 | p[n];
  return x;
}

static void sip_word(sip *s, uint64_t m)
{
  s->v[3] ^= m;
  sip_rounds(s, 2);
  s->v[0] ^= m;
}

uint64_t td_siphash(const td_namespace_secret *key, const void *data, size_t n)
{
  const unsigned char *p = data;
  sip s = {{key->k0 ^ 0x736f6d6570736575u, key->k1 ^ 0x646f72616e646f6du, key->k0 ^ 0x6c7967656e657261u,
            key->k1 ^ 0x7465646279746573u}};
  for (size_t i = 0; i < n / 8; i++)
    sip_word(&s, load_le(p + 8 * i, 8));
  sip_word(&s, (uint64_t)n << 56 | load_le(p + n / 8 * 8, n % 8));
  s.v[2] ^= 0xff;
  sip_rounds(&s, 4);
  return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
}

uint64_t td_namespace_of(const td_namespace_secret *secret, uint32_t account, const char *salt)
{
  if (!salt)
    return account;
  td_namespace_secret of_key = {secret->k0 ^ account, secret->k1}; /* each account has its own SipHash key */
  return td_siphash(&of_key, salt, strlen(salt)) | UINT64_C(1) << 63;
}
