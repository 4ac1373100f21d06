/* Decode attention's plan and work list: prefix splits of shared keys, and each row's private KV. Together
 * they have every key of every row exactly once. Every prefix split belongs to a CTA that begins before the
 * rows that wait for it, and a row's references to partials are right. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention_plan_fixture.h"

/* For any other costs of sharing. */
static td_attention_planner_config served_config(void)
{
  td_attention_planner_config c = config_of(16);
  c.cost.sharing_us = c.cost.small_sharing_us = c.cost.small_group_us = 0;
  return c;
}

/* Some rows are prompt chunks, or have a few consecutive tokens. */
static void mix(td_plan *plan)
{
  plan->n_tokens = 0;
  for (uint32_t r = 0; r < plan->n_rows; r++) {
    uint32_t most = rows[r].kv_len < 40 ? rows[r].kv_len : 40;
    rows[r].q_len = below(6) ? 1 : 1 + below(most);
    rows[r].q_start = plan->n_tokens;
    plan->n_tokens += rows[r].q_len;
  }
}

/* ---- prefix splits ---- */

typedef struct written {
  uint32_t member, head, begin, end; /* keys of the group */
  uint32_t group, number;
  bool is;
} written;

static bool is_small(const td_attention_group *g, const td_attention_planner_config *c)
{
  return g->n_members * c->gqa_group <= c->small_rows;
}

static void write_split(const view *v, const td_attention_planner_config *c, const td_attention_item *it,
                        uint32_t number, written *w)
{
  uint32_t s = 0;
  while (s < v->h->n_groups && number >= v->groups[s].first_split + v->groups[s].n_splits)
    s++;
  assert_true(s < v->h->n_groups && it->first_partial == number);
  const td_attention_group *g = &v->groups[s];
  assert_true(it->member == g->first_member && it->n_members == g->n_members &&
              it->page_table_offset == g->first_page);
  assert_true(it->kv_begin < it->kv_end && it->kv_end <= g->n_keys && it->kv_begin % 64 == 0);
  assert_true(g->n_members > 0 && g->n_members * c->gqa_group <= c->tile_rows);
  assert_true(it->position == it->kv_end - 1); /* a small split's mask */
  for (uint32_t head = 0; head < c->n_kv_heads; head++)
    for (uint32_t i = 0; i < it->n_members; i++) {
      uint32_t partial = it->partial + head * it->n_partials * it->n_members + i; /* as attend_spans has it */
      assert_true(partial < v->h->n_partials && !w[partial].is);
      w[partial] = (written){it->member + i, head, it->kv_begin, it->kv_end, s, number, true};
    }
}

static uint64_t time_of(const td_attention_item *it)
{
  return it->kv_end - it->kv_begin + TD_ATTENTION_SPLIT_FIXED_KEYS;
}

/* Assigns each prefix split after the first ones to the CTA with the least work, of those whose splits are
 * not small. There are n_first first splits and items->n_next more. Returns how often taking turns would have
 * chosen another CTA. */
static uint32_t check_chains(const td_work_list *items, uint32_t n_first, uint32_t alone_members)
{
  uint64_t *time = calloc(n_first + 1, sizeof *time);
  uint32_t *last = calloc(n_first + 1, sizeof *last), n_others = 0, n_blocks = 0;
  assert_true(time && last);
  for (uint32_t i = 0; i < n_first; i++) {
    const td_attention_item *it = &items->items[items->n_prefill + i];
    assert_true(it->n_members > alone_members || it->next == 0);
    if (it->n_members <= alone_members)
      continue;
    last[n_blocks] = items->n_prefill + i;
    time[n_blocks++] = time_of(it);
  }
  for (uint32_t i = 0; i < items->n_next; i++) {
    uint32_t at = items->n_items + i, who = 0;
    while (who < n_blocks && items->items[last[who]].next != at)
      who++;
    assert_true(who < n_blocks);
    for (uint32_t b = 0; b < n_blocks; b++)
      assert_true(time[who] <= time[b]);
    n_others += who != i % n_blocks;
    time[who] += time_of(&items->items[at]);
    last[who] = at;
  }
  free(time);
  free(last);
  return n_others;
}

/* Rows that share something are after those that do not, in the order of the plan's members, and so are
 * splits in the order of their first members. */
static void check_order(const td_work_list *items, const view *v)
{
  for (uint32_t s = 1; s < v->h->n_groups; s++)
    assert_true(v->groups[s - 1].first_member <= v->groups[s].first_member);
  for (uint32_t i = items->n_prefill + 1; i < items->n_items; i++) {
    const td_attention_item *before = &items->items[i - 1], *it = &items->items[i];
    if (before->n_tokens > 0 && i != items->n_wide)
      assert_true(before->n_memberships == 0 || (it->n_memberships > 0 && before->member <= it->member));
  }
}

static uint32_t n_not_in_turns; /* splits that were seen */

/* Records which partial each split writes, as CTAs compute them, each once. */
static written *write_partials(const view *v, const td_attention_planner_config *c, const td_work_list *items)
{
  const td_attention_header *h = v->h;
  written *w = calloc((size_t)h->n_partials + 1, sizeof *w);
  uint32_t n_splits = 0, n_small = 0, n_blocks = 0, places = c->n_resident / c->n_kv_heads;
  uint8_t *seen = calloc(h->n_splits + 1, 1);
  bool fused = h->n_members < WARP_ROWS_MIN;
  assert_true(w && seen);
  for (uint32_t s = 0; s < h->n_groups; s++) {
    uint32_t n = v->groups[s].n_splits, n_keys = v->groups[s].n_keys;
    assert_true(v->groups[s].first_split == n_splits && n > 0);
    if (is_small(&v->groups[s], c))
      assert_true(v->groups[s].split_keys % 128 == 0 && (n <= 8 || n_keys >= 32 * n * n));
    else
      assert_true(n == 1 || (n == 2 && n_keys > 256) || n_keys >= 256 * n);
    n_splits += n;
    n_small += is_small(&v->groups[s], c) ? n : 0;
  }
  assert_int_equal(n_splits, h->n_splits);
  assert_true(n_splits <= td_attention_prefix_splits_max(c, v->h->n_members));
  while (items->n_prefill + n_blocks < items->n_wide &&
         items->items[items->n_prefill + n_blocks].n_tokens == 0)
    n_blocks++;
  uint32_t n_alone = fused ? n_splits : n_small; /* splits that have a CTA each */
  assert_true(n_blocks >= n_alone && n_blocks - n_alone <= (places ? places : 1) &&
              (n_blocks > n_alone) == (n_splits > n_alone));
  for (uint32_t b = 0; b < n_blocks; b++) {
    uint32_t at = items->n_prefill + b;
    do {
      const td_attention_item *it = &items->items[at];
      assert_true(at == items->n_prefill + b ||
                  (at >= items->n_items && at < items->n_items + items->n_next));
      assert_true(it->n_tokens == 0 && it->first_partial < n_splits && !seen[it->first_partial]);
      seen[it->first_partial] = 1;
      write_split(v, c, it, it->first_partial, w);
      at = it->next;
    } while (at != 0);
  }
  for (uint32_t i = 0; i < n_splits; i++)
    assert_true(seen[i]);
  assert_int_equal(n_splits, n_blocks + items->n_next);
  n_not_in_turns += check_chains(items, n_blocks, fused ? UINT32_MAX : c->small_rows / c->gqa_group);
  check_order(items, v);
  free(seen);
  return w;
}

/* Checks the partials that the end of the row reduces: they cover its keys [0, own.begin), each once. Returns
 * how many there are. */
static uint32_t check_shared(const view *v, const td_plan *plan, uint32_t row, td_attention_private own,
                             uint32_t n_heads, const written *w)
{
  const td_plan_row *r = &plan->rows[row];
  uint32_t n_all = 0;
  if (own.n_memberships == 0) {
    assert_int_equal(own.begin, 0);
    return 0;
  }
  const td_attention_member *m = &v->members[own.member];
  assert_true(r->q_len == 1 && m->token == r->q_start && m->n_keys == r->kv_len);
  assert_true(m->first_membership == own.first_membership && m->n_memberships == own.n_memberships &&
              own.n_memberships <= TD_ATTENTION_LEVELS_MAX);
  for (uint32_t head = 0; head < n_heads; head++) {
    uint32_t key = 0;
    for (uint32_t i = 0; i < own.n_memberships; i++) {
      const td_attention_membership *s = &v->memberships[own.first_membership + i];
      uint32_t in_group = 0, group = UINT32_MAX;
      for (uint32_t c = 0; c < s->n_splits; c++) {
        uint32_t partial = s->base_partial + own.member +
                           (head * s->n_splits + c) * s->n_members; /* as find_prefixes has it */
        assert_true(partial < v->h->n_partials);
        const written *p = &w[partial];
        assert_true(p->is && p->member == own.member && p->head == head && p->number == s->first_split + c &&
                    p->begin == in_group);
        assert_true(group == UINT32_MAX || p->group == group);
        group = p->group;
        in_group = p->end;
      }
      assert_int_equal(in_group, v->groups[group].n_keys);
      for (uint32_t k = 0; k < in_group && head == 0 && right_tables; k += plan->page_tokens)
        assert_int_equal(page_table[v->groups[group].first_page + k / plan->page_tokens],
                         page_table[r->page_table_offset + (key + k) / plan->page_tokens]);
      key += in_group;
      n_all += s->n_splits;
    }
    assert_int_equal(key, own.begin);
  }
  assert_true(own.begin % plan->page_tokens == 0 &&
              own.begin < r->kv_len); /* the keys that the step writes are the row's private KV */
  return n_all;
}

/* ---- rows' own keys ---- */

/* Checks the items of a decode row: they cover its keys [own.begin, kv_len), each once. */
static void check_own(const td_work_list *items, const td_plan *plan, uint32_t row, td_attention_private own,
                      uint32_t group)
{
  const td_plan_row *r = &plan->rows[row];
  uint32_t key = own.begin, n = 0, n_of_row = 0;
  for (uint32_t i = 0; i < items->n_items; i++) {
    const td_attention_item *it = &items->items[i];
    if (it->n_tokens == 0 || it->query < r->q_start || it->query >= r->q_start + r->q_len)
      continue;
    if (r->q_len * group > DECODE_ROWS) {
      assert_true(i < items->n_prefill && it->n_memberships == 0 && it->kv_begin == 0);
      continue;
    }
    assert_true(i >= items->n_prefill && it->member == own.member && it->n_memberships == own.n_memberships &&
                it->first_membership == own.first_membership && it->n_tokens == r->q_len);
    assert_true(it->kv_begin == key && it->kv_end > key && it->kv_begin % 16 == 0);
    assert_true(it->n_partials == 1 ||
                (it->partial == it->first_partial + n && it->partial < items->n_partials));
    assert_true(it->kv_end % 16 == 0 ||
                it->kv_end == r->kv_len); /* only a row's last keys may be less than a KV tile */
    key = it->kv_end;
    n_of_row = it->n_partials;
    n++;
  }
  assert_true(r->q_len * group > DECODE_ROWS || (key == r->kv_len && n == n_of_row));
}

/* What the device gets: block_bytes of the block. Everything after them is poisoned. */
static view view_of_device(const td_attention_planner *p, unsigned char *copy)
{
  view v = view_of(p);
  memcpy(copy, v.h, v.h->block_bytes);
  v.members = (const td_attention_member *)(const void *)(copy + v.h->members_at);
  v.memberships = (const td_attention_membership *)(const void *)(copy + v.h->memberships_at);
  return v;
}

static void check_step(steps *run, const td_plan *plan)
{
  const td_work_list_config cut = list_config(run->c);
  const td_attention_planner_config *c = run->c;
  const td_attention_private *own = run->items.private_kv;
  make_step(run, plan);
  unsigned char *copy = malloc(td_attention_block_bytes_max(c));
  assert_non_null(copy);
  view v = view_of_device(run->p, copy);
  assert_true(v.h->block_bytes <= td_attention_block_bytes_max(c) &&
              v.h->n_partials <= td_attention_partials_max(c));
  written *w = write_partials(&v, c, &run->items);
  uint32_t n_written = 0, n_read = 0, n_one_token = 0;
  for (uint32_t r = 0; r < plan->n_rows; r++) {
    n_read += check_shared(&v, plan, r, own[r], c->n_kv_heads, w);
    check_own(&run->items, plan, r, own[r], c->gqa_group);
    run->n_sharing += own[r].n_memberships > 0;
    assert_true(c->window_tokens == 0 || rows[r].kv_len <= c->window_tokens || own[r].begin == 0);
    n_one_token += rows[r].q_len == 1;
  }
  for (uint32_t i = 0; i < v.h->n_partials; i++)
    n_written += w[i].is;
  assert_int_equal(n_written, n_read); /* everything written is reduced once */
  if (n_one_token == plan->n_rows)     /* the grid of a captured step */
    assert_in_range(td_work_list_ctas(&run->items, WARPS), 1,
                    td_work_list_ctas_max(&cut, plan->n_rows) +
                        td_attention_prefix_splits_max(c, plan->n_rows));
  run->n_partials += n_written;
  run->n_split += run->items.n_partials;
  run->n_unshared += (uint32_t)td_attention_planner_stats(run->p).n_unshared;
  free(w);
  free(copy);
}

static void test_every_key_is_had_once(void **unused)
{
  (void)unused;
  uint64_t n_partials = 0, n_sharing = 0, n_split = 0, n_unshared = 0;
  for (uint32_t round = 0; round < 700; round++) {
    td_attention_planner_config c = random_config();
    steps r = {0};
    uint32_t n = below(4) ? 1 + below(40) : 1 + below(256);
    td_plan plan = random_plan(n, c.page_tokens, n > 40 ? 4000 : 100000);
    if (below(2))
      mix(&plan);
    c.max_rows = below(2) ? n : ROWS_MAX;
    open_run(&r, &c);
    check_step(&r, &plan);
    n_partials += r.n_partials, n_sharing += r.n_sharing, n_split += r.n_split, n_unshared += r.n_unshared;
    close_run(&r);
  }
  assert_true(n_partials > 100000 && n_sharing > 5000 && n_split > 5000 &&
              n_not_in_turns > 1000); /* there was something to see */
  assert_int_equal(n_unshared, 0);
}

/* Tables that no scheduler makes. */
static void test_wrong_tables_do_no_harm(void **unused)
{
  (void)unused;
  right_tables = false;
  for (uint32_t round = 0; round < 150; round++) {
    td_attention_planner_config c = random_config();
    steps r = {0};
    td_plan plan = random_plan(1 + below(80), c.page_tokens, 2000);
    uint32_t n_ids = 1 + below(40);
    for (uint32_t i = 0; i < plan.n_rows; i++)
      for (uint32_t k = 0; k * c.page_tokens < rows[i].kv_len; k++)
        page_table[i * STRIPE + k] = below(4) ? (int32_t)below(n_ids) : page_table[i * STRIPE + k];
    open_run(&r, &c);
    check_step(&r, &plan);
    close_run(&r);
  }
  right_tables = true;
}

static void number_tokens(td_plan *plan)
{
  plan->n_tokens = 0;
  for (uint32_t i = 0; i < plan->n_rows; plan->n_tokens += rows[i++].q_len)
    rows[i].q_start = plan->n_tokens;
}

/* The same rows with a prompt among them, which is there for one step. */
static void check_step_with_prompt(steps *r, td_plan *plan)
{
  uint32_t at = below(plan->n_rows + 1), offset = (ROWS_MAX - 1) * STRIPE;
  memmove(&rows[at + 1], &rows[at], (plan->n_rows - at) * sizeof *rows);
  rows[at] = (td_plan_row){.slot = ROWS_MAX, .q_len = 33, .kv_len = 33, .page_table_offset = offset};
  for (uint32_t i = 0; i < 33; i++)
    page_table[offset + i] = next_page++;
  plan->n_rows++;
  number_tokens(plan);
  check_step(r, plan);
  plan->n_rows--;
  memmove(&rows[at], &rows[at + 1], (plan->n_rows - at) * sizeof *rows);
}

/* Rows grow by a token per step, some leave, and a prompt arrives now and then. In every other round there
 * are also rows with two tokens per step between them. */
static void test_steps_one_after_another(void **unused)
{
  (void)unused;
  uint64_t n_sharing = 0, n_grown = 0;
  for (uint32_t round = 0; round < 40; round++) {
    td_attention_planner_config c = random_config();
    steps r = {0};
    td_plan plan = random_plan(2 + below(60), c.page_tokens, 3000);
    open_run(&r, &c);
    for (uint32_t i = 0; i < plan.n_rows; i++)
      rows[i].q_len = round % 2 > 0 && rows[i].kv_len > 1 && i > 0 && below(5) == 0 ? 2 : 1;
    for (uint32_t step = 0; step < 40; step++) {
      uint32_t event = below(8), who = below(plan.n_rows);
      number_tokens(&plan);
      if (event == 1)
        check_step_with_prompt(&r, &plan);
      else
        check_step(&r, &plan);
      if (event == 0 && plan.n_rows > 1)
        rows[who] = rows[--plan.n_rows];
      if (event == 2) { /* another request in its place */
        rows[who].slot += ROWS_MAX;
        rows[who].kv_len = rows[who].q_len + below(2000);
        for (uint32_t i = 0; i <= rows[who].kv_len / c.page_tokens; i++)
          page_table[rows[who].page_table_offset + i] = next_page++;
      }
      grow_rows(&plan);
    }
    n_sharing += r.n_sharing;
    n_grown += r.n_grown;
    td_attention_stats s = td_attention_planner_stats(r.p);
    assert_true(s.n_grown >= 10 && s.n_grown < 40);
    close_run(&r);
  }
  assert_true(n_sharing > 1000 && n_grown > 200);
}

/* A policy's KV splits: the number that it gives for each decode's private KV, equally long except for
 * rounding, as far as each has 128 keys. */
static void test_a_policy_says_how_many_splits(void **unused)
{
  (void)unused;
  uint32_t n_many = 0;
  for (uint32_t round = 0; round < 300; round++) {
    td_attention_planner_config c = random_config();
    steps r = {0};
    c.policy = &odd_policy;
    c.window_tokens = 0;
    td_plan plan = random_plan(1 + below(16), c.page_tokens, 60000);
    open_run(&r, &c);
    check_step(&r, &plan);
    uint32_t resident = c.n_resident / c.n_kv_heads,
             wanted = odd_splits(plan.n_rows, resident < 1               ? 1
                                              : resident < TD_SPLITS_MAX ? resident
                                                                         : TD_SPLITS_MAX);
    assert_int_equal(r.items.n_unsplit, 0);
    for (uint32_t i = r.items.n_prefill; i < r.items.n_wide; i++) {
      const td_attention_item *it = &r.items.items[i];
      uint32_t n = it->n_tokens > 0 ? it->kv_end - it->kv_begin : 0,
               all = it->position + 1 - r.items.private_kv[it->query].begin;
      if (n == 0)
        continue;
      assert_true(it->n_partials <= wanted && n <= all / it->n_partials + 2 * 128);
      assert_true(it->n_partials == wanted || all < wanted * 2 * 128 || all / 128 < 32 * wanted);
      n_many += it->n_partials == wanted && wanted > 1;
    }
    close_run(&r);
  }
  assert_true(n_many > 1000);
}

/* ---- how CTAs are divided ---- */

static void test_long_groups_are_split_and_short_ones_are_not(void **unused)
{
  (void)unused;
  static const struct {
    uint32_t shared, own, least, most;
  } spans[] = {{65536, 64, 40, 64}, {8192, 64, 16, 24}, {4096, 64, 12, 16},
               {512, 64, 2, 2},     {256, 64, 1, 1},    {32, 64, 1, 1}};
  td_attention_planner_config c = served_config();
  c.small_rows = 0;
  td_attention_planner *p = planner_of(&c);
  for (uint32_t i = 0; i < sizeof spans / sizeof *spans; i++) {
    uint32_t nodes[] = {1, 16}, tokens[] = {spans[i].shared, spans[i].own};
    td_plan plan = tree_plan(2, nodes, tokens, 16);
    make(p, &plan);
    view v = view_of(p);
    td_attention_stats s = td_attention_planner_stats(p);
    const td_attention_group *g = v.groups;
    assert_int_equal(v.h->n_groups, 1);
    assert_in_range(g->n_splits, spans[i].least, spans[i].most);
    assert_true(g->split_keys * g->n_splits >= spans[i].shared &&
                g->split_keys * g->n_splits < spans[i].shared + g->split_keys);
    double all_us =
        s.longest_us * g->n_splits *
        c.n_kv_heads; /* the number if none were shorter; except for rounding, only the last one is */
    assert_true(all_us >= 0.99 * s.shared_us && all_us <= 1.15 * s.shared_us);
  }
  td_attention_planner_destroy(p);
}

/* The fastest choice on an H200, of whole spans, halves, thirds ...: a span has at most 64 query rows, and 49
 * splits run at the same time for each head, or 37 or 33. The last two cases have spans of several lengths.
 */
static void test_pieces_are_as_many_as_was_fastest(void **unused)
{
  (void)unused;
  static const struct {
    uint32_t group, n, nodes[6], tokens[6], pieces;
  } trees[] = {{4, 2, {1, 10}, {4096, 416}, 16},
               {4, 2, {1, 256}, {256, 32}, 16},
               {4, 2, {1, 256}, {288, 32}, 32},
               {4, 2, {1, 256}, {544, 32}, 32},
               {4, 2, {1, 512}, {544, 256}, 32},
               {4, 2, {1, 512}, {1024, 256}, 32},
               {4, 2, {1, 512}, {2080, 256}, 32},
               {4, 2, {1, 1024}, {2048, 32}, 64},
               {4, 2, {1, 64}, {1280, 256}, 20},
               {8, 2, {1, 64}, {1280, 256}, 32},
               {8, 2, {1, 512}, {1408, 32}, 64},
               {8, 2, {1, 512}, {2080, 256}, 64},
               {4, 4, {8, 16, 32, 256}, {512, 512, 256, 32}, 48},
               {2, 6, {1, 16, 32, 64, 128, 1024}, {256, 128, 64, 32, 32, 32}, 160}};
  td_attention_planner_config c = served_config();
  c.small_rows = 0;
  for (uint32_t i = 0; i < sizeof trees / sizeof *trees; i++) {
    c.gqa_group = trees[i].group;
    c.reduces_in_tiles = trees[i].group > 4;
    td_attention_planner *p = planner_of(&c); /* a new planner, because rows that only grew keep their cuts */
    td_plan plan = tree_plan(trees[i].n, trees[i].nodes, trees[i].tokens, 16);
    make(p, &plan);
    assert_int_equal(td_attention_planner_block(p)->n_splits, trees[i].pieces);
    td_attention_planner_destroy(p);
  }
}

/* CTAs for prefix splits, decodes' items after them, and places for both, in a batch of rows that share some
 * tokens. Of 49 places, splits have all unless rows have more than six times as many private keys. Then they
 * have three quarters, or two thirds if many rows have more of them, or a third if a few long rows with six
 * times as many keys find places too. */
static void test_pieces_leave_room_to_rows(void **unused)
{
  (void)unused;
  static const struct {
    uint32_t group, rows, shared, own, blocks;
    bool at_once;
  } batches[] = {
      {2, 24, 8192, 2736, 17, true}, {2, 24, 8192, 2056, 17, true},   {2, 24, 8192, 2048, 22, false},
      {2, 24, 2048, 2736, 8, true},  {4, 2, 512, 8192, 2, true},      {2, 24, 8192, 340, 22, false},
      {4, 64, 8192, 512, 48, false}, {4, 380, 4096, 1553, 37, false}, {4, 380, 4096, 1552, 48, false},
      {4, 1000, 512, 33, 33, false}, {4, 1000, 512, 32, 49, false},   {4, 1000, 512, 200, 33, false},
      {4, 16, 8192, 4096, 22, false}}; /* few enough to be fused: a CTA for each split */
  td_attention_planner_config c = served_config();
  c.small_rows = 0;
  for (uint32_t i = 0; i < sizeof batches / sizeof *batches; i++) {
    c.gqa_group = batches[i].group;
    uint32_t nodes[] = {1, batches[i].rows}, tokens[] = {batches[i].shared, batches[i].own};
    td_plan plan = tree_plan(2, nodes, tokens, 16);
    steps r = {0};
    open_run(&r, &c);
    check_step(&r, &plan);
    assert_int_equal(n_prefix_ctas(&r), batches[i].blocks);
    if (batches[i].at_once)
      assert_in_range(r.items.n_wide, 32, 49);
    close_run(&r);
  }
}

/* Few rows make small groups: each tile of 16 query rows has its own splits, which are cut together with
 * private KV: for one wave of 49 CTAs, or for several of about the same length. A row that would need a tile
 * of its own reads the keys by itself. */
static void test_small_groups_are_cut_like_decodes(void **unused)
{
  (void)unused;
  static const struct {
    uint32_t group, rows, shared, own, groups, splits, items; /* items: of private KV */
  } batches[] = {{4, 2, 1024, 512, 1, 8, 8},     {4, 4, 8192, 512, 1, 16, 8},   {4, 5, 8192, 512, 1, 16, 18},
                 {4, 8, 1024, 4096, 2, 4, 40},   {4, 16, 1024, 512, 4, 16, 32}, {4, 16, 1024, 4096, 4, 4, 77},
                 {4, 16, 8192, 4096, 4, 20, 60}, {1, 16, 8192, 512, 1, 16, 32}, {8, 8, 4096, 512, 4, 32, 8}};
  for (uint32_t i = 0; i < sizeof batches / sizeof *batches; i++) {
    td_attention_planner_config c = served_config();
    c.gqa_group = batches[i].group;
    c.reduces_in_tiles = c.gqa_group > 4;
    c.cost = td_attention_cost_of_h200(c.n_resident);
    c.policy = &td_attention_always;
    steps r = {0};
    open_run(&r, &c);
    td_plan plan = tree_plan(2, (const uint32_t[]){1, batches[i].rows},
                             (const uint32_t[]){batches[i].shared, batches[i].own}, 16);
    check_step(&r, &plan);
    const td_attention_header *h = td_attention_planner_block(r.p);
    assert_int_equal(h->n_groups, batches[i].groups);
    assert_int_equal(h->n_splits, batches[i].splits);
    assert_int_equal(n_prefix_ctas(&r), h->n_splits);
    assert_int_equal(r.items.n_wide - h->n_splits, batches[i].items);
    close_run(&r);
  }
}

/* A small split needs a CTA, however short it is: wide decodes beside some of 64 keys fill three waves at
 * most, as beside longer ones. */
static void test_short_small_splits_take_places(void **unused)
{
  (void)unused;
  td_attention_planner_config c = served_config();
  c.policy = &td_attention_always;
  c.cost.start_us = c.cost.partial_us = 0;
  steps r = {0};
  open_run(&r, &c);
  td_plan plan = begin_plan(16);
  for (uint32_t i = 0; i < 16; i++) /* eight pairs */
    add_row(&plan, 64 + 20, i & ~1u, i % 2 ? 64 / 16 : 0);
  for (uint32_t i = 16; i < 54; i++)
    add_row(&plan, i < 36 ? 3000 + 37 * i : 20, 0, 0);
  check_step(&r, &plan);
  assert_int_equal(td_attention_planner_block(r.p)->n_splits, 8);
  assert_true(r.items.n_wide < r.items.n_items && r.items.n_wide <= 3 * 49);
  close_run(&r);
}

/* Few rows whose groups fill a tile: decodes are cut for all places, because the splits take tensor-core time
 * and not a decode's. */
static void test_tiles_of_few_rows_are_not_cut_like_decodes(void **unused)
{
  (void)unused;
  static const td_attention_policy tiles = {.always_shares = true, .never_small = true};
  td_attention_planner_config c = served_config();
  c.policy = &tiles;
  steps r = {0};
  open_run(&r, &c);
  td_plan plan = tree_plan(2, (const uint32_t[]){1, 16}, (const uint32_t[]){8192, 4096}, 16);
  check_step(&r, &plan);
  const td_attention_header *h = td_attention_planner_block(r.p);
  assert_int_equal(h->n_groups, 1);
  assert_int_equal(r.items.n_wide - h->n_splits, 48);
  close_run(&r);
}

/* Where there are more rows than places, a small group's splits are as long as rows are on average. */
static void test_small_groups_among_many_rows(void **unused)
{
  (void)unused;
  enum { ALONE = 100, SHARED = 32768 };
  td_attention_planner_config c = served_config();
  td_attention_planner *p = planner_of(&c);
  td_plan plan = begin_plan(16);
  for (uint32_t r = 0; r < 4; r++)
    add_row(&plan, SHARED + 16, 0, r ? SHARED / 16 : 0);
  for (uint32_t r = 0; r < ALONE; r++)
    add_row(&plan, 1000, 0, 0);
  make(p, &plan);
  uint32_t average = (SHARED + 4 * 16 + ALONE * 1000) / (1 + 4 + ALONE);
  const td_attention_group *g = td_attention_planner_groups(p);
  assert_int_equal(td_attention_planner_block(p)->n_groups, 1);
  assert_in_range(g->split_keys, average, average + 128);
  td_attention_planner_destroy(p);
}

/* Groups of 8: 49 spans of 8 members each, so that each of the 49 places has a split, or each that many rows
 * leave, from 8 for each place on. */
static void test_many_rows_have_a_third_of_the_places(void **unused)
{
  (void)unused;
  static const struct {
    uint32_t rows, own, blocks;
  } batches[] = {{392, 129, 33}, {392, 128, 49}, {391, 140, 49}};
  td_attention_planner_config c = served_config();
  c.gqa_group = 8;
  c.reduces_in_tiles = true;
  for (uint32_t i = 0; i < sizeof batches / sizeof *batches; i++) {
    steps r = {0};
    open_run(&r, &c);
    td_plan plan =
        tree_plan(2, (const uint32_t[]){1, batches[i].rows}, (const uint32_t[]){1024, batches[i].own}, 16);
    check_step(&r, &plan);
    assert_int_equal(n_prefix_ctas(&r), batches[i].blocks);
    close_run(&r);
  }
}

/* More places for each head than the largest number of CTAs for splits. */
static void test_more_places_than_blocks(void **unused)
{
  (void)unused;
  td_attention_planner_config c = served_config();
  c.n_kv_heads = 1;
  c.n_resident = 4000;
  steps r = {0};
  open_run(&r, &c);
  td_plan plan = tree_plan(2, (const uint32_t[]){1, 800}, (const uint32_t[]){16384, 64}, 16);
  check_step(&r, &plan);
  assert_true(td_attention_planner_block(r.p)->n_splits > TD_SPLITS_MAX);
  assert_int_equal(n_prefix_ctas(&r), TD_SPLITS_MAX);
  close_run(&r);
}

/* Spans of two kinds together cost what they cost by themselves, except for how they are cut: each has the
 * cost of its kind. */
static void test_spans_in_another_order_keep_their_costs(void **unused)
{
  (void)unused;
  static const struct {
    uint32_t n, nodes[3], tokens[3];
  } trees[] = {{2, {1, 64}, {2048, 64}}, {2, {16, 64}, {256, 64}}, {3, {1, 16, 64}, {2048, 256, 64}}};
  double total_us[3];
  td_attention_planner_config c = served_config();
  for (uint32_t i = 0; i < 3; i++) {
    td_attention_planner *p = planner_of(&c);
    td_plan plan = tree_plan(trees[i].n, trees[i].nodes, trees[i].tokens, 16);
    make(p, &plan);
    total_us[i] = td_attention_planner_stats(p).shared_us;
    assert_int_equal(td_attention_planner_block(p)->n_groups, i == 0 ? 4 : i == 1 ? 16 : 20);
    td_attention_planner_destroy(p);
  }
  assert_true(fabs(total_us[2] / (total_us[0] + total_us[1]) - 1) < 0.02);
}

/* 64 rows that share 4,096 tokens, four spans; from 1,536 private keys each on, private keys are six times as
 * many. */
static void test_blocks_for_pieces_follow_rows_that_grow(void **unused)
{
  (void)unused;
  uint32_t nodes[] = {1, 64}, tokens[] = {4096, 1530};
  td_attention_planner_config c = served_config();
  steps r = {0};
  open_run(&r, &c);
  td_plan plan = tree_plan(2, (const uint32_t[]){1, 100}, (const uint32_t[]){16384, 64},
                           16); /* nothing of another batch stays */
  check_step(&r, &plan);
  plan = tree_plan(2, nodes, tokens, 16);
  for (uint32_t own = tokens[1]; own < 1544; own++) {
    check_step(&r, &plan);
    uint32_t n_splits = td_attention_planner_block(r.p)->n_splits;
    assert_true(n_splits > 37);
    assert_int_equal(n_prefix_ctas(&r), own > 1536 ? 37 : n_splits < 49 ? n_splits : 49);
    grow_rows(&plan);
  }
  assert_true(td_attention_planner_stats(r.p).n_grown == 13);
  close_run(&r);
}

/* Times of an H200 for a step with and without sharing, with 512 private tokens of each row after the shared
 * ones. If both took the same within 3 us a layer, either choice is right. */
static void test_what_is_not_worth_it_is_not_shared(void **unused)
{
  (void)unused;
  static const struct {
    uint32_t n_rows, n_shared, n_own;
    bool pays;
  } measured[] = {
      {2, 512, 512, false},  {2, 8192, 512, false},  {4, 4096, 512, false}, {4, 8192, 512, true},
      {8, 512, 512, false},  {8, 1024, 512, false},  {8, 2048, 512, false}, {8, 8192, 512, true},
      {16, 512, 512, false}, {16, 1024, 512, false}, {16, 4096, 512, true}, {16, 8192, 512, true},
      {32, 2048, 512, true}, {32, 4096, 512, true},  {32, 8192, 512, true}, {64, 512, 512, false},
      {64, 2048, 512, true}, {64, 4096, 512, true},  {64, 8192, 512, true}, {16, 1024, 4096, false},
      {4, 8192, 4096, true}, {8, 8192, 4096, true},  {16, 8192, 4096, true}};
  td_attention_planner_config c = served_config();
  for (uint32_t priced = 0; priced < 2; priced++) {
    if (priced)
      c.cost = td_attention_cost_of_h200(c.n_resident);
    td_attention_planner *p = planner_of(&c);
    for (uint32_t i = 0; i < sizeof measured / sizeof *measured; i++) {
      uint32_t nodes[] = {1, measured[i].n_rows}, tokens[] = {measured[i].n_shared, measured[i].n_own};
      td_attention_private own[ROWS_MAX];
      td_plan plan = tree_plan(2, nodes, tokens, 16);
      make(p, &plan);
      td_attention_planner_private(p, &plan, own);
      bool shares = td_attention_planner_block(p)->n_splits > 0;
      assert_true(priced ? shares == measured[i].pays : shares || measured[i].n_rows < 16);
      assert_int_equal(own[0].begin, shares ? measured[i].n_shared : 0);
      assert_int_equal(own[0].n_memberships == 0, !shares);
    }
    td_attention_planner_destroy(p);
  }
}

/* Few rows have small groups only where that is predicted to be faster. If very many keys are shared, or if a
 * small group has no room for two members, they fill a tile. */
static void test_few_rows_of_many_keys_fill_a_tile(void **unused)
{
  (void)unused;
  static const struct {
    uint32_t group, heads, rows, shared, groups;
  } batches[] = {{4, 8, 16, 4096, 4},   {4, 8, 16, 65536, 1}, {8, 8, 8, 32768, 1},
                 {8, 8, 8, 100000, 1},  {7, 4, 9, 32768, 1},  {12, 8, 5, 32768, 1},
                 {16, 2, 4, 100000, 1}, {1, 8, 16, 65536, 1}, {1, 32, 64, 2048, 4}};
  for (uint32_t i = 0; i < sizeof batches / sizeof *batches; i++)
    for (uint32_t never_small = 0; never_small < 2; never_small++) {
      const td_attention_policy policy = {.never_small = never_small};
      td_attention_planner_config c = config_of(16);
      c.gqa_group = batches[i].group, c.n_kv_heads = batches[i].heads;
      c.policy = &policy;
      td_attention_planner *p = planner_of(&c);
      td_plan plan = tree_plan(2, (const uint32_t[]){1, batches[i].rows},
                               (const uint32_t[]){batches[i].shared / 16 * 16, 512}, 16);
      make(p, &plan);
      assert_int_equal(td_attention_planner_block(p)->n_groups, never_small ? 1 : batches[i].groups);
      td_attention_planner_destroy(p);
    }
}

/* The number of shared keys, and so the saving, does not depend on how long private keys become. */
static void test_what_is_worth_it_stays_so(void **unused)
{
  (void)unused;
  static const uint32_t own_tokens[] = {64, 512, 8192, 60000};
  td_attention_planner_config c = config_of(16);
  for (uint32_t shared = 0; shared < 2; shared++)
    for (uint32_t i = 0; i < sizeof own_tokens / sizeof *own_tokens; i++) {
      uint32_t nodes[] = {1, 16}, tokens[] = {shared ? 4096 : 512, own_tokens[i]};
      td_attention_planner *p = planner_of(&c);
      td_plan plan = tree_plan(2, nodes, tokens, 16);
      for (uint32_t step = 0; step < 40; step++) {
        make(p, &plan);
        assert_int_equal(td_attention_planner_block(p)->n_splits > 0, shared);
        grow_rows(&plan);
      }
      assert_true(td_attention_planner_stats(p).n_full == 1);
      td_attention_planner_destroy(p);
    }
}

/* Sharing saves as much as the planner predicts, to a tenth of a microsecond. */
static void test_what_sharing_saves_decides(void **unused)
{
  (void)unused;
  uint32_t nodes[] = {1, 64}, tokens[] = {2048, 64};
  td_attention_planner_config c = served_config();
  td_attention_planner *p = planner_of(&c);
  td_plan plan = tree_plan(2, nodes, tokens, 16);
  make(p, &plan);
  double alone_us = 4.0 * 128 * 8 * 2048 * 64 / 10.7e6,
         saves_us = alone_us - td_attention_planner_stats(p).shared_us / c.n_resident;
  /* four tiles of 16 rows, each in 8 splits of 256 keys, 8 heads: the first reads from memory, the others
   * from the L2 cache */
  double row_us = 4.0 * 128 / (4.47e6 / 396), again_us = 4.0 * 128 / (7.5e6 / 396),
         partial_us = 0.3 + 2 * 4 * 272 / (7.5e6 / 396);
  double expected_us = 8 * (2048 * (row_us + 3 * again_us) + 4 * 8 * (3 + 16 * partial_us));
  assert_int_equal(td_attention_planner_block(p)->n_splits, 4 * 8);
  assert_float_equal((float)(alone_us - saves_us), (float)(expected_us / 396), 0.01f);
  td_attention_planner_destroy(p);
  for (int more = 0; more < 2; more++) {
    c.cost.sharing_us = saves_us + (more ? 0.1 : -0.1);
    p = planner_of(&c);
    make(p, &plan);
    assert_int_equal(td_attention_planner_block(p)->n_splits > 0, !more);
    td_attention_planner_destroy(p);
  }
}

/* 64 decodes of 8,192 keys beside a chunk of 1,024 tokens. shared_keys: how many of these keys are shared. */
static td_work_list_config hybrid_step(steps *r, td_plan *plan, uint32_t shared_keys)
{
  uint32_t tokens[2] = {shared_keys, 8192 - shared_keys};
  *plan = tree_plan(2, (uint32_t[]){1, 64}, tokens, 16);
  add_row(plan, 8192, 0, 0);
  rows[64].q_len = 1024;
  plan->n_tokens = 64 + 1024;
  td_attention_planner_reset(r->p);
  make(r->p, plan);
  td_work_list_config c = list_config(r->c);
  c.hybrid = (td_hybrid_config){
      .n_sms = 132, .n_kv_heads = 8, .head_dim = 128, .tile_keys = 128, .memory_bytes_us = 4.47e6};
  return c;
}

/* Prefix splits and private KV begin with prefill, unchanged, on separate SMs. */
static void test_what_is_shared_goes_beside_prefill(void **unused)
{
  (void)unused;
  static const td_attention_policy serial = {.never_beside = true};
  td_plan plan;
  steps r = {0};
  td_attention_planner_config c = config_of(16);
  open_run(&r, &c);
  td_work_list_config list = hybrid_step(&r, &plan, 4096);
  td_work_list_make(&r.items, &plan, &list, r.p);
  td_attention_stats s = td_attention_planner_stats(r.p);
  assert_int_equal(s.private_keys, 64 * 4096);
  assert_true(s.shared_keys == 4 * 4096 && n_prefix_ctas(&r) > 0);
  assert_true(r.items.prefill.sms_beside > 0 && r.items.prefill.colocated_keys == 0);
  list.hybrid.colocated_rows = 8; /* the colocating kernel cannot reduce prefix splits */
  td_work_list_make(&r.items, &plan, &list, r.p);
  assert_true(r.items.prefill.sms_beside > 0 && r.items.prefill.colocated_keys == 0);
  list.hybrid.policy = &serial;
  td_work_list_make(&r.items, &plan, &list, r.p);
  assert_true(r.items.prefill.sms_beside == 0 && n_prefix_ctas(&r) > 0);
  close_run(&r);
}

/* Shared keys of decodes are read once; if little remains, fewer SMs are left to decodes. */
static void test_shared_keys_count_once_beside_prefill(void **unused)
{
  (void)unused;
  uint32_t sms[2], i = 0;
  td_plan plan;
  steps r = {0};
  td_attention_planner_config c = config_of(16);
  open_run(&r, &c);
  for (uint32_t shared = 2048; i < 2; i++, shared = 7936) {
    td_work_list_config list = hybrid_step(&r, &plan, shared);
    td_work_list_make(&r.items, &plan, &list, r.p);
    assert_true(td_attention_planner_block(r.p)->n_splits > 0);
    sms[i] = r.items.prefill.sms_beside;
  }
  assert_true(sms[0] > sms[1] && sms[1] > 0);
  close_run(&r);
}

int main(void)
{
  use_all();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_key_is_had_once),
                                     cmocka_unit_test(test_wrong_tables_do_no_harm),
                                     cmocka_unit_test(test_steps_one_after_another),
                                     cmocka_unit_test(test_a_policy_says_how_many_splits),
                                     cmocka_unit_test(test_long_groups_are_split_and_short_ones_are_not),
                                     cmocka_unit_test(test_pieces_are_as_many_as_was_fastest),
                                     cmocka_unit_test(test_pieces_leave_room_to_rows),
                                     cmocka_unit_test(test_small_groups_are_cut_like_decodes),
                                     cmocka_unit_test(test_short_small_splits_take_places),
                                     cmocka_unit_test(test_tiles_of_few_rows_are_not_cut_like_decodes),
                                     cmocka_unit_test(test_small_groups_among_many_rows),
                                     cmocka_unit_test(test_few_rows_of_many_keys_fill_a_tile),
                                     cmocka_unit_test(test_many_rows_have_a_third_of_the_places),
                                     cmocka_unit_test(test_more_places_than_blocks),
                                     cmocka_unit_test(test_spans_in_another_order_keep_their_costs),
                                     cmocka_unit_test(test_blocks_for_pieces_follow_rows_that_grow),
                                     cmocka_unit_test(test_what_is_not_worth_it_is_not_shared),
                                     cmocka_unit_test(test_what_is_worth_it_stays_so),
                                     cmocka_unit_test(test_what_sharing_saves_decides),
                                     cmocka_unit_test(test_what_is_shared_goes_beside_prefill),
                                     cmocka_unit_test(test_shared_keys_count_once_beside_prefill)};
  return cmocka_run_group_tests(tests, make_table, free_table);
}
