/* A cost model as text. See cost_text.h.
 *
 *   tandem-steps 3
 *   WHAT IT WAS MEASURED ON
 *   tokens N us T                   the table: a line for each point, ascending
 *   ...
 *   logits_us_per_row X             then every coefficient, in this order
 *   ...
 *   learned_without_prompts X       what steps took under load, times all this; each may be missing
 *   learned_with_prompts X
 *   xxh3 CHECKSUM of all bytes before this line
 *
 * Version 2 is the same with nothing learned, and is read too. Numbers are printed with 17 digits: what is
 * read is bit for bit what was written. */
#include "scheduler/cost_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "config/limits.h"

#define HEADER "tandem-steps 3\n"
#define HEADER_BEFORE "tandem-steps 2\n"
#define COEFFICIENT_MAX_US 1e9
#define STEP_MAX_US 1e12
enum { CHECKSUM_LINE_BYTES = 5 + 16 + 1, NUMBER_BYTES = 32, TOKENS_MAX = 1 << 24 };

typedef struct coefficient {
  const char *name;
  size_t offset;
} coefficient;

static const coefficient coefficients[] = {
    {"logits_us_per_row", offsetof(td_cost_model, logits_us_per_row)},
    {"decode_us_per_row", offsetof(td_cost_model, decode_us_per_row)},
    {"decode_us_per_kv_token", offsetof(td_cost_model, decode_us_per_kv_token)},
    {"prefill_us_per_chunk", offsetof(td_cost_model, prefill_us_per_chunk)},
    {"prefill_us_per_pair", offsetof(td_cost_model, prefill_us_per_pair)},
    {"prefill_us_per_kv_token", offsetof(td_cost_model, prefill_us_per_kv_token)},
    {"prefill_us_per_thin_token", offsetof(td_cost_model, prefill_us_per_thin_token)},
    {"hybrid_us", offsetof(td_cost_model, hybrid_us)},
    {"hybrid_us_per_decode_row", offsetof(td_cost_model, hybrid_us_per_decode_row)},
};
enum { N_COEFFICIENTS = sizeof coefficients / sizeof *coefficients };

static const char *const learned_names[2] = {"learned_without_prompts", "learned_with_prompts"};

static double *coefficient_of(td_cost_model *m, int i)
{
  return (double *)((char *)m + coefficients[i].offset);
}
static double value_of(const td_cost_model *m, int i)
{
  return *(const double *)((const char *)m + coefficients[i].offset);
}

static bool is_within(double v, double max) { return v >= 0 && v <= max; } /* no NaN */

bool td_cost_is_learnable(double factor)
{
  double most = td_limits[TD_LIMIT_LEARNED_FACTOR].max;
  return factor >= 1 / most && factor <= most;
}

bool td_cost_is_valid(const td_cost_model *m)
{
  if (m->n_points == 0 || m->n_points > TD_COST_POINTS_MAX)
    return false;
  for (uint32_t i = 0; i < m->n_points; i++) {
    bool ascends = i == 0 || m->tokens[i] > m->tokens[i - 1];
    if (m->tokens[i] == 0 || m->tokens[i] > TOKENS_MAX || !is_within(m->tokens_us[i], STEP_MAX_US) ||
        m->tokens_us[i] == 0 || !ascends)
      return false;
  }
  for (int i = 0; i < N_COEFFICIENTS; i++)
    if (!is_within(value_of(m, i), COEFFICIENT_MAX_US))
      return false;
  for (int i = 0; i < 2; i++)
    if (m->learned[i] != 0 && !td_cost_is_learnable(m->learned[i]))
      return false;
  return true;
}

void td_cost_print(const td_cost_model *m, const char *identity, td_buf *out)
{
  size_t begin = out->len_bytes;
  td_buf_printf(out, "%s%s\n", HEADER, identity);
  for (uint32_t i = 0; i < m->n_points; i++)
    td_buf_printf(out, "tokens %" PRIu32 " us %.17g\n", m->tokens[i], m->tokens_us[i]);
  for (int i = 0; i < N_COEFFICIENTS; i++)
    td_buf_printf(out, "%s %.17g\n", coefficients[i].name, value_of(m, i));
  for (int i = 0; i < 2; i++)
    if (m->learned[i] > 0)
      td_buf_printf(out, "%s %.17g\n", learned_names[i], m->learned[i]);
  if (!out->failed)
    td_buf_printf(out, "xxh3 %016" PRIx64 "\n",
                  (uint64_t)XXH3_64bits(out->data + begin, out->len_bytes - begin));
}

/* ---- reading ---- */

typedef struct cursor {
  const char *at, *end;
} cursor;

static bool take_text(cursor *c, const char *text)
{
  size_t n = strlen(text);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0)
    return false;
  c->at += n;
  return true;
}

/* What %.17g writes, and the character behind it: no space, no sign in front, no hexadecimal, no name. */
static bool take_number(cursor *c, char behind, double *out)
{
  char number[NUMBER_BYTES], *end;
  size_t n = 0;
  while (c->at < c->end && n + 1 < sizeof number && *c->at && strchr("0123456789.e+-", *c->at))
    number[n++] = *c->at++;
  number[n] = '\0';
  if (n == 0 || number[0] < '0' || number[0] > '9' || c->at == c->end || *c->at != behind)
    return false;
  c->at++;
  *out = strtod(number, &end);
  return *end == '\0' && isfinite(*out);
}

static bool take_identity(cursor *c, char out[TD_COST_IDENTITY_BYTES])
{
  const char *line = memchr(c->at, '\n', (size_t)(c->end - c->at));
  size_t n = line ? (size_t)(line - c->at) : 0;
  if (n == 0 || n >= TD_COST_IDENTITY_BYTES)
    return false;
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)c->at[i] < 0x20 || (unsigned char)c->at[i] > 0x7e)
      return false;
  memcpy(out, c->at, n);
  out[n] = '\0';
  c->at = line + 1;
  return true;
}

static bool take_points(cursor *c, td_cost_model *m)
{
  while (take_text(c, "tokens ")) {
    double tokens;
    uint32_t i = m->n_points;
    if (i == TD_COST_POINTS_MAX || !take_number(c, ' ', &tokens) || !(tokens >= 1 && tokens <= TOKENS_MAX) ||
        tokens != floor(tokens) || !take_text(c, "us ") || !take_number(c, '\n', &m->tokens_us[i]))
      return false;
    m->tokens[i] = (uint32_t)tokens;
    m->n_points++;
  }
  return true;
}

static bool take_learned(cursor *c, td_cost_model *m)
{
  for (int i = 0; i < 2; i++)
    if (take_text(c, learned_names[i]) &&
        (!take_text(c, " ") || !take_number(c, '\n', &m->learned[i]) || m->learned[i] == 0))
      return false;
  return true;
}

static bool take_model(cursor *c, bool has_learned, td_cost_model *m)
{
  if (!take_points(c, m))
    return false;
  for (int i = 0; i < N_COEFFICIENTS; i++)
    if (!take_text(c, coefficients[i].name) || !take_text(c, " ") ||
        !take_number(c, '\n', coefficient_of(m, i)))
      return false;
  return (!has_learned || take_learned(c, m)) && c->at == c->end;
}

static bool sum_is_right(const char *text, size_t n_bytes)
{
  uint64_t got = XXH3_64bits(text, n_bytes);
  char want[CHECKSUM_LINE_BYTES + 1];
  snprintf(want, sizeof want, "xxh3 %016" PRIx64 "\n", got);
  return memcmp(text + n_bytes, want, CHECKSUM_LINE_BYTES) == 0;
}

td_status td_cost_parse(const char *text, size_t n_bytes, td_cost_model *m,
                        char identity[TD_COST_IDENTITY_BYTES], td_error *err)
{
  cursor c = {text, text + n_bytes};
  td_cost_model got = {0};
  bool has_learned = n_bytes > 0 && take_text(&c, HEADER);
  if (!has_learned && (n_bytes == 0 || !take_text(&c, HEADER_BEFORE)))
    return td_fail(err, TD_ERR_CONFIG, "no step times of this version");
  if ((size_t)(c.end - c.at) < CHECKSUM_LINE_BYTES)
    return td_fail(err, TD_ERR_CONFIG, "cut off");
  c.end -= CHECKSUM_LINE_BYTES;
  if (!sum_is_right(text, n_bytes - CHECKSUM_LINE_BYTES))
    return td_fail(err, TD_ERR_CONFIG, "damaged or cut off: the checksum is wrong");
  if (!take_identity(&c, identity))
    return td_fail(err, TD_ERR_CONFIG, "its second line does not say what it was measured on");
  if (!take_model(&c, has_learned, &got))
    return td_fail(err, TD_ERR_CONFIG, "not as it should be at byte %zu", (size_t)(c.at - text));
  if (!td_cost_is_valid(&got))
    return td_fail(err, TD_ERR_CONFIG, "a time, a factor or a number of tokens is out of range or order");
  *m = got;
  return TD_OK;
}
