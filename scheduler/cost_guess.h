/* Guesses a cost model before any step was measured: the table of a device class, scaled to this device and
 * model by what is known without measuring.
 *
 * A class is one device with one model whose steps were measured. Steps of few tokens take as long as reading
 * the weights, so they scale by bytes. Steps of many tokens take as long as their operations, so they scale
 * by FLOP. Between the two the scale is interpolated. A layer takes a least time, however small it is. A
 * guess is within a factor of 2 if the class fits, and cost_learn.h corrects it from the first step on.
 *
 * Pure. Thread: any. */
#ifndef TD_SCHEDULER_COST_GUESS_H
#define TD_SCHEDULER_COST_GUESS_H

#include "scheduler/cost_model.h"

/* The figures of a model on a device that step times depend on. */
typedef struct td_cost_basis {
  double weight_bytes;   /* in the format that the device reads */
  double token_flop;     /* FLOP of a token's GEMMs, without the output head */
  double kv_token_bytes; /* of all layers */
  double pair_flop;      /* attention of a (query, key) pair, in all layers */
  double n_layers;
  double bytes_us, flop_us; /* bytes and FLOP of the device in a microsecond */
} td_cost_basis;

typedef struct td_cost_class {
  const td_cost_model *cost;
  td_cost_basis basis;           /* what `cost` was measured on */
  double bytes_until, flop_from; /* tokens: up to the former, reading weights takes the time; from the
                                  * latter, computing does */
  double layer_us;               /* the least time of a layer */
} td_cost_class;

/* H200 with Llama-3-8B in bf16, for GPUs; a core of an AMD EPYC with SmolLM2-135M in Q4_1, for CPUs. */
extern const td_cost_class td_cost_class_gpu, td_cost_class_cpu;

/* The class's cost model, scaled to another device or model. Every member of `to` must be > 0. */
td_cost_model td_cost_guess(const td_cost_class *c, const td_cost_basis *to);
/* How far off the guess may be (`uncertainty` in cost_learn.h): as much as it was scaled. From
 * TD_COST_UNCERTAINTY_LEARNED, for the class itself, to TD_COST_UNCERTAINTY_GUESSED. */
double td_cost_guess_uncertainty(const td_cost_class *c, const td_cost_basis *to);

#endif
