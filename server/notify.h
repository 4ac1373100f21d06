/* systemd: readiness, status, watchdog, socket activation. All do nothing where there is no systemd. */
#ifndef TD_SERVER_NOTIFY_H
#define TD_SERVER_NOTIFY_H

#include <stdint.h>

void td_notify(const char *state);    /* as sd_notify: "READY=1", "STATUS=...", lines */
uint64_t td_notify_watchdog_us(void); /* 0: none asked */
int td_notify_listen_fds(int *first); /* number of sockets handed over */

#endif
