/* Byte-pair encoding of one word: join the two neighbours with the lowest rank, the leftmost first, until no
 * neighbours can be joined.
 *
 * There are three ways, with the same result. If a word is a token, and its merges are known to lead to just
 * that token, it becomes that token. This is known once the word has been encoded; the vocabulary keeps one
 * byte per token for it, so this cache is bounded and needs no lock. A short word scans its ranks for the
 * lowest. A long word keeps them in a heap: n log n for any n. Bytes without a token are dropped first, so
 * that their neighbours become neighbours of each other, as in the reference. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

td_status td_id_sink_grow(td_id_sink *sink)
{
  td_ids *ids = sink->ids;
  if (sink->max_tokens && ids->n - sink->base >= sink->max_tokens)
    return td_fail(sink->err, TD_ERR_REQUEST, "text is longer than %zu tokens", sink->max_tokens);
  if (ids->n == ids->cap) {
    size_t cap = ids->cap ? 2 * ids->cap : 256;
    int32_t *grown = realloc(ids->ids, cap * sizeof *grown);
    if (!grown)
      return td_fail(sink->err, TD_ERR_NOMEM, "no memory for %zu tokens", cap);
    ids->ids = grown;
    ids->cap = cap;
  }
  const size_t most = sink->max_tokens ? sink->base + sink->max_tokens : SIZE_MAX;
  sink->room = ids->cap < most ? ids->cap : most;
  return TD_OK;
}

/* Emits a model token. Merges must not turn plain text into a special token, so a special token is emitted as
 * its bytes. A run of characters without a token becomes one unknown token if the model says so. */
static td_status emit(const td_tokenizer *t, uint32_t id, td_id_sink *sink)
{
  const td_token *token = &t->vocab.tokens[id];
  const bool fused = t->spm.fuse_unk && sink->after_unk, unk = (int32_t)id == t->spm.unk;
  sink->after_unk = unk;
  if (unk && fused)
    return TD_OK;
  if (unk || !(token->flags & TD_TOKEN_SPECIAL))
    return td_id_sink_push(sink, (int32_t)id);
  unsigned char bytes[TD_TOKEN_TEXT_MAX];
  const char *text = td_vocab_text(&t->vocab, id);
  long n = token->n_bytes;
  if (t->spm.on)
    memcpy(bytes, text, token->n_bytes);
  else
    n = td_alphabet_decode(text, token->n_bytes, bytes);
  for (long i = 0; i < n; i++)
    if (t->byte_id[bytes[i]] >= 0)
      TD_TRY(td_id_sink_push(sink, t->byte_id[bytes[i]]));
  return TD_OK;
}

td_status td_bpe_emit_word(const td_tokenizer *t, const unsigned char *word, size_t n, const uint32_t *ids,
                           uint32_t n_ids, td_id_sink *sink)
{
  bool plain = sink->words && n <= TD_WORD_BYTES && n_ids <= TD_WORD_IDS;
  for (uint32_t i = 0; i < n_ids; i++) {
    plain = plain && (int32_t)ids[i] != t->spm.unk && !(t->vocab.tokens[ids[i]].flags & TD_TOKEN_SPECIAL);
    TD_TRY(emit(t, ids[i], sink));
  }
  if (plain) {
    const td_word_key key = td_word_key_of(word, n);
    td_word *at = td_word_cache_slot(sink->words, &key);
    *at = (td_word){.first = key.first, .last = key.last, .n_bytes = (uint16_t)n, .n_ids = (uint16_t)n_ids};
    memcpy(at->ids, ids, n_ids * sizeof *ids);
  }
  return TD_OK;
}

/* ---- short words ---- */

uint32_t td_bpe_short(const td_merges *m, uint32_t *ids, uint32_t *rank, uint32_t n)
{
  while (n > 1) {
    uint32_t at = 0;
    for (uint32_t i = 1; i + 1 < n; i++)
      if (rank[i] < rank[at])
        at = i;
    if (rank[at] == TD_NO_RANK)
      break;
    ids[at] = td_merges_find(m, ids[at], ids[at + 1])->whole;
    n--;
    memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
    memmove(rank + at, rank + at + 1, (n - at) * sizeof *rank);
    if (at > 0)
      rank[at - 1] = td_merges_rank(m, ids[at - 1], ids[at]);
    if (at + 1 < n)
      rank[at] = td_merges_rank(m, ids[at], ids[at + 1]);
  }
  return n;
}

/* ---- long words: symbols in a linked list, candidate merges in a heap ---- */

/* Min-heap of rank << 32 | position. */
typedef struct heap {
  uint64_t *v;
  size_t n, cap;
} heap;

static void sift_down(heap *h, size_t i)
{
  uint64_t x = h->v[i];
  for (;;) {
    size_t k = 2 * i + 1;
    if (k >= h->n)
      break;
    if (k + 1 < h->n && h->v[k + 1] < h->v[k])
      k++;
    if (h->v[k] >= x)
      break;
    h->v[i] = h->v[k];
    i = k;
  }
  h->v[i] = x;
}

static bool heap_push(heap *h, uint32_t rank, uint32_t pos)
{
  if (h->n == h->cap) {
    size_t cap = h->cap ? 2 * h->cap : 256;
    uint64_t *v = realloc(h->v, cap * sizeof *v);
    if (!v)
      return false;
    h->v = v;
    h->cap = cap;
  }
  uint64_t x = (uint64_t)rank << 32 | pos;
  size_t i = h->n++;
  for (; i > 0 && h->v[(i - 1) / 2] > x; i = (i - 1) / 2)
    h->v[i] = h->v[(i - 1) / 2];
  h->v[i] = x;
  return true;
}

static uint64_t heap_pop(heap *h)
{
  uint64_t top = h->v[0];
  h->v[0] = h->v[--h->n];
  if (h->n > 1)
    sift_down(h, 0);
  return top;
}

/* Looks up the merge of symbol i with its next, and adds it to the heap if there is one. */
static bool offer(const td_tokenizer *t, td_symbol *s, uint32_t i, heap *h)
{
  td_progress_add(1);
  s[i].rank = s[i].next == UINT32_MAX ? TD_NO_RANK : td_merges_rank(&t->merges, s[i].id, s[s[i].next].id);
  return s[i].rank == TD_NO_RANK || heap_push(h, s[i].rank, i);
}

static bool merge_long(const td_tokenizer *t, td_symbol *s, uint32_t n, heap *h)
{
  for (uint32_t i = 0; i < n; i++)
    if (!offer(t, s, i, h))
      return false;
  while (h->n > 0) {
    uint64_t top = heap_pop(h);
    uint32_t i = (uint32_t)top, rank = (uint32_t)(top >> 32);
    if (s[i].rank != rank)
      continue;
    uint32_t gone = s[i].next;
    s[i].id = td_merges_find(&t->merges, s[i].id, s[gone].id)->whole;
    s[i].next = s[gone].next;
    s[gone].rank = TD_NO_RANK;
    if (s[i].next != UINT32_MAX)
      s[s[i].next].prev = i;
    if (!offer(t, s, i, h) || (s[i].prev != UINT32_MAX && !offer(t, s, s[i].prev, h)))
      return false;
  }
  return true;
}

td_status td_bpe_long(const td_tokenizer *t, td_symbol *s, uint32_t n, td_id_sink *sink)
{
  /* Refuse before the work if even the longest tokens would be too many. */
  if (sink->max_tokens && n / t->longest_bytes > sink->max_tokens)
    return td_fail(sink->err, TD_ERR_REQUEST, "text is longer than %zu tokens", sink->max_tokens);
  for (uint32_t i = 0; i < n; i++)
    s[i] = (td_symbol){s[i].id, i ? i - 1 : UINT32_MAX, i + 1 < n ? i + 1 : UINT32_MAX, TD_NO_RANK};
  heap h = {0};
  bool ok = merge_long(t, s, n, &h);
  free(h.v);
  td_status status =
      ok ? TD_OK : td_fail(sink->err, TD_ERR_NOMEM, "no memory to tokenise a word of %u symbols", n);
  for (uint32_t i = n ? 0 : UINT32_MAX; status == TD_OK && i != UINT32_MAX; i = s[i].next)
    status = emit(t, s[i].id, sink);
  return status;
}

static td_status encode_long(const td_tokenizer *t, const unsigned char *word, size_t n, td_id_sink *sink)
{
  size_t n_symbols = 0;
  for (size_t i = 0; i < n; i++)
    n_symbols += t->byte_id[word[i]] >= 0;
  if (n_symbols == 0)
    return TD_OK;
  td_symbol *s = malloc(n_symbols * sizeof *s);
  if (!s)
    return td_fail(sink->err, TD_ERR_NOMEM, "no memory to tokenise a word of %zu bytes", n);
  uint32_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (t->byte_id[word[i]] >= 0)
      s[k++].id = (uint32_t)t->byte_id[word[i]];
  td_status status = td_bpe_long(t, s, k, sink);
  free(s);
  return status;
}

/* ---- words that are tokens ---- */

/* The model token whose text is this word, or -1. */
static int32_t find_word(const td_tokenizer *t, const unsigned char *word, size_t n)
{
  char text[2 * TD_TOKEN_TEXT_MAX];
  size_t n_text = 0;
  if (n > t->longest_bytes)
    return -1;
  for (size_t i = 0; i < n; i++) {
    const td_byte_char *c = &td_byte_alphabet[word[i]];
    text[n_text] = (char)c->utf8[0];
    text[n_text + 1] = (char)c->utf8[1];
    n_text += c->n;
  }
  int32_t id = td_vocab_find(&t->vocab, text, n_text);
  return id >= 0 && (t->vocab.tokens[id].flags & (TD_TOKEN_MODEL | TD_TOKEN_SPECIAL)) == TD_TOKEN_MODEL ? id
                                                                                                        : -1;
}

td_status td_bpe_word(const td_tokenizer *t, const unsigned char *word, size_t n, td_id_sink *sink)
{
  int32_t known = find_word(t, word, n);
  uint8_t whole = known < 0 ? TD_WHOLE_NO : __atomic_load_n(&t->vocab.tokens[known].whole, __ATOMIC_RELAXED);
  const uint32_t one = (uint32_t)known;
  if (known >= 0 && (t->ignore_merges || whole == TD_WHOLE_YES))
    return td_bpe_emit_word(t, word, n, &one, 1, sink);
  if (n > TD_SHORT_WORD_BYTES)
    return encode_long(t, word, n, sink);
  uint32_t ids[TD_SHORT_WORD_BYTES], rank[TD_SHORT_WORD_BYTES], n_ids = 0;
  unsigned last = 0;
  for (size_t i = 0; i < n; i++)
    if (t->byte_id[word[i]] >= 0) {
      if (n_ids > 0)
        rank[n_ids - 1] = t->byte_rank[last * 256 + word[i]];
      ids[n_ids++] = (uint32_t)t->byte_id[last = word[i]];
    }
  n_ids = td_bpe_short(&t->merges, ids, rank, n_ids);
  if (whole == TD_WHOLE_UNKNOWN)
    __atomic_store_n(&t->vocab.tokens[known].whole,
                     n_ids == 1 && ids[0] == (uint32_t)known ? TD_WHOLE_YES : TD_WHOLE_NO, __ATOMIC_RELAXED);
  return td_bpe_emit_word(t, word, n, ids, n_ids, sink);
}
