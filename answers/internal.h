/* What a reader and its readers of calls share; not for other rooms. */
#ifndef TD_ANSWERS_INTERNAL_H
#define TD_ANSWERS_INTERNAL_H

#include "answers/json_scan.h"
#include "answers/python_scan.h"
#include "answers/reader.h"

enum { TD_NAME_BYTES = 256, TD_BLANKS_HELD = 64 };

/* What came of looking at the text at hand. */
typedef enum td_look {
  TD_LOOK_OK,
  TD_LOOK_MORE, /* too little is there to know; not where the text has ended */
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
  td_said *said; /* while bytes are pushed */
  td_buf in;     /* not read yet, from at on */
  size_t at;
  bool final;    /* no more comes */
  bool is_first; /* nothing has been said but reasoning */
  bool after;    /* a call was the last: blanks that follow are nobody's */
  bool fresh;    /* reasoning has just begun or ended: blanks that follow are the form's */

  /* calls: from the first byte of their form until all is read or given up */
  td_buf raw;     /* as it stood, to give it back */
  unsigned step;  /* of the format's form */
  bool marked;    /* a mark began it: any name is one */
  bool committed; /* the call has been said */
  bool list;      /* Mistral's list of objects */
  size_t n_said;  /* pieces before the call, */
  uint32_t n_calls_before;
  char name[TD_NAME_BYTES], key[TD_NAME_BYTES];
  size_t n_name, n_key;
  bool has_name, has_arguments, is_arguments; /* is_arguments: the value that is read is them */
  td_buf value;                               /* arguments before the name is known; a parameter's text */
  td_json_scan json;
  td_python_scan python;
  const td_tool *tool;
  unsigned types;  /* of the parameter */
  bool begun;      /* the parameter's string has been */
  unsigned n_args; /* said so far */
};

/* ---- reader.c ---- */

/* Is this mark next? Nothing is taken. skip: bytes that stand before it. */
td_look td_reader_look(const td_reader *r, size_t skip, const char *text, size_t n);
td_look td_reader_look_mark(const td_reader *r, size_t skip, td_mark_name name);
/* Goes on by n bytes, and remembers them as long as they may have to be given back. */
void td_reader_take(td_reader *r, size_t n);
/* Takes blanks; MORE: nothing else is there. */
td_look td_reader_skip_blanks(td_reader *r);
/* The next byte that is no blank, which is taken if it is c. */
td_look td_reader_take_char(td_reader *r, char c);
static inline size_t td_reader_left(const td_reader *r) { return r->in.len_bytes - r->at; }
static inline unsigned char td_reader_byte(const td_reader *r, size_t i)
{
  return (unsigned char)r->in.data[r->at + i];
}
/* Says that the call of r->name begins. */
void td_reader_commit(td_reader *r);
void td_reader_say_arguments(td_reader *r, const char *text, size_t n);
/* Arguments that are no JSON yet, made into an object: r->key and what stands before its value; the end. */
void td_reader_say_key(td_reader *r);
void td_reader_end_arguments(td_reader *r);
/* A text as a JSON string, and the inside of one. r->value is overwritten. */
void td_reader_say_string(td_reader *r, const char *text, size_t n);
void td_reader_say_inside(td_reader *r, const char *text, size_t n);
/* The call is complete: it will not be given back. */
void td_reader_end_call(td_reader *r);
bool td_reader_knows_name(const td_reader *r);

/* ---- calls_*.c: one step in the form of calls. OK: it goes on, or r->state is no longer CALLS; NO: this is
 * no call. ---- */
td_look td_calls_json(td_reader *r);
td_look td_calls_python(td_reader *r);
td_look td_calls_xml(td_reader *r);
/* Where a text ends here, has the last call been complete? */
bool td_calls_json_is_whole(const td_reader *r);
bool td_calls_python_is_whole(const td_reader *r);
bool td_calls_xml_is_whole(const td_reader *r);

#endif
