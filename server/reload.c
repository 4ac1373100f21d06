/* SIGHUP: reads options and keys again from the same places, while requests run. All changeable options
 * change in one turn of the loop. If anything is wrong, nothing changes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/io.h"
#include "common/list.h"
#include "common/log.h"
#include "server/notify.h"
#include "server/origin.h"
#include "server/server.h"
#include "server/watch.h"

td_status td_server_read_keys_and_proxies(const td_options *o, td_keys *keys, td_ranges *proxies,
                                          td_error *err)
{
  const char *names = o->served_model_name;
  for (td_list_item name; td_list_next(&names, &name);)
    if (name.n >= sizeof(td_engine_info){0}.model_name)
      return td_fail_param(err, TD_ERR_CONFIG, "served_model_name", "served_model_name: a name is too long");
  TD_TRY(td_origin_check_options(o, err));
  TD_TRY(td_ranges_read(proxies, o->trusted_proxies, err));
  TD_TRY(td_keys_read(keys, o->api_key_file, err));
  if (keys->lacks_final_newline)
    td_warn("%s: its last line has no newline, as of a file that is still being written", o->api_key_file);
  return TD_OK;
}

/* Refuses a pipe: what came from it at the start is used up, and the loop would block on it. */
static td_status can_be_read_again(const char *path, td_error *err)
{
  if (*path && !td_file_can_be_read_again(path))
    return td_fail(err, TD_ERR_CONFIG, "%s: it is no regular file, which alone can be read again", path);
  return TD_OK;
}

/* All steps that can fail. */
static td_status prepare(const td_server *s, td_options *next, td_keys *keys, td_ranges *proxies,
                         td_error *err)
{
  td_options_action action;
  td_options_init(next);
  TD_TRY(can_be_read_again(s->options->config, err));
  TD_TRY(td_options_read(next, s->argc, s->argv, &action, err));
  TD_TRY(can_be_read_again(next->api_key_file, err));
  TD_TRY(td_server_read_keys_and_proxies(next, keys, proxies, err));
  td_status st = td_keys_keep_accounts(keys, &s->keys, err);
  if (st == TD_OK && keys->lacks_final_newline &&
      !td_keys_equal(keys, &s->keys)) /* a half-written file would drop keys */
    st = td_fail_param(err, TD_ERR_CONFIG, "api_key_file",
                       "%s: it has other keys, and its last line has no newline, as of a file that is still "
                       "being written: end that line, or write another file and rename it",
                       next->api_key_file);
  if (st == TD_OK && keys->required != s->keys.required)
    st = td_fail_param(err, TD_ERR_CONFIG, "api_key_file",
                       "api_key_file: whether keys are asked at all changes by a restart only");
  if (st != TD_OK)
    td_keys_deinit(keys);
  return st;
}

/* How many keys of `of` are not in `beside`; for the log. */
static uint32_t count_new(const td_keys *of, const td_keys *beside)
{
  uint32_t n = of->n;
  for (uint32_t i = 0; i < of->n; i++)
    for (uint32_t j = 0; j < beside->n; j++)
      n -= of->keys[i].account == beside->keys[j].account;
  return n;
}

static void take_keys(td_server *s, td_keys *next)
{
  td_error err;
  uint32_t n_new = count_new(next, &s->keys), n_gone = count_new(&s->keys, next);
  td_tenants_set_keys(&s->tenants, next);
  td_keys_deinit(&s->keys);
  s->keys = *next;
  if (td_engine_set_accounts(s->engine, s->keys.n, &err) != TD_OK) /* its memory was allocated at start */
    td_warn("%s", err.message);
  if (n_new + n_gone == 0)
    return;
  td_watch_end_all(s); /* a watcher's key may be gone, or may no longer see all */
  td_info("SIGHUP: %" PRIu32 " keys are new, %" PRIu32 " are gone, %" PRIu32 " in all", n_new, n_gone,
          s->keys.n);
}

/* systemd copies a credential when the service starts, and a reload reads that copy (systemd.exec(5)). */
static void warn_of_copy(const char *api_key_file)
{
  const char *folder = getenv("CREDENTIALS_DIRECTORY");
  size_t n = folder ? strlen(folder) : 0;
  if (n > 0 && strncmp(api_key_file, folder, n) == 0 && api_key_file[n] == '/')
    td_warn("SIGHUP: api_key_file is a credential, which systemd copied at the start: changed keys take a "
            "restart");
}

/* A daemon that started with one key reserves no running places for other accounts (scheduler/places.h), and
 * cannot begin to while answers run. */
static void warn_of_places(const td_server *s)
{
  if (s->n_keys_at_start == 1 && s->keys.n > 1)
    td_warn("SIGHUP: the daemon started with one key: keys share places after a restart only");
}

static void apply(td_server *s, const td_options *next, td_keys *keys, const td_ranges *proxies)
{
  td_options_changes changes;
  td_options_reload(s->options, next, &changes);
  td_log_set_level(s->options->log_level);
  s->trusted_proxies = *proxies;
  take_keys(s, keys);
  if (*changes.updated)
    td_info("SIGHUP: new values of %s", changes.updated);
  if (*changes.needs_restart)
    td_warn("SIGHUP: changed, but taken at a restart only: %s", changes.needs_restart);
  warn_of_copy(s->options->api_key_file);
  warn_of_places(s);
  td_info("SIGHUP: options and keys are read again");
}

void td_server_reload(td_server *s)
{
  td_error err = {0};
  td_keys keys;
  td_ranges proxies;
  char text[64];
  if (s->engine_state == TD_ENGINE_LOADING) {
    s->reload_pending = true;
    return;
  }
  s->reload_pending = false;
  if (s->draining)
    return;
  snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, td_clock_us());
  td_notify(text);
  td_options *next = malloc(sizeof *next);
  td_status st = next ? prepare(s, next, &keys, &proxies, &err) : td_fail(&err, TD_ERR_NOMEM, "no memory");
  if (st == TD_OK)
    apply(s, next, &keys, &proxies);
  else
    td_error_log("SIGHUP: nothing is changed: %s", err.message);
  free(next);
  td_notify("READY=1\nSTATUS=serving");
}
