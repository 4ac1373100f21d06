/* Items of the attention launch: see attention_items.h. */
#include "kernels/cuda/attention_items.h"

#include <stdlib.h>

enum { SPLIT_ALIGN = 64, SPLIT_MIN_TOKENS = 64, BLOCKS_PER_SM = 3 };

uint32_t td_attention_items_max(uint32_t max_rows, uint32_t max_tokens)
{
  return max_rows + max_tokens + TD_SPLITS_MAX;
}

uint32_t td_attention_decode_items_max(uint32_t n_rows, uint32_t n_kv_heads, uint32_t n_sms)
{
  uint32_t shares = n_sms * BLOCKS_PER_SM / n_kv_heads;
  return n_rows + (shares < TD_SPLITS_MAX ? shares : TD_SPLITS_MAX);
}

static bool is_left_out(const td_plan_row *r, const td_attention_cut *cut) { return cut->no_singles && r->q_len == 1; }

static bool is_decode(const td_plan_row *r, const td_attention_cut *cut)
{
  return !cut->tiles_only && !is_left_out(r, cut) && r->q_len * cut->group <= TD_DECODE_ROWS;
}

/* Tokens of KV per decode block: enough blocks to fill the device once, none shorter than is worth a merge. */
static uint32_t split_tokens(const td_plan *plan, const td_attention_cut *cut)
{
  uint64_t total = 0;
  for (uint32_t i = 0; i < plan->n_rows; i++)
    if (is_decode(&plan->rows[i], cut))
      total += plan->rows[i].kv_len;
  uint64_t per_block = total * cut->n_kv_heads / ((uint64_t)cut->n_sms * BLOCKS_PER_SM) + 1;
  per_block = (per_block + SPLIT_ALIGN - 1) / SPLIT_ALIGN * SPLIT_ALIGN;
  return (uint32_t)(per_block < SPLIT_MIN_TOKENS ? SPLIT_MIN_TOKENS : per_block);
}

static void add_item(td_attention_items *out, td_attention_item it)
{
  TD_BUG_ON(out->n_items == out->max_items);
  out->items[out->n_items++] = it;
}

static void add_decode(td_attention_items *out, uint32_t row, const td_plan_row *r, uint32_t split)
{
  uint32_t n = (r->kv_len + split - 1) / split;
  if (n == 1 || out->n_partials + n > TD_SPLITS_MAX) {
    add_item(out, (td_attention_item){row, 0, r->q_len, 0, r->kv_len, 0, 0, 1});
    return;
  }
  uint32_t first = out->n_partials;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t end = (i + 1) * split < r->kv_len ? (i + 1) * split : r->kv_len;
    add_item(out, (td_attention_item){row, 0, r->q_len, i * split, end, out->n_partials++, first, n});
  }
}

static void add_prefill(td_attention_items *out, uint32_t row, const td_plan_row *r, uint32_t tile)
{
  for (uint32_t begin = 0; begin < r->q_len; begin += tile) {
    uint32_t len = begin + tile < r->q_len ? tile : r->q_len - begin;
    add_item(out, (td_attention_item){row, begin, len, 0, r->kv_len - r->q_len + begin + len, 0, 0, 0});
  }
}

static int longest_first(const void *x, const void *y)
{
  const td_attention_item *a = x, *b = y;
  return a->kv_end != b->kv_end ? (a->kv_end < b->kv_end ? 1 : -1) : a->row != b->row ? (a->row > b->row ? 1 : -1) : 0;
}

void td_attention_items_make(td_attention_items *out, const td_plan *plan, const td_attention_cut *cut)
{
  uint32_t split = split_tokens(plan, cut);
  out->n_items = out->n_partials = 0;
  for (uint32_t i = 0; i < plan->n_rows; i++)
    if (!is_decode(&plan->rows[i], cut) && !is_left_out(&plan->rows[i], cut))
      add_prefill(out, i, &plan->rows[i], cut->prefill_rows / cut->group);
  out->n_prefill = out->n_items;
  qsort(out->items, out->n_prefill, sizeof *out->items, longest_first);
  for (uint32_t i = 0; i < plan->n_rows; i++)
    if (is_decode(&plan->rows[i], cut))
      add_decode(out, i, &plan->rows[i], split);
}
