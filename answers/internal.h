/* What the reader and the readers of call formats share. Not for other rooms. */
#ifndef TD_ANSWERS_INTERNAL_H
#define TD_ANSWERS_INTERNAL_H

#include "answers/json_scan.h"
#include "answers/python_scan.h"
#include "answers/reader.h"

enum { TD_NAME_BYTES = 256, TD_BLANKS_MAX = 64 };

/* The result of looking for something in the text at hand. */
typedef enum td_look {
  TD_LOOK_OK,
  TD_LOOK_MORE, /* more text is needed to decide; not returned once the text has ended */
  TD_LOOK_NO,
} td_look;

typedef enum td_reader_state {
  TD_READER_BEGIN,
  TD_READER_THINKS,
  TD_READER_TEXT,
  TD_READER_CALLS
} td_reader_state;

struct td_reader {
  td_reader_rules rules;
  td_reader_state state;
  td_parsed_answer *parsed; /* set while text is read */
  td_buf in;                /* text not yet read, from `at` on */
  size_t at;
  bool final;                  /* no more text will come */
  bool at_start;               /* nothing but reasoning has been emitted */
  bool skip_blanks_after_call; /* a call was emitted last */
  bool skip_blanks_after_mark; /* reasoning has just begun or ended */

  /* Calls: used from the first byte of their format until all calls are read or given up. */
  td_buf raw;            /* the text as it was, to give it back as content */
  unsigned step;         /* state of the format's state machine */
  bool marked;           /* a mark began the call, so that any name is accepted */
  bool committed;        /* the call has been emitted */
  bool list;             /* Mistral's list of objects */
  size_t n_parts_before; /* parts before this call; with n_calls_before, to undo it */
  uint32_t n_calls_before;
  char name[TD_NAME_BYTES], key[TD_NAME_BYTES];
  size_t n_name, n_key;
  bool has_name, has_arguments, is_arguments; /* is_arguments: the value being read is the arguments */
  td_buf value; /* arguments that came before the name, or the text of a parameter */
  td_json_scan json;
  td_python_scan python;
  const td_tool *tool;
  unsigned types;   /* of the parameter */
  bool string_open; /* the parameter's string has been opened */
  unsigned n_args;  /* arguments emitted so far */
};

/* ---- reader.c; "to emit" means to append a part to r->parsed ---- */

/* Whether this text or mark comes next, after `skip` bytes. Consumes nothing. */
td_look td_reader_look(const td_reader *r, size_t skip, const char *text, size_t n);
td_look td_reader_look_mark(const td_reader *r, size_t skip, td_mark_name name);
/* Consumes n bytes, and keeps a copy while they may have to be given back. */
void td_reader_consume(td_reader *r, size_t n);
/* Consumes blanks. MORE: there was nothing else. */
td_look td_reader_skip_blanks(td_reader *r);
/* Skips blanks, and consumes the next byte if it is c. */
td_look td_reader_consume_char(td_reader *r, char c);
static inline size_t td_reader_left(const td_reader *r) { return r->in.len_bytes - r->at; }
static inline unsigned char td_reader_byte(const td_reader *r, size_t i)
{
  return (unsigned char)r->in.data[r->at + i];
}
/* Emits a call of r->name. */
void td_reader_emit_call(td_reader *r);
void td_reader_emit_arguments(td_reader *r, const char *text, size_t n);
/* Write arguments that are not JSON as an object: the key r->key and what comes before its value; the end. */
void td_reader_emit_key(td_reader *r);
void td_reader_end_arguments(td_reader *r);
/* Emit a text as a JSON string, or escaped as a part of one. Overwrite r->value. */
void td_reader_emit_string(td_reader *r, const char *text, size_t n);
void td_reader_emit_escaped(td_reader *r, const char *text, size_t n);
/* The call is complete, and will not be given back. */
void td_reader_end_call(td_reader *r);
bool td_reader_knows_name(const td_reader *r);

/* ---- calls_*.c: each does one step in a format of calls. OK: it made a step, or r->state is no longer
 * CALLS. NO: this is not a call. ---- */
td_look td_calls_json(td_reader *r);
td_look td_calls_python(td_reader *r);
td_look td_calls_xml(td_reader *r);
/* Whether the last call is complete if the text ends here. */
bool td_calls_json_is_whole(const td_reader *r);
bool td_calls_python_is_whole(const td_reader *r);
bool td_calls_xml_is_whole(const td_reader *r);

#endif
