/* What steps take before any was seen: the table of a device class, scaled to the device and the model at
 * hand by what is known without measuring.
 *
 * A class is one device with one model whose steps were measured. Steps of few tokens take as long as reading
 * the weights, so they scale by bytes; steps of many tokens take as long as their operations; between the two
 * the scale goes from one to the other. A layer takes some time however small it is. A guess is within a
 * factor of 2 where the class fits, and cost_learn.h corrects it from the first step on.
 *
 * Pure. Thread: any. */
#ifndef TD_SCHEDULER_COST_GUESS_H
#define TD_SCHEDULER_COST_GUESS_H

#include "scheduler/cost_model.h"

/* A model on a device, as far as steps take their time by it. */
typedef struct td_cost_basis {
  double weight_bytes;   /* as the device reads them */
  double token_flop;     /* products of a token, the output head apart */
  double kv_token_bytes; /* of all layers */
  double pair_flop;      /* attention of a (query, key) pair, of all layers */
  double n_layers;
  double bytes_us, flop_us; /* what the device reads and computes in a microsecond */
} td_cost_basis;

typedef struct td_cost_class {
  const td_cost_model *cost;
  td_cost_basis basis;           /* what `cost` was measured on */
  double bytes_until, flop_from; /* tokens: up to the former, weights are read; from the latter, computed */
  double layer_us;               /* no layer takes less */
} td_cost_class;

/* H200 with Llama-3-8B in bf16, for GPUs; a core of an AMD EPYC with SmolLM2-135M in Q4_1, for CPUs. */
extern const td_cost_class td_cost_class_gpu, td_cost_class_cpu;

/* The class's table for another device or model. All of `to` is > 0. */
td_cost_model td_cost_guess(const td_cost_class *c, const td_cost_basis *to);
/* How far off that may be, as cost_learn.h has it: by as much as it was scaled. From TD_COST_UNSURE_LEARNED,
 * for the class itself, to TD_COST_UNSURE_GUESSED. */
double td_cost_guess_unsure(const td_cost_class *c, const td_cost_basis *to);

#endif
