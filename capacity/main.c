/* tandem-plan: predicts how many requests a second a daemon can hold, before there is a daemon. README.md
 * says what it assumes. */
#include <math.h>
#include <stdio.h>

#include "capacity/modes.h"

static const char about[] =
    "Simulates the daemon's scheduler on a load. Each step takes the time that the cost model predicts. "
    "Prints "
    "the\n"
    "highest rate that keeps the SLO, latencies by rate, and the effect of a second device.\n\n"
    "The load is --in and --out (lengths; Poisson arrivals, or --streams), --trace (Mooncake JSONL) or "
    "--preset\n"
    "(see tandem-bench serve --help).\n\n"
    "A length is N, uniform:A:B, lognormal:MEAN:SD[:MIN:MAX], normal:MEAN:SD[:MIN:MAX] or "
    "exp:MEAN[:MIN:MAX].\n"
    "scripts/bench_report.py draws what --json writes.";

static cJSON *begin_json(const td_scenario_options *o, const td_scenario *s, int argc, char **argv)
{
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "tool", "tandem-plan " TD_VERSION);
  cJSON_AddStringToObject(json, "label", o->label ? o->label : "predicted");
  td_tool_add_command(json, argc, argv);
  cJSON_AddStringToObject(json, "device", s->device.name);
  cJSON_AddArrayToObject(json, "highest");
  cJSON_AddArrayToObject(json, "runs");
  return json;
}

static void print_load(const td_scenario *s, bool recorded)
{
  double in = 0, out = 0, n = (double)s->source.load.n;
  for (size_t i = 0; i < s->source.load.n; i++) {
    in += s->source.load.requests[i].n_in;
    out += s->source.load.requests[i].n_out;
  }
  printf("%zu requests, mean %.0f tokens in, %.0f out", s->source.load.n, in / n, out / n);
  if (recorded)
    printf("; recorded at %.3g requests/s, played faster or slower for other rates", s->source.rate);
  printf("\n\n");
}

static void print_scenario(const td_scenario *s)
{
  const td_sched_config *c = &s->replay.daemon.sched;
  printf("%s; %llu KV tokens in pages of %u; policy %s, at most %u rows and %u tokens a step\n",
         s->device.name, (unsigned long long)s->device.n_kv_tokens, c->page_tokens,
         td_policy_names[c->policy], c->max_running, c->step_tokens);
  if (s->device.cost.learned[0] > 0 || s->device.cost.learned[1] > 0)
    printf("steps without and with prompts take %.3f and %.3f times what was calibrated, as the daemon "
           "learned under load and kept\n",
           td_cost_learned(&s->device.cost, false), td_cost_learned(&s->device.cost, true));
}

static int run_mode(const td_scenario_options *o, const td_scenario *s, cJSON *json)
{
  if (s->n_closed > 0)
    return td_capacity_run_streams(o, s, json);
  print_load(s, o->trace != NULL);
  return o->compare ? td_capacity_run_comparison(o, s, json) : td_capacity_run_curve(o, s, json);
}

static int run(const td_scenario_options *o, int argc, char **argv)
{
  static td_scenario scenario; /* static: pointers to its device are kept */
  td_error err;
  if (td_scenario_make(o, &scenario, &err) != TD_OK)
    return td_capacity_fail(&err);
  print_scenario(&scenario);
  cJSON *json = o->json ? begin_json(o, &scenario, argc, argv) : NULL;
  int code = run_mode(o, &scenario, json);
  if (json && code == 0)
    td_tool_write_json(o->json, json);
  cJSON_Delete(json);
  td_scenario_deinit(&scenario);
  return code;
}

int main(int argc, char **argv)
{
  td_scenario_options o = {
      .in = "lognormal:10041:5551:512:31805", .out = "exp:471:20:2000", .seed = 1, .slack_percent = -1};
  const td_arg args[] = {
      {"--in", "LENGTH", "prompt tokens (those of the arXiv-like load of POD-Attention)", TD_ARG_TEXT, &o.in},
      {"--out", "LENGTH", "answer tokens (those of the same load)", TD_ARG_TEXT, &o.out},
      {"--trace", "FILE", "load: a Mooncake trace", TD_ARG_TEXT, &o.trace},
      {"--preset", "NAME", "load: a preset", TD_ARG_TEXT, &o.preset},
      {"--streams", "N,...",
       "load: this many requests at a time; the next starts when one ends; one run each", TD_ARG_TEXT,
       &o.streams},
      {"--requests", "N", "number of requests (2000; of a trace: all; with --streams: one for each stream)",
       TD_ARG_NUMBER, &o.requests},
      {"--seed", "N", "seed of lengths and arrivals (1)", TD_ARG_NUMBER, &o.seed},
      {"--rate", "R,...", "requests/s of the table of latencies (default: fractions of the highest rate)",
       TD_ARG_TEXT, &o.rates},
      {"--seconds", "S", "duration of a preset's arrivals at each --rate, as tandem-bench serve sends them",
       TD_ARG_NUMBER, &o.seconds},
      {"--drain", "S", "end requests that are not done this long after the last arrival (0: wait for all)",
       TD_ARG_NUMBER, &o.drain_s},
      {"--model", "NAME",
       "shape of the model (llama3-8b); step times of other shapes are scaled from that one", TD_ARG_TEXT,
       &o.model},
      {"--calibration", "FILE", "step times that tandemd measured, a file in its cache_dir", TD_ARG_TEXT,
       &o.calibration},
      {"--correction", "A,B",
       "factors on the step times of --calibration, without and with prompts (those that the daemon learned "
       "under load and kept in that file); 1,1: as calibrated",
       TD_ARG_TEXT, &o.correction},
      {"--kv-tokens", "N", "KV memory in tokens (from the GPU's memory)", TD_ARG_NUMBER, &o.kv_tokens},
      {"--memory-gib", "N", "memory of a GPU (139.8, that of an H200)", TD_ARG_NUMBER, &o.memory_gib},
      {"--tp", "1|2", "GPUs with tensor parallelism (1)", TD_ARG_NUMBER, &o.tensor_parallel},
      {"--replicas", "N", "daemons that share the load (1)", TD_ARG_NUMBER, &o.replicas},
      {"--policy", "NAME", "the daemon's option (tandem)", TD_ARG_TEXT, &o.policy},
      {"--tbt-slo-ms", "MS",
       "the daemon's option (50; on a CPU 24 to 100, by the decodes); results are judged by --slo-tbt",
       TD_ARG_NUMBER, &o.tbt_slo_ms},
      {"--step-tokens", "N", "the daemon's option (4096)", TD_ARG_NUMBER, &o.step_tokens},
      {"--slack-percent", "N", "the daemon's option (100); 0: first come, first served", TD_ARG_NUMBER,
       &o.slack_percent},
      {"--not-shared", NULL, "requests do not wait for pages that another is computing", TD_ARG_FLAG,
       &o.not_shared},
      {"--running", "N", "the daemon's option running_requests (256)", TD_ARG_NUMBER, &o.running},
      {"--context", "N", "the daemon's option context_tokens (131072)", TD_ARG_NUMBER, &o.context},
      {"--page-tokens", "N", "the daemon's option (16)", TD_ARG_NUMBER, &o.page_tokens},
      {"--queue-requests", "N", "the daemon's option (1024)", TD_ARG_NUMBER, &o.queue_requests},
      {"--queue-tokens", "N", "the daemon's option (4194304)", TD_ARG_NUMBER, &o.queue_tokens},
      {"--not-ahead", NULL, "no step is planned while another runs, as on a CPU", TD_ARG_FLAG, &o.not_ahead},
      {"--host-us", "N", "host time added to each step that was not planned ahead (0)", TD_ARG_NUMBER,
       &o.host_us},
      {"--front-us", "N", "time from a request's arrival until the scheduler has it (0)", TD_ARG_NUMBER,
       &o.front_us},
      {"--pace", "FILE",
       "factors on step times over a run, instead of --correction: lines of seconds, 0 or 1 (with prompts), "
       "factor",
       TD_ARG_TEXT, &o.pace},
      {"--step-times", "FILE", "times of the first, second, ... step: lines of us", TD_ARG_TEXT,
       &o.step_times},
      {"--log-steps", "FILE", "write each step of the run with the fields of /v1/steps, comma-separated",
       TD_ARG_TEXT, &o.log_steps},
      {"--slo-tbt", "MS", "SLO: highest 99th percentile of the time between tokens (no bound)", TD_ARG_NUMBER,
       &o.slo_tbt_ms},
      {"--slo-ttft", "MS", "SLO: highest 99th percentile of the time to the first token (10000)",
       TD_ARG_NUMBER, &o.slo_ttft_ms},
      {"--slo-queue", "MS", "SLO: highest median wait for the first step (2000)", TD_ARG_NUMBER,
       &o.slo_queue_ms},
      {"--no-search", NULL, "search no highest rate: only --rate, or without it the load's own rate",
       TD_ARG_FLAG, &o.no_search},
      {"--no-second", NULL, "do not simulate a second device", TD_ARG_FLAG, &o.no_second},
      {"--compare", NULL, "compare policies and fixed chunk sizes", TD_ARG_FLAG, &o.compare},
      {"--json", "FILE", "write results in the format of tandem-bench serve", TD_ARG_TEXT, &o.json},
      {"--label", "NAME", "name of this run in the picture (predicted)", TD_ARG_TEXT, &o.label},
  };
  td_tool_args("tandem-plan", about, args, sizeof args / sizeof *args, argc, argv);
  return run(&o, argc, argv);
}
