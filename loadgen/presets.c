/* Presets: loads that others have measured or published, rebuilt from their definitions.
 *
 * The scripts that measured the peers drew from NumPy's generator. arxiv, toolagent and conversation draw in
 * the same order, so that all arrivals and lengths are the same. Token values are our own, but are shared in
 * the same way. Sources: arxiv: the arXiv summarisation load of SARATHI and POD-Attention; toolagent,
 * conversation: PAT, section 8; chat: the distributions of openchat_sharegpt4 in SARATHI, table 2. */
#include "loadgen/cell.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/dummy.h"

static td_cell *add_cell(td_cell *cells, size_t *n, const char *kind, double rate)
{
  td_cell *c = &cells[(*n)++];
  *c = (td_cell){.rate = rate, .drain_s = 60};
  snprintf(c->name, sizeof c->name, rate > 0 ? "%s %g/s" : "%s", kind, rate);
  return c;
}

/* n_streams streams that send `rounds` requests each. */
static td_cell *add_streams(td_cell *cells, size_t *n, const char *name, uint32_t n_streams, uint32_t rounds,
                            uint32_t n_in, uint32_t n_out)
{
  td_cell *c = add_cell(cells, n, name, 0);
  uint32_t which = (uint32_t)*n;
  c->streams = n_streams;
  c->drain_s = 600;
  for (uint64_t i = 0; i < (uint64_t)n_streams * rounds; i++) {
    td_load_add_request(&c->load, 0, n_out);
    td_load_add_segment(&c->load, td_dummy_hash(which, i), n_in);
  }
  return c;
}

/* Makes the cell's requests a warm-up, and adds them once more with answers of n_out tokens. */
static void add_warm_up(td_cell *c, uint32_t n_out)
{
  c->n_warm = (uint32_t)c->load.n;
  for (uint32_t i = 0; i < c->n_warm; i++)
    td_load_repeat_request(&c->load, i, n_out);
}

/* ---- open arrivals ---- */

typedef struct open_preset {
  const char *name, *what;
  double rates[4], seconds, drain_s;
  void (*make)(td_cell *c, uint64_t seed);
} open_preset;

static double clip(double v, double min, double max) { return v < min ? min : v > max ? max : v; }

static void make_arxiv(td_cell *c, uint64_t seed)
{
  enum { N = 560 };
  td_random r;
  double at[N], in[N], sum = 0, s2 = log(1 + 5551.0 / 10041 * (5551.0 / 10041));
  td_random_init(&r, seed);
  for (int i = 0; i < N; i++)
    at[i] = sum += td_random_exponential(&r);
  for (int i = 0; i < N; i++)
    in[i] = clip(exp(log(10041) - s2 / 2 + sqrt(s2) * td_random_normal(&r)), 512, 31805);
  for (int i = 0; i < N; i++) {
    double out = clip(471 * td_random_exponential(&r), 20, 2000);
    if (at[i] / c->rate >= c->seconds)
      continue; /* goes on drawing, so that every rate has the same requests */
    td_load_add_request(&c->load, at[i] / c->rate, (uint32_t)out);
    td_load_add_segment(&c->load, td_dummy_hash(seed, (uint64_t)i), (uint32_t)in[i]);
  }
}

static void skip_ids(td_random *r, int n)
{
  while (n-- > 0)
    td_random_below(r, 128000);
}

/* One of eight prefixes, chosen by Zipf's law, and a private rest. */
static void make_toolagent(td_cell *c, uint64_t seed)
{
  td_random r;
  double at = 0, sum = 0, share[8];
  for (int i = 0; i < 8; i++)
    sum += 1.0 / (i + 1);
  for (int i = 0; i < 8; i++)
    share[i] = (i > 0 ? share[i - 1] : 0) + 1.0 / (i + 1) / sum;
  td_random_init(&r, (seed == 1 ? 100 : seed) + (uint64_t)c->rate);
  skip_ids(&r, 8 * 5120);
  for (uint64_t i = 0;; i++) {
    at += td_random_exponential(&r) / c->rate;
    if (at >= c->seconds)
      return;
    double u = td_random_double(&r);
    uint64_t prefix = 0;
    while (prefix < 7 && share[prefix] <= u)
      prefix++;
    skip_ids(&r, 3500);
    td_load_add_request(&c->load, at, 182);
    td_load_add_segment(&c->load, td_dummy_hash(seed, prefix), 5120);
    td_load_add_segment(&c->load, td_dummy_hash(seed, 1000 + i), 3500);
  }
}

/* Three levels of prefix: 46 tokens common to all requests, 348 for each of four variants, and 2,075 more
 * for each variant. Then 300 tokens of the request's own. */
static void make_conversation(td_cell *c, uint64_t seed)
{
  enum { TOP = 46, MIDDLE = 348, LEAF = 2469 - TOP - MIDDLE };
  td_random r;
  double at = 0;
  td_random_init(&r, (seed == 1 ? 200 : seed) + (uint64_t)c->rate);
  skip_ids(&r, TOP + 4 * MIDDLE + 4 * LEAF);
  for (uint64_t i = 0;; i++) {
    at += td_random_exponential(&r) / c->rate;
    if (at >= c->seconds)
      return;
    uint64_t variant = td_random_below(&r, 4);
    skip_ids(&r, 300);
    td_load_add_request(&c->load, at, 300);
    td_load_add_segment(&c->load, td_dummy_hash(seed, 1), TOP);
    td_load_add_segment(&c->load, td_dummy_hash(seed, 10 + variant), MIDDLE);
    td_load_add_segment(&c->load, td_dummy_hash(seed, 20 + variant), LEAF);
    td_load_add_segment(&c->load, td_dummy_hash(seed, 1000 + i), 300);
  }
}

/* Distributions are fitted to published figures: mean and median of prompts, median and 90th percentile of
 * answers. */
static void make_chat(td_cell *c, uint64_t seed)
{
  double s2 = 2 * log(2340.0 / 1730);
  td_load_spec spec = {.seed = seed,
                       .rate = c->rate,
                       .seconds = c->seconds,
                       .in = {TD_LOAD_LOGNORMAL, 2340, 2340 * sqrt(exp(s2) - 1), 16, 16384},
                       .out = {TD_LOAD_NORMAL, 415, 327, 8, 2048}};
  td_load_make(&c->load, &spec);
}

/* 16,500 tokens for each request. The ratio of prompt to answer is from 8 to 24. */
static void make_pod(td_cell *c, uint64_t seed)
{
  td_random r;
  double at = 0;
  td_random_init(&r, seed);
  for (uint64_t i = 0;; i++) {
    at += td_random_exponential(&r) / c->rate;
    if (at >= c->seconds)
      return;
    double ratio = 8 + 16 * td_random_double(&r);
    uint32_t out = (uint32_t)(16500 / (1 + ratio));
    td_load_add_request(&c->load, at, out);
    td_load_add_segment(&c->load, td_dummy_hash(seed, i), 16500 - out);
  }
}

static const open_preset opens[] = {
    {"arxiv", "long prompts: mean 9.4K in, 450 out, Poisson", {1.5, 2, 2.5, 3}, 90, 12, make_arxiv},
    {"toolagent", "8 shared prefixes of 5,120 + 3,500 private, 182 out", {3, 6}, 60, 8, make_toolagent},
    {"conversation", "2,469 shared in three levels + 300 private, 300 out", {20}, 60, 8, make_conversation},
    {"chat", "mean 2,340 in, 439 out", {4, 8, 12, 16}, 60, 30, make_chat},
    {"pod", "16,500 tokens a request, prompt:answer 8..24", {0.5, 1, 1.5}, 90, 30, make_pod},
};
enum { N_OPENS = sizeof opens / sizeof *opens };

/* ---- closed streams ---- */

/* All streams decode together only from the last prompt's first token to the end of the first answer. If
 * computing the prompts takes longer than an answer, that never happens. Such prompts are therefore computed
 * in a warm-up, with answers of one token, and are then found in the prefix cache. All contexts are then as
 * long as the name of the cell says. */
static void add_decode(td_cell *cells, size_t *n)
{
  enum { ANSWER_TOKENS = 256, MANY_PROMPT_TOKENS = 100000 };
  static const uint32_t shapes[][2] = {{1, 1024},   {4, 1024},   {16, 1024}, {64, 1024},
                                       {128, 1024}, {256, 1024}, {1, 16384}, {32, 8192}};
  char name[48];
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    snprintf(name, sizeof name, "decode %u@%u", shapes[i][0], shapes[i][1]);
    bool before = shapes[i][0] * shapes[i][1] >= MANY_PROMPT_TOKENS;
    td_cell *c = add_streams(cells, n, name, shapes[i][0], 1, shapes[i][1], before ? 1 : ANSWER_TOKENS);
    if (before)
      add_warm_up(c, ANSWER_TOKENS);
  }
}

static void add_prefill(td_cell *cells, size_t *n)
{
  static const uint32_t lengths[] = {2048, 8192, 16384};
  char name[48];
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    snprintf(name, sizeof name, "prefill %u", lengths[i]);
    add_streams(cells, n, name, 1, 6, lengths[i], 1)->n_warm = 1;
  }
}

static bool add_closed(const char *name, td_cell *cells, size_t *n)
{
  if (strcmp(name, "decode") == 0)
    add_decode(cells, n);
  else if (strcmp(name, "prefill") == 0)
    add_prefill(cells, n);
  else if (strcmp(name, "offline") == 0)
    add_streams(cells, n, "offline 512", 512, 1, 1000, 1000);
  else if (strcmp(name, "small") == 0) /* takes a few seconds on a CPU with a small model */
    add_streams(cells, n, "small 8", 8, 2, 128, 32);
  else
    return false;
  return true;
}

td_status td_preset_cells(const char *name, const double *rates, size_t n_rates, double seconds,
                          uint64_t seed, td_cell cells[TD_CELLS_MAX], size_t *n, td_error *err)
{
  *n = 0;
  if (add_closed(name, cells, n))
    return TD_OK;
  for (int i = 0; i < N_OPENS; i++) {
    const open_preset *p = &opens[i];
    if (strcmp(p->name, name) != 0)
      continue;
    const double *list = n_rates > 0 ? rates : p->rates;
    for (size_t k = 0; k < (n_rates > 0 ? n_rates : 4) && list[k] > 0 && *n < TD_CELLS_MAX; k++) {
      td_cell *c = add_cell(cells, n, name, list[k]);
      c->seconds = seconds > 0 ? seconds : p->seconds;
      c->drain_s = p->drain_s;
      p->make(c, seed);
    }
    return TD_OK;
  }
  return td_fail(err, TD_ERR_CONFIG, "no preset '%s'; tandem-bench serve --help lists them", name);
}

const char *td_preset_help(void)
{
  static char text[2048];
  size_t at = (size_t)snprintf(
      text, sizeof text,
      "Presets (--preset): decode (256 out at 1..256 streams of 1K, 1 of 16K, 32 of 8K, many prompts known "
      "before), prefill (2K, 8K, "
      "16K,\n"
      "one at a time), offline (512 of 1000 in, 1000 out at once), small (8 streams of 128 in, 32 out)");
  for (int i = 0; i < N_OPENS; i++)
    at += (size_t)snprintf(text + at, sizeof text - at, ",\n%s (%s)", opens[i].name, opens[i].what);
  snprintf(text + at, sizeof text - at, ".");
  return text;
}
