/* Internal to models/: what the two readers of a description share.
 *
 * desc_config.c reads config.json and generation_config.json; desc_gguf.c reads GGUF metadata. Both fill a
 * td_model_desc, and model_desc.c then checks the result as a whole. */
#ifndef TD_MODELS_DESC_H
#define TD_MODELS_DESC_H

#include "config/limits.h"
#include "models/model_desc.h"

/* Fills inv_freq [rotary_dim / 2] and attn_factor, the factor on cosine and sine, for texts of up to
 * `context` tokens. path is used in messages only. */
TD_MUST_CHECK td_status td_rope_fill(const td_rope_spec *spec, uint32_t rotary_dim, uint32_t context,
                                     const char *path, float *inv_freq, float *attn_factor, td_error *err);

/* Both readers put the rotation of the layers marked in alt_rope into *alt. */
TD_MUST_CHECK td_status td_desc_read_config(const td_model_files *files, td_model_desc *d, td_rope_spec *alt,
                                            td_error *err);
TD_MUST_CHECK td_status td_desc_read_gguf(const td_model_files *files, td_model_desc *d, td_rope_spec *alt,
                                          td_error *err);

void td_desc_set_window(td_model_desc *d, uint32_t layer, bool slides);
void td_desc_set_alt_rope(td_model_desc *d, uint32_t layer);

/* Adds the id of a token that ends an answer, unless it is there already. Fails if the id is outside the
 * vocabulary. source names the file and key for the message. */
TD_MUST_CHECK td_status td_desc_add_eos(td_model_desc *d, uint64_t id, const char *source, td_error *err);

/* Notes that the files set a sampling key that is not served. */
void td_desc_note_unserved(td_model_desc *d, const char *key);

#endif
