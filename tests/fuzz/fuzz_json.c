/* JSON parsing. Properties: cJSON parses whatever the guard accepts (a failure there is TD_ERR_NOMEM); the
 * guard alone and the whole parser differ only on repeated keys; big integers and doubles agree with strtod
 * and the text; parsing, printing, parsing and printing gives the same text; the getters agree with one
 * another; an array of ids that stays text has the same elements as its tree. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/utf8.h"
#include "fuzz.h"

static size_t n_values;

static void check_text(const char *s)
{
  size_t n = strlen(s);
  for (size_t i = 0, len; i < n; i += len) {
    len = td_utf8_sequence_length((const unsigned char *)s + i, n - i);
    FUZZ_CHECK(len > 0);
  }
}

static void check_tree(const cJSON *item, unsigned depth, bool in_object)
{
  for (; item; item = item->next) {
    FUZZ_CHECK(depth <= 64); /* 64 arrays, and the contents of the last */
    n_values++;
    FUZZ_CHECK((item->string != NULL) == in_object);
    if (in_object)
      check_text(item->string);
    if (cJSON_IsRaw(item)) {
      const char *s = item->valuestring;
      size_t sign = *s == '-';
      FUZZ_CHECK(strspn(s + sign, "0123456789") == strlen(s + sign) && strlen(s) > 15 && strlen(s) <= 63);
      FUZZ_CHECK(fabs(strtod(s, NULL)) > 9007199254740991.0);
    } else if (cJSON_IsNumber(item)) {
      FUZZ_CHECK(!isnan(item->valuedouble));
    } else if (cJSON_IsString(item)) {
      check_text(item->valuestring);
    } else {
      FUZZ_CHECK(cJSON_IsArray(item) || cJSON_IsObject(item) || cJSON_IsBool(item) || cJSON_IsNull(item));
      check_tree(item->child, depth + 1, cJSON_IsObject(item));
    }
  }
}

static void check_getters(const cJSON *root)
{
  for (const cJSON *m = cJSON_IsObject(root) ? root->child : NULL; m; m = m->next) {
    td_error err;
    int64_t i = 0;
    uint64_t u = 0;
    double d = 0;
    bool b, pi, pu, pd;
    const char *s = NULL;
    td_status st = td_json_get_int64(root, m->string, INT64_MIN, INT64_MAX, &i, &pi, &err);
    td_status su = td_json_get_seed(root, m->string, &u, &pu, &err);
    td_status sd = td_json_get_double(root, m->string, -INFINITY, INFINITY, &d, &pd, &err);
    FUZZ_CHECK(pi == pu && pi == pd && pi == !cJSON_IsNull(m));
    if (st == TD_OK && pi)
      FUZZ_CHECK(su == TD_OK && (int64_t)u == i && sd == TD_OK && d == (double)i);
    FUZZ_CHECK((sd == TD_OK) == (cJSON_IsNumber(m) || cJSON_IsRaw(m) || cJSON_IsNull(m)));
    FUZZ_CHECK((td_json_get_bool(root, m->string, &b, NULL, &err) == TD_OK) ==
               (cJSON_IsBool(m) || cJSON_IsNull(m)));
    FUZZ_CHECK((td_json_get_string(root, m->string, &s, &err) == TD_OK) ==
               (cJSON_IsString(m) || cJSON_IsNull(m)));
    FUZZ_CHECK(td_json_get(root, m->string) == m);
  }
}

/* What cJSON prints from a tree is JSON, and stays the same when read and printed again. (The tree may
 * differ: a double of 17 digits is printed as an integer, and infinity as null.) */
static void check_round_trip(const cJSON *root, const td_json_limits *limits)
{
  char *text = cJSON_PrintUnformatted(root);
  cJSON *again;
  td_error err;
  FUZZ_CHECK(text && td_json_parse(text, strlen(text), limits, &again, &err) == TD_OK);
  char *text2 = cJSON_PrintUnformatted(again);
  FUZZ_CHECK(text2 && strcmp(text, text2) == 0);
  cJSON_Delete(again);
  cJSON_free(text2);
  cJSON_free(text);
}

/* The first member of the root, kept as text if it can be. */
static void check_ids(const uint8_t *data, size_t size, const td_json_limits *limits, const cJSON *root)
{
  const cJSON *tree = cJSON_IsObject(root) ? root->child : NULL;
  cJSON *other;
  td_error err;
  if (!tree || strpbrk(tree->string, "\"\\"))
    return;
  FUZZ_CHECK(td_json_parse_ids((const char *)data, size, limits, tree->string, &other, &err) == TD_OK);
  const cJSON *item = other->child;
  FUZZ_CHECK(item && strcmp(item->string, tree->string) == 0 &&
             cJSON_GetArraySize(other) == cJSON_GetArraySize(root));
  if (td_json_is_ids(item)) {
    FUZZ_CHECK(cJSON_IsArray(tree) && tree->child);
    td_json_ids a = td_json_ids_begin(tree), b = td_json_ids_begin(item);
    FUZZ_CHECK(a.n == b.n);
    for (size_t i = 0; i < a.n; i++) {
      double v = td_json_ids_next(&a);
      FUZZ_CHECK(v == td_json_ids_next(&b) && v >= 0 && v <= 999999999);
    }
  } else {
    FUZZ_CHECK((item->type & 0xFF) == (tree->type & 0xFF));
  }
  cJSON_Delete(other);
}

/* Strings of a body, decoded: one byte less for each NUL. */
static void check_nul_text(const cJSON *item)
{
  for (; item; item = item->next) {
    check_nul_text(item->child);
    if (!cJSON_IsString(item))
      continue;
    size_t n = strlen(item->valuestring), n_nul = 0;
    char *text = malloc(n + 1);
    size_t n_text = td_json_text(item->valuestring, text);
    for (size_t i = 0; i < n_text; i++)
      n_nul += text[i] == '\0';
    FUZZ_CHECK(n_text + n_nul == n && text[n_text] == '\0' &&
               (n_nul > 0) == td_json_has_nul(item->valuestring));
    free(text);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  const td_json_limits limits = {64, 4096, TD_ERR_REQUEST};
  td_error err = {0};
  cJSON *root;
  td_status check = td_json_check((const char *)data, size, &limits, &err);
  td_status st = td_json_parse((const char *)data, size, &limits, &root, &err);
  FUZZ_CHECK(st == TD_OK || st == TD_ERR_REQUEST);
  FUZZ_CHECK(check == TD_OK || st == check);
  FUZZ_CHECK((root != NULL) == (st == TD_OK));
  if (st != TD_OK) {
    FUZZ_CHECK(check != TD_OK || strstr(err.message, "stands twice"));
    check_text(err.message);
    check_text(err.param);
    cJSON *body; /* what is allowed in a body but not in a file */
    if (td_json_parse_ids((const char *)data, size, &limits, NULL, &body, &err) == TD_OK) {
      FUZZ_CHECK(memmem(data, size, "\\u0000", 6) != NULL);
      check_nul_text(body);
      cJSON_Delete(body);
    }
    return 0;
  }
  n_values = 0;
  check_tree(root, 0, false);
  FUZZ_CHECK(n_values <= size);
  check_getters(root);
  check_ids(data, size, &limits, root);
  if (size < 2000)
    check_round_trip(root, &limits);
  cJSON_Delete(root);
  return 0;
}
