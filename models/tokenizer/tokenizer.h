/* Text to token ids and back: byte-level BPE (GPT-2 family) and SentencePiece's BPE, from GGUF,
 * tokenizer.json or tokenizer.model.
 *
 * Encoding: added tokens are cut out first (special ones only in text that the caller trusts), then come
 * normalisation, the model's splitter, and merges by rank. Time is O(n log n) in the text.
 * Decoding: a stream that emits whole UTF-8 characters only.
 * Thread: a td_tokenizer is read-only after load, so any number of threads may use it. A td_detok belongs to
 * one. */
#ifndef TD_MODELS_TOKENIZER_TOKENIZER_H
#define TD_MODELS_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"
#include "models/weights/weights.h"

typedef struct td_tokenizer td_tokenizer;

/* TD_ERR_UNSUPPORTED, naming the setting, for anything that is not served (model type, pre-tokeniser,
 * normaliser). */
TD_MUST_CHECK td_status td_tokenizer_load(const td_model_files *files, td_tokenizer **out, td_error *err);
/* From a tokenizer.json tree alone (for tests). tokenizer_config may be NULL. */
TD_MUST_CHECK td_status td_tokenizer_load_json(const cJSON *tokenizer_json, const cJSON *tokenizer_config,
                                               td_tokenizer **out, td_error *err);
void td_tokenizer_destroy(td_tokenizer *t);

uint32_t td_tokenizer_vocab(const td_tokenizer *t); /* highest id + 1 */
int32_t td_tokenizer_bos(const td_tokenizer *t);    /* -1 if none */
int32_t td_tokenizer_eos(const td_tokenizer *t);    /* -1 if none */
/* Whether the model's own tokenizer puts BOS before a text (post-processor, add_bos_token, GGUF's flag). */
bool td_tokenizer_adds_bos(const td_tokenizer *t);
/* The text of a token as the vocabulary writes it ("<|im_end|>"), or NULL for an unknown id. Borrowed. */
const char *td_tokenizer_token_text(const td_tokenizer *t, int32_t id);
/* Appends the bytes that the token adds to a text, which may be incomplete characters. Appends nothing for an
 * unknown id. */
void td_tokenizer_token_bytes(const td_tokenizer *t, int32_t id, td_buf *out);
/* Id of an added token by its text, or -1. */
int32_t td_tokenizer_added_token(const td_tokenizer *t, const char *text, size_t n_bytes);
bool td_tokenizer_is_special(const td_tokenizer *t, int32_t id);

typedef struct td_span {
  size_t start, end; /* byte range [start, end) */
} td_span;

typedef struct td_ids {
  int32_t *ids; /* owned, malloc */
  size_t n, cap;
} td_ids;
void td_ids_deinit(td_ids *ids);

/* Appends the ids of text to *out. Special added tokens are recognised only inside a single trusted span
 * (spans are sorted and do not overlap), other added tokens everywhere. Invalid UTF-8 is tokenised byte by
 * byte. add_bos: put BOS first if td_tokenizer_adds_bos and the text does not begin with it, and add the
 * other tokens that the model's own tokenizer puts before and after a text (EOS, for embedding models).
 * TD_ERR_REQUEST if there are more than max_tokens ids (0 = no cap). */
TD_MUST_CHECK td_status td_tokenizer_encode(const td_tokenizer *t, const char *text, size_t n_bytes,
                                            const td_span *trusted, size_t n_trusted, bool add_bos,
                                            size_t max_tokens, td_ids *out, td_error *err);

/* Streaming decoder. It holds back the bytes of an incomplete character. */
typedef struct td_detok {
  const td_tokenizer *t;
  bool skip_special;
  bool strips;           /* SentencePiece: nothing decoded yet; a space at the start will be dropped */
  unsigned char held[8]; /* incomplete UTF-8, < 4 bytes */
  uint32_t n_held;
} td_detok;

/* begins: the ids are a whole text, not the continuation of another. */
void td_detok_init(td_detok *d, const td_tokenizer *t, bool skip_special, bool begins);
/* Appends the text that this token completes. Invalid bytes become U+FFFD, as with Python's errors="replace".
 * SentencePiece's byte tokens are different: each byte that belongs to no character becomes one U+FFFD. */
void td_detok_push(td_detok *d, int32_t id, td_buf *out);
/* Ends the stream: an incomplete character becomes U+FFFD. */
void td_detok_finish(td_detok *d, td_buf *out);

#endif
