/* A tokenizer from GGUF metadata (tokenizer.ggml.*), of model "gpt2", byte-level BPE, or "llama",
 * SentencePiece's.
 *
 * GGUF names the splitter instead of writing it down, and leaves normalisation and ignore_merges to that
 * name: what each name means here is what the tokenizer.json of those models says. Names that the reference
 * never had are refused. Source: GGUF specification, "Tokenizer"; token types as llama.cpp's llama_token_type
 * numbers them. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

#define KEY(name) "tokenizer.ggml." name

typedef struct pre {
  const char *name;
  const char *regexes[3]; /* the splitter chain, NULL-terminated where shorter */
  bool nfc, ignore_merges, adds_bos;
} pre;

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" TAIL
#define QWEN2 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" TAIL
#define QWEN35                                                                                               \
  CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                                               \
               "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK                                                                                             \
  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"          \
  "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(behind, digits)                                                                                \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" behind "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" behind   \
  "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const pre pres[] = {
    {"gpt-2", {GPT2}, false, false, false},
    {"smollm", {"\\p{N}", GPT2}, false, false, false},
    {"starcoder", {"\\p{N}", GPT2}, false, false, false},
    {"refact", {"\\p{N}", GPT2}, false, false, false},
    {"command-r", {"\\p{N}", GPT2}, true, false, false},
    {"llama-bpe", {LLAMA3}, false, true, true},
    {"llama3", {LLAMA3}, false, true, true},
    {"llama-v3", {LLAMA3}, false, true, true},
    {"dbrx", {LLAMA3}, false, false, false}, /* cl100k: Phi-4 */
    {"chatglm-bpe", {LLAMA3}, false, false, false},
    {"glm4", {LLAMA3}, false, false, false},
    {"qwen2", {QWEN2}, true, false, false},
    {"deepseek-r1-qwen", {QWEN2}, true, false, false},
    {"qwen35", {QWEN35}, true, false, false},
    {"deepseek-v3",
     {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK},
     false,
     false,
     false},
    {"tekken", {CASED("", "\\p{N}")}, false, true, true},
    {"gpt-4o", {CASED(CONTRACTIONS "?", "\\p{N}{1,3}")}, false, false, false},
    {"llama4", {CASED(CONTRACTIONS "?", "\\p{N}{1,3}")}, false, false, false},
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
    bool total;
    for (size_t k = 0; k < sizeof p->regexes / sizeof *p->regexes && p->regexes[k]; k++)
      if (!td_split_from_regex(p->regexes[k], &t->splits[t->n_splits++], &total))
        return td_fail(err, TD_ERR_NOMEM, "no memory for a splitter");
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

static uint8_t flags_of(const td_tokenizer *t, int type)
{
  if (is_added(type))
    return 0;
  if (!t->spm.on)
    return TD_TOKEN_MODEL;
  return type == TYPE_BYTE ? TD_TOKEN_BYTE : type == TYPE_UNUSED ? 0 : TD_TOKEN_MODEL;
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
    if (type == TYPE_UNKNOWN)
      t->spm.unk = (int32_t)i;
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

/* As llama.cpp means it: what stands between special tokens gets a space in front, unless the file says no.
 */
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
  TD_TRY(load_pre(t, files, err));
  TD_TRY(load_tokens(t, files, err));
  return load_merges(t, files, err);
}

static bool is(const td_gguf_string *s, const char *text)
{
  return s->n_bytes == strlen(text) && memcmp(s->data, text, s->n_bytes) == 0;
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
  if (!is(&model, "gpt2") && !is(&model, "llama"))
    return td_fail(
        err, TD_ERR_UNSUPPORTED,
        KEY("model") " \"%.*s\" is not supported (gpt2: byte-level BPE; llama: SentencePiece's BPE)",
        model.n_bytes < 100 ? (int)model.n_bytes : 100, model.data);
  TD_TRY(is(&model, "llama") ? load_spm(t, files, err) : load_gpt2(t, files, err));
  TD_TRY(td_tokenizer_finish(t, err));
  TD_TRY(read_token_id(t, files, KEY("bos_token_id"), &t->bos, err));
  TD_TRY(read_token_id(t, files, KEY("eos_token_id"), &t->eos, err));
  bool adds_bos;
  if (td_gguf_get_bool(files, KEY("add_bos_token"), &adds_bos))
    t->adds_bos = adds_bos;
  t->adds_bos = t->adds_bos && t->bos >= 0;
  return TD_OK;
}
