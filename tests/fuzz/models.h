/* Shared by the targets of models/: using a model's files and tokenizers as the engine does. */
#ifndef TD_TESTS_FUZZ_MODELS_H
#define TD_TESTS_FUZZ_MODELS_H

#include "models/model_desc.h"
#include "models/tokenizer/tokenizer.h"
#include "models/weights/weights.h"

/* Reads the first and the last byte, so that an invalid range faults. */
void fuzz_touch(const void *data, uint64_t n_bytes);
/* Opens model files. Touches every tensor, looks each up by name, reads the description and checks it against
 * the limits. Returns NULL if the files were refused, with a message. */
td_model_files *fuzz_open_files(const char *path);
/* Encodes and decodes a text; checks ids and output. */
void fuzz_use_tokenizer(const td_tokenizer *t, const char *text, size_t n);

#endif
