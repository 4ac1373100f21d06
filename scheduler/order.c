/* The order of the waiting requests: see order.h. */
#include "scheduler/order.h"

#include <stdlib.h>
#include <string.h>

bool td_order_init(td_order *o, uint32_t n_slots)
{
  *o = (td_order){.n_slots = n_slots};
  o->entries = calloc(n_slots, sizeof *o->entries);
  o->accounts = calloc(TD_ACCOUNTS_MAX, sizeof *o->accounts);
  o->served = calloc(TD_ACCOUNTS_MAX, sizeof *o->served);
  o->heap = calloc(TD_ACCOUNTS_MAX, sizeof *o->heap);
  if (!o->entries || !o->accounts || !o->served || !o->heap)
    return false;
  for (uint32_t i = 0; i < TD_ACCOUNTS_MAX; i++)
    o->accounts[i].root[0] = o->accounts[i].root[1] = TD_NO_SLOT;
  for (uint32_t i = 0; i < n_slots; i++)
    o->entries[i].expiry_at = TD_NO_SLOT;
  return true;
}

void td_order_deinit(td_order *o)
{
  free(o->entries);
  free(o->accounts);
  free(o->served);
  free(o->heap);
  memset(o, 0, sizeof *o);
}

/* ---- the requests of one account ---- */

static bool is_before(const td_order *o, uint32_t a, uint32_t b)
{
  const td_order_entry *x = &o->entries[a], *y = &o->entries[b];
  return x->place_us < y->place_us || (x->place_us == y->place_us && x->seq < y->seq);
}

static uint32_t rank_of(const td_order *o, uint32_t slot)
{
  return slot == TD_NO_SLOT ? 0 : o->entries[slot].rank;
}

/* Makes the child of higher rank the left one. Returns true if the entry's rank changed. */
static bool restore_leftist(td_order *o, uint32_t slot)
{
  td_order_entry *e = &o->entries[slot];
  if (rank_of(o, e->left) < rank_of(o, e->right)) {
    uint32_t left = e->left;
    e->left = e->right;
    e->right = left;
  }
  uint32_t rank = rank_of(o, e->right) + 1;
  bool changed = rank != e->rank;
  e->rank = rank;
  return changed;
}

/* Recursion follows only right children: at most log2(n_slots) in each heap. */
static uint32_t merge(td_order *o, uint32_t a, uint32_t b)
{
  if (a == TD_NO_SLOT)
    return b;
  if (b == TD_NO_SLOT)
    return a;
  if (is_before(o, b, a)) {
    uint32_t first = b;
    b = a;
    a = first;
  }
  td_order_entry *e = &o->entries[a];
  e->right = merge(o, e->right, b);
  o->entries[e->right].parent = a;
  restore_leftist(o, a);
  return a;
}

static void remove_from_heap(td_order *o, uint32_t slot)
{
  td_order_entry *e = &o->entries[slot];
  uint32_t below = merge(o, e->left, e->right), at = e->parent;
  if (below != TD_NO_SLOT)
    o->entries[below].parent = at;
  if (at == TD_NO_SLOT)
    o->accounts[e->terms.account].root[e->is_light] = below;
  else if (o->entries[at].left == slot)
    o->entries[at].left = below;
  else
    o->entries[at].right = below;
  while (at != TD_NO_SLOT && restore_leftist(o, at))
    at = o->entries[at].parent;
}

/* ---- the accounts with waiting requests ---- */

static bool has_waiting(const td_account *a) { return a->root[0] != TD_NO_SLOT || a->root[1] != TD_NO_SLOT; }

static bool account_is_before(const td_order *o, uint16_t a, uint16_t b)
{
  uint64_t x = o->accounts[a].heap_served, y = o->accounts[b].heap_served;
  return x < y || (x == y && a < b);
}

static void put(td_order *o, uint32_t at, uint16_t account)
{
  o->heap[at] = account;
  o->accounts[account].at = at;
}

static void sift_up(td_order *o, uint32_t at)
{
  uint16_t account = o->heap[at];
  for (; at > 0 && account_is_before(o, account, o->heap[(at - 1) / 2]); at = (at - 1) / 2)
    put(o, at, o->heap[(at - 1) / 2]);
  put(o, at, account);
}

static void sift_down(td_order *o, uint32_t at)
{
  uint16_t account = o->heap[at];
  for (uint32_t child; (child = 2 * at + 1) < o->n_heap; at = child) {
    if (child + 1 < o->n_heap && account_is_before(o, o->heap[child + 1], o->heap[child]))
      child++;
    if (!account_is_before(o, o->heap[child], account))
      break;
    put(o, at, o->heap[child]);
  }
  put(o, at, account);
}

/* The least served account with waiting requests; there must be one. A key in the heap is never above the
 * account's counter, so a top whose key equals its counter is the least. */
static uint16_t least_served(td_order *o)
{
  for (;;) {
    uint16_t top = o->heap[0];
    td_account *a = &o->accounts[top];
    if (a->heap_served == o->served[top])
      return top;
    a->heap_served = o->served[top];
    sift_down(o, 0);
  }
}

/* If no account waits, there was room for all. What they were served until then is forgotten: all start at
 * the counter of the most served. */
static uint64_t most_served(const td_order *o)
{
  uint64_t most = 0;
  for (uint32_t i = 0; i < o->n_accounts; i++)
    if (o->served[i] > most)
      most = o->served[i];
  return most;
}

static void add_account(td_order *o, uint16_t account)
{
  uint64_t floor = o->n_heap > 0 ? o->served[least_served(o)] : most_served(o);
  if (o->served[account] < floor)
    o->served[account] = floor;
  o->accounts[account].heap_served = o->served[account];
  o->heap[o->n_heap++] = account;
  sift_up(o, o->n_heap - 1);
}

static void remove_account(td_order *o, uint16_t account)
{
  uint32_t at = o->accounts[account].at;
  uint16_t last = o->heap[--o->n_heap];
  if (last == account)
    return;
  put(o, at, last);
  sift_up(o, at);
  sift_down(o, o->accounts[last].at);
}

/* ---- interface ---- */

void td_order_enter(td_order *o, uint32_t slot)
{
  td_order_entry *e = &o->entries[slot];
  td_account *a = &o->accounts[e->terms.account];
  uint32_t *root = &a->root[e->is_light];
  bool joins = !has_waiting(a);
  e->left = e->right = e->parent = TD_NO_SLOT;
  e->rank = 1;
  *root = merge(o, *root, slot);
  o->entries[*root].parent = TD_NO_SLOT;
  if (e->terms.account >= o->n_accounts)
    o->n_accounts = e->terms.account + 1u;
  if (joins)
    add_account(o, e->terms.account);
  o->n_queued++;
  o->waiting_prompt_tokens += e->n_prompt;
}

void td_order_leave(td_order *o, uint32_t slot)
{
  td_order_entry *e = &o->entries[slot];
  remove_from_heap(o, slot);
  if (!has_waiting(&o->accounts[e->terms.account]))
    remove_account(o, e->terms.account);
  o->n_queued--;
  o->waiting_prompt_tokens -= e->n_prompt;
}

uint32_t td_order_first(const td_order *o, uint32_t account)
{
  const uint32_t *root = o->accounts[account].root;
  bool light = root[0] == TD_NO_SLOT || (root[1] != TD_NO_SLOT && is_before(o, root[1], root[0]));
  return root[light];
}

uint32_t td_order_front(td_order *o)
{
  return o->n_queued == 0 ? TD_NO_SLOT : td_order_first(o, least_served(o));
}

uint32_t td_order_front_of_idle(const td_order *o, const uint32_t *n_of)
{
  uint32_t front = TD_NO_SLOT;
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < o->n_heap; i++) {
    uint16_t a = o->heap[i];
    if (n_of[a] > 0 || o->served[a] > least || (o->served[a] == least && a > o->entries[front].terms.account))
      continue;
    least = o->served[a];
    front = td_order_first(o, a);
  }
  return front;
}

uint32_t td_order_front_of_fewest(const td_order *o, const uint32_t *n_of)
{
  uint32_t best = 0;
  for (uint32_t i = 1; i < o->n_heap; i++) {
    uint16_t a = o->heap[i], b = o->heap[best];
    bool same = n_of[a] == n_of[b];
    if (n_of[a] < n_of[b] || (same && o->served[a] < o->served[b]) ||
        (same && o->served[a] == o->served[b] && a < b))
      best = i;
  }
  return o->n_heap > 0 ? td_order_first(o, o->heap[best]) : TD_NO_SLOT;
}

/* ---- check ---- */

typedef struct entry_kind {
  uint16_t account;
  bool is_light;
} entry_kind;

/* Checks the heap below `slot`. Returns the number of its entries. The left side may be deep, so a loop
 * goes down it. */
static uint32_t check_heap(const td_order *o, uint32_t slot, entry_kind kind, uint32_t parent)
{
  uint32_t n = 0;
  for (; slot != TD_NO_SLOT; parent = slot, slot = o->entries[slot].left) {
    const td_order_entry *e = &o->entries[slot];
    TD_BUG_ON(e->parent != parent || e->terms.account != kind.account || e->is_light != kind.is_light ||
              e->leader != TD_NO_SLOT);
    TD_BUG_ON(parent != TD_NO_SLOT && is_before(o, slot, parent));
    TD_BUG_ON(e->rank != rank_of(o, e->right) + 1 || rank_of(o, e->left) < rank_of(o, e->right));
    TD_BUG_ON(++n > o->n_slots);
    n += check_heap(o, e->right, kind, slot);
  }
  return n;
}

void td_order_check(const td_order *o)
{
  uint32_t n_queued = 0, n_heap = 0;
  for (uint32_t i = 0; i < o->n_accounts; i++) {
    const td_account *a = &o->accounts[i];
    if (!has_waiting(a))
      continue;
    n_heap++;
    for (int light = 0; light < 2; light++)
      n_queued += check_heap(o, a->root[light], (entry_kind){(uint16_t)i, light}, TD_NO_SLOT);
    TD_BUG_ON(a->at >= o->n_heap || o->heap[a->at] != i || a->heap_served > o->served[i]);
    TD_BUG_ON(a->at > 0 && account_is_before(o, (uint16_t)i, o->heap[(a->at - 1) / 2]));
  }
  TD_BUG_ON(n_heap != o->n_heap || n_queued != o->n_queued);
}
