/* Who is behind a proxy: X-Forwarded-For of connections that come from trusted_proxies. Pure. */
#ifndef TD_SERVER_FORWARDED_H
#define TD_SERVER_FORWARDED_H

#include "server/address.h"

/* Each proxy appends the address it was asked from. So the list is read from its end, past the proxies that
 * are trusted: what stands before the first other one, anybody may have written. False: no address stands
 * there. */
bool td_forwarded_client(const td_ranges *trusted, const char *value, td_address *out);

#endif
