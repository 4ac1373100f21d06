/* Shared by the tokenizer's tests: files of tests/golden_text, encoding, decoding. */
#ifndef TEST_TOKENIZER_UTIL_H
#define TEST_TOKENIZER_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/utf8.h"
#include "models/tokenizer/internal.h"

/* NULL if the file is not there. Terminated. */
static inline char *util_read(const char *path, size_t *n)
{
  FILE *f = fopen(path, "rb");
  if (!f)
    return NULL;
  fseek(f, 0, SEEK_END);
  *n = (size_t)ftell(f);
  rewind(f);
  char *data = malloc(*n + 1);
  assert_non_null(data);
  assert_int_equal(fread(data, 1, *n, f), *n);
  data[*n] = '\0';
  fclose(f);
  return data;
}

static inline cJSON *util_parse(const char *text, size_t n)
{
  td_json_limits limits = {64, 8388608, TD_ERR_MODEL};
  td_error err = {0};
  cJSON *json = NULL;
  if (td_json_parse(text, n, &limits, &json, &err) != TD_OK)
    fail_msg("%s", err.message);
  return json;
}

/* NULL if the file is not there. */
static inline cJSON *util_read_json(const char *folder, const char *name)
{
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  size_t n;
  char *text = util_read(path, &n);
  cJSON *json = text ? util_parse(text, n) : NULL;
  free(text);
  return json;
}

#define GOLDEN_DIR TD_SOURCE_DIR "/tests/golden_text"

static inline td_tokenizer *util_load(const cJSON *json)
{
  td_error err = {0};
  td_tokenizer *t = NULL;
  if (td_tokenizer_load_json(json, NULL, &t, &err) != TD_OK)
    fail_msg("%s", err.message);
  return t;
}

/* Encodes n bytes; trusted: all of it. The caller frees ids. */
static inline td_ids util_encode(const td_tokenizer *t, const char *text, size_t n, bool trusted)
{
  td_span all = {0, n};
  td_ids ids = {0};
  td_error err = {0};
  if (td_tokenizer_encode(t, text, n, &all, trusted, false, 0, &ids, &err) != TD_OK)
    fail_msg("%s", err.message);
  return ids;
}

static inline void util_assert_ids(const td_ids *got, const int32_t *want, size_t n)
{
  assert_int_equal(got->n, n);
  for (size_t i = 0; i < n; i++)
    assert_int_equal(got->ids[i], want[i]);
}

static inline bool has_id(const td_ids *ids, int32_t id)
{
  for (size_t i = 0; i < ids->n; i++)
    if (ids->ids[i] == id)
      return true;
  return false;
}

#endif
