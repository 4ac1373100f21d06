/* The listening sockets: HOST:PORT, [V6]:PORT, unix:PATH, or those that systemd hands over. */
#ifndef TD_SERVER_LISTENER_H
#define TD_SERVER_LISTENER_H

#include <stdbool.h>
#include <uv.h>

#include "common/status.h"

typedef struct td_listener td_listener;
struct td_server;

/* "host:port" into its parts; *is_unix: host is the path. Pure. */
TD_MUST_CHECK td_status td_listen_parse(const char *spec, char host[256], char port[8], bool *is_unix,
                                        td_error *err);

/* Binds and listens, but accepts nobody yet; TD_ERR_IO names the address. */
TD_MUST_CHECK td_status td_listener_open(struct td_server *s, const char *spec, td_listener **out,
                                         td_error *err);
/* Begins to accept. */
void td_listener_accept(td_listener *l);
/* Whether clients get in: false if one has waited for health_stall_ms because it could not be taken, or if a
 * socket was closed behind our back. */
bool td_listener_healthy(const td_listener *l);
/* Whether systemd holds the sockets: they outlive this process, and a successor takes over. */
bool td_listener_is_inherited(const td_listener *l);
/* Stops accepting; frees *l once the loop has turned. */
void td_listener_close(td_listener *l);

#endif
