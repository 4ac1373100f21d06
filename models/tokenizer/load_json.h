/* Shared by the readers of tokenizer.json. */
#ifndef TD_MODELS_TOKENIZER_LOAD_JSON_H
#define TD_MODELS_TOKENIZER_LOAD_JSON_H

#include "models/tokenizer/internal.h"

const char *td_load_type(const cJSON *o); /* its "type", or "(no type)" */
bool td_load_is_null(const cJSON *o);     /* null or absent */
/* These return TD_ERR_UNSUPPORTED and TD_ERR_MODEL. */
td_status td_load_unsupported(td_error *err, const char *what, const char *value);
td_status td_load_wrong(td_error *err, const char *what);
/* Reads a boolean member; `absent` is its default. */
td_status td_load_flag(const cJSON *o, const char *key, bool absent, bool *out, td_error *err);

/* In load_unigram.c: a model of type "Unigram", its vocabulary and how unknown characters are encoded. */
bool td_load_is_unigram(const cJSON *model);
td_status td_load_unigram(td_tokenizer *t, const cJSON *model, td_error *err);

/* In load_chain.c: normalizer, pre_tokenizer and decoder, which decide the tokenizer's family. */
td_status td_chain_load(td_tokenizer *t, const cJSON *json, td_error *err);

#endif
