/* See work_list.h. */
#include "kernels/attention/work_list.h"

#include <stdlib.h>
#include <string.h>

enum {
  SPLIT_ALIGN = 128, /* a KV tile for each warp of a CTA */
  SPLIT_MIN_TOKENS = 128,
  TAIL_MIN_TOKENS = 256,
  WAVES_MAX = 3,             /* most waves of resident CTAs, if there are fewer sequences than these */
  ONE_WAVE_CTAS_PER_ROW = 8, /* one wave is enough, if there are this many resident CTAs for each sequence */
  FIRST_SPLITS_MAX = 5,      /* most splits of the first sequences, if the others have more */
  ENOUGH_PERCENT = 104,      /* of the least possible time: good enough, so the search stops */
  GAIN_PART = 32,            /* a cut must gain at least this part of the time */
  CTA_FIXED_TOKENS = 128,    /* a CTA's prologue and epilogue, in tokens that it reads in the same time */
  WARP_TOKENS = 64,
  WARP_TOKENS_MANY_ROWS = 320,
  MANY_ROWS_PER_CTA = 8,     /* rows for each resident CTA */
  COLOCATED_PARTIALS = 4096, /* for all kv heads together */
  DECODE_TOKENS = 12,        /* longer rows are faster as a prefill tile, if that has KV splits */
  /* The list of growing sequences is made again if all sequences together have grown by this part and this
   * many tokens each, or if one item has become longer than the longest item was by its own part. */
  GROWN_PART = 64,
  GROWN_PART_OF_LONGEST = 16,
  GROWN_TOKENS = 16,
};

uint32_t td_work_list_items_max(uint32_t max_rows, uint32_t max_tokens)
{
  return max_rows + max_tokens + TD_SPLITS_MAX + TD_PREFILL_PARTIALS_MAX;
}

/* Resident CTAs for each kv head. */
static uint32_t resident_of(uint32_t n_kv_heads, uint32_t n_resident)
{
  uint32_t n = n_resident / n_kv_heads;
  return n < 1 ? 1 : n < TD_SPLITS_MAX ? n : TD_SPLITS_MAX;
}

/* Whether to try several waves. A few sequences have enough splits to fill nearly all resident CTAs in one
 * wave. */
static bool tries_several_waves(uint32_t n_rows, uint32_t resident)
{
  return ONE_WAVE_CTAS_PER_ROW * n_rows > resident;
}

/* The most partials that fill_waves needs, plus one wave for rounding up; or those that colocated decodes
 * need. */
uint32_t td_work_list_partials_max(const td_work_list_config *c)
{
  uint32_t n = (WAVES_MAX + 1) * resident_of(c->n_kv_heads, c->n_resident);
  if (c->hybrid.colocated_rows > 0 && n < COLOCATED_PARTIALS / c->n_kv_heads)
    n = COLOCATED_PARTIALS / c->n_kv_heads;
  return n < TD_SPLITS_MAX && !(c->policy && c->policy->kv_splits) ? n : TD_SPLITS_MAX;
}

uint32_t td_work_list_ctas(const td_work_list *list, uint32_t warps)
{
  return list->n_wide - list->n_prefill + (list->n_items - list->n_wide + warps - 1) / warps;
}

uint32_t td_work_list_ctas_max(const td_work_list_config *c, uint32_t n_rows)
{
  uint32_t resident = resident_of(c->n_kv_heads, c->n_resident);
  if (c->policy && c->policy->kv_splits)
    return n_rows + TD_SPLITS_MAX;
  return n_rows + (tries_several_waves(n_rows, resident) ? WAVES_MAX : 1) * resident;
}

static bool is_decode(const td_plan_row *r, const td_work_list_config *c)
{
  return !c->tiles_only && r->q_len * c->gqa_group <= c->decode_rows &&
         (r->q_len <= DECODE_TOKENS || c->hybrid.tile_keys == 0);
}

/* The step's decodes. tokens: of each plan row; 0 for a row that is no decode. */
typedef struct decodes {
  const uint32_t *tokens;
  uint32_t n_rows, n; /* n, longest, total: of the decodes of more than `above` tokens */
  uint32_t above, longest;
  uint64_t total;
} decodes;

static void count_above(decodes *d, uint32_t above)
{
  d->n = d->longest = 0;
  d->total = 0;
  d->above = above;
  for (uint32_t i = 0; i < d->n_rows; i++) {
    uint32_t tokens = d->tokens[i] > above ? d->tokens[i] : 0;
    d->n += tokens > 0;
    d->total += tokens;
    d->longest = tokens > d->longest ? tokens : d->longest;
  }
}

/* Decodes of at most this many tokens are warp-level items. 0: none is, because there are no more decodes
 * than resident CTAs, or because the kernel has no such items. */
static uint32_t warp_tokens(uint32_t n, const td_work_list_config *c)
{
  uint32_t resident = resident_of(c->n_kv_heads, c->n_resident);
  if (c->warp_rows_min == 0 || n < c->warp_rows_min || n <= resident)
    return 0;
  return n >= MANY_ROWS_PER_CTA * resident ? WARP_TOKENS_MANY_ROWS : WARP_TOKENS;
}

/* How wide decodes are cut. From number `from` on, their splits have at most `tokens` tokens; from number
 * `last_from` on, at most `last_tokens`. With a policy, all are cut into n_splits. */
typedef struct decode_cut {
  uint32_t from, tokens, last_from, last_tokens, n_splits;
} decode_cut;

static uint32_t div_up(uint32_t n, uint32_t tokens) { return (n - 1) / tokens + 1; }

static uint32_t at_least(uint64_t tokens, uint32_t least)
{
  return tokens < least ? least : tokens < UINT32_MAX ? (uint32_t)tokens : UINT32_MAX;
}

/* Returns nearly the shortest length of splits such that there are at most `max_splits` of them. If all
 * decodes have the same length, needs no search. */
static uint32_t shortest_split_tokens(const decodes *d, uint32_t max_splits)
{
  uint32_t low = at_least(d->total / max_splits, SPLIT_MIN_TOKENS),
           high = d->n <= max_splits ? at_least(div_up(d->longest, max_splits / d->n), low) : UINT32_MAX;
  bool equal = d->total == (uint64_t)d->n * d->longest;
  for (int i = 0; i < 4 && low < high && !equal; i++) {
    uint32_t middle = low + (high - low) / 4, splits = 0;
    for (uint32_t r = 0; r < d->n_rows; r++)
      if (d->tokens[r] > d->above)
        splits += div_up(d->tokens[r], middle);
    if (splits <= max_splits)
      high = middle;
    else
      low = middle + 1;
  }
  return high;
}

/* The time of waves of splits of at most `tokens` tokens, in tokens that a CTA reads. A CTA reads at the same
 * rate whether all resident CTAs have work or not. */
static uint64_t waves_time(const decodes *d, uint32_t tokens, uint32_t waves)
{
  return waves * ((uint64_t)(tokens < d->longest ? tokens : d->longest) + CTA_FIXED_TOKENS);
}

/* The decodes that are left after the first ones, which make at most `max_splits` splits of at most `tokens`
 * tokens. */
static decodes decodes_after(const decodes *d, uint32_t tokens, uint32_t max_splits)
{
  uint32_t r = 0, splits = 0;
  for (; r < d->n_rows; r++) {
    splits += d->tokens[r] > d->above ? div_up(d->tokens[r], tokens) : 0;
    if (splits > max_splits)
      break;
  }
  decodes rest = {.tokens = d->tokens + r, .n_rows = d->n_rows - r};
  count_above(&rest, d->above);
  return rest;
}

/* Cuts all decodes into splits of one length, for one or several waves. Returns the predicted time. */
static uint64_t fill_equal(const decodes *d, uint32_t resident, uint32_t max_waves, decode_cut *cut)
{
  uint64_t least = UINT64_MAX;
  for (uint32_t waves = 1; waves <= max_waves; waves++) {
    uint32_t tokens = shortest_split_tokens(d, waves * resident);
    uint64_t time = waves_time(d, tokens, waves);
    if (time < least) {
      least = time;
      *cut = (decode_cut){.tokens = tokens, .last_from = UINT32_MAX};
    }
  }
  return least;
}

/* Cuts the first decodes for some waves, and the others into more splits for the waves after. */
static void fill_unequal(const decodes *d, uint32_t resident, uint32_t max_waves, uint64_t least,
                         decode_cut *cut)
{
  uint64_t enough = d->total / resident * ENOUGH_PERCENT / 100 + 2 * CTA_FIXED_TOKENS;
  for (uint32_t first_splits = 2;
       first_splits <= FIRST_SPLITS_MAX && d->longest >= first_splits * SPLIT_MIN_TOKENS; first_splits++)
    for (uint32_t first = 1; first < max_waves && least > enough; first++) {
      uint32_t tokens = div_up(d->longest, first_splits);
      uint64_t first_time = waves_time(d, tokens, first);
      decodes rest = decodes_after(d, tokens, first * resident);
      for (uint32_t last = 1; first + last <= max_waves && rest.n > 0; last++) {
        if (first_time + rest.total / resident + last * CTA_FIXED_TOKENS >= least - least / GAIN_PART ||
            rest.n > last * resident)
          continue;
        uint32_t last_tokens = shortest_split_tokens(&rest, last * resident);
        uint64_t time = first_time + waves_time(&rest, last_tokens, last);
        if (time < least) {
          least = time;
          *cut = (decode_cut){.tokens = tokens, .last_from = d->n - rest.n, .last_tokens = last_tokens};
        }
      }
    }
}

/* Whether halves are faster than whole decodes, if there are nearly as many decodes as resident CTAs. With
 * whole ones, SMs with fewer CTAs end first and then stand idle. Halves end sooner, although their two waves
 * are no fuller: a CTA that ends makes room for the next split, so a partly filled last wave takes hardly
 * more than its part of a wave. The constants are thousandths of a wave, measured on an H200
 * (docs/lab/2026-11.md, "Decode attention, kernels"). */
static bool halves_end_sooner(const decodes *d, uint32_t resident)
{
  uint32_t first_wave_fill = 1000 * d->n / resident,
           second_wave_fill = 1000 * (2 * d->n - resident) / resident;
  if (2 * d->n <= resident || first_wave_fill < 650)
    return false;
  uint64_t whole = (uint64_t)(675 + 320 * first_wave_fill / 1000) * d->longest;
  uint64_t halves =
      (uint64_t)(1000 + 100 + 900 * second_wave_fill / 1000) * (d->longest / 2) + 1000 * CTA_FIXED_TOKENS;
  return d->longest >= 2 * SPLIT_MIN_TOKENS && halves < whole - whole / GAIN_PART / 2;
}

/* Cuts fewer decodes than resident CTAs. If equal splits in one wave would leave some CTAs without work, cuts
 * decodes for several waves, but only for as many as there are partials: without partials the last decodes
 * would not be cut at all. */
static decode_cut fill_waves(const decodes *d, uint32_t resident, uint32_t max_waves)
{
  decode_cut cut;
  uint32_t waves = TD_SPLITS_MAX / resident;
  waves = waves < 1 ? 1 : waves < max_waves ? waves : max_waves;
  uint64_t least = fill_equal(d, resident, waves, &cut);
  fill_unequal(d, resident, waves, least, &cut);
  return cut;
}

/* Cuts the wide decodes. CTAs start in the order of items, and as many run at the same time as are resident.
 * A CTA alone on its SM reads at half the SM's rate. So if there are fewer decodes than resident CTAs, they
 * are cut until they fill these. If there are more, the last ones, which would not fill another wave, are cut
 * in the same way. at_once: cut fewer decodes than resident CTAs for one wave only. */
static decode_cut cut_wide(const decodes *d, uint32_t resident, bool at_once)
{
  uint32_t from = d->n / resident * resident, seen = d->n, r = d->n_rows;
  if (d->n == 0)
    return (decode_cut){.last_from = UINT32_MAX};
  if (d->n < resident) {
    bool one_wave = at_once || !tries_several_waves(d->n, resident);
    decode_cut cut = fill_waves(d, resident, one_wave ? 1 : WAVES_MAX);
    if (!one_wave && cut.tokens >= d->longest && cut.last_from == UINT32_MAX &&
        halves_end_sooner(d, resident))
      cut.tokens = div_up(d->longest, 2);
    return cut;
  }
  if (d->longest > d->total / resident)
    return (decode_cut){.tokens = at_least(d->total / resident + 1, SPLIT_MIN_TOKENS),
                        .last_from = UINT32_MAX};
  while (seen > from)
    seen -= d->tokens[--r] > d->above;
  decodes last = {.tokens = d->tokens + r, .n_rows = d->n_rows - r};
  count_above(&last, d->above);
  if (last.n == 0)
    return (decode_cut){.from = from, .last_from = UINT32_MAX};
  decode_cut cut = fill_waves(&last, resident, WAVES_MAX);
  cut.from = from;
  cut.tokens = at_least(cut.tokens, TAIL_MIN_TOKENS);
  cut.last_tokens = at_least(cut.last_tokens, TAIL_MIN_TOKENS);
  cut.last_from += cut.last_from < UINT32_MAX ? from : 0;
  return cut;
}

/* Cuts decodes that begin together with prefill. Each SM takes one item after another when it has time, so
 * items are short: `keys` keys, or more if partials do not suffice. */
static decode_cut cut_short(const decodes *d, uint32_t keys, uint32_t max_partials)
{
  uint32_t least = div_up(d->longest, TD_COLOCATED_SPLITS_MAX);
  keys = keys > least ? keys : (least + SPLIT_ALIGN - 1) / SPLIT_ALIGN * SPLIT_ALIGN;
  for (uint32_t n = UINT32_MAX; n > max_partials; keys += n > max_partials ? keys / 2 : 0) {
    n = 0;
    for (uint32_t r = 0; r < d->n_rows; r++)
      n += d->tokens[r] > keys ? div_up(d->tokens[r], keys) : 0;
  }
  return (decode_cut){.tokens = keys, .last_from = UINT32_MAX};
}

/* The most tokens of a KV split of the wide decode with this number, which has n tokens. */
static uint32_t split_tokens(const decode_cut *cut, uint32_t number, uint32_t n)
{
  if (cut->n_splits > 0)
    return at_least(div_up(n, cut->n_splits), SPLIT_MIN_TOKENS);
  return number < cut->from ? UINT32_MAX : number < cut->last_from ? cut->tokens : cut->last_tokens;
}

/* The number of keys in a decode's items: those in its window that it does not share. */
static uint32_t private_keys(const td_plan_row *r, const td_attention_private *private_kv, uint32_t window)
{
  uint32_t seen = r->kv_len - r->q_len + 1; /* by its first token */
  uint32_t begin = window > 0 && seen > window ? (seen - window) / SPLIT_ALIGN * SPLIT_ALIGN : 0;
  return r->kv_len - (begin > private_kv->begin ? begin : private_kv->begin);
}

static void add_item(td_work_list *out, td_attention_item it)
{
  TD_BUG_ON(out->n_items == out->max_items);
  out->items[out->n_items++] = it;
}

/* The item of n_tokens tokens of a plan row, from `begin` on, with all keys that these tokens see. */
static td_attention_item item_of(const td_plan_row *r, uint32_t begin, uint32_t n_tokens)
{
  uint32_t position = r->kv_len - r->q_len + begin;
  return (td_attention_item){.query = r->q_start + begin,
                             .n_tokens = n_tokens,
                             .position = position,
                             .page_table_offset = r->page_table_offset,
                             .kv_end = position + n_tokens};
}

/* The KV splits of a sequence's private KV: the first n_longer have `tokens` tokens, the others SPLIT_ALIGN
 * fewer. The last one has what is left. */
typedef struct kv_split_sizes {
  uint32_t n, n_longer, tokens;
} kv_split_sizes;

/* Makes as many splits as splits of `tokens` tokens would be; a split may have up to SPLIT_ALIGN more. But
 * all splits get one length if that makes nearly as many, or if the longer ones would otherwise have twice
 * the tokens of the others: they end no later, and there is less to reduce. */
static kv_split_sizes split_private_kv(uint32_t all, uint32_t tokens)
{
  uint32_t units = div_up(all, SPLIT_ALIGN), n = all > tokens ? div_up(all, tokens) : 1,
           longest = div_up(units, n);
  uint32_t n_equal = div_up(units, longest);
  bool equal = longest <= 2 || n_equal * 32 >= n * 31;
  return equal ? (kv_split_sizes){n_equal, n_equal, longest * SPLIT_ALIGN}
               : (kv_split_sizes){n, units % n, longest * SPLIT_ALIGN};
}

/* Adds the items of a decode's last `all` keys. tokens: the most that a KV split may have. */
static void add_decode(td_work_list *out, const td_plan_row *r, const td_attention_private *private_kv,
                       uint32_t all, uint32_t tokens, uint32_t max_partials)
{
  kv_split_sizes sizes = split_private_kv(all, tokens);
  td_attention_item it = item_of(r, 0, r->q_len);
  it.kv_begin = r->kv_len - all;
  it.n_partials = 1;
  it.member = private_kv->member;
  it.first_membership = private_kv->first_membership;
  it.n_memberships = private_kv->n_memberships;
  bool whole = sizes.n == 1 || out->n_partials + sizes.n > max_partials;
  out->n_unsplit += whole && sizes.n > 1;
  uint32_t longest = whole ? all : sizes.tokens;
  out->at_make.longest = longest > out->at_make.longest ? longest : out->at_make.longest;
  if (whole) {
    add_item(out, it);
    return;
  }
  it.first_partial = out->n_partials;
  it.n_partials = sizes.n;
  it.kv_end = it.kv_begin;
  for (uint32_t i = 0; i < sizes.n; i++) {
    it.partial = out->n_partials++;
    it.kv_begin = it.kv_end;
    it.kv_end =
        i + 1 < sizes.n ? it.kv_begin + sizes.tokens - (i < sizes.n_longer ? 0 : SPLIT_ALIGN) : r->kv_len;
    add_item(out, it);
  }
}

/* Adds a prefill item, in its KV splits of whole KV tiles. */
static void add_prefill_item(td_work_list *out, const td_hybrid_config *c, td_attention_item it)
{
  uint32_t end = it.kv_end, first = td_hybrid_first_key(c, it.position);
  uint32_t n = td_hybrid_splits(&out->prefill, end - first);
  if ((out->n_prefill_partials + n) * c->n_kv_heads * out->prefill.tiles > TD_PREFILL_PARTIALS_MAX)
    n = 1; /* happens only with a policy */
  it.kv_begin = first;
  it.first_partial = out->n_prefill_partials;
  it.n_partials = n > 1 ? n : 0;
  if (n == 1) {
    add_item(out, it);
    return;
  }
  uint32_t n_tiles = div_up(end - first, c->tile_keys);
  for (uint32_t i = 0; i < n; i++) {
    it.partial = out->n_prefill_partials++;
    it.kv_end = i + 1 < n ? first + n_tiles * (i + 1) / n * c->tile_keys : end;
    add_item(out, it);
    it.kv_begin = it.kv_end;
  }
}

static void add_prefill(td_work_list *out, const td_hybrid_config *c, const td_plan_row *r)
{
  uint32_t n = c->tile_tokens * out->prefill.tiles;
  for (uint32_t begin = 0; begin < r->q_len; begin += n)
    add_prefill_item(out, c, item_of(r, begin, begin + n < r->q_len ? n : r->q_len - begin));
  out->longest_prefill = r->kv_len > out->longest_prefill ? r->kv_len : out->longest_prefill;
}

/* ---- prefix splits ---- */

/* A walk over the plan's prefix splits, in their order. Each split of a group of at most alone_members
 * members has a CTA; a CTA may do several of the other splits. */
typedef struct prefix_walk {
  const td_attention_group *group;
  uint32_t split, n; /* split: next one of the group; n: splits to come */
  uint32_t small_members, alone_members;
} prefix_walk;

/* A step of few decodes may be fused. Then a CTA does one split, so that it rotates queries once. */
static prefix_walk walk_prefixes(const td_attention_planner *planner, const td_work_list_config *c)
{
  if (!planner)
    return (prefix_walk){0};
  bool fused = td_attention_planner_block(planner)->n_members < c->warp_rows_min;
  uint32_t small = td_attention_planner_config_of(planner).small_rows / c->gqa_group;
  return (prefix_walk){.group = td_attention_planner_groups(planner),
                       .n = td_attention_planner_block(planner)->n_splits,
                       .small_members = small,
                       .alone_members = fused ? UINT32_MAX : small};
}

static td_attention_item pop_prefix_split(prefix_walk *walk)
{
  const td_attention_group *g = walk->group;
  uint32_t i = walk->split, n = g->n_splits;
  bool last = i + 1 == n;
  walk->group += last;
  walk->split = last ? 0 : i + 1;
  walk->n--;
  uint32_t kv_end = last ? g->n_keys : (i + 1) * g->split_keys;
  return (td_attention_item){.position = kv_end - 1,
                             .page_table_offset = g->first_page,
                             .kv_begin = i * g->split_keys,
                             .kv_end = kv_end,
                             .partial = g->first_partial + i * g->n_members,
                             .first_partial = g->first_split + i,
                             .n_partials = n,
                             .member = g->first_member,
                             .n_members = g->n_members};
}

/* The CTAs of one kv head that do prefix splits, and the work so far of those that may do several. */
typedef struct prefix_ctas {
  uint32_t n, most;                  /* that may do several; n: at most `most` */
  uint32_t n_alone;                  /* that do one */
  bool are_small;                    /* whether all splits are of small groups */
  uint64_t heap[TD_SPLITS_MAX];      /* keys so far, and the CTA's number in the low 16 bits */
  uint32_t last_item[TD_SPLITS_MAX]; /* each CTA's last item so far */
} prefix_ctas;

static uint64_t time_of(const td_attention_item *it)
{
  return (uint64_t)(it->kv_end - it->kv_begin + TD_ATTENTION_SPLIT_FIXED_KEYS) << 16;
}

static void sift_down(prefix_ctas *ctas, uint32_t at)
{
  uint64_t *heap = ctas->heap, moved = heap[at];
  for (uint32_t child; child = 2 * at + 1, child < ctas->n; at = child) {
    child += child + 1 < ctas->n && heap[child + 1] < heap[child];
    if (moved <= heap[child])
      break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

/* Adds each CTA's first prefix split. They stand before the decodes, because these wait for them
 * (docs/attention-progress.md). */
static void add_first_splits(td_work_list *out, prefix_walk walk, prefix_ctas *ctas)
{
  ctas->n = ctas->n_alone = 0;
  ctas->are_small = true;
  while (walk.n > 0) {
    td_attention_item it = pop_prefix_split(&walk);
    ctas->are_small &= it.n_members <= walk.small_members;
    if (it.n_members <= walk.alone_members) {
      ctas->n_alone++;
      add_item(out, it);
    } else if (ctas->n < ctas->most) {
      ctas->heap[ctas->n] = time_of(&it) | ctas->n;
      ctas->last_item[ctas->n++] = out->n_items;
      add_item(out, it);
    }
  }
  for (uint32_t i = ctas->n / 2; i-- > 0;)
    sift_down(ctas, i);
}

/* Adds the prefix splits that are left, behind all items that CTAs find by their CTA number. Each becomes the
 * next item of the CTA that has the least work so far. */
static void add_next_splits(td_work_list *out, prefix_walk walk, prefix_ctas *ctas)
{
  uint32_t first = out->n_items, n_seen = 0;
  while (walk.n > 0) {
    td_attention_item it = pop_prefix_split(&walk);
    if (it.n_members <= walk.alone_members)
      continue;
    if (n_seen < ctas->n) { /* the first one of a CTA */
      n_seen++;
      continue;
    }
    uint32_t *last = &ctas->last_item[ctas->heap[0] & 0xffff];
    out->items[*last].next = out->n_items;
    *last = out->n_items;
    ctas->heap[0] += time_of(&it);
    sift_down(ctas, 0);
    add_item(out, it);
  }
  out->n_next = out->n_items - first;
  out->n_items = first;
}

/* The resident CTAs for which decodes are cut. A decode that begins only when prefix splits are done ends
 * last. So if few CTAs do splits, and the other CTAs outnumber the wide decodes, decodes are cut for those
 * CTAs alone, and all begin immediately. */
static uint32_t resident_beside(const prefix_ctas *ctas, const decodes *rest, uint32_t resident)
{
  uint32_t n = ctas->n + ctas->n_alone;
  return 3 * n <= resident + 2 && rest->n + n < resident ? resident - n : resident;
}

/* Cuts decodes beside prefix splits that are all small, if they are few. A CTA that does such a split is like
 * one that does a decode, so all are cut together: the splits come first, and are cut already. Returns false
 * if they are not few. */
static bool cut_beside_small(const td_attention_item *splits, uint32_t n_splits, const decodes *d,
                             uint32_t resident, decode_cut *out)
{
  enum { TOGETHER_MAX = 256 };
  uint32_t tokens[TOGETHER_MAX];
  if (n_splits + d->n >= resident || n_splits + d->n_rows > TOGETHER_MAX)
    return false;
  for (uint32_t i = 0; i < n_splits; i++)
    tokens[i] =
        at_least(splits[i].kv_end - splits[i].kv_begin, d->above + 1); /* it needs a CTA, however short */
  memcpy(tokens + n_splits, d->tokens, d->n_rows * sizeof *tokens);
  decodes all = {.tokens = tokens, .n_rows = n_splits + d->n_rows};
  count_above(&all, d->above);
  *out = fill_waves(&all, resident, tries_several_waves(d->n, resident) ? WAVES_MAX : 1);
  if (out->last_from < UINT32_MAX)
    out->last_from -= out->last_from < n_splits ? out->last_from : n_splits;
  return true;
}

static int longest_first(const void *x, const void *y)
{
  const td_attention_item *a = x, *b = y;
  uint32_t n = a->kv_end - a->kv_begin, m = b->kv_end - b->kv_begin;
  return n != m                       ? (n < m ? 1 : -1)
         : a->kv_begin != b->kv_begin ? (a->kv_begin > b->kv_begin ? 1 : -1)
         : a->query != b->query       ? (a->query > b->query ? 1 : -1)
                                      : 0;
}

/* Orders sequences that share nothing: longer ones first, in classes of length, so that no long one begins
 * when the others end. */
static void order_longest_first(uint32_t *order, const td_plan *plan, const td_attention_private *private_kv,
                                uint32_t window)
{
  enum { LENGTHS = 64 };
  uint32_t longest = 1, starts[LENGTHS + 1] = {0};
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    uint32_t n = private_keys(&plan->rows[i], &private_kv[i], window);
    longest = n > longest ? n : longest;
  }
  double part = (LENGTHS - 1) / (double)longest;
  for (uint32_t i = 0; i < plan->n_rows; i++)
    starts[LENGTHS - (uint32_t)(private_keys(&plan->rows[i], &private_kv[i], window) * part)]++;
  for (uint32_t i = 1; i <= LENGTHS; i++)
    starts[i] += starts[i - 1];
  for (uint32_t i = 0; i < plan->n_rows; i++)
    order[starts[LENGTHS - 1 - (uint32_t)(private_keys(&plan->rows[i], &private_kv[i], window) * part)]++] =
        i;
}

/* Orders the rows. Sequences that share nothing come first, because they wait for no prefix split. Then the
 * plan's members follow in their order: neighbours share the most, and splits are done in the same order.
 * by_member: scratch. */
static void order_rows(uint32_t *order, uint32_t *by_member, const td_plan *plan,
                       const td_attention_private *private_kv, uint32_t window, bool sharing)
{
  uint32_t n = 0;
  if (!sharing) {
    order_longest_first(order, plan, private_kv, window);
    return;
  }
  for (uint32_t i = 0; i < plan->n_rows; i++)
    by_member[i] = UINT32_MAX;
  for (uint32_t i = 0; i < plan->n_rows; i++)
    if (private_kv[i].n_memberships > 0)
      by_member[private_kv[i].member] = i;
    else
      order[n++] = i;
  for (uint32_t m = 0; n < plan->n_rows; m++)
    if (by_member[m] != UINT32_MAX)
      order[n++] = by_member[m];
}

/* Fills in private_kv. Returns whether any rows share keys. */
static bool find_private(td_attention_private *private_kv, const td_plan *plan,
                         const td_attention_planner *planner)
{
  if (planner)
    td_attention_planner_private(planner, plan, private_kv);
  else
    memset(private_kv, 0, plan->n_rows * sizeof *private_kv);
  return planner && td_attention_planner_block(planner)->n_splits > 0;
}

/* Cuts the step's chunks. Not called for a step in which each sequence has one token: it may be launched as a
 * captured step, whose grids do not allow for cuts. */
static td_hybrid_cut cut_prefill(const td_plan *plan, const td_hybrid_config *c, const uint32_t *tokens,
                                 const uint32_t *order, const td_hybrid_decodes *beside,
                                 td_hybrid_chunk *chunks)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < plan->n_rows; i++)
    if (tokens[i] == 0)
      chunks[n++] = (td_hybrid_chunk){plan->rows[order[i]].q_len, plan->rows[order[i]].kv_len};
  return td_hybrid_cut_of(c, chunks, n, beside);
}

/* Cuts the step's decodes, whose prefix splits have just been added to the list. */
static decode_cut cut_decodes(const td_work_list *list, const prefix_ctas *ctas, const decodes *d,
                              const td_work_list_config *c, uint32_t resident, uint32_t max_partials)
{
  const td_hybrid_cut *prefill = &list->prefill;
  uint32_t beside = resident_beside(ctas, d, resident),
           keys = prefill->colocated_keys > 0 ? prefill->colocated_keys
                  : prefill->sms_beside > 0   ? prefill->beside_keys
                                              : 0;
  decode_cut cut;
  if (c->policy && c->policy->kv_splits) /* decodes of such a policy are not colocated */
    return (decode_cut){.n_splits = c->policy->kv_splits(d->n, resident)};
  if (keys > 0 && d->n > 0)
    return cut_short(d, keys, max_partials);
  if (d->n > 0 && ctas->n_alone > 0 && ctas->are_small &&
      cut_beside_small(list->items + list->n_items - ctas->n_alone, ctas->n_alone, d, resident, &cut))
    return cut;
  return cut_wide(d, beside, beside < resident);
}

void td_work_list_make(td_work_list *out, const td_plan *plan, const td_work_list_config *c,
                       const td_attention_planner *planner)
{
  uint32_t n_decodes = 0, n_prefills = 0, n_one_token = 0, n_wide = 0, most_rows = 0, longest_keys = 0,
           resident = resident_of(c->n_kv_heads, c->n_resident);
  uint32_t max_partials = td_work_list_partials_max(c), window = c->hybrid.window_tokens;
  uint32_t *tokens = out->scratch, *order = tokens + plan->n_rows;
  const td_attention_private *private_kv = out->private_kv;
  uint64_t n_tokens = 0;
  out->n_items = out->n_partials = out->n_unsplit = out->at_make.longest = 0;
  out->n_prefill_partials = out->longest_prefill = 0;
  bool sharing = find_private(out->private_kv, plan, planner);
  order_rows(order, order + plan->n_rows, plan, private_kv, window, sharing);
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_plan_row *r = &plan->rows[order[i]];
    bool decode = is_decode(r, c);
    tokens[i] = decode ? private_keys(r, &private_kv[order[i]], window) : 0;
    n_decodes += decode;
    most_rows = decode && r->q_len * c->gqa_group > most_rows ? r->q_len * c->gqa_group : most_rows;
    n_one_token += decode && r->q_len == 1;
    n_tokens += tokens[i];
    longest_keys = tokens[i] > longest_keys ? tokens[i] : longest_keys;
    n_prefills += !decode;
  }
  td_hybrid_config hybrid = c->hybrid;
  hybrid.tile_tokens = c->prefill_rows / c->gqa_group;
  out->prefill = (td_hybrid_cut){.tiles = 1};
  decodes d = {.tokens = tokens, .n_rows = plan->n_rows};
  count_above(&d, warp_tokens(n_decodes, c));
  if (n_prefills > 0 && !c->tiles_only && plan->n_tokens > plan->n_rows) {
    const td_hybrid_decodes all = {
        .keys = n_tokens,
        .longest_keys = longest_keys,
        .shared_us = sharing ? td_attention_planner_stats(planner).shared_us / c->n_resident : 0,
        .may_colocate = !sharing && n_decodes > 0 && most_rows <= hybrid.colocated_rows &&
                        !(c->policy && c->policy->kv_splits)};
    out->prefill = cut_prefill(plan, &hybrid, tokens, order, &all, (td_hybrid_chunk *)(order + plan->n_rows));
    if (out->prefill.colocated_keys > 0)
      count_above(&d, 0); /* a warpgroup does any colocated item, however short */
  }
  for (uint32_t i = 0; i < plan->n_rows && n_prefills > 0; i++)
    if (tokens[i] == 0)
      add_prefill(out, &hybrid, &plan->rows[order[i]]);
  out->n_prefill = out->n_items;
  if (n_prefills > 0)
    qsort(out->items, out->n_prefill, sizeof *out->items, longest_first);
  const prefix_walk prefixes = walk_prefixes(planner, c);
  prefix_ctas ctas;
  out->at_make.prefix_ctas = planner ? td_attention_planner_block(planner)->prefix_ctas : 0;
  ctas.most = out->at_make.prefix_ctas < resident ? out->at_make.prefix_ctas : resident;
  add_first_splits(out, prefixes, &ctas);
  decode_cut cut = cut_decodes(out, &ctas, &d, c, resident, max_partials);
  for (uint32_t i = 0; n_wide < d.n; i++)
    if (d.tokens[i] > d.above)
      add_decode(out, &plan->rows[order[i]], &private_kv[order[i]], d.tokens[i],
                 split_tokens(&cut, n_wide++, d.tokens[i]), max_partials);
  out->n_wide = out->n_items;
  for (uint32_t i = 0; i < plan->n_rows && d.n < n_decodes; i++)
    if (d.tokens[i] > 0 && d.tokens[i] <= d.above)
      add_decode(out, &plan->rows[order[i]], &private_kv[order[i]], d.tokens[i], UINT32_MAX, 0);
  add_next_splits(out, prefixes, &ctas);
  out->at_make.n_rows = n_one_token == plan->n_rows ? n_one_token : 0;
  out->at_make.warp_tokens = d.above;
  out->at_make.tokens = n_tokens;
}

bool td_work_list_grow(td_work_list *list, const td_plan *plan, const td_attention_planner *planner)
{
  uint64_t tokens = 0, most_tokens = list->at_make.tokens + list->at_make.tokens / GROWN_PART +
                                     (uint64_t)GROWN_TOKENS * plan->n_rows;
  uint64_t longest =
      (uint64_t)list->at_make.longest + list->at_make.longest / GROWN_PART_OF_LONGEST + GROWN_TOKENS;
  uint32_t n_ctas = planner ? td_attention_planner_block(planner)->prefix_ctas : 0;
  if (list->at_make.n_rows == 0 || list->at_make.n_rows != plan->n_rows ||
      list->at_make.prefix_ctas != n_ctas)
    return false;
  for (uint32_t i = 0; i < list->n_items; i++) {
    td_attention_item *it = &list->items[i];
    if (it->n_tokens == 0) /* a prefix split */
      continue;
    const td_plan_row *r = &plan->rows[it->query];
    bool last = it->kv_end == it->position + 1;
    if (r->q_start != it->query || r->q_len != 1)
      return false;
    it->position = r->kv_len - 1;
    it->kv_end = last ? r->kv_len : it->kv_end;
    uint32_t n = it->kv_end - it->kv_begin;
    uint64_t most = i >= list->n_wide ? list->at_make.warp_tokens : longest;
    if (it->n_partials > 1 && last) { /* a last split longer than the first would keep all others waiting */
      const td_attention_item *first = it - (it->partial - it->first_partial);
      most = first->kv_end - first->kv_begin;
    }
    if (n > most)
      return false;
    tokens += n;
  }
  return tokens <= most_tokens;
}
