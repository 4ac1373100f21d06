/* bad_words: texts that an answer may not hold, in vLLM's meaning.
 *
 * Each is tokenised as it stands and behind a blank. Of the tokens of either, the last may not follow where
 * the answer ends with the others. So a word of one token never comes; another tokenisation of the same text
 * may. It is a mask of the request's (engine.h), before everything else that chooses: requests without bad
 * words cost nothing. */
#ifndef TD_SERVER_BAD_WORDS_H
#define TD_SERVER_BAD_WORDS_H

#include "engine/engine.h"
#include "server/api_error.h"

typedef struct td_bad_words td_bad_words;

/* [worker] Of the field's value; *out NULL: there are none. False: *error says why. */
TD_MUST_CHECK bool td_bad_words_read(const td_engine *e, const cJSON *value, td_bad_words **out,
                                     td_api_error *error);
/* [loop] Whoever read them, and each request's provider, hold them; the last one frees them. */
void td_bad_words_drop(td_bad_words *w); /* NULL: does nothing */
/* [loop] A request's provider over inner's mask, which it drops with itself; fill NULL: no memory, and inner
 * is still the caller's. inner.fill NULL: any id may come. */
td_mask_provider td_bad_words_provide(td_bad_words *w, td_mask_provider inner, uint32_t n_prompt);

#endif
