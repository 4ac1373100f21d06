/* Reading a request from its JSON. */
#ifndef TD_TESTS_SERVER_REQUEST_FIXTURE_H
#define TD_TESTS_SERVER_REQUEST_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/limits.h"
#include "server/request.h"

static const td_request_rules rules = {
    {.temperature = 0.5f, .top_p = 0.75f, .min_p = 0.25f, .top_k = 7}, 1000, false};

static inline bool read_by(const td_request_rules *by, const char *json, unsigned route, td_api_request *r,
                           td_api_error *e)
{
  td_json_limits limits = {64, 65536, TD_ERR_REQUEST};
  td_error err;
  cJSON *root;
  if (td_json_parse(json, strlen(json), &limits, &root, &err) != TD_OK)
    fail_msg("not JSON: %s: %s", json, err.message);
  bool ok = td_request_read(root, route, by, r, e);
  if (ok && r->messages)
    ok = td_messages_normalise((cJSON *)r->messages, &(td_message_rules){false, 100}, &r->unknown, e);
  cJSON_Delete(root);
  return ok;
}

static inline bool read_json(const char *json, unsigned route, td_api_request *r, td_api_error *e)
{
  return read_by(&rules, json, route, r, e);
}

#endif
