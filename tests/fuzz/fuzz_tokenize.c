/* Text to ids and back, with small tokenizers of every family that is served. Input: a byte that selects the
 * tokenizer, a byte for the split, then text. Properties: decoding returns the text (if it is valid UTF-8 and
 * not rewritten), streamed or not; ids do not depend on the call; special tokens appear only where the text
 * is trusted; a cap on tokens refuses exactly the longer texts. */
#include <stdlib.h>
#include <string.h>

#include "config/limits.h"
#include "common/utf8.h"
#include "fuzz.h"
#include "models.h"
#include "models/tokenizer/internal.h"

enum { SPM = 4, SPM_MODEL, UNIGRAM, UNIGRAM_MODEL, N_TOKENIZERS };
static td_tokenizer *tokenizers[N_TOKENIZERS];
static const char *const files[N_TOKENIZERS] = {
    "tests/fuzz/tokenizers/gpt2.json",
    "tests/fuzz/tokenizers/llama3.json",
    "tests/fuzz/tokenizers/qwen2.json",
    "tests/fuzz/tokenizers/smollm.json",
    [SPM] = "tests/golden_text/small_spm.json",
    [SPM_MODEL] = "tests/golden_text/small_spm.model",
    [UNIGRAM] = "tests/golden_text/small_unigram.json",
    [UNIGRAM_MODEL] = "tests/golden_text/small_unigram.model",
};
enum { NORMALISES = 2 }; /* qwen2.json: NFC */

static td_status load_json(const char *text, size_t n, td_tokenizer **t, td_error *err)
{
  const td_json_limits limits = {64, 100000, TD_ERR_MODEL};
  cJSON *json;
  TD_TRY(td_json_parse(text, n, &limits, &json, err));
  td_status st = td_tokenizer_load_json(json, NULL, t, err);
  cJSON_Delete(json);
  return st;
}

static td_status load_model(const char *bytes, size_t n, td_tokenizer **t, td_error *err)
{
  *t = td_tokenizer_new(err);
  return *t ? td_tokenizer_load_spm(*t, bytes, n, NULL, NULL, err) : TD_ERR_NOMEM;
}

static void load_all(void)
{
  for (int i = 0; i < N_TOKENIZERS; i++) {
    size_t n;
    td_error err;
    char *text = fuzz_read_source(files[i], &n);
    const bool model = i == SPM_MODEL || i == UNIGRAM_MODEL;
    if ((model ? load_model : load_json)(text, n, &tokenizers[i], &err) != TD_OK)
      fuzz_broken(files[i], 0, err.message);
    free(text);
  }
}

static bool is_utf8(const uint8_t *text, size_t n)
{
  for (size_t i = 0, len; i < n; i += len)
    if (text[i] < 0x80)
      len = 1;
    else if ((len = td_utf8_sequence_length(text + i, n - i)) == 0)
      return false;
  return true;
}

static td_ids encode(const td_tokenizer *t, const uint8_t *text, size_t n, const td_span *spans,
                     size_t n_spans)
{
  td_ids ids = {0};
  td_error err;
  FUZZ_CHECK(td_tokenizer_encode(t, (const char *)text, n, spans, n_spans, false, 0, &ids, &err) == TD_OK);
  for (size_t i = 0; i < ids.n; i++)
    FUZZ_CHECK(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < td_tokenizer_vocab(t));
  return ids;
}

static void decode(const td_tokenizer *t, const td_ids *ids, td_buf *out)
{
  td_detok d;
  td_detok_init(&d, t, false, true);
  td_buf_init(out, 0);
  for (size_t i = 0; i <= ids->n; i++) { /* every push gives whole characters */
    size_t at = out->len_bytes;
    if (i < ids->n)
      td_detok_push(&d, ids->ids[i], out);
    else
      td_detok_finish(&d, out);
    FUZZ_CHECK(!out->failed &&
               (out->len_bytes == at || is_utf8((const uint8_t *)out->data + at, out->len_bytes - at)));
  }
}

static bool same_ids(const td_ids *a, const td_ids *b)
{
  return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

static void check_cap(const td_tokenizer *t, const uint8_t *text, size_t n, const td_ids *ids)
{
  td_ids capped = {0};
  td_error err;
  if (ids->n == 0)
    return;
  FUZZ_CHECK(td_tokenizer_encode(t, (const char *)text, n, NULL, 0, false, ids->n, &capped, &err) == TD_OK);
  FUZZ_CHECK(same_ids(ids, &capped));
  td_ids_deinit(&capped);
  if (ids->n > 1)
    FUZZ_CHECK(td_tokenizer_encode(t, (const char *)text, n, NULL, 0, false, ids->n - 1, &capped, &err) ==
               TD_ERR_REQUEST);
  td_ids_deinit(&capped);
}

/* The longest text of a special token determines which spans could form one. */
static void check_trust(const td_tokenizer *t, const uint8_t *text, size_t n, size_t cut,
                        const td_ids *untrusted)
{
  for (size_t i = 0; i < untrusted->n; i++)
    FUZZ_CHECK(!td_tokenizer_is_special(t, untrusted->ids[i]));
  const td_span halves[] = {{0, cut}, {cut, n}};
  td_ids ids = encode(t, text, n, halves, 2);
  td_buf out;
  decode(t, &ids, &out);
  size_t at = 0; /* a special token's text must be where it was decoded, completely in one half */
  for (size_t i = 0; i < ids.n && out.len_bytes == n && memcmp(out.data, text, n) == 0; i++) {
    const char *s = td_tokenizer_token_text(t, ids.ids[i]);
    if (!td_tokenizer_is_special(t, ids.ids[i]))
      continue;
    const char *found = memmem((const char *)text + at, n - at, s, strlen(s));
    FUZZ_CHECK(found);
    at = (size_t)(found - (const char *)text) + strlen(s);
  }
  td_buf_deinit(&out);
  td_ids_deinit(&ids);
}

static bool has(const uint8_t *text, size_t n, const char *part)
{
  return memmem(text, n, part, strlen(part));
}

/* Whether decoding gives the text back. SentencePiece's tokenizers turn U+2581 into a space. In a
 * tokenizer.json, BPE puts a mark behind each added token, and Unigram makes "<0x41>" a byte. */
static bool round_trips(unsigned which, const uint8_t *text, size_t n)
{
  if (which == NORMALISES || !is_utf8(text, n) || (which >= SPM && has(text, n, "\xE2\x96\x81")))
    return false;
  return !(which == SPM && (has(text, n, "[U]") || has(text, n, "[V]"))) &&
         !(which == UNIGRAM && has(text, n, "<0x"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  fuzz_input in = {data, size};
  if (!tokenizers[0])
    load_all();
  unsigned which = fuzz_take(&in) % N_TOKENIZERS;
  const td_tokenizer *t = tokenizers[which];
  size_t cut = fuzz_take(&in), n = in.size;
  cut = cut < n ? cut : n;
  td_ids ids = encode(t, in.data, n, NULL, 0), again = encode(t, in.data, n, NULL, 0);
  FUZZ_CHECK(same_ids(&ids, &again));
  /* At most one token per byte. NFC may lengthen the text, and SentencePiece puts a mark before stretches. */
  FUZZ_CHECK(ids.n <= (which < SPM ? 3 * n : 4 * n + 3));
  td_buf out;
  decode(t, &ids, &out);
  if (round_trips(which, in.data, n))
    FUZZ_CHECK(out.len_bytes == n && (n == 0 || memcmp(out.data, in.data, n) == 0));
  check_cap(t, in.data, n, &ids);
  check_trust(t, in.data, n, cut, &ids);
  td_buf_deinit(&out);
  td_ids_deinit(&ids);
  td_ids_deinit(&again);
  return 0;
}
