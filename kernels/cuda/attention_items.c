/* Items of the attention launch: see attention_items.h. */
#include "kernels/cuda/attention_items.h"

#include <stdlib.h>

enum {
  SPLIT_ALIGN = 128, /* a strip for each warp of a block */
  SPLIT_MIN_TOKENS = 128,
  TAIL_MIN_TOKENS = 256,
  ROUNDS = 3,        /* of places, in which blocks of nearly as many rows as there are places run */
  BLOCK_TOKENS = 128, /* a block's begin and end, in the tokens that it would read meanwhile */
  NARROW_TOKENS = 64, NARROW_TOKENS_OF_MANY = 320, MANY = 8, /* rows for each place */
};

uint32_t td_attention_items_max(uint32_t max_rows, uint32_t max_tokens)
{
  return max_rows + max_tokens + TD_SPLITS_MAX;
}

/* Blocks that run at once, for each kv head. */
static uint32_t places_of(uint32_t n_kv_heads, uint32_t n_blocks)
{
  uint32_t n = n_blocks / n_kv_heads;
  return n < 1 ? 1 : n < TD_SPLITS_MAX ? n : TD_SPLITS_MAX;
}

/* As many as fill_rounds makes at most, and one round more for what is rounded. */
uint32_t td_attention_partials_max(uint32_t n_kv_heads, uint32_t n_blocks)
{
  uint32_t n = (ROUNDS + 1) * places_of(n_kv_heads, n_blocks);
  return n < TD_SPLITS_MAX ? n : TD_SPLITS_MAX;
}

uint32_t td_attention_decode_works_max(uint32_t n_rows, uint32_t n_kv_heads, uint32_t n_blocks)
{
  uint32_t places = places_of(n_kv_heads, n_blocks);
  uint32_t in_rounds = ROUNDS * places + (n_rows + TD_NARROW_ITEMS - 1) / TD_NARROW_ITEMS;
  return 2 * n_rows > places && n_rows + places < in_rounds ? in_rounds : n_rows + places;
}

/* What of a row is its items'. */
static td_attention_own own_of(const td_attention_cut *cut, uint32_t row)
{
  return cut->own ? cut->own[row] : (td_attention_own){0, TD_ATTENTION_NO_MEMBER};
}

static uint32_t tokens_of(const td_plan *plan, const td_attention_cut *cut, uint32_t row)
{
  return plan->rows[row].kv_len - own_of(cut, row).begin;
}

static bool is_left_out(const td_plan_row *r, const td_attention_cut *cut) { return cut->no_singles && r->q_len == 1; }

static bool is_decode(const td_plan_row *r, const td_attention_cut *cut)
{
  return !cut->tiles_only && !is_left_out(r, cut) && r->q_len * cut->group <= TD_DECODE_ROWS;
}

/* Of how many decodes with how many tokens each warp takes one by itself: where there are more of them than blocks that run at once. */
static uint32_t narrow_tokens(const td_plan *plan, const td_attention_cut *cut)
{
  uint32_t n = 0, places = places_of(cut->n_kv_heads, cut->n_blocks);
  for (uint32_t i = 0; i < plan->n_rows; i++)
    n += is_decode(&plan->rows[i], cut);
  if (!cut->narrow || n < TD_NARROW_ROWS_MIN || n <= places)
    return 0;
  return n >= MANY * places ? NARROW_TOKENS_OF_MANY : NARROW_TOKENS;
}

/* How wide decodes, of more than `above` tokens, are cut: those from number `from` on into pieces of at most so many tokens. */
typedef struct split {
  uint32_t above, from, tokens;
} split;

static bool is_wide(const td_plan *plan, const td_attention_cut *cut, uint32_t row, uint32_t above)
{
  return is_decode(&plan->rows[row], cut) && tokens_of(plan, cut, row) > above;
}

static uint32_t pieces_of(uint32_t n, uint32_t tokens) { return (n - 1) / tokens + 1; }

static uint32_t at_least(uint64_t tokens, uint32_t least)
{
  return tokens < least ? least : tokens < UINT32_MAX ? (uint32_t)tokens : UINT32_MAX;
}

/* The shortest pieces, or nearly, of which there are no more than places. */
static uint32_t fill_places(const td_plan *plan, const td_attention_cut *cut, uint32_t above, uint64_t total, uint32_t n, uint32_t places)
{
  uint32_t low = at_least(total / places, SPLIT_MIN_TOKENS), high = n < places ? at_least(total / (places - n) + 1, low) : UINT32_MAX;
  for (int i = 0; i < 4 && low < high; i++) {
    uint32_t middle = low + (high - low) / 4, pieces = 0;
    for (uint32_t r = 0; r < plan->n_rows; r++)
      if (is_wide(plan, cut, r, above))
        pieces += pieces_of(tokens_of(plan, cut, r), middle);
    if (pieces <= places)
      high = middle;
    else
      low = middle + 1;
  }
  return high;
}

/* Of fewer rows than places. Nearly as many would leave some idle from begin to end: they are cut for several rounds, if there are
 * partials for so many pieces: the rows after those would not be cut at all. */
static uint32_t fill_rounds(const td_plan *plan, const td_attention_cut *cut, uint32_t above, uint64_t total, uint32_t n, uint32_t places)
{
  uint32_t best = fill_places(plan, cut, above, total, n, places), longest = 0;
  for (uint32_t r = 0; r < plan->n_rows; r++)
    if (is_wide(plan, cut, r, above))
      longest = tokens_of(plan, cut, r) > longest ? tokens_of(plan, cut, r) : longest;
  uint64_t least = (uint64_t)(best < longest ? best : longest) + BLOCK_TOKENS;
  for (uint32_t rounds = 2; rounds <= ROUNDS && 2 * n > places && rounds * places <= TD_SPLITS_MAX; rounds++) {
    uint32_t tokens = fill_places(plan, cut, above, total, n, rounds * places);
    uint64_t time = rounds * ((uint64_t)tokens + BLOCK_TOKENS);
    if (time < least) {
      least = time;
      best = tokens;
    }
  }
  return best;
}

/* Blocks run in the order of items, as many at once as there are places; a block that runs alone on its SM has half of what memory
 * gives. So what does not fill the places once is cut until it does; of more, the last ones are, which would not fill them again. */
static split split_of(const td_plan *plan, const td_attention_cut *cut)
{
  uint64_t total = 0, tail = 0;
  uint32_t n = 0, longest = 0, places = places_of(cut->n_kv_heads, cut->n_blocks), seen = 0, above = narrow_tokens(plan, cut);
  for (uint32_t i = 0; i < plan->n_rows; i++)
    if (is_wide(plan, cut, i, above)) {
      uint32_t tokens = tokens_of(plan, cut, i);
      total += tokens;
      longest = tokens > longest ? tokens : longest;
      n++;
    }
  if (n < places)
    return (split){above, 0, fill_rounds(plan, cut, above, total, n, places)};
  if (longest > total / places)
    return (split){above, 0, at_least(total / places + 1, SPLIT_MIN_TOKENS)};
  uint32_t from = n / places * places;
  for (uint32_t i = 0; i < plan->n_rows; i++)
    if (is_wide(plan, cut, i, above) && seen++ >= from)
      tail += tokens_of(plan, cut, i);
  return (split){above, from, at_least(tail / (places - (n - from)) + 1, TAIL_MIN_TOKENS)};
}

static void add_item(td_attention_items *out, td_attention_item it)
{
  TD_BUG_ON(out->n_items == out->max_items);
  out->items[out->n_items++] = it;
}

/* In equal pieces, but for the rounding: a short one at the end would be a block's beginning and end for little. */
static void add_decode(td_attention_items *out, uint32_t row, const td_plan_row *r, td_attention_own own, uint32_t tokens, uint32_t max_partials)
{
  uint32_t all = r->kv_len - own.begin, n = pieces_of(all, tokens), piece = ((all - 1) / n / SPLIT_ALIGN + 1) * SPLIT_ALIGN;
  n = pieces_of(all, piece);
  if (n == 1 || out->n_partials + n > max_partials) {
    add_item(out, (td_attention_item){row, 0, r->q_len, own.begin, r->kv_len, 0, 0, 1, own.member});
    return;
  }
  uint32_t first = out->n_partials;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t begin = own.begin + i * piece, end = i + 1 < n ? begin + piece : r->kv_len;
    add_item(out, (td_attention_item){row, 0, r->q_len, begin, end, out->n_partials++, first, n, own.member});
  }
}

static void add_prefill(td_attention_items *out, uint32_t row, const td_plan_row *r, uint32_t tile)
{
  for (uint32_t begin = 0; begin < r->q_len; begin += tile) {
    uint32_t len = begin + tile < r->q_len ? tile : r->q_len - begin;
    add_item(out, (td_attention_item){row, begin, len, 0, r->kv_len - r->q_len + begin + len, 0, 0, 0, TD_ATTENTION_NO_MEMBER});
  }
}

static int longest_first(const void *x, const void *y)
{
  const td_attention_item *a = x, *b = y;
  return a->kv_end != b->kv_end ? (a->kv_end < b->kv_end ? 1 : -1) : a->row != b->row ? (a->row > b->row ? 1 : -1) : 0;
}

void td_attention_items_make(td_attention_items *out, const td_plan *plan, const td_attention_cut *cut)
{
  split by = split_of(plan, cut);
  uint32_t n = 0, max_partials = td_attention_partials_max(cut->n_kv_heads, cut->n_blocks);
  out->n_items = out->n_partials = 0;
  for (uint32_t i = 0; i < plan->n_rows; i++)
    if (!is_decode(&plan->rows[i], cut) && !is_left_out(&plan->rows[i], cut))
      add_prefill(out, i, &plan->rows[i], cut->prefill_rows / cut->group);
  out->n_prefill = out->n_items;
  qsort(out->items, out->n_prefill, sizeof *out->items, longest_first);
  for (uint32_t i = 0; i < plan->n_rows; i++)
    if (is_wide(plan, cut, i, by.above))
      add_decode(out, i, &plan->rows[i], own_of(cut, i), n++ < by.from ? UINT32_MAX : by.tokens, max_partials);
  out->n_wide = out->n_items;
  for (uint32_t i = 0; i < plan->n_rows && by.above > 0; i++)
    if (is_decode(&plan->rows[i], cut) && !is_wide(plan, cut, i, by.above))
      add_decode(out, i, &plan->rows[i], own_of(cut, i), UINT32_MAX, 0);
}
