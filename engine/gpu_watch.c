/* Watching a GPU through NVML: see gpu_watch.h. */
#include "engine/gpu_watch.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"

enum { QUERY_EACH_MS = 1000, OLD_AFTER_MS = 5000, STOP_WAIT_MS = 500 };

/* The part of nvml.h that is used here. Calls return 0 on success. */
enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0 };
enum { SLOWED_BY_POWER = 0x4 | 0x80, SLOWED_BY_HEAT = 0x20 | 0x40, SLOWED_BY_HARDWARE = 0x8 };

typedef struct nvml {
  void *library;
  int (*init)(void);
  int (*shutdown)(void);
  int (*find)(const char *pci_bus_id, void **device);
  int (*clock)(void *device, int which, unsigned *mhz);
  int (*power)(void *device, unsigned *mw);
  int (*power_limit)(void *device, unsigned *mw);
  int (*temperature)(void *device, int sensor, unsigned *celsius);
  int (*slowed)(void *device, unsigned long long *reasons);
} nvml;

struct td_gpu_watch {
  nvml nvml;
  void *device;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool stops, has_ended; /* protected by `lock`, as are queried_us and last */
  uint64_t queried_us;   /* when `last` was read; 0: never */
  td_engine_gpu last;
};

static bool find_calls(nvml *n)
{
  const struct {
    const char *name;
    void *to;
  } calls[] = {
      {"nvmlInit_v2", &n->init},
      {"nvmlShutdown", &n->shutdown},
      {"nvmlDeviceGetHandleByPciBusId_v2", &n->find},
      {"nvmlDeviceGetClockInfo", &n->clock},
      {"nvmlDeviceGetPowerUsage", &n->power},
      {"nvmlDeviceGetEnforcedPowerLimit", &n->power_limit},
      {"nvmlDeviceGetTemperature", &n->temperature},
      {"nvmlDeviceGetCurrentClocksThrottleReasons", &n->slowed},
  };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    void *f = dlsym(n->library, calls[i].name);
    if (!f)
      return false;
    memcpy(calls[i].to, &f, sizeof f);
  }
  return true;
}

/* ---- queries ---- */

/* NaN if the call failed. */
static double value_or_nan(int rc, unsigned value, double scale)
{
  return rc == 0 ? value * scale : (double)NAN;
}

static td_engine_gpu query(const td_gpu_watch *w)
{
  const nvml *n = &w->nvml;
  td_engine_gpu g;
  unsigned value = 0;
  unsigned long long reasons = 0;
  int rc = n->clock(w->device, CLOCK_SM, &value);
  g.sm_hz = value_or_nan(rc, value, 1e6);
  rc = n->clock(w->device, CLOCK_MEMORY, &value);
  g.memory_hz = value_or_nan(rc, value, 1e6);
  rc = n->power(w->device, &value);
  g.watts = value_or_nan(rc, value, 1e-3);
  rc = n->power_limit(w->device, &value);
  g.limit_watts = value_or_nan(rc, value, 1e-3);
  rc = n->temperature(w->device, SENSOR_GPU, &value);
  g.celsius = value_or_nan(rc, value, 1);
  g.knows_slowed = n->slowed(w->device, &reasons) == 0;
  g.slowed_by_power = reasons & SLOWED_BY_POWER;
  g.slowed_by_heat = reasons & SLOWED_BY_HEAT;
  g.slowed_by_hardware = reasons & SLOWED_BY_HARDWARE;
  return g;
}

static struct timespec in_ms(int ms)
{
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  at.tv_sec += ms / 1000;
  at.tv_nsec += ms % 1000 * 1000000;
  at.tv_sec += at.tv_nsec / 1000000000;
  at.tv_nsec %= 1000000000;
  return at;
}

static void *run(void *arg)
{
  td_gpu_watch *w = arg;
  pthread_mutex_lock(&w->lock);
  while (!w->stops) {
    pthread_mutex_unlock(&w->lock);
    td_engine_gpu g = query(w);
    struct timespec next = in_ms(QUERY_EACH_MS);
    pthread_mutex_lock(&w->lock);
    w->last = g;
    w->queried_us = td_clock_us();
    while (!w->stops && pthread_cond_timedwait(&w->changed, &w->lock, &next) == 0)
      ;
  }
  w->has_ended = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

bool td_gpu_watch_get(td_gpu_watch *w, td_engine_gpu *out)
{
  pthread_mutex_lock(&w->lock);
  bool is_new = w->queried_us > 0 && td_clock_us() - w->queried_us < 1000 * (uint64_t)OLD_AFTER_MS;
  *out = w->last;
  pthread_mutex_unlock(&w->lock);
  return is_new;
}

/* ---- life ---- */

static void free_watch(td_gpu_watch *w)
{
  if (w->nvml.library)
    dlclose(w->nvml.library);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
}

/* Returns NULL on success, otherwise why the device cannot be watched. */
static const char *open_device(td_gpu_watch *w, const char *library, const char *pci_bus_id)
{
  w->nvml.library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!w->nvml.library)
    return "it is not there";
  if (!find_calls(&w->nvml))
    return "it lacks a call that is needed";
  if (w->nvml.init() != 0)
    return "it does not start";
  if (w->nvml.find(pci_bus_id, &w->device) == 0)
    return NULL;
  w->nvml.shutdown();
  return "it does not know the GPU";
}

td_gpu_watch *td_gpu_watch_start(const char *library, const char *pci_bus_id)
{
  pthread_condattr_t by_clock;
  td_gpu_watch *w = calloc(1, sizeof *w);
  if (!w)
    return NULL;
  pthread_mutex_init(&w->lock, NULL);
  pthread_condattr_init(&by_clock);
  pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
  pthread_cond_init(&w->changed, &by_clock);
  pthread_condattr_destroy(&by_clock);
  const char *why = open_device(w, library, pci_bus_id);
  if (!why && pthread_create(&w->thread, NULL, run, w) != 0) {
    w->nvml.shutdown();
    why = "no thread could be started";
  }
  if (!why)
    return w;
  td_info("clocks, watts and temperature of the GPU are not told: %s: %s", library, why);
  free_watch(w);
  return NULL;
}

void td_gpu_watch_stop(td_gpu_watch *w)
{
  if (!w)
    return;
  struct timespec end = in_ms(STOP_WAIT_MS);
  pthread_mutex_lock(&w->lock);
  w->stops = true;
  pthread_cond_broadcast(&w->changed);
  while (!w->has_ended && pthread_cond_timedwait(&w->changed, &w->lock, &end) == 0)
    ;
  bool has_ended = w->has_ended;
  pthread_mutex_unlock(&w->lock);
  if (!has_ended) { /* the process will exit soon; the thread's memory is not freed */
    pthread_detach(w->thread);
    return;
  }
  pthread_join(w->thread, NULL);
  w->nvml.shutdown();
  free_watch(w);
}
