/* Descriptions: how config.json, generation_config.json and GGUF metadata are interpreted, and what is
 * refused. Rotary frequencies are compared with numbers that transformers 5.23 computed. */
#include <math.h>

#include "weights_fixture.h"

#include "models/model_desc.h"
#include "models/tokenizer/tokenizer.h"

#define SIZES                                                                                                \
  "\"hidden_size\":512,\"intermediate_size\":1024,\"num_hidden_layers\":4,\"num_attention_heads\":4,"        \
  "\"vocab_size\":1000"
#define REST "\"max_position_embeddings\":2048,\"rms_norm_eps\":1e-5"
#define LLAMA "{\"model_type\":\"llama\"," SIZES "," REST

/* Heads of 16, of which 8 are rotated. */
#define PHI3                                                                                                 \
  "{\"model_type\":\"phi3\",\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":4,"            \
  "\"num_attention_heads\":4,\"vocab_size\":100,\"max_position_embeddings\":4096,"                           \
  "\"original_max_position_embeddings\":1024,\"partial_rotary_factor\":0.5"

static td_status read_folder(const char *config, const char *generation, td_model_desc *d, td_error *err)
{
  const char header[] = "{\"x\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}    ";
  char folder[64];
  td_model_files *f;
  td_buf b;
  make_folder(folder);
  td_buf_init(&b, 0);
  put_u64(&b, sizeof header - 1);
  td_buf_append_str(&b, header);
  td_buf_append(&b, "\0\0", 2);
  write_file(folder, "model.safetensors", b.data, b.len_bytes);
  write_file(folder, "config.json", config, strlen(config));
  if (generation)
    write_file(folder, "generation_config.json", generation, strlen(generation));
  assert_int_equal(td_model_files_open(folder, &f, err), TD_OK);
  td_status st = td_model_desc_read(f, d, err);
  td_model_files_close(f);
  td_buf_deinit(&b);
  remove_folder(folder);
  return st;
}

static td_model_desc accept(const char *config, const char *generation)
{
  td_model_desc d;
  td_error err = {0};
  td_status st = read_folder(config, generation, &d, &err);
  if (st != TD_OK)
    print_error("%s\n", err.message);
  assert_int_equal(st, TD_OK);
  return d;
}

static void refuse(const char *config, const char *generation, td_status code, const char *say_1,
                   const char *say_2)
{
  td_model_desc d;
  td_error err = {0};
  td_status st = read_folder(config, generation, &d, &err);
  if (st != code || !strstr(err.message, say_1) || !strstr(err.message, say_2))
    print_error("%s:\n  got %d '%s', wanted %d with '%s' and '%s'\n", config, (int)st, err.message, (int)code,
                say_1, say_2);
  assert_int_equal(st, code);
  assert_int_equal(err.code, code);
  assert_non_null(strstr(err.message, say_1));
  assert_non_null(strstr(err.message, say_2));
}

static void test_defaults(void **state)
{
  td_model_desc d = accept(LLAMA "}", NULL);
  assert_string_equal(d.arch, "llama");
  assert_int_equal(d.n_layers, 4);
  assert_int_equal(d.width, 512);
  assert_int_equal(d.ffn_width, 1024);
  assert_int_equal(d.n_heads, 4);
  assert_int_equal(d.n_kv_heads, 4);
  assert_int_equal(d.head_dim, 128);
  assert_int_equal(d.vocab, 1000);
  assert_int_equal(d.context_tokens, 2048);
  assert_int_equal(d.window_tokens, 0);
  assert_false(d.qkv_bias || d.o_bias || d.mlp_bias || d.qk_norm || d.tied_embeddings);
  assert_int_equal(d.rope_style, TD_ROPE_HALVES);
  assert_int_equal(d.n_eos_ids, 0);
  assert_true(d.default_temperature < 0 && d.default_top_p < 0 && d.default_min_p < 0 && d.default_top_k < 0);
  assert_float_equal(d.norm_eps, 1e-5, 1e-12);
  uint64_t layer = 4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512;
  assert_int_equal(td_model_desc_parameter_count(&d), 4 * layer + 512 + 2 * 1000 * 512);
}

static void expect_windows(const char *config, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
  td_model_desc desc = accept(config, NULL);
  const uint32_t want[] = {a, b, c, d};
  for (uint32_t i = 0; i < 4; i++)
    assert_int_equal(td_model_layer_window(&desc, i), want[i]);
}

static void test_windows_of_some_layers(void **state)
{
  expect_windows("{\"model_type\":\"qwen2\"," SIZES "," REST
                 ",\"use_sliding_window\":true,\"sliding_window\":100,\"max_window_layers\":1}",
                 0, 100, 100, 100);
  expect_windows("{\"model_type\":\"qwen3\"," SIZES "," REST
                 ",\"use_sliding_window\":true,\"sliding_window\":7,\"layer_types\":[\"full_attention\","
                 "\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}",
                 0, 7, 0, 7);
  expect_windows("{\"model_type\":\"mistral\"," SIZES "," REST ",\"sliding_window\":100}", 100, 100, 100,
                 100);
}

static void test_families(void **state)
{
  td_model_desc d = accept("{\"model_type\":\"mistral\"," SIZES "," REST ",\"num_key_value_heads\":2}", NULL);
  assert_int_equal(d.window_tokens, 4096); /* transformers' default where the key is absent */
  assert_int_equal(d.n_kv_heads, 2);
  d = accept("{\"model_type\":\"mistral\"," SIZES "," REST ",\"sliding_window\":null,\"head_dim\":64}", NULL);
  assert_int_equal(d.window_tokens, 0);
  assert_int_equal(d.head_dim, 64);
  d = accept("{\"model_type\":\"mistral\"," SIZES "," REST ",\"sliding_window\":100}", NULL);
  assert_int_equal(d.window_tokens, 100);
  d = accept("{\"model_type\":\"qwen2\"," SIZES "," REST
             ",\"use_sliding_window\":false,\"sliding_window\":100,\"tie_word_embeddings\":true}",
             NULL);
  assert_true(d.qkv_bias && !d.o_bias && d.tied_embeddings && d.window_tokens == 0);
  d = accept("{\"model_type\":\"qwen2\"," SIZES "," REST
             ",\"use_sliding_window\":true,\"sliding_window\":100,\"max_window_layers\":0}",
             NULL);
  assert_int_equal(d.window_tokens, 100);
  d = accept("{\"model_type\":\"qwen2\"," SIZES "," REST
             ",\"use_sliding_window\":true,\"sliding_window\":100,\"max_window_layers\":4}",
             NULL);
  assert_int_equal(d.window_tokens, 0);
  d = accept("{\"model_type\":\"qwen3\"," SIZES "," REST ",\"architectures\":[\"Qwen3ForCausalLM\"]}", NULL);
  assert_true(d.qk_norm && !d.qkv_bias && d.head_dim == 128);
  d = accept(LLAMA
             ",\"attention_bias\":true,\"mlp_bias\":true,\"pretraining_tp\":2,\"rope_interleaved\":false}",
             NULL);
  assert_true(d.qkv_bias && d.o_bias && d.mlp_bias);
}

static void test_end_tokens_and_generation(void **state)
{
  td_model_desc d = accept(LLAMA ",\"eos_token_id\":7}", NULL);
  assert_int_equal(d.n_eos_ids, 1);
  assert_int_equal(d.eos_ids[0], 7);
  d = accept(LLAMA ",\"eos_token_id\":7}",
             "{\"eos_token_id\":[5,6,5],\"temperature\":0.5,\"top_p\":0.25,\"top_k\":20,\"min_p\":0.125}");
  assert_int_equal(d.n_eos_ids, 3);
  assert_int_equal(d.eos_ids[0], 5);
  assert_int_equal(d.eos_ids[1], 6);
  assert_int_equal(d.eos_ids[2], 7); /* config.json's too */
  assert_float_equal(d.default_temperature, 0.5, 0);
  assert_float_equal(d.default_top_p, 0.25, 0);
  assert_float_equal(d.default_min_p, 0.125, 0);
  assert_int_equal(d.default_top_k, 20);
  d = accept(LLAMA ",\"eos_token_id\":[8,9]}", "{\"eos_token_id\":null}");
  assert_int_equal(d.n_eos_ids, 2);
  refuse(LLAMA ",\"eos_token_id\":1000}", NULL, TD_ERR_MODEL, "eos_token_id", "1000");
  refuse(LLAMA ",\"eos_token_id\":-1}", NULL, TD_ERR_MODEL, "eos_token_id", "token id");
  refuse(LLAMA ",\"eos_token_id\":\"</s>\"}", NULL, TD_ERR_MODEL, "eos_token_id", "token id");
  static const char *const wrong[] = {"\"2\"",    "true",   "{}",    "{\"a\":2}", "[\"2\"]",
                                      "[2,null]", "[null]", "[[2]]", "2.5",       "[2,-1]"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    char text[600], other[64];
    snprintf(text, sizeof text, LLAMA ",\"eos_token_id\":%s}", wrong[i]);
    snprintf(other, sizeof other, "{\"eos_token_id\":%s}", wrong[i]);
    refuse(text, NULL, TD_ERR_MODEL, "config.json: eos_token_id", "must be a token id or a list of them");
    d = accept(text, "{\"eos_token_id\":5}"); /* generation_config.json has precedence */
    assert_true(d.n_eos_ids == 1 && d.eos_ids[0] == 5);
    refuse(text, "{\"eos_token_id\":null}", TD_ERR_MODEL, "config.json: eos_token_id", "must be a token id");
    refuse(LLAMA "}", other, TD_ERR_MODEL, "generation_config.json: eos_token_id", "must be a token id");
  }
  d = accept(LLAMA ",\"eos_token_id\":[6,1000]}", "{\"eos_token_id\":5}");
  assert_true(d.n_eos_ids == 1 && d.eos_ids[0] == 5);
  td_buf many;
  td_buf_init(&many, 0);
  td_buf_append_str(&many, LLAMA ",\"eos_token_id\":[0");
  for (int i = 1; i <= TD_EOS_IDS_MAX; i++)
    td_buf_printf(&many, ",%d", i);
  td_buf_append_str(&many, "]}");
  refuse(many.data, NULL, TD_ERR_MODEL, "more than 64", "");
  td_buf_deinit(&many);
  refuse(LLAMA "}", "{\"temperature\":3}", TD_ERR_MODEL, "generation_config.json", "temperature");
  refuse(LLAMA "}", "{\"top_k\":\"many\"}", TD_ERR_MODEL, "generation_config.json", "top_k");
}

/* Sampling parameters that are not served are named; those that are off are not. */
static void test_unserved_defaults(void **state)
{
  td_model_desc d =
      accept(LLAMA "}", "{\"repetition_penalty\":1.05,\"no_repeat_ngram_size\":0,\"typical_p\":1.0,"
                        "\"bad_words_ids\":[[3]],\"suppress_tokens\":[],\"stop_strings\":null,\"top_k\":5}");
  assert_string_equal(d.unserved_defaults, "bad_words_ids");
  assert_string_equal(accept(LLAMA "}", "{\"repetition_penalty\":1,\"num_beams\":1}").unserved_defaults, "");
  assert_string_equal(accept(LLAMA "}", NULL).unserved_defaults, "");
}

#define BYTES                                                                                                \
  "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a "                        \
  "b\"]},\"pre_tokenizer\":"                                                                                 \
  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}"

/* The tokenizer's end tokens, after those of the description's files. */
static void expect_ends(const char *added, const char *config, uint32_t n, const int32_t *want)
{
  td_model_desc d = accept(LLAMA ",\"eos_token_id\":0}", NULL);
  td_tokenizer *t;
  td_error err;
  char text[2048];
  snprintf(text, sizeof text, "{" BYTES ",\"added_tokens\":[%s]}", added);
  cJSON *json = cJSON_Parse(text), *tokenizer_config = cJSON_Parse(config);
  if (td_tokenizer_load_json(json, tokenizer_config, &t, &err) != TD_OK)
    fail_msg("%s", err.message);
  assert_int_equal(td_model_end_tokens(t, &d, &err), TD_OK);
  assert_int_equal(d.n_eos_ids, n);
  for (uint32_t i = 0; i < n; i++)
    assert_int_equal(d.eos_ids[i], want[i]);
  td_tokenizer_destroy(t);
  cJSON_Delete(json);
  cJSON_Delete(tokenizer_config);
}

static void test_ends_that_the_tokenizer_knows(void **state)
{
#define ADDED(id, text, special) "{\"id\":" #id ",\"content\":\"" text "\",\"special\":" #special "}"
  expect_ends(ADDED(7, "<|im_end|>", true) "," ADDED(8, "<|other|>", true), "{}", 2, (int32_t[]){0, 7});
  expect_ends(ADDED(7, "<|turn|>", true), "{\"eos_token\":\"<|turn|>\"}", 2, (int32_t[]){0, 7});
  expect_ends(ADDED(7, "<|turn|>", true), "{\"eos_token\":{\"content\":\"<|turn|>\"}}", 2, (int32_t[]){0, 7});
  expect_ends(ADDED(7, "<|im_end|>", false), "{}", 1, (int32_t[]){0}); /* ordinary text */
  expect_ends(
      ADDED(7, "<|eot_id|>", true) "," ADDED(8, "<|eom_id|>", true) "," ADDED(9, "<|end_of_text|>", true),
      "{\"eos_token\":\"<|eot_id|>\"}", 4, (int32_t[]){0, 7, 8, 9});
}

/* ---- rotary embedding ---- */

static void expect_rope(const td_model_desc *d, const double expected[9], double attn)
{
  static const int at[9] = {0, 1, 17, 28, 29, 31, 32, 40, 63};
  for (int i = 0; i < 9; i++) {
    double got = (double)d->rope_inv_freq[at[i]];
    if (!(got / expected[i] > 1 - 2e-6 && got / expected[i] < 1 + 2e-6))
      print_error("frequency %d is %.9g, not %.9g\n", at[i], got, expected[i]);
    assert_true(got / expected[i] > 1 - 2e-6 && got / expected[i] < 1 + 2e-6);
  }
  assert_float_equal(d->rope_attn_factor, attn, 1e-7);
}

static void test_rope_scalings(void **state)
{
  static const double llama3[] = {1,
                                  0.814617217,
                                  0.0306345206,
                                  0.00321144611,
                                  0.00216657063,
                                  0.00085675146,
                                  0.000524846022,
                                  3.42810235e-05,
                                  3.06892588e-07},
                      yarn[] = {1,
                                0.805842221,
                                0.0254829675,
                                0.00184827659,
                                0.00140511245,
                                0.000802959781,
                                0.000602941145,
                                4.44569851e-05,
                                3.10234441e-07},
                      yarn_scales[] = {1,
                                       0.865964353,
                                       0.0865964293,
                                       0.0150961196,
                                       0.0120336097,
                                       0.00746551761,
                                       0.00579010462,
                                       0.000123952457,
                                       2.88695469e-06},
                      linear[] = {0.25,          0.216491088,   0.0216491073,   0.00444569858, 0.00384981628,
                                  0.00288695493, 0.00249999994, 0.000790569466, 2.88695483e-05};
  td_model_desc d =
      accept(LLAMA ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
                   "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                   "\"original_max_position_embeddings\":8192}}",
             NULL);
  expect_rope(&d, llama3, 1);
  /* if both exist, only rope_scaling counts, unless it is empty */
  d = accept(LLAMA ",\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"linear\",\"factor\":4.0},"
                   "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0}}",
             NULL);
  assert_true(d.rope.factor == 2 && d.rope.theta == 10000);
  d = accept(LLAMA ",\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"linear\",\"factor\":4.0},"
                   "\"rope_scaling\":{}}",
             NULL);
  assert_true(d.rope.factor == 4 && d.rope.theta == 1e6);
  d = accept(LLAMA ",\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"yarn\",\"factor\":4.0,"
                   "\"original_max_position_embeddings\":32768}}",
             NULL);
  expect_rope(&d, yarn, 1.13862944);
  assert_int_equal(d.context_tokens, 4 * 32768);
  d = accept(LLAMA
             ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":4096,"
             "\"mscale\":0.707,\"mscale_all_dim\":1.0,\"beta_fast\":16,\"beta_slow\":2,\"truncate\":false}}",
             NULL);
  expect_rope(&d, yarn_scales, 0.921042355);
  d = accept(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}", NULL);
  expect_rope(&d, linear, 1);
  assert_int_equal(d.context_tokens, 2048);
  d = accept(LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\"},\"partial_rotary_factor\":1.0}", NULL);
  assert_float_equal(d.rope_inv_freq[32], 0.01, 1e-9);
}

/* The frequencies depend on the context that is served. */
static void test_rope_by_context(void **state)
{
  const char *longrope =
      PHI3 ",\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,2,2,2],"
           "\"long_factor\":[4,4,4,8]}}";
  td_model_desc d = accept(longrope, NULL);
  assert_int_equal(d.rotary_dim, 8);
  assert_true(d.fused_qkv && d.fused_gate_up);
  assert_float_equal(d.rope_inv_freq[0], 0.25, 1e-9);
  assert_float_equal(d.rope_inv_freq[3], 1e-3 / 8, 1e-9);
  assert_float_equal(d.rope_attn_factor, 1.0954451, 1e-6); /* sqrt(1 + ln 4 / ln 1024) */
  assert_int_equal(td_model_desc_set_context(&d, 1024, "m", NULL), TD_OK);
  assert_float_equal(d.rope_inv_freq[0], 1, 1e-9);
  assert_float_equal(d.rope_inv_freq[3], 1e-3 / 2, 1e-9);
  assert_float_equal(d.rope_attn_factor, 1.0954451, 1e-6);
  d = accept(LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", NULL);
  assert_int_equal(d.context_tokens, 4096);
  assert_float_equal(d.rope_inv_freq[32], pow(10000 * pow(3, 128.0 / 126), -0.5), 1e-8);
  assert_int_equal(td_model_desc_set_context(&d, 2048, "m", NULL), TD_OK);
  assert_float_equal(d.rope_inv_freq[32], 0.01, 1e-9);
}

static void expect_alt_rope(const td_model_desc *d, const char *layers)
{
  for (uint32_t i = 0; i < d->n_layers; i++)
    assert_int_equal(td_model_layer_has_alt_rope(d, i), layers[i] == 'x');
}

static void test_other_families(void **state)
{
  td_model_desc d = accept("{\"model_type\":\"granite\"," SIZES "," REST ",\"embedding_multiplier\":12,"
                           "\"residual_multiplier\":0.22,\"attention_multiplier\":0.0078125,"
                           "\"logits_scaling\":8}",
                           NULL);
  assert_float_equal(d.embed_scale, 12, 0);
  assert_float_equal(d.residual_scale, 0.22, 1e-7);
  assert_float_equal(d.attn_scale, 0.0078125, 0);
  assert_float_equal(d.logit_scale, 0.125, 0);
  d = accept("{\"model_type\":\"minicpm\"," SIZES "," REST
             ",\"scale_emb\":12,\"scale_depth\":1.4,\"dim_model_base\":256}",
             NULL);
  assert_float_equal(d.residual_scale, 0.7, 1e-7);
  assert_true(d.logit_scale == 0.5f && d.attn_scale == 0 && d.tied_embeddings);
  d = accept("{\"model_type\":\"smollm3\"," SIZES "," REST "}", NULL);
  expect_alt_rope(&d, "   x");
  assert_true(d.alt_inv_freq[0] == 0 && d.tied_embeddings);
  d = accept("{\"model_type\":\"smollm3\"," SIZES "," REST ",\"no_rope_layers\":[0,1,1,0]}", NULL);
  expect_alt_rope(&d, "x  x");
  d = accept("{\"model_type\":\"olmo3\"," SIZES "," REST
             ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8}}",
             NULL);
  expect_alt_rope(&d, "xxx ");
  assert_true(d.block_form == TD_BLOCK_POST_NORM && d.wide_qk_norm && d.window_tokens == 4096);
  assert_true(td_model_layer_window(&d, 2) == 4096 && td_model_layer_window(&d, 3) == 0);
  assert_true(d.rope.kind == TD_ROPE_YARN && d.alt_inv_freq[0] == 1);
  d = accept("{\"model_type\":\"cohere2\"," SIZES "," REST ",\"sliding_window_pattern\":2}", NULL);
  expect_alt_rope(&d, " x x");
  assert_true(d.layer_norm && d.block_form == TD_BLOCK_PARALLEL && d.rope_style == TD_ROPE_PAIRS);
  assert_true(d.logit_scale == 0.0625f && d.alt_inv_freq[0] == 0);
}

/* A wrapper's text part; values missing in its text_config are those of transformers' class. */
static void test_wrappers(void **state)
{
  td_model_desc d =
      accept("{\"model_type\":\"llava\",\"architectures\":[\"LlavaForConditionalGeneration\"],"
             "\"vision_config\":{\"x\":1},\"text_config\":{\"model_type\":\"llama\",\"vocab_size\":"
             "32064,\"max_position_embeddings\":4096}}",
             NULL);
  assert_true(d.is_wrapped && d.width == 4096 && d.n_layers == 32 && d.vocab == 32064);
  d = accept(
      "{\"model_type\":\"qwen2_5_vl\"," SIZES "," REST
      ",\"vision_config\":{\"x\":1},\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,24]}}",
      NULL);
  assert_true(d.is_wrapped && d.qkv_bias);
  assert_float_equal(d.rope_inv_freq[32], 1e-3, 1e-9); /* a base of 1e6 */
  refuse("{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\"}}", NULL,
         TD_ERR_UNSUPPORTED, "gemma3_text", "olmo2");
  refuse(LLAMA ",\"vision_config\":{\"x\":1}}", NULL, TD_ERR_UNSUPPORTED, "vision_config", "");
}

/* The sizes in config.json of published models, and the parameter counts that their cards state. */
static void test_published_shapes(void **state)
{
#define SHAPE(type, width, ffn, layers, heads, kv, vocab, rest)                                              \
  "{\"model_type\":\"" type "\",\"hidden_size\":" #width ",\"intermediate_size\":" #ffn                      \
  ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv       \
  ",\"vocab_size\":" #vocab ",\"max_position_embeddings\":4096" rest "}"
#define NO_KV(width, ffn, layers, heads, vocab)                                                              \
  "{\"model_type\":\"llama\",\"hidden_size\":" #width ",\"intermediate_size\":" #ffn                         \
  ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads ",\"vocab_size\":" #vocab             \
  ",\"max_position_embeddings\":2048,\"max_sequence_length\":2048,\"pad_token_id\":0,\"rms_norm_eps\":1e-"   \
  "06}"
  static const struct {
    const char *config;
    uint64_t parameters;
    uint32_t head_dim, rotary_dim;
  } models[] = {
      /* Phi-4-mini-instruct */
      {SHAPE("phi3", 3072, 8192, 32, 24, 8, 200064,
             ",\"partial_rotary_factor\":0.75,\"tie_word_embeddings\":true,\"sliding_window\":262144"),
       3836021760, 128, 96},
      /* granite-3.3-2b-instruct */
      {SHAPE("granite", 2048, 8192, 40, 32, 8, 49159,
             ",\"tie_word_embeddings\":true,\"embedding_multiplier\":12.0,\"residual_multiplier\":0.22,"
             "\"attention_multiplier\":0.015625,\"logits_scaling\":8.0"),
       2533539840, 64, 64},
      /* MiniCPM-2B-sft-bf16 */
      {SHAPE("minicpm", 2304, 5760, 40, 36, 36, 122753,
             ",\"scale_emb\":12,\"scale_depth\":1.4,\"dim_model_base\":256"),
       2724880896, 64, 64},
      /* SmolLM3-3B */
      {SHAPE("smollm3", 2048, 11008, 36, 16, 4, 128256, ",\"no_rope_layer_interval\":4"), 3075098624, 128,
       128},
      /* OLMo-2-1124-7B */
      {SHAPE("olmo2", 4096, 11008, 32, 32, 32, 100352, ""), 7298617344, 128, 128},
      /* models of the papers, which scripts/gpu/models.py has in full: Llama-2-7B, LLaMA-13B and 33B (which
         name no KV heads), Yi-6B-200K, Llama-3-8B, Qwen3-8B */
      {SHAPE("llama", 4096, 11008, 32, 32, 32, 32000, ",\"pretraining_tp\":1,\"rope_scaling\":null"),
       6738415616, 128, 128},
      {NO_KV(5120, 13824, 40, 40, 32000), 13015864320, 128, 128},
      {NO_KV(6656, 17920, 60, 52, 32000), 32528943616, 128, 128},
      {SHAPE("llama", 4096, 11008, 32, 32, 4, 64000, ",\"rope_theta\":10000000.0,\"rope_scaling\":null"),
       6061035520, 128, 128},
      {SHAPE("llama", 4096, 14336, 32, 32, 8, 128256, ",\"rope_theta\":500000.0"), 8030261248, 128, 128},
      {SHAPE(
           "qwen3", 4096, 12288, 36, 32, 8, 151936,
           ",\"head_dim\":128,\"sliding_window\":null,\"use_sliding_window\":false,\"max_window_layers\":36"),
       8190735360, 128, 128},
      /* c4ai-command-r7b-12-2024 */
      {SHAPE("cohere2", 4096, 14336, 32, 32, 8, 256000, ",\"logit_scale\":0.25,\"sliding_window\":4096"),
       8028033024, 128, 128},
  };
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    td_model_desc d = accept(models[i].config, NULL);
    assert_int_equal(td_model_desc_parameter_count(&d), models[i].parameters);
    assert_int_equal(d.head_dim, models[i].head_dim);
    assert_int_equal(d.rotary_dim, models[i].rotary_dim);
  }
}

static void test_family_refusals(void **state)
{
  refuse("{\"model_type\":\"cohere\"," SIZES "," REST ",\"use_qk_norm\":true}", NULL, TD_ERR_UNSUPPORTED,
         "use_qk_norm", "");
  refuse("{\"model_type\":\"granite\"," SIZES "," REST ",\"residual_multiplier\":0}", NULL, TD_ERR_MODEL,
         "residual_multiplier", "above 0");
  refuse("{\"model_type\":\"granite\"," SIZES "," REST ",\"embedding_multiplier\":1e9}", NULL, TD_ERR_MODEL,
         "embedding scale", "1e+09");
  refuse("{\"model_type\":\"minicpm\"," SIZES "," REST ",\"sparse_config\":{\"x\":1}}", NULL,
         TD_ERR_UNSUPPORTED, "sparse_config", "");
  refuse("{\"model_type\":\"smollm3\"," SIZES "," REST ",\"no_rope_layers\":[1,1]}", NULL, TD_ERR_MODEL,
         "no_rope_layers", "4 layers");
  refuse("{\"model_type\":\"smollm3\"," SIZES "," REST ",\"use_sliding_window\":true,\"sliding_window\":8}",
         NULL, TD_ERR_UNSUPPORTED, "use_sliding_window", "layer_types");
  refuse(LLAMA ",\"residual_multiplier\":0.5}", NULL, TD_ERR_UNSUPPORTED, "residual_multiplier",
         "not served");
  refuse(LLAMA ",\"no_rope_layers\":[1,0]}", NULL, TD_ERR_UNSUPPORTED, "no_rope_layers", "not served");
}

static void test_rope_refusals(void **state)
{
  static const char *const wrong[] = {"\"linear\"", "2",  "true",
                                      "false",      "[]", "[{\"type\":\"linear\",\"factor\":2}]"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    char text[600];
    snprintf(text, sizeof text, LLAMA ",\"rope_scaling\":%s}", wrong[i]);
    refuse(text, NULL, TD_ERR_MODEL, "config.json: 'rope_scaling'", "must be an object or null");
    snprintf(text, sizeof text, LLAMA ",\"rope_parameters\":%s}", wrong[i]);
    refuse(text, NULL, TD_ERR_MODEL, "config.json: 'rope_parameters'", "must be an object or null");
    snprintf(text, sizeof text, LLAMA ",\"rope_parameters\":{\"rope_theta\":1e6},\"rope_scaling\":%s}",
             wrong[i]);
    refuse(text, NULL, TD_ERR_MODEL, "config.json: 'rope_scaling'", "must be an object or null");
  }
  (void)accept(LLAMA ",\"rope_scaling\":null,\"rope_parameters\":null}", NULL);
  refuse(LLAMA ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,24]}}", NULL,
         TD_ERR_UNSUPPORTED, "RoPE type", "mrope");
  refuse(LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2,\"alpha\":1000}}", NULL,
         TD_ERR_UNSUPPORTED, "alpha", "");
  refuse(LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\"}}", NULL, TD_ERR_MODEL, "factor", "not 0");
  refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\"}}", NULL, TD_ERR_MODEL, "short_factor",
         "list of 64 numbers");
  refuse("{\"model_type\":\"llama\",\"hidden_size\":65536,\"intermediate_size\":64,\"num_hidden_layers\":1,"
         "\"num_attention_heads\":1,\"vocab_size\":100,\"max_position_embeddings\":4096,"
         "\"rope_scaling\":{\"rope_type\":\"longrope\"}}",
         NULL, TD_ERR_MODEL, "65536", "heads"); /* so wide that its divisors do not fit the tables */
  refuse(PHI3 ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],"
              "\"long_factor\":[1,0,1,1]}}",
         NULL, TD_ERR_MODEL, "long_factor", "above 0");
  refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":7}}", NULL, TD_ERR_MODEL, "config.json", "rope_type");
  refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\"}}", NULL, TD_ERR_MODEL, "factor", "not 0");
  refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":1e300}}", NULL, TD_ERR_MODEL, "factor",
         "1e+300");
  refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", NULL, TD_ERR_MODEL,
         "low_freq_factor", "");
  refuse(LLAMA ",\"rope_theta\":0}", NULL, TD_ERR_MODEL, "RoPE base", "not 0");
  refuse(LLAMA ",\"rope_theta\":-5}", NULL, TD_ERR_MODEL, "RoPE base", "not -5");
  refuse(LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", NULL,
         TD_ERR_UNSUPPORTED, "full_attention", "");
  refuse(LLAMA ",\"partial_rotary_factor\":0.5}", NULL, TD_ERR_UNSUPPORTED, "partial_rotary_factor", "0.5");
}

/* ---- refusals ---- */

static void test_refusals_by_name(void **state)
{
  static const char *const keys[] = {"num_local_experts",
                                     "num_experts",
                                     "n_routed_experts",
                                     "attn_logit_softcapping",
                                     "final_logit_softcapping",
                                     "logit_scale",
                                     "residual_multiplier",
                                     "embedding_multiplier",
                                     "use_qk_norm"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    char config[1024];
    snprintf(config, sizeof config, LLAMA ",\"%s\":8}", keys[i]);
    refuse(config, NULL, TD_ERR_UNSUPPORTED, keys[i], "not served");
    snprintf(config, sizeof config, LLAMA ",\"%s\":null}", keys[i]);
    accept(config, NULL);
  }
  refuse(LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\"}}", NULL, TD_ERR_UNSUPPORTED,
         "quantization_config", "");
  refuse(LLAMA ",\"hidden_act\":\"gelu\"}", NULL, TD_ERR_UNSUPPORTED, "hidden_act", "gelu");
  refuse(LLAMA ",\"sliding_window\":64}", NULL, TD_ERR_UNSUPPORTED, "sliding_window", "llama");
  refuse(LLAMA ",\"architectures\":[\"LlamaForSequenceClassification\"]}", NULL, TD_ERR_UNSUPPORTED,
         "LlamaForSequenceClassification", "LlamaForCausalLM");
  refuse("{\"model_type\":\"gemma3\"," SIZES "," REST "}", NULL, TD_ERR_UNSUPPORTED, "gemma3", "qwen3");
  refuse("{" SIZES "," REST "}", NULL, TD_ERR_MODEL, "model_type", "");
  refuse("{\"model_type\":\"qwen3\"," SIZES "," REST
         ",\"use_sliding_window\":true,\"layer_types\":[\"linear_attention\",\"a\",\"b\",\"c\"]}",
         NULL, TD_ERR_UNSUPPORTED, "linear_attention", "");
  refuse("{\"model_type\":\"qwen3\"," SIZES "," REST ",\"use_sliding_window\":true,\"layer_types\":[]}", NULL,
         TD_ERR_MODEL, "layer_types", "0 entries for 4 layers");
}

static void test_sizes_out_of_bounds(void **state)
{
  static const struct {
    const char *change, *key;
  } wrong[] = {{"\"hidden_size\":512", "hidden_size"},
               {"\"intermediate_size\":1024", "intermediate_size"},
               {"\"num_hidden_layers\":4", "num_hidden_layers"},
               {"\"num_attention_heads\":4", "num_attention_heads"},
               {"\"vocab_size\":1000", "vocab_size"},
               {"\"max_position_embeddings\":2048", "max_position_embeddings"}};
  static const char *const values[] = {"0", "-1", "1.5", "1e18", "\"4\"", "[4]", "99999999999999999999"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    char config[2048], base[] = LLAMA "}";
    char *at = strstr(base, wrong[i].change), *tail = at + strlen(wrong[i].change);
    for (size_t k = 0; k <= sizeof values / sizeof *values; k++) {
      if (k < sizeof values / sizeof *values)
        snprintf(config, sizeof config, "%.*s\"%s\":%s%s", (int)(at - base), base, wrong[i].key, values[k],
                 tail);
      else /* absent */
        snprintf(config, sizeof config, "%.*s\"x\":0%s", (int)(at - base), base, tail);
      refuse(config, NULL, TD_ERR_MODEL, "config.json", wrong[i].key);
    }
  }
  refuse(LLAMA ",\"num_key_value_heads\":3}", NULL, TD_ERR_MODEL, "4 attention heads", "3 key-value heads");
  refuse(LLAMA ",\"num_key_value_heads\":8}", NULL, TD_ERR_MODEL, "4 attention heads", "8 key-value heads");
  refuse(LLAMA ",\"head_dim\":7}", NULL, TD_ERR_MODEL, "head dimension 7", "even");
  refuse(LLAMA ",\"head_dim\":258}", NULL, TD_ERR_MODEL, "head_dim", "256");
}

/* ---- GGUF ---- */

static void put_gguf(td_buf *b, const char *arch, uint32_t n_extra)
{
  char key[64];
  td_buf_init(b, 0);
  put_header(b, 1, 8 + n_extra);
  put_key_text(b, "general.architecture", arch);
#define PUT(name, v) (snprintf(key, sizeof key, "%s." name, arch), put_key_u32(b, key, v))
  PUT("block_count", 2);
  PUT("embedding_length", 64);
  PUT("feed_forward_length", 96);
  PUT("attention.head_count", 4);
  PUT("attention.head_count_kv", 2);
  PUT("context_length", 128);
#undef PUT
  snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
  put_key_f32(b, key, 1e-5f);
}

static td_status read_gguf(td_buf *b, td_model_desc *d, td_error *err)
{
  const uint64_t embed[] = {64, 10};
  td_model_files *f;
  put_tensor(b, "token_embd.weight", 2, embed, 8, 0);
  put_padding(b, 32);
  for (int i = 0; i < 10 * 2 * 34; i++)
    td_buf_append_char(b, 0);
  assert_int_equal(open_bytes(b->data, b->len_bytes, &f, err), TD_OK);
  td_status st = td_model_desc_read(f, d, err);
  td_model_files_close(f);
  td_buf_deinit(b);
  return st;
}

static void refuse_gguf(td_buf *b, td_status code, const char *say_1, const char *say_2)
{
  td_model_desc d;
  td_error err = {0};
  td_status st = read_gguf(b, &d, &err);
  if (st != code || !strstr(err.message, say_1) || !strstr(err.message, say_2))
    print_error("got %d '%s', wanted %d with '%s' and '%s'\n", (int)st, err.message, (int)code, say_1, say_2);
  assert_int_equal(st, code);
  assert_non_null(strstr(err.message, say_1));
  assert_non_null(strstr(err.message, say_2));
}

static void gguf_must_have_its_epsilon(void **state)
{
  td_buf b;
  put_gguf(&b, "llama", 0);
  char *key = memmem(b.data, b.len_bytes, "layer_norm_rms_epsilon", 22);
  assert_non_null(key);
  key[0] = 'm';
  refuse_gguf(&b, TD_ERR_MODEL, "no key 'llama.attention.layer_norm_rms_epsilon'", "");
}

static void test_gguf(void **state)
{
  td_buf b;
  td_model_desc d;
  td_error err;
  put_gguf(&b, "llama", 7);
  put_key_u32(&b, "tokenizer.ggml.eos_token_id", 3);
  put_key_u32(&b, "tokenizer.ggml.eot_token_id", 4);
  put_key_u32(&b, "tokenizer.ggml.eom_token_id", 5);
  put_key_f32(&b, "general.sampling.temp", 0.5);
  put_key_u32(&b, "general.sampling.top_k", 20);
  put_key_f32(&b, "general.sampling.penalty_repeat", 1.25);
  put_key_f32(&b, "llama.rope.freq_base", 100);
  assert_int_equal(read_gguf(&b, &d, &err), TD_OK);
  assert_string_equal(d.arch, "llama");
  assert_int_equal(d.rope_style, TD_ROPE_PAIRS);
  assert_int_equal(d.vocab, 10);
  assert_int_equal(d.head_dim, 16);
  assert_int_equal(d.context_tokens, 128);
  assert_true(d.tied_embeddings && !d.qkv_bias);
  assert_int_equal(d.n_eos_ids, 3);
  assert_int_equal(d.eos_ids[1], 4);
  assert_int_equal(d.eos_ids[2], 5);
  assert_float_equal(d.default_temperature, 0.5, 0);
  assert_int_equal(d.default_top_k, 20);
  assert_true(d.default_top_p < 0 && d.default_min_p < 0);
  assert_float_equal(d.default_repetition_penalty, 1.25, 0);
  assert_string_equal(d.unserved_defaults, "");
  assert_float_equal(d.rope_inv_freq[4], 0.1, 1e-8);
  put_gguf(&b, "qwen2", 0);
  assert_int_equal(read_gguf(&b, &d, &err), TD_OK);
  assert_true(d.rope_style == TD_ROPE_HALVES && d.qkv_bias);
  put_gguf(&b, "qwen3", 0);
  assert_int_equal(read_gguf(&b, &d, &err), TD_OK);
  assert_true(d.rope_style == TD_ROPE_HALVES && d.qk_norm && !d.qkv_bias);
  put_gguf(&b, "llama", 1);
  put_key_u32(&b, "llama.rope.dimension_count", 8);
  assert_int_equal(read_gguf(&b, &d, &err), TD_OK);
  assert_true(d.head_dim == 16 && d.rotary_dim == 8);
  put_gguf(&b, "olmo2", 1);
  put_key_u32(&b, "olmo2.attention.sliding_window", 32);
  assert_int_equal(read_gguf(&b, &d, &err), TD_OK);
  assert_true(d.block_form == TD_BLOCK_POST_NORM && d.wide_qk_norm && td_model_layer_window(&d, 1) == 32);
  put_gguf(&b, "llama", 2);
  put_key_text(&b, "llama.rope.scaling.type", "linear");
  put_key_f32(&b, "llama.rope.scaling.factor", 2);
  assert_int_equal(read_gguf(&b, &d, &err), TD_OK);
  assert_float_equal(d.rope_inv_freq[0], 0.5, 0);
}

static void test_gguf_refusals(void **state)
{
  td_buf b;
  put_gguf(&b, "gemma", 0);
  refuse_gguf(&b, TD_ERR_UNSUPPORTED, "'gemma'", "qwen3");
  put_gguf(&b, "llama", 1);
  put_key_u32(&b, "llama.expert_count", 8);
  refuse_gguf(&b, TD_ERR_UNSUPPORTED, "llama.expert_count", "not served");
  put_gguf(&b, "llama", 1);
  put_key_text(&b, "llama.rope.scaling.type", "longrope");
  refuse_gguf(&b, TD_ERR_UNSUPPORTED, "llama.rope.scaling.type", "longrope");
  put_gguf(&b, "llama", 1);
  put_key_u32(&b, "tokenizer.ggml.eos_token_id", 10);
  refuse_gguf(&b, TD_ERR_MODEL, "eos_token_id", "vocabulary of 10");
  put_gguf(&b, "llama", 1);
  put_key_text(&b, "tokenizer.ggml.eos_token_id", "3");
  refuse_gguf(&b, TD_ERR_MODEL, "eos_token_id", "not a token id");
  put_gguf(&b, "llama", 1);
  put_key_f32(&b, "tokenizer.ggml.eot_token_id", 3);
  refuse_gguf(&b, TD_ERR_MODEL, "eot_token_id", "not a token id");
  put_gguf(&b, "llama", 1);
  put_key_f32(&b, "general.sampling.top_p", 1.5);
  refuse_gguf(&b, TD_ERR_MODEL, "general.sampling.top_p", "from 0 to 1");
  put_gguf(&b, "llama", 1);
  put_key_u32(&b, "llama.attention.value_length", 8);
  refuse_gguf(&b, TD_ERR_UNSUPPORTED, "keys of 16 and values of 8", "");
  put_gguf(&b, "llama", 1);
  put_key_u32(&b, "llama.rope.dimension_count", 18);
  refuse_gguf(&b, TD_ERR_MODEL, "18 rotary dimensions", "heads of 16");
  put_gguf(&b, "minicpm", 0);
  refuse_gguf(&b, TD_ERR_UNSUPPORTED, "minicpm.embedding_scale", "no key");
  put_gguf(&b, "llama", 1);
  put_key_f32(&b, "llama.residual_scale", 0.5f);
  refuse_gguf(&b, TD_ERR_UNSUPPORTED, "llama.residual_scale", "not served");
  put_gguf(&b, "llama", 1);
  put_key_u32(&b, "llama.attention.key_length", 100000);
  refuse_gguf(&b, TD_ERR_MODEL, "llama.attention.key_length", "256");
  td_buf_init(&b, 0);
  put_header(&b, 1, 1);
  put_key_text(&b, "general.architecture", "llama");
  refuse_gguf(&b, TD_ERR_MODEL, "llama.block_count", "no key");
  td_buf_init(&b, 0);
  put_header(&b, 1, 0);
  refuse_gguf(&b, TD_ERR_MODEL, "general.architecture", "no key");
  put_gguf(&b, "llama", 1);
  put_key_f32(&b, "llama.rope.freq_base", 0.0f / 0.0f);
  refuse_gguf(&b, TD_ERR_MODEL, "llama.rope.freq_base", "finite");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_families),
      cmocka_unit_test(test_windows_of_some_layers),
      cmocka_unit_test(test_end_tokens_and_generation),
      cmocka_unit_test(test_unserved_defaults),
      cmocka_unit_test(test_ends_that_the_tokenizer_knows),
      cmocka_unit_test(test_rope_scalings),
      cmocka_unit_test(test_rope_by_context),
      cmocka_unit_test(test_other_families),
      cmocka_unit_test(test_wrappers),
      cmocka_unit_test(test_published_shapes),
      cmocka_unit_test(test_family_refusals),
      cmocka_unit_test(test_rope_refusals),
      cmocka_unit_test(test_refusals_by_name),
      cmocka_unit_test(test_sizes_out_of_bounds),
      cmocka_unit_test(gguf_must_have_its_epsilon),
      cmocka_unit_test(test_gguf),
      cmocka_unit_test(test_gguf_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
