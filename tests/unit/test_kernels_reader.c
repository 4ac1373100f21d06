/* Reading weights with several threads: every type from memory and from a file, large and small matrices
 * mixed, compared with the reference conversion. Also a truncated file, a failing sink, and a load that is
 * given up. */
#include "kernels_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "kernels/weight_reader.h"

/* A sink whose destination is host memory. Each thread has two buffers; the previous one must have been sent
 * unchanged. */
typedef struct sink {
  unsigned char *buffers[TD_READERS_MAX];
  _Atomic uint32_t n_sent, n_flushed, fail_at; /* index of the send that fails; 0: none */
} sink;

static td_status sink_buffer(void *arg, uint32_t thread, void **out, td_error *err)
{
  sink *s = arg;
  if (!s->buffers[thread])
    s->buffers[thread] = malloc(TD_PIECE_BYTES);
  *out = s->buffers[thread];
  return *out ? TD_OK : td_fail(err, TD_ERR_NOMEM, "test");
}

static td_status sink_send(void *arg, uint32_t thread, void *dst, size_t bytes, td_error *err)
{
  sink *s = arg;
  assert_true(bytes > 0 && bytes <= TD_PIECE_BYTES);
  if (atomic_fetch_add(&s->n_sent, 1) + 1 == s->fail_at)
    return td_fail(err, TD_ERR_DEVICE, "the sink fails");
  memcpy(dst, s->buffers[thread], bytes);
  return TD_OK;
}

static td_status sink_flush(void *arg, uint32_t thread, td_error *err)
{
  sink *s = arg;
  atomic_fetch_add(&s->n_flushed, 1);
  free(s->buffers[thread]);
  s->buffers[thread] = NULL;
  return TD_OK;
}

static td_weight_reader *open_reader(sink *s, uint32_t n_threads)
{
  td_weight_reader *r;
  td_error err;
  td_weight_sink ws = {s, sink_buffer, sink_send, sink_flush};
  assert_int_equal(td_weight_reader_create(n_threads, &ws, &r, &err), TD_OK);
  return r;
}

typedef struct matrix {
  td_weight_part part;
  td_weight_file file;
  uint64_t n_cols, bytes;
  uint16_t *got;
} matrix;

static matrix make_matrix(td_dtype t, uint32_t n_rows, uint32_t n_cols)
{
  matrix m = {.n_cols = n_cols};
  uint64_t row_bytes;
  assert_true(td_dtype_row_bytes(t, n_cols, &row_bytes));
  m.bytes = n_rows * row_bytes;
  m.part = (td_weight_part){.dtype = t, .data = fx_matrix(t, n_rows, n_cols), .n_rows = n_rows};
  m.got = malloc((size_t)n_rows * n_cols * sizeof *m.got);
  assert_non_null(m.got);
  return m;
}

static void check_matrix(const matrix *m)
{
  uint64_t row_bytes;
  float *wide = malloc(m->n_cols * sizeof *wide);
  assert_true(td_dtype_row_bytes(m->part.dtype, m->n_cols, &row_bytes));
  for (uint64_t r = 0; r < m->part.n_rows; r++) {
    td_dtype_to_f32(m->part.dtype, (const char *)m->part.data + r * row_bytes, m->n_cols, wide);
    for (uint64_t k = 0; k < m->n_cols; k++)
      if (m->got[r * m->n_cols + k] != td_f32_to_bf16(wide[k]))
        fail_msg("%s row %llu, column %llu", td_dtypes[m->part.dtype].name, (unsigned long long)r,
                 (unsigned long long)k);
  }
  free(wide);
}

static void free_matrix(matrix *m)
{
  free((void *)m->part.data);
  free(m->got);
}

static char path[] = "/tmp/td-reader-XXXXXX";

/* All matrices in one file, after an odd number of bytes. */
static int write_file(matrix *m, uint32_t n)
{
  strcpy(path + sizeof path - 7, "XXXXXX");
  int fd = mkstemp(path);
  assert_true(fd >= 0 && write(fd, "odd", 3) == 3);
  uint64_t at = 3;
  for (uint32_t i = 0; i < n; i++) {
    assert_int_equal(write(fd, m[i].part.data, m[i].bytes), (ssize_t)m[i].bytes);
    m[i].file = (td_weight_file){fd, at, "weights.bin"};
    m[i].part.file = &m[i].file;
    at += m[i].bytes;
  }
  return fd;
}

enum { N_MATRICES = TD_DTYPE_COUNT + 2 };

static void make_all(matrix m[N_MATRICES])
{
  for (uint32_t i = 0; i < TD_DTYPE_COUNT; i++)
    m[i] = make_matrix((td_dtype)i, 1 + fx_below(40), 256 * (1 + fx_below(4)));
  m[TD_DTYPE_COUNT] = make_matrix(TD_BF16, 9000, 1024); /* several parts, the last one short */
  m[TD_DTYPE_COUNT + 1] = make_matrix(TD_Q8_0, 5000, 1024);
}

static void test_every_type(void **state)
{
  for (int from_file = 0; from_file < 2; from_file++) {
    matrix m[N_MATRICES];
    sink s = {0};
    td_error err;
    make_all(m);
    int fd = from_file ? write_file(m, N_MATRICES) : -1;
    td_weight_reader *r = open_reader(&s, 4);
    for (int i = 0; i < N_MATRICES; i++)
      assert_int_equal(td_weight_reader_push(r, &m[i].part, m[i].n_cols, m[i].got, &err), TD_OK);
    assert_int_equal(td_weight_reader_finish(r, &err), TD_OK);
    assert_int_equal(s.n_flushed, 4);
    for (int i = 0; i < N_MATRICES; i++) {
      check_matrix(&m[i]);
      free_matrix(&m[i]);
    }
    if (fd >= 0)
      assert_true(close(fd) == 0 && unlink(path) == 0);
  }
}

/* The right half of every row, as a rank's shard: the left halves are skipped. */
static void test_slices_of_columns(void **state)
{
  static const td_dtype types[] = {TD_BF16, TD_F32, TD_Q8_0, TD_Q4_K};
  for (int from_file = 0; from_file < 2; from_file++)
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
      matrix m = make_matrix(types[i], 5000, 1024);
      sink s = {0};
      td_error err;
      int fd = from_file ? write_file(&m, 1) : -1;
      uint64_t half_bytes;
      assert_true(td_dtype_row_bytes(types[i], 512, &half_bytes));
      td_weight_part half = m.part;
      half.row_elements = 1024;
      half.data = (const char *)half.data + half_bytes;
      m.file.offset_bytes += half_bytes;
      td_weight_reader *r = open_reader(&s, 3);
      assert_int_equal(td_weight_reader_push(r, &half, 512, m.got, &err), TD_OK);
      assert_int_equal(td_weight_reader_finish(r, &err), TD_OK);
      float wide[1024];
      for (uint64_t row = 0; row < half.n_rows; row++) {
        td_dtype_to_f32(types[i], (const char *)m.part.data + row * 2 * half_bytes, 1024, wide);
        for (uint64_t k = 0; k < 512; k++)
          assert_int_equal(m.got[row * 512 + k], td_f32_to_bf16(wide[512 + k]));
      }
      if (fd >= 0)
        assert_true(close(fd) == 0 && unlink(path) == 0);
      free_matrix(&m);
    }
}

static void test_a_cut_file_is_an_error(void **state)
{
  matrix m = make_matrix(TD_Q8_0, 9000, 1024);
  sink s = {0};
  td_error err = {0};
  int fd = write_file(&m, 1);
  assert_int_equal(ftruncate(fd, (off_t)(m.bytes - 10)), 0);
  td_weight_reader *r = open_reader(&s, 3);
  assert_int_equal(td_weight_reader_push(r, &m.part, m.n_cols, m.got, &err), TD_OK);
  assert_int_equal(td_weight_reader_finish(r, &err), TD_ERR_IO);
  assert_non_null(strstr(err.message, "weights.bin"));
  assert_non_null(strstr(err.message, "cut"));
  assert_true(close(fd) == 0 && unlink(path) == 0);
  free_matrix(&m);
}

static void test_a_failing_sink_ends_the_load(void **state)
{
  matrix m = make_matrix(TD_BF16, 30000, 1024);
  sink s = {.fail_at = 3};
  td_error err = {0};
  td_weight_reader *r = open_reader(&s, 2);
  td_status st = TD_OK;
  for (int i = 0; i < 200 && st == TD_OK; i++) /* waits while much is queued, but not forever */
    st = td_weight_reader_push(r, &m.part, m.n_cols, m.got, &err);
  assert_int_equal(st, TD_ERR_DEVICE);
  err.message[0] = '\0';
  assert_int_equal(td_weight_reader_finish(r, &err), TD_ERR_DEVICE);
  assert_string_equal(err.message, "the sink fails");
  free_matrix(&m);
}

static void test_giving_up_drops_what_is_queued(void **state)
{
  matrix m = make_matrix(TD_BF16, 30000, 1024);
  sink s = {0};
  td_weight_reader *r = open_reader(&s, 1);
  for (int i = 0; i < 4; i++)
    assert_int_equal(td_weight_reader_push(r, &m.part, m.n_cols, m.got, NULL), TD_OK);
  td_weight_reader_destroy(r);
  assert_true(s.n_sent < 4 * 15);
  assert_int_equal(s.n_flushed, 1);
  td_weight_reader_destroy(NULL);
  assert_int_equal(td_weight_reader_finish(NULL, NULL), TD_OK);
  free_matrix(&m);
}

static void test_rows_that_do_not_fit_are_refused(void **state)
{
  sink s = {0};
  td_error err = {0};
  uint16_t to[8];
  td_weight_reader *r = open_reader(&s, 1);
  td_weight_part part = {.dtype = TD_Q8_0, .data = "x", .n_rows = 1};
  assert_int_equal(td_weight_reader_push(r, &part, 33, to, &err), TD_ERR_MODEL);
  part.dtype = TD_BF16;
  assert_int_equal(td_weight_reader_push(r, &part, 0, to, &err), TD_ERR_MODEL);
  assert_int_equal(td_weight_reader_push(r, &part, 1 << 22, to, &err), TD_ERR_MODEL);
  part.dtype = (td_dtype)99;
  assert_int_equal(td_weight_reader_push(r, &part, 32, to, &err), TD_ERR_MODEL);
  part.n_rows = 0;
  assert_int_equal(td_weight_reader_push(r, &part, 32, to, &err), TD_OK);
  assert_int_equal(td_weight_reader_finish(r, &err), TD_OK);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_type),
      cmocka_unit_test(test_slices_of_columns),
      cmocka_unit_test(test_a_cut_file_is_an_error),
      cmocka_unit_test(test_a_failing_sink_ends_the_load),
      cmocka_unit_test(test_giving_up_drops_what_is_queued),
      cmocka_unit_test(test_rows_that_do_not_fit_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
