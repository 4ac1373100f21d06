/* A model cut for two ranks: the parts that the ranks load of every matrix, from a file and as dummy
 * weights, give the whole model's results. Outputs of matrices cut by outputs are concatenated, bit for
 * bit; those of matrices cut by inputs are added. */
#include "kernels_fixture.h"
#include "models_fixture.h"

#include "models/model_internal.h"
#include "models/roles.h"

enum { WIDTH = 64, FFN = 96, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, VOCAB = 40, LAYERS = 2, ROWS = 3 };

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":40,"
    "\"max_position_embeddings\":32,\"attention_bias\":true,\"mlp_bias\":true}";

static void write_weights(const char *folder, const td_model_desc *d)
{
  td_buf header, data;
  td_buf_init(&header, 0);
  td_buf_init(&data, 0);
  for (int r = 0; r < TD_ROLE_COUNT; r++)
    for (uint32_t i = 0; i < (r < TD_ROLE_ATTN_NORM ? 1 : d->n_layers); i++) {
      char name[TD_ROLE_NAME_BYTES];
      uint64_t shape[2];
      if (!td_role_present((td_role)r, d))
        continue;
      bool matrix = td_role_shape((td_role)r, d, shape) == 2;
      size_t n = shape[0] * (matrix ? shape[1] : 1);
      float *values = fx_floats(n, 1);
      td_buf_printf(&header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%u", header.len_bytes ? "," : "{",
                    td_role_name((td_role)r, d, i, name), (unsigned)shape[0]);
      if (matrix)
        td_buf_printf(&header, ",%u", (unsigned)shape[1]);
      td_buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", data.len_bytes, data.len_bytes + 4 * n);
      td_buf_append(&data, values, 4 * n);
      free(values);
    }
  write_tensors(folder, &header, &data);
}

static td_model_desc description(void)
{
  return (td_model_desc){.arch = "llama",
                         .n_layers = LAYERS,
                         .width = WIDTH,
                         .ffn_width = FFN,
                         .n_heads = HEADS,
                         .n_kv_heads = KV_HEADS,
                         .head_dim = HEAD_DIM,
                         .rotary_dim = HEAD_DIM,
                         .vocab = VOCAB,
                         .context_tokens = 32,
                         .norm_eps = 1e-5f,
                         .qkv_bias = true,
                         .o_bias = true,
                         .mlp_bias = true};
}

static td_backend *rank_backend(uint32_t rank, uint32_t n_ranks)
{
  td_backend *be;
  td_backend_config c = {.n_threads = 1,
                         .max_slots = 4,
                         .max_rows = 4,
                         .max_tokens = 16,
                         .max_context_tokens = 32,
                         .max_vocab = VOCAB,
                         .rank = rank,
                         .n_ranks = n_ranks};
  assert_int_equal(td_backend_create("cpu", &c, &be, NULL), TD_OK);
  return be;
}

/* [ROWS, n_out] of columns [first, first + n_in) of x [ROWS, stride]; the caller frees it. */
static float *product(td_backend *be, const td_weight *w, const float *x, uint32_t stride, uint32_t first)
{
  float *part = malloc((size_t)ROWS * w->n_in * sizeof *part);
  for (uint32_t r = 0; r < ROWS; r++)
    memcpy(part + (size_t)r * w->n_in, x + (size_t)r * stride + first, w->n_in * sizeof *part);
  td_devptr out = fx_alloc(be, (size_t)ROWS * w->n_out);
  td_op op = {.kind = TD_OP_LINEAR,
              .linear = {.weight = w,
                         .x = fx_upload(be, part, (size_t)ROWS * w->n_in),
                         .out = out,
                         .n_in = w->n_in,
                         .n_out = w->n_out,
                         .bias = w->has_bias}};
  fx_run_rows(be, ROWS, &op);
  free(part);
  return fx_download(be, out, (size_t)ROWS * w->n_out);
}

/* widths: number of outputs of each part of the weight, in the whole model. */
static void expect_side_by_side(td_backend *be[3], const td_weight *w[3], const uint32_t *widths, uint32_t n)
{
  float *x = fx_floats((size_t)ROWS * WIDTH, 1), *out[3];
  for (int i = 0; i < 3; i++)
    out[i] = product(be[i], w[i], x, WIDTH, 0);
  assert_int_equal(w[1]->shard.axis, TD_SHARD_OUT);
  assert_int_equal(w[2]->shard.rank, 1);
  assert_int_equal(w[2]->shard.n_ranks, 2);
  for (uint32_t r = 0; r < ROWS; r++)
    for (uint32_t k = 0, at = 0, at_half = 0; k < n; at += widths[k], at_half += widths[k] / 2, k++)
      for (uint32_t half = 0; half < 2; half++)
        assert_memory_equal(out[1 + half] + (size_t)r * w[1]->n_out + at_half,
                            out[0] + (size_t)r * w[0]->n_out + at + half * (widths[k] / 2),
                            widths[k] / 2 * sizeof(float));
  free(x);
  for (int i = 0; i < 3; i++)
    free(out[i]);
}

static void expect_sums(td_backend *be[3], const td_weight *w[3], uint32_t n_in)
{
  float *x = fx_floats((size_t)ROWS * n_in, 1), *out[3];
  for (uint32_t i = 0; i < 3; i++)
    out[i] = product(be[i], w[i], x, n_in, i < 2 ? 0 : n_in / 2);
  assert_int_equal(w[1]->shard.axis, TD_SHARD_IN);
  assert_true(w[1]->has_bias && !w[2]->has_bias); /* an all-reduce would add it twice */
  for (size_t i = 0; i < (size_t)ROWS * WIDTH; i++)
    assert_true(fabsf(out[1][i] + out[2][i] - out[0][i]) <= 1e-4f);
  free(x);
  for (int i = 0; i < 3; i++)
    free(out[i]);
}

#define OF_EACH(m, field) ((const td_weight *[3]){(m)[0]->field, (m)[1]->field, (m)[2]->field})

static void compare(td_backend *be[3], td_model *m[3])
{
  for (uint32_t l = 0; l < LAYERS; l++) {
    expect_side_by_side(be, OF_EACH(m, layers[l].qkv),
                        (uint32_t[]){HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM}, 3);
    expect_side_by_side(be, OF_EACH(m, layers[l].gate_up), (uint32_t[]){FFN, FFN}, 2);
    expect_sums(be, OF_EACH(m, layers[l].o), HEADS * HEAD_DIM);
    expect_sums(be, OF_EACH(m, layers[l].down), FFN);
  }
  expect_side_by_side(be, OF_EACH(m, head), (uint32_t[]){VOCAB}, 1);
  for (int i = 0; i < 3; i++)
    assert_int_equal(m[i]->embed->n_out, VOCAB);
}

static void test_shards_give_the_whole(void **state)
{
  for (int from_file = 0; from_file < 2; from_file++) {
    td_model_desc d = description();
    td_model_files *files = NULL;
    td_backend *be[3];
    td_model *m[3];
    char folder[64];
    make_folder(folder);
    if (from_file) {
      write_file(folder, "config.json", config, strlen(config));
      write_weights(folder, &d);
      assert_int_equal(td_model_files_open(folder, &files, NULL), TD_OK);
      assert_int_equal(td_model_desc_read(files, &d, NULL), TD_OK);
    }
    for (uint32_t i = 0; i < 3; i++) {
      be[i] = rank_backend(i < 2 ? 0 : 1, i == 0 ? 1 : 2);
      assert_int_equal(from_file ? td_model_load(files, &d, be[i], 16, 4, NULL, NULL, &m[i], NULL)
                                 : td_model_make_up(&d, be[i], 7, 16, 4, NULL, NULL, &m[i], NULL),
                       TD_OK);
    }
    compare(be, m);
    uint64_t whole = td_model_weight_bytes(files, &d, be[0]), half = td_model_weight_bytes(files, &d, be[1]);
    assert_true(half > whole / 2 && half < whole * 3 / 4); /* both ranks have the norms and the embedding */
    for (int i = 0; i < 3; i++) {
      td_model_destroy(m[i]);
      be[i]->ops->destroy(be[i]);
    }
    td_model_files_close(files);
    remove_folder(folder);
  }
}

static void test_what_cannot_be_cut_is_refused(void **state)
{
  td_model_desc d = description();
  td_backend *be = rank_backend(0, 4);
  td_model *m;
  td_error err = {0};
  assert_int_equal(td_model_make_up(&d, be, 7, 16, 4, NULL, NULL, &m, &err), TD_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.message, "2 kv heads"));
  be->ops->destroy(be);
  be = rank_backend(1, 2);
  td_program *p;
  assert_int_equal(td_model_make_up(&d, be, 7, 16, 4, NULL, NULL, &m, &err), TD_OK);
  assert_int_equal(td_model_program(m, NULL, &p, &err), TD_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.message, "all-reduce"));
  td_model_destroy(m);
  be->ops->destroy(be);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shards_give_the_whole),
      cmocka_unit_test(test_what_cannot_be_cut_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
