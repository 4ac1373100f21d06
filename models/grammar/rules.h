/* The program of a grammar: instructions over bytes, a start for each rule. Read-only once made. */
#ifndef TD_MODELS_GRAMMAR_RULES_H
#define TD_MODELS_GRAMMAR_RULES_H

#include "models/grammar/expr.h"

typedef enum td_inst_op {
  TD_RULE_OP_RANGE,  /* a byte from lo to hi, then x */
  TD_RULE_OP_SET,    /* a byte of set y, then x */
  TD_RULE_OP_SPLIT,  /* x or y */
  TD_RULE_OP_CALL,   /* rule x, then y */
  TD_RULE_OP_TIMES,  /* the rule of times x as often as that says, then y; machine.c counts */
  TD_RULE_OP_RETURN, /* the rule's end */
} td_inst_op;

typedef struct td_inst {
  uint8_t op, lo, hi;
  uint8_t live : 1; /* a whole text can still be reached */
  uint8_t free : 1; /* behind its byte any letters may follow (slices.c) */
  uint32_t x, y;
} td_inst;

/* A repetition of a rule that is never the empty text. */
typedef struct td_times {
  uint32_t rule, min, max; /* TD_REPEAT_MANY: no bound */
} td_times;

typedef struct td_rules {
  td_inst *insts; /* [n_insts] */
  uint32_t n_insts, cap_insts, max_insts;
  td_byte_set *sets; /* [n_sets] */
  uint32_t n_sets, cap_sets;
  td_times *times; /* [n_times] */
  uint32_t n_times, cap_times;
  uint32_t *starts; /* [n_rules] */
  uint32_t *ranks;  /* [n_rules]: a rule that another begins with has a higher one */
  uint32_t n_rules, root;
  struct td_writing *writing; /* while it is written */
  uint8_t class_of[256];      /* bytes that no instruction tells apart are of one class */
  uint8_t some[256];          /* [n_classes] a byte of each */
  uint32_t n_classes;
  uint32_t n_shared_insts; /* the first ones, which all grammars of a vocabulary have */
  uint64_t work, max_work; /* instructions looked at while it is made */
  bool failed;             /* no memory, or no work left */
  bool no_memory;          /* it was memory of the process, which is not the grammar's doing */
  bool none;               /* it could not be made, because no text fits */
} td_rules;

/* The builder's rules as a program; the first n_shared of them get the same instructions whatever follows.
 * TD_ERR_NOMEM; TD_ERR_REQUEST: too large, a rule that begins with itself, no text at all (out->none). */
TD_MUST_CHECK td_status td_rules_make(const td_builder *b, uint32_t root, uint32_t n_shared, td_rules *out,
                                      td_error *err);
void td_rules_deinit(td_rules *r);

static inline bool td_inst_takes(const td_rules *r, const td_inst *i, unsigned byte)
{
  return i->op == TD_RULE_OP_RANGE ? byte >= i->lo && byte <= i->hi : td_byte_set_has(&r->sets[i->y], byte);
}

#endif
