/* Publishing KV events: see kv_events.h. libzmq and msgpack-c are optional at build time. */
#include "server/kv_events.h"

#include <string.h>

#ifdef TD_HAVE_KV_EVENTS

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/kv_batch.h"
#include "server/log_gate.h"

const bool td_kv_events_are_built_in = true;

enum { LINGER_MS = 200, SEQ_BYTES = 8 };

struct td_kv_events {
  td_engine *engine;
  td_kv_batch batch;
  const char *topic;
  void *context, *publisher, *replay; /* ZeroMQ; replay NULL: no socket for replays */
  int stop_fd;
  pthread_t thread;
  bool has_thread;

  /* used by the thread only */
  uint64_t next_seq;
  zmq_msg_t *kept; /* ring [TD_LIMIT_KV_EVENTS_KEPT] of sent messages, by number modulo its length; or NULL */
  uint64_t first_kept;
  size_t kept_bytes;
  td_log_gate no_memory;

  _Atomic uint64_t n_stored, n_removed, n_messages;
};

static uint64_t limit(td_limit_id id) { return (uint64_t)td_limit_max(id); }

/* ---- sent messages, kept for replays ---- */

static void forget_oldest(td_kv_events *k)
{
  zmq_msg_t *m = &k->kept[k->first_kept++ % limit(TD_LIMIT_KV_EVENTS_KEPT)];
  k->kept_bytes -= zmq_msg_size(m);
  zmq_msg_close(m);
}

static void forget_all(td_kv_events *k)
{
  while (k->first_kept < k->next_seq)
    forget_oldest(k);
}

/* Keeps a copy of message next_seq and forgets the oldest ones that exceed the bounds. */
static void keep(td_kv_events *k, zmq_msg_t *m)
{
  k->kept_bytes += zmq_msg_size(m);
  while (k->first_kept < k->next_seq && (k->next_seq - k->first_kept >= limit(TD_LIMIT_KV_EVENTS_KEPT) ||
                                         k->kept_bytes > limit(TD_LIMIT_KV_EVENTS_KEPT_BYTES)))
    forget_oldest(k);
  zmq_msg_t *to = &k->kept[k->next_seq % limit(TD_LIMIT_KV_EVENTS_KEPT)];
  zmq_msg_init(to);
  zmq_msg_copy(to, m);
}

/* ---- sending ---- */

static void write_seq(uint64_t seq, unsigned char bytes[SEQ_BYTES])
{
  for (int i = 0; i < SEQ_BYTES; i++)
    bytes[i] = (unsigned char)(seq >> (56 - 8 * i));
}

/* Never blocks: a PUB socket accepts everything, and a ROUTER drops messages that its peer has no room for */
static void send_numbered(void *socket, uint64_t seq, zmq_msg_t *payload)
{
  unsigned char bytes[SEQ_BYTES];
  write_seq(seq, bytes);
  zmq_send(socket, bytes, sizeof bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT);
  if (zmq_msg_send(payload, socket, ZMQ_DONTWAIT) < 0)
    zmq_msg_close(payload);
}

static void set_time(td_kv_events *k)
{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  k->batch.time_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Takes over the payload. If there is no memory, nothing is sent and subscribers see a gap in the numbers. */
static void publish(td_kv_events *k, td_buf *payload)
{
  zmq_msg_t m;
  if (!payload->failed && zmq_msg_init_size(&m, payload->len_bytes) == 0) {
    memcpy(zmq_msg_data(&m), payload->data, payload->len_bytes);
    if (k->kept)
      keep(k, &m);
    zmq_send(k->publisher, k->topic, strlen(k->topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    send_numbered(k->publisher, k->next_seq, &m);
  } else {
    char more[TD_LOG_GATE_BYTES];
    if (td_log_gate_pass(&k->no_memory, td_clock_us() / 1000, 1, more))
      td_warn("KV events: no memory for message %llu%s", (unsigned long long)k->next_seq, more);
    if (k->kept) { /* kept messages must have no gaps */
      forget_all(k);
      k->first_kept = k->next_seq + 1;
    }
  }
  k->next_seq++;
  atomic_fetch_add_explicit(&k->n_messages, 1, memory_order_relaxed);
  td_buf_deinit(payload);
}

static void publish_cleared(td_kv_events *k)
{
  td_buf payload;
  td_buf_init(&payload, 0);
  set_time(k);
  td_kv_batch_render_cleared(&k->batch, &payload);
  publish(k, &payload);
}

static void publish_news(td_kv_events *k)
{
  const td_engine_kv_event *events;
  uint32_t n;
  while ((n = td_engine_read_kv_events(k->engine, &events, (uint32_t)limit(TD_LIMIT_KV_EVENTS_BATCH))) > 0) {
    td_buf payload;
    uint64_t n_stored = 0;
    td_buf_init(&payload, 0);
    set_time(k);
    td_kv_batch_render(&k->batch, events, n, &payload);
    publish(k, &payload);
    for (uint32_t i = 0; i < n; i++)
      n_stored += events[i].is_stored;
    atomic_fetch_add_explicit(&k->n_stored, n_stored, memory_order_relaxed);
    atomic_fetch_add_explicit(&k->n_removed, n - n_stored, memory_order_relaxed);
  }
}

/* ---- replays ---- */

/* Sends all kept messages from number `from` on, then an empty message with number -1. */
static void send_again(td_kv_events *k, zmq_msg_t *peer, uint64_t from)
{
  for (uint64_t i = from > k->first_kept ? from : k->first_kept; i <= k->next_seq; i++) {
    zmq_msg_t id, m;
    bool last = i == k->next_seq;
    zmq_msg_init(&id);
    zmq_msg_init(&m);
    zmq_msg_copy(&id, peer);
    if (!last)
      zmq_msg_copy(&m, &k->kept[i % limit(TD_LIMIT_KV_EVENTS_KEPT)]);
    if (zmq_msg_send(&id, k->replay, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
      zmq_msg_close(&id);
    zmq_send(k->replay, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    send_numbered(k->replay, last ? UINT64_MAX : i, &m);
    if (last)
      return;
  }
}

/* Answers one request for a replay. It has three frames: the peer's identity (which the socket adds), an
 * empty frame and a number of 8 bytes. Any other message is ignored. */
static void answer(td_kv_events *k)
{
  zmq_msg_t peer, frame;
  uint64_t from = 0;
  int n_frames = 1;
  bool is_good = true;
  zmq_msg_init(&peer);
  if (zmq_msg_recv(&peer, k->replay, ZMQ_DONTWAIT) < 0) {
    zmq_msg_close(&peer);
    return;
  }
  for (bool more = zmq_msg_more(&peer); more; n_frames++) {
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&frame, k->replay, ZMQ_DONTWAIT) < 0)
      is_good = false;
    else if (n_frames == 2)
      for (size_t i = 0; i < zmq_msg_size(&frame) && i < SEQ_BYTES; i++)
        from = from << 8 | ((unsigned char *)zmq_msg_data(&frame))[i];
    size_t want = n_frames == 1 ? 0 : SEQ_BYTES;
    is_good = is_good && n_frames < 3 && zmq_msg_size(&frame) == want;
    more = zmq_msg_more(&frame);
    zmq_msg_close(&frame);
  }
  if (is_good && n_frames == 3)
    send_again(k, &peer, from < k->next_seq ? from : k->next_seq);
  zmq_msg_close(&peer);
}

/* ---- the thread ---- */

static void *run(void *arg)
{
  td_kv_events *k = arg;
  int fd = td_engine_kv_events_fd(k->engine);
  uint64_t n;
  publish_cleared(k);
  for (bool stops = false; !stops;) {
    zmq_pollitem_t items[] = {{.fd = k->stop_fd, .events = ZMQ_POLLIN},
                              {.fd = fd, .events = ZMQ_POLLIN},
                              {.socket = k->replay, .events = ZMQ_POLLIN}};
    if (zmq_poll(items, k->replay ? 3 : 2, -1) < 0 && errno != EINTR)
      break;
    stops = items[0].revents != 0;
    if (items[1].revents && read(fd, &n, sizeof n) < 0 && errno != EAGAIN)
      break;
    publish_news(k);
    if (k->replay && items[2].revents)
      answer(k);
  }
  return NULL;
}

/* ---- life ---- */

/* Reads an endpoint as vLLM does: one that names a host is connected to, any other is bound. A leading '@'
 * binds it in any case. */
static td_status open_endpoint(void *socket, const char *option, const char *endpoint, bool binds,
                               td_error *err)
{
  const char *at = endpoint + (*endpoint == '@');
  binds = binds || at > endpoint || strchr(at, '*') || strstr(at, "::") || strncmp(at, "ipc://", 6) == 0;
  int rc = binds ? zmq_bind(socket, at) : zmq_connect(socket, at);
  if (rc == 0) {
    td_info("%s: %s %s", option, binds ? "bound to" : "connecting to", at);
    return TD_OK;
  }
  bool is_taken = errno == EADDRINUSE || errno == EADDRNOTAVAIL || errno == EACCES || errno == ENODEV;
  return td_fail_param(err, is_taken ? TD_ERR_IO : TD_ERR_CONFIG, option, "%s: '%s': %s", option, endpoint,
                       zmq_strerror(errno));
}

static td_status open_sockets(td_kv_events *k, const td_options *o, td_error *err)
{
  int behind = (int)limit(TD_LIMIT_KV_EVENTS_BEHIND), kept = (int)limit(TD_LIMIT_KV_EVENTS_KEPT) + 1;
  int linger = LINGER_MS, yes = 1;
  int64_t ask_bytes = (int64_t)limit(TD_LIMIT_KV_EVENTS_ASK_BYTES);
  k->context = zmq_ctx_new();
  k->publisher = k->context ? zmq_socket(k->context, ZMQ_PUB) : NULL;
  if (!k->publisher)
    return td_fail(err, TD_ERR_IO, "kv_events: %s", zmq_strerror(errno));
  zmq_setsockopt(k->publisher, ZMQ_SNDHWM, &behind, sizeof behind);
  zmq_setsockopt(k->publisher, ZMQ_LINGER, &linger, sizeof linger);
  zmq_setsockopt(k->publisher, ZMQ_IPV6, &yes, sizeof yes);
  zmq_setsockopt(k->publisher, ZMQ_MAXMSGSIZE, &ask_bytes, sizeof ask_bytes); /* bounds subscriptions */
  TD_TRY(open_endpoint(k->publisher, "kv_events", o->kv_events, false, err));
  if (!o->kv_events_replay[0])
    return TD_OK;
  k->kept = calloc((size_t)limit(TD_LIMIT_KV_EVENTS_KEPT), sizeof *k->kept);
  k->replay = zmq_socket(k->context, ZMQ_ROUTER);
  if (!k->kept || !k->replay)
    return td_fail(err, TD_ERR_NOMEM, "no memory for kv_events_replay");
  zmq_setsockopt(k->replay, ZMQ_SNDHWM, &kept, sizeof kept);
  zmq_setsockopt(k->replay, ZMQ_LINGER, &linger, sizeof linger);
  zmq_setsockopt(k->replay, ZMQ_IPV6, &yes, sizeof yes);
  zmq_setsockopt(k->replay, ZMQ_MAXMSGSIZE, &ask_bytes, sizeof ask_bytes);
  return open_endpoint(k->replay, "kv_events_replay", o->kv_events_replay, true, err);
}

static td_status start(td_kv_events *k, const td_options *o, td_error *err)
{
  k->stop_fd = eventfd(0, EFD_CLOEXEC);
  if (k->stop_fd < 0)
    return td_fail(err, TD_ERR_IO, "eventfd: %s", strerror(errno));
  TD_TRY(open_sockets(k, o, err));
  int rc = pthread_create(&k->thread, NULL, run, k);
  if (rc != 0)
    return td_fail(err, TD_ERR_IO, "cannot start the thread of KV events: %s", strerror(rc));
  k->has_thread = true;
  return TD_OK;
}

td_status td_kv_events_start(const td_options *o, td_engine *e, uint64_t plain_namespace, td_kv_events **out,
                             td_error *err)
{
  *out = NULL;
  if (!o->kv_events[0])
    return TD_OK;
  td_kv_events *k = calloc(1, sizeof *k);
  if (!k)
    return td_fail(err, TD_ERR_NOMEM, "no memory for KV events");
  k->engine = e;
  k->topic = o->kv_events_topic;
  k->batch.page_tokens = (uint32_t)td_option(o, TD_LIMIT_PAGE_TOKENS);
  k->batch.plain_namespace = plain_namespace;
  td_status st = start(k, o, err);
  if (st == TD_OK)
    *out = k;
  else
    td_kv_events_stop(k);
  return st;
}

void td_kv_events_stop(td_kv_events *k)
{
  uint64_t one = 1;
  if (!k)
    return;
  if (k->has_thread) {
    if (write(k->stop_fd, &one, sizeof one) < 0)
      td_warn("waking the publisher of KV events: %s", strerror(errno));
    pthread_join(k->thread, NULL);
  }
  if (k->kept)
    forget_all(k);
  if (k->publisher)
    zmq_close(k->publisher);
  if (k->replay)
    zmq_close(k->replay);
  if (k->context)
    zmq_ctx_term(k->context);
  if (k->stop_fd >= 0)
    close(k->stop_fd);
  free(k->kept);
  free(k);
}

void td_kv_events_get(const td_kv_events *k, td_kv_events_count *out)
{
  *out = (td_kv_events_count){.stored = atomic_load(&k->n_stored),
                              .removed = atomic_load(&k->n_removed),
                              .messages = atomic_load(&k->n_messages)};
}

#else

const bool td_kv_events_are_built_in = false;

td_status td_kv_events_start(const td_options *o, td_engine *e, uint64_t plain_namespace, td_kv_events **out,
                             td_error *err)
{
  (void)e;
  (void)plain_namespace;
  *out = NULL;
  return td_kv_events_check_options(o, err);
}

void td_kv_events_stop(td_kv_events *k) { (void)k; }
void td_kv_events_get(const td_kv_events *k, td_kv_events_count *out)
{
  (void)k;
  *out = (td_kv_events_count){0};
}

#endif

static td_status check_endpoint(const char *option, const char *endpoint, td_error *err)
{
  const char *at = endpoint + (*endpoint == '@');
  if (endpoint[0] && strncmp(at, "tcp://", 6) != 0 && strncmp(at, "ipc://", 6) != 0)
    return td_fail_param(err, TD_ERR_CONFIG, option, "%s: '%s' is neither tcp://HOST:PORT nor ipc://PATH",
                         option, endpoint);
  return TD_OK;
}

td_status td_kv_events_check_options(const td_options *o, td_error *err)
{
  const char *needs = o->kv_events_replay[0]  ? "kv_events_replay"
                      : o->kv_events_topic[0] ? "kv_events_topic"
                                              : NULL;
  if (!o->kv_events[0])
    return needs ? td_fail_param(err, TD_ERR_CONFIG, needs, "%s: it is of no use without kv_events", needs)
                 : TD_OK;
  if (!td_kv_events_are_built_in)
    return td_fail_param(err, TD_ERR_CONFIG, "kv_events",
                         "kv_events: this tandemd was built without libzmq and msgpack-c");
  TD_TRY(check_endpoint("kv_events", o->kv_events, err));
  return check_endpoint("kv_events_replay", o->kv_events_replay, err);
}
