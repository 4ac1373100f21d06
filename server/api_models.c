/* GET /v1/models and /v1/models/{id}. */
#include <inttypes.h>
#include <string.h>

#include "server/router.h"

static void render_model(const td_engine_info *info, td_buf *out)
{
  size_t n = strlen(info->model_name);
  td_buf_append_str(out, "{\"id\":");
  td_buf_append_json_string(out, info->model_name, n);
  td_buf_printf(out, ",\"object\":\"model\",\"created\":%" PRIu64 ",\"owned_by\":\"tandem\",\"root\":",
                info->loaded_at_unix_s);
  td_buf_append_json_string(out, info->model_name, n);
  td_buf_printf(out, ",\"parent\":null,\"max_model_len\":%u}", info->max_context_tokens);
}

static int hex(char c)
{
  return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Whether the percent-encoded path segment spells name. */
static bool path_equals(const char *path, const char *name)
{
  for (; *path; path++, name++) {
    char c = *path;
    if (c == '%' && hex(path[1]) >= 0 && hex(path[2]) >= 0) {
      c = (char)(hex(path[1]) * 16 + hex(path[2]));
      path += 2;
    }
    if (c == '\0' || c != *name)
      return false;
  }
  return *name == '\0';
}

void td_api_models(td_conn *c)
{
  static const char base[] = "/v1/models";
  const td_engine_info *info = td_engine_get_info(c->server->engine);
  const char *rest = c->http.head.path + sizeof base - 1;
  td_buf out;
  if (strcmp(rest, "/") == 0) /* a slash too many: the list */
    rest = "";
  if (*rest == '/' && !path_equals(rest + 1, info->model_name)) {
    td_api_error e;
    td_api_error_set(&e, 404, "model_not_found", "model",
                     "the model '%.200s' is not served here; '%.200s' is", rest + 1, info->model_name);
    td_conn_respond_error(c, &e);
    return;
  }
  td_buf_init(&out, 0);
  if (*rest == '/') {
    render_model(info, &out);
  } else {
    td_buf_append_str(&out, "{\"object\":\"list\",\"data\":[");
    render_model(info, &out);
    td_buf_append_str(&out, "]}");
  }
  td_conn_respond_buf(c, 200, "application/json", NULL, &out);
  td_buf_deinit(&out);
}
