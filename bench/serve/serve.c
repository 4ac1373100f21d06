/* tandem-bench serve: a load generator for OpenAI-compatible servers. This file has the command line and the
 * output; run.c sends requests, record.c counts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bench/commands.h"
#include "bench/serve/run.h"
#include "loadgen/report.h"
#include "loadgen/tool.h"

static const char about[] =
    "Sends streaming completions to an OpenAI-compatible server and measures what a client sees.\n"
    "Arrivals: --rate (Poisson; several rates make several runs), --streams (closed loop), "
    "--trace (Mooncake\n"
    "JSONL) or --preset. Lengths: N, uniform:A:B, lognormal:MEAN:SD[:MIN:MAX], normal:MEAN:SD[:MIN:MAX], "
    "exp:MEAN[:MIN:MAX].";

typedef struct serve {
  const char *url, *model, *rates, *streams, *trace, *preset, *in, *out, *json, *tokens_file, *key_file,
      *extra, *label;
  double seconds, n_requests, seed, drain, speed, warm, timeout, temperature, first_id, vocab, slo_ttft,
      slo_tbt, stall, stall2;
  bool ignore_eos, text, return_token_ids, no_usage;
  char found_model[256];
  td_cell cells[TD_CELLS_MAX];
  size_t n_cells;
  uv_loop_t loop;
  td_http_client *http;
  td_report report;
  FILE *tokens;
} serve;

static void check(td_status st, const td_error *err)
{
  if (st == TD_OK)
    return;
  fprintf(stderr, "tandem-bench serve: %s\n", err->message);
  exit(st == TD_ERR_CONFIG ? 64 : 1);
}

/* ---- options to cells ---- */

static td_cell *add_cell(serve *s, const char *format, double v)
{
  if (s->n_cells == TD_CELLS_MAX)
    td_tool_die("more than %d runs", TD_CELLS_MAX);
  td_cell *c = &s->cells[s->n_cells++];
  snprintf(c->name, sizeof c->name, format, v);
  c->drain_s = s->drain;
  return c;
}

static void make_cells(serve *s)
{
  td_error err;
  double list[TD_CELLS_MAX];
  size_t n = 0;
  td_load_spec spec = {.seed = (uint64_t)s->seed, .max_requests = (size_t)s->n_requests};
  if ((s->streams != NULL) + (s->trace != NULL) + (s->preset != NULL) + (s->rates && !s->preset) != 1)
    td_tool_die("give one of --rate, --streams, --trace and --preset (--rate may go with --preset)");
  if (s->rates || s->streams)
    check(td_tool_read_list(s->rates ? s->rates : s->streams, list, TD_CELLS_MAX, &n, &err), &err);
  check(td_load_read_length(s->in, &spec.in, &err), &err);
  check(td_load_read_length(s->out, &spec.out, &err), &err);
  for (size_t i = 0; i < n; i++)
    if (!(list[i] > 0) || (s->streams && list[i] > 65536))
      td_tool_die("'%s': not above 0, or too large", s->rates ? s->rates : s->streams);
  if (s->preset) {
    check(td_preset_cells(s->preset, list, n, s->seconds, spec.seed, s->cells, &s->n_cells, &err), &err);
  } else if (s->trace) {
    td_cell *c = add_cell(s, "trace x%g", s->speed);
    check(td_load_read_trace(&c->load, s->trace, s->speed, spec.max_requests, &err), &err);
    c->seconds = s->seconds;
  } else {
    for (size_t i = 0; i < n; i++) {
      td_cell *c = add_cell(s, s->rates ? "%g req/s" : "%g streams", list[i]);
      spec.rate = c->rate = s->rates ? list[i] : 0;
      c->streams = s->rates ? 0 : (uint32_t)list[i];
      spec.seconds = c->seconds = s->seconds > 0 || s->n_requests > 0 ? s->seconds : s->rates ? 60 : 0;
      if (s->rates && s->seconds <= 0 && s->n_requests > 0)
        spec.seconds = INFINITY;
      if (s->streams) /* with --seconds, more than needed; else --requests, or one for each stream */
        spec.max_requests =
            s->n_requests > 0 ? (size_t)s->n_requests : c->streams * (s->seconds > 0 ? 1000u : 1u);
      td_load_make(&c->load, &spec);
    }
  }
}

/* ---- the server's model ---- */

typedef struct probe {
  td_buf body;
  int status;
  bool ended;
  char detail[160];
} probe;

static void probe_status(void *arg, int code) { ((probe *)arg)->status = code; }
static void probe_bytes(void *arg, const char *bytes, size_t n)
{
  td_buf_append(&((probe *)arg)->body, bytes, n);
}
static void probe_end(void *arg, td_http_end why, const char *detail)
{
  probe *p = arg;
  p->ended = true;
  snprintf(p->detail, sizeof p->detail, "%s", detail ? detail : "");
}

static void find_model(serve *s)
{
  probe p = {0};
  td_buf_init(&p.body, 1 << 20);
  td_http_send(s->http, "/v1/models", NULL, &(td_http_handlers){probe_status, probe_bytes, probe_end}, &p);
  while (!p.ended && uv_run(&s->loop, UV_RUN_ONCE))
    ;
  if (p.status == 0)
    td_tool_die("%s: %s", s->url, *p.detail ? p.detail : "no answer");
  cJSON *o = p.status == 200 && p.body.data ? cJSON_ParseWithLength(p.body.data, p.body.len_bytes) : NULL;
  const cJSON *id = cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(o, "data"), 0), "id");
  if (!cJSON_IsString(id))
    td_tool_die("%s/v1/models answered %d and names no model: give --model", s->url, p.status);
  snprintf(s->found_model, sizeof s->found_model, "%s", id->valuestring);
  s->model = s->found_model;
  cJSON_Delete(o);
  td_buf_deinit(&p.body);
}

/* ---- output ---- */

static cJSON *print_row(serve *s, const td_cell *c, const td_record_measures *measured)
{
  const td_measures *m = &measured->all;
  const td_report_field fields[] = {
      {"name", "run", -18, 0, 0, c->name},
      {NULL, "done", 6, 0, (double)m->n_done, NULL},
      {NULL, "failed", 6, 0, (double)(m->n_sent - m->n_done), NULL},
      {NULL, "out tok/s", 9, 1, m->out_tokens_per_s, NULL},
      {NULL, "req/s", 8, 2, m->requests_per_s, NULL},
      {NULL, "TTFT p50", 10, TD_REPORT_MS, m->ttft.p50, NULL},
      {NULL, "p90", 8, TD_REPORT_MS, m->ttft.p90, NULL},
      {NULL, "p99", 8, TD_REPORT_MS, m->ttft.p99, NULL},
      {NULL, "TBT p50", 10, TD_REPORT_MS, m->tbt.p50, NULL},
      {NULL, "p90", 8, TD_REPORT_MS, m->tbt.p90, NULL},
      {NULL, "p99", 8, TD_REPORT_MS, m->tbt.p99, NULL},
      {NULL, "max", 8, TD_REPORT_MS, m->tbt.max, NULL},
      {NULL, "e2e p50", 11, TD_REPORT_MS, m->e2e.p50, NULL},
      {NULL, "stalled", 7, 0, (double)m->n_stalled[0], NULL},
      {NULL, "good", 6, TD_REPORT_PERCENT, td_measures_goodput_share(m), NULL},
      {"rate", NULL, 0, 0, c->rate, NULL},
      {"streams", NULL, 0, 0, c->streams, NULL},
  };
  cJSON *o = td_report_row(&s->report, fields, sizeof fields / sizeof *fields);
  if (measured->in_step && c->streams > 0)
    printf("%-18s while all decode: TBT p50 %.3f p99 %.3f ms, %.1f tok/s\n", "", measured->in_step_tbt.p50,
           measured->in_step_tbt.p99, measured->in_step_tokens_per_s);
  fflush(stdout);
  return o;
}

static size_t warm_failures(const td_run_result *r)
{
  size_t n = 0;
  for (size_t i = 0; i < r->n; i++)
    n += r->records[i].warm && r->records[i].result != TD_RESULT_DONE;
  return n;
}

static void print_notes(const td_run_result *r, const td_record_measures *m, double late_p99,
                        double cpu_share)
{
  if (warm_failures(r) > 0) /* then the server lacks what they should have prepared */
    printf("  WARNING: %zu of the requests before the counted ones failed\n", warm_failures(r));
  for (int i = TD_RESULT_UNFINISHED; i < TD_RESULTS; i++) {
    const char *detail = "";
    for (size_t k = 0; k < r->n && !*detail; k++)
      detail = r->records[k].result == (td_request_result)i ? r->records[k].detail : "";
    if (m->all.by_result[i] > 0)
      printf("  %zu %s%s%s\n", m->all.by_result[i], td_request_result_names[i], *detail ? ": " : "", detail);
  }
  if (m->n_short > 0)
    printf("  %zu answers were shorter than asked for (%llu of %llu tokens came): --ignore-eos, where the "
           "server knows it\n",
           m->n_short, (unsigned long long)m->all.tokens_out, (unsigned long long)m->tokens_asked);
  if (m->n_merged > 0)
    printf("  %llu of %llu tokens had no event of their own (several in one, or no text yet): gaps are "
           "between events\n",
           (unsigned long long)m->n_merged, (unsigned long long)m->all.tokens_out);
  if (!m->all_usage && m->all.n_done > 0)
    printf("  the server tells no usage: tokens are counted by %s\n",
           m->all_counted ? "token ids" : "events");
  if (cpu_share > 0.7)
    printf("  WARNING: this program used %.0f %% of a core: it may be what is measured\n", cpu_share * 100);
  if (late_p99 > 5)
    printf("  WARNING: requests were sent late (p99 %.1f ms): this machine was too busy\n", late_p99);
}

static void add_own_cost(cJSON *o, td_run_result *r, double *late_p99, double *cpu_share)
{
  td_stats_summary late = td_stats_summarise(&r->late_ms);
  cJSON *own = cJSON_AddObjectToObject(o, "generator");
  *late_p99 = late.n > 0 ? late.p99 : 0;
  *cpu_share = r->wall_s > 0 ? r->cpu_s / r->wall_s : 0;
  cJSON_AddNumberToObject(own, "share_of_a_core", round(*cpu_share * 1e4) / 1e4);
  cJSON_AddNumberToObject(own, "sent_late_ms_p99", round(*late_p99 * 1e3) / 1e3);
  cJSON_AddNumberToObject(own, "sent_late_ms_max", late.n > 0 ? round(late.max * 1e3) / 1e3 : 0);
  cJSON_AddNumberToObject(own, "most_open", r->most_open);
  cJSON_AddNumberToObject(own, "connections_opened", (double)r->http.n_opened);
  cJSON_AddNumberToObject(own, "connections_reused", (double)r->http.n_reused);
  cJSON_AddNumberToObject(own, "requests_sent_again", (double)r->http.n_retried);
  cJSON_AddNumberToObject(own, "bytes_in", (double)r->http.bytes_in);
  cJSON_AddNumberToObject(own, "bytes_out", (double)r->http.bytes_out);
}

static void write_tokens(FILE *f, const td_cell *c, const td_run_result *r)
{
  for (size_t i = 0; f && i < r->n; i++) {
    const td_record *rec = &r->records[i];
    fprintf(f,
            "{\"run\":\"%s\",\"due_s\":%.6f,\"sent_s\":%.6f,\"in\":%u,\"out\":%u,\"outcome\":\"%s\",\"warm\":"
            "%s,\"token_s\":[",
            c->name, rec->due_s, rec->sent_s, rec->n_in, rec->n_out, td_request_result_names[rec->result],
            rec->warm ? "true" : "false");
    for (size_t k = 0; k < rec->n_token_events; k++)
      fprintf(f, "%s%.6f", k ? "," : "", rec->token_events[k].at_s);
    fprintf(f, "],\"tokens\":[");
    for (size_t k = 0; k < rec->n_token_events; k++)
      fprintf(f, "%s%u", k ? "," : "", rec->token_events[k].n_tokens);
    fprintf(f, "]}\n");
  }
}

/* ---- runs ---- */

static td_run_config run_config(const serve *s)
{
  return (td_run_config){.model = s->model,
                         .tokens = {(uint32_t)s->first_id, (uint32_t)s->vocab, s->text},
                         .ignore_eos = s->ignore_eos,
                         .return_token_ids = s->return_token_ids,
                         .no_usage = s->no_usage,
                         .temperature = s->temperature,
                         .timeout_s = s->timeout,
                         .extra = s->extra};
}

static void warm_up(serve *s)
{
  td_run_result r;
  td_cell c = {.name = "warming up", .streams = (uint32_t)s->warm};
  td_run_config config = run_config(s);
  td_load_spec spec = {.seed = (uint64_t)s->seed + 7,
                       .max_requests = (size_t)s->warm * 2,
                       .in = {TD_LOAD_FIXED, 64, 0, 1, 64},
                       .out = {TD_LOAD_FIXED, 8, 0, 1, 8}};
  if (s->warm < 1)
    return;
  td_load_make(&c.load, &spec);
  td_run_cell(&s->loop, s->http, &config, &c, &r);
  for (size_t i = 0; i < r.n; i++)
    if (r.records[i].result != TD_RESULT_DONE)
      td_tool_die("the warm-up failed: %s (HTTP status %d) %s", td_request_result_names[r.records[i].result],
                  r.records[i].http_status, r.records[i].detail);
  td_run_result_deinit(&r);
  td_load_deinit(&c.load);
}

static bool run_cell(serve *s, const td_cell *c)
{
  td_run_result r;
  td_record_measures m;
  td_run_config config = run_config(s);
  td_measure_config mc = {.window_s = c->seconds,
                          .slo_ttft_ms = s->slo_ttft,
                          .slo_tbt_ms = s->slo_tbt,
                          .stall_ms = {s->stall, s->stall2}};
  double late_p99, cpu_share;
  td_run_cell(&s->loop, s->http, &config, c, &r);
  td_record_measure(r.records, r.n, &mc, &m);
  cJSON *o = print_row(s, c, &m);
  td_record_measures_add(o, &m, &mc);
  cJSON_AddNumberToObject(o, "warm_failed", (double)warm_failures(&r));
  add_own_cost(o, &r, &late_p99, &cpu_share);
  print_notes(&r, &m, late_p99, cpu_share);
  write_tokens(s->tokens, c, &r);
  bool any_done = m.all.n_done > 0;
  td_run_result_deinit(&r);
  return any_done;
}

static void begin_report(serve *s, int argc, char **argv)
{
  td_report_begin(&s->report, "tandem-bench serve", "runs");
  cJSON *o = s->report.json;
  cJSON_AddStringToObject(o, "label", s->label ? s->label : s->model);
  td_tool_add_command(o, argc, argv);
  cJSON_AddStringToObject(o, "model", s->model);
  cJSON_AddStringToObject(o, "ended", "");
  printf("%s, model %s; times in ms\n", s->url, s->model);
}

/* Written after every run, so that no measurement is lost. */
static void write_report(const serve *s)
{
  char when[32];
  time_t t = time(NULL);
  struct tm tm;
  strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
  cJSON_ReplaceItemInObject(s->report.json, "ended", cJSON_CreateString(when));
  td_report_write(&s->report, s->json);
}

static void connect_to(serve *s)
{
  td_error err;
  struct rlimit files;
  td_buf headers;
  td_buf_init(&headers, 0);
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (s->key_file) {
    char key[512] = "";
    FILE *f = fopen(s->key_file, "re");
    if (!f || !fgets(key, sizeof key, f))
      td_tool_die("%s: no key: %m", s->key_file);
    fclose(f);
    td_buf_printf(&headers, "Authorization: Bearer %.*s\r\n", (int)strcspn(key, "\r\n"), key);
  }
  check(td_http_create(&s->loop, s->url, headers.data ? headers.data : "", &s->http, &err), &err);
  td_buf_deinit(&headers);
  if (!s->model)
    find_model(s);
}

static void check_options(const serve *s)
{
  if (!s->url)
    td_tool_die("serve needs --url http://HOST:PORT; --help lists the options");
  if (!(s->first_id >= 0 && s->vocab > s->first_id && s->vocab <= 4e9))
    td_tool_die("--first-id and --vocab: ids go from the one up to the other");
  if (!(s->speed > 0) || s->seconds < 0 || s->n_requests < 0 || s->n_requests > 1e7 || s->seed < 0 ||
      s->warm < 0 || s->warm > 4096 || s->drain < 0 || s->timeout <= 0)
    td_tool_die("a number is negative or too large");
}

int td_bench_serve(int argc, char **argv)
{
  static serve s = {.in = "1024",
                    .out = "128",
                    .seed = 1,
                    .drain = 60,
                    .speed = 1,
                    .warm = 4,
                    .timeout = 600,
                    .first_id = 300,
                    .vocab = 32000,
                    .slo_ttft = 1000,
                    .slo_tbt = 100,
                    .stall = 200,
                    .stall2 = 500};
  const td_arg args[] = {
      {"--url", "URL", "http://HOST:PORT of the server", TD_ARG_TEXT, &s.url},
      {"--model", "ID", "model id (the first of /v1/models)", TD_ARG_TEXT, &s.model},
      {"--rate", "R,...", "open loop: requests/s, Poisson arrivals; one run for each rate", TD_ARG_TEXT,
       &s.rates},
      {"--streams", "N,...", "closed loop: simultaneous streams; one run for each number", TD_ARG_TEXT,
       &s.streams},
      {"--trace", "FILE", "open loop: arrivals and lengths of a Mooncake trace", TD_ARG_TEXT, &s.trace},
      {"--speed", "X", "speed of the trace; 2: twice as fast (1)", TD_ARG_NUMBER, &s.speed},
      {"--preset", "NAME", "one of the presets above", TD_ARG_TEXT, &s.preset},
      {"--seconds", "S", "arrivals end after this time (60 with --rate)", TD_ARG_NUMBER, &s.seconds},
      {"--requests", "N", "most requests of a run (with --streams: one for each stream)", TD_ARG_NUMBER,
       &s.n_requests},
      {"--drain", "S", "end requests that are open this long after the last arrival (60)", TD_ARG_NUMBER,
       &s.drain},
      {"--input", "LENGTH", "prompt tokens (1024)", TD_ARG_TEXT, &s.in},
      {"--output", "LENGTH", "answer tokens (128)", TD_ARG_TEXT, &s.out},
      {"--seed", "N", "seed of arrivals, lengths and prompts (1)", TD_ARG_NUMBER, &s.seed},
      {"--text", NULL, "send prompts as text of about this length, not as token ids", TD_ARG_FLAG, &s.text},
      {"--first-id", "ID", "lowest token id in prompts (300)", TD_ARG_NUMBER, &s.first_id},
      {"--vocab", "N", "token ids in prompts are below this (32000)", TD_ARG_NUMBER, &s.vocab},
      {"--ignore-eos", NULL,
       "send ignore_eos, so that answers have their full length (an extension of vLLM and others)",
       TD_ARG_FLAG, &s.ignore_eos},
      {"--token-ids", NULL, "ask for token ids, and count those (an extension)", TD_ARG_FLAG,
       &s.return_token_ids},
      {"--no-usage", NULL, "do not ask for usage", TD_ARG_FLAG, &s.no_usage},
      {"--temperature", "T", "temperature of requests (0)", TD_ARG_NUMBER, &s.temperature},
      {"--extra", "JSON", "more members of the request body, such as '\"top_k\":1'", TD_ARG_TEXT, &s.extra},
      {"--key-file", "FILE", "file with the API key on its first line", TD_ARG_TEXT, &s.key_file},
      {"--timeout", "S", "longest time of one request (600)", TD_ARG_NUMBER, &s.timeout},
      {"--warm", "N", "streams that warm up the server first, with two short requests each (4)",
       TD_ARG_NUMBER, &s.warm},
      {"--slo-ttft", "MS", "longest time to the first token of a good request (1000)", TD_ARG_NUMBER,
       &s.slo_ttft},
      {"--slo-tbt", "MS", "highest 99th percentile of the time between tokens of a good request (100)",
       TD_ARG_NUMBER, &s.slo_tbt},
      {"--stall", "MS", "a longer time between tokens counts as a stall (200)", TD_ARG_NUMBER, &s.stall},
      {"--stall2", "MS", "a second bound for stalls, in the JSON only (500)", TD_ARG_NUMBER, &s.stall2},
      {"--json", "FILE", "write all figures to this file", TD_ARG_TEXT, &s.json},
      {"--tokens", "FILE", "write one JSON line per request: the time of each token", TD_ARG_TEXT,
       &s.tokens_file},
      {"--label", "NAME", "name of the server in the picture", TD_ARG_TEXT, &s.label},
  };
  char text[4096];
  snprintf(text, sizeof text, "%s\n%s", about, td_preset_help());
  td_tool_args("tandem-bench serve", text, args, sizeof args / sizeof *args, argc, argv);
  check_options(&s);
  make_cells(&s);
  if (s.tokens_file && !(s.tokens = fopen(s.tokens_file, "we")))
    td_tool_die("%s: %m", s.tokens_file);
  uv_loop_init(&s.loop);
  connect_to(&s);
  warm_up(&s);
  begin_report(&s, argc, argv);
  bool all_done = true;
  for (size_t i = 0; i < s.n_cells; i++) {
    all_done &= run_cell(&s, &s.cells[i]);
    td_load_deinit(&s.cells[i].load);
    write_report(&s);
  }
  td_report_end(&s.report, NULL);
  td_http_destroy(s.http);
  uv_loop_close(&s.loop);
  if (s.tokens && fclose(s.tokens) != 0)
    td_tool_die("%s: %m", s.tokens_file);
  return all_done ? 0 : 1;
}
