/* GET /v1/models and /v1/models/{id}. */
#include <inttypes.h>
#include <string.h>

#include "common/list.h"
#include "server/router.h"

static void render_model(const td_engine_info *info, td_list_item id, td_buf *out)
{
  td_buf_append_str(out, "{\"id\":");
  td_buf_append_json_string(out, id.s, id.n);
  td_buf_printf(out, ",\"object\":\"model\",\"created\":%" PRIu64 ",\"owned_by\":\"tandem\",\"root\":",
                info->loaded_at_unix_s);
  td_buf_append_json_string(out, info->model_name, strlen(info->model_name));
  td_buf_printf(out, ",\"parent\":null,\"max_model_len\":%u}", info->max_context_tokens);
}

/* Lists the model under each of its names. */
static void render_list(const td_conn *c, td_buf *out)
{
  const td_engine_info *info = td_engine_get_info(c->server->engine);
  const char *names = c->server->options->served_model_name;
  td_list_item id = {info->model_name, strlen(info->model_name)};
  td_buf_append_str(out, "{\"object\":\"list\",\"data\":[");
  render_model(info, id, out);
  for (bool first = true; td_list_next(&names, &id); first = false) {
    if (first)
      continue; /* the first name is the model's, rendered above */
    td_buf_append_char(out, ',');
    render_model(info, id, out);
  }
  td_buf_append_str(out, "]}");
}

static int hex(char c)
{
  return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Decodes a percent-encoded path segment. Returns false if it holds a NUL or is too long to be a name. */
static bool decode(const char *path, char *name, size_t size)
{
  size_t n = 0;
  for (; *path && n + 1 < size; path++) {
    char c = *path;
    if (c == '%' && hex(path[1]) >= 0 && hex(path[2]) >= 0) {
      c = (char)(hex(path[1]) * 16 + hex(path[2]));
      path += 2;
    }
    if (c == '\0')
      return false;
    name[n++] = c;
  }
  name[n] = '\0';
  return *path == '\0';
}

void td_api_models(td_conn *c)
{
  static const char base[] = "/v1/models";
  const td_engine_info *info = td_engine_get_info(c->server->engine);
  const char *rest = c->http.head.path + sizeof base - 1;
  char name[TD_OPTION_STRING_BYTES];
  td_buf out;
  if (strcmp(rest, "/") == 0) /* "/v1/models/" means the list too */
    rest = "";
  bool decoded = *rest == '/' && decode(rest + 1, name, sizeof name);
  if (*rest == '/' && !(decoded && td_server_has_model(c->server, name))) {
    td_api_error e;
    td_api_error_set(&e, 404, "model_not_found", "model",
                     "the model '%.200s' is not served here; '%.200s' is", decoded ? name : rest + 1,
                     info->model_name);
    td_conn_respond_error(c, &e);
    return;
  }
  td_buf_init(&out, 0);
  if (*rest == '/') {
    render_model(info, (td_list_item){name, strlen(name)}, &out);
  } else {
    render_list(c, &out);
  }
  td_conn_respond_buf(c, 200, "application/json", NULL, &out);
  td_buf_deinit(&out);
}
