/* API keys: see auth.h. */
#include "server/auth.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/io.h"
#include "config/limits.h"

/* A compiler may remove a memset before free; it must keep explicit_bzero. */
static void wipe(void *p, size_t n) { explicit_bzero(p, n); }

/* ---- one line ---- */

/* The line of an error. Messages never show the line's text, because it may be a key. */
typedef struct place {
  const char *path;
  int line;
  td_error *err;
} place;

static td_status refuse(const place *p, const char *fmt, ...) TD_PRINTF(2, 3);
static td_status refuse(const place *p, const char *fmt, ...)
{
  char text[200];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return td_fail_param(p->err, TD_ERR_CONFIG, "api_key_file", "%s:%d: %s", p->path, p->line, text);
}

static td_status take_name(td_key *key, const char *value, size_t n, const place *p)
{
  bool plain = n > 0 && n < sizeof key->name;
  for (size_t i = 0; plain && i < n; i++)
    plain =
        isascii((unsigned char)value[i]) && (isalnum((unsigned char)value[i]) || strchr("_.-@", value[i]));
  if (!plain)
    return refuse(p, "a key's name is 1 to %zu letters, digits, '_', '.', '-' or '@'", sizeof key->name - 1);
  memset(key->name, 0, sizeof key->name);
  memcpy(key->name, value, n);
  return TD_OK;
}

static td_status take_number(uint64_t *to, const char *name, const char *value, size_t n, uint64_t max,
                             const place *p)
{
  size_t digits = strspn(value, "0123456789");
  if (n == 0 || n > 18 || digits != n || (*to = strtoull(value, NULL, 10)) > max)
    return refuse(p, "%s is a whole number from 0 to %llu", name, (unsigned long long)max);
  return TD_OK;
}

/* "name=value", n bytes. */
static td_status read_setting(td_key *key, const char *s, size_t n, const place *p)
{
  uint64_t most = td_limit_max(TD_LIMIT_KEY_SETTING);
  const struct {
    const char *name;
    uint64_t *to, max;
  } numbers[] = {{"requests_per_minute", &key->limits.requests_per_minute, most},
                 {"tokens_per_minute", &key->limits.tokens_per_minute, most},
                 {"requests", &key->limits.requests, most},
                 {"waiting", &key->limits.waiting, most},
                 {"operator", &key->is_operator, 1}};
  const char *equals = memchr(s, '=', n), *value = equals ? equals + 1 : s;
  size_t n_name = equals ? (size_t)(equals - s) : 0, n_value = n - (size_t)(value - s);
  if (n_name == 4 && memcmp(s, "name", 4) == 0)
    return take_name(key, value, n_value, p);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (n_name == strlen(numbers[i].name) && memcmp(s, numbers[i].name, n_name) == 0)
      return take_number(numbers[i].to, numbers[i].name, value, n_value, numbers[i].max, p);
  return refuse(p,
                "behind a key stand name=, requests_per_minute=, tokens_per_minute=, requests=, waiting= or "
                "operator=, with blanks between");
}

static td_status read_secret(td_key *key, const char *s, size_t n, const place *p)
{
  if (n >= sizeof key->secret)
    return refuse(p, "key longer than %zu bytes", sizeof key->secret - 1);
  for (size_t i = 0; i < n; i++)
    if (s[i] <= 0x20 || s[i] >= 0x7f)
      return refuse(p, "a key is visible ASCII without spaces");
  memcpy(key->secret, s, n);
  return TD_OK;
}

static td_status refuse_twice(const td_keys *k, const td_key *key, const place *p)
{
  for (uint32_t i = 0; i < k->n; i++) {
    if (memcmp(k->keys[i].secret, key->secret, sizeof key->secret) == 0)
      return refuse(p, "the key stands twice");
    if (strcmp(k->keys[i].name, key->name) == 0)
      return refuse(p, "two keys have the name '%s'", key->name);
  }
  return TD_OK;
}

/* Adds a line of n > 0 bytes, without blanks at its ends. */
static td_status add_key(td_keys *k, const char *line, size_t n, const place *p)
{
  if (k->n == td_limit_max(TD_LIMIT_API_KEYS))
    return refuse(p, "more than %u keys", k->n);
  td_key *key = &k->keys[k->n]; /* zeroed */
  size_t len = strcspn(line, " \t");
  key->account = k->n + 1;
  snprintf(key->name, sizeof key->name, "key-%u", k->n + 1);
  TD_TRY(read_secret(key, line, len < n ? len : n, p));
  for (size_t at = len; at < n; at += len) {
    at += strspn(line + at, " \t");
    len = strcspn(line + at, " \t\r\n");
    TD_TRY(read_setting(key, line + at, len, p));
  }
  TD_TRY(refuse_twice(k, key, p));
  k->last_account = ++k->n;
  return TD_OK;
}

/* ---- the file ---- */

static td_status read_lines(td_keys *k, FILE *f, const char *path, td_error *err)
{
  char *line = NULL;
  size_t cap = 0;
  ssize_t n;
  td_status st = TD_OK;
  for (int at = 1; st == TD_OK && (n = getline(&line, &cap, f)) >= 0; at++) {
    k->lacks_final_newline = n > 0 && line[n - 1] != '\n';
    while (n > 0 && strchr(" \t\r\n", line[n - 1]))
      n--;
    char *s = line;
    for (; n > 0 && (*s == ' ' || *s == '\t'); s++)
      n--;
    if (n > 0 && *s != '#')
      st = add_key(k, s, (size_t)n, &(place){path, at, err});
  }
  if (line)
    wipe(line, cap);
  free(line);
  if (st == TD_OK && ferror(f))
    st = td_fail_param(err, TD_ERR_CONFIG, "api_key_file", "%s: cannot be read", path);
  return st;
}

td_status td_keys_read(td_keys *k, const char *path, td_error *err)
{
  memset(k, 0, sizeof *k);
  if (*path == '\0')
    return TD_OK;
  const char *why;
  FILE *f = td_file_open(path, &why);
  if (!f)
    return td_fail_param(err, TD_ERR_CONFIG, "api_key_file", "%s: %s", path, why);
  k->required = true;
  k->keys = calloc(td_limit_max(TD_LIMIT_API_KEYS), sizeof *k->keys);
  td_status st = k->keys ? read_lines(k, f, path, err) : td_fail(err, TD_ERR_NOMEM, "no memory for API keys");
  fclose(f);
  if (st == TD_OK && k->n == 0)
    st = td_fail_param(err, TD_ERR_CONFIG, "api_key_file", "%s: holds no key", path);
  if (st != TD_OK)
    td_keys_deinit(k);
  return st;
}

td_status td_keys_keep_accounts(td_keys *next, const td_keys *now, td_error *err)
{
  next->last_account = now->last_account;
  for (uint32_t i = 0; i < next->n; i++) {
    td_key *key = &next->keys[i];
    key->account = 0;
    for (uint32_t j = 0; j < now->n && key->account == 0; j++)
      if (memcmp(key->secret, now->keys[j].secret, sizeof key->secret) == 0)
        key->account = now->keys[j].account;
    if (key->account == 0 && next->last_account == TD_KEY_ACCOUNTS)
      return td_fail_param(err, TD_ERR_CONFIG, "api_key_file",
                           "api_key_file: more than %d different keys since the start: a restart takes more",
                           TD_KEY_ACCOUNTS);
    if (key->account == 0)
      key->account = ++next->last_account;
  }
  return TD_OK;
}

bool td_keys_equal(const td_keys *a, const td_keys *b)
{
  return a->n == b->n && (a->n == 0 || memcmp(a->keys, b->keys, a->n * sizeof *a->keys) == 0);
}

void td_keys_deinit(td_keys *k)
{
  if (k->keys)
    wipe(k->keys, td_limit_max(TD_LIMIT_API_KEYS) * sizeof *k->keys);
  free(k->keys);
  memset(k, 0, sizeof *k);
}

const char *td_keys_from_headers(const char *authorization, const char *api_key)
{
  if (!authorization)
    return api_key;
  return strncasecmp(authorization, "Bearer ", 7) == 0 ? authorization + 7 + strspn(authorization + 7, " ")
                                                       : NULL;
}

bool td_keys_allow(const td_keys *k, const char *authorization, const char *api_key, uint32_t *account)
{
  *account = 0;
  if (!k->required)
    return true;
  const char *given = td_keys_from_headers(authorization, api_key);
  size_t n = given ? strlen(given) : 0;
  if (n == 0 || n >= TD_AUTH_KEY_BYTES)
    return false;
  unsigned char padded[TD_AUTH_KEY_BYTES] = {0};
  memcpy(padded, given, n);
  uint32_t found = 0;
  for (uint32_t i = 0; i < k->n; i++) { /* compares every byte of every key, so that time reveals nothing */
    unsigned diff = 0;
    for (size_t b = 0; b < TD_AUTH_KEY_BYTES; b++)
      diff |= (unsigned)(padded[b] ^ k->keys[i].secret[b]);
    uint32_t equal = (diff - 1u) >> 31; /* 1 if diff == 0 */
    found |= (0 - equal) & (i + 1);
  }
  *account = found > 0 ? k->keys[found - 1].account : 0;
  return found != 0;
}
