/* Bodies of the routes that agents speak (/v1/messages, /v1/responses), made into a chat's: what a chat can
 * do, they can. For workers. */
#ifndef TD_SERVER_TRANSLATE_H
#define TD_SERVER_TRANSLATE_H

#include "server/call.h"

/* From the parsed body, which stays the caller's. NULL: call->error says why. */
cJSON *td_messages_to_chat(td_call *call, const cJSON *body);
cJSON *td_responses_to_chat(td_call *call, const cJSON *body);

/* An error of the chat that was made: the field has the name again that it has in the route's own body. */
void td_translation_name(unsigned route, td_api_error *e);

/* ---- what both share. A tree that memory failed for is NULL, and so is what is made of it; names and texts
 * are copied ---- */

typedef struct td_translation {
  td_call *call;
  cJSON *chat;     /* the body that is made */
  cJSON *messages; /* in it */
  bool failed;     /* call->error says why */
} td_translation;

/* Judges the members of the body, and begins a chat. */
void td_translation_begin(td_translation *t, td_call *call, const cJSON *body);
/* The chat, or NULL. */
cJSON *td_translation_end(td_translation *t);
/* 400 invalid_value or unsupported_parameter; the first counts. */
void td_translation_invalid(td_translation *t, const char *path, const char *name, const char *text);
void td_translation_unsupported(td_translation *t, const char *path, const char *name, const char *text);
void td_translation_no_memory(td_translation *t);
/* Members of an object; want of memory fails the translation. item is taken. */
void td_translation_put(td_translation *t, cJSON *object, const char *name, cJSON *item);
void td_translation_put_text(td_translation *t, cJSON *object, const char *name, const char *text);
/* A member of an object that is read for its other members: it is ignored and named, or refused where fields
 * are strict. */
void td_translation_ignore(td_translation *t, const char *path, const char *name);
/* A copy of the body's member under another name, if it is there and not null. */
void td_translation_copy(td_translation *t, const cJSON *body, const char *from, const char *to);
/* Of the fields that all routes of chats take under the same name. */
void td_translation_copy_same(td_translation *t, const cJSON *body);
/* A message of that role at the end; NULL if it failed. */
cJSON *td_translation_message(td_translation *t, const char *role);
/* A text part at the end of the message's content, which becomes an array of parts. */
void td_translation_add_text(td_translation *t, cJSON *message, const char *text);
/* A call at the end of the message's tool_calls. */
void td_translation_add_call(td_translation *t, cJSON *message, const char *id, const char *name,
                             const char *arguments);
/* {"type": "function", "function": {..}} at the end of the chat's tools; NULL members are left out. */
void td_translation_add_tool(td_translation *t, const cJSON *name, const cJSON *description,
                             const cJSON *parameters, const cJSON *strict);

static inline bool td_translation_is(const cJSON *object, const char *member, const char *word)
{
  const cJSON *m = td_json_get(object, member);
  return cJSON_IsString(m) && strcmp(m->valuestring, word) == 0;
}

#endif
