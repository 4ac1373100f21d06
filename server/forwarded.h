/* The client behind a proxy: X-Forwarded-For on connections from trusted_proxies. Pure. */
#ifndef TD_SERVER_FORWARDED_H
#define TD_SERVER_FORWARDED_H

#include "server/address.h"

/* Each proxy appends the address that it got the request from. So the list is read from its end, skipping
 * trusted proxies. The first other address is the client; entries before it may be forged. If all are
 * trusted, the leftmost is the client. Returns false if the list is empty or an entry that was read is no
 * address. */
bool td_forwarded_client(const td_ranges *trusted, const char *value, td_address *out);

#endif
