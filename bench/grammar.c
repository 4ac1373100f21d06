/* tandem-bench grammar: the grammar engine alone, on schemas and answers from scripts/bench-grammar.
 *
 * stdin has a line of JSON for each grammar: {"kind", "source", "tests": [{"text", "ids"}], "samples"}.
 * stdout gets a line for each: the time to compile and to make the first mask, the time of each mask (filling
 * it and reading the next token), and how much of each text was read. A text counts as taken if the answer
 * may end where the text ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/commands.h"
#include "common/buf.h"
#include "config/limits.h"
#include "loadgen/tool.h"
#include "models/grammar/grammar.h"

/* Processor time of this thread, so that other load on the machine does not count. */
static uint64_t now_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

typedef struct vocabulary {
  td_vocabulary *v;
  td_token_bytes *tokens;
  uint32_t n, end;
  int32_t quote; /* token id of '"'; -1: none */
} vocabulary;

/* The file's first line has the number of tokens and the id that ends an answer. Then each line has a token's
 * bytes in hex, or nothing if the token is no text. */
static void load_vocabulary(const char *path, vocabulary *out)
{
  FILE *f = path ? fopen(path, "r") : NULL;
  unsigned byte;
  char *line = NULL;
  size_t cap = 0;
  td_error err = {0};
  if (!f || fscanf(f, "%u %u\n", &out->n, &out->end) != 2 || out->n > 1u << 22 || out->end >= out->n)
    td_tool_die("--vocabulary must name a file that begins with a count and an id");
  td_token_bytes *tokens = out->tokens = td_tool_alloc(out->n, sizeof *tokens);
  out->quote = -1;
  for (uint32_t i = 0; i < out->n; i++) {
    ssize_t n = getline(&line, &cap, f);
    if (n < 0)
      td_tool_die("%s has fewer tokens than it says", path);
    char *bytes = td_tool_alloc((size_t)n / 2 + 1, 1);
    uint32_t k = 0;
    while (sscanf(line + (size_t)2 * k, "%2x", &byte) == 1)
      bytes[k++] = (char)byte;
    tokens[i] = (td_token_bytes){bytes, k};
    if (k == 1 && *bytes == '"')
      out->quote = (int32_t)i;
  }
  int32_t end = (int32_t)out->end;
  td_tool_check(td_vocabulary_create(tokens, out->n, &end, 1, (size_t)td_limit_max(TD_LIMIT_GRAMMARS_BYTES),
                                     &out->v, &err),
                &err);
  free(line);
  fclose(f);
}

static td_status compile(const vocabulary *v, const cJSON *item, td_grammar **out, td_error *err)
{
  static const struct {
    const char *name;
    td_grammar_kind kind;
  } kinds[] = {{"schema", TD_GRAMMAR_JSON_SCHEMA},
               {"choice", TD_GRAMMAR_CHOICE},
               {"regex", TD_GRAMMAR_REGEX},
               {"gbnf", TD_GRAMMAR_GBNF}};
  const td_json_limits limits = {(size_t)td_limit_max(TD_LIMIT_JSON_DEPTH),
                                 (size_t)td_limit_default(TD_LIMIT_JSON_NODES), TD_ERR_REQUEST};
  const char *kind = cJSON_GetStringValue(td_json_get(item, "kind")),
             *source = cJSON_GetStringValue(td_json_get(item, "source"));
  td_grammar_source s = {.text = source, .n_text = source ? strlen(source) : 0};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (kind && strcmp(kind, kinds[i].name) == 0)
      s.kind = kinds[i].kind;
  if (!source || s.kind == TD_GRAMMAR_NONE)
    td_tool_die("a line has no kind or source");
  cJSON *json = NULL;
  td_status st = TD_OK;
  if (s.kind == TD_GRAMMAR_JSON_SCHEMA || s.kind == TD_GRAMMAR_CHOICE)
    st = td_json_parse_ids(source, s.n_text, &limits, NULL, &json, err);
  s.json = json;
  if (st == TD_OK)
    st = td_grammar_compile(v->v, &s, out, err);
  cJSON_Delete(json);
  return st;
}

/* Reads a text's tokens, with a mask before each. For each token, the mask must agree with the result of
 * reading it. */
static void read_test(const vocabulary *v, td_grammar *g, const cJSON *test, uint32_t *mask, td_buf *times,
                      td_buf *out)
{
  td_matcher *m = td_matcher_create(g);
  bool ok = m != NULL, agree = true;
  uint32_t n = 0;
  const cJSON *id;
  if (!m)
    td_tool_die("no memory");
  cJSON_ArrayForEach(id, td_json_get(test, "ids"))
  {
    uint64_t from = now_ns();
    td_matcher_fill(m, mask);
    ok = td_matcher_read(m, id->valueint);
    td_buf_printf(times, "%s%llu", times->len_bytes ? "," : "", (unsigned long long)(now_ns() - from));
    bool allowed = mask[id->valueint / 32] >> id->valueint % 32 & 1;
    agree &= allowed == ok || td_matcher_stuck(m);
    if (!ok)
      break;
    n++;
  }
  const char *stuck = td_matcher_stuck(m);
  td_matcher_fill(m, mask);
  bool ends = mask[v->end / 32] >> v->end % 32 & 1 && !stuck && !td_matcher_stuck(m);
  td_buf_printf(out, "{\"taken\":%s,\"n\":%u,\"agree\":%s,\"stuck\":", ok && ends ? "true" : "false", n,
                agree && ends == td_matcher_is_whole(m) ? "true" : "false");
  if (stuck)
    td_buf_append_json_string(out, stuck, strlen(stuck));
  else
    td_buf_append_str(out, "null");
  td_buf_append_char(out, '}');
  td_matcher_destroy(m);
}

/* ---- random texts that a grammar accepts ---- */

static uint32_t next_random(uint64_t *state)
{
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return (uint32_t)(*state >> 32);
}

enum { SAMPLE_TOKENS = 300 };

/* Chooses one of the allowed tokens. The end and quotes are preferred, because strings would otherwise not
 * end. */
static int32_t choose(const vocabulary *v, const uint32_t *mask, uint64_t *random)
{
  int32_t chosen = -1, quote = v->quote;
  uint32_t n = 0;
  if ((mask[v->end / 32] >> v->end % 32 & 1) && next_random(random) % 2)
    return (int32_t)v->end;
  if (quote >= 0 && (mask[quote / 32] >> quote % 32 & 1) && next_random(random) % 4 == 0)
    return quote;
  for (uint32_t id = 0; id < v->n; id++)
    if ((mask[id / 32] >> id % 32 & 1) && next_random(random) % ++n == 0)
      chosen = (int32_t)id;
  return chosen;
}

static bool sample(const vocabulary *v, td_grammar *g, uint32_t *mask, uint64_t *random, td_buf *out)
{
  td_matcher *m = td_matcher_create(g);
  bool whole = false;
  if (!m)
    td_tool_die("no memory");
  td_buf_clear(out);
  for (uint32_t i = 0; i < SAMPLE_TOKENS && !whole; i++) {
    td_matcher_fill(m, mask);
    int32_t id = choose(v, mask, random);
    if (td_matcher_stuck(m) || id < 0 || !td_matcher_read(m, id))
      break;
    whole = (uint32_t)id == v->end;
    if (!whole)
      td_buf_append(out, v->tokens[id].bytes, v->tokens[id].n_bytes);
  }
  td_matcher_destroy(m);
  return whole;
}

static void write_samples(const vocabulary *v, td_grammar *g, const cJSON *item, uint32_t *mask, td_buf *out)
{
  const cJSON *count = td_json_get(item, "samples");
  uint64_t random = 0x9E3779B97F4A7C15u;
  td_buf text;
  td_buf_init(&text, 0);
  td_buf_append_str(out, ",\"samples\":[");
  for (int i = 0, n = 0; cJSON_IsNumber(count) && i < count->valueint; i++)
    if (sample(v, g, mask, &random, &text)) {
      td_buf_append_str(out, n++ ? "," : "");
      td_buf_append_json_string(out, text.data ? text.data : "", text.len_bytes);
    }
  td_buf_append_char(out, ']');
  td_buf_deinit(&text);
}

static void run_line(const vocabulary *v, const cJSON *item, uint32_t *mask, td_buf *times, td_buf *out)
{
  td_grammar *g = NULL;
  td_error err = {0};
  uint64_t from = now_ns();
  td_status st = compile(v, item, &g, &err);
  uint64_t compiled = now_ns() - from;
  td_buf_clear(out);
  td_buf_clear(times);
  td_buf_printf(out, "{\"compile_ns\":%llu,", (unsigned long long)compiled);
  if (st != TD_OK) {
    td_buf_append_str(out, "\"error\":");
    td_buf_append_json_string(out, err.message, strlen(err.message));
    td_buf_append_str(out, "}\n");
    return;
  }
  td_matcher *m = td_matcher_create(g);
  if (m)
    td_matcher_fill(m, mask);
  td_matcher_destroy(m);
  td_buf_printf(out, "\"first_ns\":%llu,\"tests\":[", (unsigned long long)(now_ns() - from));
  const cJSON *test, *tests = td_json_get(item, "tests");
  cJSON_ArrayForEach(test, tests)
  {
    if (test != tests->child)
      td_buf_append_char(out, ',');
    read_test(v, g, test, mask, times, out);
  }
  td_buf_append_str(out, "],\"mask_ns\":[");
  td_buf_append(out, times->data ? times->data : "", times->len_bytes);
  td_buf_printf(out, "],\"bytes\":%zu", td_vocabulary_grammar_bytes(v->v));
  write_samples(v, g, item, mask, out);
  td_buf_append_str(out, "}\n");
  td_grammar_drop(g);
}

int td_bench_grammar(int argc, char **argv)
{
  const char *path = NULL;
  const td_arg args[] = {
      {"--vocabulary", "FILE", "a count, the end's id, and each token in hex on a line", TD_ARG_TEXT, &path}};
  const td_json_limits limits = {8, 1u << 24, TD_ERR_REQUEST};
  vocabulary v;
  td_buf times, out;
  td_error err = {0};
  char *line = NULL;
  size_t cap = 0;
  td_tool_args("tandem-bench grammar",
               "masks of grammars that stdin names; README.md of this folder says how", args, 1, argc, argv);
  load_vocabulary(path, &v);
  uint32_t *mask = td_tool_alloc((v.n + 31) / 32, sizeof *mask);
  td_buf_init(&times, 0);
  td_buf_init(&out, 0);
  for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
    cJSON *item;
    td_tool_check(td_json_parse(line, (size_t)n, &limits, &item, &err), &err);
    run_line(&v, item, mask, &times, &out);
    cJSON_Delete(item);
    if (out.failed || times.failed || fwrite(out.data, 1, out.len_bytes, stdout) != out.len_bytes ||
        fflush(stdout))
      td_tool_die("a result was not written");
  }
  td_buf_deinit(&times);
  td_buf_deinit(&out);
  td_vocabulary_destroy(v.v);
  for (uint32_t i = 0; i < v.n; i++)
    free((void *)v.tokens[i].bytes);
  free(v.tokens);
  free(mask);
  free(line);
  return 0;
}
