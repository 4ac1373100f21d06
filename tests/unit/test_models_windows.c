/* A model whose layers have different windows: layers with the same window are a KV group, and every op
 * refers to its own layer of it. test_kernels_attention tests what such a store computes. */
#include "kernels_fixture.h"

#include "models/model.h"

enum { LAYERS = 5, WINDOW = 8 };

static td_model_desc description(void)
{
  td_model_desc d = {.arch = "qwen2",
                     .n_layers = LAYERS,
                     .width = 32,
                     .ffn_width = 32,
                     .n_heads = 2,
                     .n_kv_heads = 1,
                     .head_dim = 16,
                     .rotary_dim = 16,
                     .vocab = 40,
                     .context_tokens = 64,
                     .norm_eps = 1e-5f,
                     .window_tokens = WINDOW};
  for (uint32_t i = 0; i < 8; i++)
    d.rope_inv_freq[i] = powf(10000, -2.0f * (float)i / 16);
  return d;
}

static td_backend *backend(void)
{
  td_backend *be;
  td_backend_config c = {.n_threads = 1,
                         .max_slots = 1,
                         .max_rows = 1,
                         .max_tokens = 32,
                         .max_context_tokens = 64,
                         .max_vocab = 40};
  assert_int_equal(td_backend_create("cpu", &c, &be, NULL), TD_OK);
  return be;
}

static td_kv *store_of(td_backend *be, const td_model_desc *d)
{
  td_kv *kv;
  td_kv_spec spec = td_model_kv_spec(d, be->kv_dtype, 4, 16);
  assert_int_equal(be->ops->kv_create(be, &spec, &kv, NULL), TD_OK);
  return kv;
}

static void test_ops_name_their_group(void **state)
{
  td_model_desc d = description();
  d.no_window[0] = 1 << 1 | 1 << 2;
  td_backend *be = backend();
  td_model *m;
  td_program *p;
  assert_int_equal(td_model_make_up(&d, be, 3, 32, 1, NULL, NULL, &m, NULL), TD_OK);
  td_kv *kv = store_of(be, &d);
  assert_int_equal(kv->spec.n_groups, 2);
  assert_int_equal(kv->spec.groups[0].n_layers, 3);
  assert_int_equal(kv->spec.groups[0].window_tokens, WINDOW);
  assert_int_equal(kv->spec.groups[1].n_layers, 2);
  assert_int_equal(kv->spec.groups[1].window_tokens, 0);
  assert_int_equal(td_model_program(m, kv, &p, NULL), TD_OK);
  static const uint32_t group[LAYERS] = {0, 1, 1, 0, 0}, layer[LAYERS] = {0, 0, 1, 1, 2};
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->n_ops; i++)
    if (p->ops[i].kind == TD_OP_ATTENTION) {
      const td_attention_params *a = &p->ops[i].attention;
      assert_int_equal(a->kv_group, group[n]);
      assert_int_equal(a->layer, layer[n]);
      assert_int_equal(a->window_tokens, group[n] ? 0 : WINDOW);
      assert_int_equal(p->ops[i - 1].rope_kv.kv_group, group[n]);
      assert_int_equal(p->ops[i - 1].rope_kv.layer, layer[n]);
      n++;
    }
  assert_int_equal(n, LAYERS);
  td_program_destroy(p);
  td_model_destroy(m);
  be->ops->destroy(be);
}

/* Logits of the last of n tokens, fed in chunks. */
static float *logits_after(const td_model_desc *d, uint32_t n, uint32_t chunk)
{
  td_backend *be = backend();
  td_model *m;
  td_program *p;
  td_compiled *c;
  td_plan *plan;
  td_outcome out;
  int32_t pages[4] = {2, 0, 3, 1};
  assert_int_equal(td_model_make_up(d, be, 3, 32, 1, NULL, NULL, &m, NULL), TD_OK);
  assert_int_equal(td_model_program(m, store_of(be, d), &p, NULL), TD_OK);
  assert_int_equal(be->ops->compile(be, p, &c, NULL), TD_OK);
  assert_int_equal(td_plan_create(1, 32, 1, 4, 16, &plan, NULL), TD_OK);
  plan->page_table = pages;
  plan->page_table_len = 4;
  be->ops->set_sampling(be, 0, &(td_sampling){.top_p = 1});
  for (uint32_t done = 0; done < n;) {
    uint32_t k = n - done < chunk ? n - done : chunk;
    td_plan_clear(plan);
    plan->rows[plan->n_rows++] = (td_plan_row){.q_len = k, .kv_len = done + k};
    for (uint32_t i = 0; i < k; i++, plan->n_tokens++) {
      plan->token_ids[i] = (int32_t)((done + i) * 7 % 40);
      plan->positions[i] = (int32_t)(done + i);
    }
    td_plan_add_sample(plan, 0);
    td_backend_queue_step(be, c, NULL, plan);
    assert_int_equal(td_backend_wait(be, &out, NULL), TD_OK);
    done += k;
  }
  float *logits = fx_download(be, td_program_buffer_at(p, "logits"), 40);
  be->ops->discard(be, c);
  td_program_destroy(p);
  td_plan_destroy(plan);
  td_model_destroy(m);
  be->ops->destroy(be);
  return logits;
}

/* Within the window all layers see the same. Beyond it a mix equals neither kind alone, and does not depend
 * on how the prompt is cut. */
static void test_a_mix_of_windows(void **state)
{
  td_model_desc all = description(), none = description(), mix = description();
  none.window_tokens = 0;
  mix.no_window[0] = 1 << 0 | 1 << 3;
  float *a = logits_after(&all, WINDOW, 3), *b = logits_after(&none, WINDOW, 3),
        *c = logits_after(&mix, WINDOW, 3);
  assert_memory_equal(a, b, 40 * sizeof *a);
  assert_memory_equal(a, c, 40 * sizeof *a);
  free(a), free(b), free(c);
  a = logits_after(&all, 50, 32), b = logits_after(&none, 50, 32), c = logits_after(&mix, 50, 32);
  float *d = logits_after(&mix, 50, 1);
  assert_memory_equal(c, d, 40 * sizeof *a);
  assert_memory_not_equal(a, c, 40 * sizeof *a);
  assert_memory_not_equal(b, c, 40 * sizeof *a);
  free(a), free(b), free(c), free(d);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ops_name_their_group),
      cmocka_unit_test(test_a_mix_of_windows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
