/* Lines to tasks: the spans' predicted times one after another, cut into equal ranges.
 *
 * A cut falls on a multiple of what the kernel takes at once, and leaves no part of a head that is not worth its begin;
 * so a range differs from its share by no more than that, and the differences do not add up, because each cut is looked for
 * at its own place in the whole. */
#include "kernels/attention/planner.h"

enum { TILE_UNIT_KEYS = 128 }; /* what tensor cores take at once */

/* What cutting must know of a span: pieces of piece_us, and key_us a key; where heads may be cut. */
typedef struct line {
  double key_us, keys_per_us, piece_us;
  uint32_t chunk, unit;
} line;

static line line_of(const td_attention_planner *p, const td_attention_span *s, double us_per_key)
{
  line l = {.key_us = us_per_key, .keys_per_us = 1 / us_per_key, .chunk = chunk_keys(s), .unit = p->config.cost.unit_keys};
  l.piece_us = p->config.cost.start_us + (s->shared || l.chunk ? s->n_members * p->unit.partial_us : 0);
  if (s->n_members * p->config.group > 16 && l.unit < TILE_UNIT_KEYS)
    l.unit = TILE_UNIT_KEYS;
  return l;
}

static double head_us(const line *l, uint32_t n_keys)
{
  return n_keys * l->key_us + l->piece_us * (l->chunk ? ceil_div(n_keys, l->chunk) : 1);
}

/* Keys of a head before its time `us`, as far as a cut may fall there. */
static inline uint32_t cut_in_head(const line *l, uint32_t n_keys, double us)
{
  if (l->chunk) {
    uint32_t k = (uint32_t)(us / (l->piece_us + l->chunk * l->key_us) + 0.5);
    return k < ceil_div(n_keys, l->chunk) ? k * l->chunk : n_keys;
  }
  double before = (us - l->piece_us) * l->keys_per_us;
  uint32_t keys = before > 0 ? (uint32_t)before : 0, last = n_keys > l->unit ? (n_keys - l->unit) & -l->unit : 0;
  uint32_t t = (keys + l->unit / 2) & -l->unit;
  t = t < last ? t : last;
  return 2 * keys >= last + n_keys ? n_keys : t;
}

/* Ranges that are worth a worker. */
static uint32_t ranges_of(const td_attention_planner *p, double total_us)
{
  double least = p->config.cost.start_us + p->config.cost.unit_keys * p->unit.key_us[0][0], n = total_us / least;
  return n < 1 ? 1 : n < p->config.n_workers ? (uint32_t)n : p->config.n_workers;
}

static double key_us_of(const td_attention_planner *p, uint32_t span)
{
  return span < p->n_shared ? p->shared_key_us[span] : key_us(p, p->config.group, false);
}

void td_attention_sum_fixed(td_attention_planner *p)
{
  const td_attention_span *spans = td_attention_at(p->block, p->block->spans_at);
  p->fixed_us = 0;
  for (uint32_t i = 0; i < p->block->n_spans; i++) {
    line l = line_of(p, &spans[i], key_us_of(p, i));
    p->fixed_us += (l.piece_us + (i < p->n_shared ? spans[i].n_keys * l.key_us : 0)) * p->config.n_kv_heads;
  }
}

static double total_of(const td_attention_planner *p, const td_attention_span *spans)
{
  const td_attention_header *h = p->block;
  double us = p->fixed_us + (double)p->own_keys * key_us(p, p->config.group, false) * p->config.n_kv_heads;
  if (h->n_spans == 0 || spans[h->n_spans - 1].chunk16 == 0)
    return us;
  us = 0;
  for (uint32_t i = 0; i < h->n_spans; i++) {
    line l = line_of(p, &spans[i], key_us_of(p, i));
    us += head_us(&l, spans[i].n_keys) * p->config.n_kv_heads;
  }
  return us;
}

/* Where the cutting stands. */
typedef struct cutting {
  td_attention_task *tasks;
  uint32_t *first_task, n_tasks, worker, n_ranges, n_heads;
  double range_us, before_us; /* of a range; of the lines so far */
  uint64_t n_slots;
} cutting;

/* The part of a span's line from head:key on, as a task. */
static inline td_attention_task *add_task(cutting *c, const td_attention_span *s, uint32_t head, uint32_t key, uint32_t slot)
{
  td_attention_task *t = &c->tasks[c->n_tasks++];
  t->begin_head = (uint16_t)head;
  t->begin_key = key;
  t->end_head = (uint16_t)(c->n_heads - 1);
  t->end_key = t->n_keys = s->n_keys;
  t->first_page = s->first_page;
  t->first_member = s->first_member;
  t->slot = slot;
  t->chunk16 = s->chunk16;
  t->n_members = s->n_members;
  t->shared = s->shared;
  return t;
}

/* A span's tasks: one, and one more for every end of a range that falls into it. Its slots are as many as its pieces: a piece
 * is one head more than the one before, or one task more, or one chunk more. */
static inline void cut_line(cutting *c, td_attention_span *s, const line *l)
{
  double us_per_head = head_us(l, s->n_keys), after_us = c->before_us + us_per_head * c->n_heads;
  uint32_t head = 0, key = 0, n_chunks = l->chunk ? ceil_div(s->n_keys, l->chunk) : 1, step = l->chunk ? 0 : s->n_members;
  bool merged = s->shared || n_chunks > 1;
  uint32_t slot = (uint32_t)c->n_slots;
  double end_us = c->range_us * (c->worker + 1) - c->before_us, line_us = after_us - c->before_us;
  s->first_task = c->n_tasks;
  while (c->worker + 1 < c->n_ranges && end_us < line_us) {
    uint32_t h = end_us > 0 ? (uint32_t)(end_us / us_per_head) : 0, k = 0;
    h = h < c->n_heads ? h : c->n_heads;
    if (h < c->n_heads)
      k = cut_in_head(l, s->n_keys, end_us - h * us_per_head);
    bool next_head = k == s->n_keys;
    h += next_head;
    k = next_head ? 0 : k;
    if (h < c->n_heads && (h > head || (h == head && k > key))) {
      td_attention_task *t = add_task(c, s, head, key, slot + (c->n_tasks - s->first_task) * step);
      t->end_head = (uint16_t)(k > 0 ? h : h - 1);
      t->end_key = k > 0 ? k : s->n_keys;
      head = h;
      key = k;
    } else if (h == c->n_heads) { /* the range ends with the line */
      break;
    }
    c->first_task[++c->worker] = c->n_tasks;
    end_us = c->range_us * (c->worker + 1) - c->before_us;
  }
  s->n_tasks = c->n_tasks - s->first_task + 1;
  merged |= s->n_tasks > 1 && !l->chunk;
  add_task(c, s, head, key, merged ? slot + (s->n_tasks - 1) * step : TD_ATTENTION_DIRECT);
  if (c->worker + 1 < c->n_ranges && end_us < line_us) { /* so it does, and so may others that are shorter than a unit */
    while (c->worker + 1 < c->n_ranges && c->range_us * (c->worker + 1) < after_us)
      c->first_task[++c->worker] = c->n_tasks;
  }
  s->slot = merged ? slot : TD_ATTENTION_DIRECT;
  c->n_slots += merged ? (uint64_t)(l->chunk ? c->n_heads * n_chunks : c->n_heads + s->n_tasks - 1) * s->n_members : 0;
  c->before_us = after_us;
}

bool td_attention_cut(td_attention_planner *p)
{
  td_attention_header *h = p->block;
  td_attention_span *spans = (td_attention_span *)(void *)((unsigned char *)h + h->spans_at);
  double total = total_of(p, spans);
  cutting c = {.tasks = (td_attention_task *)(void *)((unsigned char *)h + h->tasks_at), .first_task = (uint32_t *)(h + 1),
               .n_ranges = ranges_of(p, total), .n_heads = p->config.n_kv_heads};
  line own[2] = {0};
  c.range_us = total / c.n_ranges;
  c.first_task[0] = 0;
  for (uint32_t i = 0; i < h->n_spans; i++) {
    td_attention_span *s = &spans[i];
    if (i < p->n_shared || s->chunk16 || own[s->shared].unit == 0) { /* rows' own are of two kinds */
      line l = line_of(p, s, key_us_of(p, i));
      if (i >= p->n_shared)
        own[s->shared] = l;
      cut_line(&c, s, &l);
    } else {
      cut_line(&c, s, &own[s->shared]);
    }
  }
  while (c.worker < p->config.n_workers)
    c.first_task[++c.worker] = c.n_tasks;
  p->stats.total_us = total;
  p->cut_keys = p->own_keys;
  if (c.n_slots > p->max_slots)
    return false;
  h->n_slots = (uint32_t)c.n_slots;
  h->n_tasks = c.n_tasks;
  h->block_bytes = h->tasks_at + c.n_tasks * (uint32_t)sizeof *c.tasks;
  return true;
}

/* Of a task: keys of all its heads; pieces, one a head or, with chunks, one a chunk. */
static uint64_t keys_of(const td_attention_task *t)
{
  return (uint64_t)(t->end_head - t->begin_head) * t->n_keys + t->end_key - t->begin_key;
}

static uint32_t pieces_of(const td_attention_task *t, uint32_t chunk)
{
  uint32_t n_chunks = chunk ? ceil_div(t->n_keys, chunk) : 1, size = chunk ? chunk : t->n_keys;
  return (uint32_t)(t->end_head - t->begin_head) * n_chunks + (t->end_key - 1) / size - t->begin_key / size + 1;
}

double td_attention_longest_us(const td_attention_planner *p)
{
  const td_attention_header *h = p->block;
  const td_attention_span *spans = td_attention_at(h, h->spans_at);
  const td_attention_task *tasks = td_attention_at(h, h->tasks_at);
  const uint32_t *first_task = td_attention_first_task(h);
  double longest = 0;
  for (uint32_t w = 0, s = 0; w < h->n_workers; w++) {
    double us = 0;
    for (uint32_t t = first_task[w]; t < first_task[w + 1]; t++) {
      while (t >= spans[s].first_task + spans[s].n_tasks)
        s++;
      line l = line_of(p, &spans[s], key_us_of(p, s));
      us += (double)keys_of(&tasks[t]) * l.key_us + pieces_of(&tasks[t], l.chunk) * l.piece_us;
    }
    longest = us > longest ? us : longest;
  }
  return longest;
}
