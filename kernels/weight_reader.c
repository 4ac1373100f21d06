/* See weight_reader.h. */
#include "kernels/weight_reader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"

/* Limit of queued bytes that no thread has taken yet: a few pieces for each thread. */
#define QUEUED_BYTES_MAX ((uint64_t)256 << 20)

typedef struct job {
  struct job *next;
  td_dtype dtype;
  const unsigned char *data; /* the rows, if fd is below 0 */
  int fd;
  uint64_t offset_bytes;
  const char *name;
  uint64_t n_rows, n_cols, row_bytes, stride_bytes, rows_per_piece, next_row;
  uint16_t *dst;
} job;

typedef struct piece {
  job j; /* a copy, because the queue may free its own */
  uint64_t first_row, n_rows;
} piece;

typedef struct reader {
  struct td_weight_reader *owner;
  uint32_t index;
  pthread_t thread;
  unsigned char *raw; /* stored bytes of a piece that must be converted */
  size_t raw_bytes;
  float *wide; /* one row as floats */
  uint64_t wide_elements;
} reader;

struct td_weight_reader {
  td_weight_sink sink;
  pthread_mutex_t lock;
  pthread_cond_t job_queued, room_freed; /* room_freed: a thread took a piece */
  job *first, *last;
  uint64_t queued_bytes; /* as bf16 */
  bool closing, failed;
  td_error error; /* the first error */
  uint32_t n_threads;
  reader readers[TD_READERS_MAX];
};

/* ---- the queue ---- */

static uint64_t bf16_bytes(const job *j, uint64_t n_rows) { return n_rows * j->n_cols * sizeof(uint16_t); }

static void drop_first(td_weight_reader *r)
{
  job *j = r->first;
  r->first = j->next;
  if (!r->first)
    r->last = NULL;
  free(j);
}

/* Takes the next piece. Returns false if there will be none. */
static bool take_piece(td_weight_reader *r, piece *out)
{
  bool any;
  pthread_mutex_lock(&r->lock);
  while (!r->first && !r->closing && !r->failed)
    pthread_cond_wait(&r->job_queued, &r->lock);
  any = r->first && !r->failed;
  if (any) {
    job *j = r->first;
    uint64_t left = j->n_rows - j->next_row;
    *out = (piece){
        .j = *j, .first_row = j->next_row, .n_rows = left < j->rows_per_piece ? left : j->rows_per_piece};
    j->next_row += out->n_rows;
    r->queued_bytes -= bf16_bytes(j, out->n_rows);
    if (j->next_row == j->n_rows)
      drop_first(r);
    pthread_cond_signal(&r->room_freed);
  }
  pthread_mutex_unlock(&r->lock);
  return any;
}

static void fail_with(td_weight_reader *r, td_status st, const td_error *err)
{
  pthread_mutex_lock(&r->lock);
  if (!r->failed) {
    r->error = *err;
    r->error.code = st;
    r->failed = true;
  }
  pthread_cond_broadcast(&r->job_queued);
  pthread_cond_broadcast(&r->room_freed);
  pthread_mutex_unlock(&r->lock);
}

/* ---- a piece ---- */

static td_status read_file(const job *j, uint64_t at, void *dst, uint64_t n, td_error *err)
{
  ssize_t got = td_read_at(j->fd, dst, n, at);
  if (got < 0)
    return td_fail(err, TD_ERR_IO, "%s: reading at byte %llu: %s", j->name, (unsigned long long)at,
                   strerror(errno));
  if ((uint64_t)got < n)
    return td_fail(err, TD_ERR_IO, "%s: ends at byte %llu now: it was cut while it was read", j->name,
                   (unsigned long long)(at + (uint64_t)got));
  return TD_OK;
}

static td_status make_room(reader *t, const piece *p, td_error *err)
{
  uint64_t raw = p->n_rows * p->j.row_bytes;
  if (p->j.fd >= 0 && raw > t->raw_bytes) {
    free(t->raw);
    t->raw = malloc(raw);
    t->raw_bytes = t->raw ? raw : 0;
  }
  if (p->j.n_cols > t->wide_elements) {
    free(t->wide);
    t->wide = malloc(p->j.n_cols * sizeof *t->wide);
    t->wide_elements = t->wide ? p->j.n_cols : 0;
  }
  if ((p->j.fd >= 0 && raw > t->raw_bytes) || !t->wide)
    return td_fail(err, TD_ERR_NOMEM, "no memory to convert weights");
  return TD_OK;
}

/* Reads the piece's rows as they are stored and packs them in dst: with one read if they are adjacent in the
 * file, otherwise row by row. */
static td_status read_rows(const piece *p, void *dst, td_error *err)
{
  const job *j = &p->j;
  bool whole = j->stride_bytes == j->row_bytes;
  uint64_t n_runs = whole ? 1 : p->n_rows, run_bytes = whole ? p->n_rows * j->row_bytes : j->row_bytes;
  for (uint64_t r = 0; r < n_runs; r++) {
    uint64_t at = (p->first_row + r) * j->stride_bytes;
    unsigned char *to = (unsigned char *)dst + r * run_bytes;
    if (j->fd >= 0)
      TD_TRY(read_file(j, j->offset_bytes + at, to, run_bytes, err));
    else
      memcpy(to, j->data + at, run_bytes);
  }
  return TD_OK;
}

static td_status convert_piece(reader *t, const piece *p, uint16_t *out, td_error *err)
{
  const job *j = &p->j;
  if (j->dtype == TD_BF16)
    return read_rows(p, out, err);
  TD_TRY(make_room(t, p, err));
  if (j->fd >= 0)
    TD_TRY(read_rows(p, t->raw, err));
  for (uint64_t r = 0; r < p->n_rows; r++) {
    const unsigned char *row =
        j->fd >= 0 ? t->raw + r * j->row_bytes : j->data + (p->first_row + r) * j->stride_bytes;
    td_dtype_to_f32(j->dtype, row, j->n_cols, t->wide);
    for (uint64_t k = 0; k < j->n_cols; k++)
      out[r * j->n_cols + k] = td_f32_to_bf16(t->wide[k]);
  }
  return TD_OK;
}

static td_status run_piece(reader *t, const piece *p, td_error *err)
{
  const td_weight_sink *s = &t->owner->sink;
  void *buffer;
  TD_TRY(s->buffer(s->arg, t->index, &buffer, err));
  TD_TRY(convert_piece(t, p, buffer, err));
  return s->send(s->arg, t->index, p->j.dst + p->first_row * p->j.n_cols, bf16_bytes(&p->j, p->n_rows), err);
}

static void *read_all(void *arg)
{
  reader *t = arg;
  const td_weight_sink *s = &t->owner->sink;
  piece p;
  td_error err = {0};
  td_status st = TD_OK;
  while (st == TD_OK && take_piece(t->owner, &p))
    st = run_piece(t, &p, &err);
  if (st != TD_OK)
    fail_with(t->owner, st, &err);
  st = s->flush(s->arg, t->index, &err); /* after errors too: the sink may be freed next */
  if (st != TD_OK)
    fail_with(t->owner, st, &err);
  free(t->raw);
  free(t->wide);
  return NULL;
}

/* ---- create and destroy ---- */

td_status td_weight_reader_create(uint32_t n_threads, const td_weight_sink *sink, td_weight_reader **out,
                                  td_error *err)
{
  td_weight_reader *r = calloc(1, sizeof *r);
  if (!r)
    return td_fail(err, TD_ERR_NOMEM, "no memory to read weights");
  r->sink = *sink;
  pthread_mutex_init(&r->lock, NULL);
  pthread_cond_init(&r->job_queued, NULL);
  pthread_cond_init(&r->room_freed, NULL);
  if (n_threads > TD_READERS_MAX)
    n_threads = TD_READERS_MAX;
  for (uint32_t i = 0; i < n_threads; i++) {
    reader *t = &r->readers[i];
    t->owner = r;
    t->index = i;
    if (pthread_create(&t->thread, NULL, read_all, t) != 0)
      break; /* go on with fewer threads */
    r->n_threads++;
  }
  if (r->n_threads == 0) {
    td_weight_reader_destroy(r);
    return td_fail(err, TD_ERR_NOMEM, "no thread can be started to read weights");
  }
  *out = r;
  return TD_OK;
}

static td_status make_job(const td_weight_part *part, uint64_t n_cols, void *dst, job **out, td_error *err)
{
  uint64_t row_bytes, stride_bytes;
  if ((unsigned)part->dtype >= TD_DTYPE_COUNT || !td_dtype_row_bytes(part->dtype, n_cols, &row_bytes) ||
      !td_weight_part_stride(part, n_cols, &stride_bytes))
    return td_fail(err, TD_ERR_MODEL, "rows of %llu elements do not fit %s blocks",
                   (unsigned long long)n_cols,
                   (unsigned)part->dtype < TD_DTYPE_COUNT ? td_dtypes[part->dtype].name : "unknown");
  if (n_cols == 0 || n_cols > TD_PIECE_BYTES / sizeof(uint16_t))
    return td_fail(err, TD_ERR_MODEL, "rows of %llu elements are out of bounds", (unsigned long long)n_cols);
  job *j = malloc(sizeof *j);
  if (!j)
    return td_fail(err, TD_ERR_NOMEM, "no memory to read weights");
  *j = (job){.dtype = part->dtype,
             .data = part->data,
             .fd = part->file ? part->file->fd : -1,
             .offset_bytes = part->file ? part->file->offset_bytes : 0,
             .name = part->file ? part->file->name : "",
             .n_rows = part->n_rows,
             .n_cols = n_cols,
             .row_bytes = row_bytes,
             .stride_bytes = stride_bytes,
             .rows_per_piece = TD_PIECE_BYTES / (n_cols * sizeof(uint16_t)),
             .dst = dst};
  *out = j;
  return TD_OK;
}

td_status td_weight_reader_push(td_weight_reader *r, const td_weight_part *part, uint64_t n_cols, void *dst,
                                td_error *err)
{
  job *j = NULL;
  if (part->n_rows == 0)
    return TD_OK;
  TD_TRY(make_job(part, n_cols, dst, &j, err));
  pthread_mutex_lock(&r->lock);
  while (r->queued_bytes > QUEUED_BYTES_MAX && !r->failed)
    pthread_cond_wait(&r->room_freed, &r->lock);
  bool failed = r->failed;
  if (!failed) {
    if (r->last)
      r->last->next = j;
    else
      r->first = j;
    r->last = j;
    r->queued_bytes += bf16_bytes(j, j->n_rows);
    pthread_cond_broadcast(&r->job_queued);
  }
  pthread_mutex_unlock(&r->lock);
  if (!failed)
    return TD_OK;
  free(j);
  if (err)
    *err = r->error; /* safe without the lock: written once, before `failed` */
  return r->error.code;
}

static td_status close_reader(td_weight_reader *r, bool drop, td_error *err)
{
  pthread_mutex_lock(&r->lock);
  r->closing = true;
  while (drop && r->first)
    drop_first(r);
  pthread_cond_broadcast(&r->job_queued);
  pthread_mutex_unlock(&r->lock);
  for (uint32_t i = 0; i < r->n_threads; i++)
    pthread_join(r->readers[i].thread, NULL);
  td_status st = r->failed ? r->error.code : TD_OK;
  if (r->failed && err)
    *err = r->error;
  while (r->first)
    drop_first(r);
  pthread_cond_destroy(&r->room_freed);
  pthread_cond_destroy(&r->job_queued);
  pthread_mutex_destroy(&r->lock);
  free(r);
  return st;
}

td_status td_weight_reader_finish(td_weight_reader *r, td_error *err)
{
  return r ? close_reader(r, false, err) : TD_OK;
}

void td_weight_reader_destroy(td_weight_reader *r)
{
  if (r)
    (void)close_reader(r, true, NULL);
}
