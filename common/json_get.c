/* The typed getters of json.h. */
#include "common/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json_tree.h"

bool td_json_is_ids(const cJSON *item) { return cJSON_IsRaw(item) && *item->valuestring == '['; }

bool td_json_is_float(const cJSON *number)
{
  return cJSON_IsNumber(number) &&
         (number->type & TD_JSON_WRITTEN_AS_FLOAT || number->valuedouble != floor(number->valuedouble));
}

/* An integer that a double cannot hold. */
static bool is_big_integer(const cJSON *item) { return cJSON_IsRaw(item) && !td_json_is_ids(item); }

td_json_ids td_json_ids_begin(const cJSON *array)
{
  td_json_ids ids = {.item = array->child, .text = td_json_is_ids(array) ? array->valuestring : NULL};
  if (ids.text)
    ids.n = (size_t)array->valueint;
  for (const cJSON *i = array->child; i; i = i->next)
    ids.n++;
  return ids;
}

double td_json_ids_next(td_json_ids *ids)
{
  if (!ids->text) {
    const cJSON *item = ids->item;
    ids->item = item->next;
    return cJSON_IsNumber(item) ? item->valuedouble : -1;
  }
  const char *p = ids->text;
  while (*p < '0' || *p > '9')
    p++;
  int32_t v = 0;
  for (; *p >= '0' && *p <= '9'; p++)
    v = v * 10 + (*p - '0');
  ids->text = p;
  return v;
}

const cJSON *td_json_get(const cJSON *object, const char *key)
{
  if (!cJSON_IsObject(object))
    return NULL;
  return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* NULL for absent and null; sets *present. */
static const cJSON *member(const cJSON *object, const char *key, bool *present)
{
  const cJSON *item = td_json_get(object, key);
  if (cJSON_IsNull(item))
    item = NULL;
  if (present)
    *present = item != NULL;
  return item;
}

static td_status wrong_type(td_error *err, const char *key, const char *wanted)
{
  return td_fail_param(err, TD_ERR_REQUEST, key, "'%s' must be %s", key, wanted);
}

/* The tree holds larger integers as cJSON_Raw. So a number that is not exact here was written with a point or
 * an exponent. */
static bool is_exact_integer(const cJSON *item)
{
  return cJSON_IsNumber(item) && item->valuedouble == floor(item->valuedouble) &&
         fabs(item->valuedouble) <= TD_JSON_EXACT_MAX;
}

td_status td_json_get_int64(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *out,
                            bool *present, td_error *err)
{
  const cJSON *item = member(object, key, present);
  if (!item)
    return TD_OK;
  int64_t v;
  if (is_exact_integer(item)) {
    v = (int64_t)item->valuedouble;
  } else if (is_big_integer(item)) {
    errno = 0;
    v = strtoll(item->valuestring, NULL, 10);
    if (errno == ERANGE)
      return td_fail_param(err, TD_ERR_REQUEST, key, "'%s' must be between %lld and %lld", key,
                           (long long)min, (long long)max);
  } else {
    return wrong_type(err, key, "an integer");
  }
  if (v < min || v > max)
    return td_fail_param(err, TD_ERR_REQUEST, key, "'%s' must be between %lld and %lld, not %lld", key,
                         (long long)min, (long long)max, (long long)v);
  *out = v;
  return TD_OK;
}

td_status td_json_get_seed(const cJSON *object, const char *key, uint64_t *out, bool *present, td_error *err)
{
  const cJSON *item = member(object, key, present);
  if (!item)
    return TD_OK;
  if (is_big_integer(item)) {
    const char *text = item->valuestring;
    errno = 0;
    uint64_t v = *text == '-' ? (uint64_t)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
    if (errno == ERANGE)
      return wrong_type(err, key, "a 64-bit integer");
    *out = v;
    return TD_OK;
  }
  if (!is_exact_integer(item))
    return wrong_type(err, key, "a 64-bit integer");
  *out = (uint64_t)(int64_t)item->valuedouble;
  return TD_OK;
}

td_status td_json_get_double(const cJSON *object, const char *key, double min, double max, double *out,
                             bool *present, td_error *err)
{
  const cJSON *item = member(object, key, present);
  if (!item)
    return TD_OK;
  double v;
  if (cJSON_IsNumber(item))
    v = item->valuedouble;
  else if (is_big_integer(item))
    v = strtod(item->valuestring, NULL);
  else
    return wrong_type(err, key, "a number");
  if (!(v >= min && v <= max))
    return td_fail_param(err, TD_ERR_REQUEST, key, "'%s' must be between %g and %g, not %g", key, min, max,
                         v);
  *out = v;
  return TD_OK;
}

td_status td_json_get_bool(const cJSON *object, const char *key, bool *out, bool *present, td_error *err)
{
  const cJSON *item = member(object, key, present);
  if (!item)
    return TD_OK;
  if (!cJSON_IsBool(item))
    return wrong_type(err, key, "true or false");
  *out = cJSON_IsTrue(item);
  return TD_OK;
}

td_status td_json_get_string(const cJSON *object, const char *key, const char **out, td_error *err)
{
  const cJSON *item = member(object, key, NULL);
  if (!item)
    return TD_OK;
  if (!cJSON_IsString(item))
    return wrong_type(err, key, "a string");
  if (td_json_has_nul(item->valuestring))
    return wrong_type(err, key, "a string without U+0000");
  *out = item->valuestring;
  return TD_OK;
}
