/* A tokenizer from tokenizer.model, SentencePiece's own file, for folders that have no tokenizer.json.
 *
 * The file is a ModelProto (sentencepiece_model.proto): pieces with score and type, how it was trained, how
 * text is normalised. We read only the few fields that change ids. Values that are not served are refused by
 * name. tokenizer_config.json gives what transformers' LlamaTokenizer adds: tokens of its own, BOS, and
 * whether every stretch between special tokens gets a space before it ("legacy", the default) or only the
 * first. */
#include "models/tokenizer/load_json.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE };
enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2 };

/* SentencePiece's score of a piece of type USER_DEFINED, for each of its bytes but one. */
static const double USER_DEFINED_SCORE = 0.1;

typedef struct piece {
  const char *text; /* borrowed */
  size_t n_bytes;
  float score;
  uint64_t type;
} piece;

typedef struct proto {
  piece *pieces; /* owned */
  uint32_t n_pieces, cap_pieces;
  uint64_t model_type;
  int64_t bos, eos;
  bool space_behind; /* U+2581 at the end of words */
  bool dummy_prefix, squeezes, escapes;
  bool rewrites; /* has a table of characters to replace */
  td_error *err;
} proto;

static td_status broken(td_error *err)
{
  return td_fail(err, TD_ERR_MODEL, "tokenizer.model is not a SentencePiece model");
}

typedef td_status read_field_fn(proto *m, const td_protobuf_field *f);

static td_status read_message(proto *m, const unsigned char *bytes, size_t n, read_field_fn *read)
{
  td_protobuf r = {bytes, bytes + n};
  td_protobuf_field f;
  int more;
  while ((more = td_protobuf_next(&r, &f)) > 0)
    TD_TRY(read(m, &f));
  return more == 0 ? TD_OK : broken(m->err);
}

static td_status read_piece_field(proto *m, const td_protobuf_field *f)
{
  piece *p = &m->pieces[m->n_pieces - 1];
  uint32_t bits = (uint32_t)f->value;
  if (f->number == 1 && f->wire == 2) {
    p->text = (const char *)f->bytes;
    p->n_bytes = f->n_bytes;
  } else if (f->number == 2 && f->wire == 5) {
    memcpy(&p->score, &bits, sizeof bits);
  } else if (f->number == 3 && f->wire == 0) {
    p->type = f->value;
  }
  return TD_OK;
}

static td_status read_trainer_field(proto *m, const td_protobuf_field *f)
{
  if (f->wire != 0)
    return TD_OK;
  switch (f->number) {
  case 3: m->model_type = f->value; break;
  case 24: m->space_behind = f->value != 0; break;
  case 41: m->bos = (int32_t)f->value; break;
  case 42: m->eos = (int32_t)f->value; break;
  default: break;
  }
  return TD_OK;
}

static td_status read_normalizer_field(proto *m, const td_protobuf_field *f)
{
  switch (f->number) {
  case 2: /* compiled table */
  case 6: /* rules as text */ m->rewrites = m->rewrites || f->n_bytes > 0; break;
  case 3: m->dummy_prefix = f->value != 0; break;
  case 4: m->squeezes = f->value != 0; break;
  case 5: m->escapes = f->value != 0; break;
  default: break;
  }
  return TD_OK;
}

/* The inverse of the normalizer, applied after decoding. */
static td_status read_denormalizer_field(proto *m, const td_protobuf_field *f)
{
  m->rewrites = m->rewrites || ((f->number == 2 || f->number == 6) && f->n_bytes > 0);
  return TD_OK;
}

static td_status add_piece(proto *m, const td_protobuf_field *f)
{
  if (m->n_pieces == td_limit_max(TD_LIMIT_MODEL_VOCAB))
    return td_fail(m->err, TD_ERR_MODEL, "tokenizer.model has more than %u pieces", m->n_pieces);
  if (m->n_pieces == m->cap_pieces) {
    uint32_t cap = m->cap_pieces ? 2 * m->cap_pieces : 1024;
    piece *pieces = realloc(m->pieces, cap * sizeof *pieces);
    if (!pieces)
      return td_fail(m->err, TD_ERR_NOMEM, "no memory for %u pieces", cap);
    m->pieces = pieces;
    m->cap_pieces = cap;
  }
  m->pieces[m->n_pieces++] = (piece){.text = "", .type = PIECE_NORMAL};
  return read_message(m, f->bytes, f->n_bytes, read_piece_field);
}

static td_status read_model_field(proto *m, const td_protobuf_field *f)
{
  if (f->wire != 2)
    return TD_OK;
  switch (f->number) {
  case 1: return add_piece(m, f);
  case 2: return read_message(m, f->bytes, f->n_bytes, read_trainer_field);
  case 3: return read_message(m, f->bytes, f->n_bytes, read_normalizer_field);
  case 5: return read_message(m, f->bytes, f->n_bytes, read_denormalizer_field);
  default: return TD_OK;
  }
}

static td_status refuse_settings(const proto *m)
{
  const bool known = m->model_type == MODEL_UNIGRAM || m->model_type == MODEL_BPE;
  const char *what = !known            ? "model_type other than UNIGRAM and BPE"
                     : m->space_behind ? "treat_whitespace_as_suffix"
                     : !m->escapes     ? "normalizer_spec without escape_whitespaces"
                     : m->rewrites     ? "normalizer_spec with rules"
                                       : NULL;
  return what ? td_fail(m->err, TD_ERR_UNSUPPORTED, "tokenizer.model: %s is not supported", what) : TD_OK;
}

/* ---- pieces to tokens ---- */

/* BPE cuts pieces of type USER_DEFINED out before it merges (td_tokenizer_add_piece). For Unigram they are
 * pieces with another score. In both cases ADDED keeps them so if the configuration lists them again. */
static uint8_t flags_of(const proto *m, const piece *p)
{
  switch (p->type) {
  case PIECE_NORMAL: return TD_TOKEN_MODEL;
  case PIECE_BYTE: return TD_TOKEN_BYTE;
  case PIECE_USER_DEFINED: return m->model_type == MODEL_UNIGRAM ? TD_TOKEN_ADDED : 0;
  default: return 0;
  }
}

static td_status add_tokens(td_tokenizer *t, const proto *m)
{
  uint64_t n_bytes = 0;
  for (uint32_t i = 0; i < m->n_pieces; i++)
    n_bytes += m->pieces[i].n_bytes;
  TD_TRY(td_vocab_init(&t->vocab, m->n_pieces, n_bytes, m->err));
  for (uint32_t i = 0; i < m->n_pieces; i++) {
    const piece *p = &m->pieces[i];
    TD_TRY(td_vocab_add(&t->vocab, i, p->text, p->n_bytes, flags_of(m, p), m->err));
    if (p->type == PIECE_UNKNOWN && t->spm.unk < 0)
      t->spm.unk = (int32_t)i;
    if (p->type == PIECE_UNKNOWN || p->type == PIECE_CONTROL)
      TD_TRY(td_tokenizer_add(t, i, p->text, p->n_bytes, true, false, 0, m->err));
    else if (p->type == PIECE_USER_DEFINED && m->model_type == MODEL_BPE)
      TD_TRY(td_tokenizer_add_piece(t, i, m->err));
    else if (p->type == PIECE_UNUSED)
      return td_fail(m->err, TD_ERR_UNSUPPORTED, "tokenizer.model: piece %u of type UNUSED is not supported",
                     i);
  }
  return TD_OK;
}

static td_status add_merges(td_tokenizer *t, const proto *m)
{
  float *scores = calloc((size_t)t->vocab.n_tokens + 1, sizeof *scores);
  if (!scores)
    return td_fail(m->err, TD_ERR_NOMEM, "no memory for the scores of %u pieces", m->n_pieces);
  for (uint32_t i = 0; i < m->n_pieces; i++)
    scores[i] = m->pieces[i].score;
  td_status st = td_scores_to_merges(t, scores, m->err);
  free(scores);
  return st;
}

static td_status add_scores(td_tokenizer *t, const proto *m)
{
  double *scores = calloc(m->n_pieces, sizeof *scores), least = 0;
  if (!scores)
    return td_fail(m->err, TD_ERR_NOMEM, "no memory for the scores of %u pieces", m->n_pieces);
  bool any = false;
  for (uint32_t i = 0; i < m->n_pieces; i++) {
    const piece *p = &m->pieces[i];
    if (p->type == PIECE_NORMAL) {
      scores[i] = p->score;
      least = any && least < p->score ? least : p->score;
      any = true;
    } else if (p->type == PIECE_USER_DEFINED && p->n_bytes > 0) {
      scores[i] = (float)(USER_DEFINED_SCORE * (double)(p->n_bytes - 1));
    }
  }
  return td_unigram_set_scores(t, scores, m->n_pieces, least, true, m->err);
}

static td_status load_proto(td_tokenizer *t, proto *m, const void *bytes, size_t n_bytes)
{
  TD_TRY(read_message(m, bytes, n_bytes, read_model_field));
  if (m->n_pieces == 0)
    return broken(m->err);
  TD_TRY(refuse_settings(m));
  t->spm.on = t->spm.marks_first = t->spm.byte_fallback = t->spm.fuse_unk = true;
  t->spm.squeezes = m->squeezes;
  t->spm.prefix = m->dummy_prefix ? TD_SPM_PREFIX_EVERY : TD_SPM_PREFIX_NONE;
  t->spm.decodes_strip = m->dummy_prefix || m->squeezes;
  TD_TRY(add_tokens(t, m));
  TD_TRY(m->model_type == MODEL_UNIGRAM ? add_scores(t, m) : add_merges(t, m));
  if (m->bos >= 0 && m->bos < m->n_pieces)
    t->bos = (int32_t)m->bos;
  if (m->eos >= 0 && m->eos < m->n_pieces)
    t->eos = (int32_t)m->eos;
  return TD_OK;
}

/* ---- tokens that transformers adds ---- */

/* Adds a token of the configuration. A token that tokenizer.model has already registered stays as it is. */
static td_status add_config_token(td_tokenizer *t, double id, const cJSON *o, const char *content,
                                  bool special, td_error *err)
{
  bool single_word = false, lstrip = false, rstrip = false;
  if (!(id >= 0) || id >= (double)td_limit_max(TD_LIMIT_MODEL_VOCAB) || id != (double)(uint32_t)id)
    return td_fail(err, TD_ERR_MODEL, "added token \"%.200s\" has no valid id", content);
  int32_t known = td_vocab_find(&t->vocab, content, strlen(content));
  if (known >= 0 && (t->vocab.tokens[known].flags & TD_TOKEN_ADDED))
    return TD_OK;
  TD_TRY(td_load_flag(o, "special", special, &special, err));
  TD_TRY(td_load_flag(o, "single_word", false, &single_word, err));
  TD_TRY(td_load_flag(o, "lstrip", false, &lstrip, err));
  TD_TRY(td_load_flag(o, "rstrip", false, &rstrip, err));
  uint8_t flags = (uint8_t)((single_word ? TD_ADDED_SINGLE_WORD : 0) | (lstrip ? TD_ADDED_LSTRIP : 0) |
                            (rstrip ? TD_ADDED_RSTRIP : 0));
  return td_tokenizer_add(t, (uint32_t)id, content, strlen(content), special, false, flags, err);
}

static bool is_text(const cJSON *v, const char *text)
{
  if (cJSON_IsObject(v))
    v = td_json_get(v, "content");
  return cJSON_IsString(v) && strcmp(v->valuestring, text) == 0;
}

/* Whether the configuration names this token, for example as eos_token. Such a token is special, wherever it
 * is listed. */
static bool is_named(const cJSON *config, const char *text)
{
  static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                     "sep_token", "cls_token", "mask_token"};
  const cJSON *v;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (is_text(td_json_get(config, keys[i]), text))
      return true;
  cJSON_ArrayForEach(v, td_json_get(config, "additional_special_tokens"))
  {
    if (is_text(v, text))
      return true;
  }
  return false;
}

static td_status add_config_tokens(td_tokenizer *t, const cJSON *config, const cJSON *added, td_error *err)
{
  const cJSON *o;
  cJSON_ArrayForEach(o, td_json_get(config, "added_tokens_decoder"))
  {
    const cJSON *content = td_json_get(o, "content");
    if (!cJSON_IsString(content) || !o->string)
      return td_fail(err, TD_ERR_MODEL, "tokenizer_config.json: an added token has no content");
    char *end;
    double id = strtod(o->string, &end);
    TD_TRY(add_config_token(t, *end || end == o->string ? -1 : id, o, content->valuestring, false, err));
  }
  cJSON_ArrayForEach(o, added)
  {
    if (!cJSON_IsNumber(o) || !o->string)
      return td_fail(err, TD_ERR_MODEL, "added_tokens.json: an id is not a number");
    TD_TRY(add_config_token(t, o->valuedouble, NULL, o->string, is_named(config, o->string), err));
  }
  return TD_OK;
}

static void named_token(const td_tokenizer *t, const cJSON *config, const char *key, int32_t *id)
{
  const cJSON *v = td_json_get(config, key);
  if (cJSON_IsObject(v))
    v = td_json_get(v, "content");
  int32_t named = cJSON_IsString(v) ? td_vocab_find(&t->vocab, v->valuestring, strlen(v->valuestring)) : -1;
  if (named >= 0)
    *id = named;
}

static td_status load_config(td_tokenizer *t, const cJSON *config, const cJSON *added, td_error *err)
{
  bool adds_eos = false, legacy = true, prefix = true, adds_bos = true;
  TD_TRY(td_load_flag(config, "add_eos_token", false, &adds_eos, err));
  TD_TRY(td_load_flag(config, "legacy", true, &legacy, err));
  TD_TRY(td_load_flag(config, "add_prefix_space", true, &prefix, err));
  TD_TRY(td_load_flag(config, "add_bos_token", true, &adds_bos, err));
  if (!prefix)
    t->spm.prefix = TD_SPM_PREFIX_NONE;
  if (!legacy && t->spm.prefix == TD_SPM_PREFIX_EVERY) {
    if (t->spm.squeezes || t->added_normalized.n > 0)
      return td_fail(err, TD_ERR_UNSUPPORTED, "tokenizer.model: with legacy = false, %s is not supported",
                     t->spm.squeezes ? "remove_extra_whitespaces" : "a piece of type USER_DEFINED");
    t->spm.prefix = TD_SPM_PREFIX_FIRST;
    t->spm.marks_first = false;
  }
  TD_TRY(add_config_tokens(t, config, added, err));
  named_token(t, config, "bos_token", &t->bos);
  named_token(t, config, "eos_token", &t->eos);
  t->adds_bos = adds_bos && t->bos >= 0;
  if (adds_eos)
    td_tokenizer_add_eos(t);
  return TD_OK;
}

td_status td_tokenizer_load_spm(td_tokenizer *t, const void *bytes, size_t n_bytes, const cJSON *config,
                                const cJSON *added, td_error *err)
{
  proto m = {.model_type = MODEL_UNIGRAM,
             .bos = 1,
             .eos = 2,
             .dummy_prefix = true,
             .squeezes = true,
             .escapes = true,
             .err = err};
  td_status st = load_proto(t, &m, bytes, n_bytes);
  free(m.pieces);
  TD_TRY(st);
  TD_TRY(load_config(t, config, added, err));
  return td_tokenizer_finish(t, err);
}
