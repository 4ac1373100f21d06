/* Binding tensors to roles: each missing, misshapen or surplus one is named. The backend here only records
 * what it gets; tests/golden compares the computations of real backends with transformers. */
#include "models_fixture.h"

/* ---- a model of 2 layers: width 8, ffn 12, heads 2 and 1 of 4, vocabulary 6 ---- */

typedef struct item {
  char name[80];
  uint32_t rows, cols; /* cols 0: a vector */
  float value;         /* of all elements */
} item;

enum { ITEMS_MAX = 48 };

static uint32_t list_items(item *items)
{
  static const item layer[] = {
      {"input_layernorm.weight", 8, 0, 1},  {"self_attn.q_proj.weight", 8, 8, 1},
      {"self_attn.k_proj.weight", 4, 8, 1}, {"self_attn.v_proj.weight", 4, 8, 1},
      {"self_attn.o_proj.weight", 8, 8, 1}, {"post_attention_layernorm.weight", 8, 0, 1},
      {"mlp.gate_proj.weight", 12, 8, 1},   {"mlp.up_proj.weight", 12, 8, 1},
      {"mlp.down_proj.weight", 8, 12, 1}};
  uint32_t n = 0;
  items[n++] = (item){"model.embed_tokens.weight", 6, 8, 1};
  for (uint32_t i = 0; i < 2; i++)
    for (size_t k = 0; k < sizeof layer / sizeof *layer; k++) {
      items[n] = layer[k];
      snprintf(items[n++].name, sizeof items->name, "model.layers.%u.%.60s", i, layer[k].name);
    }
  items[n++] = (item){"model.norm.weight", 8, 0, 1};
  items[n++] = (item){"lm_head.weight", 6, 8, 1};
  return n;
}

static void write_model(const char *folder, const item *items, uint32_t n, const char *more_config)
{
  char config[1024];
  td_buf header, data;
  td_buf_init(&header, 0);
  td_buf_init(&data, 0);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t count = items[i].rows * (items[i].cols ? items[i].cols : 1);
    td_buf_printf(&header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%u", i ? "," : "{", items[i].name,
                  items[i].rows);
    if (items[i].cols)
      td_buf_printf(&header, ",%u", items[i].cols);
    td_buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", data.len_bytes, data.len_bytes + 4 * count);
    for (uint32_t k = 0; k < count; k++)
      td_buf_append(&data, &items[i].value, 4);
  }
  write_tensors(folder, &header, &data);
  snprintf(config, sizeof config,
           "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":6,\"max_position_embeddings\":"
           "32%s}",
           more_config);
  write_file(folder, "config.json", config, strlen(config));
}

static void record_progress(void *arg, double share)
{
  double *last = arg;
  assert_true(share >= *last && share <= 1);
  *last = share;
}

static bool headless, fused_qkv_bias;
static float logit_scale;
static size_t logits_bytes; /* the part of the workspace that only logits need */

static td_status load(const item *items, uint32_t n, const char *more_config, recorder *r, td_error *err)
{
  char folder[64];
  double progress = 0;
  td_model_files *f;
  td_model_desc d;
  td_model *m;
  bool refuse = r->refuse;
  *r = (recorder){.be = {.ops = &recorder_ops, .activation_bytes = 4}, .refuse = refuse};
  make_folder(folder);
  write_model(folder, items, n, more_config);
  assert_int_equal(td_model_files_open(folder, &f, err), TD_OK);
  assert_int_equal(td_model_desc_read(f, &d, err), TD_OK);
  d.headless = headless;
  d.fused_qkv |= fused_qkv_bias;
  d.qkv_bias |= fused_qkv_bias;
  d.logit_scale = logit_scale != 0 ? logit_scale : d.logit_scale;
  td_status st = td_model_load(f, &d, &r->be, 16, 4, record_progress, &progress, &m, err);
  if (st == TD_OK) {
    assert_int_equal(r->allocated, td_model_workspace_bytes(&d, &r->be, 16, 4));
    logits_bytes = r->allocated - td_model_workspace_bytes(&d, &r->be, 16, 0);
    assert_true(progress >= 1);
  } else {
    assert_null(m);
    assert_int_equal(td_model_load(f, &d, &r->be, 16, 4, NULL, NULL, &m, NULL), st); /* err may be NULL */
  }
  td_model_destroy(m);
  td_model_files_close(f);
  remove_folder(folder);
  return st;
}

static void accept(const item *items, uint32_t n, const char *more_config, recorder *r)
{
  td_error err = {0};
  td_status st = load(items, n, more_config, r, &err);
  if (st != TD_OK)
    print_error("%s\n", err.message);
  assert_int_equal(st, TD_OK);
}

static void refuse(const item *items, uint32_t n, const char *more_config, const char *say_1,
                   const char *say_2)
{
  recorder r = {.refuse = false};
  td_error err = {0};
  td_status st = load(items, n, more_config, &r, &err);
  if (st != TD_ERR_MODEL || !strstr(err.message, say_1) || !strstr(err.message, say_2))
    print_error("got %d '%s', wanted '%s' and '%s'\n", (int)st, err.message, say_1, say_2);
  assert_int_equal(st, TD_ERR_MODEL);
  assert_non_null(strstr(err.message, say_1));
  assert_non_null(strstr(err.message, say_2));
}

static void test_complete(void **state)
{
  item items[ITEMS_MAX];
  recorder r = {.refuse = false};
  uint32_t n = list_items(items);
  accept(items, n, "", &r);
  assert_int_equal(r.n_imports, 2 + 2 * 4);             /* qkv, o, gate and up, down */
  assert_int_equal(r.n_uploads, 1 + 1 + 2 * 2);         /* frequencies, norms */
  assert_int_equal(r.rows, 12 + 2 * (16 + 8 + 24 + 8)); /* side by side */
}

/* If only vectors are computed, the output matrix may be there or not, and of any shape; it is not loaded. */
static void test_headless(void **state)
{
  item items[ITEMS_MAX];
  recorder whole = {.refuse = false}, r = {.refuse = false};
  td_model_desc d = {.n_layers = 1, .vocab = 1000, .width = 8, .ffn_width = 8, .n_heads = 1, .head_dim = 8};
  uint64_t with_head = td_model_desc_parameter_count(&d);
  uint32_t n = list_items(items);
  accept(items, n, "", &whole);
  size_t unused_bytes = logits_bytes;
  assert_true(unused_bytes > 0);
  headless = true;
  for (int i = 0; i < 3; i++) {
    items[n - 1].rows = 6 + (uint32_t)i;
    accept(items, i < 2 ? n : n - 1, "", &r);
    assert_int_equal(r.rows, whole.rows - 6);
    assert_int_equal(r.n_looked_up, 1);
    assert_int_equal(r.allocated, whole.allocated - unused_bytes);
  }
  accept(items, n, ",\"tie_word_embeddings\":true", &r);
  assert_int_equal(r.n_looked_up, 1); /* when tied, no GEMM uses it either */
  items[n++] = (item){"lm_head.bias", 6, 0, 1};
  refuse(items, n, "", "lm_head.bias", "is no part of");
  headless = false;
  d.headless = true;
  assert_int_equal(with_head - td_model_desc_parameter_count(&d), 8000);
}

static void test_each_missing(void **state)
{
  item items[ITEMS_MAX];
  uint32_t n = list_items(items);
  for (uint32_t i = 0; i < n; i++) {
    item gone = items[i];
    items[i] = items[n - 1];
    refuse(items, n - 1, "", gone.name, "is missing");
    items[i] = gone;
  }
}

static void test_each_misshapen(void **state)
{
  item items[ITEMS_MAX];
  uint32_t n = list_items(items);
  char have[64], want[64];
  for (uint32_t i = 0; i < n; i++) {
    item right = items[i];
    snprintf(want, sizeof want, right.cols ? "asks for [%u, %u]" : "asks for [%u]", right.rows, right.cols);
    for (int way = 0; way < 3; way++) {
      items[i] = right;
      if (way == 0)
        items[i].rows++;
      else if (way == 1)
        items[i].cols += right.cols ? 1 : 2; /* a column more; a vector becomes a matrix */
      else if (right.cols)
        items[i].cols = 0; /* a matrix becomes a vector */
      snprintf(have, sizeof have, items[i].cols ? "has shape [%u, %u]" : "has shape [%u]", items[i].rows,
               items[i].cols);
      if (memcmp(&items[i], &right, sizeof right) != 0)
        refuse(items, n, "", have, want);
    }
    items[i] = right;
  }
}

static void test_surplus(void **state)
{
  static const char *const surplus[] = {
      "model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.down_proj.bias",
      "model.layers.2.mlp.down_proj.weight", "model.layers.0.self_attn.q_norm.weight", "score.weight"};
  item items[ITEMS_MAX];
  recorder r = {.refuse = false};
  uint32_t n = list_items(items);
  for (size_t i = 0; i < sizeof surplus / sizeof *surplus; i++) {
    items[n] = (item){.rows = 8, .value = 1};
    snprintf(items[n].name, sizeof items->name, "%s", surplus[i]);
    refuse(items, n + 1, "", surplus[i], "change the answers");
  }
  items[n] = (item){"model.layers.0.self_attn.rotary_emb.inv_freq", 2, 0, 1};
  accept(items, n + 1, "", &r);
  /* the same biases, asked for */
  refuse(items, n, ",\"attention_bias\":true", "self_attn.q_proj.bias", "is missing");
}

/* No byte counts twice, so progress does not exceed 1: the output norm has a scaled copy; q, k and v share a
 * stored bias. */
static void test_progress(void **state)
{
  item items[ITEMS_MAX];
  recorder r = {.refuse = false};
  uint32_t n = list_items(items);
  logit_scale = 2;
  accept(items, n, "", &r);
  assert_int_equal(r.n_uploads, 1 + 2 + 2 * 2);
  logit_scale = 0;
  for (uint32_t i = 0; i < n; i++)
    if (strstr(items[i].name, "k_proj") || strstr(items[i].name, "v_proj"))
      items[i--] = items[--n];
    else if (strstr(items[i].name, "q_proj"))
      items[i].rows = 16;
  for (uint32_t i = 0, layer = 0; i < n; i++)
    if (strstr(items[i].name, "q_proj")) {
      snprintf(items[i].name, sizeof items->name, "model.layers.%u.self_attn.qkv_proj.weight", layer);
      items[n] = (item){.rows = 16, .value = 1};
      snprintf(items[n++].name, sizeof items->name, "model.layers.%u.self_attn.qkv_proj.bias", layer++);
    }
  fused_qkv_bias = true;
  accept(items, n, "", &r);
  fused_qkv_bias = false;
  assert_int_equal(r.n_imports, 2 + 2 * 4);
}

static void test_tied(void **state)
{
  item items[ITEMS_MAX];
  recorder r = {.refuse = false};
  uint32_t n = list_items(items);
  accept(items, n, "", &r);
  assert_int_equal(r.n_looked_up, 1); /* the embedding, which no linear uses */
  accept(items, n - 1, ",\"tie_word_embeddings\":true", &r);
  assert_int_equal(r.n_imports, 1 + 2 * 4);
  assert_int_equal(r.n_looked_up, 0);
  accept(items, n, ",\"tie_word_embeddings\":true", &r); /* the file also has a copy */
  assert_int_equal(r.n_imports, 1 + 2 * 4);
  items[n - 1].value = 2;
  refuse(items, n, ",\"tie_word_embeddings\":true", "lm_head.weight", "change the answers");
}

/* The text model's configuration inside a wrapper's. */
#define WRAPPED                                                                                              \
  ",\"text_config\":{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_"      \
  "layers\":2,"                                                                                              \
  "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":6,\"max_position_embeddings\":16"

/* Either of a wrapper's two configurations may be wrong about the head; the files decide. */
static void test_wrapped_head(void **state)
{
  static const char *const says[] = {"", ",\"tie_word_embeddings\":true", ",\"tie_word_embeddings\":false"};
  item items[ITEMS_MAX];
  recorder r = {.refuse = false};
  uint32_t n = list_items(items);
  for (int outer = 0; outer < 3; outer++)
    for (int inner = 0; inner < 3; inner++) {
      char more[512];
      snprintf(more, sizeof more, "%s" WRAPPED "%s}", says[outer], says[inner]);
      accept(items, n - 1, more, &r);
      assert_int_equal(r.n_imports, 1 + 2 * 4); /* the embedding is the head */
      assert_int_equal(r.n_looked_up, 0);
      accept(items, n, more, &r);
      assert_int_equal(r.n_imports, 2 + 2 * 4);
      assert_int_equal(r.n_looked_up, 1);
    }
}

/* Each way in which wrappers name their text model, and other tensors next to it. */
static void test_wrapped_names(void **state)
{
  static const struct {
    const char *text, *head, *other;
  } ways[] = {{"model.language_model.", "lm_head.weight", "model.visual.patch_embed.proj.weight"},
              {"language_model.model.", "language_model.lm_head.weight", "vision_tower.ln.weight"},
              {"model.text_model.", "lm_head.weight", "model.connector.modality_projection.proj.weight"}};
  recorder r = {.refuse = false};
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
    item items[ITEMS_MAX], plain[ITEMS_MAX];
    uint32_t n = list_items(plain);
    for (uint32_t i = 0; i < n; i++) {
      items[i] = plain[i];
      snprintf(items[i].name, sizeof items->name, "%s%s", i + 1 < n ? ways[w].text : ways[w].head,
               i + 1 < n ? plain[i].name + strlen("model.") : "");
    }
    items[n] = (item){"", 2, 2, 1};
    snprintf(items[n].name, sizeof items->name, "%s", ways[w].other);
    accept(items, n + 1, WRAPPED "}", &r);
    assert_int_equal(r.n_imports, 2 + 2 * 4);
    snprintf(items[n].name, sizeof items->name, "%sextra.weight", ways[w].text);
    refuse(items, n + 1, WRAPPED "}", "extra.weight", "change the answers");
  }
}

/* As transformers saves a model without its head: the head is the embedding, or is next to it under its own
 * name. */
static void test_saved_without_head(void **state)
{
  item items[ITEMS_MAX];
  recorder r = {.refuse = false};
  uint32_t n = list_items(items);
  for (uint32_t i = 0; i < n; i++)
    if (strncmp(items[i].name, "model.", 6) == 0)
      memmove(items[i].name, items[i].name + 6, strlen(items[i].name + 6) + 1);
  accept(items, n, "", &r);
  accept(items, n - 1, ",\"tie_word_embeddings\":true", &r);
  assert_int_equal(r.n_imports, 1 + 2 * 4);
  refuse(items, n - 1, "", "lm_head.weight", "is missing");
  items[n] = (item){"model.embed_tokens.weight", 6, 8, 1}; /* half and half */
  refuse(items, n + 1, "", "model.", "is missing");
}

static void test_backend_refusal_names_the_tensor(void **state)
{
  item items[ITEMS_MAX];
  recorder r = {.refuse = true};
  td_error err = {0};
  uint32_t n = list_items(items);
  assert_int_equal(load(items, n, "", &r, &err), TD_ERR_MODEL);
  assert_non_null(strstr(err.message, "model.embed_tokens.weight"));
  assert_non_null(strstr(err.message, "columns do not suit"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_complete),
      cmocka_unit_test(test_headless),
      cmocka_unit_test(test_each_missing),
      cmocka_unit_test(test_each_misshapen),
      cmocka_unit_test(test_surplus),
      cmocka_unit_test(test_progress),
      cmocka_unit_test(test_tied),
      cmocka_unit_test(test_backend_refusal_names_the_tensor),
      cmocka_unit_test(test_saved_without_head),
      cmocka_unit_test(test_wrapped_head),
      cmocka_unit_test(test_wrapped_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
