/* Options that are read again while the daemon runs (SIGHUP): which of them may change. */
#include "config/options_table.h"

#include <string.h>

#include "common/list.h"

/* The options whose value is read whenever it is needed, and kept at most for the duration of a request. */
static const char reloadable[] =
    "api_key_file, allowed_hosts, cors_origin, trusted_proxies, log_level, http_header_timeout_ms, "
    "http_body_bytes, http_body_grace_ms, http_body_min_rate, http_body_timeout_ms, http_bodies_bytes, "
    "http_idle_timeout_ms, connections_per_ip, sse_stall_ms, sse_ping_ms, drain_timeout_ms, watchers, "
    "health_stall_ms, log_requests, json_nodes, strict_fields";

bool td_option_is_reloadable(const td_option_row *r) { return td_list_has(reloadable, r->name); }

static void append_name(char list[TD_OPTION_CHANGES_BYTES], const char *name)
{
  size_t n = strlen(list);
  snprintf(list + n, TD_OPTION_CHANGES_BYTES - n, "%s%s", n > 0 ? ", " : "", name);
}

void td_options_reload(td_options *now, const td_options *next, td_options_changes *changes)
{
  *changes = (td_options_changes){0};
  for (int i = 0; i < td_n_option_rows; i++) {
    const td_option_row *r = &td_option_rows[i];
    char *to = (char *)now + r->offset;
    const char *from = td_option_text(next, r);
    if (r->kind == TD_OPTION_SECTION || memcmp(to, from, r->size) == 0)
      continue;
    bool is_reloadable = td_option_is_reloadable(r);
    append_name(is_reloadable ? changes->updated : changes->needs_restart, r->name);
    if (!is_reloadable)
      continue;
    memcpy(to, from, r->size);
    now->from[i] = next->from[i];
  }
}
