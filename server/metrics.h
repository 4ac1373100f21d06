/* Counters and histograms for /metrics, in Prometheus' text format, under the names that vLLM uses.
 *
 * Every label is one of a closed set. Loop thread only. */
#ifndef TD_SERVER_METRICS_H
#define TD_SERVER_METRICS_H

#include <stdint.h>

#include "common/buf.h"
#include "engine/engine.h"
#include "server/kv_events.h"
#include "server/tenant.h"

enum { TD_HISTOGRAM_BORDERS_MAX = 24 };

typedef struct td_histogram {
  const double *borders; /* ascending, static */
  uint32_t n_borders;
  uint64_t counts[TD_HISTOGRAM_BORDERS_MAX + 1]; /* not cumulative; the last: above all borders */
  double sum;
} td_histogram;

void td_histogram_observe(td_histogram *h, double value, uint64_t times);

typedef enum td_finished {
  TD_FINISHED_STOP,
  TD_FINISHED_LENGTH,
  TD_FINISHED_ABORT,
  TD_FINISHED_ERROR
} td_finished;

/* Why a connection was ended by our doing. */
typedef enum td_cut {
  TD_CUT_STALL, /* the client does not read */
  TD_CUT_HEAD_TIMEOUT,
  TD_CUT_BODY_RATE,
  TD_CUT_BODY_TIMEOUT,
  TD_CUT_HELD, /* its unread answer takes memory that others need */
  TD_CUT_MEMORY,
  TD_CUT_KINDS
} td_cut;

typedef struct td_metrics {
  td_histogram ttft, inter_token, e2e, queue, queue_predicted;
  uint64_t prompt_tokens, generation_tokens;
  uint64_t finished[4];
  uint64_t timeouts[2];  /* of calls: never started, cut */
  uint64_t responses[6]; /* by hundreds of the status */
  uint64_t connections_refused;
  uint64_t connections_cut[TD_CUT_KINDS];
  uint64_t steps_missed; /* by watchers */
} td_metrics;

void td_metrics_init(td_metrics *m);

/* What the page needs beside the counters. info NULL: not loaded yet. */
typedef struct td_metrics_view {
  const td_engine_info *info;
  const td_engine_stats *stats;
  double step_error_median, step_error_p99;
  const char *model_name;
  uint32_t n_conns, queued_calls, n_watchers;
  uint64_t held_bytes;
  const td_tenant *accounts;           /* by account, those of keys; NULL: no keys are asked */
  uint32_t only_account;               /* of whom usage and lengths are told; 0: of all */
  const td_engine_gpu *gpu;            /* NULL: nothing is known of one */
  const td_kv_events_count *kv_events; /* NULL: none are published */
} td_metrics_view;

void td_metrics_render(const td_metrics *m, const td_metrics_view *v, td_buf *out);

#endif
