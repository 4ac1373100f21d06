/* The cost model of a device with a model, and how much KV fits: measured, built in, or derived from those.
 *
 * A calibration belongs to one device and one model. For another model on the same device, the built-in
 * cost model is scaled by what the parts of a step depend on (parameters, KV bytes, heads). For two
 * devices the work is halved and measured all-reduces are added. Both are estimates: README.md says how
 * far they go. */
#ifndef TD_CAPACITY_DEVICE_H
#define TD_CAPACITY_DEVICE_H

#include "models/model_desc.h"
#include "scheduler/cost_model.h"

typedef struct td_device {
  char name[96];
  td_cost_model cost;
  td_model_desc shape;
  double memory_bytes;   /* of one GPU; 0: not known, and n_kv_tokens is given */
  double weight_bytes;   /* bf16 */
  double kv_token_bytes; /* all layers, bf16 */
  uint64_t n_kv_tokens;  /* KV tokens that fit */
  uint32_t tensor_parallel;
  bool is_cpu; /* from its calibration; a CPU has no tensor parallelism */
} td_device;

/* The built-in H200 with a model by name. "llama3-8b" was measured, other models are scaled. */
TD_MUST_CHECK td_status td_device_h200(const char *model, td_device *out, td_error *err);
/* Sets the memory of each GPU, and with it n_kv_tokens. */
void td_device_set_memory(td_device *d, double bytes);
/* Two GPUs of one host as one: every matrix and every head is split, with two all-reduces a layer. */
td_device td_device_tp2(const td_device *one);
/* The time of an all-reduce of n_rows rows of `width` bf16 elements between two H200s of one host. */
double td_device_all_reduce_us(double n_rows, uint32_t width);

#endif
