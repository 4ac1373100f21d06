/* The attention planner: costs close to the best possible, nothing written past its buffers, and refusals
 * of what cannot be planned. test_kernels_attention_shared checks the contents of plans,
 * test_kernels_attention_float64 what they compute. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention_plan_fixture.h"
#include "kernels/attention/planner.h"

/* ---- costs compared with the best possible ---- */

typedef struct small_node {
  uint32_t parent, keys, n_rows; /* rows that end here */
} small_node;

typedef struct small_tree {
  uint32_t n;
  small_node nodes[6]; /* parents first */
} small_tree;

/* The total cost. Bit (node) of `stay` says whether a node's span begins at it (its keys above belong to
 * another span) or is pushed down; bit (8 + node) says whether its own rows stay. A second implementation,
 * from plan.h's description of costs. */
static double assignment_us(const small_tree *t, const td_attention_planner_config *c, uint32_t tile,
                            uint32_t stay)
{
  double us = 0, key_us = 4.0 * c->head_dim / c->cost.memory_bytes_us,
         l2_us = 4.0 * c->head_dim / c->cost.l2_bytes_us;
  double tile_us = 256.0 * c->head_dim / c->cost.tensor_flop_us;
  double partial_us =
      c->cost.partial_us + 2.0 * c->gqa_group * TD_ATTENTION_PARTIAL_BYTES(c->head_dim) / c->cost.l2_bytes_us;
  uint32_t first_key[6], n_staying[6] = {0}, end[6];
  for (uint32_t i = 0; i < t->n; i++) {
    const small_node *u = &t->nodes[i];
    end[i] = (i ? end[u->parent] : 0) + u->keys;
    first_key[i] = i && !(stay >> i & 1) ? first_key[u->parent] : i ? end[u->parent] : 0;
  }
  for (uint32_t i = t->n; i-- > 0;) { /* rows below that a node's span covers */
    const small_node *u = &t->nodes[i];
    uint32_t all = u->n_rows;
    for (uint32_t k = i + 1; k < t->n; k++)
      if (t->nodes[k].parent == i) {
        uint32_t below_k = 0; /* all rows under k */
        for (uint32_t q = k; q < t->n; q++) {
          uint32_t a = q;
          while (a > k)
            a = t->nodes[a].parent;
          below_k += a == k ? t->nodes[q].n_rows : 0;
        }
        all += below_k;
        n_staying[i] += stay >> k & 1 ? below_k : 0;
      }
    n_staying[i] += stay >> (8 + i) & 1 ? u->n_rows : 0;
    (void)all;
    if (n_staying[i] > 0) {
      uint32_t n_tiles = (n_staying[i] + tile - 1) / tile;
      uint32_t q = (n_staying[i] + n_tiles - 1) / n_tiles * c->gqa_group;
      double multiply = q <= 16 ? 0 : (q + 63) / 64 * tile_us;
      us += n_tiles * c->cost.start_us +
            (end[i] - first_key[i]) * (fmax(key_us, multiply) + (n_tiles - 1) * fmax(l2_us, multiply));
      us += n_staying[i] * partial_us;
    }
    if (!(stay >> (8 + i) & 1) && u->n_rows > 0) /* pushed rows read the keys by themselves */
      us += (end[i] - first_key[i]) * (n_staying[i] ? u->n_rows * l2_us : key_us + (u->n_rows - 1) * l2_us);
  }
  return us * c->n_kv_heads;
}

static int32_t last_key_page(const td_attention_group *g)
{
  return page_table[g->first_page + g->n_keys / 16 - 1];
}

/* The cost of the plan's choices for the tree, by the same formula. */
static double planned_us(const small_tree *t, const td_attention_planner_config *c, const view *v,
                         const td_attention_private *private_kv, const uint32_t *node_of_row,
                         const int32_t *last_page_of_node)
{
  double us = 0, key_us = 4.0 * c->head_dim / c->cost.memory_bytes_us,
         l2_us = 4.0 * c->head_dim / c->cost.l2_bytes_us;
  double tile_us = 256.0 * c->head_dim / c->cost.tensor_flop_us;
  double partial_us =
      c->cost.partial_us + 2.0 * c->gqa_group * TD_ATTENTION_PARTIAL_BYTES(c->head_dim) / c->cost.l2_bytes_us;
  for (uint32_t s = 0; s < v->h->n_groups; s++) {
    const td_attention_group *sp = &v->groups[s];
    bool again = false; /* another tile of the same keys */
    uint32_t q = sp->n_members * c->gqa_group;
    double multiply = q <= 16 ? 0 : (q + 63) / 64 * tile_us;
    for (uint32_t k = 0; k < s; k++)
      again |= page_table[v->groups[k].first_page] == page_table[sp->first_page] &&
               v->groups[k].n_keys == sp->n_keys;
    us += c->cost.start_us + sp->n_keys * fmax(again ? l2_us : key_us, multiply) + sp->n_members * partial_us;
  }
  for (uint32_t i = 0; i < t->n; i++) { /* keys of the tree that rows read by themselves */
    uint32_t end = 0, n = 0;
    for (uint32_t a = i;; a = t->nodes[a].parent) {
      end += t->nodes[a].keys;
      if (a == 0)
        break;
    }
    bool group_here = false;
    for (uint32_t s = 0; s < v->h->n_groups; s++)
      group_here |= last_key_page(&v->groups[s]) == last_page_of_node[i];
    for (uint32_t m = 0; m < v->h->n_members; m++) {
      uint32_t first_key = private_kv[v->members[m].token].begin;
      if (node_of_row[v->members[m].token] != i || first_key >= end)
        continue;
      us += (end - first_key) * (n++ == 0 && !group_here ? key_us : l2_us);
    }
  }
  return us * c->n_kv_heads;
}

/* The worst of many small trees: the plan's cost divided by the best assignment's. */
typedef struct nearness {
  double worst, worst_of_choices; /* including costs that all assignments share; without them */
} nearness;

static nearness near_the_best(const td_attention_policy *policy, uint32_t small_rows, uint32_t n_rounds)
{
  static const uint32_t keys[] = {16, 32, 64, 128, 256, 1024, 4096};
  double worst = 0, own_worst = 0;
  for (uint32_t round = 0; round < n_rounds; round++) {
    td_attention_planner_config c = config_of(16);
    c.policy = policy;
    c.gqa_group = 1u << below(4);
    c.tile_rows = 128;
    c.n_resident = 132;
    c.cost = td_attention_cost_of_h200(c.n_resident);
    c.cost.start_us = 0.8 * below(3);
    c.cost.partial_us = 0.03 * (1 + below(4));
    c.cost.sharing_us = c.cost.small_sharing_us = c.cost.small_group_us = 0;
    c.small_rows = small_rows;
    small_tree t = {.n = 1 + below(6)};
    uint32_t node_of_row[ROWS_MAX], last_row[6], n_rows = 0;
    int32_t last_page[6];
    td_plan plan = begin_plan(16);
    for (uint32_t i = 0; i < t.n; i++)
      t.nodes[i] = (small_node){i ? below(i) : 0, keys[below(7)], below(3) ? below(5) : below(60)};
    for (uint32_t i = 0; i < t.n;
         i++) { /* every leaf has two rows, so that the nodes are those of the pages' tree */
      bool leaf = true;
      for (uint32_t k = i + 1; k < t.n; k++)
        leaf &= t.nodes[k].parent != i;
      t.nodes[i].n_rows += leaf ? 2 : 1;
    }
    /* a node's first row makes its pages; rows of lower nodes use the parent's */
    for (uint32_t i = 0; i < t.n; i++) {
      uint32_t end = t.nodes[i].keys, above = 0;
      for (uint32_t a = i; a != 0; end += t.nodes[a].keys)
        a = t.nodes[a].parent;
      above = end - t.nodes[i].keys;
      for (uint32_t k = 0; k < t.nodes[i].n_rows; k++) {
        add_row(&plan, end + 8,
                k   ? last_row[i]
                : i ? last_row[t.nodes[i].parent]
                    : 0,
                (k ? end : above) / 16);
        node_of_row[plan.n_rows - 1] = i;
        last_row[i] = plan.n_rows - 1;
        last_page[i] = page_table[last_row[i] * STRIPE + end / 16 - 1];
      }
      n_rows += t.nodes[i].n_rows;
    }
    bool few = small_rows > 0 && n_rows * c.gqa_group <= c.tile_rows;
    c.cost.sharing_us = few ? 1e9 : 0; /* so that few rows have small groups only */
    td_attention_planner *p = planner_of(&c);
    make(p, &plan);
    if (few) { /* their CTAs read the same keys at the same time, but partials as ever */
      c.cost.partial_us += 2.0 * c.gqa_group * TD_ATTENTION_PARTIAL_BYTES(c.head_dim) *
                           (1 / c.cost.l2_bytes_us - 1 / c.cost.alone_bytes_us);
      c.cost.l2_bytes_us = c.cost.alone_bytes_us;
    }
    view v = view_of(p);
    td_attention_private private_kv[ROWS_MAX];
    td_attention_planner_private(p, &plan, private_kv);
    double best = INFINITY, got = planned_us(&t, &c, &v, private_kv, node_of_row, last_page);
    uint32_t tile = (few ? c.small_rows : c.tile_rows) / c.gqa_group; /* most members of a group */
    for (uint32_t nodes = 0; nodes < 1u << t.n; nodes += 2)
      for (uint32_t own = 0; own < 1u << t.n; own++)
        best = fmin(best, assignment_us(&t, &c, tile, nodes | own << 8));
    double rest =
        n_rows * 8 * c.n_kv_heads * (512 / c.cost.memory_bytes_us) + n_rows * c.n_kv_heads * c.cost.start_us;
    own_worst = fmax(own_worst, got / best);
    worst = fmax(worst, (got + rest) / (best + rest));
    td_attention_planner_destroy(p);
  }
  return (nearness){worst, own_worst};
}

static bool pat_shares(uint32_t n_keys, uint32_t n_rows) { return n_keys > 4ull * n_rows; }

/* Within 10 % of an exhaustive optimum. PAT's rule, which ignores these costs, is not, which shows that this
 * test can fail. Small groups have more tiles, so a node's own rows have more choices than the planner tries.
 */
static void test_costs_are_near_the_best(void **unused)
{
  (void)unused;
  static const td_attention_policy pat_policy = {.name = "pat", .always_shares = true, .shares = pat_shares};
  nearness ours = near_the_best(NULL, 0, 2000), small = near_the_best(NULL, 16, 2000),
           pat = near_the_best(&pat_policy, 0, 2000);
  print_message(
      "beside the best of all ways to share: worst %.3f with what all ways have, %.3f without; small "
      "groups %.3f, %.3f; PAT's rule %.2f\n",
      ours.worst, ours.worst_of_choices, small.worst, small.worst_of_choices, pat.worst);
  assert_true(ours.worst <= 1.10 && small.worst <= 1.10);
  assert_true(ours.worst_of_choices <= 1.15 && small.worst_of_choices <= 1.30);
  assert_true(pat.worst > 1.25);
}

/* ---- what cannot be planned ---- */

static void test_too_much_is_refused(void **unused)
{
  (void)unused;
  td_attention_planner_config c = config_of(16);
  td_error err;
  c.max_rows = 8;
  td_attention_planner *p = planner_of(&c);
  td_plan plan = random_plan(9, 16, 1000);
  assert_int_equal(td_attention_planner_make(p, &plan, &err), TD_ERR_CAPACITY);
  plan.n_rows = 8;
  make(p, &plan);
  rows[3].kv_len = UINT32_MAX / 2;
  assert_int_equal(td_attention_planner_make(p, &plan, &err), TD_ERR_CAPACITY);
  td_attention_planner_destroy(p);

  static const struct {
    uint32_t group, head_dim, page_tokens, tile_rows, resident;
    const char *says;
  } bad[] = {{0, 128, 16, 128, 396, "kv heads"},
             {129, 128, 16, 128, 396, "kv heads"},
             {4, 0, 16, 128, 396, "head dim"},
             {4, 128, 8, 128, 396, "pages of 8"},
             {4, 128, 16, 256, 396, "tiles of 256"},
             {32, 128, 16, 16, 396, "tiles of 16"},
             {4, 128, 16, 15, 396, "small groups of 16"},
             {4, 128, 16, 128, 0, "0 resident CTAs"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    c = config_of(bad[i].page_tokens);
    c.gqa_group = bad[i].group, c.head_dim = bad[i].head_dim, c.tile_rows = bad[i].tile_rows,
    c.n_resident = bad[i].resident;
    assert_int_equal(td_attention_planner_create(&c, &p, &err), TD_ERR_CONFIG);
    assert_non_null(strstr(err.message, bad[i].says));
  }
}

/* If there are not enough slots, nothing is shared, and that is counted; once there are, it is shared. */
static void test_too_few_slots(void **unused)
{
  (void)unused;
  static const uint32_t nodes[] = {1, 32}, tokens[] = {4096, 100};
  for (uint32_t enough = 0; enough < 2; enough++) {
    td_attention_planner_config c = config_of(16);
    td_plan plan = tree_plan(2, nodes, tokens, 16);
    c.cost.sharing_us = 0;
    c.max_partials = enough ? 0 : 200;
    td_attention_planner *p = planner_of(&c);
    make(p, &plan);
    assert_int_equal(td_attention_planner_stats(p).n_unshared, !enough);
    assert_int_equal(td_attention_planner_block(p)->n_splits > 0, enough);
    assert_int_equal(td_attention_planner_stats(p).private_keys, enough ? 32 * 100 : 32 * 4196);
    td_attention_planner_destroy(p);
  }
}

/* Chains with the largest number of levels, whose rows share all of them in splits of every length: a
 * policy's groups always find slots. */
static void test_slots_suffice_for_policies(void **unused)
{
  (void)unused;
  enum { LEVELS = 20 };
  uint32_t n_levels_most = 0;
  for (uint32_t round = 0; round < 60; round++) {
    td_attention_planner_config c = random_config();
    uint32_t nodes[LEVELS], tokens[LEVELS], n = 2 + below(200), width = 1;
    for (uint32_t l = 0; l < LEVELS; l++) {
      nodes[l] = l + 1 < LEVELS ? width : n;
      tokens[l] = c.page_tokens * (1 + below(below(4) ? 4 : 60));
      width += below(3) == 0 && width < n / 2 ? 1 : 0;
    }
    c.policy = below(2) ? &td_attention_always : &odd_policy;
    c.max_rows = n;
    c.window_tokens = 0;
    td_plan plan = tree_plan(LEVELS, nodes, tokens, c.page_tokens);
    td_attention_planner *p = planner_of(&c);
    make(p, &plan);
    assert_int_equal(td_attention_planner_stats(p).n_unshared, 0);
    const view v = view_of(p);
    for (uint32_t m = 0; m < v.h->n_members; m++)
      n_levels_most = v.members[m].n_memberships > n_levels_most ? v.members[m].n_memberships : n_levels_most;
    td_attention_planner_destroy(p);
  }
  assert_true(n_levels_most >= 6);
}

/* A shared run of more than a million keys. */
static void test_a_very_long_prefix(void **unused)
{
  (void)unused;
  enum { LONG_PAGES = 17000, LONGEST = LONG_PAGES * 64 };
  td_attention_planner_config c = config_of(64);
  c.policy = &td_attention_always;
  td_attention_planner *p = planner_of(&c);
  td_plan plan = begin_plan(64);
  plan.n_rows = plan.n_tokens = 2;
  for (uint32_t i = 0; i < LONG_PAGES; i++)
    page_table[i] = page_table[LONG_PAGES + i] = (int32_t)i;
  for (uint32_t r = 0; r < 2; r++) {
    rows[r] = (td_plan_row){
        .slot = r, .q_start = r, .q_len = 1, .kv_len = LONGEST, .page_table_offset = r * LONG_PAGES};
    page_table[(r + 1) * LONG_PAGES - 1] = (int32_t)(LONG_PAGES + r);
  }
  make(p, &plan);
  const td_attention_group *g = td_attention_planner_groups(p);
  assert_true(td_attention_planner_block(p)->n_groups == 1 && g->n_keys == LONGEST - 64);
  assert_true((uint64_t)g->split_keys * g->n_splits >= g->n_keys &&
              (uint64_t)g->split_keys * (g->n_splits - 1) < g->n_keys);
  td_attention_planner_destroy(p);
}

/* ---- buffers of a fixed size ---- */

enum { GUARDED = 13, GUARD_BYTES = 4096, GUARD = 0xa5 };

/* A planner's arrays in the test's memory, each followed by a guard. */
typedef struct guarded {
  td_attention_planner *p;
  unsigned char *memory[GUARDED];
  size_t bytes[GUARDED];
} guarded;

static void *guard(guarded *g, uint32_t i, void *array, size_t bytes)
{
  g->memory[i] = malloc(bytes + GUARD_BYTES);
  g->bytes[i] = bytes;
  assert_non_null(g->memory[i]);
  memcpy(g->memory[i], array, bytes);
  memset(g->memory[i] + bytes, GUARD, GUARD_BYTES);
  free(array);
  return g->memory[i];
}

static guarded guarded_planner(const td_attention_planner_config *c)
{
  guarded g = {.p = planner_of(c)};
  td_attention_planner *p = g.p;
  size_t n = c->max_rows, n_buckets = 16;
  while (n_buckets < BUCKETS_PER_ROW * n)
    n_buckets *= 2;
  p->rows = guard(&g, 0, p->rows, n * sizeof *p->rows);
  p->tree.nodes = guard(&g, 1, p->tree.nodes, (2 * n + 1) * sizeof *p->tree.nodes);
  p->tree.path = guard(&g, 2, p->tree.path, (n + 2) * sizeof *p->tree.path);
  p->tree.buckets = guard(&g, 3, p->tree.buckets, n_buckets * sizeof *p->tree.buckets);
  p->packing = guard(&g, 4, p->packing, (2 * n + 1) * sizeof *p->packing);
  p->groups = guard(&g, 5, p->groups, p->max_groups * sizeof *p->groups);
  p->group_cost = guard(&g, 6, p->group_cost, p->max_groups * sizeof *p->group_cost);
  p->memberships = guard(&g, 7, p->memberships, p->max_memberships * sizeof *p->memberships);
  p->sorted.first = guard(&g, 8, p->sorted.first, (n + 1) * sizeof *p->sorted.first);
  p->sorted.new_index = guard(&g, 9, p->sorted.new_index, p->max_groups * sizeof *p->sorted.new_index);
  p->sorted.groups = guard(&g, 10, p->sorted.groups, p->max_groups * sizeof *p->sorted.groups);
  p->sorted.cost = guard(&g, 11, p->sorted.cost, p->max_groups * sizeof *p->sorted.cost);
  p->block = guard(&g, 12, p->block, td_attention_block_bytes_max(c));
  return g;
}

static void check_guards(const guarded *g)
{
  for (uint32_t i = 0; i < GUARDED; i++)
    for (uint32_t k = 0; k < GUARD_BYTES; k++)
      assert_int_equal(g->memory[i][g->bytes[i] + k], GUARD);
}

/* Batches of any size and kind for a planner made for few rows: planned or refused, and the guards stay
 * intact. After a refusal, the next batch is planned as if there had been none. */
static void test_nothing_is_written_past_the_buffers(void **unused)
{
  (void)unused;
  uint32_t n_refused = 0, n_planned = 0;
  for (uint32_t round = 0; round < 400; round++) {
    td_attention_planner_config c = random_config();
    c.max_rows = 1 + below(24);
    c.max_partials = below(3) ? 0 : 1 + below(600);
    guarded g = guarded_planner(&c);
    for (uint32_t k = 0; k < 4; k++) {
      td_plan plan = random_plan(1 + below(k == 3 ? c.max_rows : 3 * c.max_rows), c.page_tokens,
                                 below(3) ? 4000 : 40000);
      if (below(4) == 0) /* tables that no scheduler makes */
        for (uint32_t r = 0; r < plan.n_rows; r++)
          for (uint32_t i = 0; i * c.page_tokens < rows[r].kv_len; i++)
            page_table[r * STRIPE + i] = below(4) ? (int32_t)below(20) : page_table[r * STRIPE + i];
      td_error err;
      td_status st = td_attention_planner_make(g.p, &plan, &err);
      check_guards(&g);
      assert_true(st == TD_OK || st == TD_ERR_CAPACITY);
      assert_true(st != TD_OK || plan.n_rows <= c.max_rows);
      assert_true(st != TD_OK || td_attention_planner_block(g.p)->n_partials <= g.p->max_partials);
      assert_true(st != TD_OK ||
                  td_attention_planner_block(g.p)->block_bytes <= td_attention_block_bytes_max(&c));
      n_refused += st != TD_OK;
      n_planned += st == TD_OK;
    }
    td_attention_planner_destroy(g.p);
  }
  assert_true(n_refused > 200 && n_planned > 200);
}

/* Rows that a plan cannot have: no key, or more keys than their table has pages. */
static void test_rows_without_pages_are_refused(void **unused)
{
  (void)unused;
  td_attention_planner_config c = config_of(16);
  td_attention_planner *p = planner_of(&c);
  td_error err;
  td_plan plan = random_plan(4, 16, 1000);
  uint32_t kv_len = rows[2].kv_len;
  rows[2].kv_len = 0;
  assert_int_equal(td_attention_planner_make(p, &plan, &err), TD_ERR_CAPACITY);
  rows[2].kv_len = kv_len;
  plan.page_table_len = 3 * STRIPE + (rows[3].kv_len + 15) / 16;
  make(p, &plan);
  rows[3].kv_len = (rows[3].kv_len + 15) / 16 * 16 +
                   1; /* grown past it, which must be noticed when only lengths have grown, too */
  assert_int_equal(td_attention_planner_make(p, &plan, &err), TD_ERR_CAPACITY);
  assert_non_null(strstr(err.message, "page table"));
  plan.page_table_len++;
  make(p, &plan);
  td_attention_planner_destroy(p);
}

int main(void)
{
  use_all();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_costs_are_near_the_best),
                                     cmocka_unit_test(test_too_much_is_refused),
                                     cmocka_unit_test(test_too_few_slots),
                                     cmocka_unit_test(test_slots_suffice_for_policies),
                                     cmocka_unit_test(test_a_very_long_prefix),
                                     cmocka_unit_test(test_nothing_is_written_past_the_buffers),
                                     cmocka_unit_test(test_rows_without_pages_are_refused)};
  return cmocka_run_group_tests(tests, make_table, free_table);
}
