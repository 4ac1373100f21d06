/* See stage.h. */
#include "bench/stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/attention_policies.h"
#include "loadgen/random.h"
#include "models/model.h"

enum { ACTIVATION_SEED = 11 };

static const td_attention_policy *policy_of(const char *name)
{
  const td_attention_policy *policy;
  if (!td_attention_policy_of(name, &policy))
    td_tool_die("--policy: no '%s'", name);
  return policy;
}

/* ---- the backend and its memory ---- */

void td_stage_open(td_stage *s, const td_stage_options *o, const td_model_desc *d, td_backend_config c)
{
  td_error err;
  *s = (td_stage){.desc = *d};
  c.n_threads = (uint32_t)o->threads;
  c.int8_activations = o->cpu_exact == 0;
  c.max_slots = c.max_rows;
  c.device = (uint32_t)o->device;
  c.gpu_memory_percent = (uint32_t)o->gpu_memory_percent;
  if (!c.attention_policy)
    c.attention_policy = policy_of(o->policy);
  td_tool_check(td_backend_create(o->backend, &c, &s->be, &err), &err);
  s->inv_freq = td_stage_upload(s, d->rope_inv_freq, d->rotary_dim / 2);
}

td_kv_spec td_stage_kv_spec(const td_stage *s, uint32_t n_layers)
{
  td_model_desc d = s->desc;
  d.n_layers = n_layers;
  return td_model_kv_spec(&d, s->be->kv_dtype, 1, TD_STAGE_PAGE_TOKENS);
}

double td_stage_kv_token_bytes(const td_stage *s, uint32_t n_layers)
{
  td_kv_spec spec = td_stage_kv_spec(s, n_layers);
  return (double)s->be->ops->kv_bytes_per_page(s->be, &spec) / TD_STAGE_PAGE_TOKENS;
}

void td_stage_add_kv(td_stage *s, uint32_t n_layers, double n_pages_wanted, uint32_t max_context_tokens)
{
  td_error err;
  td_backend *be = s->be;
  td_kv_spec kv = td_stage_kv_spec(s, n_layers);
  td_tool_check(be->ops->kv_check(be, &kv, &err), &err);
  uint64_t room = be->ops->kv_budget_bytes(be), fixed = be->ops->kv_fixed_bytes(be, &kv);
  uint64_t budget = (room > fixed ? room - fixed : 0) / be->ops->kv_bytes_per_page(be, &kv);
  kv.n_pages = (uint32_t)fmin(fmin(n_pages_wanted, (double)budget), 1 << 28);
  if (kv.n_pages < 1)
    td_tool_die("no memory for a single page of KV");
  s->n_layers = n_layers;
  td_tool_check(be->ops->kv_create(be, &kv, &s->kv, &err), &err);
  td_tool_check(td_dummy_plan_init(&s->dummy,
                                   &(td_dummy_plan_config){.max_rows = be->max_rows,
                                                           .max_tokens = be->max_tokens,
                                                           .max_logits = be->max_logits,
                                                           .page_tokens = TD_STAGE_PAGE_TOKENS,
                                                           .n_pages = kv.n_pages,
                                                           .n_ids = s->desc.vocab,
                                                           .max_row_tokens = max_context_tokens},
                                   &err),
                &err);
  td_sampling greedy = {.top_p = 1};
  for (uint32_t i = 0; i < be->max_rows; i++)
    be->ops->set_sampling(be, i, &greedy);
  s->nothing = td_stage_compile(s, &(td_program){0});
}

void td_stage_close(td_stage *s)
{
  td_dummy_plan_deinit(&s->dummy);
  if (s->nothing)
    td_stage_discard(s, s->nothing);
  s->be->ops->destroy(s->be);
}

bool td_stage_on_cpu(const td_stage *s) { return strcmp(s->be->ops->name, "cpu") == 0; }

void td_stage_describe(const td_stage *s, const td_ceiling *c, cJSON *o)
{
  cJSON_AddStringToObject(o, "backend", s->be->ops->name);
  cJSON_AddNumberToObject(o, "ceiling_gb_s", c->bytes_per_s * 1e-9);
  cJSON_AddNumberToObject(o, "ceiling_tflop_s", c->flop_per_s * 1e-12);
}

/* ---- what ops read and write ---- */

td_devptr td_stage_alloc(td_stage *s, size_t bytes)
{
  td_error err;
  td_devptr p;
  td_tool_check(s->be->ops->alloc(s->be, bytes, &p, &err), &err);
  return p;
}

td_devptr td_stage_upload(td_stage *s, const float *v, size_t n)
{
  td_error err;
  td_devptr p;
  td_tool_check(s->be->ops->upload_f32(s->be, v, n, &p, &err), &err);
  return p;
}

/* The upload keeps the bits unchanged: random signs and mantissas, values of 1/8 to 1/2 in either width. */
td_devptr td_stage_random(td_stage *s, size_t bytes)
{
  td_random r;
  size_t n = bytes / sizeof(float);
  float *v = td_tool_alloc(n, sizeof *v);
  td_random_init(&r, ACTIVATION_SEED);
  for (size_t i = 0; i < n; i++) {
    uint32_t bits = (uint32_t)td_random_next(&r);
    uint32_t word = s->be->activation_bytes == 2 ? (bits & 0x80ff80ffu) | 0x3e003e00u
                                                 : (bits & 0x80ffffffu) | 0x3e000000u;
    memcpy(&v[i], &word, sizeof word);
  }
  td_devptr p = td_stage_upload(s, v, n);
  free(v);
  return p;
}

/* ---- programs ---- */

td_op td_stage_rope_op(const td_stage *s, td_devptr qkv, uint32_t layer)
{
  td_rope_kv_params p = {.qkv = qkv,
                         .inv_freq = s->inv_freq,
                         .attn_factor = 1,
                         .norm_eps = 1e-5f,
                         .style = s->desc.rope_style,
                         .kv = s->kv,
                         .layer = layer,
                         .n_heads = s->desc.n_heads,
                         .n_kv_heads = s->desc.n_kv_heads,
                         .head_dim = s->desc.head_dim,
                         .rotary_dim = s->desc.rotary_dim};
  return (td_op){.kind = TD_OP_ROPE_KV, .rope_kv = p};
}

td_op td_stage_attention_op(const td_stage *s, td_devptr qkv, td_devptr out, uint32_t layer)
{
  td_attention_params p = {.qkv = qkv,
                           .out = out,
                           .kv = s->kv,
                           .scale = 1 / sqrtf((float)s->desc.head_dim),
                           .layer = layer,
                           .n_heads = s->desc.n_heads,
                           .n_kv_heads = s->desc.n_kv_heads,
                           .head_dim = s->desc.head_dim};
  return (td_op){.kind = TD_OP_ATTENTION, .attention = p};
}

td_compiled *td_stage_compile(td_stage *s, const td_program *program)
{
  td_error err;
  td_compiled *compiled;
  td_tool_check(s->be->ops->compile(s->be, program, &compiled, &err), &err);
  return compiled;
}

td_compiled *td_stage_compile_ops(td_stage *s, td_op (*op)(const void *arg, uint32_t i), const void *arg,
                                  uint32_t n)
{
  td_error err;
  td_program *p;
  td_tool_check(td_program_create(n, &p, &err), &err);
  for (uint32_t i = 0; i < n; i++)
    td_program_add(p, op(arg, i));
  td_compiled *compiled = td_stage_compile(s, p);
  td_program_destroy(p);
  return compiled;
}

void td_stage_discard(td_stage *s, td_compiled *compiled) { s->be->ops->discard(s->be, compiled); }

void td_stage_capture(td_stage *s, td_compiled *compiled, uint32_t n_rows)
{
  td_error err;
  td_capture ignored;
  if (s->be->ops->capture)
    td_tool_check(s->be->ops->capture(s->be, compiled, n_rows, n_rows, &ignored, &err), &err);
}

/* ---- plans ---- */

bool td_stage_add_decode(td_stage *s, uint32_t kv_len, uint32_t n_shared, bool wants_logits)
{
  uint32_t n_shared_pages = s->dummy.plan->n_rows > 0 ? n_shared / TD_STAGE_PAGE_TOKENS : 0;
  return td_dummy_plan_add(&s->dummy, 1, kv_len, n_shared_pages, wants_logits);
}

void td_stage_fill(td_stage *s, td_compiled *compiled)
{
  for (uint32_t done = 0, n; (n = td_dummy_plan_write_pages(&s->dummy, done)) > 0; done += n) {
    td_stage_submit(s, compiled);
    td_stage_wait(s);
    td_tool_progress((double)done / s->dummy.n_pages, "KV");
  }
  td_tool_progress(-1, " ");
}

typedef struct kv_source {
  const td_stage *stage;
  td_devptr qkv;
} kv_source;

static td_op write_layer(const void *arg, uint32_t layer)
{
  const kv_source *from = arg;
  return td_stage_rope_op(from->stage, from->qkv, layer);
}

void td_stage_fill_from(td_stage *s, td_devptr qkv)
{
  td_compiled *writes_kv = td_stage_compile_ops(s, write_layer, &(kv_source){s, qkv}, s->n_layers);
  td_stage_fill(s, writes_kv);
  td_stage_discard(s, writes_kv);
}

/* ---- steps ---- */

/* Clears the page table updates: if the same plan is submitted again, the device has them already. */
void td_stage_submit_sampled(td_stage *s, td_compiled *compiled, td_compiled *sampling)
{
  td_backend_queue_step(s->be, compiled ? compiled : s->nothing, sampling, s->dummy.plan);
  s->dummy.plan->n_page_updates = 0;
}

void td_stage_submit(td_stage *s, td_compiled *compiled) { td_stage_submit_sampled(s, compiled, NULL); }

void td_stage_wait(td_stage *s)
{
  td_error err;
  td_outcome ignored;
  td_tool_check(td_backend_wait(s->be, &ignored, &err), &err);
}

typedef struct timed_step {
  td_stage *stage;
  td_compiled *compiled;
} timed_step;

static double one_step(void *arg)
{
  const timed_step *t = arg;
  double begin = td_tool_now_s();
  td_stage_submit(t->stage, t->compiled);
  td_stage_wait(t->stage);
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
