/* Pooling: makes a vector for each sequence from its tokens, chunk by chunk. */
#include <string.h>

#include "kernels/cpu/cpu.h"

typedef struct pool_job {
  const td_plan *plan;
  const td_pool_params *p;
} pool_job;

static void pool_row(const td_plan_row *row, const td_pool_params *p, uint32_t begin, uint32_t end)
{
  const float *x = cpu_floats(p->x) + (size_t)row->q_start * p->width,
              *last = x + (row->q_len - 1) * (size_t)p->width;
  float *out = cpu_floats(p->out) + (size_t)row->slot * p->width;
  if (p->pooling == TD_POOL_LAST) {
    memcpy(out + begin, last + begin, (end - begin) * sizeof *out);
    return;
  }
  double *sums = (double *)p->sums.addr + (size_t)row->slot * p->width;
  for (uint32_t i = begin; i < end && row->q_len == row->kv_len; i++)
    sums[i] = 0;
  for (uint32_t t = 0; t < row->q_len; t++, x += p->width)
    for (uint32_t i = begin; i < end; i++)
      sums[i] += (double)x[i];
  for (uint32_t i = begin; i < end; i++)
    out[i] = (float)(sums[i] / row->kv_len);
}

static void pool_elements(void *arg, uint32_t begin, uint32_t end)
{
  const pool_job *j = arg;
  for (uint32_t r = 0; r < j->plan->n_rows; r++)
    pool_row(&j->plan->rows[r], j->p, begin, end);
}

void td_cpu_pool(cpu_backend *be, const td_pool_params *p, uint32_t n_rows)
{
  enum { ELEMENTS_PER_TASK = 512 };
  pool_job j = {be->plan, p};
  TD_BUG_ON(p->pooling == TD_POOL_MEAN && !p->sums.addr);
  td_cpu_for(be, p->width, ELEMENTS_PER_TASK, pool_elements, &j);
}
