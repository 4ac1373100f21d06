/* The program of a grammar: instructions over bytes, and a start for each rule. Read-only once made. */
#ifndef TD_MODELS_GRAMMAR_RULES_H
#define TD_MODELS_GRAMMAR_RULES_H

#include "models/grammar/expr.h"

typedef enum td_inst_op {
  TD_RULE_OP_RANGE,  /* a byte from lo to hi, then x */
  TD_RULE_OP_SET,    /* a byte of set y, then x */
  TD_RULE_OP_SPLIT,  /* x or y */
  TD_RULE_OP_CALL,   /* rule x, then continues at y */
  TD_RULE_OP_REPEAT, /* repeats a rule as repeats[x] says, then continues at y; machine.c counts */
  TD_RULE_OP_RETURN, /* end of the rule */
} td_inst_op;

typedef struct td_inst {
  uint8_t op, lo, hi;
  uint8_t live : 1; /* the end of the text can still be reached */
  uint8_t free : 1; /* after its byte, any letters may follow (slices.c) */
  uint32_t x, y;
} td_inst;

/* A repetition of a rule that never matches the empty text. */
typedef struct td_rule_repeat {
  uint32_t rule, min, max; /* max TD_REPEAT_MANY: no bound */
} td_rule_repeat;

typedef struct td_rules {
  td_inst *insts; /* [n_insts] */
  uint32_t n_insts, cap_insts, max_insts;
  td_byte_set *sets; /* [n_sets] */
  uint32_t n_sets, cap_sets;
  td_rule_repeat *repeats; /* [n_repeats] */
  uint32_t n_repeats, cap_repeats;
  uint32_t *starts; /* [n_rules] */
  uint32_t *ranks;  /* [n_rules]: higher than the rank of each rule that may begin with a call of this one */
  uint32_t n_rules, root;
  struct td_writing *writing;        /* only while the program is written */
  uint8_t class_of[256];             /* bytes that no instruction distinguishes have the same class */
  uint8_t class_representative[256]; /* [n_classes] one byte of each class */
  uint32_t n_classes;
  uint32_t n_shared_insts; /* the first instructions, which are the same in all grammars of a vocabulary */
  uint64_t work, max_work; /* instructions looked at while the program is made */
  bool failed;             /* no memory, or no work left */
  bool no_memory;          /* the process had no memory, for which the grammar is not to blame */
  bool none;               /* no text fits, so there is no program */
} td_rules;

/* Makes a program from the builder's rules. The first n_shared rules always get the same instructions,
 * whatever follows. TD_ERR_NOMEM, or TD_ERR_REQUEST: the grammar is too large, a rule begins with itself, or
 * no text fits (out->none). */
TD_MUST_CHECK td_status td_rules_make(const td_builder *b, uint32_t root, uint32_t n_shared, td_rules *out,
                                      td_error *err);
void td_rules_deinit(td_rules *r);

static inline bool td_inst_takes(const td_rules *r, const td_inst *i, unsigned byte)
{
  return i->op == TD_RULE_OP_RANGE ? byte >= i->lo && byte <= i->hi : td_byte_set_has(&r->sets[i->y], byte);
}

#endif
