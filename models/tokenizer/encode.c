/* From text to ids: added tokens, normalisation, then the splitter chain or marks for spaces, then BPE.
 *
 * The code walks over slices of the text and copies only what normalisation rewrites. Bytes that are not
 * UTF-8 cut the text as added tokens do: each becomes its own byte token, and the text between them is
 * encoded separately. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

typedef struct encoder {
  const td_tokenizer *t;
  const td_span *spans;
  size_t n_spans;
  td_id_sink sink;
  size_t steps_left; /* for splitters of kind TD_SPLIT_REGEX */
  size_t goes_on_at; /* text that starts here follows an invalid byte, and gets no prefix */
} encoder;

static inline td_status encode_word(encoder *e, const unsigned char *p, size_t n)
{
  bool hit;
  td_status status = td_bpe_emit_cached(p, n, &e->sink, &hit);
  return hit ? status : td_bpe_word(e->t, p, n, &e->sink);
}

/* The first splitter from `level` on that may cut this piece. */
static inline uint32_t next_level(const td_tokenizer *t, uint32_t level, const unsigned char *p, size_t n)
{
  uint32_t may = 0;
  for (size_t i = 0; i < n; i++) {
    may |= t->may_cut[p[i]];
    if (may >> level & 1)
      return level;
  }
  while (level < t->n_splits && !(may >> level & 1))
    level++;
  return level;
}

static td_status encode_pieces(encoder *e, uint32_t level, const unsigned char *p, size_t n)
{
  level = next_level(e->t, level, p, n);
  if (level == e->t->n_splits)
    return encode_word(e, p, n);
  const bool last = level + 1 == e->t->n_splits;
  while (n > 0) {
    size_t piece = td_split_next(&e->t->splits[level], p, n, &e->steps_left);
    if (piece == 0)
      return td_fail(e->sink.err, TD_ERR_REQUEST, "text takes too long to split");
    TD_TRY(last ? encode_word(e, p, piece) : encode_pieces(e, level + 1, p, piece));
    p += piece;
    n -= piece;
  }
  return TD_OK;
}

typedef td_status encode_gap_fn(encoder *e, const unsigned char *p, size_t n, size_t base);

/* Cuts text at the matches of a set, and passes the gaps to `gap`. base is the offset of text in the
 * coordinates of spans. */
static td_status encode_around(encoder *e, const td_added_set *set, const unsigned char *text, size_t n,
                               size_t base, const td_span *spans, size_t n_spans, encode_gap_fn *gap)
{
  td_added_search s = {.set = set, .text = text, .n = n, .spans = spans, .n_spans = n_spans, .base = base};
  td_added_match m;
  size_t at = 0;
  while (td_added_next(&s, &m)) {
    if (at < m.start)
      TD_TRY(gap(e, text + at, m.start - at, base + at));
    TD_TRY(td_id_sink_push(&e->sink, m.id));
    at = m.end;
  }
  return at < n ? gap(e, text + at, n - at, base + at) : TD_OK;
}

static td_status encode_plain(encoder *e, const unsigned char *p, size_t n, size_t base)
{
  (void)base;
  return encode_pieces(e, 0, p, n);
}

/* Encodes a stretch whose spaces are marked already. */
static td_status encode_marked(encoder *e, const unsigned char *p, size_t n, size_t base)
{
  (void)base;
  return td_spm_encode(e->t, p, n, &e->sink);
}

/* Marks spaces, then encodes, for tokenizers whose pre-tokeniser marks them. A stretch that begins with a
 * space gets no prefix. */
static td_status encode_unmarked(encoder *e, const unsigned char *p, size_t n, size_t base)
{
  const td_spm_prefix at = e->t->spm.prefix;
  const bool there = *p == ' ' || (n >= 3 && memcmp(p, "\xE2\x96\x81", 3) == 0);
  const bool prefix = !there && base != e->goes_on_at &&
                      (at == TD_SPM_PREFIX_ABSENT || (at == TD_SPM_PREFIX_FIRST && base == 0));
  td_buf out;
  td_buf_init(&out, 0);
  td_status status = td_spm_mark(e->t, p, n, prefix, &out, NULL, 0, e->sink.err);
  if (status == TD_OK)
    status = td_spm_encode(e->t, (const unsigned char *)out.data, out.len_bytes, &e->sink);
  td_buf_deinit(&out);
  return status;
}

static td_status normalize(encoder *e, const unsigned char *p, size_t n, size_t base, td_buf *out,
                           td_span *spans, size_t n_spans)
{
  if (e->t->nfc)
    return td_nfc_append(p, n, out, spans, n_spans, e->sink.err);
  const bool prefix = e->t->spm.prefix == TD_SPM_PREFIX_EVERY && base != e->goes_on_at;
  return td_spm_mark(e->t, p, n, prefix, out, spans, n_spans, e->sink.err);
}

/* Encodes a stretch that normalisation changes. The spans are adjusted if added tokens still need them. */
static td_status encode_rewritten(encoder *e, const unsigned char *p, size_t n, size_t base)
{
  td_span *spans = NULL;
  size_t n_spans = 0;
  size_t first = td_span_after(e->spans, e->n_spans, base), most = 0;
  while (e->t->added_normalized.n > 0 && first + most < e->n_spans && e->spans[first + most].start < base + n)
    most++;
  if (most > 0) {
    spans = malloc(most * sizeof *spans);
    if (!spans)
      return td_fail(e->sink.err, TD_ERR_NOMEM, "no memory to normalise text");
    for (size_t i = first; i < e->n_spans && e->spans[i].start < base + n; i++) {
      size_t start = e->spans[i].start > base ? e->spans[i].start - base : 0;
      size_t end = e->spans[i].end - base < n ? e->spans[i].end - base : n;
      spans[n_spans++] = (td_span){start, end};
    }
  }
  td_buf out;
  td_buf_init(&out, 0);
  td_status status = normalize(e, p, n, base, &out, spans, n_spans);
  if (status == TD_OK && out.len_bytes > 0)
    status = encode_around(e, &e->t->added_normalized, (const unsigned char *)out.data, out.len_bytes, 0,
                           spans, n_spans, e->t->spm.on ? encode_marked : encode_plain);
  td_buf_deinit(&out);
  free(spans);
  return status;
}

static td_status encode_valid(encoder *e, const unsigned char *p, size_t n, size_t base)
{
  if (e->t->spm.marks_first || (e->t->nfc && !td_nfc_quick(p, n)))
    return encode_rewritten(e, p, n, base);
  return encode_around(e, &e->t->added_normalized, p, n, base, e->spans, e->n_spans,
                       e->t->spm.on ? encode_unmarked : encode_plain);
}

static size_t valid_prefix(const unsigned char *p, size_t n)
{
  size_t i = 0, len;
  do {
    for (uint64_t eight; i + 8 <= n && (memcpy(&eight, p + i, 8), !(eight & 0x8080808080808080u));)
      i += 8;
    len = i == n ? 0 : p[i] < 0x80 ? 1 : td_utf8_sequence_length(p + i, n - i);
    i += len;
  } while (len > 0);
  return i;
}

static td_status encode_bytes(encoder *e, const unsigned char *p, size_t n, size_t base)
{
  for (size_t i = 0; i < n;) {
    size_t valid = valid_prefix(p + i, n - i);
    if (valid > 0)
      TD_TRY(encode_valid(e, p + i, valid, base + i));
    i += valid;
    if (i < n && e->t->byte_id[p[i]] >= 0)
      TD_TRY(td_id_sink_push(&e->sink, e->t->byte_id[p[i]]));
    i += i < n;
    e->goes_on_at = base + i;
  }
  return TD_OK;
}

static td_status push_all(td_id_sink *sink, const td_around *around)
{
  for (uint32_t i = 0; i < around->n; i++)
    TD_TRY(td_id_sink_push(sink, around->ids[i]));
  return TD_OK;
}

td_status td_tokenizer_encode(const td_tokenizer *t, const char *text, size_t n_bytes, const td_span *trusted,
                              size_t n_trusted, bool add_bos, size_t max_tokens, td_ids *out, td_error *err)
{
  if (n_bytes > td_limit_max(TD_LIMIT_TOKENIZE_TEXT_BYTES))
    return td_fail(err, TD_ERR_REQUEST, "text has %zu bytes, at most %llu are tokenised", n_bytes,
                   (unsigned long long)td_limit_max(TD_LIMIT_TOKENIZE_TEXT_BYTES));
  encoder e = {t,
               trusted,
               trusted ? n_trusted : 0,
               {out, out->n, max_tokens, err, false, td_word_cache_of_thread(t), 0},
               td_limit_max(TD_LIMIT_SPLIT_STEPS) + td_limit_max(TD_LIMIT_SPLIT_STEPS_PER_BYTE) * n_bytes,
               SIZE_MAX};
  const size_t base = out->n;
  const bool bos = add_bos && t->adds_bos && t->bos >= 0;
  td_status status = bos ? td_id_sink_push(&e.sink, t->bos) : TD_OK;
  if (status == TD_OK && add_bos)
    status = push_all(&e.sink, &t->front);
  const size_t begin = out->n;
  if (status == TD_OK && n_bytes > 0)
    status = encode_around(&e, &t->added_raw, (const unsigned char *)text, n_bytes, 0, e.spans, e.n_spans,
                           encode_bytes);
  const bool own_bos = bos && t->front.n == 0 && out->n > begin && out->ids[begin] == t->bos;
  if (status == TD_OK && add_bos)
    status = push_all(&e.sink, &t->rear);
  if (status != TD_OK) {
    out->n = base;
    return status;
  }
  if (own_bos) {
    out->n--;
    memmove(out->ids + base, out->ids + base + 1, (out->n - base) * sizeof *out->ids);
  }
  return TD_OK;
}
