/* Steps made by hand: see trial.h. */
#include "engine/trial.h"

#include <stdlib.h>

#include "common/clock.h"

/* Pages in use lie scattered after a while; the same in every start. */
static void scatter(int32_t *pages, uint32_t n)
{
  uint64_t random = 5;
  for (uint32_t i = 0; i < n; i++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    uint32_t k = (uint32_t)((random >> 33) % (i + 1));
    pages[i] = pages[k];
    pages[k] = (int32_t)i;
  }
}

td_status td_trial_init(td_trial *t, td_stepper by, uint32_t page_tokens, uint32_t n_pages,
                        uint32_t max_kv_tokens, td_error *err)
{
  static const td_sampling greedy = {.top_p = 1};
  uint32_t max_rows = by.backend->max_rows;
  *t = (td_trial){.by = by, .page_tokens = page_tokens, .n_pages = n_pages};
  t->stripe_pages = (max_kv_tokens + page_tokens - 1) / page_tokens;
  uint32_t n_entries = max_rows * t->stripe_pages;
  TD_TRY(td_plan_create(max_rows, by.backend->max_tokens, by.backend->max_logits, n_entries, page_tokens,
                        &t->plan, err));
  t->table = calloc(n_entries, sizeof *t->table);
  t->pages = calloc(n_pages, sizeof *t->pages);
  if (!t->table || !t->pages)
    return td_fail(err, TD_ERR_NOMEM, "no memory for steps to measure");
  scatter(t->pages, n_pages);
  t->plan->page_table = t->table;
  t->plan->page_table_len = n_entries;
  for (uint32_t i = 0; i < max_rows; i++) /* every request brings its own later */
    by.backend->ops->set_sampling(by.backend, i, &greedy);
  return TD_OK;
}

void td_trial_deinit(td_trial *t)
{
  td_plan_destroy(t->plan);
  free(t->table);
  free(t->pages);
}

/* ---- plans ---- */

void td_trial_begin(td_trial *t)
{
  td_plan_clear(t->plan);
  t->next_page = 0;
}

static bool add_row(td_trial *t, uint32_t q_len, uint32_t kv_len)
{
  td_plan *p = t->plan;
  uint32_t n_pages = (kv_len + t->page_tokens - 1) / t->page_tokens, r = p->n_rows;
  if (r == p->max_rows || q_len > p->max_tokens - p->n_tokens || n_pages > t->stripe_pages ||
      n_pages > t->n_pages - t->next_page)
    return false;
  p->rows[r] = (td_plan_row){.slot = r,
                             .q_start = p->n_tokens,
                             .q_len = q_len,
                             .kv_len = kv_len,
                             .page_table_offset = r * t->stripe_pages};
  td_plan_add_sample(p, r);
  p->n_rows++;
  for (uint32_t i = 0; i < n_pages; i++) {
    uint32_t entry = r * t->stripe_pages + i;
    t->table[entry] = t->pages[t->next_page++];
    p->page_updates[p->n_page_updates++] = (td_plan_page_update){entry, t->table[entry]};
  }
  for (uint32_t i = 0; i < q_len; i++, p->n_tokens++) {
    p->token_ids[p->n_tokens] = (int32_t)((r * 131 + i * 7) % t->by.vocab);
    p->positions[p->n_tokens] = (int32_t)(kv_len - q_len + i);
  }
  if (q_len == 1 && p->n_decode_rows == r)
    p->n_decode_rows++;
  else
    p->n_prefill_tokens += q_len;
  return true;
}

bool td_trial_add(td_trial *t, uint32_t n_rows, uint32_t q_len, uint32_t kv_len)
{
  for (uint32_t i = 0; i < n_rows; i++)
    if (!add_row(t, q_len, kv_len))
      return false;
  return true;
}

/* ---- steps ---- */

static void submit(td_trial *t)
{
  td_backend_queue_step(t->by.backend, t->by.forward, t->by.sampling, t->plan);
  t->plan->n_page_updates = 0; /* they are there now */
}

static td_status wait(td_trial *t, td_error *err)
{
  td_outcome ignored;
  return td_backend_wait(t->by.backend, &ignored, err);
}

td_status td_trial_run(td_trial *t, double *us, td_error *err)
{
  td_plan *p = t->plan;
  uint64_t begin_us = td_clock_us();
  submit(t);
  if (t->by.backend->pipeline_depth > 1 && p->n_decode_rows == p->n_rows) {
    for (uint32_t i = 0; i < p->n_rows; i++)
      p->token_ids[p->rows[i].q_start] = -1 - (int32_t)i; /* what the step before sampled */
    submit(t);
    TD_TRY(wait(t, err));
    begin_us = td_clock_us();
    submit(t);
    TD_TRY(wait(t, err));
    *us = (double)(td_clock_us() - begin_us);
    td_status st = wait(t, err);
    for (uint32_t i = 0; i < p->n_rows; i++)
      p->token_ids[p->rows[i].q_start] = (int32_t)(i % t->by.vocab);
    return st;
  }
  TD_TRY(wait(t, err));
  *us = (double)(td_clock_us() - begin_us);
  return TD_OK;
}

/* ---- pages ---- */

static td_status write_pages(td_trial *t, td_compiled *writes_kv, td_error *err)
{
  td_backend *be = t->by.backend;
  td_outcome ignored;
  uint32_t most = be->max_tokens / t->page_tokens;
  if (most > t->stripe_pages)
    most = t->stripe_pages;
  for (uint32_t done = 0, n; most > 0 && done < t->n_pages; done += n) {
    n = t->n_pages - done < most ? t->n_pages - done : most;
    td_plan_clear(t->plan);
    t->next_page = done;
    TD_BUG_ON(!add_row(t, n * t->page_tokens, n * t->page_tokens));
    td_backend_queue_step(be, writes_kv, NULL, t->plan);
    TD_TRY(td_backend_wait(be, &ignored, err));
  }
  return TD_OK;
}

td_status td_trial_touch_pages(td_trial *t, td_error *err)
{
  td_backend *be = t->by.backend;
  td_program *program;
  td_compiled *writes_kv = NULL;
  TD_TRY(td_program_keep(t->by.program, 1 << TD_OP_ROPE_KV, &program, err));
  td_status st = be->ops->compile(be, program, &writes_kv, err);
  td_program_destroy(program);
  if (st == TD_OK)
    st = write_pages(t, writes_kv, err);
  be->ops->discard(be, writes_kv);
  return st;
}
