/* A call whose choice produces the tokens that the test gives it, and the answer made from them. */
#ifndef TD_TESTS_SERVER_SCENE_FIXTURE_H
#define TD_TESTS_SERVER_SCENE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/call.h"
#include "server/parts_json.h"

static inline void is(td_buf *out, const char *want)
{
  assert_false(out->failed);
  assert_string_equal(out->data ? out->data : "", want);
  td_buf_clear(out);
}

typedef struct scene {
  td_server *server;
  td_call call;
  td_choice choice;
  td_prompt prompt;
  td_engine_info info;
  td_buf out;
} scene;

static inline void open_scene(scene *s, const td_api *api, bool stream)
{
  memset(s, 0, sizeof *s);
  s->server = calloc(1, sizeof *s->server);
  assert_non_null(s->server);
  s->call.server = s->server;
  s->call.api = api;
  s->call.info = &s->info;
  s->call.request.stream = stream;
  s->call.request.include_reasoning = true;
  s->call.created_s = 7;
  s->call.prompts = &s->prompt;
  s->call.n_prompts = 1;
  s->call.choices = &s->choice;
  s->call.n_choices = 1;
  strcpy(s->call.id, "resp_0123456789abcdef0123456789abcdef");
  strcpy(s->info.model_name, "m");
  s->choice.call = &s->call;
  s->choice.n_prompt = 10;
  s->choice.n_cached = 4;
  s->choice.n_read = 6;
  s->choice.n_reasoning = 2;
  td_parsed_answer_init(&s->choice.parsed);
  td_parsed_answer_init(&s->choice.sent_so_far);
  td_buf_init(&s->out, 0);
}

static inline void close_scene(scene *s)
{
  td_parsed_answer_deinit(&s->choice.parsed);
  td_parsed_answer_deinit(&s->choice.sent_so_far);
  td_buf_deinit(&s->choice.logprobs);
  td_buf_deinit(&s->choice.out);
  td_buf_deinit(&s->choice.ids);
  td_buf_deinit(&s->prompt.logprobs);
  td_buf_deinit(&s->prompt.json);
  td_buf_deinit(&s->call.echo);
  td_buf_deinit(&s->out);
  free(s->server);
}

static inline void add_part(scene *s, td_answer_part_kind kind, uint32_t call, const char *text)
{
  s->choice.parsed.n_calls += kind == TD_PART_CALL;
  td_parsed_answer_add(&s->choice.parsed, kind, call, text, strlen(text));
}

static inline const char *id_of(const scene *s, uint32_t n)
{
  static char id[4][TD_CALL_ID_BYTES];
  td_parts_json_call_id(&s->choice, n, id[n]);
  return id[n];
}

/* An answer's delta, as generation.c sends it. */
static inline void delta(scene *s, bool first, const char *finish)
{
  td_delta d = {.choice = &s->choice, .first = first, .finish = finish};
  s->choice.finish = finish;
  s->call.api->render_delta(&s->call, &d, &s->out);
  td_parsed_answer_clear(&s->choice.parsed);
}

static inline void expect(scene *s, const char *fmt, ...) TD_PRINTF(2, 3);
static inline void expect(scene *s, const char *fmt, ...)
{
  static char want[16384];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(want, sizeof want, fmt, ap);
  va_end(ap);
  is(&s->out, want);
}

static inline void add_parts(scene *s)
{
  add_part(s, TD_PART_REASONING, 0, "hm\"");
  add_part(s, TD_PART_CONTENT, 0, "one");
  add_part(s, TD_PART_CALL, 0, "f");
  add_part(s, TD_PART_ARGUMENTS, 0, "{\"a\":1}");
  add_part(s, TD_PART_CALL, 1, "g");
  add_part(s, TD_PART_CONTENT, 0, "two");
}

static inline void whole(scene *s, const char *finish)
{
  s->choice.finish = finish;
  s->call.api->render_answer(&s->call, &s->out);
}

#endif
