/* The listening sockets: HOST:PORT, [V6]:PORT, unix:PATH, or sockets that systemd passes. */
#ifndef TD_SERVER_LISTENER_H
#define TD_SERVER_LISTENER_H

#include <stdbool.h>
#include <uv.h>

#include "common/status.h"

typedef struct td_listener td_listener;
struct td_server;

/* Splits "host:port". If *is_unix, host is the path. Pure. */
TD_MUST_CHECK td_status td_listen_parse(const char *spec, char host[256], char port[8], bool *is_unix,
                                        td_error *err);

/* Binds and listens, but does not accept yet. TD_ERR_IO names the address. Close *out also on failure. */
TD_MUST_CHECK td_status td_listener_open(struct td_server *s, const char *spec, td_listener **out,
                                         td_error *err);
/* Begins to accept. */
void td_listener_accept(td_listener *l);
/* False if a client has waited for longer than health_stall_ms because accepting failed, or if a socket no
 * longer listens. */
bool td_listener_healthy(const td_listener *l);
/* Whether systemd owns the sockets, so that they outlive this process and its successor accepts from them. */
bool td_listener_is_inherited(const td_listener *l);
/* Stops accepting. l is freed in a later turn of the loop. */
void td_listener_close(td_listener *l);

#endif
