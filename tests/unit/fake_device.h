/* A device for test_engine_*.c that computes nothing: its steps run one after another and take as long as the
 * test says. Time passes only there and while the engine sleeps, so neither the load of this machine nor real
 * time changes what a test sees. The linker replaces the engine's functions with those below
 * (tests/CMakeLists.txt). */
#ifndef TD_TESTS_FAKE_DEVICE_H
#define TD_TESTS_FAKE_DEVICE_H

#include "engine_fixture.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { FAKE_LOGITS_MAX = 4096 };

typedef struct fake_step {
  double us;     /* how long it takes */
  double end_us; /* when it ends */
  bool captured; /* whether it runs as a captured step */
  uint32_t n_logits;
} fake_step;

typedef struct fake_device fake_device;
struct fake_device {
  td_backend base;
  td_engine *e;
  /* A step was submitted: fills in us and captured. */
  void (*begin)(fake_device *d, const td_plan *plan, fake_step *s);
  /* The engine waits for the step, which may fail. NULL: nothing to do. */
  td_status (*end)(fake_device *d, const fake_step *s, td_error *err);
  /* The engine is about to sleep for max_us, or for ever (INFINITY). Returns true if something woke it,
   * having moved the clock. NULL: nothing does. */
  bool (*sleep)(fake_device *d, double max_us);
  double last_end_us;
  fake_step under_way[2]; /* oldest first */
};

static double now_us = 1e6;
static fake_device *running; /* by fake_run */

uint64_t __wrap_td_clock_us(void);
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *signals);

uint64_t __wrap_td_clock_us(void) { return (uint64_t)now_us; }

/* An engine that would sleep for ever is told to stop. */
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *signals)
{
  td_engine *e = running->e;
  double max_us = limit ? (double)limit->tv_sec * 1e6 + (double)limit->tv_nsec / 1e3 : INFINITY;
  assert_true(n == 1 && fds->fd == e->wake_fd && !signals);
  if (running->sleep && running->sleep(running, max_us))
    return 1;
  if (!limit) {
    atomic_store(&e->stop_requested, true);
    td_engine_wake_thread(e);
    return 1;
  }
  now_us += max_us;
  return 0;
}

static void fake_submit(td_backend *b, td_compiled *compiled, const td_plan *plan)
{
  fake_device *d = (fake_device *)b;
  fake_step *s = &d->under_way[b->n_under_way - 1]; /* which counts it already */
  assert_true(plan->n_logits <= FAKE_LOGITS_MAX);
  *s = (fake_step){.n_logits = plan->n_logits};
  d->begin(d, plan, s);
  s->end_us = d->last_end_us = fmax(now_us, d->last_end_us) + s->us;
}

static td_status fake_wait(td_backend *b, td_outcome *out, td_error *err)
{
  static const int32_t ids[FAKE_LOGITS_MAX];
  static const uint8_t none[FAKE_LOGITS_MAX];
  static uint8_t ones[FAKE_LOGITS_MAX];
  fake_device *d = (fake_device *)b;
  const fake_step s = d->under_way[0];
  memset(ones, 1, sizeof ones);
  *out =
      (td_outcome){.n_logits = s.n_logits, .ids = ids, .n_ids = ones, .flags = none, .captured = s.captured};
  td_status st = d->end ? d->end(d, &s, err) : TD_OK;
  now_us = fmax(now_us, s.end_us);
  d->under_way[0] = d->under_way[1];
  return st;
}

static void fake_set_sampling(td_backend *b, uint32_t slot, const td_sampling *s) {}
static void fake_sample(td_backend *b, td_compiled *sampling, const td_sample_input *input) {}
static void fake_destroy(td_backend *b) {}

/* The first members of a td_backend_ops. */
#define FAKE_DEVICE_OPS                                                                                      \
  .name = "none", .destroy = fake_destroy, .set_sampling = fake_set_sampling, .submit = fake_submit,         \
  .sample = fake_sample, .wait = fake_wait

/* Runs d's engine until it is told to stop, or fails. */
static inline void fake_run(fake_device *d, td_status want)
{
  running = d;
  atomic_store(&d->e->stop_requested, false);
  assert_int_equal(td_engine_run(d->e, &d->e->failure), want);
}

#endif
