/* How a model writes what is no plain text: its reasoning, and calls of tools. Each family has marks and a
 * form of its own; which one a model has is seen by its chat template and its vocabulary.
 *
 * A mark that is a special token of the vocabulary counts only as that token: text that spells it is text.
 * In the text that a reader is given, such a token is TD_MARK_BYTE and its text; no UTF-8 has that byte.
 * Thread: read-only once made. */
#ifndef TD_ANSWERS_DIALECT_H
#define TD_ANSWERS_DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TD_MARK_BYTE "\xFF"
enum { TD_MARK_BYTES = 32 };

typedef enum td_call_format {
  TD_CALLS_NONE,
  TD_CALLS_HERMES,   /* <tool_call>{"name": .., "arguments": {..}}</tool_call> */
  TD_CALLS_LLAMA,    /* {"name": .., "parameters": {..}}; several with ; between */
  TD_CALLS_PYTHONIC, /* [f(a=1), g(b="x")] */
  TD_CALLS_MISTRAL,  /* [TOOL_CALLS][{..}], or [TOOL_CALLS]name[ARGS]{..} */
  TD_CALLS_XML,      /* <tool_call><function=f><parameter=a>1</parameter></function></tool_call> */
  TD_CALLS_FORMATS
} td_call_format;

typedef enum td_mark_name {
  TD_MARK_CALL,
  TD_MARK_CALL_END,
  TD_MARK_ARGS,
  TD_MARK_CALL_ID,
  TD_MARK_THINK,
  TD_MARK_THINK_END,
  TD_MARKS
} td_mark_name;

typedef struct td_mark {
  char text[TD_MARK_BYTES]; /* as a reader sees it; "": the dialect has no such mark */
  uint8_t n;
  int32_t id; /* of the special token; -1: it is plain text */
} td_mark;

typedef struct td_dialect {
  td_call_format calls;
  bool thinks;
  bool lists_calls; /* Mistral's older form: a list of objects */
  bool is_guess;    /* nothing says which format it is, but the template shows tools */
  td_mark marks[TD_MARKS];
} td_dialect;

/* What is known of a model. */
typedef struct td_dialect_signs {
  const char *template; /* text of the chat template, that for tools if there is one; NULL: none */
  size_t n_template;
  const char *calls;     /* a format by its name, or "auto" */
  const char *reasoning; /* "auto", "none" or "think" */
  /* The id of a token that stands in the vocabulary as one; -1: there is none. *special: it is no text. */
  int32_t (*find)(const void *arg, const char *text, bool *special);
  const void *arg;
} td_dialect_signs;

void td_dialect_find(const td_dialect_signs *signs, td_dialect *out);
/* "hermes", ...; "none". */
const char *td_dialect_calls_name(td_call_format f);
/* How a prompt ends: a template may have begun the reasoning of the answer, or ended it. */
typedef enum td_prompt_end { TD_PROMPT_PLAIN, TD_PROMPT_THINKS, TD_PROMPT_HAS_THOUGHT } td_prompt_end;
td_prompt_end td_dialect_prompt_end(const td_dialect *d, const char *prompt, size_t n);

#endif
