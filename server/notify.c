/* systemd: see notify.h. libsystemd is optional at build time. */
#include "server/notify.h"

#ifdef TD_HAVE_SYSTEMD
#include <systemd/sd-daemon.h>

void td_notify(const char *state) { sd_notify(0, state); }

uint64_t td_notify_watchdog_us(void)
{
  uint64_t us = 0;
  return sd_watchdog_enabled(0, &us) > 0 ? us : 0;
}

int td_notify_listen_fds(int *first)
{
  int n = sd_listen_fds(1);
  *first = SD_LISTEN_FDS_START;
  return n > 0 ? n : 0;
}

#else

void td_notify(const char *state) { (void)state; }
uint64_t td_notify_watchdog_us(void) { return 0; }
int td_notify_listen_fds(int *first) { return *first = 0; }

#endif
