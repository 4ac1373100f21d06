/* The cost model: the load of a plan, and the time that a table gives for it. */
#include "test_scheduler_fixture.h"

#include <math.h>

#include <stdio.h>
#include <xxhash.h>

#include "scheduler/cost_model.h"
#include "scheduler/cost_text.h"

static const td_cost_model round_numbers = {.n_points = 3,
                                            .tokens = {8, 64, 128},
                                            .tokens_us = {100, 212, 212},
                                            .logits_us_per_row = 0.5,
                                            .decode_us_per_row = 2,
                                            .decode_us_per_kv_token = 0.25,
                                            .prefill_us_per_chunk = 7,
                                            .prefill_us_per_pair = 0.125,
                                            .prefill_us_per_kv_token = 0.0625,
                                            .prefill_us_per_short_chunk_key = 0.5,
                                            .hybrid_us = 9,
                                            .hybrid_us_per_decode_row = 3};
/* The same with all optional values of a file: factors learned under load, a price of KV beside chunks, and
 * the share of attention that runs beside the other. */
static td_cost_model with_learned(double without_prompts, double with_prompts)
{
  td_cost_model m = round_numbers;
  m.hybrid_us_per_kv_token = 0.375;
  m.hybrid_beside = 0.5;
  m.learned[0] = without_prompts;
  m.learned[1] = with_prompts;
  return m;
}

static void assert_near(double got, double want, double share)
{
  if (!(fabs(got - want) <= share * fabs(want)))
    fail_msg("%.9g is not within %.3g of %.9g", got, share, want);
}

static void test_work_of_plan(void **state)
{
  (void)state;
  td_plan_row rows[] = {{.q_len = 1, .kv_len = 10},
                        {.q_len = 1, .kv_len = 300},
                        {.q_len = 5, .kv_len = 5},
                        {.q_len = 3, .kv_len = 10}};
  td_plan plan = {
      .n_rows = 4, .rows = rows, .n_tokens = 10, .n_logits = 3, .n_decode_rows = 2, .n_prefill_tokens = 8};
  td_step_work w = td_step_work_of(&plan);
  assert_int_equal(w.n_tokens, 10);
  assert_int_equal(w.n_rows, 4);
  assert_int_equal(w.n_logits, 3);
  assert_int_equal(w.n_decode_rows, 2);
  assert_int_equal(w.decode_kv_tokens, 310);
  assert_int_equal(w.prefill_kv_tokens, 15);
  assert_int_equal(w.prefill_short_chunk_keys, 15); /* short chunks, with few pairs for these keys */
  assert_int_equal(w.prefill_pairs, (1 + 2 + 3 + 4 + 5) + (8 + 9 + 10)); /* counted by hand */
}

static void test_pairs_do_not_overflow(void **state)
{
  (void)state;
  assert_true(td_cost_pairs(65536, 16777216) == 65536ull * (16777216 - 65536) + 65536ull * 65537 / 2);
}

static void test_table(void **state)
{
  (void)state;
  const td_cost_model *m = &round_numbers, one = {.n_points = 1, .tokens = {4}, .tokens_us = {9}};
  assert_near(td_cost_tokens_us(m, 1), 100, 0); /* below the first point: the minimal cost of a step */
  assert_near(td_cost_tokens_us(m, 8), 100, 0);
  assert_near(td_cost_tokens_us(m, 9), 102, 0);
  assert_near(td_cost_tokens_us(m, 64), 212, 0);
  assert_near(td_cost_tokens_us(m, 100), 212, 0); /* a flat tread of the stair */
  assert_near(td_cost_tokens_us(m, 4096), 212, 0);
  assert_near(td_cost_tokens_us(&one, 1), 9, 0);
  assert_near(td_cost_tokens_us(&one, 99), 9, 0);
  assert_near(td_cost_tokens_us(&(td_cost_model){0}, 99), 0, 0);
}

static void test_step(void **state)
{
  (void)state;
  td_step_work w = {.n_tokens = 10,
                    .n_rows = 4,
                    .n_logits = 3,
                    .n_decode_rows = 2,
                    .decode_kv_tokens = 310,
                    .prefill_pairs = 42,
                    .prefill_kv_tokens = 15,
                    .prefill_short_chunk_keys = 6};
  assert_near(td_cost_step_us(&round_numbers, &w), 104 + 1.5 + 4 + 77.5 + 14 + 5.25 + 0.9375 + 3 + 9 + 6,
              1e-12);
  td_cost_model worked = round_numbers;
  worked.learned[0] = 1.5, worked.learned[1] = 0.75; /* these are for the scheduler to apply */
  assert_true(td_cost_step_us(&worked, &w) == td_cost_step_us(&round_numbers, &w));
  assert_true(td_cost_learned(&worked, false) == 1.5 && td_cost_learned(&worked, true) == 0.75 &&
              td_cost_learned(&round_numbers, true) == 1);
  td_cost_model priced = round_numbers;
  priced.hybrid_us_per_kv_token = 0.375;
  assert_near(td_cost_step_us(&priced, &w) - td_cost_step_us(&round_numbers, &w), 0.125 * 310, 1e-9);
  td_cost_model beside = round_numbers;
  beside.hybrid_beside = 0.5;
  double prefill_us = 5.25 + 0.9375 + 3; /* the shorter attention, half of which runs beside the decodes' */
  assert_near(td_cost_step_us(&beside, &w), 104 + 1.5 + 4 + 77.5 + 14 + prefill_us / 2 + 9 + 6, 1e-12);
  td_step_work fewer_keys = w;
  fewer_keys.decode_kv_tokens = 20; /* now the decodes' is */
  assert_near(td_cost_step_us(&beside, &fewer_keys), 104 + 1.5 + 4 + 2.5 + 14 + prefill_us + 9 + 6, 1e-12);
  w.n_decode_rows = 0; /* chunks alone */
  w.decode_kv_tokens = 0;
  assert_near(td_cost_step_us(&round_numbers, &w), 104 + 1.5 + 28 + 5.25 + 0.9375 + 3, 1e-12);
  w = (td_step_work){
      .n_tokens = 10, .n_rows = 10, .n_logits = 10, .n_decode_rows = 10, .decode_kv_tokens = 310};
  assert_near(td_cost_step_us(&round_numbers, &w), 104 + 5 + 20 + 77.5, 1e-12);
  assert_near(td_cost_step_us(&priced, &w), 104 + 5 + 20 + 77.5, 1e-12); /* beside chunks only */
}

/* The built-in table gives back the steps that it was made from. */
static void test_h200_table(void **state)
{
  (void)state;
  static const struct {
    uint32_t rows;
    double ms;
  } decodes[] = {{1, 3.593},  {2, 3.607},  {4, 3.673},  {8, 3.794},   {16, 4.164},   {32, 4.983},
                 {48, 5.916}, {64, 6.414}, {96, 7.626}, {128, 8.735}, {192, 11.783}, {256, 14.613}};
  const td_cost_model *m = &td_cost_h200_llama3_8b;
  for (size_t i = 0; i < sizeof decodes / sizeof *decodes; i++) {
    uint32_t n = decodes[i].rows;
    td_step_work w = {
        .n_tokens = n, .n_rows = n, .n_logits = n, .n_decode_rows = n, .decode_kv_tokens = 1024ull * n};
    assert_near(td_cost_step_us(m, &w), decodes[i].ms * 1e3,
                n <= 96 ? 0.0005 : 0.04); /* those are of chunks */
  }
  static const struct {
    uint32_t tokens;
    double ms;
  } prompts[] = {{257, 9.172},   {384, 10.052},  {512, 12.323},  {513, 13.944},  {576, 14.673},
                 {768, 17.701},  {1024, 23.200}, {1025, 25.608}, {1152, 26.782}, {2048, 45.850},
                 {2049, 49.340}, {4096, 94.771}, {8192, 204.61}, {16384, 467.12}};
  for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
    double us = 0;
    uint32_t chunk = prompts[i].tokens < 4096 ? prompts[i].tokens : 4096;
    for (uint32_t at = chunk; at <= prompts[i].tokens; at += chunk) {
      td_step_work w = {.n_tokens = chunk,
                        .n_rows = 1,
                        .n_logits = at == prompts[i].tokens,
                        .prefill_pairs = td_cost_pairs(chunk, at),
                        .prefill_kv_tokens = at};
      us += td_cost_step_us(m, &w);
    }
    assert_near(us, prompts[i].ms * 1e3, prompts[i].tokens <= 8192 ? 0.005 : 0.014);
  }
  assert_near(td_cost_tokens_us(m, 384) / td_cost_tokens_us(m, 512), 0.82, 0.01);
  for (uint32_t i = 1; i < m->n_points; i++) {
    assert_true(m->tokens[i] > m->tokens[i - 1]);
    assert_true(m->tokens_us[i] >= 0.99 * m->tokens_us[i - 1]);
  }
}

/* Steps of chunks beside decodes from a daemon under load (toolagent at 6/s, conversation at 20/s; the median
 * of similar steps); and attention of one layer since both run beside each other, us hot: one after the
 * other, together, prefill alone, decodes alone. */
static void test_h200_hybrids(void **state)
{
  (void)state;
  static const struct {
    uint32_t chunk, rows;
    uint64_t kv_tokens, pairs;
    double ms;
  } steps[] = {{66, 36, 38637, 180609, 6.973},       {103, 54, 45883, 279954, 7.939},
               {221, 35, 38228, 569075, 9.280},      {1462, 17, 103838, 10477423, 47.450},
               {1588, 16, 100237, 11326410, 49.912}, {1620, 7, 48873, 12330630, 50.378},
               {1896, 3, 22963, 11505876, 49.157}};
  static const double cells[][4] = {{1225, 1034, 349, 900},   {1179, 1062, 238, 960}, {471, 401, 230, 244},
                                    {1100, 1064, 902, 245},   {694, 665, 474, 246},   {731, 588, 265, 480},
                                    {1017, 976, 62, 955},     {283, 260, 44, 240},    {1066, 1000, 123, 942},
                                    {3193, 2692, 1865, 1392}, {922, 759, 460, 480},   {635, 563, 238, 430}};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    td_step_work w = {.n_tokens = steps[i].chunk + steps[i].rows,
                      .n_rows = steps[i].rows + 1,
                      .n_decode_rows = steps[i].rows,
                      .decode_kv_tokens = steps[i].kv_tokens,
                      .prefill_pairs = steps[i].pairs};
    assert_near(td_cost_step_us(&td_cost_h200_llama3_8b, &w), steps[i].ms * 1e3, 0.08);
  }
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
    double shorter = fmin(cells[i][2], cells[i][3]);
    assert_near(cells[i][0] - td_cost_h200_llama3_8b.hybrid_beside * shorter, cells[i][1], 0.09);
  }
}

/* ---- as text ---- */

static char text[TD_COST_TEXT_BYTES], identity[TD_COST_IDENTITY_BYTES];

/* The model with a line replaced, under a right checksum. */
static td_status parse_with(const char *line, const char *other, td_error *err)
{
  td_buf b;
  td_cost_model m, printed = with_learned(1.25, 0.5);
  td_buf_init(&b, 0);
  td_cost_print(&printed, "Some GPU", &b);
  char *at = strstr(b.data, line);
  assert_non_null(at);
  int n = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - b.data), b.data, other, at + strlen(line));
  n -= 22;
  snprintf(text + n, 23, "xxh3 %016llx\n", (unsigned long long)XXH3_64bits(text, (size_t)n));
  td_buf_deinit(&b);
  return td_cost_parse(text, (size_t)n + 22, &m, identity, err);
}

static void test_text_is_exact(void **state)
{
  (void)state;
  const td_cost_model learned[] = {with_learned(1.0123456789012345, 1 / 1.7), with_learned(0, 2),
                                   with_learned(0.5, 0)};
  const td_cost_model *const models[] = {&round_numbers, &td_cost_h200_llama3_8b, &learned[0], &learned[1],
                                         &learned[2]};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    td_cost_model back;
    td_error err;
    td_buf b;
    td_buf_init(&b, TD_COST_TEXT_BYTES);
    memset(&back, 0, sizeof back);
    td_cost_print(models[i], "NVIDIA H200, 32 layers", &b);
    assert_false(b.failed);
    assert_int_equal(td_cost_parse(b.data, b.len_bytes, &back, identity, &err), TD_OK);
    assert_string_equal(identity, "NVIDIA H200, 32 layers");
    assert_memory_equal(&back, models[i], sizeof back);
    for (size_t n = 0; n < b.len_bytes; n++) { /* cut at any length, or any bit wrong */
      assert_int_equal(td_cost_parse(b.data, n, &back, identity, &err), TD_ERR_CONFIG);
      b.data[n] ^= (char)(1 << n % 8);
      assert_int_equal(td_cost_parse(b.data, b.len_bytes, &back, identity, &err), TD_ERR_CONFIG);
      b.data[n] ^= (char)(1 << n % 8);
    }
    td_buf_deinit(&b);
  }
}

static void test_hostile_text(void **state)
{
  (void)state;
  static const char *const bad[][2] = {
      {"tokens 64", "tokens 8"},
      {"tokens 64", "tokens 0"},
      {"tokens 64", "tokens 64.5"},
      {"tokens 64", "tokens 99999999"},
      {"tokens 64", "tokens  64"},
      {"tokens 64", "tokens +64"},
      {"us 100", "us -100"},
      {"us 100", "us 0"},
      {"us 100", "us nan"},
      {"us 100", "us inf"},
      {"us 100", "us 1e999"},
      {"us 100", "us 0x64"},
      {"us 100", "us 1e13"},
      {"us 100", "us 100 "},
      {"us 100", "us 1e"},
      {"us 100", "us "},
      {"logits_us_per_row 0.5", "logits_us_per_row 1e10"},
      {"logits_us_per_row", "logits"},
      {"decode_us_per_row 2\n", ""},
      {"Some GPU", ""},
      {"Some GPU", "Some\tGPU"},
      {"Some GPU", "Some\x7fGPU"},
      {"tokens 8 us 100\ntokens 64 us 212\ntokens 128 us 212\n", ""}, /* no point at all */
      {"us 100", "us 100000000000000000000000000000000000000000"},
      {"learned_without_prompts 1.25", "learned_without_prompts 2.01"},
      {"learned_without_prompts 1.25", "learned_without_prompts 0.49"},
      {"learned_without_prompts 1.25", "learned_without_prompts 0"},
      {"learned_without_prompts 1.25", "learned_without_prompts -1"},
      {"learned_without_prompts 1.25", "learned_without_prompts nan"},
      {"learned_without_prompts 1.25", "learned_without_prompts 1e400"},
      {"learned_without_prompts 1.25", "learned_without_prompts1.25"},
      {"learned_without_prompts 1.25", "learned_with_prompts 1.25"},
      {"learned_with_prompts 0.5", "learned_with_prompts 0.5\nlearned_with_prompts 0.5"},
      {"learned_with_prompts 0.5", "learned_without_prompts 0.5"},
      {"learned_with_prompts 0.5", "learned 0.5"},
      {"hybrid_us_per_kv_token 0.375", "hybrid_us_per_kv_token 0"},
      {"hybrid_us_per_kv_token 0.375", "hybrid_us_per_kv_token -1"},
      {"hybrid_us_per_kv_token 0.375", "hybrid_us_per_kv_token 1e10"},
      {"hybrid_us_per_kv_token 0.375", "hybrid_us_per_kv_token 0.375\nhybrid_us_per_kv_token 0.375"},
      {"learned_with_prompts 0.5", "learned_with_prompts 0.5\nhybrid_us_per_kv_token 0.375"},
      {"hybrid_beside 0.5", "hybrid_beside 0.91"},
      {"hybrid_beside 0.5", "hybrid_beside 0"},
      {"tandem-steps 4", "tandem-steps 3"}, /* which had no KV beside chunks */
      {"tandem-steps 4", "tandem-steps 2"}, /* nor of anything learned */
      {"tandem-steps 4", "tandem-steps 1"},
      {"tandem-steps 4", "tandem-steps 5"},
  };
  td_error err;
  assert_int_equal(parse_with("Some GPU", "Some GPU", &err), TD_OK);
  assert_int_equal(parse_with("us 100", "us 99.5", &err), TD_OK);
  assert_int_equal(parse_with("learned_without_prompts 1.25\n", "", &err), TD_OK);
  assert_int_equal(parse_with("hybrid_us_per_kv_token 0.375\n", "", &err), TD_OK);
  assert_int_equal(parse_with("hybrid_beside 0.5\n", "", &err), TD_OK);
  assert_int_equal(parse_with("learned_without_prompts 1.25", "learned_without_prompts 2", &err), TD_OK);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    if (parse_with(bad[i][0], bad[i][1], &err) != TD_ERR_CONFIG)
      fail_msg("'%s' was taken", bad[i][1]);
    assert_true(*err.message);
  }
  int n = snprintf(text, sizeof text, "tandem-steps 4\nno line ends here"); /* with a correct checksum */
  snprintf(text + n, 23, "xxh3 %016llx\n", (unsigned long long)XXH3_64bits(text, (size_t)n));
  td_cost_model m;
  assert_int_equal(td_cost_parse(text, (size_t)n + 22, &m, identity, &err), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "second line"));
  td_buf many; /* more points than there is room for */
  td_buf_init(&many, 0);
  for (int i = 1; i <= TD_COST_POINTS_MAX; i++)
    td_buf_printf(&many, "tokens %d us %d\n", i, i);
  td_buf_append_str(&many, "tokens 64 us 212");
  assert_int_equal(parse_with("tokens 8 us 100\ntokens 64 us 212", many.data, &err), TD_ERR_CONFIG);
  td_buf_deinit(&many);
}

/* The limits of a text: at each bound, and one beyond. */
static void test_bounds_of_text(void **state)
{
  (void)state;
  static const char *const rows[][3] = {
      {"tokens 128", "tokens 16777216", "tokens 16777217"},
      {"tokens 8", "tokens 1", "tokens 0"},
      {"tokens 8 ", "tokens 63 ", "tokens 64 "},
      {"us 100", "us 1e12", "us 1000000000001"},
      {"logits_us_per_row 0.5", "logits_us_per_row 1e9", "logits_us_per_row 1000000001"},
      {"hybrid_us_per_decode_row 3", "hybrid_us_per_decode_row 1e9", "hybrid_us_per_decode_row 1000000001"},
      {"hybrid_us 9", "hybrid_us 0", "hybrid_us -0.1"},
      {"hybrid_us_per_kv_token 0.375", "hybrid_us_per_kv_token 1e9", "hybrid_us_per_kv_token 1000000001"},
      {"hybrid_beside 0.5", "hybrid_beside 0.9", "hybrid_beside 0.900001"},
      {"learned_without_prompts 1.25", "learned_without_prompts 0.5", "learned_without_prompts 0.499999"},
      {"learned_with_prompts 0.5", "learned_with_prompts 2", "learned_with_prompts 2.000001"},
      {"us 100", "us 100000000000000000000000000e-24",
       "us 1000000000000000000000000000e-25"}, /* 31 characters */
  };
  td_error err;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (parse_with(rows[i][0], rows[i][1], &err) != TD_OK)
      fail_msg("'%s': %s", rows[i][1], err.message);
    if (parse_with(rows[i][0], rows[i][2], &err) != TD_ERR_CONFIG)
      fail_msg("'%s' was taken", rows[i][2]);
  }
  td_buf b;
  td_buf_init(&b, 0);
  for (int more = 0; more < 2; more++) { /* as many points as fit, and one more */
    td_buf_clear(&b);
    for (int i = 1; i < TD_COST_POINTS_MAX - 1 + more; i++)
      td_buf_printf(&b, "tokens %d us %d\n", i, i);
    td_buf_append_str(&b, "tokens 127 us 212");
    assert_int_equal(parse_with("tokens 8 us 100\ntokens 64 us 212", b.data, &err),
                     more ? TD_ERR_CONFIG : TD_OK);
    td_buf_clear(&b); /* and so long an identity */
    for (int i = 0; i < TD_COST_IDENTITY_BYTES - 1 + more; i++)
      td_buf_append_char(&b, i % 2 ? ' ' : '~');
    assert_int_equal(parse_with("Some GPU", b.data, &err), more ? TD_ERR_CONFIG : TD_OK);
  }
  td_buf_deinit(&b);
}

static void read_before(const td_cost_model *of, int version)
{
  td_cost_model m;
  td_error err;
  td_buf b;
  td_buf_init(&b, 0);
  td_cost_print(of, "Some GPU", &b);
  int n =
      snprintf(text, sizeof text, "tandem-steps %d%.*s", version, (int)b.len_bytes - 22 - 14, b.data + 14);
  snprintf(text + n, 23, "xxh3 %016llx\n", (unsigned long long)XXH3_64bits(text, (size_t)n));
  memset(&m, 0, sizeof m);
  assert_int_equal(td_cost_parse(text, (size_t)n + 22, &m, identity, &err), TD_OK);
  assert_memory_equal(&m, of, sizeof m);
  td_buf_deinit(&b);
}

/* Files of earlier versions: the same without the newer values. */
static void test_text_before(void **state)
{
  (void)state;
  td_cost_model learned = with_learned(1.25, 0.5);
  learned.hybrid_us_per_kv_token = learned.hybrid_beside = 0;
  read_before(&round_numbers, 2);
  read_before(&round_numbers, 3);
  read_before(&learned, 3);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_work_of_plan),   cmocka_unit_test(test_pairs_do_not_overflow),
      cmocka_unit_test(test_table),          cmocka_unit_test(test_step),
      cmocka_unit_test(test_h200_table),     cmocka_unit_test(test_h200_hybrids),
      cmocka_unit_test(test_text_is_exact),  cmocka_unit_test(test_hostile_text),
      cmocka_unit_test(test_bounds_of_text), cmocka_unit_test(test_text_before),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
