/* Reads the chain in tokenizer.json: normalizer, pre_tokenizer, decoder.
 *
 * Chains have two shapes. For texts of bytes: NFC or nothing, then known splits that end in ByteLevel, and
 * ByteLevel as decoder. For texts of characters, as SentencePiece's models are converted: a normalizer
 * (Prepend, Replace) or the pre_tokenizer Metaspace turns spaces into U+2581, and the decoder is Replace,
 * ByteFallback, Fuse and Strip. */
#include "models/tokenizer/load_json.h"

#include <string.h>

static const char mark[] = "\xE2\x96\x81";

typedef struct chain {
  td_tokenizer *t;
  bool prepends, marks; /* the normalizer puts U+2581 before texts; it replaces spaces by U+2581 */
  bool byte_level, metaspace;
} chain;

/* After ByteLevel, texts are in GPT-2's alphabet. Only expressions of ASCII digits mean the same there. */
static bool is_of_digits(const cJSON *regex)
{
  return cJSON_IsString(regex) &&
         strspn(regex->valuestring, "[]{},+0123456789-") == strlen(regex->valuestring);
}

const char *td_load_type(const cJSON *o)
{
  const cJSON *type = td_json_get(o, "type");
  return cJSON_IsString(type) ? type->valuestring : "(no type)";
}

bool td_load_is_null(const cJSON *o) { return !o || cJSON_IsNull(o); }

td_status td_load_unsupported(td_error *err, const char *what, const char *value)
{
  return td_fail(err, TD_ERR_UNSUPPORTED, "tokenizer.json: %s \"%.300s\" is not supported", what, value);
}

td_status td_load_wrong(td_error *err, const char *what)
{
  return td_fail(err, TD_ERR_MODEL, "tokenizer.json: %s", what);
}

td_status td_load_flag(const cJSON *o, const char *key, bool absent, bool *out, td_error *err)
{
  const cJSON *v = td_json_get(o, key);
  if (!td_load_is_null(v) && !cJSON_IsBool(v))
    return td_fail(err, TD_ERR_MODEL, "tokenizer.json: \"%s\" is not a boolean", key);
  *out = td_load_is_null(v) ? absent : cJSON_IsTrue(v);
  return TD_OK;
}

static bool is_text(const cJSON *o, const char *text)
{
  return cJSON_IsString(o) && strcmp(o->valuestring, text) == 0;
}

/* ---- normalizer ---- */

/* Whether o replaces every literal `from` by `to`. */
static bool replaces(const cJSON *o, const char *from, const char *to)
{
  return is_text(td_json_get(td_json_get(o, "pattern"), "String"), from) &&
         is_text(td_json_get(o, "content"), to);
}

static td_status load_normalizer(chain *c, const cJSON *o, int depth, td_error *err)
{
  if (td_load_is_null(o))
    return TD_OK;
  const char *type = td_load_type(o);
  if (strcmp(type, "NFC") == 0) {
    c->t->nfc = true;
    return TD_OK;
  }
  if (strcmp(type, "Prepend") == 0 && !c->prepends && is_text(td_json_get(o, "prepend"), mark)) {
    c->prepends = true;
    return TD_OK;
  }
  if (strcmp(type, "Replace") == 0 && replaces(o, " ", mark)) {
    c->marks = true;
    return TD_OK;
  }
  const cJSON *parts = td_json_get(o, "normalizers"), *part;
  if (strcmp(type, "Sequence") != 0 || !cJSON_IsArray(parts) ||
      depth >= (int)td_limit_max(TD_LIMIT_TOKENIZER_DEPTH))
    return td_load_unsupported(err, "normalizer", type);
  cJSON_ArrayForEach(part, parts) TD_TRY(load_normalizer(c, part, depth + 1, err));
  return TD_OK;
}

/* ---- pre_tokenizer ---- */

static td_status add_split(td_tokenizer *t, td_split split, td_error *err)
{
  if (t->n_splits == TD_SPLITS_MAX) {
    td_regex_destroy(split.regex);
    return td_fail(err, TD_ERR_UNSUPPORTED, "tokenizer.json: pre_tokenizer has more than %d steps",
                   TD_SPLITS_MAX);
  }
  t->splits[t->n_splits++] = split;
  return TD_OK;
}

static td_status load_split(td_tokenizer *t, const cJSON *o, td_error *err)
{
  const cJSON *regex = td_json_get(td_json_get(o, "pattern"), "Regex"),
              *behavior = td_json_get(o, "behavior");
  td_split split;
  bool total = false, invert = false;
  TD_TRY(td_load_flag(o, "invert", false, &invert, err));
  if (!cJSON_IsString(regex))
    return td_load_unsupported(err, "pre_tokenizer", "Split by a plain string");
  if (!td_split_from_regex(regex->valuestring, &split, &total))
    return td_load_unsupported(err, "pre_tokenizer Split pattern", regex->valuestring);
  const char *name = cJSON_IsString(behavior) ? behavior->valuestring : "(no behavior)";
  const bool isolated = !invert && strcmp(name, "Isolated") == 0;
  const bool kept =
      invert && total && strcmp(name, "Removed") == 0; /* matches are kept, and there is nothing else */
  if (!isolated && !kept) {
    td_regex_destroy(split.regex);
    return td_load_unsupported(
        err, invert ? "pre_tokenizer Split, inverted, of behavior" : "pre_tokenizer Split behavior", name);
  }
  return add_split(t, split, err);
}

/* A Split at single spaces, which has no effect if there are none. */
static bool splits_at_spaces(const cJSON *o)
{
  return is_text(td_json_get(td_json_get(o, "pattern"), "String"), " ");
}

static td_status load_metaspace(chain *c, const cJSON *o, td_error *err)
{
  td_spm *spm = &c->t->spm;
  const cJSON *scheme = td_json_get(o, "prepend_scheme");
  bool prefix = true;
  if (!is_text(td_json_get(o, "replacement"), mark))
    return td_load_unsupported(err, "pre_tokenizer Metaspace with", "replacement");
  TD_TRY(td_load_flag(o, "add_prefix_space", true, &prefix, err));
  TD_TRY(td_load_flag(o, "split", true, &spm->splits_spaces, err));
  if (is_text(scheme, "never") || (td_load_is_null(scheme) && !prefix))
    spm->prefix = TD_SPM_PREFIX_NONE;
  else if (is_text(scheme, "always") || td_load_is_null(scheme))
    spm->prefix = TD_SPM_PREFIX_ABSENT;
  else if (is_text(scheme, "first"))
    spm->prefix = TD_SPM_PREFIX_FIRST;
  else
    return td_load_unsupported(err, "pre_tokenizer Metaspace with", "prepend_scheme");
  c->metaspace = true;
  return TD_OK;
}

static td_status load_pre_tokenizer(chain *c, const cJSON *o, int depth, td_error *err)
{
  td_tokenizer *t = c->t;
  const char *type = td_load_type(o);
  const bool digits = strcmp(type, "Digits") == 0;
  const bool follows =
      c->byte_level && (digits || (strcmp(type, "Split") == 0 &&
                                   is_of_digits(td_json_get(td_json_get(o, "pattern"), "Regex"))));
  if ((c->byte_level && !follows) || c->metaspace)
    return td_load_unsupported(
        err, c->byte_level ? "pre_tokenizer step behind ByteLevel" : "pre_tokenizer step behind Metaspace",
        type);
  if (strcmp(type, "Metaspace") == 0 && t->n_splits == 0)
    return load_metaspace(c, o, err);
  if (strcmp(type, "Split") == 0 && c->marks && splits_at_spaces(o))
    return TD_OK; /* the normalizer has replaced all spaces */
  if (strcmp(type, "Split") == 0)
    return load_split(t, o, err);
  if (digits) {
    bool individual = false;
    TD_TRY(td_load_flag(o, "individual_digits", false, &individual, err));
    const td_split_kind kind = c->byte_level ? TD_SPLIT_BYTE_DIGITS : TD_SPLIT_DIGITS;
    return add_split(t, (td_split){.kind = kind, .max_digits = individual}, err);
  }
  if (strcmp(type, "Punctuation") == 0) {
    const cJSON *behavior = td_json_get(o, "behavior");
    const bool isolated = td_load_is_null(behavior) || is_text(behavior, "Isolated");
    if (!isolated && !is_text(behavior, "Contiguous"))
      return td_load_unsupported(err, "pre_tokenizer Punctuation with", "behavior");
    return add_split(t, (td_split){.kind = TD_SPLIT_PUNCTUATION, .max_digits = isolated}, err);
  }
  if (strcmp(type, "ByteLevel") == 0) {
    bool prefix = false, regex = false;
    TD_TRY(td_load_flag(o, "add_prefix_space", true, &prefix, err));
    TD_TRY(td_load_flag(o, "use_regex", true, &regex, err));
    if (prefix)
      return td_load_unsupported(err, "pre_tokenizer ByteLevel with", "add_prefix_space");
    c->byte_level = true;
    return regex ? add_split(t, (td_split){.kind = TD_SPLIT_WORDS}, err) : TD_OK;
  }
  const cJSON *parts = td_json_get(o, "pretokenizers"), *part;
  if (strcmp(type, "Sequence") != 0 || !cJSON_IsArray(parts) ||
      depth >= (int)td_limit_max(TD_LIMIT_TOKENIZER_DEPTH))
    return td_load_unsupported(err, "pre_tokenizer", type);
  cJSON_ArrayForEach(part, parts) TD_TRY(load_pre_tokenizer(c, part, depth + 1, err));
  return TD_OK;
}

/* ---- decoder ---- */

/* Checks one step of SentencePiece's decoder, in which ByteFallback and Strip are optional. */
static td_status load_decoder_step(td_tokenizer *t, const cJSON *o, int *stage, td_error *err)
{
  enum { REPLACE, BYTES, FUSE, STRIP, END };
  const char *type = td_load_type(o);
  const cJSON *start = td_json_get(o, "start"), *stop = td_json_get(o, "stop");
  int is = END;
  if (strcmp(type, "Replace") == 0 && replaces(o, mark, " "))
    is = REPLACE;
  else if (strcmp(type, "ByteFallback") == 0)
    is = BYTES;
  else if (strcmp(type, "Fuse") == 0)
    is = FUSE;
  else if (strcmp(type, "Strip") == 0 && is_text(td_json_get(o, "content"), " ") && cJSON_IsNumber(start) &&
           (start->valuedouble == 0 || start->valuedouble == 1) && cJSON_IsNumber(stop) &&
           stop->valuedouble == 0)
    is = STRIP;
  const bool follows = is == *stage || (is == FUSE && *stage == BYTES && !t->spm.byte_fallback);
  if (is == END || !follows)
    return td_load_unsupported(err, "decoder step", type);
  *stage = is + 1;
  t->spm.decodes_strip = is == STRIP && start->valuedouble == 1;
  return TD_OK;
}

static td_status load_decoder(td_tokenizer *t, const cJSON *o, td_error *err)
{
  if (!t->spm.on)
    return strcmp(td_load_type(o), "ByteLevel") == 0 ? TD_OK
                                                     : td_load_unsupported(err, "decoder", td_load_type(o));
  const cJSON *parts = td_json_get(o, "decoders"), *part;
  int stage = 0;
  if (strcmp(td_load_type(o), "Sequence") != 0 || !cJSON_IsArray(parts))
    return td_load_unsupported(err, "decoder", td_load_type(o));
  cJSON_ArrayForEach(part, parts) TD_TRY(load_decoder_step(t, part, &stage, err));
  return stage >= 3 ? TD_OK : td_load_unsupported(err, "decoder without", "Fuse");
}

td_status td_chain_load(td_tokenizer *t, const cJSON *json, td_error *err)
{
  chain c = {.t = t};
  TD_TRY(load_normalizer(&c, td_json_get(json, "normalizer"), 0, err));
  const cJSON *pre_tokenizer = td_json_get(json, "pre_tokenizer");
  if (!td_load_is_null(pre_tokenizer))
    TD_TRY(load_pre_tokenizer(&c, pre_tokenizer, 0, err));
  t->spm.on = c.marks || c.metaspace;
  t->spm.marks_first = c.marks;
  if (c.marks)
    t->spm.prefix = c.prepends ? TD_SPM_PREFIX_EVERY : TD_SPM_PREFIX_NONE;
  if (c.prepends && !c.marks)
    return td_load_unsupported(err, "normalizer Prepend without", "Replace");
  if (t->spm.on && (t->nfc || c.byte_level || t->n_splits > 0 || (c.marks && c.metaspace)))
    return td_load_unsupported(err, "with spaces as U+2581,",
                               t->nfc         ? "NFC"
                               : c.metaspace  ? "Metaspace"
                               : c.byte_level ? "ByteLevel"
                                              : "Split");
  if (!t->spm.on && !c.byte_level)
    return td_load_unsupported(err, "pre_tokenizer without", "ByteLevel");
  return load_decoder(t, td_json_get(json, "decoder"), err);
}
