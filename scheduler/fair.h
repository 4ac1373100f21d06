/* Fairness of what is held: places and pages go from the account that holds most to a waiting account that
 * holds less.
 *
 * The order (order.h) is fair in what starts, and places.h keeps an account's first place. But answers hold
 * places and pages for a long time. So every TD_FAIR_STEPS steps there is a turn for the waiting account that
 * runs least. If it lacks a place, the account that runs most gives one, provided that it then still runs as
 * many. If it lacks pages, the account that owns most pages gives some, on the same condition. Half-way
 * between two such turns there is a turn for the waiting account that owns fewest pages, if it lacks only
 * pages: it may run more requests than others whose few requests are long. No turn takes back what a turn of
 * the same kind gave, because the giver never ends up poorer than the taker. An account's oldest request
 * never gives way. A request that gives way keeps its tokens and its place in the queue. It finds its
 * computed pages in the tree unless they were evicted.
 *
 * A front that lacks pages does not hold up accounts that own fewer pages than its own: td_fair_find_bypass.
 *
 * So an account that lacks k places of an even share has them k x TD_FAIR_STEPS steps later, however long
 * the others' answers are. This is max-min fairness in whichever resource is short. */
#ifndef TD_SCHEDULER_FAIR_H
#define TD_SCHEDULER_FAIR_H

#include <stdbool.h>
#include <stdint.h>

enum { TD_FAIR_STEPS = 16 };   /* steps between two turns of the same kind */
enum { TD_FAIR_VICTIMS = 16 }; /* the most requests that one turn preempts */

typedef struct td_fair {
  uint32_t beneficiary_slot; /* the request whose turn it is, until it starts; TD_NO_SLOT: none */
  uint64_t beneficiary_seq;  /* td_order_entry.seq of that request: a slot may be reused */
  uint64_t next_turn_step, preempted_step, beneficiary_until_step;
  uint64_t n_preempted; /* requests preempted so far */
  bool by_pages;        /* the last turn was for the account that owns fewest pages */
} td_fair;

#endif
