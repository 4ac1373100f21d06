/* Stored matrices as bf16, for a backend that keeps its own copy: read and converted by several threads.
 *
 * Jobs are cut into pieces of whole rows; a thread takes the next piece, asks the sink for a buffer, fills it
 * from the file (or from memory) and lets the sink send it on its way. So one large matrix keeps all threads
 * busy as well as many small ones do, and nothing waits between two jobs. Where a piece lies in a file it is
 * read, not mapped: a file that was cut is an error message instead of a SIGBUS.
 *
 * Thread: push and finish by one thread; the sink's functions by reader threads, each with its own index. */
#ifndef TD_KERNELS_WEIGHT_READER_H
#define TD_KERNELS_WEIGHT_READER_H

#include "kernels/kernels.h"

enum { TD_PIECE_BYTES = 4 << 20, TD_READERS_MAX = 16 };

typedef struct td_weight_sink {
  void *arg;
  /* A buffer of TD_PIECE_BYTES that this thread may write now. */
  td_status (*buffer)(void *arg, uint32_t thread, void **out, td_error *err);
  /* bytes of that buffer belong at dst. */
  td_status (*send)(void *arg, uint32_t thread, void *dst, size_t bytes, td_error *err);
  /* All that this thread sent must have arrived. */
  td_status (*flush)(void *arg, uint32_t thread, td_error *err);
} td_weight_sink;

typedef struct td_weight_reader td_weight_reader;

TD_MUST_CHECK td_status td_weight_reader_create(uint32_t n_threads, const td_weight_sink *sink,
                                                td_weight_reader **out, td_error *err);
/* Queues the rows of part for dst [n_rows, n_cols] bf16. Waits while much is queued, so that the caller's
 * progress is about the reader's. Fails with the first error of anything queued before. Bias is not looked
 * at. */
TD_MUST_CHECK td_status td_weight_reader_push(td_weight_reader *r, const td_weight_part *part,
                                              uint64_t n_cols, void *dst, td_error *err);
/* Waits until all is sent and flushed, ends the threads and frees the reader; says what failed. NULL is fine.
 */
TD_MUST_CHECK td_status td_weight_reader_finish(td_weight_reader *r, td_error *err);
/* The same for an end that nobody asked for: what is queued is dropped. */
void td_weight_reader_destroy(td_weight_reader *r);

#endif
