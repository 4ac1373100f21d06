/* A tokenizer from tokenizer.json (and tokenizer_config.json), the format of Hugging Face's tokenizers.
 *
 * Reads model (BPE; Unigram in load_unigram.c), the chain of normalizer, pre_tokenizer and decoder
 * (load_chain.c), post_processor (the tokens that it adds to a text) and added_tokens. Every setting that
 * would change ids and is not served is refused by name: a tokenizer that is nearly right is wrong. */
#include "models/tokenizer/load_json.h"

#include <string.h>

/* Reads an id: an integer in the served range. */
static td_status read_id(const cJSON *o, const char *of, uint32_t *id, td_error *err)
{
  if (!cJSON_IsNumber(o) || !(o->valuedouble >= 0) ||
      o->valuedouble >= (double)td_limit_max(TD_LIMIT_MODEL_VOCAB) ||
      o->valuedouble != (double)(uint32_t)o->valuedouble)
    return td_fail(err, TD_ERR_MODEL, "tokenizer.json: id of token \"%.200s\" is not an integer below %llu",
                   of, (unsigned long long)td_limit_max(TD_LIMIT_MODEL_VOCAB));
  *id = (uint32_t)o->valuedouble;
  return TD_OK;
}

/* ---- model ---- */

static td_status refuse_model_settings(const cJSON *model, td_error *err)
{
  const cJSON *type = td_json_get(model, "type");
  if (!td_load_is_null(type) && !(cJSON_IsString(type) && strcmp(type->valuestring, "BPE") == 0))
    return td_load_unsupported(err, "model type", td_load_type(model));
  static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    const cJSON *v = td_json_get(model, texts[i]);
    if (!td_load_is_null(v) && !(cJSON_IsString(v) && v->valuestring[0] == '\0'))
      return td_fail(err, TD_ERR_UNSUPPORTED, "tokenizer.json: model.%s is not supported", texts[i]);
  }
  const cJSON *dropout = td_json_get(model, "dropout");
  if (!td_load_is_null(dropout) && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
    return td_fail(err, TD_ERR_UNSUPPORTED, "tokenizer.json: model.dropout is not supported");
  return TD_OK; /* load_unknown checks unk_token, fuse_unk and byte_fallback */
}

/* Reads how characters without a token are encoded. */
static td_status load_unknown(td_tokenizer *t, const cJSON *model, td_error *err)
{
  const cJSON *unk = td_json_get(model, "unk_token");
  td_spm *spm = &t->spm;
  TD_TRY(td_load_flag(model, "fuse_unk", false, &spm->fuse_unk, err));
  if (!td_load_is_null(unk) && !cJSON_IsString(unk))
    return td_load_wrong(err, "model.unk_token is not a string");
  if (!spm->on)
    return spm->byte_fallback
               ? td_load_unsupported(err, "with pre_tokenizer ByteLevel, model.byte_fallback", "true")
               : TD_OK;
  if (t->ignore_merges)
    return td_load_unsupported(err, "without pre_tokenizer ByteLevel, model.ignore_merges", "true");
  spm->unk = td_load_is_null(unk) ? -1 : td_vocab_find(&t->vocab, unk->valuestring, strlen(unk->valuestring));
  td_spm_find_bytes(t);
  return TD_OK;
}

/* For texts of bytes, an unknown token matters only if some byte has no token of its own. */
static td_status check_unknown(const td_tokenizer *t, const cJSON *model, td_error *err)
{
  const cJSON *unk = td_json_get(model, "unk_token");
  /* Elsewhere `tokenizers` finds its text like that of any piece, and takes it for an unknown character. */
  if (t->unigram.on && !(t->vocab.tokens[t->spm.unk].flags & TD_TOKEN_ADDED))
    return td_load_unsupported(err, "outside added_tokens, the token of model.unk_id",
                               td_vocab_text(&t->vocab, (uint32_t)t->spm.unk));
  if (td_load_is_null(unk) || t->spm.on)
    return TD_OK;
  for (unsigned b = 0; b < 256; b++)
    if (t->byte_id[b] < 0)
      return td_fail(
          err, TD_ERR_UNSUPPORTED,
          "tokenizer.json: model.unk_token \"%.100s\" is not supported where a byte (%02X) has no token",
          unk->valuestring, b);
  return TD_OK;
}

static td_status load_vocab(td_tokenizer *t, const cJSON *model, td_error *err)
{
  const cJSON *vocab = td_json_get(model, "vocab"), *entry;
  if (!cJSON_IsObject(vocab))
    return td_load_wrong(err, "model.vocab is not an object");
  uint32_t n_ids = 0;
  uint64_t n_bytes = 0;
  cJSON_ArrayForEach(entry, vocab)
  {
    uint32_t id = 0;
    TD_TRY(read_id(entry, entry->string ? entry->string : "", &id, err));
    if (id >= n_ids)
      n_ids = id + 1;
    n_bytes += entry->string ? strlen(entry->string) : 0;
  }
  TD_TRY(td_vocab_init(&t->vocab, n_ids, n_bytes, err));
  cJSON_ArrayForEach(entry, vocab)
  {
    const char *text = entry->string ? entry->string : "";
    TD_TRY(td_vocab_add(&t->vocab, (uint32_t)entry->valuedouble, text, strlen(text), TD_TOKEN_MODEL, err));
  }
  return TD_OK;
}

static td_status load_merges(td_tokenizer *t, const cJSON *model, td_error *err)
{
  const cJSON *merges = td_json_get(model, "merges"), *entry;
  if (!cJSON_IsArray(merges))
    return td_load_wrong(err, "model.merges is not an array");
  uint64_t n = 0;
  cJSON_ArrayForEach(entry, merges) n++;
  TD_TRY(td_merges_init(&t->merges, n, err));
  cJSON_ArrayForEach(entry, merges)
  {
    if (cJSON_IsString(entry)) {
      if (strncmp(entry->valuestring, "#version", 8) != 0) /* the reference skips these */
        TD_TRY(
            td_merges_add_line(&t->merges, &t->vocab, entry->valuestring, strlen(entry->valuestring), err));
      continue;
    }
    const cJSON *left = cJSON_IsArray(entry) ? entry->child : NULL, *right = left ? left->next : NULL;
    if (!cJSON_IsString(left) || !cJSON_IsString(right) || right->next)
      return td_fail(err, TD_ERR_MODEL, "tokenizer.json: merge %u is neither a string nor a pair of strings",
                     t->merges.n_merges + 1);
    TD_TRY(td_merges_add(&t->merges, &t->vocab, left->valuestring, strlen(left->valuestring),
                         right->valuestring, strlen(right->valuestring), err));
  }
  return TD_OK;
}

/* ---- post_processor: tokens before and after a text ---- */

/* Adds one token. The first one before the text is BOS. */
static td_status add_around(td_tokenizer *t, int32_t id, bool at_end, td_error *err)
{
  td_around *around = at_end ? &t->rear : &t->front;
  if (!at_end && !t->adds_bos) {
    t->adds_bos = true;
    t->bos = id;
    return TD_OK;
  }
  if (around->n == TD_AROUND_MAX)
    return td_fail(err, TD_ERR_UNSUPPORTED, "tokenizer.json: post_processor adds more than %d tokens",
                   TD_AROUND_MAX);
  around->ids[around->n++] = id;
  return TD_OK;
}

/* Adds a template's token by its name: the ids that the template lists for it or, without a list, the added
 * token with that text. */
static td_status add_named(td_tokenizer *t, const cJSON *o, const char *name, bool at_end, td_error *err)
{
  const cJSON *ids = td_json_get(td_json_get(td_json_get(o, "special_tokens"), name), "ids"), *item;
  if (!cJSON_IsArray(ids)) {
    const int32_t id = td_tokenizer_added_token(t, name, strlen(name));
    return id >= 0
               ? add_around(t, id, at_end, err)
               : td_fail(err, TD_ERR_MODEL,
                         "tokenizer.json: post_processor adds \"%.200s\", which is not an added token", name);
  }
  cJSON_ArrayForEach(item, ids)
  {
    uint32_t id = 0;
    TD_TRY(read_id(item, name, &id, err));
    if (!td_vocab_has(&t->vocab, id))
      return td_fail(err, TD_ERR_MODEL,
                     "tokenizer.json: post_processor adds \"%.200s\" as %u, which is no token", name, id);
    TD_TRY(add_around(t, (int32_t)id, at_end, err));
  }
  return TD_OK;
}

static td_status load_template(td_tokenizer *t, const cJSON *o, bool *decided, td_error *err)
{
  const cJSON *single = td_json_get(o, "single"), *part;
  if (!cJSON_IsArray(single))
    return td_load_wrong(err, "post_processor.single is not an array");
  if (*decided)
    return td_load_unsupported(err, "post_processor of several", "TemplateProcessing");
  bool text_seen = false;
  cJSON_ArrayForEach(part, single)
  {
    const cJSON *special = td_json_get(part, "SpecialToken"), *id = td_json_get(special, "id");
    if (!special) {
      if (text_seen || !td_json_get(part, "Sequence"))
        return td_load_wrong(err, "post_processor.single is not one text and special tokens");
      text_seen = true;
      continue;
    }
    if (!cJSON_IsString(id))
      return td_load_wrong(err, "post_processor.single has a special token without id");
    TD_TRY(add_named(t, o, id->valuestring, text_seen, err));
  }
  if (!text_seen)
    return td_load_wrong(err, "post_processor.single is not one text and special tokens");
  *decided = true;
  return TD_OK;
}

/* *decided is set if a template says whether BOS is added. */
static td_status load_post_processor(td_tokenizer *t, const cJSON *o, int depth, bool *decided, td_error *err)
{
  if (td_load_is_null(o))
    return TD_OK;
  const char *type = td_load_type(o);
  if (strcmp(type, "ByteLevel") == 0) /* changes offsets only */
    return TD_OK;
  if (strcmp(type, "TemplateProcessing") == 0)
    return load_template(t, o, decided, err);
  const cJSON *parts = td_json_get(o, "processors"), *part;
  if (strcmp(type, "Sequence") != 0 || !cJSON_IsArray(parts) ||
      depth >= (int)td_limit_max(TD_LIMIT_TOKENIZER_DEPTH))
    return td_load_unsupported(err, "post_processor", type);
  cJSON_ArrayForEach(part, parts) TD_TRY(load_post_processor(t, part, depth + 1, decided, err));
  return TD_OK;
}

/* ---- added tokens and tokenizer_config.json ---- */

static td_status load_added(td_tokenizer *t, const cJSON *list, td_error *err)
{
  const cJSON *o;
  if (td_load_is_null(list))
    return TD_OK;
  if (!cJSON_IsArray(list))
    return td_load_wrong(err, "added_tokens is not an array");
  cJSON_ArrayForEach(o, list)
  {
    const cJSON *content = td_json_get(o, "content");
    if (!cJSON_IsString(content))
      return td_load_wrong(err, "an added token has no content");
    uint32_t id = 0;
    bool special = false, normalized = false, single_word = false, lstrip = false, rstrip = false;
    TD_TRY(read_id(td_json_get(o, "id"), content->valuestring, &id, err));
    TD_TRY(td_load_flag(o, "special", false, &special, err));
    TD_TRY(td_load_flag(o, "normalized", !special, &normalized, err));
    TD_TRY(td_load_flag(o, "single_word", false, &single_word, err));
    TD_TRY(td_load_flag(o, "lstrip", false, &lstrip, err));
    TD_TRY(td_load_flag(o, "rstrip", false, &rstrip, err));
    uint8_t flags = (single_word ? TD_ADDED_SINGLE_WORD : 0) | (lstrip ? TD_ADDED_LSTRIP : 0) |
                    (rstrip ? TD_ADDED_RSTRIP : 0);
    TD_TRY(td_tokenizer_add(t, id, content->valuestring, strlen(content->valuestring), special, normalized,
                            flags, err));
  }
  return TD_OK;
}

/* The token that tokenizer_config.json names, as text or as an object with content; -1 if there is none. */
static int32_t config_token(const td_tokenizer *t, const cJSON *config, const char *key)
{
  const cJSON *v = td_json_get(config, key);
  if (cJSON_IsObject(v))
    v = td_json_get(v, "content");
  return cJSON_IsString(v) ? td_vocab_find(&t->vocab, v->valuestring, strlen(v->valuestring)) : -1;
}

static void load_config(td_tokenizer *t, const cJSON *config, bool bos_decided)
{
  int32_t bos = config_token(t, config, "bos_token");
  if (bos >= 0 && !t->adds_bos) /* otherwise BOS is the template's first token */
    t->bos = bos;
  t->eos = config_token(t, config, "eos_token");
  if (!bos_decided)
    t->adds_bos = t->bos >= 0 && cJSON_IsTrue(td_json_get(config, "add_bos_token"));
  if (!bos_decided && cJSON_IsTrue(td_json_get(config, "add_eos_token")))
    td_tokenizer_add_eos(t);
}

static td_status load_bpe(td_tokenizer *t, const cJSON *model, td_error *err)
{
  TD_TRY(load_vocab(t, model, err));
  TD_TRY(load_unknown(t, model, err));
  return load_merges(t, model, err);
}

static td_status load_all(td_tokenizer *t, const cJSON *json, const cJSON *config, td_error *err)
{
  const cJSON *model = td_json_get(json, "model");
  if (!cJSON_IsObject(model))
    return td_load_wrong(err, "there is no model");
  const bool unigram = td_load_is_unigram(model);
  if (!unigram)
    TD_TRY(refuse_model_settings(model, err));
  TD_TRY(td_load_flag(model, "ignore_merges", false, &t->ignore_merges, err));
  bool bos_decided = false;
  TD_TRY(td_load_flag(model, "byte_fallback", false, &t->spm.byte_fallback, err));
  TD_TRY(td_chain_load(t, json, err));
  TD_TRY(unigram ? td_load_unigram(t, model, err) : load_bpe(t, model, err));
  TD_TRY(load_added(t, td_json_get(json, "added_tokens"), err));
  TD_TRY(td_tokenizer_finish(t, err));
  TD_TRY(check_unknown(t, model, err));
  TD_TRY(load_post_processor(t, td_json_get(json, "post_processor"), 0, &bos_decided, err));
  load_config(t, config, bos_decided);
  return TD_OK;
}

td_status td_tokenizer_load_json(const cJSON *tokenizer_json, const cJSON *tokenizer_config,
                                 td_tokenizer **out, td_error *err)
{
  *out = NULL;
  td_tokenizer *t = td_tokenizer_new(err);
  if (!t)
    return TD_ERR_NOMEM;
  td_status status = load_all(t, tokenizer_json, tokenizer_config, err);
  if (status != TD_OK) {
    td_tokenizer_destroy(t);
    return status;
  }
  *out = t;
  return TD_OK;
}
