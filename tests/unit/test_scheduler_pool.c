/* The page pool: ids, references, free list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/page_pool.h"

static void takes_every_page_once(void **state)
{
  td_page_pool p;
  uint32_t seen[10] = {0}, mark[10];
  assert_true(td_page_pool_init(&p, 10));
  td_page_pool_check(&p, mark);
  for (int i = 0; i < 10; i++) {
    int32_t page = td_page_pool_take(&p);
    assert_in_range(page, 0, 9);
    assert_int_equal(seen[page]++, 0);
    td_page_pool_check(&p, mark);
  }
  assert_int_equal(p.n_free, 0);
  td_page_pool_deinit(&p);
}

static void a_page_is_free_when_its_last_reference_goes(void **state)
{
  td_page_pool p;
  uint32_t mark[4];
  assert_true(td_page_pool_init(&p, 4));
  int32_t page = td_page_pool_take(&p);
  td_page_pool_ref(&p, page);
  td_page_pool_ref(&p, page);
  assert_int_equal(p.n_free, 3);
  td_page_pool_unref(&p, page);
  td_page_pool_unref(&p, page);
  assert_int_equal(p.n_free, 3);
  td_page_pool_unref(&p, page);
  assert_int_equal(p.n_free, 4);
  td_page_pool_check(&p, mark);
  assert_int_equal(td_page_pool_take(&p), page); /* the warmest is used again first */
  td_page_pool_deinit(&p);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(takes_every_page_once),
      cmocka_unit_test(a_page_is_free_when_its_last_reference_goes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
