/* Grammars of answers: compiled on the calling thread, cached, and given to the engine thread as mask
 * providers. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "config/limits.h"
#include "engine/internal.h"
#include "models/grammar/grammar.h"

typedef struct cached_grammar {
  char *key; /* the source as text; owned */
  size_t n_key;
  td_grammar *grammar;
  uint64_t used; /* value of `clock` when it was last used */
} cached_grammar;

struct td_grammars {
  td_vocabulary *vocab;
  pthread_mutex_t lock;
  cached_grammar *cached; /* [cap] */
  uint32_t n, cap;
  uint64_t clock;
};

/* ---- at start ---- */

/* Appends a token's bytes. A special token is never part of a text, and only a structural tag may ask for
 * one: its text is preceded by TD_SPECIAL_BYTE. Other tokens with that byte are no valid UTF-8, and get no
 * bytes. */
static void append_token(const td_engine *e, int32_t id, td_buf *all)
{
  size_t from = all->len_bytes;
  const char *text = td_tokenizer_token_text(e->tokenizer, id);
  if (td_tokenizer_is_special(e->tokenizer, id)) {
    td_buf_append_str(all, text && *text ? TD_SPECIAL_BYTE : "");
    td_buf_append_str(all, text ? text : "");
    return;
  }
  td_tokenizer_token_bytes(e->tokenizer, id, all);
  if (all->len_bytes > from && memchr(all->data + from, TD_SPECIAL_BYTE[0], all->len_bytes - from))
    all->len_bytes = from;
}

static td_status make_vocab(td_engine *e, td_vocabulary **out, td_error *err)
{
  uint32_t n = e->desc.vocab, n_known = td_tokenizer_vocab(e->tokenizer);
  td_token_bytes *tokens = calloc(n, sizeof *tokens);
  size_t *ends = calloc((size_t)n + 1, sizeof *ends);
  td_buf all;
  td_buf_init(&all, 0);
  for (uint32_t i = 0; i < n && ends; i++) {
    if (i < n_known)
      append_token(e, (int32_t)i, &all);
    ends[i + 1] = all.len_bytes;
  }
  td_status st =
      tokens && ends && !all.failed ? TD_OK : td_fail(err, TD_ERR_NOMEM, "no memory for the vocabulary");
  for (uint32_t i = 0; i < n && st == TD_OK; i++)
    tokens[i] = (td_token_bytes){all.data ? all.data + ends[i] : "", (uint32_t)(ends[i + 1] - ends[i])};
  if (st == TD_OK)
    st = td_vocabulary_create(tokens, n, e->desc.eos_ids, e->desc.n_eos_ids,
                              (size_t)td_limit_max(TD_LIMIT_GRAMMARS_BYTES), out, err);
  free(tokens);
  free(ends);
  td_buf_deinit(&all);
  return st;
}

td_status td_engine_load_grammars(td_engine *e, td_error *err)
{
  td_grammars *g = calloc(1, sizeof *g);
  if (!g)
    return td_fail(err, TD_ERR_NOMEM, "no memory for grammars");
  e->grammars = g;
  pthread_mutex_init(&g->lock, NULL);
  g->cap = (uint32_t)td_limit_max(TD_LIMIT_GRAMMARS_KEPT);
  g->cached = calloc(g->cap, sizeof *g->cached);
  if (!g->cached)
    return td_fail(err, TD_ERR_NOMEM, "no memory for grammars");
  return make_vocab(e, &g->vocab, err);
}

/* Empties the cache. Returns false if it was empty. */
static bool empty_cache(td_grammars *g)
{
  pthread_mutex_lock(&g->lock);
  bool any = g->n > 0;
  while (g->n > 0) {
    const cached_grammar *k = &g->cached[--g->n];
    free(k->key);
    td_grammar_drop(k->grammar);
  }
  pthread_mutex_unlock(&g->lock);
  return any;
}

void td_engine_free_grammars(td_engine *e)
{
  td_grammars *g = e->grammars;
  if (!g)
    return;
  (void)empty_cache(g);
  td_vocabulary_destroy(g->vocab);
  pthread_mutex_destroy(&g->lock);
  free(g->cached);
  free(g);
}

/* ---- the cache ---- */

/* The source as text, for a lookup. NULL: it is too long to be cached, or there is no memory. The printed
 * text of a plan may be much longer than the request, because its tree repeats what it refers to. */
static char *key_of(const td_grammar_source *s, size_t *n)
{
  enum { SLACK = 64 }; /* cJSON needs some room after the text */
  size_t most = (size_t)td_limit_max(TD_LIMIT_GRAMMAR_KEY_BYTES), at = 1;
  char *key = s->n_text < most ? malloc(most + SLACK) : NULL;
  if (!key)
    return NULL;
  key[0] = (char)('0' + s->kind);
  if (s->text) {
    memcpy(key + at, s->text, s->n_text);
    at += s->n_text;
  }
  key[at] = '\0';
  if (s->json && !cJSON_PrintPreallocated((cJSON *)s->json, key + at, (int)(most + SLACK - at), false)) {
    free(key);
    return NULL;
  }
  *n = at + strlen(key + at);
  return key;
}

static td_grammar *find_cached(td_grammars *g, const char *key, size_t n)
{
  td_grammar *found = NULL;
  pthread_mutex_lock(&g->lock);
  for (uint32_t i = 0; i < g->n && !found; i++)
    if (g->cached[i].n_key == n && memcmp(g->cached[i].key, key, n) == 0) {
      g->cached[i].used = ++g->clock;
      found = td_grammar_hold(g->cached[i].grammar);
    }
  pthread_mutex_unlock(&g->lock);
  return found;
}

static bool is_cached(const td_grammars *g, const td_grammar *grammar)
{
  for (uint32_t i = 0; i < g->n; i++)
    if (g->cached[i].grammar == grammar)
      return true;
  return false;
}

/* Adds a grammar to the cache in place of the least recently used one. Without memory, does not add it. */
static void add_to_cache(td_grammars *g, const char *text, size_t n, td_grammar *grammar)
{
  pthread_mutex_lock(&g->lock);
  uint32_t at = 0;
  for (uint32_t i = 1; i < g->n; i++)
    if (g->cached[i].used < g->cached[at].used)
      at = i;
  char *key = is_cached(g, grammar) ? NULL : malloc(n);
  if (key && g->n < g->cap) {
    at = g->n++;
  } else if (key) {
    free(g->cached[at].key);
    td_grammar_drop(g->cached[at].grammar);
  }
  if (key) {
    memcpy(key, text, n);
    g->cached[at] = (cached_grammar){key, n, td_grammar_hold(grammar), ++g->clock};
  }
  pthread_mutex_unlock(&g->lock);
}

td_status td_engine_compile_grammar(const td_engine *e, const td_grammar_source *source, td_grammar **out,
                                    td_error *err)
{
  td_grammars *g = e->grammars;
  size_t n = 0;
  if (!g || e->desc.n_eos_ids == 0)
    return td_fail(err, TD_ERR_UNSUPPORTED, "this model has no %s, which structured output needs",
                   g ? "token that ends an answer" : "tokenizer");
  char *key = key_of(source, &n);
  *out = key ? find_cached(g, key, n) : NULL;
  td_status st = *out ? TD_OK : td_grammar_compile(g->vocab, source, out, err);
  if (st == TD_ERR_CAPACITY && empty_cache(g))
    st = td_grammar_compile(g->vocab, source, out, err);
  if (st == TD_OK && key)
    add_to_cache(g, key, n, *out);
  free(key);
  return st;
}

void td_engine_drop_grammar(td_grammar *g) { td_grammar_drop(g); }

/* ---- masks ---- */

typedef struct provider {
  td_matcher *matcher;
  uint32_t n_prompt;
} provider;

const char td_mask_no_memory[] = "there is no memory for the answer's grammar";

/* Reads the tokens that the matcher has not read yet. A token that the matcher refuses comes after the end of
 * the answer: under its masks, no other could have been sampled. */
static const char *fill(void *arg, const int32_t *tokens, uint32_t n, uint32_t *mask)
{
  provider *p = arg;
  for (uint32_t i = p->n_prompt + td_matcher_n_tokens(p->matcher); i < n; i++)
    if (!td_matcher_read(p->matcher, tokens[i]))
      break;
  td_matcher_fill(p->matcher, mask);
  return td_matcher_lacks_memory(p->matcher) ? td_mask_no_memory : td_matcher_stuck(p->matcher);
}

static void drop(void *arg)
{
  provider *p = arg;
  td_matcher_destroy(p->matcher);
  free(p);
}

td_mask_provider td_engine_make_masks(td_grammar *g, uint32_t n_prompt)
{
  provider *p = calloc(1, sizeof *p);
  td_matcher *m = p ? td_matcher_create(g) : NULL;
  if (!m) {
    free(p);
    return (td_mask_provider){0};
  }
  *p = (provider){.matcher = m, .n_prompt = n_prompt};
  return (td_mask_provider){.fill = fill, .drop = drop, .arg = p};
}
