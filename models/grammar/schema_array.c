/* Arrays of a schema: prefix, other elements, counts, and `contains`. */

#include "models/grammar/schema.h"

typedef struct array {
  td_schema *s;
  const td_schema_conjunction *conj;
  const cJSON **own; /* [n_prefix + 1][conj->n] the element's schema in each part's prefix, or NULL */
  uint32_t n_prefix, least, most;
  const cJSON *contains;               /* the schema that some elements must fit; NULL: there is none */
  const cJSON *fails;                  /* its denial; NULL: not needed */
  uint32_t min_contains, max_contains; /* least and most elements that fit it */
} array;

static const cJSON *prefix_of(td_schema *s, const cJSON *schema)
{
  const cJSON *prefix = td_schema_get(s, schema, "prefixItems"), *items = td_schema_get(s, schema, "items");
  return cJSON_IsArray(prefix) ? prefix : cJSON_IsArray(items) ? items : NULL;
}

/* Element i, or any element after the prefix if i >= n_prefix. If `also` is not NULL, the element must fit it
 * too. */
static const td_expr *element(array *a, uint32_t i, const cJSON *also)
{
  td_schema *s = a->s;
  const td_schema_conjunction *conj = a->conj;
  const cJSON **own = a->own + (size_t)(i < a->n_prefix ? i : a->n_prefix) * conj->n;
  td_schema_conjunction value = {0};
  bool covers[TD_SCHEMA_PARTS_MAX];
  for (uint32_t k = 0; k < conj->n; k++) {
    const cJSON *p = conj->parts[k].schema, *items = td_schema_get(s, p, "items"), *item = own[k];
    if (!item)
      item = cJSON_IsArray(items) ? td_schema_get(s, p, "additionalItems") : items;
    covers[k] = item || td_schema_get(s, p, "unevaluatedItems");
    if (item)
      td_schema_add(s, &value, item);
  }
  for (uint32_t k = 0; k < conj->n; k++) {
    const cJSON *p = conj->parts[k].schema, *m = td_schema_get(s, p, "unevaluatedItems");
    if (!m)
      continue;
    covers[k] = own[k] || td_schema_get(s, p, "items");
    if (!td_schema_is_evaluated(conj, k, covers))
      td_schema_add(s, &value, m);
    covers[k] = true;
  }
  if (also)
    td_schema_add(s, &value, also);
  return td_schema_rule(s, &value);
}

static bool read_prefixes(array *a)
{
  td_schema *s = a->s;
  const td_schema_conjunction *conj = a->conj;
  a->own = td_arena_alloc_array(&s->b->arena, (size_t)a->n_prefix + 1, conj->n * sizeof(const cJSON *));
  s->b->failed |= !a->own;
  if (!a->own || !td_schema_work(s, conj->parts[0].schema, "prefixItems", a->n_prefix))
    return false;
  for (uint32_t k = 0; k < conj->n; k++) {
    const cJSON *prefix = prefix_of(s, conj->parts[k].schema), *m = prefix ? prefix->child : NULL;
    for (uint32_t i = 0; i < a->n_prefix && m; i++, m = m->next)
      a->own[(size_t)i * conj->n + k] = m;
  }
  return true;
}

/* ---- contains ---- */

static void read_contains(array *a)
{
  td_schema *s = a->s;
  for (uint32_t i = 0; i < a->conj->n && s->status == TD_OK; i++) {
    const cJSON *p = a->conj->parts[i].schema, *m = td_schema_get(s, p, "contains");
    uint32_t min_contains = 1, max_contains = TD_REPEAT_MANY;
    const char *why = NULL;
    if (!m)
      continue;
    if (td_schema_get(s, p, "minContains")) {
      min_contains = 0;
      td_schema_count(s, p, "minContains", &min_contains, NULL);
    }
    td_schema_count(s, p, "maxContains", NULL, &max_contains);
    if (min_contains == 0 && max_contains == TD_REPEAT_MANY)
      continue;
    if (a->contains) {
      td_schema_fail(s, TD_ERR_UNSUPPORTED, p, "contains", "twice is not served");
      return;
    }
    a->contains = m;
    a->min_contains = min_contains;
    a->max_contains = max_contains;
    if (max_contains != TD_REPEAT_MANY && !(a->fails = td_schema_deny(s, m, p, &why)) && s->status == TD_OK)
      td_schema_fail(s, TD_ERR_UNSUPPORTED, p, "maxContains",
                     "is not served with a 'contains' that cannot be denied");
  }
}

/* What may follow i elements, k of which fit. fails and fits: what may follow after one more element that
 * does not, or does, fit. */
static const td_expr *cell(array *a, uint32_t i, uint32_t k, const td_expr *fails, const td_expr *fits)
{
  td_builder *b = a->s->b;
  const td_expr *comma =
      i == 0 ? &td_expr_empty : td_expr_cat2(b, td_expr_string(b, ","), td_expr_call(b, TD_RULE_SPACE));
  td_expr_list alt = {0};
  if (i >= a->least && k >= a->min_contains)
    td_expr_add(b, &alt, &td_expr_empty);
  td_expr_add(b, &alt, td_expr_cat3(b, comma, element(a, i, a->fails), fails));
  if (k < a->min_contains ||
      a->max_contains != TD_REPEAT_MANY) /* otherwise `fails` covers it, since it allows any element */
    td_expr_add(b, &alt, td_expr_cat3(b, comma, element(a, i, a->contains), fits));
  return td_expr_alt(b, &alt);
}

/* Makes a rule for each number of elements and number of fitting ones. Both stop where higher numbers make no
 * difference. */
static const td_expr *cells(array *a)
{
  td_schema *s = a->s;
  td_builder *b = s->b;
  bool bounded = a->most != TD_REPEAT_MANY;
  uint32_t rows = bounded ? a->most : a->least > a->n_prefix ? a->least : a->n_prefix;
  uint32_t columns = a->max_contains != TD_REPEAT_MANY ? a->max_contains : a->min_contains;
  if ((uint64_t)(rows + 1) * (columns + 1) > td_limit_max(TD_LIMIT_SCHEMA_ARRAY_RULES))
    return td_schema_fail(s, TD_ERR_UNSUPPORTED, a->conj->parts[0].schema, "contains",
                          "with counts so large is not served");
  uint32_t *rules = td_arena_alloc_array(&b->arena, (size_t)(rows + 1) * (columns + 2), sizeof *rules);
  if (!rules) {
    b->failed = true;
    return &td_expr_none;
  }
  uint32_t none = td_builder_add_rule(b);
  for (uint32_t at = 0; at < (rows + 1) * (columns + 2); at++)
    rules[at] = at % (columns + 2) <= columns ? td_builder_add_rule(b) : none;
  for (uint32_t i = 0; i <= rows; i++)
    for (uint32_t k = 0; k <= columns && !b->failed && td_schema_work(s, a->contains, "contains", a->conj->n);
         k++) {
      uint32_t row = (i < rows ? i + 1 : rows) * (columns + 2);
      uint32_t fit = k < columns ? k + 1 : a->max_contains != TD_REPEAT_MANY ? columns + 1 : columns;
      bool full = bounded && i == rows;
      const td_expr *fails = full ? &td_expr_none : td_expr_call(b, rules[row + k]);
      const td_expr *fits = full || fit > columns ? &td_expr_none : td_expr_call(b, rules[row + fit]);
      const td_expr *e = cell(a, i, k, fails, fits);
      b->rules[rules[i * (columns + 2) + k]] = e;
    }
  return b->failed ? &td_expr_none : td_expr_call(b, rules[0]);
}

/* ---- arrays without `contains` ---- */

static const td_expr *plain(array *a)
{
  td_builder *b = a->s->b;
  const td_expr *comma = td_expr_cat2(b, td_expr_string(b, ","), td_expr_call(b, TD_RULE_SPACE));
  const td_expr *rest = element(a, a->n_prefix, NULL);
  uint32_t floor = a->least > a->n_prefix ? a->least - a->n_prefix : 0;
  uint32_t ceiling = a->most == TD_REPEAT_MANY ? a->most : a->most - a->n_prefix;
  const td_expr *tail = td_expr_repeat(b, td_expr_cat2(b, comma, rest), floor, ceiling);
  for (uint32_t i = a->n_prefix; i-- > 0 && a->s->status == TD_OK;) {
    const td_expr *own = element(a, i, NULL);
    const td_expr *taken = td_expr_cat3(b, i > 0 ? comma : &td_expr_empty, own, tail);
    uint32_t rule = td_builder_add_rule(b);
    if (b->failed)
      return &td_expr_none;
    b->rules[rule] = i >= a->least ? td_expr_alt2(b, taken, &td_expr_empty) : taken;
    tail = td_expr_call(b, rule);
  }
  return tail;
}

const td_expr *td_schema_array(td_schema *s, const td_schema_conjunction *conj)
{
  array a = {.s = s, .conj = conj, .most = TD_REPEAT_MANY};
  td_builder *b = s->b;
  const td_expr *space = td_expr_call(b, TD_RULE_SPACE);
  for (uint32_t i = 0; i < conj->n; i++) {
    const cJSON *prefix = prefix_of(s, conj->parts[i].schema);
    uint32_t n = prefix ? (uint32_t)cJSON_GetArraySize(prefix) : 0;
    td_schema_count(s, conj->parts[i].schema, "minItems", &a.least, NULL);
    td_schema_count(s, conj->parts[i].schema, "maxItems", NULL, &a.most);
    a.n_prefix = n > a.n_prefix ? n : a.n_prefix;
  }
  read_contains(&a);
  if (a.n_prefix == 0) /* so that the first element has no comma before it */
    a.n_prefix = 1;
  if (a.n_prefix > a.most)
    a.n_prefix = a.most;
  if (s->status != TD_OK || a.least > a.most || !read_prefixes(&a))
    return &td_expr_none;
  const td_expr *elements = a.contains ? cells(&a) : plain(&a);
  return td_expr_cat3(b, td_expr_cat2(b, td_expr_string(b, "["), space), td_expr_cat2(b, elements, space),
                      td_expr_string(b, "]"));
}
