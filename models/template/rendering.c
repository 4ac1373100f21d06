/* The public interface: compile once, render often. Also what every rendering needs: its arena, its budget of
 * steps, its depth, and the single exit for errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "config/limits.h"
#include "models/template/builtin.h"
#include "models/template/chat_template.h"
#include "models/template/value.h"

struct td_chat_template {
  td_arena arena;
  function *root;
  text *context_names;
  uint32_t n_context_names, n_functions;
};

/* Evaluation needs several levels for one level of the tree, and a macro's body adds levels of its own. */
enum { LEVELS_PER_DEPTH = 8 };

static td_status compile(compiler *c, td_chat_template *t, const char *source, size_t n)
{
  if (setjmp(c->fail))
    return c->err->code;
  td_lexer_start(c, source, n);
  node *body = td_parse_template(c);
  t->root = td_scope_resolve(c, body);
  t->context_names = c->context_names;
  t->n_context_names = c->n_context_names;
  t->n_functions = c->n_functions;
  return TD_OK;
}

td_status td_chat_template_compile(const char *source, size_t n_bytes, td_chat_template **out, td_error *err)
{
  td_error own;
  *out = NULL;
  if (n_bytes > td_limit_max(TD_LIMIT_TEMPLATE_BYTES))
    return td_fail(err, TD_ERR_MODEL, "chat template is longer than %zu bytes",
                   (size_t)td_limit_max(TD_LIMIT_TEMPLATE_BYTES));
  td_chat_template *t = calloc(1, sizeof *t);
  if (!t)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the chat template");
  td_arena_init(&t->arena, SIZE_MAX / 4);
  compiler *c = calloc(1, sizeof *c);
  td_status st = TD_ERR_NOMEM;
  if (c) {
    c->arena = &t->arena;
    c->err = err ? err : &own;
    st = compile(c, t, source, n_bytes);
    free(c);
  } else {
    td_fail(err, TD_ERR_NOMEM, "no memory for the chat template");
  }
  if (st != TD_OK) {
    td_chat_template_destroy(t);
    return st;
  }
  *out = t;
  return TD_OK;
}

void td_chat_template_destroy(td_chat_template *t)
{
  if (!t)
    return;
  td_arena_deinit(&t->arena);
  free(t);
}

void td_rendered_deinit(td_rendered *r)
{
  td_buf_deinit(&r->text);
  free(r->trusted);
  *r = (td_rendered){0};
}

/* ---- errors, memory, budget ---- */

void td_render_fail_status(rendering *r, td_status code, const char *fmt, ...)
{
  char message[TD_ERROR_MESSAGE_BYTES];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(message, sizeof message, fmt, ap);
  va_end(ap);
  td_fail(r->err, code, "%s", message);
  longjmp(r->fail, 1);
}

void *td_render_alloc(rendering *r, size_t count, size_t size)
{
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > r->arena.max_bytes - r->arena.used_bytes)
    td_render_fail(r, "rendering the chat needs more than %zu bytes of memory", r->arena.max_bytes);
  void *p = td_arena_alloc(&r->arena, bytes);
  if (!p) {
    if (bytes + 16 > r->arena.max_bytes - r->arena.used_bytes)
      td_render_fail(r, "rendering the chat needs more than %zu bytes of memory", r->arena.max_bytes);
    td_render_fail_status(r, TD_ERR_NOMEM, "no memory to render the chat");
  }
  return p;
}

void td_render_fail_spent(rendering *r)
{
  td_render_fail(r, "rendering the chat takes more than %zu steps", r->in->max_ops);
}

void td_render_deeper(rendering *r)
{
  if (++r->depth > LEVELS_PER_DEPTH * td_limit_max(TD_LIMIT_TEMPLATE_DEPTH))
    td_render_fail(r, "maximum recursion depth exceeded");
}

static void merge(rendering *r, const void **items, const void **tmp, size_t mid, size_t n,
                  td_render_order order)
{
  size_t a = 0, b = mid, k = 0;
  memcpy(tmp, items, n * sizeof *items);
  while (a < mid || b < n)
    items[k++] = b >= n || (a < mid && order(r, tmp[b], tmp[a]) >= 0) ? tmp[a++] : tmp[b++];
}

static void sort_range(rendering *r, const void **items, const void **tmp, size_t n, td_render_order order)
{
  if (n < 2)
    return;
  size_t mid = n / 2;
  sort_range(r, items, tmp, mid, order);
  sort_range(r, items + mid, tmp, n - mid, order);
  td_render_pay(r, n);
  merge(r, items, tmp, mid, n, order);
}

void td_render_sort(rendering *r, const void **items, size_t n, td_render_order order)
{
  sort_range(r, items, td_render_alloc(r, n, sizeof *items), n, order);
}

/* ---- variables of the context ---- */

/* Passing over a member costs a step, because the client may send any number of members. */
static const cJSON *client_member(rendering *r, const cJSON *object, const char *key)
{
  for (const cJSON *m = object ? object->child : NULL; m; m = m->next) {
    td_render_pay(r, 1);
    if (strcmp(m->string, key) == 0)
      return m;
  }
  return NULL;
}

static value look_up(rendering *r, text name)
{
  char key[256];
  if (name.n < sizeof key) {
    memcpy(key, name.p, name.n);
    key[name.n] = '\0';
    const cJSON *item = td_json_get(r->in->trusted, key);
    if (item)
      return td_value_from_json(r, item, true);
    item = client_member(r, r->in->kwargs, key);
    if (!item)
      item = client_member(r, r->in->input, key);
    if (item) {
      value v = td_value_from_json(r, item, false);
      if (r->in->continue_final_message && strcmp(key, "messages") == 0)
        td_continuation_mark(r, v);
      return v;
    }
  }
  const builtin *global = td_builtin_find(OF_GLOBAL, name);
  return global ? (value){.type = V_BUILTIN, .fn = global} : v_missing();
}

value td_context_value(rendering *r, uint32_t index)
{
  if (!r->context_known[index]) {
    r->context[index] = look_up(r, r->t->context_names[index]);
    r->context_known[index] = true;
  }
  return r->context[index];
}

/* ---- rendering ---- */

static td_status render(rendering *r)
{
  text_out root = {.root = true};
  if (setjmp(r->fail))
    return r->err->code;
  r->context = td_render_alloc(r, r->t->n_context_names, sizeof *r->context);
  r->context_known = td_render_alloc(r, r->t->n_context_names, sizeof *r->context_known);
  r->spare = td_render_alloc(r, r->t->n_functions, sizeof *r->spare);
  r->to = &root;
  td_execute_root(r, r->t->root);
  if (r->in->continue_final_message)
    td_continuation_cut(r);
  return TD_OK;
}

td_status td_chat_template_render(const td_chat_template *t, const td_render_input *in, td_rendered *out,
                                  td_error *err)
{
  td_error own;
  *out = (td_rendered){0};
  td_buf_init(&out->text, td_limit_max(TD_LIMIT_TEMPLATE_OUTPUT_BYTES));
  rendering *r = calloc(1, sizeof *r);
  if (!r)
    return td_fail(err, TD_ERR_NOMEM, "no memory to render the chat");
  r->t = t;
  r->in = in;
  r->out = out;
  r->err = err ? err : &own;
  r->ops_left = in->max_ops;
  r->seed = td_random_u64();
  td_arena_init(&r->arena, in->max_memory_bytes);
  td_status st = render(r);
  td_arena_deinit(&r->arena);
  free(r);
  if (st != TD_OK) {
    td_buf_clear(&out->text);
    out->n_trusted = 0;
  }
  return st;
}
