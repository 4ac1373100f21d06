/* tandem-plan: predicts how many requests a second a daemon can hold, before there is a daemon. README.md
 * says what it assumes. */
#include <math.h>
#include <stdio.h>

#include "capacity/modes.h"

static const char about[] =
    "Simulates the daemon's scheduler on a load, each step taking as long as the cost model says, and prints "
    "the\n"
    "highest rate at which the SLO is held, latencies by rate, and what a second device would bring.\n"
    "The load is --in and --out (lengths: N, uniform:A:B, lognormal:MEAN:SD[:MIN:MAX], normal:..., "
    "exp:MEAN[:MIN:MAX];\n"
    "Poisson arrivals, or --streams), --trace (Mooncake JSONL) or --preset (see tandem-bench serve --help). "
    "scripts/bench_report.py --svg\n"
    "OUT.svg FILE... draws what --json wrote, beside results of tandem-bench serve if you like.";

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
      {"--in", "LENGTH", "prompt tokens (the arXiv-like load of POD-Attention)", TD_ARG_TEXT, &o.in},
      {"--out", "LENGTH", "answer tokens (the same load's)", TD_ARG_TEXT, &o.out},
      {"--trace", "FILE", "a Mooncake trace instead", TD_ARG_TEXT, &o.trace},
      {"--preset", "NAME", "a known load instead", TD_ARG_TEXT, &o.preset},
      {"--streams", "N,...", "closed: so many requests at a time, the next when one has ended; a row each",
       TD_ARG_TEXT, &o.streams},
      {"--requests", "N", "so many (2000; of a trace all; of --streams one a stream)", TD_ARG_NUMBER,
       &o.requests},
      {"--seed", "N", "of lengths and arrivals (1)", TD_ARG_NUMBER, &o.seed},
      {"--rate", "R,...", "requests/s of the curve (shares of the highest held)", TD_ARG_TEXT, &o.rates},
      {"--seconds", "S", "of a preset's arrivals at each --rate, exactly as serve sends them", TD_ARG_NUMBER,
       &o.seconds},
      {"--drain", "S", "cut what is not done so long after arrivals end (0: wait for all)", TD_ARG_NUMBER,
       &o.drain_s},
      {"--model", "NAME", "shape of the model (llama3-8b); others are scaled from it", TD_ARG_TEXT, &o.model},
      {"--calibration", "FILE", "step times as tandemd measured them on a device with a model", TD_ARG_TEXT,
       &o.calibration},
      {"--correction", "A,B",
       "steps without and with prompts take so many times that, instead of what was learned under load and "
       "kept there; 1,1: "
       "as calibrated",
       TD_ARG_TEXT, &o.correction},
      {"--kv-tokens", "N", "KV memory in tokens (from the GPU's memory)", TD_ARG_NUMBER, &o.kv_tokens},
      {"--memory-gib", "N", "memory of a GPU (139.8, an H200)", TD_ARG_NUMBER, &o.memory_gib},
      {"--tp", "1|2", "GPUs that work as one (1)", TD_ARG_NUMBER, &o.tensor_parallel},
      {"--replicas", "N", "daemons that share the load (1)", TD_ARG_NUMBER, &o.replicas},
      {"--policy", "NAME", "as the daemon's option (tandem)", TD_ARG_TEXT, &o.policy},
      {"--tbt-slo-ms", "MS",
       "as the daemon's (50; of a CPU 24 to 100, after the decodes); not what is judged, --slo-tbt",
       TD_ARG_NUMBER, &o.tbt_slo_ms},
      {"--step-tokens", "N", "as the daemon's (4096)", TD_ARG_NUMBER, &o.step_tokens},
      {"--slack-percent", "N", "as the daemon's (100); 0: first come, first served", TD_ARG_NUMBER,
       &o.slack_percent},
      {"--not-shared", NULL, "no request waits for pages that another is computing", TD_ARG_FLAG,
       &o.not_shared},
      {"--running", "N", "running_requests (256)", TD_ARG_NUMBER, &o.running},
      {"--context", "N", "context_tokens (131072)", TD_ARG_NUMBER, &o.context},
      {"--page-tokens", "N", "as the daemon's (16)", TD_ARG_NUMBER, &o.page_tokens},
      {"--queue-requests", "N", "as the daemon's (1024)", TD_ARG_NUMBER, &o.queue_requests},
      {"--queue-tokens", "N", "as the daemon's (4194304)", TD_ARG_NUMBER, &o.queue_tokens},
      {"--not-ahead", NULL, "no step is planned while another runs (a CPU)", TD_ARG_FLAG, &o.not_ahead},
      {"--host-us", "N", "added to each step that was not planned ahead (0)", TD_ARG_NUMBER, &o.host_us},
      {"--front-us", "N", "from the moment a request is due until the scheduler has it (0)", TD_ARG_NUMBER,
       &o.front_us},
      {"--pace", "FILE",
       "how much longer steps took in a run: lines of seconds, 0 or 1 (with prompts), factor; instead of "
       "--correction",
       TD_ARG_TEXT, &o.pace},
      {"--step-times", "FILE", "what the first, second, ... step takes: lines of us", TD_ARG_TEXT,
       &o.step_times},
      {"--log-steps", "FILE", "each step of the run as /v1/steps would tell it, comma separated", TD_ARG_TEXT,
       &o.log_steps},
      {"--slo-tbt", "MS", "99th percentile of the time between tokens (none)", TD_ARG_NUMBER, &o.slo_tbt_ms},
      {"--slo-ttft", "MS", "99th percentile of the time to the first token (10000)", TD_ARG_NUMBER,
       &o.slo_ttft_ms},
      {"--slo-queue", "MS", "median wait for the first step (2000)", TD_ARG_NUMBER, &o.slo_queue_ms},
      {"--no-search", NULL, "only what --rate says; without it the load at its own rate", TD_ARG_FLAG,
       &o.no_search},
      {"--no-second", NULL, "nothing of a second device", TD_ARG_FLAG, &o.no_second},
      {"--compare", NULL, "policies and static chunks beside each other", TD_ARG_FLAG, &o.compare},
      {"--json", "FILE", "results in the form of tandem-bench serve", TD_ARG_TEXT, &o.json},
      {"--label", "NAME", "of this run in the picture (predicted)", TD_ARG_TEXT, &o.label},
  };
  td_tool_args("tandem-plan", about, args, sizeof args / sizeof *args, argc, argv);
  return run(&o, argc, argv);
}
