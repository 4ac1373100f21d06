/* How a model writes what is not plain text: its reasoning and its calls of tools. Each family of models has
 * its own marks and its own format. We recognise them by the chat template and the vocabulary.
 *
 * If the vocabulary has a mark as a special token, only that token counts: text that spells the mark is
 * text. In the text that a reader is given, such a token is written as TD_MARK_BYTE, which is no valid
 * UTF-8, and the token's text. Read-only once made. */
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
  TD_CALLS_LLAMA,    /* {"name": .., "parameters": {..}}; several are separated by ; */
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
  char text[TD_MARK_BYTES]; /* as a reader sees it; "" if the dialect has no such mark */
  uint8_t n;
  int32_t id; /* of the special token; -1: the mark is plain text */
} td_mark;

typedef struct td_dialect {
  td_call_format calls;
  bool thinks;
  bool lists_calls; /* Mistral's older format: a list of objects */
  bool is_guess;    /* the template shows tools, but nothing says in which format calls are */
  td_mark marks[TD_MARKS];
} td_dialect;

/* What is known of a model. */
typedef struct td_dialect_signs {
  const char *template; /* the chat template (the one for tools, if there is one), or NULL */
  size_t n_template;
  const char *calls;     /* the name of a format, or "auto" */
  const char *reasoning; /* "auto", "none" or "think" */
  /* Returns the id of the token in the vocabulary that is spelled `text`, or -1. *special: the token is a
   * special token. */
  int32_t (*find)(const void *arg, const char *text, bool *special);
  const void *arg;
} td_dialect_signs;

void td_dialect_find(const td_dialect_signs *signs, td_dialect *out);
/* "hermes" and so on, or "none". */
const char *td_dialect_calls_name(td_call_format f);
/* How a prompt ends: the template may have opened the answer's reasoning, or opened and closed it. */
typedef enum td_prompt_end { TD_PROMPT_PLAIN, TD_PROMPT_THINKS, TD_PROMPT_HAS_THOUGHT } td_prompt_end;
td_prompt_end td_dialect_prompt_end(const td_dialect *d, const char *prompt, size_t n);

#endif
