/* Client addresses, by which connections are counted, and lists of address ranges (trusted_proxies). Pure. */
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

/* Returns false if `from` is not an IP address (a unix socket has none). */
bool td_address_of(const struct sockaddr_storage *from, td_address *out);
/* The address that counts as one client: the IPv4 address, or the /64 of an IPv6 address. */
td_address td_address_owner(td_address a);
/* "192.0.2.1" or "2001:db8::/64". */
void td_address_text(const td_address *owner, char out[TD_ADDRESS_TEXT_BYTES]);

/* A client, and its bucket in hash tables by address. */
typedef struct td_client {
  td_address ip; /* as td_address_owner returns it */
  uint32_t bucket;
  bool has_ip; /* false: a unix socket */
} td_client;
td_client td_client_of(td_address ip);
/* The address as text, or "a unix socket". */
void td_client_text(const td_client *c, char out[TD_ADDRESS_TEXT_BYTES]);

typedef struct td_ranges {
  struct {
    td_address first;
    unsigned n_bits; /* prefix length */
  } range[64];
  unsigned n;
  bool has_unix; /* the list holds "unix": every client of a unix socket matches */
} td_ranges;

/* Reads a list such as "192.0.2.1, 10.0.0.0/8, fd00::/8"; "" is empty. TD_ERR_CONFIG names the bad item. */
TD_MUST_CHECK td_status td_ranges_read(td_ranges *r, const char *text, td_error *err);
bool td_ranges_have(const td_ranges *r, const td_address *a);

#endif
