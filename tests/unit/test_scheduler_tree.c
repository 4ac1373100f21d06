/* The prefix tree compared with a simple model: an array with one entry for every possible prefix of up to
 * DEPTH pages drawn from WAYS different ones. It predicts matches, switches, splits and evictions exactly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/prefix_tree.h"

enum {
  PT = 16,
  WAYS = 3,
  DEPTH = 6,
  N_PREFIXES = 1 + 3 + 9 + 27 + 81 + 243 + 729,
  NAMESPACES = 2,
  PAGES = 40,
  USERS = 4
};

typedef struct prefix {
  bool present;
  bool is_told; /* to the subscriber */
  int32_t page;
  uint32_t pins;
  uint64_t stamp; /* when its last pin went */
} prefix;

typedef struct user {
  bool active;
  uint64_t namespace_id;
  uint32_t digits[DEPTH];
  int32_t tokens[DEPTH * PT];
  int32_t pages[DEPTH];
  uint32_t n, node; /* pages of the path it pins */
} user;

typedef struct fixture {
  td_page_events events; /* delivered to a subscriber now and then, several at a time */
  uint64_t names[NAMESPACES][N_PREFIXES];
  td_page_pool pool;
  td_prefix_tree tree;
  prefix model[NAMESPACES][N_PREFIXES];
  user users[USERS];
  uint64_t clock;
} fixture;

static uint32_t child_of(uint32_t at, uint32_t digit) { return at * WAYS + 1 + digit; }

/* Pages for different digits differ only in their last token. */
static void page_of_digit(uint32_t digit, int32_t *tokens)
{
  for (uint32_t i = 0; i < PT; i++)
    tokens[i] = (int32_t)(100 + i);
  tokens[PT - 1] = (int32_t)digit;
}

static void check(fixture *f)
{
  uint32_t pins[PAGES] = {0}, held[PAGES] = {0}, present = 0, unpinned = 0;
  for (uint32_t u = 0; u < USERS; u++)
    if (f->users[u].active && f->users[u].node != TD_NO_NODE)
      pins[f->users[u].node]++;
  td_prefix_tree_check(&f->tree, pins, held);
  td_page_pool_check(&f->pool, held);
  for (uint32_t n = 0; n < NAMESPACES; n++)
    for (uint32_t i = 1; i < N_PREFIXES; i++) {
      const prefix *p = &f->model[n][i];
      present += p->present;
      unpinned += p->present && p->pins == 0;
      if (p->present)
        assert_int_equal(held[p->page], 1);
    }
  for (uint32_t i = 0; i < PAGES; i++)
    assert_int_equal(held[i], 1); /* in the tree or free: users hold no private pages between calls */
  assert_int_equal(f->tree.n_pages, present);
  assert_int_equal(f->tree.n_unpinned_pages, unpinned);
  assert_int_equal(f->pool.n_free + present, PAGES);
}

/* The prefix that ends with a published page; its name is unique. */
static void subscribe(fixture *f, const td_page_event *e, int32_t page)
{
  uint32_t ns = NAMESPACES, at = N_PREFIXES;
  for (uint32_t n = 0; n < NAMESPACES; n++)
    for (uint32_t i = 1; i < N_PREFIXES; i++)
      if (f->names[n][i] == e->name) {
        ns = n;
        at = i;
      }
  if (!e->is_stored) {
    assert_true(at < N_PREFIXES && f->model[ns][at].is_told);
    for (uint32_t d = 0; d < WAYS; d++) /* its children were removed before it */
      assert_false(child_of(at, d) < N_PREFIXES && f->model[ns][child_of(at, d)].is_told);
    f->model[ns][at].is_told = false;
    return;
  }
  uint32_t digit = (uint32_t)td_prefix_tree_tokens(&f->tree, page)[PT - 1], before = 0;
  while (e->before != 0 && (before == N_PREFIXES || f->names[e->namespace_id][before] != e->before))
    assert_true(++before < N_PREFIXES); /* published under that name */
  assert_true(before == 0 || f->model[e->namespace_id][before].is_told);
  assert_true(at == N_PREFIXES || (ns == e->namespace_id && at == child_of(before, digit)));
  f->names[e->namespace_id][child_of(before, digit)] = e->name;
  prefix *p = &f->model[e->namespace_id][child_of(before, digit)];
  assert_true(p->present && p->page == page && !p->is_told);
  p->is_told = true;
}

static void tell(fixture *f, uint32_t most)
{
  td_page_event e;
  for (int32_t page; most-- > 0 && (page = td_page_events_take(&f->events, &e)) >= 0;)
    subscribe(f, &e, page);
  if (f->events.n > 0)
    return;
  for (uint32_t n = 0; n < NAMESPACES; n++)
    for (uint32_t i = 1; i < N_PREFIXES; i++)
      assert_int_equal(f->model[n][i].is_told, f->model[n][i].present);
}

static void begin(fixture *f, user *u)
{
  *u = (user){.active = true, .namespace_id = (uint64_t)(rand() % NAMESPACES)};
  for (uint32_t i = 0; i < DEPTH; i++) {
    u->digits[i] = (uint32_t)(rand() % WAYS);
    page_of_digit(u->digits[i], u->tokens + i * PT);
  }
  uint32_t max_pages = (uint32_t)rand() % (DEPTH + 1), expected = 0, n_unpinned = 0, at = 0;
  int32_t pages[DEPTH];
  prefix *model = f->model[u->namespace_id];
  while (expected < max_pages && model[child_of(at, u->digits[expected])].present) {
    at = child_of(at, u->digits[expected]);
    n_unpinned += model[at].pins == 0;
    pages[expected++] = model[at].page;
    model[at].pins++;
  }
  td_prefix_hit hit = td_prefix_tree_find(&f->tree, u->namespace_id, u->tokens, max_pages);
  assert_int_equal(hit.n_pages, expected);
  assert_int_equal(hit.n_unpinned_pages, n_unpinned);
  u->node = td_prefix_tree_pin_hit(&f->tree, &hit, u->pages);
  u->n = expected;
  assert_memory_equal(u->pages, pages, expected * sizeof *pages);
}

/* The page to evict: of those without children and pins, the least recently used. */
static prefix *victim(fixture *f)
{
  prefix *best = NULL;
  for (uint32_t n = 0; n < NAMESPACES; n++)
    for (uint32_t i = 1; i < N_PREFIXES; i++) {
      prefix *p = &f->model[n][i];
      bool leaf = p->present && p->pins == 0;
      for (uint32_t d = 0; d < WAYS && leaf; d++)
        leaf = child_of(i, d) >= N_PREFIXES || !f->model[n][child_of(i, d)].present;
      if (leaf && (!best || p->stamp < best->stamp))
        best = p;
    }
  return best;
}

/* Evicts up to n pages, several at a time, and returns how many there were. */
static uint32_t evict(fixture *f, int32_t *pages, uint32_t n)
{
  int32_t expected[PAGES];
  uint32_t n_out = 0;
  for (prefix *p; n_out < n && (p = victim(f)) != NULL; p->present = false)
    expected[n_out++] = p->page;
  assert_true(n_out == n || f->tree.n_unpinned_pages == n_out);
  td_prefix_tree_evict(&f->tree, pages, n_out);
  assert_memory_equal(pages, expected, n_out * sizeof *pages);
  return n_out;
}

static uint32_t evict_to_pool(fixture *f, uint32_t n)
{
  int32_t pages[PAGES];
  uint32_t n_out = evict(f, pages, n);
  for (uint32_t i = 0; i < n_out; i++)
    td_page_pool_give(&f->pool, pages[i]);
  return n_out;
}

static void grow(fixture *f, user *u)
{
  uint32_t more = u->n < DEPTH ? 1 + (uint32_t)rand() % (DEPTH - u->n) : 0, at = 0, expected = 0, n_switched,
           n = 0;
  while (n < more && f->pool.n_free > 0)
    u->pages[u->n + n++] = td_page_pool_take(&f->pool);
  more = n + evict(f, u->pages + u->n + n, more - n);
  if (more == 0)
    return;
  for (uint32_t i = 0; i < u->n; i++)
    at = child_of(at, u->digits[i]);
  int32_t pages[DEPTH];
  for (uint32_t i = 0; i < more; i++) {
    at = child_of(at, u->digits[u->n + i]);
    prefix *p = &f->model[u->namespace_id][at];
    if (p->present)
      expected++;
    else
      *p = (prefix){.present = true, .page = u->pages[u->n + i], .is_told = p->is_told};
    p->pins++;
    pages[i] = p->page;
  }
  u->node = td_prefix_tree_extend(&f->tree, u->namespace_id, u->node, u->tokens + u->n * PT, u->pages + u->n,
                                  more, &n_switched);
  assert_int_equal(n_switched, expected);
  assert_memory_equal(u->pages + u->n, pages, more * sizeof *pages);
  u->n += more;
}

static void end(fixture *f, user *u)
{
  uint32_t at = 0;
  f->clock++;
  for (uint32_t i = 0; i < u->n; i++) {
    at = child_of(at, u->digits[i]);
    prefix *p = &f->model[u->namespace_id][at];
    if (--p->pins == 0)
      p->stamp = f->clock;
  }
  td_prefix_tree_unpin(&f->tree, u->node);
  u->active = false;
}

static void random_life(uint32_t bucket_mask)
{
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  assert_true(td_page_pool_init(&f->pool, PAGES));
  assert_true(td_prefix_tree_init(&f->tree, &f->pool, PT, 99));
  assert_true(td_page_events_init(&f->events, PAGES));
  f->tree.events = &f->events;
  if (bucket_mask < f->tree.bucket_mask)
    f->tree.bucket_mask = bucket_mask;
  srand(1);
  for (int i = 0; i < 30000; i++) {
    user *u = &f->users[rand() % USERS];
    if (!u->active)
      begin(f, u);
    else if (rand() % 3 > 0)
      grow(f, u);
    else
      end(f, u);
    if (rand() % 50 == 0)
      evict_to_pool(f, 1 + (uint32_t)rand() % 3);
    check(f);
    if (i / 1000 % 3 == 1) /* otherwise the subscriber is disconnected */
      tell(f, (uint32_t)rand() % 6);
  }
  tell(f, UINT32_MAX);
  assert_true(f->tree.n_evicted_pages > 1000);
  for (uint32_t u = 0; u < USERS; u++)
    if (f->users[u].active)
      end(f, &f->users[u]);
  while (evict_to_pool(f, 3) > 0)
    check(f);
  assert_int_equal(f->pool.n_free, PAGES);
  assert_int_equal(f->tree.n_nodes, 0);
  tell(f, UINT32_MAX);
  td_page_events_deinit(&f->events);
  td_prefix_tree_deinit(&f->tree);
  td_page_pool_deinit(&f->pool);
  free(f);
}

static void agrees_with_the_model(void **state) { random_life(UINT32_MAX); }
static void agrees_when_all_share_a_bucket(void **state) { random_life(0); }

static uint32_t insert(fixture *f, uint64_t namespace_id, const int32_t *tokens, uint32_t n)
{
  int32_t pages[DEPTH];
  uint32_t n_switched;
  for (uint32_t i = 0; i < n; i++)
    pages[i] = td_page_pool_take(&f->pool);
  uint32_t node = td_prefix_tree_extend(&f->tree, namespace_id, TD_NO_NODE, tokens, pages, n, &n_switched);
  td_prefix_tree_unpin(&f->tree, node);
  return node;
}

/* The same hash is not the same prefix. */
static void a_hit_compares_tokens(void **state)
{
  fixture f = {0};
  int32_t a[PT], b[PT];
  assert_true(td_page_pool_init(&f.pool, PAGES));
  assert_true(td_prefix_tree_init(&f.tree, &f.pool, PT, 0));
  f.tree.bucket_mask = 0;
  page_of_digit(0, a);
  page_of_digit(1, b);
  uint32_t node_b = insert(&f, 5, b, 1), node_a = insert(&f, 5, a, 1); /* a is before b in the bucket */
  f.tree.nodes[node_a].hash = f.tree.nodes[node_b].hash;               /* a collision, made */
  assert_int_equal(td_prefix_tree_find(&f.tree, 5, b, 1).node, node_b);
  assert_int_equal(td_prefix_tree_find(&f.tree, 5, b, 1).n_pages, 1);
  f.tree.nodes[node_b].hash ^= 1; /* only a is left under b's hash */
  assert_int_equal(td_prefix_tree_find(&f.tree, 5, b, 1).n_pages, 0);
  td_prefix_tree_deinit(&f.tree);
  td_page_pool_deinit(&f.pool);
}

static void namespaces_do_not_meet(void **state)
{
  fixture f = {0};
  int32_t tokens[3 * PT];
  assert_true(td_page_pool_init(&f.pool, PAGES));
  assert_true(td_prefix_tree_init(&f.tree, &f.pool, PT, 0));
  for (uint32_t i = 0; i < 3; i++)
    page_of_digit(i, tokens + i * PT);
  insert(&f, 1, tokens, 3);
  assert_int_equal(td_prefix_tree_find(&f.tree, 1, tokens, 3).n_pages, 3);
  assert_int_equal(td_prefix_tree_find(&f.tree, 2, tokens, 3).n_pages, 0);
  insert(&f, 2, tokens, 2);
  assert_int_equal(f.tree.n_pages, 5); /* nothing is shared between them */
  assert_int_equal(td_prefix_tree_find(&f.tree, 2, tokens, 3).n_pages, 2);

  f.tree.bucket_mask = 0; /* not even with hashes that collide */
  insert(&f, 4, tokens, 1);
  uint32_t node = insert(&f, 3, tokens, 1),
           other = f.tree.buckets[0] == node ? f.tree.nodes[node].hash_next : node;
  assert_int_not_equal(other, node);
  f.tree.nodes[node].hash = f.tree.nodes[other].hash;
  assert_int_equal(td_prefix_tree_find(&f.tree, 4, tokens, 1).node, other);
  td_prefix_tree_deinit(&f.tree);
  td_page_pool_deinit(&f.pool);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(agrees_with_the_model),
      cmocka_unit_test(agrees_when_all_share_a_bucket),
      cmocka_unit_test(a_hit_compares_tokens),
      cmocka_unit_test(namespaces_do_not_meet),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
