/* Chat templates: a small Jinja interpreter for the features that models' templates use (jinja2 with
 * trim_blocks and lstrip_blocks, loop controls, sandboxed). Its output equals the reference's byte for byte.
 *
 * Text carries its provenance. Bytes of template literals and of `trusted` variables are trusted. Bytes of
 * `input` variables are not, whatever operations they went through. The tokenizer makes special tokens of
 * trusted text only, so user text can never forge a turn.
 *
 * Bounded: source size, nodes, depth, steps, memory and output (limits.def: template_*). There are no regular
 * expressions and no backtracking. Thread: a compiled template is read-only, so any number of threads may
 * render it. */
#ifndef TD_MODELS_TEMPLATE_CHAT_TEMPLATE_H
#define TD_MODELS_TEMPLATE_CHAT_TEMPLATE_H

#include <stddef.h>
#include <time.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/status.h"

typedef struct td_chat_template td_chat_template;

/* TD_ERR_MODEL, with the line number, if the syntax is wrong or not served. */
TD_MUST_CHECK td_status td_chat_template_compile(const char *source, size_t n_bytes, td_chat_template **out,
                                                 td_error *err);
void td_chat_template_destroy(td_chat_template *t);

typedef struct td_render_span {
  size_t start, end; /* byte range [start, end) of trusted text; ranges are sorted and disjoint */
} td_render_span;

typedef struct td_rendered {
  td_buf text;
  td_render_span *trusted; /* owned, malloc */
  size_t n_trusted, cap_trusted;
} td_rendered;

typedef struct td_render_input {
  const cJSON *trusted;        /* object: bos_token, eos_token, add_generation_prompt, ... (the operator's) */
  const cJSON *input;          /* object: messages, tools, ... (the client's) */
  const cJSON *kwargs;         /* object or NULL: also the client's; takes precedence over `input` */
  bool continue_final_message; /* the text ends where input's last message ends */
  time_t now;                  /* for strftime_now, local time */
  size_t max_ops;              /* evaluation steps; limit: template_ops */
  size_t max_memory_bytes;
} td_render_input;

/* A call of raise_exception in the template, and every error of the reference (undefined names, wrong types),
 * is TD_ERR_REQUEST with the reference's reason; out is then empty. The caller must deinitialise out in any
 * case. */
TD_MUST_CHECK td_status td_chat_template_render(const td_chat_template *t, const td_render_input *in,
                                                td_rendered *out, td_error *err);
void td_rendered_deinit(td_rendered *r);

#endif
