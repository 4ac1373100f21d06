/* API keys: see auth.h. */
#include "server/auth.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/limits.h"

/* Wipes what a compiler would think need not be wiped. */
static void wipe(void *p, size_t n) { explicit_bzero(p, n); }

static td_status add_key(td_keys *k, const char *line, size_t n, const char *path, int at, td_error *err)
{
  if (n >= TD_AUTH_KEY_BYTES)
    return td_fail_param(err, TD_ERR_CONFIG, "api_key_file", "%s:%d: key longer than %d bytes", path, at,
                         TD_AUTH_KEY_BYTES - 1);
  if (k->n == td_limit_max(TD_LIMIT_API_KEYS))
    return td_fail_param(err, TD_ERR_CONFIG, "api_key_file", "%s: more than %u keys", path, k->n);
  for (size_t i = 0; i < n; i++)
    if (line[i] <= 0x20 || line[i] >= 0x7f)
      return td_fail_param(err, TD_ERR_CONFIG, "api_key_file", "%s:%d: a key is visible ASCII without spaces",
                           path, at);
  memcpy(k->keys[k->n], line, n); /* the table is zeroed */
  for (uint32_t i = 0; i < k->n; i++)
    if (memcmp(k->keys[i], k->keys[k->n], TD_AUTH_KEY_BYTES) == 0)
      return td_fail_param(err, TD_ERR_CONFIG, "api_key_file", "%s:%d: the key stands twice", path, at);
  k->n++;
  return TD_OK;
}

static td_status read_lines(td_keys *k, FILE *f, const char *path, td_error *err)
{
  char *line = NULL;
  size_t cap = 0;
  ssize_t n;
  td_status st = TD_OK;
  for (int at = 1; st == TD_OK && (n = getline(&line, &cap, f)) >= 0; at++) {
    while (n > 0 && strchr(" \t\r\n", line[n - 1]))
      n--;
    char *s = line;
    for (; n > 0 && (*s == ' ' || *s == '\t'); s++)
      n--;
    if (n > 0 && *s != '#')
      st = add_key(k, s, (size_t)n, path, at, err);
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
  FILE *f = fopen(path, "re");
  if (!f)
    return td_fail_param(err, TD_ERR_CONFIG, "api_key_file", "%s: %s", path, strerror(errno));
  k->asked = true;
  k->keys = calloc(td_limit_max(TD_LIMIT_API_KEYS), sizeof *k->keys);
  td_status st = k->keys ? read_lines(k, f, path, err) : td_fail(err, TD_ERR_NOMEM, "no memory for API keys");
  fclose(f);
  if (st == TD_OK && k->n == 0)
    st = td_fail_param(err, TD_ERR_CONFIG, "api_key_file", "%s: holds no key", path);
  if (st != TD_OK)
    td_keys_deinit(k);
  return st;
}

void td_keys_deinit(td_keys *k)
{
  if (k->keys)
    wipe(k->keys, td_limit_max(TD_LIMIT_API_KEYS) * sizeof *k->keys);
  free(k->keys);
  memset(k, 0, sizeof *k);
}

bool td_keys_allow(const td_keys *k, const char *authorization, uint32_t *account)
{
  *account = 0;
  if (!k->asked)
    return true;
  if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
    return false;
  const char *given = authorization + 7 + strspn(authorization + 7, " ");
  size_t n = strlen(given);
  if (n == 0 || n >= TD_AUTH_KEY_BYTES)
    return false;
  unsigned char padded[TD_AUTH_KEY_BYTES] = {0};
  memcpy(padded, given, n);
  uint32_t found = 0;
  for (uint32_t i = 0; i < k->n; i++) { /* every key, every byte, no early way out */
    unsigned diff = 0;
    for (size_t b = 0; b < TD_AUTH_KEY_BYTES; b++)
      diff |= (unsigned)(padded[b] ^ k->keys[i][b]);
    uint32_t equal = (diff - 1u) >> 31; /* 1 if diff == 0 */
    found |= (0 - equal) & (i + 1);
  }
  *account = found;
  return found != 0;
}
