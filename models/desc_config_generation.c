/* End tokens and sampling defaults: from generation_config.json, with the end tokens of config.json. */
#include <math.h>
#include <stdio.h>

#include "common/log.h"
#include "models/desc_config.h"

#define GENERATION "generation_config.json"

static td_status read_end_tokens(const td_config_reader *r, td_model_desc *d)
{
  const cJSON *eos = td_json_get(r->config, "eos_token_id"), *one = cJSON_IsArray(eos) ? eos->child : eos;
  char source[64];
  snprintf(source, sizeof source, "%s: eos_token_id", r->file);
  if (cJSON_IsNull(eos))
    return TD_OK;
  for (; one; one = cJSON_IsArray(eos) ? one->next : NULL) {
    if (!cJSON_IsNumber(one) || one->valuedouble != floor(one->valuedouble) || one->valuedouble < 0 ||
        one->valuedouble > td_limits[TD_LIMIT_MODEL_VOCAB].max)
      return td_fail(r->err, TD_ERR_MODEL, "%s must be a token id or a list of them", source);
    TD_TRY(td_desc_add_eos(d, (uint64_t)one->valuedouble, source, r->err));
  }
  return TD_OK;
}

/* Adds config.json's end tokens to those of generation_config.json. If generation_config.json names some,
 * other programs use only those, so a fault in config.json's is only a warning and the model is served. */
static td_status read_more_end_tokens(const td_config_reader *r, td_model_desc *d)
{
  uint32_t n_before = d->n_eos_ids;
  td_error why;
  td_config_reader own = *r;
  if (n_before == 0)
    return read_end_tokens(r, d);
  own.err = &why;
  if (read_end_tokens(&own, d) == TD_OK)
    return TD_OK;
  d->n_eos_ids = n_before;
  td_warn("%s; it is left out, as " GENERATION " names tokens that end answers", why.message);
  return TD_OK;
}

static td_status read_default(const td_config_reader *r, const char *key, td_limit_id limit, float *out)
{
  double v = (double)*out;
  TD_TRY(td_config_as_model_error(
      r, td_json_get_double(r->config, key, td_limits[limit].min, td_limits[limit].max, &v, NULL, r->err)));
  *out = (float)v;
  return TD_OK;
}

/* Keys that change which token is chosen, each with the number that means "off". An empty list is off,
 * too. */
static void note_unserved(const cJSON *generation, td_model_desc *d)
{
  static const struct {
    const char *key;
    double off;
  } keys[] = {{"no_repeat_ngram_size", 0},
              {"encoder_repetition_penalty", 1},
              {"encoder_no_repeat_ngram_size", 0},
              {"presence_penalty", 0},
              {"frequency_penalty", 0},
              {"typical_p", 1},
              {"epsilon_cutoff", 0},
              {"eta_cutoff", 0},
              {"top_h", 1},
              {"penalty_alpha", 0},
              {"guidance_scale", 1},
              {"num_beams", 1},
              {"min_length", 0},
              {"min_new_tokens", 0},
              {"max_new_tokens", 0},
              {"bad_words_ids", 0},
              {"suppress_tokens", 0},
              {"begin_suppress_tokens", 0},
              {"sequence_bias", 0},
              {"forced_bos_token_id", -1},
              {"forced_eos_token_id", -1},
              {"exponential_decay_length_penalty", 0},
              {"stop_strings", 0},
              {"constraints", 0},
              {"force_words_ids", 0},
              {"watermarking_config", 0},
              {"dola_layers", 0}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    const cJSON *v = td_json_get(generation, keys[i].key);
    bool list = cJSON_IsArray(v) || cJSON_IsObject(v);
    if (v && !cJSON_IsNull(v) && !cJSON_IsFalse(v) && !(list && !v->child) &&
        !(cJSON_IsNumber(v) && v->valuedouble == keys[i].off))
      td_desc_note_unserved(d, keys[i].key);
  }
}

td_status td_config_read_generation(td_config_reader *r, const cJSON *generation, td_model_desc *d)
{
  const cJSON *config = r->config;
  int64_t top_k = d->default_top_k;
  r->config = generation;
  r->file = GENERATION;
  if (generation) {
    TD_TRY(read_end_tokens(r, d));
    note_unserved(generation, d);
    TD_TRY(read_default(r, "temperature", TD_LIMIT_TEMPERATURE, &d->default_temperature));
    TD_TRY(read_default(r, "top_p", TD_LIMIT_TOP_P, &d->default_top_p));
    TD_TRY(read_default(r, "min_p", TD_LIMIT_MIN_P, &d->default_min_p));
    TD_TRY(
        read_default(r, "repetition_penalty", TD_LIMIT_REPETITION_PENALTY, &d->default_repetition_penalty));
    TD_TRY(td_config_as_model_error(r, td_json_get_int64(generation, "top_k", -1,
                                                         (int64_t)td_limit_max(TD_LIMIT_TOP_K), &top_k, NULL,
                                                         r->err)));
    d->default_top_k = (int32_t)top_k;
  }
  r->config = config;
  r->file = TD_CONFIG_FILE;
  return read_more_end_tokens(r, d);
}
