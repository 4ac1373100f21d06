/* SARATHI's pipeline experiment (section 5.3): GPT-3 on 64 A100s, and what a stage of it costs. */
#ifndef TD_CAPACITY_GPT3_H
#define TD_CAPACITY_GPT3_H

#include "capacity/pipeline.h"

/* `n_layers` of a decoder of 12 width^2 parameters a layer, on n_gpus A100s as one by tensor parallelism.
 * peak_tokens: from where on products are as efficient as they get. */
td_cost_model td_a100_layers(uint32_t width, uint32_t n_layers, uint32_t n_gpus, uint32_t peak_tokens);

/* What the paper does not give and its figures depend on. */
typedef struct td_gpt3_guesses {
  double product_share; /* of the A100's peak that large products reach */
  double read_share;    /* of its memory's bandwidth */
  double all_reduce_us; /* besides its bytes */
  double stage_us;      /* that a stage takes in every step besides: launches, slow kernels */
  bool padded;          /* a batch's decode attention reads each KV as far as the longest of them */
  bool beside;          /* chunks of 256 with the decodes beside them, not 256 tokens in all (4.4) */
  double scatter;       /* of steps' times: standard deviation over mean */
  uint32_t lanes_per_stage; /* micro-batches under way */
} td_gpt3_guesses;
extern const td_gpt3_guesses td_gpt3_guessed;

/* Lengths of prompt and answer together by a Zipf law over [low, high], theta as in YCSB: a length's
 * chance falls with its rank to the power of -theta, the shortest being first. Split by prompt:answer =
 * ratio. All due at once. */
void td_gpt3_load(td_load *l, size_t n, uint32_t low, uint32_t high, double theta, double ratio,
                  uint64_t seed);

typedef enum td_gpt3_scene {
  TD_GPT3_ORCA_PIPELINE, /* TP8 x PP8, whole prompts, at most one new one in a step; 27 requests a micro-batch
                          */
  TD_GPT3_SARATHI_PIPELINE, /* TP8 x PP8, steps of 256 tokens, one chunk each; 27 */
  TD_GPT3_TANDEM_PIPELINE,  /* the same, and several prompts share a step */
  TD_GPT3_ORCA_REPLICAS,    /* eight times TP8, whole prompts; 11 */
  TD_GPT3_SCENES
} td_gpt3_scene;
extern const char *const td_gpt3_scene_names[TD_GPT3_SCENES];
/* *stage receives the cost that config points to. */
td_pipeline_config td_gpt3_config(td_gpt3_scene scene, const td_gpt3_guesses *g, td_cost_model *stage);

#endif
