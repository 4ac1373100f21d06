/* Reads the model of a tokenizer.json of type "Unigram": a list of [text, score], in which a text's place is
 * its id. `tokenizers` adds these scores in double, and takes the lowest score from all of them, those of
 * special tokens included. */
#include "models/tokenizer/load_json.h"

#include <stdlib.h>
#include <string.h>

/* The most that a vocabulary's lowest score may be. Up to it a piece always has a higher sum than its
 * characters as unknown ones. Above it, such a run could win, and `tokenizers` would then find its text among
 * the pieces. Scores are logarithms of probabilities, so trained files have none above 0. */
static const double LEAST_SCORE_MAX = 10;

bool td_load_is_unigram(const cJSON *model)
{
  const cJSON *type = td_json_get(model, "type");
  return cJSON_IsString(type) && strcmp(type->valuestring, "Unigram") == 0;
}

/* The text and the score of a vocabulary's entry. Returns false if it is something else. */
static bool read_entry(const cJSON *entry, const char **text, double *score)
{
  const cJSON *first = cJSON_IsArray(entry) ? entry->child : NULL, *second = first ? first->next : NULL;
  if (!cJSON_IsString(first) || !cJSON_IsNumber(second) || second->next)
    return false;
  *text = first->valuestring;
  *score = second->valuedouble;
  return true;
}

static td_status add_tokens(td_tokenizer *t, const cJSON *vocab, td_error *err)
{
  const cJSON *entry;
  const char *text;
  double score;
  uint64_t n = 0, n_bytes = 0;
  cJSON_ArrayForEach(entry, vocab)
  {
    if (!read_entry(entry, &text, &score))
      return td_fail(err, TD_ERR_MODEL,
                     "tokenizer.json: entry %llu of model.vocab is not a text and its score",
                     (unsigned long long)n);
    n++;
    n_bytes += strlen(text);
  }
  if (n == 0 || n > td_limit_max(TD_LIMIT_MODEL_VOCAB))
    return td_fail(err, TD_ERR_MODEL, "tokenizer.json: model.vocab has %llu entries, 1 to %llu are served",
                   (unsigned long long)n, (unsigned long long)td_limit_max(TD_LIMIT_MODEL_VOCAB));
  TD_TRY(td_vocab_init(&t->vocab, (uint32_t)n, n_bytes, err));
  uint32_t id = 0;
  cJSON_ArrayForEach(entry, vocab)
  {
    (void)read_entry(entry, &text, &score);
    TD_TRY(td_vocab_add(&t->vocab, id++, text, strlen(text), TD_TOKEN_MODEL, err));
  }
  return TD_OK;
}

static td_status add_scores(td_tokenizer *t, const cJSON *vocab, td_error *err)
{
  const uint32_t n = t->vocab.n_tokens;
  double *scores = malloc(n * sizeof *scores), least = 0;
  if (!scores)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the scores of %u pieces", n);
  const cJSON *entry;
  const char *text;
  uint32_t id = 0;
  cJSON_ArrayForEach(entry, vocab)
  {
    (void)read_entry(entry, &text, &scores[id]);
    if (id == 0 || scores[id] < least)
      least = scores[id];
    id++;
  }
  TD_TRY(td_unigram_set_scores(t, scores, n, least, false, err));
  return least <= LEAST_SCORE_MAX
             ? TD_OK
             : td_load_unsupported(err, "model.vocab of type \"Unigram\" with only", "scores above 10");
}

/* Without an unknown token, `tokenizers` fails for texts with an unknown character. */
static td_status load_unknown(td_tokenizer *t, const cJSON *model, td_error *err)
{
  const cJSON *unk = td_json_get(model, "unk_id");
  if (td_load_is_null(unk))
    return td_load_unsupported(err, "model of type \"Unigram\" with unk_id", "null");
  if (!cJSON_IsNumber(unk) || !(unk->valuedouble >= 0) || unk->valuedouble >= t->vocab.n_tokens ||
      unk->valuedouble != (double)(uint32_t)unk->valuedouble)
    return td_load_wrong(err, "model.unk_id is not the id of a token");
  t->spm.unk = (int32_t)unk->valuedouble;
  t->spm.fuse_unk = true;
  return TD_OK;
}

td_status td_load_unigram(td_tokenizer *t, const cJSON *model, td_error *err)
{
  const cJSON *vocab = td_json_get(model, "vocab");
  if (!t->spm.on)
    return td_load_unsupported(err, "with pre_tokenizer ByteLevel, model type", "Unigram");
  if (!cJSON_IsArray(vocab))
    return td_load_wrong(err, "model.vocab is not an array");
  TD_TRY(add_tokens(t, vocab, err));
  TD_TRY(load_unknown(t, model, err));
  TD_TRY(add_scores(t, vocab, err));
  td_spm_find_bytes(t);
  return TD_OK;
}
