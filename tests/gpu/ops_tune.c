/* Tuning: linears are equally accurate after it, and the measurements are found again. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "ops_harness.h"
#include "ops_linear.h"
#include "ops_tune.h"
#include "ops_watch.h"

typedef struct tuned {
  td_weight *table, *wide, *back, *head;
  td_devptr x, out, logits;
} tuned;

static td_compiled *compile_tuned(const tuned *t)
{
  td_op ops[] = {{.kind = TD_OP_EMBED, .embed = {t->table, t->x, 576, 0}},
                 linear_op(t->wide, t->x, t->out, 576, 704),
                 linear_op(t->back, t->out, t->x, 704, 576),
                 linear_op(t->head, t->x, t->logits, 576, 1000)};
  ops[2].linear.add = true;
  ops[3].linear.out_f32 = true;
  ops[3].extent = TD_EXTENT_LOGITS;
  return compile_ops(ops, 4);
}

static void tune(const tuned *t, const char *folder, uint32_t ms)
{
  td_error err;
  td_tuning now;
  td_compiled *compiled = compile_tuned(t);
  die(td_backend_tune(be, compiled, folder, ms, &now, &err), &err, "tune");
  expect(ms > 0 || now.n_measured == 0, "tune: without time nothing is measured");
  be->ops->discard(be, compiled);
}

static void damage_files(const char *folder)
{
  char command[300];
  snprintf(command, sizeof command,
           "for f in %s/*; do printf x | dd of=\"$f\" bs=1 seek=300 conv=notrunc 2>/dev/null; done", folder);
  if (system(command) != 0)
    printf("FAIL tune: no cache file to damage\n"), n_failed++;
}

/* GEMMs of both shapes are kept for every bucket that cuBLASLt serves, including those of steps with chunks;
 * the head's are not measured. */
static bool all_kept(const char *folder, char *kept, int size)
{
  char command[300];
  unsigned wide = 0, back = 0, head = 1;
  snprintf(command, sizeof command,
           "awk 'NF == 14 { n[$1, $2, $3]++ } END { print n[704, 576, 0] + 0, n[576, 704, 0] + 0, n[1000, "
           "576, 1] + 0 }' %s/linears*",
           folder);
  FILE *f = popen(command, "r");
  bool all = f && fgets(kept, size, f) && sscanf(kept, "%u %u %u", &wide, &back, &head) == 3 && wide >= 30 &&
             back == wide && head == 0;
  if (f)
    pclose(f);
  return all;
}

/* Measuring continues where it stopped, in a separate call each time. Its duration is not checked: it may be
 * minutes under a sanitizer. */
static void tune_until_kept(const tuned *t, const char *folder)
{
  char ignored[64];
  for (uint32_t calls = 1; calls <= 20; calls++) {
    tune(t, folder, 2000 * calls);
    if (all_kept(folder, ignored, sizeof ignored))
      return;
  }
}

static void check_kept(const char *folder)
{
  char kept[64] = "";
  bool all = all_kept(folder, kept, sizeof kept);
  if (!all)
    printf("FAIL tune: kept of both shapes and the head: %s\n", kept);
  n_passed += all;
  n_failed += !all;
}

/* As in a daemon: nothing is measured before it serves, then one piece per call, with steps between, and
 * captured steps are captured again when their algorithms have changed. Then a captured step gives the bits
 * of a queued one. */

static td_tuning begin_tuning(td_compiled *compiled, const char *folder)
{
  td_error err;
  td_tuning begun;
  die(be->ops->tune_begin(be, compiled, folder, &begun, &err), &err, "tune_begin");
  return begun;
}

static void capture_tuned(td_compiled *compiled, uint32_t least, uint32_t most)
{
  td_error err;
  td_capture ignored;
  for (uint32_t n = 8; n <= MAX_ROWS; n += 8)
    if (n >= least && n <= most)
      die(watch_capture(be, compiled, 1, n, &ignored, &err), &err, "capture");
}

static float *decode_tuned(const tuned *t, td_compiled *compiled, uint32_t n, bool captured)
{
  static const int32_t pages[MAX_CONTEXT / 16];
  plan_reset(16);
  for (uint32_t i = 0; i < n; i++)
    plan_add_row(1, 1, pages);
  expect(run_step(compiled) == captured, "tune: a captured step is launched");
  return fetch(t->logits, (size_t)n * 1000, true);
}

static void compare_tuned(const tuned *t, td_compiled *captured, td_compiled *plain, uint32_t n)
{
  char what[100];
  float *replayed = decode_tuned(t, captured, n, true), *queued = decode_tuned(t, plain, n, false);
  bool same = memcmp(replayed, queued, (size_t)n * 1000 * sizeof *queued) == 0;
  for (uint32_t i = 0; i < n * 1000; i++)
    same &= isfinite(queued[i]) && queued[i] != 0;
  snprintf(what, sizeof what, "tune: a step of %u captured anew = queued", n);
  expect(same, what);
  free(replayed), free(queued);
}

static void test_tune_in_pieces(const tuned *t, const char *folder)
{
  enum { STEP_EACH = 37 }; /* calls: more than any comparison needs, or none would finish */
  static const uint32_t ns[] = {9, 24, 33, 64, 129, 300, 777};
  td_error err;
  td_compiled *captured = compile_tuned(t), *plain = compile_tuned(t);
  td_tuning now = begin_tuning(captured, folder);
  uint32_t n_calls = 0, n_changed = 0;
  uint64_t longest_us = 0, begin_us = td_clock_us();
  expect(now.n_measured == 0 && now.n_known == 0 && now.n_all >= 60 && !now.is_done,
         "tune: a start measures nothing");
  capture_tuned(captured, 1, MAX_ROWS);
  compare_tuned(t, captured, plain, 64);
  for (; !now.is_done && n_calls < 100000; n_calls++) {
    uint64_t call_us = td_clock_us();
    die(be->ops->tune(be, captured, &now, &err), &err, "tune");
    call_us = td_clock_us() - call_us;
    longest_us = call_us > longest_us ? call_us : longest_us;
    n_changed += now.changed_most > 0;
    if (now.changed_most > 0) {
      expect(now.changed_least > 0 && now.changed_least <= now.changed_most, "tune: which rows have changed");
      capture_tuned(captured, now.changed_least, now.changed_most);
    }
    if (n_calls % STEP_EACH == 0)
      test_linear(ns[n_calls / STEP_EACH % 7], 576, (const uint32_t[]){576, 64, 64}, 3, false, false);
  }
  printf("tune: %u of %u algorithms in %u calls, the longest %.1f ms, %.2f s with steps between; %u not the "
         "first; %u buckets changed\n",
         now.n_known, now.n_all, n_calls, (double)longest_us / 1e3, (double)(td_clock_us() - begin_us) / 1e6,
         now.n_not_first, n_changed);
  expect(now.is_done && now.n_known == now.n_all && now.n_measured == now.n_all, "tune: all is measured");
  expect(now.n_not_first == 0 || n_changed > 0, "tune: changes are told");
  for (uint32_t n = 8; n <= MAX_ROWS; n += 8)
    compare_tuned(t, captured, plain, n);
  be->ops->discard(be, captured);
  now = begin_tuning(plain, folder);
  expect(now.is_done && now.n_known == now.n_all && now.n_all > 0, "tune: it is kept");
  be->ops->discard(be, plain);
}

static bool is_written(const char *folder)
{
  char command[300];
  snprintf(command, sizeof command, "ls %s/linears* >/dev/null 2>&1", folder);
  return system(command) == 0;
}

/* Measuring that ends inside a bucket, right after a decision that changed an algorithm, as if tune_ms were
 * over. The change is reported and written, and steps captured with the old algorithm are captured again. */
static void test_tune_ends_early(const tuned *t, const char *folder)
{
  td_error err;
  td_compiled *captured = compile_tuned(t), *plain = compile_tuned(t);
  td_tuning now = begin_tuning(captured, folder);
  capture_tuned(captured, 1, MAX_ROWS);
  while (!now.is_done && (now.n_not_first == 0 || now.changed_most > 0))
    die(be->ops->tune(be, captured, &now, &err), &err, "tune");
  printf("tune: ended early with %u of %u algorithms, %u not the first\n", now.n_known, now.n_all,
         now.n_not_first);
  if (!now.is_done) { /* otherwise every guess is the fastest here, and nothing changes */
    be->ops->tune_end(be, captured, &now);
    expect(now.changed_least > 0 && now.changed_least <= now.changed_most,
           "tune: an early end tells changes");
    expect(is_written(folder), "tune: an early end writes what is decided");
    capture_tuned(captured, now.changed_least, now.changed_most);
  }
  expect(now.is_done, "tune: no more is measured after the end");
  for (uint32_t n = 8; n <= MAX_ROWS; n += 8)
    compare_tuned(t, captured, plain, n);
  uint32_t n_known = now.n_known;
  now = begin_tuning(plain, folder);
  expect(now.n_known == n_known, "tune: what was decided before an early end is kept");
  be->ops->discard(be, captured);
  be->ops->discard(be, plain);
}

/* In one go, with a time limit that allows some decisions but not all: the file is written when the time is
 * up, not only at the end of the program. */
static void test_tune_of_short_time(const tuned *t, const char *folder)
{
  td_error err;
  td_tuning now = {0};
  for (uint32_t ms = 1; now.n_measured == 0 && ms < 100000; ms *= 2) {
    td_compiled *compiled = compile_tuned(t);
    die(td_backend_tune(be, compiled, folder, ms, &now, &err), &err, "tune");
    expect(is_written(folder) == (now.n_measured > 0), "tune: written when its time is over");
    be->ops->discard(be, compiled);
  }
  expect(now.n_measured > 0, "tune: something is measured");
}

/* With batch_invariant one algorithm serves all rows. */
void test_no_tuning(void)
{
  td_weight *w = device_weight(&(td_weight_part){.dtype = TD_BF16, .n_rows = 704, .seed = 5}, 1, 576);
  td_op op = linear_op(w, device_alloc((size_t)MAX_TOKENS * 576 * 4),
                       device_alloc((size_t)MAX_TOKENS * 704 * 4), 576, 704);
  td_compiled *compiled = compile_ops(&op, 1);
  if (be->ops->tune_begin) {
    td_tuning now = begin_tuning(compiled, "");
    expect(now.is_done && now.n_all == 0, "batch rule: nothing is tuned");
  }
  be->ops->discard(be, compiled);
}

void test_tune(bool small)
{
  static const uint32_t ns[] = {8, 9, 16, 17, 40, 63, 64, 100, 129, 256, 300, 513, 777, 1000};
  char folder[] = "/tmp/test_ops_XXXXXX", pieces[] = "/tmp/test_ops_XXXXXX", early[] = "/tmp/test_ops_XXXXXX",
       shortly[] = "/tmp/test_ops_XXXXXX", command[200];
  td_weight_part table = {.dtype = TD_BF16, .n_rows = MAX_ROWS, .seed = 8},
                 wide = {.dtype = TD_BF16, .n_rows = 704, .seed = 5},
                 back = {.dtype = TD_BF16, .n_rows = 576, .seed = 7},
                 head = {.dtype = TD_BF16, .n_rows = 1000, .seed = 6};
  tuned t = {device_weight(&table, 1, 576),
             device_weight(&wide, 1, 576),
             device_weight(&back, 1, 704),
             device_weight(&head, 1, 576),
             device_alloc((size_t)MAX_TOKENS * 576 * 4),
             device_alloc((size_t)MAX_TOKENS * 704 * 4),
             device_alloc((size_t)MAX_ROWS * 1000 * 4)};
  if (!be->ops->tune || !mkdtemp(folder) || !mkdtemp(pieces) || !mkdtemp(early) || !mkdtemp(shortly))
    return;
  for (int round = 0; round < 4; round++) {
    if (round == 2)
      damage_files(folder);
    if (round == 0 || round == 3) /* begun, finished, measured again, only read */
      tune(&t, folder, round == 0 ? 50 : 0);
    else
      tune_until_kept(&t, folder);
    if (round > 0)
      check_kept(folder);
    for (size_t i = 0; i < (small ? 6 : 14); i++)
      test_linear(ns[i], 576, (const uint32_t[]){576, 64, 64}, 3, false, false);
    test_linear(33, 576, (const uint32_t[]){1000}, 1, false, true);
  }
  tune(&t, "/proc/nowhere", 0);
  tune(&t, "", 0);
  test_tune_in_pieces(&t, pieces);
  test_tune_ends_early(&t, early);
  test_tune_of_short_time(&t, shortly);
  snprintf(command, sizeof command, "rm -r %s %s %s %s", folder, pieces, early, shortly);
  if (system(command) != 0)
    printf("FAIL tune: %s\n", command), n_failed++;
}
