/* Fair in what is held: places and pages go from the account that holds most to one that waits and holds
 * less.
 *
 * The order (order.h) is fair in what starts, and places.h keeps an account's first place; but answers hold
 * places and pages for long. So every TD_FAIR_STEPS steps somebody may have to give way: of the accounts that
 * wait, the one that runs least; if it lacks a place, the account that runs most gives one, as long as it
 * then still runs as many; if it lacks pages, the account that owns most of them likewise. Between two such
 * turns there is one of the account that owns fewest pages, if pages are all that it lacks: it may run more
 * than others, whose few are long. No turn takes back what one of its kind gave, for the giver is no poorer
 * than the taker. Nobody's oldest request gives way. Whoever does keeps its tokens and its place in the
 * queue, and finds what it computed in the tree while that lasts.
 *
 * And a front that lacks pages holds up no account that owns fewer than its own: td_fair_passes.
 *
 * So an account that lacks k places of an even share has them k x TD_FAIR_STEPS steps later, however long the
 * others' answers are. Max-min fairness; of several resources, the one that is short. */
#ifndef TD_SCHEDULER_FAIR_H
#define TD_SCHEDULER_FAIR_H

#include <stdbool.h>
#include <stdint.h>

enum { TD_FAIR_STEPS = 16 };   /* between two turns of a kind */
enum { TD_FAIR_VICTIMS = 16 }; /* most that one turn makes give way */

typedef struct td_fair {
  uint32_t slot; /* whose turn it is, until it starts; TD_NO_SLOT: nobody's */
  uint64_t seq;  /* of that slot's request */
  uint64_t next_step, took_step, until_step;
  uint64_t n_taken; /* requests that gave way */
  bool by_pages;    /* the last turn was of the account that owns fewest pages */
} td_fair;

#endif
