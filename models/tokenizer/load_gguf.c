/* A tokenizer from GGUF metadata (tokenizer.ggml.*): model "gpt2" is byte-level BPE, "llama" SentencePiece's
 * BPE.
 *
 * Source: GGUF specification, "Tokenizer"; token types are numbered as in llama.cpp's llama_token_type.
 * load_pre.c defines the names of splitters. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

#define KEY(name) "tokenizer.ggml." name

/* Type of token i, or TYPE_NORMAL if the file does not say. */
static int token_type(const td_model_files *files, uint64_t n_types, uint64_t i)
{
  double type = TYPE_NORMAL;
  if (i >= n_types || !td_gguf_get_array_f64(files, KEY("token_type"), i, &type))
    return TYPE_NORMAL;
  return type >= 1 && type <= 6 ? (int)type : TYPE_NORMAL;
}

static bool is_added(int type)
{
  return type == TYPE_UNKNOWN || type == TYPE_CONTROL || type == TYPE_USER_DEFINED;
}

static uint8_t flags_of(const td_tokenizer *t, int type)
{
  if (is_added(type))
    return 0;
  if (!t->spm.on)
    return TD_TOKEN_MODEL;
  return type == TYPE_BYTE ? TD_TOKEN_BYTE : type == TYPE_UNUSED ? 0 : TD_TOKEN_MODEL;
}

static bool is(const td_gguf_string *s, const char *text)
{
  return s->n_bytes == strlen(text) && memcmp(s->data, text, s->n_bytes) == 0;
}

/* Phi-3's added tokens swallow the white space after them. GGUF cannot say so, but it is true of all its
 * files with a SentencePiece vocabulary, and its templates rely on it. */
static uint8_t strips_of(const td_tokenizer *t, const td_model_files *files, const td_gguf_string *text)
{
  td_gguf_string architecture;
  const bool phi3 = t->spm.on && td_gguf_get_string(files, "general.architecture", &architecture) &&
                    is(&architecture, "phi3");
  return phi3 && !is(text, "<unk>") && !is(text, "<s>") && !is(text, "<|endoftext|>") ? TD_ADDED_RSTRIP : 0;
}

/* Gemma's runs of spaces are written as spaces, but SentencePiece also matches them where U+2581 was typed.
 * In vocabularies with a dummy prefix, such tokens match in the unmarked text, as in llama.cpp. */
static bool is_met_in_marked_text(const td_tokenizer *t, int type)
{
  return t->spm.on && t->spm.prefix == TD_SPM_PREFIX_NONE && type == TYPE_USER_DEFINED;
}

static td_status load_tokens(td_tokenizer *t, const td_model_files *files, td_error *err)
{
  td_gguf_string_iter it;
  td_gguf_string text;
  if (!td_gguf_string_array(files, KEY("tokens"), &it))
    return td_fail(err, TD_ERR_MODEL, "%s has no array of strings " KEY("tokens"),
                   td_model_files_path(files));
  uint64_t n = 0, n_bytes = 0, n_types = 0;
  while (td_gguf_string_next(&it, &text)) {
    n++;
    n_bytes += text.n_bytes;
  }
  if (n > td_limit_max(TD_LIMIT_MODEL_VOCAB))
    return td_fail(err, TD_ERR_MODEL, KEY("tokens") " has %llu tokens, at most %llu are served",
                   (unsigned long long)n, (unsigned long long)td_limit_max(TD_LIMIT_MODEL_VOCAB));
  if (td_gguf_get_array_count(files, KEY("token_type"), &n_types) && n_types != n)
    return td_fail(err, TD_ERR_MODEL, KEY("token_type") " has %llu entries, " KEY("tokens") " has %llu",
                   (unsigned long long)n_types, (unsigned long long)n);
  TD_TRY(td_vocab_init(&t->vocab, (uint32_t)n, n_bytes, err));
  (void)td_gguf_string_array(files, KEY("tokens"), &it);
  for (uint32_t i = 0; i < n && td_gguf_string_next(&it, &text); i++) {
    const int type = token_type(files, n_types, i);
    TD_TRY(td_vocab_add(&t->vocab, i, text.data, text.n_bytes, flags_of(t, type), err));
    if (type == TYPE_UNKNOWN && t->spm.on && t->spm.unk < 0)
      t->spm.unk = (int32_t)i; /* used if the file has no unknown_token_id */
    if (is_added(type))
      TD_TRY(td_tokenizer_add(t, i, text.data, text.n_bytes, type != TYPE_USER_DEFINED,
                              is_met_in_marked_text(t, type), strips_of(t, files, &text), err));
  }
  return TD_OK;
}

static td_status load_merges(td_tokenizer *t, const td_model_files *files, td_error *err)
{
  td_gguf_string_iter it;
  td_gguf_string line;
  if (!td_gguf_string_array(files, KEY("merges"), &it))
    return td_fail(err, TD_ERR_MODEL, "%s has no array of strings " KEY("merges"),
                   td_model_files_path(files));
  uint64_t n = 0;
  while (td_gguf_string_next(&it, &line))
    n++;
  TD_TRY(td_merges_init(&t->merges, n, err));
  (void)td_gguf_string_array(files, KEY("merges"), &it);
  while (t->merges.n_merges < n && td_gguf_string_next(&it, &line))
    TD_TRY(td_merges_add_line(&t->merges, &t->vocab, line.data, line.n_bytes, err));
  return TD_OK;
}

/* ---- SentencePiece ---- */

static bool flag(const td_model_files *files, const char *key, bool absent)
{
  bool v;
  return td_gguf_get_bool(files, key, &v) ? v : absent;
}

static td_status load_scores(td_tokenizer *t, const td_model_files *files, td_error *err)
{
  uint64_t n = 0;
  if (!td_gguf_get_array_count(files, KEY("scores"), &n) || n != t->vocab.n_tokens)
    return td_fail(err, TD_ERR_MODEL, KEY("scores") " has %llu entries, " KEY("tokens") " has %u",
                   (unsigned long long)n, t->vocab.n_tokens);
  float *scores = calloc((size_t)n + 1, sizeof *scores);
  if (!scores)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the scores of %u tokens", t->vocab.n_tokens);
  td_status st = TD_OK;
  for (uint64_t i = 0; i < n && st == TD_OK; i++) {
    double score;
    if (!td_gguf_get_array_f64(files, KEY("scores"), i, &score))
      st = td_fail(err, TD_ERR_MODEL, KEY("scores") " is not an array of numbers");
    else
      scores[i] = (float)score;
  }
  if (st == TD_OK)
    st = td_scores_to_merges(t, scores, err);
  free(scores);
  return st;
}

/* As in llama.cpp: every stretch between special tokens gets a space before it, unless the file says no. */
static td_status load_spm(td_tokenizer *t, const td_model_files *files, td_error *err)
{
  uint64_t n_rules = 0;
  if (td_gguf_get_array_count(files, KEY("precompiled_charsmap"), &n_rules) && n_rules > 0)
    return td_fail(err, TD_ERR_UNSUPPORTED, KEY("precompiled_charsmap") " is not supported");
  t->spm.on = t->spm.marks_first = t->spm.byte_fallback = t->spm.fuse_unk = true;
  t->spm.squeezes = flag(files, KEY("remove_extra_whitespaces"), false);
  const bool prefix = flag(files, KEY("add_space_prefix"), true);
  t->spm.prefix = prefix ? TD_SPM_PREFIX_EVERY : TD_SPM_PREFIX_NONE;
  t->spm.decodes_strip = prefix;
  t->adds_bos = true;
  TD_TRY(load_tokens(t, files, err));
  return load_scores(t, files, err);
}

static td_status load_gpt2(td_tokenizer *t, const td_model_files *files, td_error *err)
{
  TD_TRY(td_pre_load(t, files, err));
  TD_TRY(load_tokens(t, files, err));
  return load_merges(t, files, err);
}

/* Reads a token id; *id keeps its value if the key is absent. An id outside the vocabulary is an error. */
static td_status read_token_id(const td_tokenizer *t, const td_model_files *files, const char *key,
                               int32_t *id, td_error *err)
{
  uint64_t v;
  double any;
  td_gguf_string text;
  bool flag;
  if (!td_gguf_get_u64(files, key, &v)) {
    if (td_gguf_get_f64(files, key, &any) || td_gguf_get_string(files, key, &text) ||
        td_gguf_get_bool(files, key, &flag))
      return td_fail(err, TD_ERR_MODEL, "%s is not a token id", key);
    return TD_OK;
  }
  if (v >= t->vocab.n_tokens)
    return td_fail(err, TD_ERR_MODEL, "%s is %llu, the vocabulary has %u tokens", key, (unsigned long long)v,
                   t->vocab.n_tokens);
  *id = (int32_t)v;
  return TD_OK;
}

td_status td_tokenizer_load_gguf(const td_model_files *files, td_tokenizer *t, td_error *err)
{
  td_gguf_string model;
  if (!td_gguf_get_string(files, KEY("model"), &model))
    return td_fail(err, TD_ERR_MODEL, "%s has no " KEY("model"), td_model_files_path(files));
  if (!is(&model, "gpt2") && !is(&model, "llama"))
    return td_fail(
        err, TD_ERR_UNSUPPORTED,
        KEY("model") " \"%.*s\" is not supported (gpt2: byte-level BPE; llama: SentencePiece's BPE)",
        model.n_bytes < 100 ? (int)model.n_bytes : 100, model.data);
  TD_TRY(is(&model, "llama") ? load_spm(t, files, err) : load_gpt2(t, files, err));
  TD_TRY(td_tokenizer_finish(t, err));
  if (t->spm.on)
    TD_TRY(read_token_id(t, files, KEY("unknown_token_id"), &t->spm.unk, err));
  TD_TRY(read_token_id(t, files, KEY("bos_token_id"), &t->bos, err));
  TD_TRY(read_token_id(t, files, KEY("eos_token_id"), &t->eos, err));
  bool adds_bos, adds_eos;
  if (td_gguf_get_bool(files, KEY("add_bos_token"), &adds_bos))
    t->adds_bos = adds_bos;
  t->adds_bos = t->adds_bos && t->bos >= 0;
  if (td_gguf_get_bool(files, KEY("add_eos_token"), &adds_eos) && adds_eos)
    td_tokenizer_add_eos(t);
  return TD_OK;
}
