/* What the readers of tokenizer.json share. */
#ifndef TD_MODELS_TOKENIZER_LOAD_JSON_H
#define TD_MODELS_TOKENIZER_LOAD_JSON_H

#include "models/tokenizer/internal.h"

const char *td_load_type(const cJSON *o); /* its "type" */
bool td_load_is_null(const cJSON *o);     /* null or absent */
/* TD_ERR_UNSUPPORTED, TD_ERR_MODEL. */
td_status td_load_unsupported(td_error *err, const char *what, const char *value);
td_status td_load_wrong(td_error *err, const char *what);
/* A boolean member, or its default where absent. */
td_status td_load_flag(const cJSON *o, const char *key, bool absent, bool *out, td_error *err);

/* load_chain.c: normalizer, pre_tokenizer and decoder. They say which family a tokenizer is of. */
td_status td_chain_load(td_tokenizer *t, const cJSON *json, td_error *err);

#endif
