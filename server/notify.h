/* systemd: readiness, status, watchdog, socket activation. Without systemd these functions do nothing. */
#ifndef TD_SERVER_NOTIFY_H
#define TD_SERVER_NOTIFY_H

#include <stdint.h>

void td_notify(const char *state);    /* state as for sd_notify(3): lines like "READY=1" */
uint64_t td_notify_watchdog_us(void); /* 0 if systemd asks for no watchdog */
int td_notify_listen_fds(int *first); /* returns how many sockets systemd handed over */

#endif
