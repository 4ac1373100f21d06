/* Programs as data: passes, extents, what a step without samples leaves out, injected faults, and what
 * backends refuse. */
#include "kernels_fixture.h"

enum { WIDTH = 8, TOKENS = 5 };

static td_op norm(td_devptr x, td_devptr weight, td_devptr out, td_extent extent)
{
  td_rmsnorm_params p = {.x = x, .weight = weight, .out = out, .width = WIDTH, .eps = 1e-5f};
  return (td_op){.kind = TD_OP_RMSNORM, .extent = extent, .layer = TD_NO_LAYER, .role = "norm", .rmsnorm = p};
}

static void test_a_pass_keeps_order_and_borders(void **state)
{
  td_program *p, *kept;
  assert_int_equal(td_program_create(4, &p, NULL), TD_OK);
  td_program_add(p, (td_op){.kind = TD_OP_EMBED, .layer = 7});
  td_program_add(p, (td_op){.kind = TD_OP_SWIGLU, .layer = 8});
  td_program_add(p, (td_op){.kind = TD_OP_SAMPLE, .layer = 9});
  assert_int_equal(p->n_unsampled, 3);
  p->n_unsampled = 2;
  td_program_name_buffer(p, "x", (td_devptr){4096});
  assert_int_equal(td_program_keep(p, 1u << TD_OP_SAMPLE | 1u << TD_OP_EMBED, &kept, NULL), TD_OK);
  assert_int_equal(kept->n_ops, 2);
  assert_int_equal(kept->n_unsampled, 1);
  assert_int_equal(kept->ops[0].layer, 7);
  assert_int_equal(kept->ops[1].layer, 9);
  assert_int_equal(td_program_buffer_at(kept, "x").addr, 4096);
  assert_int_equal(td_program_buffer_at(kept, "y").addr, 0);
  td_program_destroy(kept);
  td_program_destroy(p);
  td_program_destroy(NULL);
}

static void test_print(void **state)
{
  td_program *p;
  td_buf out;
  td_buf_init(&out, 0);
  assert_int_equal(td_program_create(1, &p, NULL), TD_OK);
  td_program_name_buffer(p, "x", (td_devptr){64});
  td_program_add(p, norm((td_devptr){64}, (td_devptr){0}, (td_devptr){128}, TD_EXTENT_LOGITS));
  td_program_print(p, &out);
  assert_string_equal(out.data, "          rmsnorm   norm       logits   x -> ?  [8]\n");
  td_buf_deinit(&out);
  td_program_destroy(p);
}

typedef struct fixture {
  td_backend *be;
  td_plan *plan;
  float *x;
  td_devptr in, ones, all, last;
} fixture;

/* Rows of 4 and 1 tokens; the second wants logits. */
static fixture make_fixture(void)
{
  const float ones[WIDTH] = {1, 1, 1, 1, 1, 1, 1, 1};
  fixture f = {.be = fx_backend("scalar", 1), .x = fx_floats(TOKENS * WIDTH, 1)};
  assert_int_equal(td_plan_create(4, 16, 4, 1, 16, &f.plan, NULL), TD_OK);
  f.plan->n_rows = 2;
  f.plan->n_tokens = TOKENS;
  f.plan->rows[0] = (td_plan_row){.q_start = 0, .q_len = 4, .kv_len = 4};
  f.plan->rows[1] = (td_plan_row){.q_start = 4, .q_len = 1, .kv_len = 9};
  td_plan_add_sample(f.plan, 1);
  f.in = fx_upload(f.be, f.x, TOKENS * WIDTH);
  f.ones = fx_upload(f.be, ones, WIDTH);
  f.all = fx_alloc(f.be, TOKENS * WIDTH);
  f.last = fx_alloc(f.be, TOKENS * WIDTH);
  return f;
}

static void free_fixture(fixture *f)
{
  f->be->ops->destroy(f->be);
  td_plan_destroy(f->plan);
  free(f->x);
}

static bool is_written(const fixture *f, td_devptr at, uint32_t row)
{
  float *v = fx_download(f->be, td_devptr_at(at, row * WIDTH * sizeof *v), WIDTH);
  bool any = false;
  for (int i = 0; i < WIDTH; i++)
    any |= v[i] != 0;
  free(v);
  return any;
}

static void test_extents_come_from_the_plan(void **state)
{
  fixture f = make_fixture();
  const td_op ops[] = {norm(f.in, f.ones, f.all, TD_EXTENT_TOKENS),
                       norm(f.in, f.ones, f.last, TD_EXTENT_LOGITS)};
  fx_run(f.be, f.plan, ops, 2, NULL);
  for (uint32_t i = 0; i < TOKENS; i++) {
    assert_true(is_written(&f, f.all, i));
    assert_int_equal(is_written(&f, f.last, i), i == 0);
  }
  free_fixture(&f);
}

static void test_a_step_without_samples_ends_early(void **state)
{
  fixture f = make_fixture();
  td_op ops[] = {norm(f.in, f.ones, f.all, TD_EXTENT_TOKENS), norm(f.in, f.ones, f.last, TD_EXTENT_TOKENS)};
  td_compiled *compiled;
  td_outcome out;
  assert_int_equal(
      f.be->ops->compile(f.be, &(td_program){.ops = ops, .n_ops = 2, .n_unsampled = 1}, &compiled, NULL),
      TD_OK);
  memset(ops, 0xff, sizeof ops); /* the compiled program has its own */
  f.plan->n_logits = 0;
  td_backend_queue_step(f.be, compiled, NULL, f.plan);
  assert_int_equal(td_backend_wait(f.be, &out, NULL), TD_OK);
  assert_int_equal(out.n_logits, 0);
  assert_true(is_written(&f, f.all, 0));
  assert_false(is_written(&f, f.last, 0));
  f.plan->n_logits = 1;
  td_backend_queue_step(f.be, compiled, NULL, f.plan);
  assert_int_equal(td_backend_wait(f.be, &out, NULL), TD_OK);
  assert_true(is_written(&f, f.last, 0));
  f.be->ops->discard(f.be, compiled);
  f.be->ops->discard(f.be, NULL);
  free_fixture(&f);
}

static void test_what_no_backend_of_this_kind_has_is_refused(void **state)
{
  td_backend *be = fx_backend("scalar", 1);
  td_op op = {.kind = TD_OP_LINEAR_SWIGLU};
  td_compiled *compiled;
  td_error err = {0};
  assert_int_equal(be->ops->compile(be, &(td_program){.ops = &op, .n_ops = 1}, &compiled, &err),
                   TD_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.message, "linear_swiglu"));
  be->ops->destroy(be);
}

/* Each backend counts its own steps. */
static void test_faults_are_a_backends_own(void **state)
{
  fixture f[2];
  setenv("TANDEM_FAULT", "device:2", 1);
  f[0] = make_fixture();
  f[1] = make_fixture();
  unsetenv("TANDEM_FAULT");
  for (int i = 0; i < 2; i++) {
    td_op op = norm(f[i].in, f[i].ones, f[i].all, TD_EXTENT_TOKENS);
    td_compiled *compiled;
    td_outcome out;
    td_error err = {0};
    assert_int_equal(f[i].be->ops->compile(f[i].be, &(td_program){.ops = &op, .n_ops = 1, .n_unsampled = 1},
                                           &compiled, &err),
                     TD_OK);
    for (int step = 1; step <= 3; step++) {
      td_backend_queue_step(f[i].be, compiled, NULL, f[i].plan);
      assert_int_equal(td_backend_wait(f[i].be, &out, &err), step == 2 ? TD_ERR_DEVICE : TD_OK);
    }
    f[i].be->ops->discard(f[i].be, compiled);
    free_fixture(&f[i]);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_pass_keeps_order_and_borders),
      cmocka_unit_test(test_print),
      cmocka_unit_test(test_extents_come_from_the_plan),
      cmocka_unit_test(test_a_step_without_samples_ends_early),
      cmocka_unit_test(test_what_no_backend_of_this_kind_has_is_refused),
      cmocka_unit_test(test_faults_are_a_backends_own),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
