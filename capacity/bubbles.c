/* SARATHI's pipeline experiment run by this scheduler, beside the paper's figures. */
#include "capacity/curve.h"

#include <stdio.h>

#include "capacity/gpt3.h"

enum { REQUESTS = 10000, LOW = 1024, HIGH = 4096 };
static const double THETA = 0.4, RATIO = 10;

/* What the paper does not say and the figures depend on: added to every stage of every step (launches, slower
 * kernels), and micro-batches per stage. */
static const struct variant {
  const char *name;
  double stage_us;
  uint32_t lanes_per_stage;
} variants[] = {{"as above", 0, 1},
                {"10 ms more in every stage", 10e3, 1},
                {"two micro-batches per stage (twice the KV)", 0, 2},
                {"both", 10e3, 2}};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

typedef struct outcome {
  td_pipeline_result r[TD_GPT3_SCENES];
} outcome;

static td_status run_variant(const td_load *load, const struct variant *v, outcome *out, td_error *err)
{
  for (int i = 0; i < TD_GPT3_SCENES; i++) {
    td_cost_model stage;
    td_pipeline_config c = td_gpt3_config((td_gpt3_scene)i, &stage);
    for (uint32_t k = 0; k < stage.n_points; k++)
      stage.tokens_us[k] += v->stage_us * (c.n_stages == 1 ? c.n_pipelines : 1); /* a replica is all stages */
    if (c.n_stages > 1)
      c.n_lanes *= v->lanes_per_stage;
    TD_TRY(td_pipeline_run(load, &c, &out->r[i], NULL, err));
  }
  return TD_OK;
}

static void print_scenes(const outcome *o)
{
  printf("%-28s %8s %9s %9s %10s %12s %12s %12s\n", "", "all done", "steps", "stage", "bubbles", "bubble/req",
         "p99", "latency p50");
  printf("%-28s %8s %9s %9s %10s %12s %12s %12s\n", "", "s", "", "ms", "of time", "p50 ms", "ms", "s");
  for (int i = 0; i < TD_GPT3_SCENES; i++) {
    const td_pipeline_result *r = &o->r[i];
    printf("%-28s %8.1f %9llu %9.1f %9.1f%% %12.0f %12.0f %12.1f\n", td_gpt3_scene_names[i], r->seconds,
           (unsigned long long)r->n_steps, r->mean_stage_ms, r->bubble_share * 100, r->bubble_ms.p50,
           r->bubble_ms.p99, r->latency_ms.p50 / 1e3);
  }
}

static void print_ratios(const char *name, const outcome *o)
{
  const td_pipeline_result *orca = &o->r[TD_GPT3_ORCA_PIPELINE], *sarathi = &o->r[TD_GPT3_SARATHI_PIPELINE],
                           *replicas = &o->r[TD_GPT3_ORCA_REPLICAS];
  if (sarathi->bubble_ms.p50 > 0)
    printf("%-44s %14.2fx ", name, orca->bubble_ms.p50 / sarathi->bubble_ms.p50);
  else
    printf("%-44s %15s ", name, "none left");
  printf("%14.2fx %14.2fx %16.2fx\n", orca->seconds / sarathi->seconds, orca->seconds / replicas->seconds,
         replicas->seconds / sarathi->seconds);
}

int td_plan_bubbles(const td_scene_options *o, cJSON *runs)
{
  td_load load = {0};
  outcome out[N_VARIANTS];
  td_error err;
  (void)runs;
  td_gpt3_load(&load, o->requests > 0 ? (size_t)o->requests : REQUESTS, LOW, HIGH, THETA, RATIO,
               (uint64_t)o->seed);
  printf("GPT-3 on 64 A100s: %zu requests at once, Zipf (theta %g) lengths %d..%d, prompt:answer %g\n\n",
         load.n, THETA, LOW, HIGH, RATIO);
  td_status st = TD_OK;
  for (int i = 0; i < N_VARIANTS && st == TD_OK; i++)
    st = run_variant(&load, &variants[i], &out[i], &err);
  td_load_deinit(&load);
  if (st != TD_OK)
    return td_plan_failed(&err);
  print_scenes(&out[0]);
  printf("\n%-44s %15s %15s %15s %17s\n", "", "median bubble", "throughput", "throughput", "throughput");
  printf("%-44s %15s %15s %15s %17s\n", "", "Orca/SARATHI", "SARATHI/Orca", "replicas/Orca",
         "SARATHI/replicas");
  printf("%-44s %14.2fx %14.2fx %14.2fx %16.2fx\n", "the paper", 6.29, 1.91, 1.28, 1.48);
  for (int i = 0; i < N_VARIANTS; i++)
    print_ratios(variants[i].name, &out[i]);
  return 0;
}
