/* bad_words: texts that an answer must not contain, with vLLM's meaning.
 *
 * Each word is tokenised twice, as given and with a space in front. When the answer so far ends with all
 * tokens of such a sequence but the last, the mask forbids the last. So a word of one token never appears,
 * but the same text in another tokenisation may. The words act through the request's mask (engine.h), before
 * sampling; requests without bad words cost nothing. */
#ifndef TD_SERVER_BAD_WORDS_H
#define TD_SERVER_BAD_WORDS_H

#include "engine/engine.h"
#include "server/api_error.h"

typedef struct td_bad_words td_bad_words;

/* [worker] Reads the field's value. *out is NULL if there are no words. On false, *error says why. */
TD_MUST_CHECK bool td_bad_words_read(const td_engine *e, const cJSON *value, td_bad_words **out,
                                     td_api_error *error);
/* [loop] Drops a reference. The caller of td_bad_words_read has one and each provider has one; the last to go
 * frees the words. */
void td_bad_words_drop(td_bad_words *w); /* NULL: does nothing */
/* [loop] A mask provider for one request: removes the bad words from inner's mask. It owns inner. inner.fill
 * NULL: inner allows every id. Returns fill NULL if there is no memory; then the caller still owns inner. */
td_mask_provider td_bad_words_provide(td_bad_words *w, td_mask_provider inner, uint32_t n_prompt);

/* Why a provider gave up: the words and the inner mask together forbid every id. */
extern const char *const td_bad_words_stuck;

#endif
