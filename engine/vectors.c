/* Embeddings: with option pooling, the engine makes a vector of each prompt and generates nothing.
 *
 * Its only program pools over the tokens of each row (models/model.h), so every prompt is computed from its
 * first token (td_sched_request.computes_all). A request ends with the step that ends its prompt; the token
 * that the scheduler commits for it is never read. */
#include "engine/internal.h"

#include <math.h>

td_status td_engine_make_program(td_engine *e, td_error *err)
{
  if (!td_engine_embeds(e))
    return td_model_program(e->model, e->kv, &e->program, err);
  td_pooling pooling = strcmp(e->options.pooling, "mean") == 0 ? TD_POOL_MEAN : TD_POOL_LAST;
  return td_model_embedding(e->model, e->kv, pooling, e->n_slots, &e->program, err);
}

/* For all slots: vectors, and for mean pooling their sums. */
uint64_t td_engine_vectors_bytes(const td_engine *e)
{
  uint64_t n = (uint64_t)e->n_slots * e->desc.width;
  return !td_engine_embeds(e) ? 0 : n * (strcmp(e->options.pooling, "mean") == 0 ? 12 : 4);
}

static bool is_finite(const float *v, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++)
    if (!isfinite(v[i]))
      return false;
  return true;
}

td_status td_engine_copy_vectors(td_engine *e, td_error *err)
{
  const td_plan *plan = e->plan;
  size_t bytes = e->desc.width * sizeof(float);
  if (!td_engine_embeds(e))
    return TD_OK;
  td_devptr vectors = td_program_buffer_at(e->program, "vectors");
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    uint32_t slot = td_engine_slot_of(plan, i);
    td_slot *s = &e->slots[slot];
    if (!s->active || plan->logits[i].target != TD_SAMPLE_HERE)
      continue;
    TD_TRY(e->backend->ops->download(e->backend, td_devptr_at(vectors, slot * bytes), bytes, s->vector, err));
    s->error = is_finite(s->vector, e->desc.width) ? NULL : "the model's output is not a number";
  }
  return TD_OK;
}
