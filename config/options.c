/* The table of options, and the parsing of values. See options.h. */
#include "config/options_table.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

static const char *const backends[] = {"auto", "cpu", "cuda", NULL}, *const load_formats[] = {"auto", "dummy",
                                                                                              NULL};
static const char *const poolings[] = {"none", "last", "mean", NULL};
static const char *const policies[] = {"tandem", "sarathi", "prefill-first", "decode-first", "orca", NULL};
static const char *const tool_formats[] = {"auto",    "hermes",      "llama", "pythonic",
                                           "mistral", "qwen3-coder", "none",  NULL};
static const char *const reasoning_formats[] = {"auto", "think", "none", NULL};
static const char *const log_formats[] = {"text", "json", NULL};
/* in the order of td_log_level */
static const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};

#define AT(field) .offset = offsetof(td_options, field), .size = sizeof(((td_options *)0)->field)
#define SECTION(text)                                                                                        \
  {                                                                                                          \
    .kind = TD_OPTION_SECTION, .name = text                                                                  \
  }
#define TEXT(field, def_, value, help_)                                                                      \
  {                                                                                                          \
    .kind = TD_OPTION_TEXT, .name = #field, .def = def_, .value_name = value, .help = help_, AT(field)       \
  }
#define LIST(field, value, help_)                                                                            \
  {                                                                                                          \
    .kind = TD_OPTION_TEXT, .name = #field, .def = "", .value_name = value, .help = help_, AT(field),        \
    .is_list = true                                                                                          \
  }
#define WORD(field, def_, help_, words_)                                                                     \
  {                                                                                                          \
    .kind = TD_OPTION_TEXT, .name = #field, .def = def_, .value_name = "NAME", .help = help_, AT(field),     \
    .words = words_                                                                                          \
  }
/* The bounds are those of the request field of the same name. */
#define NUMBER(field, limit_, help_)                                                                         \
  {                                                                                                          \
    .kind = TD_OPTION_NUMBER, .name = #field, .value_name = "X", .help = help_, AT(field), .limit = limit_   \
  }
/* From limits.def: the rows of kind OPTION, and the headings. */
#define ROW_OPTION(id, name_, help_)                                                                         \
  {.kind = TD_OPTION_LIMIT,                                                                                  \
   .name = name_,                                                                                            \
   .value_name = "N",                                                                                        \
   .help = help_,                                                                                            \
   AT(limit[TD_LIMIT_##id]),                                                                                 \
   .limit = TD_LIMIT_##id},
#define ROW_REQUEST(id, name_, help_)
#define ROW_FIXED(id, name_, help_)
#define TD_LIMIT(id, name, kind, min, def, max, unit, help) ROW_##kind(id, name, help)
#define TD_LIMIT_SECTION(text) SECTION(text),

const td_option_row td_option_rows[] = {
    SECTION("Model"),
    TEXT(model, "", "PATH",
         "GGUF file, folder with config.json and safetensors, or name of a model that tandem-pull fetched"),
    LIST(
        served_model_name, "LIST",
        "the model's names in the API, separated by commas; answers have the first; default: the name of the "
        "file or folder"),
    TEXT(chat_template, "", "PATH", "Jinja file, used instead of the model's own template"),
    WORD(
        tool_format, "auto",
        "auto, hermes, llama, pythonic, mistral, qwen3-coder or none: how the model writes tool calls; auto: "
        "recognised by template and vocabulary",
        tool_formats),
    WORD(reasoning_format, "auto",
         "auto, think or none: how reasoning is separated from content; auto: recognised by template and "
         "vocabulary; none: not at all",
         reasoning_formats),
    WORD(load_format, "auto", "auto or dummy; dummy: random weights, so that only config.json is needed",
         load_formats),
    WORD(
        pooling, "none",
        "none, last or mean; last, mean: the daemon generates no text, and /v1/embeddings returns the vector "
        "of the last token, or the mean over all tokens",
        poolings),
    SECTION("Clients"),
    TEXT(listen, "127.0.0.1:8080", "ADDR", "HOST:PORT, [IPv6]:PORT or unix:PATH"),
    TEXT(api_key_file, "", "PATH", "file with one API key per line; without it, no key is required"),
    LIST(allowed_hosts, "LIST",
         "without keys: host names by which clients may address the daemon, separated by commas, besides IP "
         "addresses, localhost and the host of --listen; *: any"),
    LIST(cors_origin, "LIST",
         "origins whose web pages may use the API, separated by commas, such as https://chat.example.com; *: "
         "any; without it: only the page at /"),
    LIST(trusted_proxies, "LIST",
         "reverse proxies, separated by commas: addresses, ADDRESS/BITS or unix; connections_per_ip does not "
         "apply to them, and their X-Forwarded-For names the client"),
    SECTION("Sampling defaults"),
    NUMBER(temperature, TD_LIMIT_TEMPERATURE,
           "temperature of requests that do not set it, 0 to 2; 0: greedy"),
    NUMBER(top_p, TD_LIMIT_TOP_P, "top_p of requests that do not set it, above 0 and at most 1"),
    NUMBER(top_k, TD_LIMIT_TOP_K, "top_k of requests that do not set it, a whole number; 0: off"),
    NUMBER(min_p, TD_LIMIT_MIN_P, "min_p of requests that do not set it, 0 to 1; 0: off"),
    SECTION("KV events, for routers"),
    TEXT(kv_events, "", "ADDR",
         "publish which prefixes are cached, with their token ids, in vLLM's format over ZeroMQ; "
         "tcp://*:PORT, "
         "ipc://PATH and @tcp://HOST:PORT are bound, tcp://HOST:PORT is connected to; without it: nothing is "
         "published"),
    TEXT(kv_events_replay, "", "ADDR",
         "where subscribers ask for events that they missed, such as tcp://*:PORT; always bound"),
    TEXT(kv_events_topic, "", "TEXT", "topic of the events, such as kv@HOST@MODEL"),
    SECTION("How it runs"),
    WORD(backend, "auto", "auto, cpu or cuda", backends),
    WORD(policy, "tandem",
         "tandem, sarathi, prefill-first, decode-first or orca: how steps are composed; all but tandem are "
         "for "
         "comparison",
         policies),
    TEXT(cache_dir, "auto", "PATH",
         "folder for what was measured about the device; auto: $CACHE_DIRECTORY, $XDG_CACHE_HOME/tandem or "
         "~/.cache/tandem; empty: nothing is kept"),
    {.kind = TD_OPTION_LEVEL,
     .name = "log_level",
     .def = "info",
     .value_name = "LEVEL",
     .help = "error, warn, info or debug",
     AT(log_level),
     .words = log_levels},
    WORD(log_format, "text", "text or json: format of log lines", log_formats),
    TEXT(trace, "", "FILE", "write what host and device do in each step to this file, as a Chrome trace"),
#include "config/limits.def"
};
const int td_n_option_rows = sizeof td_option_rows / sizeof td_option_rows[0];
_Static_assert(sizeof td_option_rows / sizeof td_option_rows[0] <= TD_OPTION_ROWS_MAX, "TD_OPTION_ROWS_MAX");

/* Where a value is stored depends on the kind: TEXT in an array, LEVEL in an enum, the others in a double. */
static char *text_of(td_options *o, const td_option_row *r) { return (char *)o + r->offset; }
static double *number_of(td_options *o, const td_option_row *r)
{
  return (double *)(void *)((char *)o + r->offset);
}

void td_options_init(td_options *o)
{
  memset(o, 0, sizeof *o);
  for (int i = 0; i < TD_LIMIT_COUNT; i++)
    o->limit[i] = td_limits[i].def;
  for (const td_option_row *r = td_option_rows; r < td_option_rows + td_n_option_rows; r++)
    if (r->kind == TD_OPTION_TEXT)
      snprintf(text_of(o, r), r->size, "%s", r->def);
    else if (r->kind == TD_OPTION_NUMBER)
      *number_of(o, r) = -1;
  o->log_level = TD_LOG_INFO;
}

bool td_option_key_equal(const char *a, const char *b)
{
  for (; *a && *b; a++, b++)
    if (*a != *b && !((*a == '-' || *a == '_') && (*b == '-' || *b == '_')))
      return false;
  return *a == *b;
}

int td_option_find(const char *key)
{
  for (int i = 0; i < td_n_option_rows; i++)
    if (td_option_rows[i].kind != TD_OPTION_SECTION && td_option_key_equal(key, td_option_rows[i].name))
      return i;
  return -1;
}

bool td_option_is_bytes(const td_option_row *r)
{
  return r->kind == TD_OPTION_LIMIT && strncmp(td_limits[r->limit].unit, "bytes", 5) == 0;
}

size_t td_option_find_invalid_text(const char *s, size_t n)
{
  for (size_t i = 0, len; i < n; i += len) {
    const unsigned char *at = (const unsigned char *)s + i;
    len = td_utf8_sequence_length(at, n - i);
    if (len == 0 || (td_utf8_is_control(at) && *at != '\t'))
      return i + 1;
  }
  return 0;
}

/* ---- setting a value ---- */

/* What every error message names. */
typedef struct place {
  const td_option_row *row;
  const char *where;
  td_error *err;
} place;

#define REFUSE(p, fmt, ...)                                                                                  \
  td_fail_param((p)->err, TD_ERR_CONFIG, (p)->row->name, "%s: %s: " fmt, (p)->where, (p)->row->name,         \
                __VA_ARGS__)

static int index_of(const char *value, const char *const *words)
{
  for (int i = 0; words[i]; i++)
    if (strcmp(value, words[i]) == 0)
      return i;
  return -1;
}

#define BETWEEN ", "

static td_status refuse_word(const place *p, const char *value)
{
  char list[128];
  size_t n = 0;
  for (int i = 0; p->row->words[i] && n < sizeof list; i++) {
    const char *before = i == 0 ? "" : p->row->words[i + 1] ? ", " : " or ";
    n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", before, p->row->words[i]);
  }
  return REFUSE(p, "'%s' is not %s", value, list);
}

/* added: append to the list instead of replacing it. */
static td_status set_text(td_options *o, const place *p, const char *value, bool added)
{
  const td_option_row *r = p->row;
  size_t n = strlen(value), bad = td_option_find_invalid_text(value, n);
  if (bad > 0)
    return REFUSE(p, "byte %zu of the value is not text", bad);
  if (r->words && index_of(value, r->words) < 0)
    return refuse_word(p, value);
  char *text = text_of(o, r);
  size_t before = added ? strlen(text) : 0, comma = before > 0 ? strlen(BETWEEN) : 0;
  if (before + comma + n >= r->size)
    return REFUSE(p, "longer than %zu bytes", r->size - 1);
  memset(text + before, 0, r->size - before);
  memcpy(text + before, BETWEEN, comma);
  memcpy(text + before + comma, value, n);
  return TD_OK;
}

static td_status set_level(td_options *o, const place *p, const char *value)
{
  int i = index_of(value, log_levels);
  if (i < 0)
    return refuse_word(p, value);
  o->log_level = (td_log_level)i;
  return TD_OK;
}

/* The factor of K, M or G in either case: 2^10, 2^20, 2^30. 0: c is none of these. */
static double size_of_letter(char c)
{
  switch (c) {
  case 'k':
  case 'K': return 1024;
  case 'm':
  case 'M': return 1024 * 1024;
  case 'g':
  case 'G': return 1024 * 1024 * 1024;
  default: return 0;
  }
}

static td_status set_limit(td_options *o, const place *p, const char *value)
{
  const td_limit *l = &td_limits[p->row->limit];
  bool bytes = td_option_is_bytes(p->row);
  size_t n = strspn(value, "0123456789");
  double times = bytes && value[n] ? size_of_letter(value[n]) : 0;
  if (n == 0 || value[n + (times > 0)] != '\0')
    return REFUSE(p, "'%s' is not a whole number%s", value,
                  bytes                               ? ", or one with K, M or G behind it"
                  : n > 0 && size_of_letter(value[n]) ? "; K, M and G are for bytes"
                                                      : "");
  double v = strtod(value, NULL) * (times > 0 ? times : 1); /* infinite if there are too many digits */
  if (!(v >= l->min && v <= l->max))
    return REFUSE(p, "%s is outside %.0f..%.0f %s", value, l->min, l->max, l->unit);
  if (p->row->limit == TD_LIMIT_PAGE_TOKENS && v != 16 && v != 32 && v != 64)
    return REFUSE(p, "must be %d, %d or %d", 16, 32, 64);
  *number_of(o, p->row) = v;
  return TD_OK;
}

/* Digits, optionally with a point and more digits: no sign, exponent, hex or infinity. */
static td_status set_number(td_options *o, const place *p, const char *value)
{
  const td_limit *l = &td_limits[p->row->limit];
  bool whole = p->row->limit == TD_LIMIT_TOP_K, no_zero = p->row->limit == TD_LIMIT_TOP_P;
  size_t n = strspn(value, "0123456789");
  if (n > 0 && value[n] == '.' && !whole)
    n += 1 + strspn(value + n + 1, "0123456789");
  if (n == 0 || value[n] != '\0' || value[n - 1] == '.')
    return REFUSE(p, "'%s' is not a %s", value, whole ? "whole number" : "number such as 0.7");
  double v = strtod(value, NULL);
  if (!(v <= l->max) || (no_zero && v == 0))
    return REFUSE(p, "%s is outside %s0..%.0f", value, no_zero ? "above " : "", l->max);
  *number_of(o, p->row) = v;
  return TD_OK;
}

td_status td_option_set(td_options *o, int row, const char *value, const char *where, int32_t from,
                        td_error *err)
{
  const place p = {&td_option_rows[row], where, err};
  td_status st = TD_OK;
  switch (p.row->kind) {
  case TD_OPTION_SECTION: TD_BUG_ON(true); break;
  case TD_OPTION_TEXT:
    st = set_text(o, &p, value, p.row->is_list && from == TD_FROM_COMMAND_LINE && o->from[row] == from);
    break;
  case TD_OPTION_LEVEL: st = set_level(o, &p, value); break;
  case TD_OPTION_NUMBER: st = set_number(o, &p, value); break;
  case TD_OPTION_LIMIT: st = set_limit(o, &p, value); break;
  }
  if (st == TD_OK)
    o->from[row] = from;
  return st;
}
