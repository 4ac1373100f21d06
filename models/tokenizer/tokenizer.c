/* The tokenizer as a whole: functions that all loaders use, and the accessors. */
#include "models/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "models/tokenizer/internal.h"

td_tokenizer *td_tokenizer_new(td_error *err)
{
  td_tokenizer *t = calloc(1, sizeof *t);
  if (!t) {
    (void)!td_fail(err, TD_ERR_NOMEM, "no memory for a tokenizer");
    return NULL;
  }
  static _Atomic uint64_t n_made;
  t->serial = ++n_made;
  t->bos = t->eos = t->spm.unk = -1;
  return t;
}

void td_tokenizer_destroy(td_tokenizer *t)
{
  if (!t)
    return;
  td_vocab_deinit(&t->vocab);
  td_merges_deinit(&t->merges);
  td_added_deinit(&t->added_raw);
  td_added_deinit(&t->added_normalized);
  for (uint32_t i = 0; i < t->n_splits; i++)
    td_regex_destroy(t->splits[i].regex);
  free(t->byte_rank);
  free(t->spm.joins);
  td_unigram_deinit(&t->unigram);
  free(t);
}

void td_ids_deinit(td_ids *ids)
{
  free(ids->ids);
  memset(ids, 0, sizeof *ids);
}

/* Whether normalisation puts a space before texts, and so also before added tokens. */
static bool puts_space(const td_tokenizer *t)
{
  return t->spm.marks_first && t->spm.prefix != TD_SPM_PREFIX_NONE;
}

/* Makes the form in which an added token appears in normalised text. */
static td_status normalize(const td_tokenizer *t, const char *text, size_t n_bytes, td_buf *out,
                           td_error *err)
{
  const unsigned char *p = (const unsigned char *)text;
  if (t->nfc)
    return td_nfc_append(p, n_bytes, out, NULL, 0, err);
  if (t->spm.marks_first)
    return td_spm_mark(t, p, n_bytes, puts_space(t), out, NULL, 0, err);
  td_buf_append(out, text, n_bytes);
  return out->failed ? td_fail(err, TD_ERR_NOMEM, "no memory for added tokens") : TD_OK;
}

td_status td_tokenizer_add_piece(td_tokenizer *t, uint32_t id, td_error *err)
{
  td_token *token = &t->vocab.tokens[id];
  token->flags |= TD_TOKEN_ADDED;
  return token->n_bytes == 0 ? TD_OK
                             : td_added_add(&t->added_normalized, td_vocab_text(&t->vocab, id),
                                            token->n_bytes, (int32_t)id, false, 0, err);
}

td_status td_tokenizer_add(td_tokenizer *t, uint32_t id, const char *text, size_t n_bytes, bool special,
                           bool normalized, uint8_t flags, td_error *err)
{
  if (n_bytes == 0)
    return TD_OK; /* as in the reference: an empty token cannot match */
  int32_t known = td_vocab_find(&t->vocab, text, n_bytes);
  if (known < 0)
    TD_TRY(td_vocab_add(&t->vocab, id, text, n_bytes, 0, err));
  else
    id = (uint32_t)known; /* the vocabulary's id takes precedence */
  uint8_t *token_flags = &t->vocab.tokens[id].flags;
  if (*token_flags & TD_TOKEN_ADDED)
    return td_fail(err, TD_ERR_MODEL, "added token \"%.*s\" is listed twice",
                   n_bytes < 200 ? (int)n_bytes : 200, text);
  *token_flags |= TD_TOKEN_ADDED | (special ? TD_TOKEN_SPECIAL : 0);
  if (!normalized)
    return td_added_add(&t->added_raw, text, n_bytes, (int32_t)id, special, flags, err);
  *token_flags |= puts_space(t) ? TD_TOKEN_SPACED : 0;
  td_buf pattern;
  td_buf_init(&pattern, 0);
  td_status status = normalize(t, text, n_bytes, &pattern, err);
  if (status == TD_OK && pattern.len_bytes > 0)
    status =
        td_added_add(&t->added_normalized, pattern.data, pattern.len_bytes, (int32_t)id, special, flags, err);
  td_buf_deinit(&pattern);
  return status;
}

static td_status rank_bytes(td_tokenizer *t, td_error *err)
{
  t->byte_rank = malloc(256 * 256 * sizeof *t->byte_rank);
  if (!t->byte_rank)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a tokenizer");
  for (unsigned a = 0; a < 256; a++)
    for (unsigned b = 0; b < 256; b++)
      t->byte_rank[a * 256 + b] =
          t->byte_id[a] < 0 || t->byte_id[b] < 0
              ? TD_NO_RANK
              : td_merges_rank(&t->merges, (uint32_t)t->byte_id[a], (uint32_t)t->byte_id[b]);
  return TD_OK;
}

/* Finds the tokens of single bytes, for texts of bytes. */
static td_status finish_bytes(td_tokenizer *t, td_error *err)
{
  unsigned char bytes[TD_TOKEN_TEXT_MAX];
  for (uint32_t i = 0; i < t->vocab.n_tokens; i++) {
    const td_token *token = &t->vocab.tokens[i];
    if (!(token->flags & TD_TOKEN_MODEL))
      continue;
    long n = td_alphabet_decode(td_vocab_text(&t->vocab, i), token->n_bytes, bytes);
    if (n > (long)t->longest_bytes)
      t->longest_bytes = (uint32_t)n;
  }
  uint32_t n_byte_tokens = 0;
  for (unsigned b = 0; b < 256; b++) {
    const td_byte_char *c = &td_byte_alphabet[b];
    int32_t id = td_vocab_find(&t->vocab, (const char *)c->utf8, c->n);
    if (id >= 0 && (t->vocab.tokens[id].flags & (TD_TOKEN_MODEL | TD_TOKEN_SPECIAL)) != TD_TOKEN_MODEL)
      id = -1;
    t->byte_id[b] = id;
    n_byte_tokens += id >= 0;
  }
  if (n_byte_tokens == 0)
    return td_fail(err, TD_ERR_MODEL, "tokenizer vocabulary has no token for any single byte");
  return rank_bytes(t, err);
}

td_status td_tokenizer_finish(td_tokenizer *t, td_error *err)
{
  t->longest_bytes = 1;
  td_added_seal(&t->added_raw);
  td_added_seal(&t->added_normalized);
  for (uint32_t i = 0; i < t->n_splits; i++)
    for (unsigned c = 0; c < 256; c++)
      t->may_cut[c] |= (uint8_t)(td_split_may_cut(&t->splits[i], (unsigned char)c) << i);
  if (!t->spm.on)
    return finish_bytes(t, err);
  TD_TRY(td_spm_finish(t, err));
  return t->unigram.on ? td_unigram_finish(t, err) : TD_OK;
}

void td_tokenizer_add_eos(td_tokenizer *t)
{
  if (t->eos >= 0)
    t->rear = (td_around){{t->eos}, 1};
}

uint32_t td_tokenizer_vocab(const td_tokenizer *t) { return t->vocab.n_tokens; }
int32_t td_tokenizer_bos(const td_tokenizer *t) { return t->bos; }
int32_t td_tokenizer_eos(const td_tokenizer *t) { return t->eos; }
bool td_tokenizer_adds_bos(const td_tokenizer *t) { return t->adds_bos; }

const char *td_tokenizer_token_text(const td_tokenizer *t, int32_t id)
{
  return td_vocab_has(&t->vocab, id) ? td_vocab_text(&t->vocab, (uint32_t)id) : NULL;
}

int32_t td_tokenizer_added_token(const td_tokenizer *t, const char *text, size_t n_bytes)
{
  int32_t id = td_vocab_find(&t->vocab, text, n_bytes);
  return id >= 0 && (t->vocab.tokens[id].flags & TD_TOKEN_ADDED) ? id : -1;
}

bool td_tokenizer_is_special(const td_tokenizer *t, int32_t id)
{
  return td_vocab_has(&t->vocab, id) && (t->vocab.tokens[id].flags & TD_TOKEN_SPECIAL);
}
