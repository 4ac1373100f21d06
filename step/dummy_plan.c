/* See dummy_plan.h. */
#include "step/dummy_plan.h"

#include <stdlib.h>

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

td_status td_dummy_plan_init(td_dummy_plan *d, const td_dummy_plan_config *c, td_error *err)
{
  *d = (td_dummy_plan){.n_pages = c->n_pages, .n_ids = c->n_ids};
  d->stripe_pages = (c->max_row_tokens + c->page_tokens - 1) / c->page_tokens;
  uint32_t n_entries = c->max_rows * d->stripe_pages;
  TD_TRY(td_plan_create(c->max_rows, c->max_tokens, c->max_logits, n_entries, c->page_tokens, &d->plan, err));
  d->table = calloc(n_entries, sizeof *d->table);
  d->pages = calloc(c->n_pages, sizeof *d->pages);
  if (!d->table || !d->pages)
    return td_fail(err, TD_ERR_NOMEM, "no memory for steps to measure");
  scatter(d->pages, c->n_pages);
  d->plan->page_table = d->table;
  d->plan->page_table_len = n_entries;
  return TD_OK;
}

void td_dummy_plan_deinit(td_dummy_plan *d)
{
  td_plan_destroy(d->plan);
  free(d->table);
  free(d->pages);
}

void td_dummy_plan_clear(td_dummy_plan *d)
{
  td_plan_clear(d->plan);
  d->next_page = 0;
}

bool td_dummy_plan_add(td_dummy_plan *d, uint32_t q_len, uint32_t kv_len, uint32_t n_shared,
                       bool wants_logits)
{
  td_plan *p = d->plan;
  uint32_t n_pages = (kv_len + p->page_tokens - 1) / p->page_tokens, r = p->n_rows;
  if (r == p->max_rows || q_len > p->max_tokens - p->n_tokens || n_pages > d->stripe_pages ||
      n_pages - n_shared > d->n_pages - d->next_page)
    return false;
  p->rows[p->n_rows++] = (td_plan_row){.slot = r,
                                       .q_start = p->n_tokens,
                                       .q_len = q_len,
                                       .kv_len = kv_len,
                                       .page_table_offset = r * d->stripe_pages};
  for (uint32_t i = 0; i < n_pages; i++) {
    uint32_t entry = r * d->stripe_pages + i;
    d->table[entry] = i < n_shared ? d->table[entry - d->stripe_pages] : d->pages[d->next_page++];
    p->page_updates[p->n_page_updates++] = (td_plan_page_update){entry, d->table[entry]};
  }
  for (uint32_t i = 0; i < q_len; i++, p->n_tokens++) {
    p->token_ids[p->n_tokens] = (int32_t)((r * 131 + i * 7) % d->n_ids);
    p->positions[p->n_tokens] = (int32_t)(kv_len - q_len + i);
  }
  if (wants_logits)
    td_plan_add_sample(p, r);
  if (q_len == 1 && p->n_decode_rows == r)
    p->n_decode_rows++;
  else
    p->n_prefill_tokens += q_len;
  return true;
}

uint32_t td_dummy_plan_write_pages(td_dummy_plan *d, uint32_t first)
{
  uint32_t page_tokens = d->plan->page_tokens, n = d->plan->max_tokens / page_tokens;
  n = n < d->stripe_pages ? n : d->stripe_pages;
  n = n < d->n_pages - first ? n : d->n_pages - first;
  td_dummy_plan_clear(d);
  d->next_page = first;
  if (n > 0)
    TD_BUG_ON(!td_dummy_plan_add(d, n * page_tokens, n * page_tokens, 0, true));
  return n;
}
