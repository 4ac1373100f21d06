/* Chat templates: a small Jinja interpreter for what models' templates use (jinja2 with trim_blocks and
 * lstrip_blocks, loop controls, sandboxed), byte for byte like the reference.
 *
 * Text knows where it came from: bytes of template literals and of `trusted` variables are vouched for, bytes
 * that came from `input` variables are not, whatever operations they went through. The tokenizer makes
 * special tokens only of vouched-for text, so that user text can never forge a turn. Bounds: source size,
 * nodes, depth, steps, memory and output (limits.def: template_*). No regex, no backtracking. Thread: a
 * compiled template is read-only: any number of threads may render. */
#ifndef TD_MODELS_TEMPLATE_CHAT_TEMPLATE_H
#define TD_MODELS_TEMPLATE_CHAT_TEMPLATE_H

#include <stddef.h>
#include <time.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/status.h"

typedef struct td_chat_template td_chat_template;

/* TD_ERR_MODEL with the line number for syntax that does not parse or is not served. */
TD_MUST_CHECK td_status td_chat_template_compile(const char *source, size_t n_bytes, td_chat_template **out,
                                                 td_error *err);
void td_chat_template_destroy(td_chat_template *t);

typedef struct td_render_span {
  size_t start, end; /* byte range [start, end) of trusted text; sorted, apart */
} td_render_span;

typedef struct td_rendered {
  td_buf text;
  td_render_span *trusted; /* owned, malloc */
  size_t n_trusted, cap_trusted;
} td_rendered;

typedef struct td_render_input {
  const cJSON *trusted;        /* object: bos_token, eos_token, add_generation_prompt, ... (the operator's) */
  const cJSON *input;          /* object: messages, tools, ... (the client's) */
  const cJSON *kwargs;         /* object or NULL: the client's too, and before `input` */
  bool continue_final_message; /* the text ends where that of input's last message does */
  time_t now;                  /* for strftime_now, local time */
  size_t max_ops;              /* evaluation steps; limits: template_ops */
  size_t max_memory_bytes;
} td_render_input;

/* raise_exception in the template, and every error of the reference (undefined names, wrong types), is
 * TD_ERR_REQUEST with the reference's reason; out is then empty. out must be deinitialised in any case. */
TD_MUST_CHECK td_status td_chat_template_render(const td_chat_template *t, const td_render_input *in,
                                                td_rendered *out, td_error *err);
void td_rendered_deinit(td_rendered *r);

#endif
