/* A tokenizer from GGUF metadata (tokenizer.ggml.*), of model "gpt2": byte-level BPE.
 *
 * GGUF names the splitter instead of writing it down, and leaves normalisation and ignore_merges to that
 * name: what each name means here is what the tokenizer.json of those models says. Names that the reference
 * never had are refused. Source: GGUF specification, "Tokenizer"; token types as llama.cpp's llama_token_type
 * numbers them. */
#include "models/tokenizer/internal.h"

#include <string.h>

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4 };

#define KEY(name) "tokenizer.ggml." name

typedef struct pre {
  const char *name;
  bool digits_first; /* every digit by itself, before the splitter */
  td_split split;
  bool nfc, ignore_merges, adds_bos;
} pre;

#define SPLIT_GPT2                                                                                           \
  {                                                                                                          \
    .kind = TD_SPLIT_WORDS                                                                                   \
  }
#define SPLIT_LLAMA3                                                                                         \
  {                                                                                                          \
    .kind = TD_SPLIT_WORDS, .modern = true, .fold = true, .max_digits = 3                                    \
  }
#define SPLIT_QWEN2                                                                                          \
  {                                                                                                          \
    .kind = TD_SPLIT_WORDS, .modern = true, .fold = true, .max_digits = 1                                    \
  }
#define SPLIT_QWEN35                                                                                         \
  {                                                                                                          \
    .kind = TD_SPLIT_WORDS, .modern = true, .fold = true, .marks = true, .max_digits = 1                     \
  }

static const pre pres[] = {
    {"gpt-2", false, SPLIT_GPT2, false, false, false},
    {"smollm", true, SPLIT_GPT2, false, false, false},
    {"starcoder", true, SPLIT_GPT2, false, false, false},
    {"refact", true, SPLIT_GPT2, false, false, false},
    {"llama-bpe", false, SPLIT_LLAMA3, false, true, true},
    {"llama3", false, SPLIT_LLAMA3, false, true, true},
    {"llama-v3", false, SPLIT_LLAMA3, false, true, true},
    {"qwen2", false, SPLIT_QWEN2, true, false, false},
    {"deepseek-r1-qwen", false, SPLIT_QWEN2, true, false, false},
    {"qwen35", false, SPLIT_QWEN35, true, false, false},
};

static td_status load_pre(td_tokenizer *t, const td_model_files *files, td_error *err)
{
  td_gguf_string name;
  if (!td_gguf_get_string(files, KEY("pre"), &name))
    return td_fail(err, TD_ERR_UNSUPPORTED, "%s has no " KEY("pre") ": which splitter it needs is not known",
                   td_model_files_path(files));
  for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
    const pre *p = &pres[i];
    if (name.n_bytes != strlen(p->name) || memcmp(name.data, p->name, name.n_bytes) != 0)
      continue;
    if (p->digits_first)
      t->splits[t->n_splits++] = (td_split){.kind = TD_SPLIT_NUMBERS, .max_digits = 1};
    t->splits[t->n_splits++] = p->split;
    t->nfc = p->nfc;
    t->ignore_merges = p->ignore_merges;
    t->adds_bos = p->adds_bos;
    return TD_OK;
  }
  return td_fail(err, TD_ERR_UNSUPPORTED, KEY("pre") " \"%.*s\" is not supported",
                 name.n_bytes < 100 ? (int)name.n_bytes : 100, name.data);
}

/* Type of token i, where the file tells. */
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
    TD_TRY(td_vocab_add(&t->vocab, i, text.data, text.n_bytes, is_added(type) ? 0 : TD_TOKEN_MODEL, err));
    if (is_added(type))
      TD_TRY(td_tokenizer_add(t, i, text.data, text.n_bytes, type != TYPE_USER_DEFINED, false, 0, err));
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

/* A token id under a key; -1 if absent. An id outside the vocabulary is an error. */
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
  if (model.n_bytes != 4 || memcmp(model.data, "gpt2", 4) != 0)
    return td_fail(err, TD_ERR_UNSUPPORTED,
                   KEY("model") " \"%.*s\" is not supported (only gpt2: byte-level BPE)",
                   model.n_bytes < 100 ? (int)model.n_bytes : 100, model.data);
  TD_TRY(load_pre(t, files, err));
  TD_TRY(load_tokens(t, files, err));
  TD_TRY(load_merges(t, files, err));
  TD_TRY(td_tokenizer_finish(t, err));
  TD_TRY(read_token_id(t, files, KEY("bos_token_id"), &t->bos, err));
  TD_TRY(read_token_id(t, files, KEY("eos_token_id"), &t->eos, err));
  bool adds_bos;
  if (td_gguf_get_bool(files, KEY("add_bos_token"), &adds_bos))
    t->adds_bos = adds_bos;
  t->adds_bos = t->adds_bos && t->bos >= 0;
  return TD_OK;
}
