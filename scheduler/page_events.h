/* KV events: the pages that the prefix tree has gained and lost since the reader last asked. A router uses
 * them to send requests to where their prefix is (docs/OPERATING.md, "KV events").
 *
 * The events not yet taken are a list, in the order in which they happened. The list cannot overflow, however
 * slow the reader is: if a page is stored and removed again before the reader took it, it leaves the list. So
 * each page is in the list at most twice: removed under the name that the reader knows, and stored with its
 * present tokens. In the list, a page comes after the previous page of its prefix.
 *
 * A page's name is a hash of its tokens and of the previous page's name; for the first page, of the cache
 * namespace. It is the same in every process, so two daemons with the same prefix report the same name. It
 * is no proof of equality: the tree itself compares tokens. */
#ifndef TD_SCHEDULER_PAGE_EVENTS_H
#define TD_SCHEDULER_PAGE_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

typedef struct td_page_event {
  bool is_stored; /* false: removed, and only `name` is set */
  uint64_t name;
  uint64_t before; /* the name of the previous page; 0: this page is the first of its prefix */
  uint64_t namespace_id;
  const int32_t *tokens; /* [page_tokens] */
} td_page_event;

typedef struct td_page_events_link {
  uint32_t older, newer;
} td_page_events_link;

typedef struct td_page_events {
  uint32_t n_pages;
  td_page_event *pages;       /* [n_pages] pages of the tree; name 0: not in the tree. tokens is not used */
  uint64_t *removed;          /* [n_pages] the name of a removal in the list; 0: none */
  td_page_events_link *links; /* [2 * n_pages]: i is page i stored, n_pages + i page i removed; a link to
                               * itself: not in the list */
  uint32_t oldest, newest, n; /* ends and length of the list */
} td_page_events;

TD_MUST_CHECK bool td_page_events_init(td_page_events *e, uint32_t n_pages); /* false: no memory */
void td_page_events_deinit(td_page_events *e);                               /* a zeroed struct is allowed */

/* A page enters the tree. before: the previous page of its prefix; < 0: it is the first. */
void td_page_events_store(td_page_events *e, int32_t page, int32_t before, uint64_t namespace_id,
                          const int32_t *tokens, uint32_t n_tokens);
void td_page_events_remove(td_page_events *e, int32_t page);

/* Takes the oldest event out of the list. Returns its page, or -1 if there is none. The caller sets
 * out->tokens. */
int32_t td_page_events_take(td_page_events *e, td_page_event *out);

/* Checks structure and counts. n_in_tree: how many pages the tree has. */
void td_page_events_check(const td_page_events *e, uint32_t n_in_tree);

#endif
