/* The page pool: ids and a free list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/page_pool.h"

/* Free pages, of which check marks each. */
static uint32_t count_free(const td_page_pool *p)
{
  uint32_t held[10] = {0}, n = 0;
  td_page_pool_check(p, held);
  for (uint32_t i = 0; i < p->n_pages; i++)
    n += held[i];
  return n;
}

static void takes_every_page_once(void **state)
{
  td_page_pool p;
  uint32_t seen[10] = {0};
  assert_true(td_page_pool_init(&p, 10));
  assert_int_equal(count_free(&p), 10);
  for (uint32_t i = 0; i < 10; i++) {
    int32_t page = td_page_pool_take(&p);
    assert_in_range(page, 0, 9);
    assert_int_equal(seen[page]++, 0);
    assert_int_equal(count_free(&p), 9 - i);
  }
  assert_int_equal(p.n_free, 0);
  td_page_pool_deinit(&p);
}

static void the_warmest_page_is_used_again_first(void **state)
{
  td_page_pool p;
  assert_true(td_page_pool_init(&p, 4));
  int32_t a = td_page_pool_take(&p), b = td_page_pool_take(&p);
  td_page_pool_give(&p, b);
  td_page_pool_give(&p, a);
  assert_int_equal(p.n_free, 4);
  assert_int_equal(count_free(&p), 4);
  assert_int_equal(td_page_pool_take(&p), a);
  assert_int_equal(td_page_pool_take(&p), b);
  td_page_pool_deinit(&p);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(takes_every_page_once),
      cmocka_unit_test(the_warmest_page_is_used_again_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
