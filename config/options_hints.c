/* Error messages for unknown options: the equivalent option here, or a similar name. */
#include "config/options_table.h"

#include <ctype.h>
#include <string.h>

/* Options of other servers (llama.cpp, vLLM, SGLang, TGI), and options that earlier versions had. here: our
 * option; NULL: there is none. differs: what else the operator should know. */
static const struct {
  const char *theirs, *here, *differs;
} peers[] = {
    {"tbt_target_ms", NULL,
     "removed: tbt_slo_ms is the most that a step with prompts takes; how long it takes below that follows "
     "who "
     "waits"},
    {"ttft_target_ms", NULL,
     "removed: a prompt waits for shorter ones by slack_percent; a request's ttft_timeout_ms lets it go "
     "first"},
    {"record_ms", "capture_ms", "by its new name"},
    {"attention", NULL,
     "removed: the daemon always chooses by predicted time; tandem-bench attention --policies compares"},
    /* the model */
    {"-m", "model", NULL},
    {"--model-path", "model", NULL},
    {"--model-id", "model", "a path, or what tandem-pull fetched"},
    {"-hf", "model", "a path, or what tandem-pull fetched"},
    {"--hf-repo", "model", "a path, or what tandem-pull fetched"},
    {"-mu", "model", "a path, or what tandem-pull fetched"},
    {"--model-url", "model", "a path, or what tandem-pull fetched"},
    {"-a", "served_model_name", NULL},
    {"--alias", "served_model_name", NULL},
    {"--chat-template-file", "chat_template", NULL},
    {"--tokenizer", NULL, "the tokenizer is the model's own"},
    {"--dtype", NULL, "weights are used as the model's files have them, on a GPU as bf16"},
    {"-q", NULL, "the model's files say it"},
    {"--quantization", NULL, "the model's files say it"},
    {"--trust-remote-code", NULL, "no code of a model is run"},
    {"--temp", "temperature", NULL},
    /* clients */
    {"--host", "listen", "HOST:PORT in one"},
    {"--hostname", "listen", "HOST:PORT in one"},
    {"--port", "listen", "HOST:PORT in one"},
    {"-p", "listen", "HOST:PORT in one"},
    {"--uds", "listen", "unix:PATH"},
    {"--bind", "listen", "HOST:PORT"},
    {"--api-key", "api_key_file",
     "a file with one key a line, so that no key stands in the list of processes"},
    {"--allowed-origins", "cors_origin", "with commas between, not JSON"},
    {"--ssl-keyfile", NULL, "put a proxy in front, which speaks TLS"},
    {"--ssl-certfile", NULL, "put a proxy in front, which speaks TLS"},
    {"--ssl-key-file", NULL, "put a proxy in front, which speaks TLS"},
    {"--ssl-cert-file", NULL, "put a proxy in front, which speaks TLS"},
    {"--threads-http", "workers", NULL},
    {"-to", "sse_stall_ms", "ms, of a client that does not read; requests have timeout_ms"},
    {"--timeout", "sse_stall_ms", "ms, of a client that does not read; requests have timeout_ms"},
    /* memory and context */
    {"--max-model-len", "context_tokens", NULL},
    {"--context-length", "context_tokens", NULL},
    {"--max-total-tokens", "context_tokens", "for each request"},
    {"-c", "context_tokens", "for each request, not for all of them together"},
    {"--ctx-size", "context_tokens", "for each request, not for all of them together"},
    {"--gpu-memory-utilization", "gpu_memory_percent", "in percent: 90, not 0.9"},
    {"--mem-fraction-static", "gpu_memory_percent", "in percent: 90, not 0.9"},
    {"--cuda-memory-fraction", "gpu_memory_percent", "in percent: 90, not 0.9"},
    {"--kv-cache-memory-bytes", "kv_bytes", NULL},
    {"--kv-cache-memory", "kv_bytes", NULL},
    {"--block-size", "page_tokens", NULL},
    {"--page-size", "page_tokens", NULL},
    {"--enable-prefix-caching", NULL, "prefixes are always shared"},
    {"--no-enable-prefix-caching", NULL,
     "prefixes are always shared; a request's cache_salt keeps them apart"},
    {"--kv-events-config", "kv_events",
     "an address; kv_events_replay and kv_events_topic are options of their own"},
    {"--disable-radix-cache", NULL, "prefixes are always shared; a request's cache_salt keeps them apart"},
    {"--cache-prompt", NULL, "prefixes are always shared"},
    /* steps */
    {"--max-num-seqs", "running_requests", NULL},
    {"--max-running-requests", "running_requests", NULL},
    {"-np", "running_requests", "memory is not divided by it"},
    {"--parallel", "running_requests", "memory is not divided by it"},
    {"--max-num-batched-tokens", "step_tokens", NULL},
    {"--max-batch-prefill-tokens", "step_tokens", NULL},
    {"--chunked-prefill-size", "step_tokens", NULL},
    {"-b", "step_tokens", NULL},
    {"--batch-size", "step_tokens", NULL},
    {"-ub", "step_tokens", NULL},
    {"--ubatch-size", "step_tokens", NULL},
    {"--max-concurrent-requests", "queue_requests", NULL},
    {"--max-queued-requests", "queue_requests", "running ones count too"},
    {"--enable-chunked-prefill", NULL, "prompts are always computed in chunks"},
    {"-cb", NULL, "requests are always batched continuously"},
    {"--cont-batching", NULL, "requests are always batched continuously"},
    {"--schedule-policy", "policy", NULL},
    {"--scheduling-policy", "policy", "requests have a priority in any case"},
    /* devices */
    {"-ngl", "backend", "auto, cpu or cuda: all layers run in one place"},
    {"--gpu-layers", "backend", "auto, cpu or cuda: all layers run in one place"},
    {"--n-gpu-layers", "backend", "auto, cpu or cuda: all layers run in one place"},
    {"-t", "threads", NULL},
    {"-mg", "device", NULL},
    {"--main-gpu", "device", NULL},
    {"-tp", NULL, "a daemon uses one GPU"},
    {"--tp", NULL, "a daemon uses one GPU"},
    {"--tp-size", NULL, "a daemon uses one GPU"},
    {"--tensor-parallel-size", NULL, "a daemon uses one GPU"},
    {"-pp", NULL, "a daemon uses one GPU"},
    {"--pipeline-parallel-size", NULL, "a daemon uses one GPU"},
    {"-dp", NULL, "a daemon uses one GPU: start one for each"},
    {"--data-parallel-size", NULL, "a daemon uses one GPU: start one for each"},
    {"--num-shard", NULL, "a daemon uses one GPU"},
    {"--enforce-eager", "capture_ms", "0: no step is captured as a CUDA graph"},
    {"--disable-cuda-graph", "capture_ms", "0: no step is captured as a CUDA graph"},
    {"--seed", NULL, "a request has its own seed; dummy_seed is that of made-up weights"},
    /* log */
    {"-v", "log_level", "debug; the version is -V"},
    {"--verbose", "log_level", "debug"},
    {"--uvicorn-log-level", "log_level", NULL},
    {"--metrics", NULL, "GET /metrics is always there"},
};

const char *td_option_spelled(const char *name, int32_t from, char text[TD_OPTION_KEY_BYTES])
{
  const char *before = from == TD_FROM_COMMAND_LINE ? "--" : from == TD_FROM_ENVIRONMENT ? "TANDEM_" : "";
  snprintf(text, TD_OPTION_KEY_BYTES, "%s%s", before, name);
  for (char *c = text + strlen(before); *c; c++)
    if (from == TD_FROM_COMMAND_LINE)
      *c = *c == '_' ? '-' : *c;
    else if (from == TD_FROM_ENVIRONMENT)
      *c = (char)toupper((unsigned char)*c);
  return text;
}

/* ---- names that are nearly the same ---- */

static char folded(char c) { return c == '-' ? '_' : (char)tolower((unsigned char)c); }

static unsigned least(unsigned a, unsigned b) { return a < b ? a : b; }

/* Counts letters that differ, are missing, are extra, or are swapped with the next one. Both strings are
 * shorter than TD_OPTION_KEY_BYTES. */
static unsigned distance(const char *a, const char *b)
{
  unsigned rows[3][TD_OPTION_KEY_BYTES + 1], n_a = (unsigned)strlen(a), n_b = (unsigned)strlen(b);
  for (unsigned j = 0; j <= n_b; j++)
    rows[0][j] = j;
  for (unsigned i = 1; i <= n_a; i++) {
    unsigned *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    now[0] = i;
    for (unsigned j = 1; j <= n_b; j++) {
      unsigned differs = folded(a[i - 1]) != folded(b[j - 1]);
      now[j] = least(least(now[j - 1], last[j]) + 1, last[j - 1] + differs);
      if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]))
        now[j] = least(now[j], before[j - 2] + 1);
    }
  }
  return rows[n_a % 3][n_b];
}

const char *td_option_nearest(const char *key, bool flags)
{
  size_t n = strlen(key);
  const char *nearest = NULL;
  if (n >= TD_OPTION_KEY_BYTES)
    return NULL;
  unsigned best = n < 3 ? 1 : n < 6 ? 2 : 3; /* the distance must be smaller than this */
  for (int i = 0; i < td_n_option_rows + (flags ? td_n_option_flags : 0); i++) {
    bool flag = i >= td_n_option_rows;
    const char *name = flag ? td_option_flags[i - td_n_option_rows].name : td_option_rows[i].name;
    if (!flag && td_option_rows[i].kind == TD_OPTION_SECTION)
      continue;
    unsigned d = distance(key, name);
    if (d < best) {
      best = d;
      nearest = name;
    }
  }
  return nearest;
}

/* ---- the message ---- */

/* peers[] has options as on the command line; a file omits their leading dashes. */
static bool is_theirs(const char *theirs, const char *written, int32_t from)
{
  if (from != TD_FROM_COMMAND_LINE || *written != '-')
    return strncmp(theirs, "--", 2) == 0 ? td_option_key_equal(theirs + 2, written)
                                         : td_option_key_equal(theirs, written);
  return td_option_key_equal(theirs, written) ||
         (strncmp(written, "--", 2) == 0 && td_option_key_equal(theirs, written + 2));
}

static const td_limit *limit_of(const char *key)
{
  for (int i = 0; i < TD_LIMIT_COUNT; i++)
    if (td_option_key_equal(key, td_limits[i].name))
      return &td_limits[i];
  return NULL;
}

td_status td_option_unknown(const char *written, const char *where, int32_t from, td_error *err)
{
  char name[TD_OPTION_KEY_BYTES], cut[TD_OPTION_KEY_BYTES + 20];
  const char *key = written + strspn(written, from == TD_FROM_COMMAND_LINE ? "-" : "");
  snprintf(cut, sizeof cut, "%.80s", written); /* show at most 80 bytes */
  for (size_t i = 0; i < sizeof peers / sizeof *peers; i++)
    if (is_theirs(peers[i].theirs, written, from)) {
      const char *here = peers[i].here, *differs = peers[i].differs;
      return td_fail_param(err, TD_ERR_CONFIG, key, "%s: unknown option '%s'; %s%s%s%s", where, cut,
                           here ? "here: " : "", here ? td_option_spelled(here, from, name) : "",
                           here && differs ? ", " : "", differs ? differs : "");
    }
  const td_limit *l = limit_of(key);
  if (l)
    return td_fail_param(err, TD_ERR_CONFIG, key, "%s: unknown option '%s'; it is %s", where, cut,
                         l->kind == TD_LIMIT_KIND_REQUEST ? "a field of requests" : "a bound that is fixed");
  const char *nearest = td_option_nearest(key, from == TD_FROM_COMMAND_LINE);
  if (nearest)
    return td_fail_param(err, TD_ERR_CONFIG, key, "%s: unknown option '%s'; did you mean %s?", where, cut,
                         td_option_spelled(nearest, from, name));
  return td_fail_param(err, TD_ERR_CONFIG, key, "%s: unknown option '%s' (see --help)", where, cut);
}
