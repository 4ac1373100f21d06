/* Products: which loop runs, and how output features are split over the threads. Neither changes a bit. */
#include <string.h>

#include "common/checked.h"
#include "kernels/cpu/cpu.h"

enum {
  DIRECT_TOKENS_MAX = TD_ISA_DIRECT_TOKENS, /* more tokens than this: panels (measured: README.md) */
  TASKS_PER_THREAD = 6,                     /* so that a thread that was held up leaves work to the others */
};

typedef struct linear_job {
  cpu_backend *be;
  const td_cpu_weight *weight;
  const float *x;
  uint32_t x_stride, n_tokens;
  float *out;
  bool add;
  uint32_t rows_per_task;
  uint32_t first_task[TD_WEIGHT_PARTS_MAX]; /* of each part */
} linear_job;

/* Rows of one task, as the loops want them. */
static td_isa_linear task_rows(const linear_job *j, uint32_t task)
{
  uint32_t i = j->weight->base.n_parts - 1;
  while (task < j->first_task[i])
    i--;
  const cpu_part *part = &j->weight->parts[i];
  uint32_t begin = (task - j->first_task[i]) * j->rows_per_task;
  return (td_isa_linear){
      .dtype = part->dtype,
      .weight = part->data,
      .row_bytes = part->row_bytes,
      .row_begin = begin,
      .row_end = part->n_rows - begin < j->rows_per_task ? part->n_rows : begin + j->rows_per_task,
      .n_cols = j->weight->base.n_in,
      .n_strips = j->weight->n_strips,
      .n_tokens = j->n_tokens,
      .x = j->x,
      .x_stride = j->x_stride,
      .out = j->out + part->first_out,
      .out_stride = j->weight->base.n_out,
      .bias = part->bias,
      .add = j->add,
  };
}

static uint32_t split_rows(linear_job *j, uint32_t rows_per_task)
{
  uint32_t n = 0;
  j->rows_per_task = rows_per_task;
  for (uint32_t i = 0; i < j->weight->base.n_parts; i++) {
    j->first_task[i] = n;
    n += (uint32_t)td_div_ceil_u64(j->weight->parts[i].n_rows, rows_per_task);
  }
  return n;
}

/* A multiple of `step`; long runs of rows, since each task starts reading weights anew. */
static uint32_t rows_per_task(const cpu_backend *be, uint32_t n_out, uint32_t step)
{
  uint64_t rows = td_div_ceil_u64(n_out, (uint64_t)td_pool_threads(be->pool) * TASKS_PER_THREAD);
  return (uint32_t)td_div_ceil_u64(rows, step) * step;
}

static void direct_task(void *arg, uint32_t task, uint32_t thread)
{
  const linear_job *j = arg;
  td_isa_linear p = task_rows(j, task);
  /* groups of nearly equal size: 5 tokens are 3 + 2 */
  uint32_t left = j->n_tokens, groups = (left + TD_ISA_DIRECT_TOKENS - 1) / TD_ISA_DIRECT_TOKENS;
  for (; groups > 0; groups--) {
    p.n_tokens = (left + groups - 1) / groups;
    j->be->isa->linear_direct(&p);
    p.x += (size_t)p.n_tokens * p.x_stride;
    p.out += p.n_tokens * p.out_stride;
    left -= p.n_tokens;
  }
}

static void panel_task(void *arg, uint32_t task, uint32_t thread)
{
  const linear_job *j = arg;
  td_isa_linear p = task_rows(j, task);
  p.panel = j->be->panels[thread];
  j->be->isa->linear_panel(&p);
}

static void pack_tiles(void *arg, uint32_t begin, uint32_t end)
{
  linear_job *j = arg;
  const td_cpu_weight *w = j->weight;
  size_t tile_floats = (size_t)j->be->isa->tile_tokens * w->n_strips * 32;
  for (uint32_t i = begin; i < end; i++)
    j->be->isa->pack(j->x, j->n_tokens, w->base.n_in, w->n_strips, i, j->be->packed + i * tile_floats);
}

/* Direct loops read whole strips of x: rows that end inside one are copied and padded. */
static void pad_rows(linear_job *j)
{
  uint32_t n_cols = j->weight->base.n_in, padded = j->weight->n_strips * 32;
  for (uint32_t t = 0; t < j->n_tokens; t++) {
    float *dst = j->be->packed + (size_t)t * padded;
    memcpy(dst, j->x + (size_t)t * n_cols, n_cols * sizeof *dst);
    memset(dst + n_cols, 0, (padded - n_cols) * sizeof *dst);
  }
  j->x = j->be->packed;
  j->x_stride = padded;
}

void td_cpu_linear(cpu_backend *be, const td_linear_params *p, uint32_t n)
{
  const td_cpu_weight *w = cpu_weight(p->weight);
  linear_job j = {.be = be,
                  .weight = w,
                  .x = cpu_floats(p->x),
                  .x_stride = w->base.n_in,
                  .n_tokens = n,
                  .out = cpu_floats(p->out),
                  .add = p->add};
  if (n <= DIRECT_TOKENS_MAX) {
    if (w->base.n_in % 32)
      pad_rows(&j);
    td_pool_run(be->pool, direct_task, &j, split_rows(&j, rows_per_task(be, w->base.n_out, 16)));
    return;
  }
  uint32_t n_tiles = (uint32_t)td_div_ceil_u64(n, be->isa->tile_tokens);
  td_cpu_for(be, n_tiles, 8, pack_tiles, &j);
  j.x = be->packed;
  td_pool_run(be->pool, panel_task, &j, split_rows(&j, rows_per_task(be, w->base.n_out, TD_ISA_PANEL_ROWS)));
}
