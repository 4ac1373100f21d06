/* For test_kernels_attention_plan: batches whose rows share pages, planners, and a plan's pieces as a kernel goes through them. */
#ifndef TD_TESTS_ATTENTION_PLAN_FIXTURE_H
#define TD_TESTS_ATTENTION_PLAN_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/attention/plan.h"

enum { ROWS_MAX = 1024, STRIPE = 6400, PAGES = ROWS_MAX * STRIPE };

static uint64_t state = 88172645463325252ull;
static uint32_t below(uint32_t n)
{
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 11) % n;
}

/* ---- batches ---- */

static td_plan_row rows[ROWS_MAX];
static int32_t *page_table; /* [PAGES] */
static int32_t next_page;
static bool right_tables = true; /* rows that have a page in common have all before it in common */

static td_plan begin_plan(uint32_t page_tokens)
{
  next_page = 0;
  return (td_plan){.rows = rows, .page_tokens = page_tokens, .page_table_len = PAGES, .page_table = page_table};
}

/* A row that shares its first n_shared pages with row `like`, or none. */
static void add_row(td_plan *plan, uint32_t kv_len, uint32_t like, uint32_t n_shared)
{
  uint32_t r = plan->n_rows++, n = (kv_len + plan->page_tokens - 1) / plan->page_tokens;
  assert_true(r < ROWS_MAX && n <= STRIPE && n_shared <= n);
  rows[r] = (td_plan_row){.slot = r, .q_start = r, .q_len = 1, .kv_len = kv_len, .page_table_offset = r * STRIPE};
  for (uint32_t i = 0; i < n; i++)
    page_table[r * STRIPE + i] = i < n_shared ? page_table[like * STRIPE + i] : next_page++;
  plan->n_tokens = plan->n_rows;
}

/* Each row after the first goes along with a random earlier one, for a random part of it: trees of any depth. */
static td_plan random_plan(uint32_t n, uint32_t page_tokens, uint32_t longest)
{
  td_plan plan = begin_plan(page_tokens);
  for (uint32_t r = 0; r < n; r++) {
    uint32_t kv_len = 1 + (below(4) ? below(longest / 8 + 1) : below(longest)), like = r ? below(r) : 0, shared = 0;
    if (r > 0 && below(8)) {
      uint32_t pages = rows[like].kv_len / page_tokens;
      shared = below(4) ? below(pages + 1) : pages;
      if (kv_len < shared * page_tokens)
        kv_len = shared * page_tokens + below(3 * page_tokens) + !shared;
      if (below(10) == 0) { /* a duplicate */
        kv_len = rows[like].kv_len;
        shared = (kv_len + page_tokens - 1) / page_tokens;
      }
    }
    add_row(&plan, kv_len, like, shared);
  }
  return plan;
}

/* A tree as PAT names them: nodes of each level, the tokens of each. */
static td_plan tree_plan(uint32_t n_levels, const uint32_t *nodes, const uint32_t *tokens, uint32_t page_tokens)
{
  td_plan plan = begin_plan(page_tokens);
  uint32_t n = nodes[n_levels - 1], total = 0;
  for (uint32_t l = 0; l < n_levels; l++)
    total += tokens[l];
  for (uint32_t r = 0; r < n; r++) {
    uint32_t shared = 0;
    for (uint32_t l = 0; l < n_levels && r > 0; l++) {
      if ((uint64_t)r * nodes[l] / n != (uint64_t)(r - 1) * nodes[l] / n)
        break;
      shared += tokens[l] / page_tokens;
    }
    add_row(&plan, total, r - (r > 0), shared);
  }
  return plan;
}

static td_attention_planner_config config_of(uint32_t page_tokens)
{
  return (td_attention_planner_config){.max_rows = ROWS_MAX,
                                       .n_workers = 132,
                                       .n_kv_heads = 8,
                                       .group = 4,
                                       .head_dim = 128,
                                       .page_tokens = page_tokens,
                                       .tile_rows = 128,
                                       .cost = td_attention_cost_of_h200(132)};
}

static td_attention_planner_config random_config(void)
{
  static const uint32_t groups[] = {1, 2, 4, 5, 8, 16, 64, 128}, dims[] = {64, 96, 128, 256};
  uint32_t workers = below(3) ? 132 : 1 + below(600);
  td_attention_planner_config c = {.policy = (td_attention_policy)below(4),
                                   .max_rows = ROWS_MAX,
                                   .n_workers = workers,
                                   .n_kv_heads = 1 + below(below(4) ? 9 : 33),
                                   .group = groups[below(8)],
                                   .head_dim = dims[below(4)],
                                   .page_tokens = 16u << below(3),
                                   .window_tokens = below(4) ? 0 : 1 + below(5000),
                                   .invariant_keys = below(6) ? 0 : 64 * (1 + below(16)),
                                   .cost = td_attention_cost_of_h200(workers)};
  c.tile_rows = below(3) || c.group > 64 ? 128 : 64;
  return c;
}

static td_attention_planner *planner_of(const td_attention_planner_config *c)
{
  td_attention_planner *p = NULL;
  td_error err;
  if (td_attention_planner_create(c, &p, &err) != TD_OK)
    fail_msg("%s", err.message);
  return p;
}

static void make(td_attention_planner *p, const td_plan *plan)
{
  td_error err;
  if (td_attention_planner_make(p, plan, &err) != TD_OK)
    fail_msg("%s", err.message);
}

/* ---- pieces, as a kernel goes through them ---- */

typedef struct view {
  const td_attention_header *h;
  const td_attention_member *members;
  const uint32_t *sources, *first_task;
  const td_attention_span *spans;
  const td_attention_task *tasks;
} view;

static view view_of(const td_attention_planner *p)
{
  const td_attention_header *h = td_attention_planner_block(p);
  return (view){h, td_attention_at(h, h->members_at), td_attention_at(h, h->sources_at), td_attention_first_task(h),
                td_attention_at(h, h->spans_at), td_attention_at(h, h->tasks_at)};
}

typedef struct piece {
  uint32_t head, begin, end; /* keys of the head, from the span's first on */
  uint32_t slot;             /* of member 0, or TD_ATTENTION_DIRECT: these are outputs */
} piece;

/* The next piece of a task after p; before the first, p is the task's begin as begin_of has it. False: there is none. */
static piece begin_of(const td_attention_task *t) { return (piece){.head = t->begin_head, .end = t->begin_key}; }

static bool next_piece(const td_attention_task *t, piece *p)
{
  uint32_t chunk = t->chunk16 * 16u, n = t->n_keys;
  p->head += p->end == n;
  p->begin = p->end == n ? 0 : p->end;
  p->end = p->head == t->end_head ? t->end_key : n;
  if (p->head > t->end_head || p->begin >= p->end)
    return false;
  if (chunk > 0 && p->begin / chunk * chunk + chunk < p->end)
    p->end = p->begin / chunk * chunk + chunk;
  bool whole = p->end - p->begin == n && !t->shared;
  if (whole || t->slot == TD_ATTENTION_DIRECT)
    p->slot = TD_ATTENTION_DIRECT;
  else if (chunk > 0)
    p->slot = t->slot + (p->head * ((n + chunk - 1) / chunk) + p->begin / chunk) * t->n_members;
  else
    p->slot = t->slot + p->head * t->n_members;
  return true;
}

/* Partials of a span's member and head, in the order of keys, as a merge finds them. */
static uint32_t partials_of(const view *v, uint32_t span, uint32_t member, uint32_t head, uint32_t *slots)
{
  const td_attention_span *s = &v->spans[span];
  uint32_t n = 0, chunk = s->chunk16 * 16u, i = member - s->first_member;
  if (chunk > 0) {
    uint32_t n_chunks = (s->n_keys + chunk - 1) / chunk;
    for (; n < n_chunks; n++)
      slots[n] = s->slot + (head * n_chunks + n) * s->n_members + i;
    return n;
  }
  for (uint32_t t = 0; t < s->n_tasks; t++) {
    const td_attention_task *task = &v->tasks[s->first_task + t];
    if (task->begin_head <= head && head <= task->end_head)
      slots[n++] = s->slot + (head + t) * s->n_members + i;
  }
  return n;
}

#endif
