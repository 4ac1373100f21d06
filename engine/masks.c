/* See masks.h: a queue of slots, a few threads, a state for each slot. */
#include "engine/masks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"

enum { NO_SLOT = UINT32_MAX };

typedef enum mask_state { MASK_NONE, MASK_QUEUED, MASK_RUNNING, MASK_MADE } mask_state;

typedef struct mask_job {
  td_mask_provider provider;
  const int32_t *tokens;
  uint32_t n;
  uint32_t *bits;
  uint32_t next; /* next slot of the queue */
  uint32_t account;
  const char *error; /* why the fill gave up; NULL: it did not */
  _Atomic int state; /* mask_state; MASK_MADE is stored with release, after the bits */
} mask_job;

struct td_masks {
  mask_job *jobs; /* [n_slots] */
  uint32_t first, last;
  /* [account]: n_served when a mask of the account was last begun */
  uint64_t n_served, served[TD_ACCOUNTS_MAX];
  uint64_t n_made, n_seen; /* n_seen: n_made at the engine's last wait */
  int wake_fd;
  bool stops;
  pthread_mutex_t lock;
  pthread_cond_t work, made;
  pthread_t *threads;
  uint32_t n_threads;
};

/* ---- the queue; lock held ---- */

static void push(td_masks *m, uint32_t slot)
{
  m->jobs[slot].next = NO_SLOT;
  if (m->first == NO_SLOT)
    m->first = slot;
  else
    m->jobs[m->last].next = slot;
  m->last = slot;
}

static void take_out(td_masks *m, uint32_t slot)
{
  uint32_t before = NO_SLOT;
  for (uint32_t i = m->first; i != slot; i = m->jobs[i].next)
    before = i;
  if (before == NO_SLOT)
    m->first = m->jobs[slot].next;
  else
    m->jobs[before].next = m->jobs[slot].next;
  if (m->last == slot)
    m->last = before;
}

/* Pops a slot of the account that was served longest ago. So an account with slow masks delays others by one
 * mask per thread at most. */
static uint32_t pop(td_masks *m)
{
  uint32_t best = m->first;
  for (uint32_t i = best; i != NO_SLOT; i = m->jobs[i].next)
    if (m->served[m->jobs[i].account] < m->served[m->jobs[best].account])
      best = i;
  take_out(m, best);
  m->served[m->jobs[best].account] = ++m->n_served;
  return best;
}

/* ---- a mask thread ---- */

static void wake_engine(td_masks *m)
{
  uint64_t one = 1;
  if (write(m->wake_fd, &one, sizeof one) < 0)
    td_warn("waking the engine: %s", strerror(errno));
}

static void *make_masks(void *arg)
{
  td_masks *m = arg;
  pthread_mutex_lock(&m->lock);
  while (!m->stops) {
    if (m->first == NO_SLOT) {
      pthread_cond_wait(&m->work, &m->lock);
      continue;
    }
    mask_job *j = &m->jobs[pop(m)];
    atomic_store(&j->state, MASK_RUNNING);
    pthread_mutex_unlock(&m->lock);
    j->error = j->provider.fill(j->provider.arg, j->tokens, j->n, j->bits);
    pthread_mutex_lock(&m->lock);
    atomic_store_explicit(&j->state, MASK_MADE, memory_order_release);
    m->n_made++;
    pthread_cond_signal(&m->made);
    wake_engine(m);
  }
  pthread_mutex_unlock(&m->lock);
  return NULL;
}

/* ---- life ---- */

static void init_sync(td_masks *m)
{
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&m->lock, NULL);
  pthread_cond_init(&m->work, NULL);
  pthread_cond_init(&m->made, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

td_status td_masks_create(uint32_t n_slots, uint32_t n_threads, int wake_fd, td_masks **out, td_error *err)
{
  td_masks *m = calloc(1, sizeof *m);
  if (!m)
    return td_fail(err, TD_ERR_NOMEM, "no memory for masks");
  *m = (td_masks){.first = NO_SLOT, .wake_fd = wake_fd};
  m->jobs = calloc(n_slots, sizeof *m->jobs);
  m->threads = calloc(n_threads, sizeof *m->threads);
  init_sync(m);
  if (!m->jobs || !m->threads) {
    td_masks_destroy(m);
    return td_fail(err, TD_ERR_NOMEM, "no memory for masks of %u requests", n_slots);
  }
  for (; m->n_threads < n_threads; m->n_threads++) {
    int rc = pthread_create(&m->threads[m->n_threads], NULL, make_masks, m);
    if (rc != 0) {
      td_masks_destroy(m);
      return td_fail(err, TD_ERR_NOMEM, "cannot start a mask thread: %s", strerror(rc));
    }
  }
  *out = m;
  return TD_OK;
}

void td_masks_destroy(td_masks *m)
{
  if (!m)
    return;
  pthread_mutex_lock(&m->lock);
  m->stops = true;
  pthread_cond_broadcast(&m->work);
  pthread_mutex_unlock(&m->lock);
  for (uint32_t i = 0; i < m->n_threads; i++)
    pthread_join(m->threads[i], NULL);
  pthread_cond_destroy(&m->work);
  pthread_cond_destroy(&m->made);
  pthread_mutex_destroy(&m->lock);
  free(m->threads);
  free(m->jobs);
  free(m);
}

/* ---- the engine thread ---- */

void td_masks_queue(td_masks *m, uint32_t slot, uint32_t account, const td_mask_provider *provider,
                    const int32_t *tokens, uint32_t n, uint32_t *bits)
{
  mask_job *j = &m->jobs[slot];
  pthread_mutex_lock(&m->lock);
  TD_BUG_ON(j->state == MASK_QUEUED || j->state == MASK_RUNNING);
  j->provider = *provider;
  j->account = account;
  j->tokens = tokens;
  j->n = n;
  j->bits = bits;
  atomic_store(&j->state, MASK_QUEUED);
  push(m, slot);
  pthread_cond_signal(&m->work);
  pthread_mutex_unlock(&m->lock);
}

bool td_masks_is_made(const td_masks *m, uint32_t slot)
{
  return atomic_load_explicit(&m->jobs[slot].state, memory_order_acquire) == MASK_MADE;
}

const char *td_masks_error(const td_masks *m, uint32_t slot)
{
  return td_masks_is_made(m, slot) ? m->jobs[slot].error : NULL;
}

bool td_masks_drop(td_masks *m, uint32_t slot)
{
  mask_job *j = &m->jobs[slot];
  pthread_mutex_lock(&m->lock);
  bool runs = j->state == MASK_RUNNING;
  if (j->state == MASK_QUEUED)
    take_out(m, slot);
  if (!runs)
    atomic_store(&j->state, MASK_NONE);
  pthread_mutex_unlock(&m->lock);
  return !runs;
}

void td_masks_wait(td_masks *m, uint32_t max_us)
{
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += (long)max_us * 1000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&m->lock);
  while (m->n_made == m->n_seen && pthread_cond_timedwait(&m->made, &m->lock, &until) == 0)
    ;
  m->n_seen = m->n_made;
  pthread_mutex_unlock(&m->lock);
}
