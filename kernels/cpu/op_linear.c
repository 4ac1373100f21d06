/* Linears: chooses the loop, and splits output features over the threads. Neither choice changes a bit.
 *
 * Parts of quantised types use int8 activations if the backend is configured so. All other parts use
 * floats. */
#include <string.h>

#include "common/checked.h"
#include "common/host_memory.h"
#include "kernels/cpu/cpu.h"

enum {
  ROUND_TOKENS = 8,     /* fewer tokens are not worth another thread */
  TASKS_PER_THREAD = 4, /* so that a delayed thread leaves work to the others */
};
_Static_assert((int)TD_INT8_DIRECT_TOKENS == (int)TD_ISA_DIRECT_TOKENS,
               "one choice serves both kinds of parts");

/* Rows are shared out in tiles of tile_rows; the last tile of a part may have fewer. */
typedef struct linear_job {
  cpu_backend *be;
  const td_cpu_weight *weight;
  const float *x;
  uint32_t x_stride, n_tokens;
  const td_int8_strip *rounded; /* x rounded to int8, if a part needs it */
  float *out;
  bool add;
  uint32_t tile_rows, n_tiles, n_tasks;
} linear_job;

typedef void part_fn(const linear_job *j, const cpu_part *part, uint32_t begin, uint32_t end,
                     uint32_t thread);

static uint32_t tiles_of(const linear_job *j, const cpu_part *part)
{
  return (uint32_t)td_div_ceil_u64(part->n_rows, j->tile_rows);
}

/* Tasks differ by at most one tile and may hold rows of several parts. With a short task at the end, or at
 * the end of each part, some threads would wait for the others. */
static void run_task(const linear_job *j, uint32_t task, uint32_t thread, part_fn *fn)
{
  uint32_t begin = (uint32_t)((uint64_t)j->n_tiles * task / j->n_tasks);
  uint32_t end = (uint32_t)((uint64_t)j->n_tiles * (task + 1) / j->n_tasks);
  for (uint32_t i = 0, first = 0; first < end; i++) {
    const cpu_part *part = &j->weight->parts[i];
    uint32_t next = first + tiles_of(j, part);
    if (begin < next) {
      uint32_t row_begin = (begin - first) * j->tile_rows;
      fn(j, part, row_begin, next <= end ? part->n_rows : (end - first) * j->tile_rows, thread);
      begin = next;
    }
    first = next;
  }
}

static bool is_int8(const linear_job *j, const cpu_part *part)
{
  return j->be->int8 && td_int8_serves(part->dtype);
}

/* ---- packing ---- */

/* A part is packed before it is first multiplied, not when it is imported, because then the total size is
 * known. */
typedef struct pack_job {
  const cpu_backend *be;
  const cpu_part *part;
  uint32_t n_strips;
  size_t group_bytes;
  uint8_t *out;
} pack_job;

uint64_t td_cpu_packed_bytes(const cpu_backend *be, const cpu_part *part, uint32_t n_strips)
{
  if (!be->int8 || !be->int8->lanes || !td_int8_serves(part->dtype))
    return 0;
  return td_div_ceil_u64(part->n_rows, be->int8->lanes) *
         td_int8_group_bytes(part->dtype, n_strips, be->int8->lanes);
}

static void pack_groups(void *arg, uint32_t begin, uint32_t end)
{
  const pack_job *j = arg;
  const cpu_part *part = j->part;
  uint32_t lanes = j->be->int8->lanes;
  for (uint32_t g = begin; g < end; g++) {
    uint32_t row = g * lanes, left = part->n_rows - row;
    td_int8_pack(part->dtype, part->data + row * part->row_bytes, part->row_bytes,
                 left < lanes ? left : lanes, j->n_strips, lanes, j->out + g * j->group_bytes);
  }
}

static td_status pack_part(cpu_backend *be, cpu_part *part, uint32_t n_strips, td_error *err)
{
  enum { GROUPS_PER_TASK = 16 };
  uint64_t bytes = td_cpu_packed_bytes(be, part, n_strips), room = 0;
  TD_BUG_ON(part->is_looked_up);
  if (bytes == 0 || part->packed)
    return TD_OK;
  if (bytes > be->pack_room) { /* One block for all parts gets large pages; a block for one part might not. */
    room = td_host_available_bytes();
    be->pack_room = room == 0 || be->unpacked_bytes <= room ? be->unpacked_bytes : 0;
    be->pack_next = be->pack_room ? td_cpu_alloc(be, be->pack_room, 1) : NULL;
  }
  uint8_t *out = be->pack_next;
  if (!out)
    return td_fail_param(err, TD_ERR_NOMEM, "cpu_exact",
                         "no memory for weights as they are multiplied with cpu_exact 0: %.0f MiB more are "
                         "needed, %.0f MiB are free; cpu_exact 1 uses them where the file is mapped",
                         (double)be->unpacked_bytes / 0x1p20, (double)room / 0x1p20);
  pack_job j = {be, part, n_strips, td_int8_group_bytes(part->dtype, n_strips, be->int8->lanes), out};
  td_cpu_for(be, (uint32_t)td_div_ceil_u64(part->n_rows, be->int8->lanes), GROUPS_PER_TASK, pack_groups, &j);
  part->packed = out;
  be->pack_next += bytes;
  be->pack_room -= bytes;
  be->unpacked_bytes -= bytes;
  return TD_OK;
}

td_status td_cpu_pack_weight(cpu_backend *be, const td_weight *weight, td_error *err)
{
  td_cpu_weight *w = (td_cpu_weight *)weight; /* const for programs; the backend owns it and may change it */
  for (uint32_t i = 0; i < w->base.n_parts; i++)
    TD_TRY(pack_part(be, &w->parts[i], w->n_strips, err));
  return TD_OK;
}

/* ---- linears ---- */

/* Describes the rows of one task for the float loops. */
static td_isa_linear task_rows(const linear_job *j, const cpu_part *part, uint32_t begin, uint32_t end)
{
  return (td_isa_linear){
      .dtype = part->dtype,
      .weight = part->data,
      .row_bytes = part->row_bytes,
      .row_begin = begin,
      .row_end = end,
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

/* Describes the rows of one task for the int8 loops. */
static td_int8_linear task_int8(const linear_job *j, const cpu_part *part, uint32_t begin, uint32_t end)
{
  return (td_int8_linear){
      .dtype = part->dtype,
      .weight = part->packed ? part->packed : part->data,
      .row_bytes = part->row_bytes,
      .row_begin = begin,
      .row_end = end,
      .n_strips = j->weight->n_strips,
      .n_tokens = j->n_tokens,
      .x = j->rounded,
      .out = j->out + part->first_out,
      .out_stride = j->weight->base.n_out,
      .bias = part->bias,
      .add = j->add,
  };
}

/* Each thread gets a few long runs of rows, because each task has to start reading weights. */
static void split_rows(linear_job *j, uint32_t tile_rows)
{
  uint32_t most = td_thread_pool_threads(j->be->pool) * TASKS_PER_THREAD;
  j->tile_rows = tile_rows;
  j->n_tiles = 0;
  for (uint32_t i = 0; i < j->weight->base.n_parts; i++)
    j->n_tiles += tiles_of(j, &j->weight->parts[i]);
  j->n_tasks = j->n_tiles < most ? j->n_tiles : most;
}

static void direct_part(const linear_job *j, const cpu_part *part, uint32_t begin, uint32_t end,
                        uint32_t thread)
{
  if (is_int8(j, part)) {
    td_int8_linear p = task_int8(j, part, begin, end);
    j->be->int8->direct(&p);
    return;
  }
  td_isa_linear p = task_rows(j, part, begin, end);
  j->be->isa->linear_direct(&p);
}

static void direct_task(void *arg, uint32_t task, uint32_t thread)
{
  run_task(arg, task, thread, direct_part);
}

static void panel_part(const linear_job *j, const cpu_part *part, uint32_t begin, uint32_t end,
                       uint32_t thread)
{
  if (is_int8(j, part)) {
    td_int8_linear p = task_int8(j, part, begin, end);
    p.panel = j->be->panels[thread];
    j->be->int8->panel(&p);
    return;
  }
  td_isa_linear p = task_rows(j, part, begin, end);
  p.panel = j->be->panels[thread];
  j->be->isa->linear_panel(&p);
}

static void panel_task(void *arg, uint32_t task, uint32_t thread) { run_task(arg, task, thread, panel_part); }

static void pack_tiles(void *arg, uint32_t begin, uint32_t end)
{
  linear_job *j = arg;
  const td_cpu_weight *w = j->weight;
  size_t tile_floats = (size_t)j->be->isa->tile_tokens * w->n_strips * 32;
  for (uint32_t i = begin; i < end; i++)
    j->be->isa->pack(j->x, j->n_tokens, w->base.n_in, w->n_strips, i, j->be->packed + i * tile_floats);
}

/* Direct loops read whole strips of x. Rows that end inside a strip are copied and padded. */
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

static void round_tokens(void *arg, uint32_t begin, uint32_t end)
{
  const linear_job *j = arg;
  uint32_t n_cols = j->weight->base.n_in;
  for (uint32_t t = begin; t < end; t++)
    j->be->int8->round(j->x + (size_t)t * n_cols, n_cols, j->be->rounded + (size_t)t * j->weight->n_strips);
}

/* A weight may have parts of both kinds. Its activations are then prepared for both. */
static void count_kinds(const linear_job *j, bool *any_int8, bool *any_float)
{
  *any_int8 = *any_float = false;
  for (uint32_t i = 0; i < j->weight->base.n_parts; i++)
    *(is_int8(j, &j->weight->parts[i]) ? any_int8 : any_float) = true;
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
  bool any_int8, any_float, is_direct = n <= TD_ISA_DIRECT_TOKENS;
  uint32_t tile_rows = is_direct ? 16 : TD_ISA_PANEL_ROWS;
  count_kinds(&j, &any_int8, &any_float);
  if (any_int8) {
    td_cpu_for(be, n, ROUND_TOKENS, round_tokens, &j);
    j.rounded = be->rounded;
    uint32_t rows = is_direct ? be->int8->lanes : be->int8->tile_rows;
    tile_rows = rows > tile_rows ? rows : tile_rows;
  }
  if (any_float && is_direct && w->base.n_in % 32)
    pad_rows(&j);
  if (any_float && !is_direct) {
    td_cpu_for(be, (uint32_t)td_div_ceil_u64(n, be->isa->tile_tokens), 8, pack_tiles, &j);
    j.x = be->packed;
  }
  split_rows(&j, tile_rows);
  td_thread_pool_run(be->pool, is_direct ? direct_task : panel_task, &j, j.n_tasks);
}
