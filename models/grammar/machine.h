/* The states that an answer can be in, made when an answer first reaches them.
 *
 * A state is a set of places. A place is an instruction that takes a byte, and a frame set: where its rule
 * may return to. Frame sets are shared, so ambiguity costs no copies. States and frame sets are kept only
 * once each, and have numbers. The result of each state and byte is remembered. All this is forgotten when
 * its memory is used up (td_machine_forget); numbers from before are invalid then. */
#ifndef TD_MODELS_GRAMMAR_MACHINE_H
#define TD_MODELS_GRAMMAR_MACHINE_H

#include "models/grammar/ledger.h"
#include "models/grammar/rules.h"

enum {
  TD_STATE_DEAD = 0,
  TD_FRAMES_NONE = 0,
  TD_FRAMES_BOTTOM = 1, /* the end of the text */
};

typedef struct td_place {
  uint32_t at;            /* an instruction that takes a byte */
  uint32_t return_frames; /* a frame set: where the rule may return to */
} td_place;

typedef struct td_frame {
  uint32_t ret;    /* an instruction; TD_RET_END in the set TD_FRAMES_BOTTOM */
  uint32_t frames; /* frame set of the rule that ret belongs to */
} td_frame;
#define TD_RET_END UINT32_MAX
/* A repetition's place has counting frames. Their ret is TD_RET_COUNT plus the number of repetitions so far,
 * and their frames are those of the rule that contains the repetition. */
#define TD_RET_COUNT (1u << 31)

static inline bool td_ret_is_count(uint32_t ret) { return ret >= TD_RET_COUNT && ret != TD_RET_END; }

typedef struct td_state {
  uint32_t first, n; /* its places */
  uint64_t hash;
  bool whole;    /* the text may end here */
  uint32_t mask; /* number of its mask; 0: none */
} td_state;

typedef struct td_frame_set {
  uint32_t first, n;
  uint64_t hash;
} td_frame_set;

typedef struct td_table {
  uint32_t *slots, n_slots, n;
} td_table;

typedef struct td_machine {
  const td_rules *rules;
  td_place *places;
  td_state *states;
  td_frame *frame_items;
  td_frame_set *frame_sets;
  uint32_t *rows; /* [n_states][n_classes]: the next state, or TD_UNKNOWN */
  uint32_t n_places, cap_places, n_states, cap_states, n_frame_items, cap_frame_items, n_frame_sets,
      cap_frame_sets, cap_rows;
  td_table state_table, frames_table;
  size_t bytes, max_bytes;
  td_ledger *ledger;       /* also counts the bytes; may be NULL */
  uint64_t work, max_work; /* since td_machine_begin; number of places looked at */
  bool full;               /* memory or work is used up; results since then are invalid */
  bool no_memory;          /* the process has no memory, for which the grammar is not to blame */
  struct td_closure *closure;
} td_machine;
#define TD_UNKNOWN UINT32_MAX

bool td_machine_init(td_machine *m, const td_rules *rules); /* false: no memory */
void td_machine_deinit(td_machine *m);
/* Frees nearly all its memory. */
void td_machine_forget(td_machine *m);
/* Starts a new piece of work. */
void td_machine_begin(td_machine *m);

uint32_t td_machine_start(td_machine *m);
uint32_t td_machine_make_step(td_machine *m, uint32_t state, unsigned byte);
/* The state that consists of these places. Sorts them. */
uint32_t td_machine_state(td_machine *m, td_place *places, uint32_t n, bool whole);
/* The state after a rule that returns to these frames. */
uint32_t td_machine_return(td_machine *m, uint32_t frames);

/* Whether work, and not memory, is used up. */
static inline bool td_machine_is_out_of_work(const td_machine *m) { return m->work > m->max_work; }

static inline void td_machine_spend(td_machine *m, uint64_t n)
{
  m->work += n;
  if (td_machine_is_out_of_work(m))
    m->full = true;
}

static inline uint32_t td_machine_step(td_machine *m, uint32_t state, unsigned byte)
{
  uint32_t next = m->rows[(size_t)state * m->rules->n_classes + m->rules->class_of[byte]];
  return next != TD_UNKNOWN ? next : td_machine_make_step(m, state, byte);
}

#endif
