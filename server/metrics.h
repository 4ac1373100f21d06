/* Counters and histograms for /metrics, in Prometheus' text format. Where vLLM has a metric, ours has its
 * name.
 *
 * Every label has a fixed set of values, so that the number of time series is bounded. Loop thread only. */
#ifndef TD_SERVER_METRICS_H
#define TD_SERVER_METRICS_H

#include <stdint.h>

#include "common/buf.h"
#include "engine/engine.h"
#include "server/kv_events.h"
#include "server/tenant.h"

enum {
  TD_HISTOGRAM_BORDERS_MAX = 24,
  TD_STATUS_CLASSES = 6 /* a status by its first digit, 0 to 5 */
};

typedef struct td_histogram {
  const double *borders; /* upper bounds of the buckets, ascending; static storage */
  uint32_t n_borders;
  uint64_t counts[TD_HISTOGRAM_BORDERS_MAX + 1]; /* not cumulative; the last is above all borders */
  double sum;
} td_histogram;

void td_histogram_observe(td_histogram *h, double value, uint64_t times);

typedef enum td_finished {
  TD_FINISHED_STOP,
  TD_FINISHED_LENGTH,
  TD_FINISHED_ABORT,
  TD_FINISHED_ERROR,
  TD_FINISHED_KINDS
} td_finished;

/* Why the server ended a connection. */
typedef enum td_cut {
  TD_CUT_STALL, /* the client does not read its answer */
  TD_CUT_HEAD_TIMEOUT,
  TD_CUT_BODY_RATE,
  TD_CUT_BODY_TIMEOUT,
  TD_CUT_ANSWER_MEMORY, /* its unread answer takes memory that others need (answer_memory.h) */
  TD_CUT_MEMORY,
  TD_CUT_KINDS
} td_cut;

typedef struct td_metrics {
  td_histogram ttft, inter_token, e2e, queue, queue_predicted;
  uint64_t prompt_tokens, generation_tokens;
  uint64_t finished[TD_FINISHED_KINDS];
  uint64_t timeouts[2]; /* calls that missed a deadline: [0] before their start, [1] while running */
  uint64_t responses[TD_STATUS_CLASSES]; /* by the first digit of the status */
  uint64_t connections_refused;
  uint64_t connections_cut[TD_CUT_KINDS];
  uint64_t steps_missed; /* steps that watchers were too slow to read */
} td_metrics;

void td_metrics_init(td_metrics *m);

/* What /metrics shows besides the counters above. info is NULL while the model is loading. */
typedef struct td_metrics_view {
  const td_engine_info *info;
  const td_engine_stats *stats;
  double step_error_median, step_error_p99;
  const char *model_name;
  uint32_t n_conns, queued_calls, n_watchers;
  uint64_t answer_memory_bytes;
  const td_tenant *accounts; /* indexed by account, set where `key` is; NULL if the daemon asks for no keys */
  uint32_t only_account;     /* shows only this account, and no metrics for operators; 0: shows all */
  const td_engine_gpu *gpu;  /* NULL if there is no GPU, or nothing is known of it */
  const td_kv_events_count *kv_events; /* NULL if no KV events are published */
} td_metrics_view;

void td_metrics_render(const td_metrics *m, const td_metrics_view *v, td_buf *out);

#endif
