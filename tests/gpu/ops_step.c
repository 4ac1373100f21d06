/* See ops_step.h. */
#include "ops_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "ops_harness.h"
#include "ops_watch.h"

enum { VOCAB = 96, WIDTH = 64 };

/* A row of the harness's plan. Its last n_logits tokens have logits: they are scored, and the last one is
 * sampled. */
static void add_row(td_plan *p, uint32_t slot, uint32_t q_len, uint32_t kv_len, uint32_t n_logits)
{
  uint32_t r = p->n_rows++;
  p->rows[r] = (td_plan_row){.slot = slot, .q_start = p->n_tokens, .q_len = q_len, .kv_len = kv_len};
  for (uint32_t i = 0; i < q_len; i++) {
    p->token_ids[p->n_tokens] = (int32_t)((slot * 31 + i * 7) % VOCAB);
    p->positions[p->n_tokens++] = (int32_t)(kv_len - q_len + i);
  }
  for (uint32_t i = n_logits; i > 0; i--)
    td_plan_add_logits(p, r, q_len - i, i == 1 ? TD_SAMPLE_HERE : (int32_t)(i % VOCAB));
}

/* Plans without pages. */
static void begin(td_plan *p)
{
  td_plan_clear(p);
  p->page_tokens = 16;
  p->page_table_len = 0;
}

static void test_gather(uint32_t width)
{
  char what[80];
  begin(plan);
  add_row(plan, 3, 1, 9, 1);
  add_row(plan, 1, 30, 30, 20);
  add_row(plan, 2, 7, 19, 0);
  add_row(plan, 0, 5, 5, 5);
  float *x = random_values((size_t)plan->n_tokens * width, 1);
  double *want = malloc((size_t)plan->n_logits * width * sizeof *want);
  for (uint32_t i = 0; i < plan->n_logits; i++)
    for (uint32_t k = 0; k < width; k++)
      want[(size_t)i * width + k] = (double)x[(size_t)plan->logits[i].token * width + k];
  td_devptr out = device_alloc((size_t)plan->n_logits * width * be->activation_bytes);
  td_gather_params p = {.x = activations(x, plan->n_tokens, width), .out = out, .width = width};
  run_ops(&(td_op){.kind = TD_OP_GATHER, .extent = TD_EXTENT_LOGITS, .gather = p}, 1);
  float *got = fetch(out, (size_t)plan->n_logits * width, false);
  snprintf(what, sizeof what, "gather of %u tokens, width %u", plan->n_logits, width);
  check(what, got, want, (size_t)plan->n_logits * width, 0);
  free(x), free(want), free(got);
}

/* Three sequences in chunks: the same bits as token by token, compared with f64. */
static void test_pool(uint32_t width, td_pooling pooling)
{
  static const uint32_t lengths[] = {9, 1, 33}, slots[] = {2, 0, 5};
  enum { N = 3, SLOTS = 6 };
  char what[80];
  float *x[N];
  double *want = calloc((size_t)SLOTS * width, sizeof *want);
  td_devptr sums = device_alloc((size_t)SLOTS * width * 8), out = device_alloc((size_t)SLOTS * width * 4);
  for (uint32_t s = 0; s < N; s++) {
    x[s] = random_values((size_t)lengths[s] * width, 1);
    for (uint32_t i = 0; i < width; i++) {
      double sum = 0;
      for (uint32_t t = 0; t < lengths[s]; t++)
        sum += (double)x[s][(size_t)t * width + i];
      want[(size_t)slots[s] * width + i] = pooling == TD_POOL_MEAN
                                               ? (double)(float)(sum / lengths[s])
                                               : (double)x[s][(size_t)(lengths[s] - 1) * width + i];
    }
  }
  uint32_t done[N] = {0};
  for (uint32_t step = 0; step < 4; step++) {
    float *rows = malloc((size_t)64 * width * sizeof *rows);
    begin(plan);
    for (uint32_t s = 0; s < N; s++) {
      uint32_t left = lengths[s] - done[s], q = left < 1 + 5 * (s + step) ? left : 1 + 5 * (s + step);
      if (q == 0)
        continue;
      memcpy(rows + (size_t)plan->n_tokens * width, x[s] + (size_t)done[s] * width,
             (size_t)q * width * sizeof *rows);
      done[s] += q;
      add_row(plan, slots[s], q, done[s], 0);
    }
    if (plan->n_rows > 0) {
      td_pool_params p = {activations(rows, plan->n_tokens, width), sums, out, width, pooling};
      run_ops(&(td_op){.kind = TD_OP_POOL, .extent = TD_EXTENT_ROWS, .pool = p}, 1);
    }
    free(rows);
  }
  float *got = fetch(out, (size_t)SLOTS * width, true);
  snprintf(what, sizeof what, "pool %s, width %u", pooling == TD_POOL_MEAN ? "mean" : "last", width);
  check(what, got, want, (size_t)SLOTS * width, 0);
  expect(done[0] == lengths[0] && done[2] == lengths[2], "all chunks were pooled");
  for (uint32_t s = 0; s < N; s++)
    free(x[s]);
  free(want), free(got);
}

/* ---- a chain of tokens: the next is the best of head x embedding ---- */

typedef struct chain {
  td_compiled *forward, *sampling;
  int32_t next[VOCAB];
} chain;

static chain make_chain(void)
{
  static float table[VOCAB * WIDTH], head[VOCAB * WIDTH];
  static uint16_t bits[2][VOCAB * WIDTH];
  chain c;
  random_fill(table, VOCAB * WIDTH, 1);
  random_fill(head, VOCAB * WIDTH, 1);
  for (uint32_t i = 0; i < VOCAB * WIDTH; i++) {
    bits[0][i] = td_f32_to_bf16(table[i]);
    bits[1][i] = td_f32_to_bf16(head[i]);
  }
  for (uint32_t t = 0; t < VOCAB; t++) {
    double best = -1e30;
    for (uint32_t v = 0; v < VOCAB; v++) {
      double sum = 0;
      for (uint32_t k = 0; k < WIDTH; k++)
        sum += (double)table[t * WIDTH + k] * (double)head[v * WIDTH + k];
      if (sum > best) {
        best = sum;
        c.next[t] = (int32_t)v;
      }
    }
  }
  td_weight_part parts[2] = {{.dtype = TD_BF16, .data = bits[0], .n_rows = VOCAB},
                             {.dtype = TD_BF16, .data = bits[1], .n_rows = VOCAB}};
  td_devptr x = device_alloc(MAX_TOKENS * WIDTH * be->activation_bytes),
            last = device_alloc(MAX_ROWS * WIDTH * be->activation_bytes),
            logits = device_alloc(MAX_ROWS * VOCAB * 4);
  td_embed_params embed = {.weight = device_weight(&parts[0], 1, WIDTH), .out = x, .width = WIDTH};
  td_gather_params gather = {x, last, WIDTH};
  td_linear_params linear = {.weight = device_weight(&parts[1], 1, WIDTH),
                             .x = last,
                             .out = logits,
                             .n_in = WIDTH,
                             .n_out = VOCAB,
                             .out_f32 = true};
  const td_op ops[] = {{.kind = TD_OP_EMBED, .embed = embed},
                       {.kind = TD_OP_GATHER, .extent = TD_EXTENT_LOGITS, .gather = gather},
                       {.kind = TD_OP_LINEAR, .extent = TD_EXTENT_LOGITS, .linear = linear}};
  c.forward = compile_ops(ops, 3);
  c.sampling =
      compile_ops(&(td_op){.kind = TD_OP_SAMPLE, .extent = TD_EXTENT_LOGITS, .sample = {logits, VOCAB}}, 1);
  for (uint32_t i = 0; i < MAX_SLOTS; i++)
    be->ops->set_sampling(be, i, &(td_sampling){.top_p = 1});
  return c;
}

static td_outcome wait_for(void)
{
  td_error err;
  td_outcome out;
  die(watch_wait(be, plan, &out, &err), &err, "step");
  return out;
}

/* Entries that are scored or late have no id; the others have theirs, whatever else is in the step. */
static void test_who_is_sampled(const chain *c)
{
  uint8_t late[MAX_ROWS] = {0};
  begin(plan);
  for (uint32_t slot = 0; slot < 9; slot++)
    add_row(plan, slot, 4, 4, slot % 4);
  for (uint32_t i = 0; i < plan->n_logits; i++)
    late[i] = plan->logits[i].row % 3 == 1;
  td_backend_submit(be, c->forward, plan);
  td_backend_sample(be, c->sampling, &(td_sample_input){.late = late});
  td_outcome out = wait_for();
  bool right = out.n_logits == plan->n_logits;
  for (uint32_t i = 0; i < plan->n_logits && right; i++) {
    bool samples = plan->logits[i].target == TD_SAMPLE_HERE && !late[i];
    int32_t token = plan->token_ids[plan->logits[i].token];
    right &= out.n_ids[i] == samples;
    right &= out.flags[i] == (plan->logits[i].target == TD_SAMPLE_HERE && late[i] ? TD_LOGITS_LATE : 0);
    right &= !samples || out.ids[i * TD_STEP_IDS] == c->next[token];
  }
  expect(right, "scored and late entries are not sampled, the others are");
}

/* Submit 1, sample 1, submit 2, wait 1, sample 2, wait 2: step 2 reads the tokens of step 1 on the device,
 * except for a late row, which computes its token again. */
static void test_running_ahead(const chain *c)
{
  enum { ROWS = 12, LATE = 3, STEPS = 40 };
  td_error err;
  td_plan *plans[2] = {plan, NULL};
  uint8_t late[2][ROWS] = {{0}};
  int32_t token[ROWS], known[ROWS];
  bool right = true;
  die(td_plan_create(MAX_ROWS, MAX_TOKENS, MAX_ROWS, 1, 16, &plans[1], &err), &err, "plan");
  for (uint32_t r = 0; r < ROWS; r++)
    token[r] = known[r] = (int32_t)(r * 5 % VOCAB);
  for (uint32_t step = 0; step <= STEPS; step++) {
    td_plan *p = plans[step % 2];
    uint8_t *now = late[step % 2], *before = late[step % 2 ^ 1];
    begin(p);
    for (uint32_t r = 0; r < ROWS; r++) {
      add_row(p, r, 1, 1 + step, 1);
      p->token_ids[r] = step == 0 || before[r] ? known[r] : -1 - (int32_t)r;
      now[r] = r >= ROWS - LATE && (step + r) % 2;
    }
    td_backend_submit(be, c->forward, p);
    if (step > 0) { /* the outcome of the step before, while this forward runs */
      td_outcome out = wait_for();
      for (uint32_t r = 0; r < ROWS; r++) {
        right &= out.n_ids[r] != before[r] && (before[r] || out.ids[r * TD_STEP_IDS] == c->next[token[r]]);
        token[r] = before[r] ? token[r] : c->next[token[r]];
        known[r] = token[r];
      }
    }
    td_backend_sample(be, c->sampling, &(td_sample_input){.late = now});
  }
  wait_for();
  expect(right, "a forward runs ahead of its sampling");
  td_plan_destroy(plans[1]);
}

/* Late sampling leaves the device idle: that does not count as the step's time, however slow the device is (a
 * sanitizer may be running). */
static void test_times(const chain *c)
{
  enum { HOST_US = 30000 };
  begin(plan);
  for (uint32_t slot = 0; slot < 9; slot++)
    add_row(plan, slot, 1, 5, 1);
  td_backend_queue_step(be, c->forward, c->sampling, plan);
  wait_for();
  uint64_t submit_us = td_clock_us();
  td_backend_submit(be, c->forward, plan);
  while (!td_backend_forward_ended(be))
    ;
  uint64_t ended_us = td_clock_us();
  usleep(HOST_US);
  uint64_t waited_us = td_clock_us() - ended_us;
  td_backend_sample(be, c->sampling, NULL);
  td_outcome out = wait_for();
  uint64_t wall_us = td_clock_us() - submit_us;
  bool known = strcmp(be->ops->name, "cpu") != 0;
  if (known && !(out.busy_us > 0 && out.busy_us <= wall_us - waited_us && out.idle_us >= waited_us))
    printf("busy %.0f us, idle %.0f of %llu, of which the host waited %llu\n", (double)out.busy_us,
           (double)out.idle_us, (unsigned long long)wall_us, (unsigned long long)waited_us);
  expect(known ? out.busy_us > 0 && out.busy_us <= wall_us - waited_us && out.idle_us >= waited_us
               : out.busy_us == 0 && out.idle_us == 0,
         "waiting for the host is not the device's time");
}

void test_steps(void)
{
  test_gather(64);
  test_gather(4096);
  test_pool(64, TD_POOL_MEAN);
  test_pool(1000, TD_POOL_MEAN);
  test_pool(4096, TD_POOL_LAST);
  chain c = make_chain();
  test_who_is_sampled(&c);
  if (be->pipeline_depth > 1)
    test_running_ahead(&c);
  test_times(&c);
  be->ops->discard(be, c.forward);
  be->ops->discard(be, c.sampling);
}
