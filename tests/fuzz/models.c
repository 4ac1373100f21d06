/* See models.h. */
#include "models.h"

#include <math.h>
#include <string.h>

#include "config/limits.h"
#include "common/utf8.h"
#include "fuzz.h"

void fuzz_touch(const void *data, uint64_t n_bytes)
{
  static volatile unsigned char sink;
  const unsigned char *p = data;
  if (n_bytes > 0)
    sink = p[0] ^ p[n_bytes - 1];
  (void)sink;
}

static void check_desc(const td_model_desc *d)
{
  FUZZ_CHECK(memchr(d->arch, '\0', sizeof d->arch) && *d->arch);
  FUZZ_CHECK(d->n_layers >= 1 && d->n_layers <= td_limit_max(TD_LIMIT_MODEL_LAYERS));
  FUZZ_CHECK(d->width >= 1 && d->width <= td_limit_max(TD_LIMIT_MODEL_WIDTH));
  FUZZ_CHECK(d->ffn_width >= 1 && d->ffn_width <= td_limit_max(TD_LIMIT_MODEL_WIDTH));
  FUZZ_CHECK(d->n_heads >= 1 && d->n_heads <= td_limit_max(TD_LIMIT_MODEL_HEADS));
  FUZZ_CHECK(d->n_kv_heads >= 1 && d->n_heads % d->n_kv_heads == 0);
  FUZZ_CHECK(d->head_dim >= 1 && d->head_dim <= TD_HEAD_DIM_MAX && d->head_dim % 2 == 0);
  FUZZ_CHECK(d->rotary_dim <= d->head_dim && d->rotary_dim % 2 == 0);
  FUZZ_CHECK(d->vocab >= 1 && d->vocab <= td_limit_max(TD_LIMIT_MODEL_VOCAB));
  FUZZ_CHECK(d->context_tokens >= 1 && d->context_tokens <= td_limit_max(TD_LIMIT_CONTEXT_TOKENS));
  FUZZ_CHECK(isfinite(d->norm_eps) && d->norm_eps >= 0 && isfinite(d->rope_attn_factor));
  for (uint32_t i = 0; i < d->rotary_dim / 2; i++)
    FUZZ_CHECK(isfinite(d->rope_inv_freq[i]));
  FUZZ_CHECK(d->n_eos_ids <= TD_EOS_IDS_MAX);
  for (uint32_t i = 0; i < d->n_eos_ids; i++)
    FUZZ_CHECK(d->eos_ids[i] >= 0 && (uint32_t)d->eos_ids[i] < d->vocab);
  FUZZ_CHECK(!isnan(d->default_temperature) && !isnan(d->default_top_p) && !isnan(d->default_min_p));
  FUZZ_CHECK(d->default_temperature <= 2 && d->default_top_p <= 1 && d->default_min_p <= 1);
  FUZZ_CHECK(td_model_desc_parameter_count(d) > 0);
}

td_model_files *fuzz_open_files(const char *path)
{
  td_model_files *files;
  td_model_desc d;
  td_error err = {0};
  td_status st = td_model_files_open(path, &files, &err);
  FUZZ_CHECK((st == TD_OK) == (files != NULL));
  if (st != TD_OK) {
    FUZZ_CHECK((st == TD_ERR_MODEL || st == TD_ERR_UNSUPPORTED || st == TD_ERR_IO) && *err.message);
    return NULL;
  }
  for (uint32_t i = 0; i < td_model_files_tensor_count(files); i++) {
    const td_tensor *t = td_model_files_tensor(files, i);
    FUZZ_CHECK(t && t->n_dims <= TD_TENSOR_DIMS_MAX && t->bytes <= td_model_files_bytes(files));
    fuzz_touch(t->data, t->bytes);
    FUZZ_CHECK(td_model_files_find(files, t->name) == t);
  }
  FUZZ_CHECK(!td_model_files_find(files, "no such tensor \x01"));
  st = td_model_desc_read(files, &d, &err);
  FUZZ_CHECK(st == TD_OK || ((st == TD_ERR_MODEL || st == TD_ERR_UNSUPPORTED) && *err.message));
  if (st == TD_OK)
    check_desc(&d);
  return files;
}

/* Skips to a byte that begins a character. */
static void check_utf8(const td_buf *b, size_t at)
{
  FUZZ_CHECK(!b->failed);
  for (size_t i = at, len; i < b->len_bytes; i += len) {
    len = td_utf8_sequence_length((const unsigned char *)b->data + i, b->len_bytes - i);
    FUZZ_CHECK(len > 0);
  }
}

void fuzz_use_tokenizer(const td_tokenizer *t, const char *text, size_t n)
{
  const td_span all = {0, n};
  td_ids ids = {0};
  td_error err = {0};
  td_buf out;
  td_detok d;
  FUZZ_CHECK(td_tokenizer_bos(t) < (int64_t)td_tokenizer_vocab(t) &&
             td_tokenizer_eos(t) < (int64_t)td_tokenizer_vocab(t));
  td_buf_init(&out, 0);
  td_detok_init(&d, t, false, true);
  if (td_tokenizer_encode(t, text, n, &all, 1, true, 0, &ids, &err) == TD_OK) {
    for (size_t i = 0; i < ids.n; i++) {
      FUZZ_CHECK(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < td_tokenizer_vocab(t));
      FUZZ_CHECK(td_tokenizer_token_text(t, ids.ids[i]));
      size_t at = out.len_bytes;
      td_detok_push(&d, ids.ids[i], &out);
      check_utf8(&out, at);
    }
    td_detok_finish(&d, &out);
    check_utf8(&out, 0);
  }
  td_detok_push(&d, -1, &out); /* ids that no one should give */
  td_detok_push(&d, INT32_MAX, &out);
  td_detok_finish(&d, &out);
  check_utf8(&out, 0);
  td_buf_deinit(&out);
  td_ids_deinit(&ids);
}
