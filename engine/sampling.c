/* Sampling data beyond the parameters: arrays that requests point to, and sampler state that a backend makes
 * from the tokens so far. */
#include "engine/internal.h"

#include <string.h>

/* ---- loop thread ---- */

/* Copies the biases, and collects the ids that min_tokens forbids: as in vLLM, all ids that end an answer,
 * with or without ignore_eos. One allocation holds both, so the caller may free its own arrays. */
bool td_engine_copy_sampling_arrays(const td_engine *e, td_slot *s)
{
  td_sampling *p = &s->request.sampling;
  uint32_t n_eos = e->desc.n_eos_ids, n_stop = s->request.n_stop_ids;
  size_t bias_bytes = p->n_bias * sizeof *p->bias;
  p->n_end_ids = p->min_tokens > 0 ? n_eos + n_stop : 0;
  TD_BUG_ON(p->n_end_ids > TD_END_IDS_MAX || p->n_bias > TD_LOGIT_BIAS_MAX);
  if (p->n_bias + p->n_end_ids == 0)
    return true;
  char *arrays = s->sampling_arrays = malloc(bias_bytes + p->n_end_ids * sizeof *p->end_ids);
  if (!arrays)
    return false;
  if (bias_bytes > 0)
    memcpy(arrays, p->bias, bias_bytes);
  p->bias = (const td_logit_bias *)(void *)arrays;
  int32_t *ends = (int32_t *)(void *)(arrays + bias_bytes);
  p->end_ids = ends;
  if (p->n_end_ids > 0) {
    memcpy(ends, e->desc.eos_ids, n_eos * sizeof *ends);
    memcpy(ends + n_eos, s->request.stop_ids, n_stop * sizeof *ends);
  }
  return true;
}

/* ---- engine thread ---- */

void td_engine_prepare_sampling(td_engine *e, const td_plan *plan)
{
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    uint32_t slot = td_engine_slot_of(plan, i);
    const td_slot *s = &e->slots[slot];
    if (plan->logits[i].target != TD_SAMPLE_HERE || !s->active || td_sampling_is_plain(&s->request.sampling))
      continue;
    td_sample_history h = {s->request.tokens, s->request.n_prompt, s->request.n_prompt + s->n_new};
    e->backend->ops->prepare_slot(e->backend, slot, &s->request.sampling, &h);
  }
}
