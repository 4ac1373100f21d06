/* Reads stored matrices and converts them to bf16 in several threads, for a backend that keeps its own copy.
 *
 * Jobs are cut into pieces of whole rows. A thread takes the next piece, asks the sink for a buffer, fills it
 * from the file (or from memory) and hands it to the sink. So one large matrix keeps all threads as busy as
 * many small ones do, and threads do not wait between two jobs. A matrix with a file is read from it, not
 * from its mapping: then a truncated file gives an error message instead of a SIGBUS.
 *
 * Thread: push and finish on one thread. The sink's functions run on the reader threads, each with its
 * index. */
#ifndef TD_KERNELS_WEIGHT_READER_H
#define TD_KERNELS_WEIGHT_READER_H

#include "kernels/kernels.h"

enum { TD_PIECE_BYTES = 4 << 20, TD_READERS_MAX = 16 };

typedef struct td_weight_sink {
  void *arg;
  /* Hands out a buffer of TD_PIECE_BYTES that this thread may write now. */
  td_status (*buffer)(void *arg, uint32_t thread, void **out, td_error *err);
  /* Copies the first `bytes` of this thread's buffer to dst. */
  td_status (*send)(void *arg, uint32_t thread, void *dst, size_t bytes, td_error *err);
  /* Waits until everything that this thread sent has arrived. */
  td_status (*flush)(void *arg, uint32_t thread, td_error *err);
} td_weight_sink;

typedef struct td_weight_reader td_weight_reader;

TD_MUST_CHECK td_status td_weight_reader_create(uint32_t n_threads, const td_weight_sink *sink,
                                                td_weight_reader **out, td_error *err);
/* Queues the rows of part for dst [n_rows, n_cols] bf16. Waits while too much is queued, so the caller's
 * progress is roughly the reader's. Fails with the first error of anything queued before. Ignores the
 * bias. */
TD_MUST_CHECK td_status td_weight_reader_push(td_weight_reader *r, const td_weight_part *part,
                                              uint64_t n_cols, void *dst, td_error *err);
/* Waits until everything is sent and flushed, ends the threads and frees the reader. Returns the first error.
 * NULL is fine. */
TD_MUST_CHECK td_status td_weight_reader_finish(td_weight_reader *r, td_error *err);
/* Ends the threads and frees the reader after a failure elsewhere: drops what is queued. */
void td_weight_reader_destroy(td_weight_reader *r);

#endif
