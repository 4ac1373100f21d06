/* Pipeline parallelism in simulated time: micro-batches that follow each other through stages, and the time
 * that stages wait for them (bubbles).
 *
 * A pipeline of S stages has as many lanes, one micro-batch each: a scheduler of its own with its share of
 * requests and pages, so that plans of different lanes share nothing and any number of them can be under way.
 * A lane's next step begins when its last one has left the last stage, for its decodes need the tokens.
 * Stages take micro-batches in the order in which they come, and as all go through all stages, that order is
 * the same everywhere. So a step's way through the pipeline can be computed at once, and lanes need only be
 * taken in order of the time at which they are ready.
 *
 * Several pipelines side by side take requests from one queue; one stage and one lane is a replica without a
 * pipeline. */
#ifndef TD_CAPACITY_PIPELINE_H
#define TD_CAPACITY_PIPELINE_H

#include "capacity/lane.h"

typedef struct td_pipeline_config {
  uint32_t n_pipelines, n_stages, n_lanes; /* lanes of each pipeline */
  td_sched_config sched;                   /* of a lane; micro_batch is set here */
  const td_cost_model *stage;              /* a step's time in one stage */
  double send_us, send_us_per_token;       /* from stage to stage */
  bool one_prompt; /* a step computes one prompt at most, as SARATHI's batches and the best case of
                    * iteration-level scheduling do; what the end of a prompt leaves of the budget stays empty
                    */
  double scatter; /* of steps' times, the same in all stages: standard deviation over mean */
  bool padded; /* decode attention reads each KV as far as the longest of the batch */
} td_pipeline_config;

typedef struct td_pipeline_result {
  double seconds;      /* until the last request is done; all are there at the begin */
  double bubble_share; /* of all stages' time until then */
  td_stats_summary
      bubble_ms; /* of a request: what stages waited for the micro-batches that it was in, mean over stages */
  td_stats_summary latency_ms; /* from its first step to its end */
  uint64_t n_steps;
  double mean_stage_ms;
  size_t n_done;
} td_pipeline_result;

/* Due moments are not looked at. done_s: when the i-th request to end was done [load->n]; may be NULL. */
TD_MUST_CHECK td_status td_pipeline_run(const td_load *load, const td_pipeline_config *config,
                                        td_pipeline_result *out, double *done_s, td_error *err);

#endif
