/* Speed of the CPU backend alone: the ops of one decoder of SmolLM2-135M's shape (30 layers, width 576, feed-forward
 * 1536, heads 9/3 of 64, vocabulary 49152; Q4_1, output Q8_0) over random weights. Beside each figure stands the floor:
 * weight bytes over the memory bandwidth, multiply-adds over the FMA peak, both measured here and now.
 *
 *   bench_kernels [threads] [dtype of the layers] [seconds per figure] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

enum { LAYERS = 30, WIDTH = 576, FFN = 1536, HEADS = 9, KV_HEADS = 3, DIM = 64, VOCAB = 49152 };
enum { QKV = (HEADS + 2 * KV_HEADS) * DIM, CONTEXT = 1024, MAX_ROWS = 64, MAX_TOKENS = 512 };
enum { PAGE_TOKENS = 16, PAGES_PER_ROW = CONTEXT / PAGE_TOKENS };

typedef enum op { OP_EMBED, OP_NORM, OP_QKV, OP_ROPE, OP_ATTENTION, OP_O, OP_GATE_UP, OP_SWIGLU, OP_DOWN, OP_LOGITS,
                  OP_SAMPLE, OPS } op;
static const char *const op_names[OPS] = {"embed", "norm", "qkv", "rope", "attention", "o", "gate_up", "swiglu", "down",
                                          "logits", "sample"};

typedef struct bench {
  td_backend *be;
  td_plan *plan;
  td_kv *kv;
  td_weight *qkv[LAYERS], *o[LAYERS], *gate_up[LAYERS], *down[LAYERS], *output;
  td_devptr x, h, wide, mid, delta, norm, inv_freq, logits;
  size_t layer_bytes, output_bytes;
  double seconds[OPS], stamp;
} bench;

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Processor time of all threads: what a busy machine still measures well with one thread. */
static double cpu_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const td_error *err)
{
  fprintf(stderr, "bench_kernels: %s\n", err->message);
  exit(1);
}

static void check(td_status st, const td_error *err)
{
  if (st != TD_OK)
    die(err);
}

/* Random integers, small scales: speed does not depend on the values as long as they stay finite. */
static const void *random_matrix(td_dtype t, size_t n_rows, size_t n_cols, size_t *bytes)
{
  static uint64_t seed = 1;
  uint64_t row_bytes = 0;
  if (!td_dtype_row_bytes(t, n_cols, &row_bytes))
    exit(2);
  *bytes += row_bytes * n_rows;
  uint8_t *p = aligned_alloc(64, (row_bytes * n_rows + 63) / 64 * 64);
  if (!p)
    exit(2);
  for (size_t at = 0; at < row_bytes * n_rows; at += td_dtypes[t].block_bytes)
    for (size_t i = 0; i < td_dtypes[t].block_bytes; i++) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      bool high = i % 2 == 1 && (i < 4 || i == 209 || t <= TD_BF16); /* exponents of scales and floats */
      p[at + i] = high && t == TD_F32 ? 0x3a : high ? 0x14 : (uint8_t)(seed >> 56);
    }
  return p;
}

static td_weight *weight(bench *b, td_dtype t, size_t n1, size_t n2, size_t n3, size_t n_cols, size_t *bytes)
{
  td_error err;
  td_weight *w;
  size_t n[3] = {n1, n2, n3};
  td_weight_part parts[3];
  uint32_t n_parts = 0;
  for (; n_parts < 3 && n[n_parts]; n_parts++)
    parts[n_parts] = (td_weight_part){
        .dtype = t, .data = random_matrix(t, n[n_parts], n_cols, bytes), .n_rows = n[n_parts]};
  check(b->be->ops->weight_import(b->be, parts, n_parts, n_cols, &w, &err), &err);
  return w;
}

static td_devptr alloc(bench *b, size_t floats)
{
  td_error err;
  td_devptr p;
  check(b->be->ops->alloc(b->be, floats * sizeof(float), &p, &err), &err);
  return p;
}

static void setup(bench *b, uint32_t n_threads, td_dtype t)
{
  td_error err;
  static int32_t table[MAX_ROWS * PAGES_PER_ROW];
  float ones[WIDTH], inv_freq[DIM / 2];
  td_backend_config c = {.n_threads = n_threads,
                         .max_slots = MAX_ROWS,
                         .max_rows = MAX_ROWS,
                         .max_tokens = MAX_TOKENS,
                         .max_context_tokens = CONTEXT,
                         .max_vocab = VOCAB};
  check(td_backend_create("cpu", &c, &b->be, &err), &err);
  check(td_plan_create(MAX_ROWS, MAX_TOKENS, 1, PAGE_TOKENS, &b->plan, &err), &err);
  for (int i = 0; i < MAX_ROWS * PAGES_PER_ROW; i++)
    table[i] = i;
  b->plan->page_table = table;
  b->plan->page_table_len = MAX_ROWS * PAGES_PER_ROW;
  td_kv_shape kv = {LAYERS, MAX_ROWS * PAGES_PER_ROW, PAGE_TOKENS, KV_HEADS, DIM};
  check(b->be->ops->kv_create(b->be, &kv, &b->kv, &err), &err);
  for (int i = 0; i < LAYERS; i++) {
    b->qkv[i] = weight(b, t, HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM, WIDTH, &b->layer_bytes);
    b->o[i] = weight(b, t, WIDTH, 0, 0, HEADS * DIM, &b->layer_bytes);
    b->gate_up[i] = weight(b, t, FFN, FFN, 0, WIDTH, &b->layer_bytes);
    b->down[i] = weight(b, t, WIDTH, 0, 0, FFN, &b->layer_bytes);
  }
  b->output = weight(b, TD_Q8_0, VOCAB, 0, 0, WIDTH, &b->output_bytes);
  for (int i = 0; i < WIDTH; i++)
    ones[i] = 1;
  for (int i = 0; i < DIM / 2; i++)
    inv_freq[i] = 1.0f / (float)(1 << i % 16);
  check(b->be->ops->upload_f32(b->be, ones, WIDTH, &b->norm, &err), &err);
  check(b->be->ops->upload_f32(b->be, inv_freq, DIM / 2, &b->inv_freq, &err), &err);
  b->x = alloc(b, MAX_TOKENS * WIDTH);
  b->h = alloc(b, MAX_TOKENS * WIDTH);
  b->delta = alloc(b, MAX_TOKENS * WIDTH);
  b->wide = alloc(b, MAX_TOKENS * 2 * FFN);
  b->mid = alloc(b, MAX_TOKENS * FFN);
  b->logits = alloc(b, (size_t)MAX_ROWS * VOCAB);
}

static void lap(bench *b, op o)
{
  double t = now();
  b->seconds[o] += t - b->stamp;
  b->stamp = t;
}

static void linear(bench *b, const td_weight *w, td_devptr x, td_devptr out, uint32_t n, op o)
{
  b->be->ops->linear(b->be, &(td_linear_params){.weight = w, .x = x, .out = out, .n = n});
  lap(b, o);
}

static void norm(bench *b, td_devptr delta)
{
  b->be->ops->rmsnorm(b->be, &(td_rmsnorm_params){b->x, delta, b->norm, b->h, b->plan->n_tokens, WIDTH, 1e-5f});
  lap(b, OP_NORM);
}

static void layer(bench *b, int i)
{
  const td_backend_ops *ops = b->be->ops;
  uint32_t n = b->plan->n_tokens;
  norm(b, i ? b->delta : (td_devptr){0});
  linear(b, b->qkv[i], b->h, b->wide, n, OP_QKV);
  ops->rope_kv(b->be, &(td_rope_kv_params){.qkv = b->wide,
                                           .inv_freq = b->inv_freq,
                                           .attn_factor = 1,
                                           .style = TD_ROPE_PAIRS,
                                           .kv = b->kv,
                                           .layer = (uint32_t)i,
                                           .n_heads = HEADS,
                                           .n_kv_heads = KV_HEADS,
                                           .head_dim = DIM,
                                           .rotary_dim = DIM});
  lap(b, OP_ROPE);
  ops->attention(b->be, &(td_attention_params){.qkv = b->wide,
                                               .out = b->h,
                                               .kv = b->kv,
                                               .scale = 0.125f,
                                               .layer = (uint32_t)i,
                                               .n_heads = HEADS,
                                               .n_kv_heads = KV_HEADS,
                                               .head_dim = DIM});
  lap(b, OP_ATTENTION);
  linear(b, b->o[i], b->h, b->delta, n, OP_O);
  norm(b, b->delta);
  linear(b, b->gate_up[i], b->h, b->wide, n, OP_GATE_UP);
  ops->swiglu(b->be, &(td_swiglu_params){b->wide, b->mid, n, FFN});
  lap(b, OP_SWIGLU);
  linear(b, b->down[i], b->mid, b->delta, n, OP_DOWN);
}

static void step(bench *b)
{
  const td_backend_ops *ops = b->be->ops;
  td_error err;
  int32_t ids[MAX_ROWS];
  b->stamp = now();
  ops->step_begin(b->be, b->plan);
  ops->embed(b->be, &(td_embed_params){b->output, b->x, WIDTH});
  lap(b, OP_EMBED);
  for (int i = 0; i < LAYERS; i++)
    layer(b, i);
  norm(b, b->delta);
  ops->gather(b->be, &(td_gather_params){b->h, b->mid, WIDTH});
  linear(b, b->output, b->mid, b->logits, b->plan->n_logits, OP_LOGITS);
  ops->sample(b->be, &(td_sample_params){b->logits, VOCAB});
  check(ops->step_end(b->be, ids, &err), &err);
  lap(b, OP_SAMPLE);
}

/* n_rows rows of q_len tokens that end at kv_len. */
static void plan_rows(bench *b, uint32_t n_rows, uint32_t q_len, uint32_t kv_len)
{
  td_plan *p = b->plan;
  td_plan_clear(p);
  for (uint32_t r = 0; r < n_rows; r++) {
    p->rows[r] = (td_plan_row){r, p->n_tokens, q_len, kv_len, r * PAGES_PER_ROW, 1};
    p->logits_rows[p->n_logits++] = r;
    for (uint32_t i = 0; i < q_len; i++, p->n_tokens++) {
      p->token_ids[p->n_tokens] = (int32_t)(i * 97 % VOCAB);
      p->positions[p->n_tokens] = (int32_t)(kv_len - q_len + i);
    }
  }
  p->n_rows = n_rows;
}

static double measure(bench *b, uint32_t n_rows, uint32_t q_len, uint32_t kv_len, double seconds)
{
  plan_rows(b, n_rows, q_len, kv_len);
  step(b);
  memset(b->seconds, 0, sizeof b->seconds);
  double begin = now(), cpu_begin = cpu_now(), best = 1e9;
  int n = 0;
  do {
    double t = now();
    step(b);
    t = now() - t;
    best = t < best ? t : best;
    n++;
  } while (now() - begin < seconds || n < 3);
  double tokens = n_rows * q_len, total = now() - begin, cpu = cpu_now() - cpu_begin;
  double floor_bytes = (double)(b->layer_bytes + b->output_bytes);
  printf("%4u x %-4u %8.1f tok/s mean %8.1f best %8.1f per cpu second  (%.2f ms; weights at %.1f GB/s)\n     ", n_rows,
         q_len, tokens * n / total, tokens / best, tokens * n / cpu, best * 1e3, floor_bytes / best * 1e-9);
  for (int o = 0; o < OPS; o++)
    printf(" %s %.1f%%", op_names[o], 100 * b->seconds[o] / total);
  printf("\n");
  return best;
}

int main(int argc, char **argv)
{
  bench b = {0};
  uint32_t n_threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
  td_dtype t = TD_Q4_1;
  double seconds = argc > 3 ? atof(argv[3]) : 2;
  for (td_dtype i = 0; argc > 2 && i < TD_DTYPE_COUNT; i++)
    if (strcmp(argv[2], td_dtypes[i].name) == 0)
      t = i;
  setup(&b, n_threads, t);
  printf("%s layers %.1f MB, output %.1f MB\n", td_dtypes[t].name, (double)b.layer_bytes * 1e-6, (double)b.output_bytes * 1e-6);
  static const uint32_t rows[] = {1, 2, 3, 4, 6, 8, 12, 16, 32};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    measure(&b, rows[i], 1, 128, seconds);
  measure(&b, 1, 128, 128, seconds);
  measure(&b, 1, 512, 512, seconds);
  b.be->ops->destroy(b.be);
  return 0;
}
