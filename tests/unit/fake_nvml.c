/* A replacement for libnvidia-ml.so.1, for test_engine_gpu_watch. FAKE_NVML selects what goes wrong. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device);
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz);
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw);
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);

static int gpu;

static bool is(const char *what)
{
  const char *set = getenv("FAKE_NVML");
  return set && strcmp(set, what) == 0;
}

int nvmlInit_v2(void) { return is("broken") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device)
{
  *device = &gpu;
  return strcmp(id, "0000:1B:00.0") == 0 ? 0 : 6;
}

int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz)
{
  while (is("hang"))
    sleep(1);
  *mhz = which == 1 ? 1980 : which == 2 ? 3201 : 0;
  return device == &gpu ? 0 : 2;
}

static int tell(unsigned *out, unsigned value)
{
  *out = value;
  return is("mute") ? 3 : 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { return tell(mw, 612500); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { return tell(mw, 700000); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { return tell(celsius, 61); }

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
  *reasons = 0x4;
  return is("mute") ? 3 : 0;
}
