/* Routes: see router.h. */
#include "server/router.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "server/call.h"
#include "server/answer_memory.h"
#include "server/key_limits.h"
#include "server/origin.h"
#include "server/watch.h"

typedef struct route {
  const char *path;
  bool prefix;    /* `path` needs to match the beginning only */
  bool post;      /* takes POST; otherwise GET and HEAD */
  bool open;      /* needs no key */
  bool any_state; /* also while loading or draining */
  bool probe;     /* exempt from the check of Host and Origin: orchestrators use any name for us */
  void (*answer)(td_conn *c);
  const td_api *api;
} route;

static const route routes[] = {
    {"/v1/chat/completions", .post = true, .api = &td_api_chat},
    {"/v1/completions", .post = true, .api = &td_api_completions},
    {"/v1/embeddings", .post = true, .api = &td_api_embeddings},
    {"/v1/responses", .post = true, .api = &td_api_responses},
    {"/v1/messages", .post = true, .api = &td_api_messages},
    {"/v1/messages/count_tokens", .post = true, .api = &td_api_count_tokens},
    {"/tokenize", .post = true, .api = &td_api_tokenize},
    {"/detokenize", .post = true, .api = &td_api_detokenize},
    {"/tokenizer_info", .answer = td_api_tokenizer_info},
    {"/version", .any_state = true, .answer = td_api_version},
    {"/v1/models", .answer = td_api_models},
    {"/v1/models/", .prefix = true, .answer = td_api_models},
    {"/", .open = true, .any_state = true, .answer = td_api_page},
    {"/v1/steps", .any_state = true, .answer = td_watch_begin},
    {"/metrics", .any_state = true, .answer = td_api_metrics},
    {"/health", .open = true, .any_state = true, .probe = true, .answer = td_api_health},
    {"/ready", .open = true, .any_state = true, .probe = true, .answer = td_api_ready},
};

static const route *find_route(const char *path)
{
  for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
    const route *r = &routes[i];
    if (r->prefix ? strncmp(path, r->path, strlen(r->path)) == 0 : strcmp(path, r->path) == 0)
      return r;
  }
  return NULL;
}

/* The route that a client may have meant by an unknown path. The commonest mistakes are a base URL without
 * /v1, a /v1 where it does not belong, and a trailing slash. */
static const route *find_meant(const char *path, char *spelled, size_t max)
{
  static const char *const fronts[] = {"", "/v1"};
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/')
    n--;
  for (size_t skip = 0; skip <= 3; skip += 3) {
    if (skip > 0 && strncmp(path, "/v1/", 4) != 0)
      break;
    for (size_t i = 0; i < 2; i++) {
      int len = snprintf(spelled, max, "%s%.*s", fronts[i], (int)(n - skip), path + skip);
      if (len > 1 && (size_t)len < max && find_route(spelled))
        return find_route(spelled);
    }
  }
  return NULL;
}

static void no_such_route(const char *path, td_api_error *e)
{
  char meant[100];
  if (find_meant(path, meant, sizeof meant))
    td_api_error_set(e, 404, "not_found", NULL, "no such route: %.200s; %s is one", path, meant);
  else
    td_api_error_set(e, 404, "not_found", NULL, "no such route: %.200s", path);
}

/* application/json, with or without parameters. */
static bool is_json(const char *type)
{
  size_t n = strcspn(type, "; \t");
  return n == 16 && strncasecmp(type, "application/json", n) == 0;
}

static bool admit_state(const td_server *s, td_api_error *e)
{
  bool drains = s->draining && !s->handing_over &&
                s->engine_state != TD_ENGINE_FAILED; /* if it failed, report that instead */
  if (!drains)
    return td_server_accepts_requests(s->engine_state, e);
  td_api_error_set(e, 503, "shutting_down", NULL, "the server is shutting down");
  return false;
}

/* A daemon either generates or makes embeddings. */
static bool admit_kind(const td_server *s, const route *r, td_api_error *e)
{
  bool embeds = td_engine_get_info(s->engine)->makes_embeddings;
  if (r->api->render_answer && embeds != (r->api == &td_api_embeddings)) {
    td_api_error_set(e, 404, "not_served", NULL, "%s is not served here: %s", r->path,
                     embeds ? "this daemon makes embeddings (option pooling), at /v1/embeddings"
                            : "embeddings are made by a daemon whose option pooling is last or mean");
    return false;
  }
  return true;
}

/* Refuses a request under overload before its body is read, let alone tokenised. */
static bool admit_load(td_server *s, const td_tenant *tenant, td_api_error *e)
{
  uint64_t cap = (uint64_t)td_option(s->options, TD_LIMIT_QUEUE_REQUESTS);
  if (td_tenant_may_queue(&s->tenants, tenant, cap, (uint64_t)s->n_reading + s->n_choices, 1, e))
    return true;
  td_server_set_retry_after(s, e, 1);
  return false;
}

/* Determines the tenant that the request and its body are charged to. */
static bool admit_tenant(td_conn *c, uint32_t account, td_api_error *e)
{
  td_tenants *t = &c->server->tenants;
  td_tenant *tenant = td_tenant_of(t, c, account);
  if (!tenant) {
    td_api_error_set(e, 503, "out_of_memory", NULL, "no memory for the request");
    return false;
  }
  TD_BUG_ON(c->body_counted > 0);
  td_conn_set_tenant(c, tenant);
  return true;
}

/* Requires a Content-Type, because a web page can send a POST without one to any address and need not ask
 * first (CORS). */
static bool admit_body(const td_http_head *h, td_api_error *e)
{
  if (h->content_encoding && strcasecmp(h->content_encoding, "identity") != 0)
    td_api_error_set(e, 415, "unsupported_encoding", NULL, "bodies with a Content-Encoding are not accepted");
  else if (!h->content_type)
    td_api_error_set(e, 415, "unsupported_content_type", NULL,
                     "the Content-Type must be application/json, and there is none");
  else if (!is_json(h->content_type))
    td_api_error_set(e, 415, "unsupported_content_type", NULL,
                     "the Content-Type must be application/json, not '%.100s'", h->content_type);
  else
    return true;
  return false;
}

/* True for unknown routes below it too: clients ask for /v1/messages/batches. */
bool td_router_is_anthropic(const char *path)
{
  static const char root[] = "/v1/messages";
  size_t n = strlen(root);
  return path && strncmp(path, root, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

bool td_router_admit(td_conn *c, td_api_error *e, const char **headers)
{
  static const char allow_get[] = "allow: GET, HEAD, OPTIONS\r\n", allow_post[] = "allow: POST, OPTIONS\r\n";
  const td_http_head *h = &c->http.head;
  const route *r = find_route(h->path);
  uint32_t account = 0;
  *headers = NULL;
  c->note.is_call = r && r->api;
  c->note.is_anthropic = td_router_is_anthropic(h->path);
  if (!c->server->keys.required && !(r && r->probe) && !td_origin_admit(c->server->options, h, e))
    return false;
  if (h->method == TD_HTTP_OPTIONS && (r || strcmp(h->path, "*") == 0))
    return true;
  if (!r) {
    no_such_route(h->path, e);
    return false;
  }
  bool get = h->method == TD_HTTP_GET || h->method == TD_HTTP_HEAD;
  if (r->post ? h->method != TD_HTTP_POST : !get) {
    *headers = r->post ? allow_post : allow_get;
    td_api_error_set(e, 405, "method_not_allowed", NULL, "%s is not allowed here; %s is", h->method_name,
                     r->post ? "POST" : "GET");
    return false;
  }
  if (!r->open && !td_keys_allow(&c->server->keys, h->authorization, h->api_key, &account)) {
    *headers = "www-authenticate: Bearer\r\n";
    td_api_error_set(e, 401, "invalid_api_key", NULL, "%s",
                     td_keys_from_headers(h->authorization, h->api_key)
                         ? "this API key is not valid"
                         : "an API key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
    return false;
  }
  c->note.account = account;
  if (!r->any_state && !admit_state(c->server, e))
    return false;
  if (!r->post)
    return true;
  /* A request that is refused already (c->deferred_error) is not charged to its key's limits. */
  bool generates = r->api->generates;
  return admit_kind(c->server, r, e) && admit_body(h, e) && admit_tenant(c, account, e) &&
         td_answer_memory_admit(c, e) && (!generates || admit_load(c->server, c->tenant, e)) &&
         (c->deferred_error || td_key_limits_admit(c->tenant, generates, td_clock_us(), e));
}

void td_router_dispatch(td_conn *c)
{
  const td_http_head *h = &c->http.head;
  const route *r = find_route(h->path);
  if (h->method == TD_HTTP_OPTIONS) {
    const char *allow = !r        ? "allow: GET, HEAD, POST, OPTIONS\r\n"
                        : r->post ? "allow: POST, OPTIONS\r\n"
                                  : "allow: GET, HEAD, OPTIONS\r\n";
    td_conn_respond(c, 204, NULL, allow, "", 0);
    return;
  }
  if (r->answer) {
    r->answer(c);
    return;
  }
  td_call_begin(c, r->api);
}
