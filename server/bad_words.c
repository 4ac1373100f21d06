/* bad_words: see bad_words.h. */
#include "server/bad_words.h"

#include <stdlib.h>
#include <string.h>

#include "common/progress.h"
#include "config/limits.h"

typedef struct bad_word {
  int32_t *ids; /* owned; [n], n >= 1 */
  size_t n;
} bad_word;

struct td_bad_words {
  uint32_t n_holders, vocab, n;
  bad_word words[]; /* [n] */
};

/* ---- reading ---- */

static bool bad(td_api_error *e, const char *text)
{
  td_api_error_set(e, 400, "invalid_value", "bad_words", "'bad_words' %s", text);
  return false;
}

static bool no_memory(td_api_error *e)
{
  td_api_error_set(e, 503, "out_of_memory", NULL, "no memory for 'bad_words'");
  return false;
}

static const char *skip_blanks(const char *s) { return s + strspn(s, " \t\r\n\v\f"); }

/* vLLM uses the tokenisation behind a blank only if it has as many tokens and a different first token. */
static bool adds_nothing(const bad_word *plain, const bad_word *behind_blank)
{
  return behind_blank->n == 0 || behind_blank->n != plain->n || behind_blank->ids[0] == plain->ids[0];
}

static bool add_way(const td_engine *e, const char *text, size_t n, td_bad_words *w, td_api_error *error)
{
  td_error err;
  bad_word *b = &w->words[w->n];
  if (td_engine_tokenize(e, text, n, true, false, 0, &b->ids, &b->n, &err) != TD_OK) {
    td_api_error_from(error, &err);
    return false;
  }
  return true;
}

static bool add_word(const td_engine *e, const cJSON *item, td_bad_words *w, td_api_error *error)
{
  size_t most = td_limit_max(TD_LIMIT_BAD_WORD_BYTES);
  if (!cJSON_IsString(item) || *skip_blanks(item->valuestring) == '\0')
    return bad(error, "must be an array of strings that are not empty");
  size_t n = td_json_text(item->valuestring, item->valuestring);
  if (n > most) {
    td_api_error_set(error, 400, "invalid_value", "bad_words", "'bad_words': one may have %zu bytes", most);
    return false;
  }
  size_t n_blanks = (size_t)(skip_blanks(item->valuestring) - item->valuestring);
  char text[TD_BAD_WORD_BYTES_MAX + 1] = " ";
  memcpy(text + 1, item->valuestring + n_blanks, n - n_blanks);
  if (!add_way(e, text + 1, n - n_blanks, w, error))
    return false;
  const bad_word *plain = &w->words[w->n++];
  if (plain->n == 0)
    return bad(error, "has a string without tokens");
  if (!add_way(e, text, n - n_blanks + 1, w, error))
    return false;
  if (adds_nothing(plain, &w->words[w->n])) {
    free(w->words[w->n].ids);
    w->words[w->n].ids = NULL;
  } else {
    w->n++;
  }
  td_progress_add(1);
  return true;
}

bool td_bad_words_read(const td_engine *e, const cJSON *value, td_bad_words **out, td_api_error *error)
{
  *out = NULL;
  if (!value || (cJSON_IsArray(value) && !value->child))
    return true;
  size_t n = cJSON_IsArray(value) ? (size_t)cJSON_GetArraySize(value) : 0;
  if (n == 0)
    return bad(error, "must be an array of strings that are not empty");
  if (n > td_limit_max(TD_LIMIT_BAD_WORDS)) {
    td_api_error_set(error, 400, "invalid_value", "bad_words", "'bad_words' may hold %d strings at most",
                     (int)td_limit_max(TD_LIMIT_BAD_WORDS));
    return false;
  }
  td_bad_words *w = calloc(1, sizeof *w + 2 * n * sizeof w->words[0]);
  if (!w)
    return no_memory(error);
  w->n_holders = 1;
  w->vocab = td_engine_get_info(e)->vocab;
  for (const cJSON *i = value->child; i; i = i->next)
    if (!add_word(e, i, w, error)) {
      free(w->words[w->n].ids);
      td_bad_words_drop(w);
      return false;
    }
  *out = w;
  return true;
}

void td_bad_words_drop(td_bad_words *w)
{
  if (!w || --w->n_holders > 0)
    return;
  for (uint32_t i = 0; i < w->n; i++)
    free(w->words[i].ids);
  free(w);
}

/* ---- masks ---- */

typedef struct provider {
  td_bad_words *words;
  td_mask_provider inner;
  uint32_t n_prompt;
} provider;

static void allow_all(uint32_t *mask, uint32_t vocab)
{
  memset(mask, 0xFF, vocab / 32 * sizeof *mask);
  if (vocab % 32 > 0)
    mask[vocab / 32] = (1u << vocab % 32) - 1;
}

static bool allows_any(const uint32_t *mask, uint32_t vocab)
{
  for (uint32_t i = 0; i < (vocab + 31) / 32; i++)
    if (mask[i] != 0)
      return true;
  return false;
}

/* Whether the answer's n tokens end with all of the word's tokens but the last. */
static bool is_begun(const bad_word *b, const int32_t *answer, uint32_t n)
{
  size_t before = b->n - 1;
  return before <= n && memcmp(answer + n - before, b->ids, before * sizeof *answer) == 0;
}

const char *const td_bad_words_stuck = "'bad_words' leave no token to go on with";

static const char *fill(void *arg, const int32_t *tokens, uint32_t n, uint32_t *mask)
{
  const provider *p = arg;
  const td_bad_words *w = p->words;
  const char *why = p->inner.fill ? p->inner.fill(p->inner.arg, tokens, n, mask) : NULL;
  if (why)
    return why;
  if (!p->inner.fill)
    allow_all(mask, w->vocab);
  for (uint32_t i = 0; i < w->n; i++) {
    const bad_word *b = &w->words[i];
    if (is_begun(b, tokens + p->n_prompt, n - p->n_prompt))
      mask[b->ids[b->n - 1] / 32] &= ~(1u << b->ids[b->n - 1] % 32);
  }
  return allows_any(mask, w->vocab) ? NULL : td_bad_words_stuck;
}

static void drop(void *arg)
{
  provider *p = arg;
  if (p->inner.drop)
    p->inner.drop(p->inner.arg);
  td_bad_words_drop(p->words);
  free(p);
}

td_mask_provider td_bad_words_provide(td_bad_words *w, td_mask_provider inner, uint32_t n_prompt)
{
  provider *p = calloc(1, sizeof *p);
  if (!p)
    return (td_mask_provider){0};
  *p = (provider){w, inner, n_prompt};
  w->n_holders++;
  return (td_mask_provider){fill, drop, p};
}
