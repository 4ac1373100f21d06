/* A cost model as text: see cost_text.h. The format:
 *
 *   tandem-steps 4
 *   WHAT IT WAS MEASURED ON
 *   tokens N us T                   the table: a line for each point, ascending
 *   ...
 *   logits_us_per_row X             then every coefficient, in this order
 *   ...
 *   hybrid_us_per_kv_token X        optional, like the next three
 *   hybrid_beside X
 *   learned_without_prompts X       td_cost_model.learned
 *   learned_with_prompts X
 *   xxh3 CHECKSUM of all bytes before this line
 *
 * Version 3 lacks hybrid_us_per_kv_token and hybrid_beside. Version 2 also lacks the learned factors. Both
 * can be read. Numbers are printed with 17 digits, so reading gives the same bits that were written. */
#include "scheduler/cost_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "config/limits.h"

#define HEADER "tandem-steps "
enum { VERSION_LEARNED = 3, VERSION_HYBRID_KV = 4, VERSION = 4, VERSION_OLDEST = 2 };
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
    {"prefill_us_per_thin_token", offsetof(td_cost_model, prefill_us_per_short_chunk_key)},
    {"hybrid_us", offsetof(td_cost_model, hybrid_us)},
    {"hybrid_us_per_decode_row", offsetof(td_cost_model, hybrid_us_per_decode_row)},
};
enum { N_COEFFICIENTS = sizeof coefficients / sizeof *coefficients };

/* Lines that a file may lack, and the first version that may have them. */
static const struct {
  coefficient c;
  int since;
} extras[] = {
    {{"hybrid_us_per_kv_token", offsetof(td_cost_model, hybrid_us_per_kv_token)}, VERSION_HYBRID_KV},
    {{"hybrid_beside", offsetof(td_cost_model, hybrid_beside)}, VERSION_HYBRID_KV},
    {{"learned_without_prompts", offsetof(td_cost_model, learned[0])}, VERSION_LEARNED},
    {{"learned_with_prompts", offsetof(td_cost_model, learned[1])}, VERSION_LEARNED},
};
enum { N_EXTRAS = sizeof extras / sizeof *extras };

static double *number_of(td_cost_model *m, const coefficient *c) { return (double *)((char *)m + c->offset); }
static double value_of(const td_cost_model *m, const coefficient *c)
{
  return *(const double *)((const char *)m + c->offset);
}

static bool is_within(double v, double max) { return v >= 0 && v <= max; } /* false for NaN */

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
    if (!is_within(value_of(m, &coefficients[i]), COEFFICIENT_MAX_US))
      return false;
  if (!is_within(m->hybrid_us_per_kv_token, COEFFICIENT_MAX_US) ||
      !is_within(m->hybrid_beside, TD_COST_BESIDE_MAX))
    return false;
  for (int i = 0; i < 2; i++)
    if (m->learned[i] != 0 && !td_cost_is_learnable(m->learned[i]))
      return false;
  return true;
}

void td_cost_print(const td_cost_model *m, const char *identity, td_buf *out)
{
  size_t begin = out->len_bytes;
  td_buf_printf(out, HEADER "%d\n%s\n", VERSION, identity);
  for (uint32_t i = 0; i < m->n_points; i++)
    td_buf_printf(out, "tokens %" PRIu32 " us %.17g\n", m->tokens[i], m->tokens_us[i]);
  for (int i = 0; i < N_COEFFICIENTS; i++)
    td_buf_printf(out, "%s %.17g\n", coefficients[i].name, value_of(m, &coefficients[i]));
  for (int i = 0; i < N_EXTRAS; i++)
    if (value_of(m, &extras[i].c) > 0)
      td_buf_printf(out, "%s %.17g\n", extras[i].c.name, value_of(m, &extras[i].c));
  if (!out->failed)
    td_buf_printf(out, "xxh3 %016" PRIx64 "\n",
                  (uint64_t)XXH3_64bits(out->data + begin, out->len_bytes - begin));
}

/* ---- reading ---- */

typedef struct cursor {
  const char *at, *end;
} cursor;

static bool parse_text(cursor *c, const char *text)
{
  size_t n = strlen(text);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0)
    return false;
  c->at += n;
  return true;
}

/* Takes a number as %.17g writes it, and the character after it. Refuses what strtod also accepts: leading
 * spaces or signs, hexadecimal, inf and nan. */
static bool parse_number(cursor *c, char behind, double *out)
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

static bool parse_identity(cursor *c, char out[TD_COST_IDENTITY_BYTES])
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

static bool parse_points(cursor *c, td_cost_model *m)
{
  while (parse_text(c, "tokens ")) {
    double tokens;
    uint32_t i = m->n_points;
    if (i == TD_COST_POINTS_MAX || !parse_number(c, ' ', &tokens) || !(tokens >= 1 && tokens <= TOKENS_MAX) ||
        tokens != floor(tokens) || !parse_text(c, "us ") || !parse_number(c, '\n', &m->tokens_us[i]))
      return false;
    m->tokens[i] = (uint32_t)tokens;
    m->n_points++;
  }
  return true;
}

static bool parse_version(cursor *c, int *version)
{
  if (!parse_text(c, HEADER))
    return false;
  for (*version = VERSION_OLDEST; *version <= VERSION; ++*version) {
    char line[] = {(char)('0' + *version), '\n', '\0'};
    if (parse_text(c, line))
      return true;
  }
  return false;
}

static bool parse_extras(cursor *c, int version, td_cost_model *m)
{
  for (int i = 0; i < N_EXTRAS; i++) {
    double *v = number_of(m, &extras[i].c);
    if (version >= extras[i].since && parse_text(c, extras[i].c.name) &&
        (!parse_text(c, " ") || !parse_number(c, '\n', v) || *v == 0))
      return false;
  }
  return true;
}

static bool parse_model(cursor *c, int version, td_cost_model *m)
{
  if (!parse_points(c, m))
    return false;
  for (int i = 0; i < N_COEFFICIENTS; i++)
    if (!parse_text(c, coefficients[i].name) || !parse_text(c, " ") ||
        !parse_number(c, '\n', number_of(m, &coefficients[i])))
      return false;
  return parse_extras(c, version, m) && c->at == c->end;
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
  int version;
  if (n_bytes == 0 || !parse_version(&c, &version))
    return td_fail(err, TD_ERR_CONFIG, "no step times of this version");
  if ((size_t)(c.end - c.at) < CHECKSUM_LINE_BYTES)
    return td_fail(err, TD_ERR_CONFIG, "cut off");
  c.end -= CHECKSUM_LINE_BYTES;
  if (!sum_is_right(text, n_bytes - CHECKSUM_LINE_BYTES))
    return td_fail(err, TD_ERR_CONFIG, "damaged or cut off: the checksum is wrong");
  if (!parse_identity(&c, identity))
    return td_fail(err, TD_ERR_CONFIG, "its second line does not say what it was measured on");
  if (!parse_model(&c, version, &got))
    return td_fail(err, TD_ERR_CONFIG, "not as it should be at byte %zu", (size_t)(c.at - text));
  if (!td_cost_is_valid(&got))
    return td_fail(err, TD_ERR_CONFIG, "a time, a factor or a number of tokens is out of range or order");
  *m = got;
  return TD_OK;
}
