/* Steps as Chrome trace events: see trace.h. */
#include "engine/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "common/log.h"

enum { TRACE_BUFFER_BYTES = 1 << 20, HOST_LANE = 1, DEVICE_LANE = 2 };

struct td_trace {
  FILE *file;
  bool begun;
  uint64_t n_steps, max_steps;
};

td_status td_trace_create(const char *path, uint64_t max_steps, td_trace **out, td_error *err)
{
  td_trace *t = calloc(1, sizeof *t);
  if (!t)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the trace");
  t->max_steps = max_steps;
  int fd = td_open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  t->file = fd < 0 ? NULL : fdopen(fd, "w");
  if (!t->file) {
    td_status st = td_fail_param(err, TD_ERR_CONFIG, "trace", "trace: %s: %s", path, strerror(errno));
    if (fd >= 0)
      close(fd);
    free(t);
    return st;
  }
  setvbuf(t->file, NULL, _IOFBF, TRACE_BUFFER_BYTES);
  *out = t;
  return TD_OK;
}

static void begin_file(td_trace *t)
{
  t->begun = true;
  if (ftruncate(fileno(t->file), 0) != 0 && errno != EINVAL) /* EINVAL: a pipe or a device */
    td_warn("the trace file is not emptied: %s", strerror(errno));
  fprintf(t->file,
          "[{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"engine\"}},\n"
          "{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"device\"}}",
          HOST_LANE, DEVICE_LANE);
}

static bool is_empty(FILE *f)
{
  struct stat s;
  return fstat(fileno(f), &s) == 0 && S_ISREG(s.st_mode) && s.st_size == 0;
}

static void close_file(td_trace *t)
{
  if (!t->begun && is_empty(t->file)) /* write a valid file with no steps */
    begin_file(t);
  if (t->begun)
    fputs("\n]\n", t->file);
  bool bad = ferror(t->file);
  if (fclose(t->file) != 0 || bad)
    td_warn("the trace is not whole: %s", strerror(errno));
  t->file = NULL;
}

void td_trace_destroy(td_trace *t)
{
  if (!t)
    return;
  if (t->file)
    close_file(t);
  free(t);
}

static void event(td_trace *t, int lane, const char *name, double begin_us, double end_us,
                  const td_plan *plan)
{
  if (end_us < begin_us)
    end_us = begin_us;
  fprintf(t->file,
          ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"ts\":%.1f,\"dur\":%.1f,\"args\":{\"step\":"
          "%" PRIu64 ",\"decodes\":%u,\"prefill_tokens\":%u}}",
          lane, name, begin_us, end_us - begin_us, plan->step, plan->n_decode_rows, plan->n_prefill_tokens);
}

void td_trace_step(td_trace *t, const td_plan *plan, const td_engine_step_times *times, uint64_t published_us,
                   double busy_us)
{
  if (!t->file)
    return;
  if (!t->begun)
    begin_file(t);
  event(t, HOST_LANE, "plan", (double)times->plan_begin_us, (double)times->plan_end_us, plan);
  event(t, HOST_LANE, "queue", (double)times->plan_end_us, (double)times->queued_us, plan);
  event(t, HOST_LANE, "publish", (double)times->ended_us, (double)published_us, plan);
  if (busy_us > 0) /* device and host clocks differ: the step ends when the host learnt of it */
    event(t, DEVICE_LANE, "step", (double)times->ended_us - busy_us, (double)times->ended_us, plan);
  if (++t->n_steps == t->max_steps) {
    td_warn("trace_steps is reached: the trace ends here");
    close_file(t);
  }
}
