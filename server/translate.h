/* Translates bodies of the agents' routes (/v1/messages, /v1/responses) into a chat's body, so that these
 * routes can do all that a chat can. Runs on workers. */
#ifndef TD_SERVER_TRANSLATE_H
#define TD_SERVER_TRANSLATE_H

#include "server/call.h"

/* Returns the chat's body; `body` stays the caller's. Returns NULL if it failed, and call->error says why. */
cJSON *td_messages_to_chat(td_call *call, const cJSON *body);
cJSON *td_responses_to_chat(td_call *call, const cJSON *body);

/* Renames the field in an error about the translated chat to the name that it has in the route's own body. */
void td_translation_name(unsigned route, td_api_error *e);

/* ---- what both translations share. Objects may be NULL where memory was lacking: the functions then do
 * nothing but fail. Names and texts are copied ---- */

typedef struct td_translation {
  td_call *call;
  cJSON *chat;     /* the body under construction */
  cJSON *messages; /* the member `messages` of chat */
  bool failed;     /* call->error says why */
} td_translation;

/* Checks the fields of the body, and begins a chat. */
void td_translation_begin(td_translation *t, td_call *call, const cJSON *body);
/* Returns the chat, or NULL if the translation failed. */
cJSON *td_translation_end(td_translation *t);
/* Fail with 400 invalid_value or unsupported_parameter. Only the first failure is reported. */
void td_translation_invalid(td_translation *t, const char *path, const char *name, const char *text);
void td_translation_unsupported(td_translation *t, const char *path, const char *name, const char *text);
void td_translation_no_memory(td_translation *t);
/* Add a member to an object (name NULL: an item to an array). Lack of memory fails the translation. Take
 * ownership of item. */
void td_translation_put(td_translation *t, cJSON *object, const char *name, cJSON *item);
void td_translation_put_text(td_translation *t, cJSON *object, const char *name, const char *text);
/* Reports a member of a nested object that we do not serve: ignores and names it, or refuses it if
 * strict_fields is set. */
void td_translation_ignore(td_translation *t, const char *path, const char *name);
/* Copies the body's member under another name, if it is present and not null. */
void td_translation_copy(td_translation *t, const cJSON *body, const char *from, const char *to);
/* Copies the fields that have the same name on all chat routes. */
void td_translation_copy_same(td_translation *t, const cJSON *body);
/* Appends a message with this role. Returns NULL if it failed. */
cJSON *td_translation_message(td_translation *t, const char *role);
/* Appends a text part to the message's content, which becomes an array of parts. */
void td_translation_add_text(td_translation *t, cJSON *message, const char *text);
/* Appends a call to the message's tool_calls. */
void td_translation_add_call(td_translation *t, cJSON *message, const char *id, const char *name,
                             const char *arguments);
/* Appends {"type": "function", "function": {..}} to the chat's tools, without the members that are NULL. */
void td_translation_add_tool(td_translation *t, const cJSON *name, const cJSON *description,
                             const cJSON *parameters, const cJSON *strict);

static inline bool td_translation_is(const cJSON *object, const char *member, const char *word)
{
  const cJSON *m = td_json_get(object, member);
  return cJSON_IsString(m) && strcmp(m->valuestring, word) == 0;
}

#endif
