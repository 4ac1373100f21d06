/* Checks every invariant that README.md states, in O(total), for tests. */
#include <string.h>

#include "scheduler/internal.h"

static void check_request(const td_sched *s, const td_request *r)
{
  uint32_t pt = s->config.page_tokens;
  TD_BUG_ON(r->n_tokens < r->n_prompt || r->n_tokens >= r->max_tokens);
  TD_BUG_ON(r->last_token != r->tokens[r->n_tokens - 1]);
  if (r->state == TD_REQUEST_WAITING) {
    TD_BUG_ON(r->n_pages || r->n_tree_pages || r->n_computed || r->node != TD_NO_NODE);
    return;
  }
  TD_BUG_ON(r->n_pages > s->stripe_pages || r->n_tree_pages > r->n_pages);
  TD_BUG_ON(r->n_tree_pages * pt > r->n_computed);
  TD_BUG_ON((r->n_tree_pages == 0) != (r->node == TD_NO_NODE));
  uint32_t planned = r->n_tokens + (s->n_in_flight > 1); /* the next token is planned ahead */
  if (s->n_in_flight > 0)                                /* includes the pages that the steps in flight
                                                          * write */
    TD_BUG_ON(r->n_pages < td_sched_pages_for(s, r->n_computed) ||
              r->n_pages > td_sched_pages_for(s, planned));
  else /* a late last token keeps its page */
    TD_BUG_ON(r->n_pages != td_sched_pages_for(s, r->n_computed + r->is_late));
  TD_BUG_ON(r->is_late && r->n_computed + 1 != r->n_tokens);
  if (r->state == TD_REQUEST_DECODE)
    TD_BUG_ON(r->n_computed != r->n_tokens - 1 || r->n_tokens == r->n_prompt);
  else
    TD_BUG_ON(r->n_computed >= r->n_tokens);
}

/* Checks that the request's first n_tree_pages pages are the path that ends at its node, token by token.
 * The other pages belong to the request alone and are counted in held. Its pin is counted in pins. */
static void check_pages(const td_sched *s, const td_request *r, uint32_t *pins, uint32_t *held)
{
  const int32_t *stripe = td_sched_stripe(s, r);
  uint32_t pt = s->config.page_tokens, i = r->n_tree_pages;
  for (uint32_t k = 0; k < r->n_pages; k++) {
    TD_BUG_ON(stripe[k] < 0 || (uint32_t)stripe[k] >= s->config.n_pages);
    held[stripe[k]] += k >= r->n_tree_pages;
  }
  for (uint32_t id = r->node; id != TD_NO_NODE; id = s->tree.nodes[id].parent) {
    const td_prefix_node *n = &s->tree.nodes[id];
    TD_BUG_ON(n->namespace_id != td_sched_terms(s, r)->namespace_id);
    int32_t page = n->last_page;
    for (uint32_t k = 0; k < n->n_pages; k++, page = s->tree.links[page].prev) {
      TD_BUG_ON(i-- == 0);
      TD_BUG_ON(stripe[i] != page);
      TD_BUG_ON(memcmp(s->tree.page_tokens_of + (size_t)page * pt, r->tokens + (size_t)i * pt,
                       pt * sizeof(int32_t)));
    }
  }
  TD_BUG_ON(i != 0);
  if (r->node != TD_NO_NODE)
    pins[r->node]++;
}

/* Checks that each stripe is free or belongs to one running request. continue_by_us of the last plan is no
 * longer needed, so it is the scratch here; s->prefills still is needed (plan.c: light_before). */
static void check_stripes(const td_sched *s)
{
  const td_request_table *t = &s->table;
  uint32_t n = s->config.max_running;
  uint64_t *mark = s->continue_by_us;
  TD_BUG_ON(s->n_free_stripes + t->n_running != n);
  memset(mark, 0, n * sizeof *mark);
  for (uint32_t i = 0; i < s->n_free_stripes; i++)
    TD_BUG_ON(s->free_stripes[i] >= n || mark[s->free_stripes[i]]++ != 0);
  for (uint32_t i = 0; i < t->n_running; i++) {
    uint32_t stripe = t->requests[t->running[i]].stripe;
    TD_BUG_ON(stripe >= n || mark[stripe]++ != 0);
  }
}

/* Checks that each waiting request is queued or follows a prompt that is being computed, and that each
 * request with a deadline is in the heap of deadlines. */
static void check_waiting(const td_sched *s)
{
  uint32_t n_following = 0;
  uint64_t prompt_tokens = 0, expected_uncached_tokens = 0, max_new_tokens = 0, counted[2] = {0};
  for (uint32_t slot = 0; slot < s->config.n_slots; slot++) {
    const td_request *r = &s->table.requests[slot];
    const td_order_entry *e = &s->order.entries[slot];
    if (r->state == TD_REQUEST_FREE) {
      TD_BUG_ON(e->expiry_at != TD_NO_SLOT);
      continue;
    }
    TD_BUG_ON(e->expiry_at == TD_NO_SLOT &&
              (e->terms.deadline_us > 0 || (r->n_tokens == r->n_prompt && e->terms.ttft_deadline_us > 0)));
    for (uint32_t f = e->followers, prev = TD_NO_SLOT; f != TD_NO_SLOT;
         prev = f, f = s->order.entries[f].next) {
      TD_BUG_ON(r->state != TD_REQUEST_PREFILL || s->order.entries[f].leader != slot ||
                s->order.entries[f].prev != prev);
      TD_BUG_ON(s->table.requests[f].state != TD_REQUEST_WAITING ||
                s->order.entries[f].wake_pages <= r->n_tree_pages);
      TD_BUG_ON(s->order.entries[f].terms.namespace_id != e->terms.namespace_id ||
                e->followers_us > s->order.entries[f].latest_start_us);
      TD_BUG_ON(++n_following > s->config.n_slots);
    }
    if (r->state != TD_REQUEST_WAITING)
      continue;
    check_request(s, r);
    prompt_tokens += r->n_prompt;
    expected_uncached_tokens += e->n_expected_uncached;
    max_new_tokens += r->max_tokens - r->n_prompt;
  }
  TD_BUG_ON(n_following != s->order.n_following || prompt_tokens != s->order.waiting_prompt_tokens);
  for (uint32_t i = 0; i < s->answers.n_used; i++)
    counted[0] += s->answers.accounts[i].waiting_tokens;
  for (uint32_t i = 0; i < TD_LENGTH_BINS; i++)
    counted[1] += s->answers.max_new_tokens[i];
  TD_BUG_ON(counted[0] != expected_uncached_tokens || counted[1] != max_new_tokens);
}

/* Checks that places and pages by account add up, and that places beyond an account's first leave room for
 * accounts that run nothing. */
static void check_places(const td_sched *s)
{
  const td_request_table *t = &s->table;
  const td_places *p = &s->places;
  uint32_t n_kept = p->most_kept + 1 < p->n_accounts ? p->most_kept + 1 : p->n_accounts;
  uint32_t n_running = 0, n_holders = 0;
  for (uint32_t i = 0; i < TD_ACCOUNTS_MAX; i++) {
    n_running += p->n_running[i];
    n_holders += p->n_running[i] > 0;
  }
  TD_BUG_ON(n_running != t->n_running || n_holders != p->n_holders);
  uint64_t n_pages = 0, pages_of_all = 0;
  for (uint32_t i = 0; i < TD_ACCOUNTS_MAX; i++)
    pages_of_all += p->n_pages[i];
  for (uint32_t i = 0; i < t->n_running; i++) {
    const td_request *r = &t->requests[t->running[i]];
    uint32_t n = 0, pages = 0;
    for (uint32_t k = 0; k < t->n_running; k++)
      if (t->requests[t->running[k]].account == r->account) {
        n++;
        pages += t->requests[t->running[k]].n_pages;
      }
    TD_BUG_ON(n != p->n_running[r->account] || pages != p->n_pages[r->account]);
    n_pages += r->n_pages;
  }
  TD_BUG_ON(n_pages != pages_of_all);
  TD_BUG_ON(p->n_accounts > 1 && n_running - n_holders > s->config.max_running - n_kept);
}

void td_sched_check(const td_sched *s)
{
  uint32_t n_pages = s->config.n_pages, reserved = 0;
  uint32_t *held = s->scratch, *pins = s->scratch + n_pages;
  const td_request_table *t = &s->table;

  TD_BUG_ON(td_request_table_check(t) != s->order.n_queued + s->order.n_following);
  td_order_check(&s->order);
  td_deadlines_check(&s->deadlines, s->order.entries);
  check_waiting(s);
  check_stripes(s);
  check_places(s);
  memset(s->scratch, 0, 2 * (size_t)n_pages * sizeof *s->scratch);
  td_page_pool_check(&s->pool, held);
  for (uint32_t i = 0; i < t->n_running; i++) {
    const td_request *r = &t->requests[t->running[i]];
    check_request(s, r);
    check_pages(s, r, pins, held);
    reserved += td_sched_reserved_for(s, r);
  }
  td_prefix_tree_check(&s->tree, pins, held);
  for (uint32_t i = 0; i < n_pages; i++)
    TD_BUG_ON(held[i] != 1); /* conservation: no page leaks or is counted twice */

  TD_BUG_ON(reserved != s->reserved_pages || td_sched_available_pages(s) < reserved);
  TD_BUG_ON(s->n_pending_updates > s->max_pending_updates);
}
