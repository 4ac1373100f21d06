/* Inside models/: how the two sources of a description share their parts.
 *
 * desc_config.c reads config.json and generation_config.json, desc_gguf.c reads GGUF metadata; both fill the
 * same td_model_desc and a td_rope_spec, and model_desc.c checks the whole. */
#ifndef TD_MODELS_DESC_H
#define TD_MODELS_DESC_H

#include "config/limits.h"
#include "models/model_desc.h"

typedef enum td_rope_kind { TD_ROPE_PLAIN, TD_ROPE_LINEAR, TD_ROPE_LLAMA3, TD_ROPE_YARN } td_rope_kind;

/* Rotary embedding as the files state it; 0 for what they leave out. */
typedef struct td_rope_spec {
  td_rope_kind kind;
  double theta;                /* base of the frequencies */
  double factor;               /* how much longer the context became; linear, llama3, yarn */
  double original_context;     /* tokens before that; llama3, yarn */
  double low_freq, high_freq;  /* llama3 */
  double beta_fast, beta_slow; /* yarn */
  double mscale, mscale_all;   /* yarn */
  double attn_factor;          /* yarn: 0 = by the factor */
  bool exact_range;            /* yarn: corrections not rounded to whole dimensions */
  const float *divisors;       /* GGUF rope_freqs.weight: [rotary_dim / 2] divides each frequency */
} td_rope_spec;

/* Fills rope_inv_freq and rope_attn_factor; rotary_dim is set. path: for messages. */
TD_MUST_CHECK td_status td_rope_fill(const td_rope_spec *spec, const char *path, td_model_desc *d,
                                     td_error *err);

TD_MUST_CHECK td_status td_desc_read_config(const td_model_files *files, td_model_desc *d, td_rope_spec *rope,
                                            td_error *err);
TD_MUST_CHECK td_status td_desc_read_gguf(const td_model_files *files, td_model_desc *d, td_rope_spec *rope,
                                          td_error *err);

/* Adds an id that ends an answer, once; must be inside the vocabulary. source: file and key for the message.
 */
TD_MUST_CHECK td_status td_desc_add_eos(td_model_desc *d, uint64_t id, const char *source, td_error *err);

/* Notes a key of the files that steers sampling and is not served. */
void td_desc_note_unserved(td_model_desc *d, const char *key);

#endif
