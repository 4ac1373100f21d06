/* Addresses: see address.h. */
#include "server/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/limits.h"

enum { MAPPED_BYTES = 12, MAPPED_BITS = 8 * MAPPED_BYTES, OWNER_BYTES = 8 };

static td_address map_ipv4(const void *ip)
{
  td_address a = {{[10] = 0xff, [11] = 0xff}};
  memcpy(a.bytes + MAPPED_BYTES, ip, 4);
  return a;
}

static bool is_ipv4(const td_address *a)
{
  static const unsigned char zero[4];
  td_address mapped = map_ipv4(zero);
  return memcmp(a->bytes, mapped.bytes, MAPPED_BYTES) == 0;
}

bool td_address_of(const struct sockaddr_storage *from, td_address *out)
{
  if (from->ss_family == AF_INET)
    *out = map_ipv4(&((const struct sockaddr_in *)from)->sin_addr);
  else if (from->ss_family == AF_INET6)
    memcpy(out->bytes, &((const struct sockaddr_in6 *)from)->sin6_addr, TD_ADDRESS_BYTES);
  else
    return false;
  return true;
}

td_address td_address_owner(td_address a)
{
  if (!is_ipv4(&a))
    memset(a.bytes + OWNER_BYTES, 0, TD_ADDRESS_BYTES - OWNER_BYTES);
  return a;
}

void td_address_text(const td_address *owner, char out[TD_ADDRESS_TEXT_BYTES])
{
  char ip[INET6_ADDRSTRLEN];
  if (is_ipv4(owner))
    inet_ntop(AF_INET, owner->bytes + MAPPED_BYTES, ip, sizeof ip);
  else
    inet_ntop(AF_INET6, owner->bytes, ip, sizeof ip);
  snprintf(out, TD_ADDRESS_TEXT_BYTES, "%s%s", ip, is_ipv4(owner) ? "" : "/64");
}

static uint32_t bucket_of(const td_address *ip)
{
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < sizeof ip->bytes; i++)
    h = (h ^ ip->bytes[i]) * 16777619u;
  return (h ^ h >> 15) % TD_IP_BUCKETS;
}

td_client td_client_of(td_address ip)
{
  td_client c = {.ip = td_address_owner(ip), .has_ip = true};
  c.bucket = bucket_of(&c.ip);
  return c;
}

void td_client_text(const td_client *c, char out[TD_ADDRESS_TEXT_BYTES])
{
  if (c->has_ip)
    td_address_text(&c->ip, out);
  else
    snprintf(out, TD_ADDRESS_TEXT_BYTES, "a unix socket");
}

/* ---- ranges ---- */

/* "ip" or "ip/bits", n bytes. */
static bool read_range(const char *s, size_t n, td_address *first, unsigned *n_bits)
{
  char ip[INET6_ADDRSTRLEN + 4];
  unsigned char v4[4];
  if (n == 0 || n >= sizeof ip)
    return false;
  memcpy(ip, s, n);
  ip[n] = '\0';
  char *slash = strchr(ip, '/');
  if (slash)
    *slash = '\0';
  bool is_v4 = inet_pton(AF_INET, ip, v4) == 1;
  if (is_v4)
    *first = map_ipv4(v4);
  else if (inet_pton(AF_INET6, ip, first->bytes) != 1)
    return false;
  unsigned most = is_v4 ? 32 : 128, bits = most;
  if (slash) {
    size_t digits = strspn(slash + 1, "0123456789");
    if (digits == 0 || digits > 3 || slash[1 + digits] != '\0' || (bits = (unsigned)atoi(slash + 1)) > most)
      return false;
  }
  *n_bits = bits + (is_v4 ? MAPPED_BITS : 0);
  return true;
}

td_status td_ranges_read(td_ranges *r, const char *text, td_error *err)
{
  r->n = 0;
  r->has_unix = false;
  for (const char *at = text + strspn(text, " \t"); *at;) {
    size_t all = strcspn(at, ","), n = all;
    while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t'))
      n--;
    bool is_unix = n == 4 && memcmp(at, "unix", 4) == 0;
    if (r->n == td_limit_max(TD_LIMIT_TRUSTED_RANGES) || r->n == sizeof r->range / sizeof r->range[0])
      return td_fail_param(err, TD_ERR_CONFIG, "trusted_proxies", "trusted_proxies: more than %u ranges",
                           r->n);
    if (!is_unix && !read_range(at, n, &r->range[r->n].first, &r->range[r->n].n_bits))
      return td_fail_param(err, TD_ERR_CONFIG, "trusted_proxies",
                           "trusted_proxies: '%.*s' is no IP address, ADDRESS/BITS or unix", (int)n, at);
    r->has_unix |= is_unix;
    r->n += !is_unix;
    at += all;
    if (*at == ',')
      at += 1 + strspn(at + 1, " \t");
  }
  return TD_OK;
}

static bool equal_bits(const unsigned char *a, const unsigned char *b, unsigned n)
{
  unsigned rest = n % 8;
  return memcmp(a, b, n / 8) == 0 && (rest == 0 || (a[n / 8] ^ b[n / 8]) >> (8 - rest) == 0);
}

bool td_ranges_have(const td_ranges *r, const td_address *a)
{
  for (unsigned i = 0; i < r->n; i++)
    if (equal_bits(r->range[i].first.bytes, a->bytes, r->range[i].n_bits))
      return true;
  return false;
}
