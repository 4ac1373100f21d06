/* See stage.h. */
#include "bench/stage.h"

#include <stdlib.h>

#include "bench/attention_policies.h"
#include "bench/random.h"
#include "bench/tool.h"

enum { SCATTER_SEED = 5 };

const td_attention_policy *td_stage_policy(const char *name)
{
  const td_attention_policy *policy;
  if (!td_attention_policy_of(name, &policy))
    td_tool_die("--policy: no '%s'", name);
  return policy;
}

void td_stage_init(td_stage *s, td_backend *be, const td_kv_spec *spec, uint32_t n_pages_wanted,
                   uint32_t max_context_tokens)
{
  td_error err;
  td_random r;
  td_kv_spec kv = *spec;
  uint64_t room = be->ops->kv_budget_bytes(be), fixed = be->ops->kv_fixed_bytes(be, spec);
  uint64_t budget = (room > fixed ? room - fixed : 0) / be->ops->kv_bytes_per_page(be, spec);
  kv.n_pages = n_pages_wanted < budget ? n_pages_wanted : (uint32_t)budget;
  if (kv.n_pages < 1)
    td_tool_die("no memory for a single page of KV");
  *s = (td_stage){.be = be, .n_pages = kv.n_pages, .page_tokens = kv.page_tokens};
  s->stripe_pages = max_context_tokens / kv.page_tokens;
  uint32_t n_entries = s->stripe_pages * be->max_rows;
  if (be->ops->kv_create(be, &kv, &s->kv, &err) != TD_OK ||
      td_plan_create(be->max_rows, be->max_tokens, n_entries, kv.page_tokens, &s->plan, &err) != TD_OK)
    td_tool_die("%s", err.message);
  s->table = td_tool_alloc(n_entries, sizeof *s->table);
  s->scattered = td_tool_alloc(kv.n_pages, sizeof *s->scattered);
  s->plan->page_table = s->table;
  s->plan->page_table_len = n_entries;
  td_random_init(&r, SCATTER_SEED);
  for (uint32_t i = 0; i < kv.n_pages; i++) {
    uint32_t k = i > 0 ? td_random_below(&r, i + 1) : 0;
    s->scattered[i] = s->scattered[k];
    s->scattered[k] = (int32_t)i;
  }
  td_sampling greedy = {.top_p = 1};
  for (uint32_t i = 0; i < be->max_rows; i++)
    be->ops->set_sampling(be, i, &greedy);
  s->nothing = td_stage_compile(s, &(td_program){0});
}

void td_stage_deinit(td_stage *s)
{
  td_plan_destroy(s->plan);
  free(s->table);
  free(s->scattered);
  td_stage_discard(s, s->nothing);
  s->be->ops->destroy(s->be);
}

td_compiled *td_stage_compile(td_stage *s, const td_program *program)
{
  td_error err;
  td_compiled *compiled;
  if (s->be->ops->compile(s->be, program, &compiled, &err) != TD_OK)
    td_tool_die("%s", err.message);
  return compiled;
}

void td_stage_discard(td_stage *s, td_compiled *compiled) { s->be->ops->discard(s->be, compiled); }

void td_stage_plan_begin(td_stage *s)
{
  td_plan_clear(s->plan);
  s->next_page = 0;
}

static bool plan_row(td_stage *s, uint32_t q_len, uint32_t kv_len, uint32_t n_shared_pages, bool wants_logits)
{
  td_plan *p = s->plan;
  uint32_t n_pages = (kv_len + s->page_tokens - 1) / s->page_tokens, r = p->n_rows;
  if (r == p->max_rows || p->n_tokens + q_len > p->max_tokens || n_pages > s->stripe_pages ||
      s->next_page + n_pages - n_shared_pages > s->n_pages)
    return false;
  p->rows[r] = (td_plan_row){r, p->n_tokens, q_len, kv_len, r * s->stripe_pages, wants_logits};
  p->n_rows++;
  for (uint32_t i = 0; i < n_pages; i++) {
    uint32_t entry = r * s->stripe_pages + i;
    s->table[entry] = i < n_shared_pages ? s->table[entry - s->stripe_pages] : s->scattered[s->next_page++];
    p->page_updates[p->n_page_updates++] = (td_plan_page_update){entry, s->table[entry]};
  }
  for (uint32_t i = 0; i < q_len; i++, p->n_tokens++) {
    p->token_ids[p->n_tokens] = (int32_t)(1 + (r * 131 + i * 7) % 97);
    p->positions[p->n_tokens] = (int32_t)(kv_len - q_len + i);
  }
  if (wants_logits)
    p->logits_rows[p->n_logits++] = r;
  if (q_len == 1 && p->n_decode_rows == r)
    p->n_decode_rows++;
  else
    p->n_prefill_tokens += q_len;
  return true;
}

bool td_stage_plan_row(td_stage *s, uint32_t q_len, uint32_t kv_len, bool wants_logits)
{
  return plan_row(s, q_len, kv_len, 0, wants_logits);
}

bool td_stage_plan_shared(td_stage *s, uint32_t kv_len, uint32_t n_shared, bool wants_logits)
{
  return plan_row(s, 1, kv_len, s->plan->n_rows > 0 ? n_shared / s->page_tokens : 0, wants_logits);
}

void td_stage_plan_repeat(td_stage *s) { s->plan->n_page_updates = 0; }

static void run_step(td_stage *s, td_compiled *compiled)
{
  td_error err;
  td_outcome ignored;
  td_backend_submit(s->be, compiled ? compiled : s->nothing, s->plan);
  if (td_backend_wait(s->be, &ignored, &err) != TD_OK)
    td_tool_die("%s", err.message);
}

void td_stage_fill(td_stage *s, td_compiled *compiled)
{
  uint32_t most = s->be->max_tokens / s->page_tokens, n;
  if (most > s->stripe_pages)
    most = s->stripe_pages;
  for (uint32_t at = 0; most > 0 && at < s->n_pages; at += n) {
    n = s->n_pages - at < most ? s->n_pages - at : most;
    td_stage_plan_begin(s);
    s->next_page = at;
    if (!td_stage_plan_row(s, n * s->page_tokens, n * s->page_tokens, false))
      td_tool_die("the KV memory cannot be filled");
    run_step(s, compiled);
    td_tool_progress((double)at / s->n_pages, "KV");
  }
  td_stage_plan_begin(s);
  td_tool_progress(-1, " ");
}

typedef struct timed_step {
  td_stage *stage;
  td_compiled *compiled;
} timed_step;

static double one_step(void *arg)
{
  const timed_step *t = arg;
  double begin = td_tool_now_s();
  run_step(t->stage, t->compiled);
  td_stage_plan_repeat(t->stage);
  return td_tool_now_s() - begin;
}

void td_stage_warm(td_stage *s, td_compiled *compiled, double seconds)
{
  timed_step t = {s, compiled};
  for (double until = td_tool_now_s() + seconds; td_tool_now_s() < until;)
    one_step(&t);
}

double td_stage_step_s(td_stage *s, td_compiled *compiled, uint32_t n_rounds, double max_seconds)
{
  timed_step t = {s, compiled};
  td_stats_list l = {0};
  td_stage_time(one_step, &t, 1, (int)n_rounds, 0, max_seconds, &l);
  double v = td_stats_median(l.v, l.n);
  td_stats_deinit(&l);
  return v;
}

void td_stage_time(double (*once)(void *arg), void *arg, int n_warm, int n_min, double min_seconds,
                   double max_seconds, td_stats_list *out)
{
  double begin = td_tool_now_s();
  for (int i = 0; i < n_warm && td_tool_now_s() - begin < max_seconds; i++)
    once(arg);
  begin = td_tool_now_s();
  for (int i = 0;; i++) {
    double spent = td_tool_now_s() - begin;
    if (i > 0 && (spent > max_seconds || (i >= n_min && spent >= min_seconds)))
      return;
    td_stats_add(out, once(arg));
  }
}
