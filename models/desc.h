/* Inside models/: how the two sources of a description share their parts.
 *
 * desc_config.c reads config.json and generation_config.json, desc_gguf.c reads GGUF metadata; both fill the
 * same td_model_desc, and model_desc.c checks the whole. */
#ifndef TD_MODELS_DESC_H
#define TD_MODELS_DESC_H

#include "config/limits.h"
#include "models/model_desc.h"

/* inv_freq [rotary_dim / 2] and the factor of cosine and sine, for texts of up to context tokens. path: for
 * messages. */
TD_MUST_CHECK td_status td_rope_fill(const td_rope_spec *spec, uint32_t rotary_dim, uint32_t context,
                                     const char *path, float *inv_freq, float *attn_factor, td_error *err);

/* other: of the layers that other_rope names. */
TD_MUST_CHECK td_status td_desc_read_config(const td_model_files *files, td_model_desc *d,
                                            td_rope_spec *other, td_error *err);
TD_MUST_CHECK td_status td_desc_read_gguf(const td_model_files *files, td_model_desc *d, td_rope_spec *other,
                                          td_error *err);

void td_desc_set_window(td_model_desc *d, uint32_t layer, bool slides);
void td_desc_set_other_rope(td_model_desc *d, uint32_t layer);

/* Adds an id that ends an answer, once; must be inside the vocabulary. source: file and key for the message.
 */
TD_MUST_CHECK td_status td_desc_add_eos(td_model_desc *d, uint64_t id, const char *source, td_error *err);

/* Notes a key of the files that steers sampling and is not served. */
void td_desc_note_unserved(td_model_desc *d, const char *key);

#endif
