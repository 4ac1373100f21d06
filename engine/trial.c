/* Steps made by hand: see trial.h. */
#include "engine/trial.h"

#include <stdlib.h>

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

td_status td_trial_init(td_trial *t, td_engine *e, uint32_t page_tokens, uint32_t n_pages,
                        uint32_t max_kv_tokens, td_error *err)
{
  static const td_sampling greedy = {.top_p = 1};
  uint32_t max_rows = e->backend->max_rows;
  *t = (td_trial){.e = e, .page_tokens = page_tokens, .n_pages = n_pages};
  t->stripe_pages = (max_kv_tokens + page_tokens - 1) / page_tokens;
  uint32_t n_entries = max_rows * t->stripe_pages;
  TD_TRY(td_plan_create(max_rows, e->backend->max_tokens, n_entries, page_tokens, &t->plan, err));
  t->table = calloc(n_entries, sizeof *t->table);
  t->pages = calloc(n_pages, sizeof *t->pages);
  t->sampled = calloc(max_rows, sizeof *t->sampled);
  if (!t->table || !t->pages || !t->sampled)
    return td_fail(err, TD_ERR_NOMEM, "no memory for steps to measure");
  scatter(t->pages, n_pages);
  t->plan->page_table = t->table;
  t->plan->page_table_len = n_entries;
  for (uint32_t i = 0; i < max_rows; i++) /* every request brings its own later */
    e->backend->ops->set_sampling(e->backend, i, &greedy);
  return TD_OK;
}

void td_trial_deinit(td_trial *t)
{
  td_plan_destroy(t->plan);
  free(t->table);
  free(t->pages);
  free(t->sampled);
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
  p->rows[r] = (td_plan_row){r, p->n_tokens, q_len, kv_len, r * t->stripe_pages, 1};
  p->logits_rows[p->n_logits++] = r;
  p->n_rows++;
  for (uint32_t i = 0; i < n_pages; i++) {
    uint32_t entry = r * t->stripe_pages + i;
    t->table[entry] = t->pages[t->next_page++];
    p->page_updates[p->n_page_updates++] = (td_plan_page_update){entry, t->table[entry]};
  }
  for (uint32_t i = 0; i < q_len; i++, p->n_tokens++) {
    p->token_ids[p->n_tokens] = (int32_t)((r * 131 + i * 7) % t->e->desc.vocab);
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

static void begin_step(td_trial *t)
{
  td_engine *e = t->e;
  const td_backend_ops *ops = e->backend->ops;
  ops->step_begin(e->backend, t->plan);
  if (!ops->replay || !ops->replay(e->backend)) {
    td_devptr logits = td_model_forward(e->model, e->kv, t->plan);
    ops->sample(e->backend, &(td_sample_params){.logits = logits, .vocab = e->desc.vocab});
  }
  ops->step_submit(e->backend);
  t->plan->n_page_updates = 0; /* they are there now */
}

static td_status end_step(td_trial *t, td_error *err)
{
  return t->e->backend->ops->step_end(t->e->backend, t->sampled, err);
}

td_status td_trial_run(td_trial *t, double *us, td_error *err)
{
  td_plan *p = t->plan;
  uint64_t begin_us = td_engine_now_us();
  begin_step(t);
  if (t->e->backend->pipeline_depth > 1 && p->n_decode_rows == p->n_rows) {
    for (uint32_t i = 0; i < p->n_rows; i++)
      p->token_ids[p->rows[i].q_start] = -1 - (int32_t)i; /* what the step before sampled */
    begin_step(t);
    TD_TRY(end_step(t, err));
    begin_us = td_engine_now_us();
    begin_step(t);
    TD_TRY(end_step(t, err));
    *us = (double)(td_engine_now_us() - begin_us);
    td_status st = end_step(t, err);
    for (uint32_t i = 0; i < p->n_rows; i++)
      p->token_ids[p->rows[i].q_start] = (int32_t)(i % t->e->desc.vocab);
    return st;
  }
  TD_TRY(end_step(t, err));
  *us = (double)(td_engine_now_us() - begin_us);
  return TD_OK;
}

/* ---- pages ---- */

static void write_kv(td_trial *t, td_devptr qkv, td_devptr inv_freq)
{
  td_engine *e = t->e;
  const td_model_desc *d = &e->desc;
  e->backend->ops->step_begin(e->backend, t->plan);
  for (uint32_t layer = 0; layer < d->n_layers; layer++)
    e->backend->ops->rope_kv(e->backend, &(td_rope_kv_params){.qkv = qkv,
                                                              .inv_freq = inv_freq,
                                                              .attn_factor = 1,
                                                              .norm_eps = d->norm_eps,
                                                              .style = d->rope_style,
                                                              .kv = e->kv,
                                                              .layer = layer,
                                                              .n_heads = d->n_heads,
                                                              .n_kv_heads = d->n_kv_heads,
                                                              .head_dim = d->head_dim,
                                                              .rotary_dim = d->rotary_dim});
}

td_status td_trial_touch_pages(td_trial *t, td_error *err)
{
  td_backend *be = t->e->backend;
  const td_model_desc *d = &t->e->desc;
  td_devptr qkv, inv_freq;
  uint32_t most = be->max_tokens / t->page_tokens, done = 0;
  if (most > t->stripe_pages)
    most = t->stripe_pages;
  if (most == 0)
    return TD_OK;
  size_t bytes =
      (size_t)most * t->page_tokens * (d->n_heads + 2 * d->n_kv_heads) * d->head_dim * be->activation_bytes;
  TD_TRY(be->ops->alloc(be, bytes, &qkv, err));
  TD_TRY(be->ops->upload_f32(be, d->rope_inv_freq, d->rotary_dim / 2, &inv_freq, err));
  while (done < t->n_pages) {
    uint32_t n = t->n_pages - done < most ? t->n_pages - done : most;
    td_plan_clear(t->plan);
    t->next_page = done;
    TD_BUG_ON(!add_row(t, n * t->page_tokens, n * t->page_tokens));
    write_kv(t, qkv, inv_freq);
    TD_TRY(end_step(t, err));
    done += n;
  }
  return TD_OK;
}
