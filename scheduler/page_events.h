/* What the prefix tree has gained and lost since somebody was last told: pages stored and pages removed, for
 * who routes requests to where their prefix is (docs/OPERATING.md, "KV events").
 *
 * A list of what is still to be told, in the order in which it happened. It cannot overflow, however slow the
 * reader is: a page that was stored and left again before anybody was told is taken out of the list, so each
 * page is in it at most twice, removed with the tokens that were told of it and stored with those it has now.
 * What is left is in order: a page comes behind the one before it in its prefix.
 *
 * A page's name is a hash of its tokens and of the name before it, at the top of the cache namespace. It is
 * the same in every process, so that two daemons with the same prefix say the same, and it is no proof: the
 * tree itself compares tokens. */
#ifndef TD_SCHEDULER_PAGE_EVENTS_H
#define TD_SCHEDULER_PAGE_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

typedef struct td_page_event {
  bool is_stored; /* else removed, and only its name is known */
  uint64_t name;
  uint64_t before; /* the name of the page before it; 0: it is the first */
  uint64_t namespace_id;
  const int32_t *tokens; /* [page_tokens] */
} td_page_event;

typedef struct td_page_events_link {
  uint32_t older, newer;
} td_page_events_link;

typedef struct td_page_events {
  uint32_t n_pages;
  td_page_event *pages; /* [n_pages] as the tree has them; name 0: not in the tree. tokens is not used */
  uint64_t *removed;    /* [n_pages] the name that is to be told as removed; 0: none */
  td_page_events_link
      *links; /* [2 * n_pages]: page i as stored, n_pages + i as removed; to itself: not listed */
  uint32_t oldest, newest, n; /* the list */
} td_page_events;

TD_MUST_CHECK bool td_page_events_init(td_page_events *e, uint32_t n_pages); /* false: no memory */
void td_page_events_deinit(td_page_events *e);                               /* of zeros too */

/* A page enters the tree. before: the page before it; < 0: it is the first of its namespace. */
void td_page_events_store(td_page_events *e, int32_t page, int32_t before, uint64_t namespace_id,
                          const int32_t *tokens, uint32_t n_tokens);
void td_page_events_remove(td_page_events *e, int32_t page);

/* Takes the oldest out of the list; returns the page, or -1: there is none. tokens is the caller's to fill
 * in.
 */
int32_t td_page_events_take(td_page_events *e, td_page_event *out);

/* Structure and counts; n_in_tree: how many pages the tree has. */
void td_page_events_check(const td_page_events *e, uint32_t n_in_tree);

#endif
