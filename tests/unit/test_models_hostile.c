/* Hostile model files: every byte of a GGUF model's header and of a folder's config.json is changed in many
 * ways. If the file still opens, it is described and loaded. Nothing may crash, read out of bounds or ask
 * for memory that the file's size does not justify; any refusal is fine. */
#include "models_fixture.h"

#include "config/limits.h"

static const unsigned char changes[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF, 0x7F, 0x55};

typedef struct outcome {
  uint32_t refused_open, refused_description, refused_load, loaded;
} outcome;

static void finish(td_status opened, td_model_files *f, outcome *o)
{
  recorder r = {.be = {.ops = &recorder_ops, .activation_bytes = 4}};
  td_error err = {0};
  td_model_desc d;
  td_model *m;
  if (opened != TD_OK) {
    o->refused_open++;
    return;
  }
  touch_everything(f);
  td_status st = td_model_desc_read(f, &d, &err);
  if (st != TD_OK) {
    o->refused_description++;
  } else {
    assert_true(d.n_layers <= td_limit_max(TD_LIMIT_MODEL_LAYERS) && d.head_dim <= TD_HEAD_DIM_MAX);
    assert_true(td_model_desc_parameter_count(&d) > 0);
    st = td_model_load(f, &d, &r.be, 512, 64, NULL, NULL, &m, &err);
    if (st == TD_OK) {
      o->loaded++;
      td_model_destroy(m);
    } else {
      o->refused_load++;
    }
  }
  if (st != TD_OK)
    assert_true((err.code == TD_ERR_MODEL || err.code == TD_ERR_UNSUPPORTED) && err.message[0] != '\0');
  td_model_files_close(f);
}

/* ---- GGUF: one layer, width 32, ffn 32, 2 heads of 16, vocabulary 4, Q8_0 ---- */

static size_t make_gguf(td_buf *b)
{
  static const struct {
    const char *name;
    uint64_t cols, rows; /* rows 0: a vector */
  } tensors[] = {{"token_embd.weight", 32, 4},         {"output_norm.weight", 32, 0},
                 {"blk.0.attn_norm.weight", 32, 0},    {"blk.0.attn_q.weight", 32, 32},
                 {"blk.0.attn_k.weight", 32, 16},      {"blk.0.attn_v.weight", 32, 16},
                 {"blk.0.attn_output.weight", 32, 32}, {"blk.0.ffn_norm.weight", 32, 0},
                 {"blk.0.ffn_gate.weight", 32, 32},    {"blk.0.ffn_up.weight", 32, 32},
                 {"blk.0.ffn_down.weight", 32, 32},    {"rope_freqs.weight", 8, 0}};
  enum { N = sizeof tensors / sizeof *tensors };
  uint64_t at = 0;
  td_buf_init(b, 0);
  put_header(b, N, 13);
  put_key_text(b, "general.architecture", "llama");
  put_key_u32(b, "llama.block_count", 1);
  put_key_u32(b, "llama.embedding_length", 32);
  put_key_u32(b, "llama.feed_forward_length", 32);
  put_key_u32(b, "llama.attention.head_count", 2);
  put_key_u32(b, "llama.attention.head_count_kv", 1);
  put_key_u32(b, "llama.context_length", 64);
  put_key_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  put_key_f32(b, "llama.rope.freq_base", 10000);
  put_key_text(b, "llama.rope.scaling.type", "yarn");
  put_key_f32(b, "llama.rope.scaling.factor", 4);
  put_key_u32(b, "llama.rope.scaling.original_context_length", 16);
  put_key_u32(b, "tokenizer.ggml.eos_token_id", 2);
  for (size_t i = 0; i < N; i++) {
    uint64_t dims[] = {tensors[i].cols, tensors[i].rows};
    bool vector = tensors[i].rows == 0;
    put_tensor(b, tensors[i].name, vector ? 1 : 2, dims, vector ? 0 : 8, at);
    at += vector ? tensors[i].cols * 4 : (tensors[i].rows * 34 + 31) / 32 * 32;
  }
  put_padding(b, 32);
  size_t header = b->len_bytes;
  const float one = 1;
  for (uint64_t i = 0; i < at / 4; i++)
    td_buf_append(b, &one, 4);
  return header;
}

static void test_gguf(void **state)
{
  td_buf b;
  td_model_files *f;
  td_error err;
  td_status st;
  outcome o = {0};
  size_t header = make_gguf(&b);
  st = open_bytes(b.data, b.len_bytes, &f, &err);
  finish(st, f, &o);
  assert_int_equal(o.loaded, 1);
  for (size_t i = 0; i < header; i++)
    for (size_t k = 0; k < sizeof changes; k++) {
      b.data[i] = (char)(b.data[i] ^ changes[k]);
      st = open_bytes(b.data, b.len_bytes, &f, &err);
      finish(st, f, &o);
      b.data[i] = (char)(b.data[i] ^ changes[k]);
    }
  print_message("GGUF: %u refused at opening, %u by description, %u at loading, %u loaded\n", o.refused_open,
                o.refused_description, o.refused_load, o.loaded);
  assert_true(o.refused_open > 100 && o.refused_description > 100 && o.refused_load > 100 && o.loaded > 100);
  td_buf_deinit(&b);
}

/* ---- config.json ---- */

static void test_config(void **state)
{
  const char config[] =
      "{\"model_type\":\"qwen3\",\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":1,"
      "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":4,\"vocab_size\":9,"
      "\"max_position_embeddings\":64,\"use_sliding_window\":true,\"sliding_window\":16,"
      "\"max_window_layers\":0,\"eos_token_id\":[1,2],\"rms_norm_eps\":1e-6,"
      "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
      "\"high_freq_factor\":4,\"original_max_position_embeddings\":32}}";
  const char header[] = "{\"x\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}";
  static const char replacements[] = "09-{}[]\",:.e \x01\xFFtz";
  char folder[64], text[sizeof config];
  uint64_t n = sizeof header - 1;
  td_model_files *f;
  td_error err;
  td_status st;
  td_buf b;
  outcome o = {0};
  make_folder(folder);
  td_buf_init(&b, 0);
  put_u64(&b, n);
  td_buf_append_str(&b, header);
  td_buf_append(&b, "\0\0", 2);
  write_file(folder, "model.safetensors", b.data, b.len_bytes);
  for (size_t i = 0; i < sizeof config - 1; i++)
    for (size_t k = 0; k < sizeof replacements - 1; k++) {
      memcpy(text, config, sizeof config);
      text[i] = replacements[k];
      write_file(folder, "config.json", text, sizeof config - 1);
      st = td_model_files_open(folder, &f, &err);
      finish(st, f, &o);
    }
  for (size_t i = 0; i < sizeof config - 1; i++) {
    write_file(folder, "config.json", config, i);
    st = td_model_files_open(folder, &f, &err);
    finish(st, f, &o);
  }
  print_message("config.json: %u refused at opening, %u by description, %u at loading\n", o.refused_open,
                o.refused_description, o.refused_load);
  assert_true(o.refused_open > 100 && o.refused_description > 100 && o.refused_load > 100 && o.loaded == 0);
  td_buf_deinit(&b);
  remove_folder(folder);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_gguf), cmocka_unit_test(test_config)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
