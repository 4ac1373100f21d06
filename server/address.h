/* Addresses of clients: what connections are counted by, and lists of ranges (trusted_proxies). Pure. */
#ifndef TD_SERVER_ADDRESS_H
#define TD_SERVER_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/status.h"

enum { TD_ADDRESS_BYTES = 16, TD_ADDRESS_TEXT_BYTES = 64, TD_IP_BUCKETS = 4096 };

/* An IPv6 address; an IPv4 address is mapped into it (::ffff:a.b.c.d), however it was written. */
typedef struct td_address {
  unsigned char bytes[TD_ADDRESS_BYTES];
} td_address;

/* false: it is no IP address (a unix socket has none). */
bool td_address_of(const struct sockaddr_storage *from, td_address *out);
/* What counts as one client: the IPv4 address, or the /64 that an owner has in IPv6. */
td_address td_address_owner(td_address a);
/* "192.0.2.1", or the owner's "2001:db8::/64". */
void td_address_text(const td_address *owner, char out[TD_ADDRESS_TEXT_BYTES]);

/* One client, and where tables by address have it. */
typedef struct td_client {
  td_address ip; /* its owner's */
  uint32_t bucket;
  bool has_ip; /* else of a unix socket */
} td_client;
td_client td_client_of(td_address ip);
/* "a unix socket" has no address. */
void td_client_text(const td_client *c, char out[TD_ADDRESS_TEXT_BYTES]);

typedef struct td_ranges {
  struct {
    td_address first;
    unsigned n_bits; /* those that are compared */
  } range[64];
  unsigned n;
  bool has_unix; /* "unix": whoever comes over a unix socket */
} td_ranges;

/* "192.0.2.1, 10.0.0.0/8, fd00::/8"; "" has none. TD_ERR_CONFIG names the bad one. */
TD_MUST_CHECK td_status td_ranges_read(td_ranges *r, const char *text, td_error *err);
bool td_ranges_have(const td_ranges *r, const td_address *a);

#endif
