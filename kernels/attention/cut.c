/* Lines to tasks: the spans' predicted times one after another, cut into ranges; first the shared spans', in equal ones, then the rows'
 * own, so that every worker has as much in all. Or shared spans alone to pieces, below.
 *
 * A cut falls on a multiple of what the kernel takes at once, and leaves no part of a head that is not worth its begin;
 * so a range differs from its share by no more than that, and the differences do not add up, because each cut is looked for
 * at its own place in the whole. */
#include "kernels/attention/planner.h"

#include <math.h>

enum { TILE_UNIT_KEYS = 128 }; /* what tensor cores take at once */

/* What cutting must know of a span: pieces of piece_us, and key_us a key; where heads may be cut. */
typedef struct line {
  double key_us, keys_per_us, piece_us;
  uint32_t chunk, unit;
} line;

static inline line line_of(const td_attention_planner *p, const td_attention_span *s, uint32_t cost)
{
  line l = {.key_us = p->unit.key_us[cost / 3][cost % 3], .keys_per_us = p->unit.keys_per_us[cost / 3][cost % 3],
            .chunk = chunk_keys(s), .unit = p->config.cost.unit_keys};
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
static ALWAYS_INLINE uint32_t cut_in_head(const line *l, uint32_t n_keys, double us, bool chunked)
{
  if (chunked) {
    uint32_t k = (uint32_t)(us / (l->piece_us + l->chunk * l->key_us) + 0.5);
    return k < ceil_div(n_keys, l->chunk) ? k * l->chunk : n_keys;
  }
  double before = (us - l->piece_us) * l->keys_per_us;
  uint32_t keys = (uint32_t)(int32_t)(before > 0 ? before : 0), last = n_keys > l->unit ? (n_keys - l->unit) & -l->unit : 0;
  uint32_t t = (keys + l->unit / 2) & -l->unit;
  t = t < last ? t : last;
  return 2 * keys >= last + n_keys ? n_keys : t;
}

/* Time of a head before key k, where a cut may fall; what is after it takes the rest, and a piece's begin more if the piece is cut. */
static ALWAYS_INLINE double us_before(const line *l, uint32_t k, bool chunked)
{
  return k == 0 ? 0 : chunked ? k / l->chunk * (l->piece_us + l->chunk * l->key_us) : l->piece_us + k * l->key_us;
}

/* Ranges of at least least_us. */
static uint32_t ranges_of(const td_attention_planner *p, double total_us, double least_us)
{
  double n = total_us / least_us;
  return n < 1 ? 1 : n < p->config.n_workers ? (uint32_t)n : p->config.n_workers;
}

static inline uint32_t cost_of(const td_attention_planner *p, uint32_t span)
{
  return span < p->n_shared ? p->shared_cost[span] : cost_class(p->config.group, false);
}

/* What spans [from, to) take. */
static double total_of(const td_attention_planner *p, const td_attention_span *spans, uint32_t from, uint32_t to)
{
  double us = 0;
  for (uint32_t i = from; i < to; i++) {
    line l = line_of(p, &spans[i], cost_of(p, i));
    us += head_us(&l, spans[i].n_keys) * p->config.n_kv_heads;
  }
  return us;
}

/* The same of rows' own spans, mostly without going through them. */
static double own_total_of(const td_attention_planner *p, const td_attention_span *spans)
{
  uint32_t n = p->block->n_spans;
  if (n > p->n_shared && spans[n - 1].chunk16 > 0)
    return total_of(p, spans, p->n_shared, n);
  double us = (n - p->n_shared) * p->config.cost.start_us + p->n_sharing * p->unit.partial_us;
  return (us + (double)p->own_keys * key_us(p, p->config.group, false)) * p->config.n_kv_heads;
}

/* Where the cutting stands. */
typedef struct cutting {
  td_attention_task *tasks;
  uint32_t *first_task, n_tasks, worker, n_ranges, n_heads;
  double heads; /* n_heads */
  const double *ends_us; /* of the ranges */
  double end_us;         /* of this range; of the last one, never */
  double before_us;      /* of the lines so far */
  double from_us;        /* where the range has begun, in the lines of shared spans */
  double *taken_us;      /* of the ranges of shared spans, as cut */
  uint64_t n_slots;
} cutting;

/* The part of a span's line from head:key on, as a task. */
static ALWAYS_INLINE td_attention_task *add_task(cutting *c, const td_attention_span *s, uint32_t head, uint32_t key, uint32_t slot)
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

/* The range ends `us` into the lines; what is cut there has `again_us` more of it in the next one. */
static ALWAYS_INLINE void end_range(cutting *c, double us, double again_us, bool shared)
{
  if (shared) {
    c->taken_us[c->worker] = us - c->from_us;
    c->from_us = us - again_us;
  }
  c->first_task[++c->worker] = c->n_tasks;
  c->end_us = c->worker + 1 < c->n_ranges ? c->ends_us[c->worker] : INFINITY;
}

/* A span's tasks: one, and one more for every end of a range that falls into it. Its slots are as many as its pieces: a piece
 * is one head more than the one before, or one task more, or one chunk more. */
static ALWAYS_INLINE void cut_line(cutting *c, td_attention_span *s, const line *l, bool chunked, bool shared)
{
  uint32_t n_keys = s->n_keys, n_heads = c->n_heads, n_members = s->n_members, n_chunks = chunked ? ceil_div(n_keys, l->chunk) : 1;
  double us_per_head = n_keys * l->key_us + (chunked ? l->piece_us * n_chunks : l->piece_us);
  double before_us = c->before_us, after_us = before_us + us_per_head * c->heads;
  uint32_t head = 0, key = 0, step = chunked ? 0 : n_members, first_task = c->n_tasks, slot = (uint32_t)c->n_slots;
  bool merged = s->shared || n_chunks > 1;
  while (c->end_us < after_us) {
    double us = c->end_us > before_us ? c->end_us - before_us : 0;
    uint32_t h = (uint32_t)(int32_t)(us / us_per_head), k;
    h = h < n_heads ? h : n_heads - 1;
    k = cut_in_head(l, n_keys, us - h * us_per_head, chunked);
    h += k == n_keys;
    k = k == n_keys ? 0 : k;
    if (h == n_heads) /* the range ends with the line */
      break;
    if (h > head || (h == head && k > key)) { /* else the one before was moved to here or past it */
      td_attention_task *t = add_task(c, s, head, key, slot + (c->n_tasks - first_task) * step);
      t->end_head = (uint16_t)(h - (k == 0));
      t->end_key = k > 0 ? k : n_keys;
      head = h;
      key = k;
    }
    end_range(c, before_us + head * us_per_head + us_before(l, key, chunked), key > 0 && !chunked ? l->piece_us : 0, shared);
  }
  s->first_task = first_task;
  s->n_tasks = c->n_tasks - first_task + 1;
  merged |= s->n_tasks > 1 && !chunked;
  add_task(c, s, head, key, merged ? slot + (s->n_tasks - 1) * step : TD_ATTENTION_DIRECT);
  while (c->end_us < after_us) /* so it does, and so may others that are shorter than a unit */
    end_range(c, after_us, 0, shared);
  s->slot = merged ? slot : TD_ATTENTION_DIRECT;
  c->n_slots += merged ? (uint64_t)(chunked ? n_heads * n_chunks : n_heads + s->n_tasks - 1) * n_members : 0;
  c->before_us = after_us;
}

/* Spans [from, to), shared ones or rows' own, into the ranges that end at ends_us[0 .. n_ranges). The cutting is a copy of its own,
 * so that what is written to the tasks cannot be taken for a change of it. */
static ALWAYS_INLINE void cut_spans(const td_attention_planner *p, cutting *state, td_attention_span *spans, uint32_t from, uint32_t to,
                                    bool shared)
{
  cutting c = *state;
  line lines[2] = {{.unit = 0}, {.unit = 0}}; /* rows' own are of two kinds */
  c.first_task[0] = c.n_tasks;
  c.worker = 0;
  c.before_us = c.from_us = 0;
  c.end_us = c.n_ranges > 1 ? c.ends_us[0] : INFINITY;
  for (uint32_t i = from; i < to; i++) {
    td_attention_span *s = &spans[i];
    line *l = &lines[shared ? 0 : s->shared];
    if (shared || s->chunk16 || l->unit == 0)
      *l = line_of(p, s, cost_of(p, i));
    if (l->chunk)
      cut_line(&c, s, l, true, shared);
    else
      cut_line(&c, s, l, false, shared);
  }
  while (c.worker < p->config.n_workers)
    end_range(&c, c.before_us, 0, shared);
  *state = c;
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

/* What a worker's tasks take; *span is where to look for theirs, and goes along. */
static double worker_us(const td_attention_planner *p, const uint32_t *first_task, uint32_t worker, uint32_t *span)
{
  const td_attention_header *h = p->block;
  const td_attention_span *spans = td_attention_at(h, h->spans_at);
  const td_attention_task *tasks = td_attention_at(h, h->tasks_at);
  double us = 0;
  for (uint32_t t = first_task[worker]; t < first_task[worker + 1]; t++) {
    while (t >= spans[*span].first_task + spans[*span].n_tasks)
      ++*span;
    line l = line_of(p, &spans[*span], cost_of(p, *span));
    us += (double)keys_of(&tasks[t]) * l.key_us + pieces_of(&tasks[t], l.chunk) * l.piece_us;
  }
  return us;
}

/* Ends of n ranges of rows' own: where each worker has as much in all, with what it has of shared spans, if it can. */
static void fill_up(td_attention_planner *p, uint32_t n, double own_us)
{
  const double *shared_us = p->shared_us;
  double level = p->n_shared > 0 ? INFINITY : own_us / n, end = 0;
  for (int round = 0; round < 3 && p->n_shared > 0; round++) {
    double sum = own_us, n_below = 0;
    for (uint32_t w = 0; w < n; w++) { /* without branches: which are below is not foreseen */
      bool below = shared_us[w] < level;
      sum += below ? shared_us[w] : 0;
      n_below += below ? 1 : 0;
    }
    level = n_below > 0 ? sum / n_below : level;
    if (round > 0 && n_below == n)
      break;
  }
  for (uint32_t w = 0; w < n; w++) {
    double left = p->n_shared > 0 ? level - shared_us[w] : level;
    end += left > 0 ? left : 0;
    p->ends_us[w] = end;
  }
}

/* A worker's range of shared spans is at least so long, as configured, or its share of all. */
static double least_shared_us(const td_attention_planner *p, double all_us)
{
  double share = all_us / p->config.n_workers;
  return share < p->config.cost.shared_range_us ? share : p->config.cost.shared_range_us;
}

static void cut_own(td_attention_planner *p, cutting *c, td_attention_span *spans, double shared_us, double own_us, double least_us)
{
  uint32_t n_ranges = ranges_of(p, shared_us + own_us, least_us);
  c->n_ranges = n_ranges > c->n_ranges || p->n_shared == 0 ? n_ranges : c->n_ranges;
  fill_up(p, c->n_ranges, own_us);
  cut_spans(p, c, spans, p->n_shared, p->block->n_spans, false);
}

/* ---- shared spans alone ---- */

enum {
  PIECE_UNIT_KEYS = 64,
  PIECE_UNITS_MAX = UINT16_MAX / (PIECE_UNIT_KEYS / 16), /* td_attention_span.chunk16 */
  PIECE_KEYS_MIN = 256,    /* of three and more: a warp fetches two partials at once where a row ends */
  PIECES_SQUARE_KEYS = 16,
  FEW_PIECE_KEYS = TD_ATTENTION_PIECE_BEGIN_KEYS, MANY_PIECE_KEYS = 650, /* what a piece takes of all places, beside its keys */
  LENGTHS_KNOWN = 16,
  OWN_KEYS_MANY = 6,       /* keys of rows' own for each one that pieces read */
  ROWS_MANY = 8,           /* for each place */
};

/* Blocks that run at once, for each head. */
static uint32_t places_of(const td_attention_planner_config *c)
{
  return c->n_workers > c->n_kv_heads ? c->n_workers / c->n_kv_heads : 1;
}

uint32_t td_attention_pieces_max(const td_attention_planner_config *c, uint32_t n_rows)
{
  return td_attention_shared_spans_max(c, n_rows) + PIECE_ROUNDS * places_of(c);
}

/* A row's end fetches a span's partials one after another, two at once: twice as many pieces, each of half the keys, take longer from some number on. */
static bool may_be_in(uint32_t n_pieces, uint32_t n_keys)
{
  bool long_enough = n_keys >= n_pieces * PIECE_KEYS_MIN || (n_pieces == 2 && n_keys > PIECE_KEYS_MIN);
  return n_pieces == 1 || (long_enough && n_pieces * n_pieces * (uint64_t)PIECES_SQUARE_KEYS <= n_keys);
}

static uint32_t pieces_of_span(uint32_t n_keys, uint32_t keys)
{
  uint32_t n = ceil_div(n_keys, keys), most = 1;
  while (most < n && may_be_in(most + 1, n_keys))
    most++;
  return most;
}

/* For which pieces are cut. */
static uint32_t most_piece_blocks(const td_attention_planner *p)
{
  uint32_t places = places_of(&p->config);
  if (p->n_rows >= ROWS_MANY * places && p->own_keys > p->shared_keys)
    return places - places / 3;
  return p->own_keys > OWN_KEYS_MANY * p->shared_keys ? places - places / 4 : places;
}

/* A block in each place, as the sooner pieces are done, the sooner rows can end. But where rows have so much to read by themselves that few are done
 * meanwhile, a quarter of the places is theirs, lest memory be at rest at first; a third of many rows', each of which is long under way; and two
 * thirds of few rows', where each finds a place then. */
uint32_t td_attention_piece_blocks(const td_attention_planner *p)
{
  uint32_t places = places_of(&p->config), few = (places + 2) / 3;
  return p->n_rows + few < places && p->own_keys > OWN_KEYS_MANY * p->shared_keys ? few : most_piece_blocks(p);
}

/* Units of each piece but the last, of a span in pieces of at most so many keys, or in as many as pay. */
static uint32_t piece_units(uint32_t n_keys, uint32_t keys)
{
  uint32_t units = ceil_div(ceil_div(n_keys, pieces_of_span(n_keys, keys)), PIECE_UNIT_KEYS);
  return units < PIECE_UNITS_MAX ? units : PIECE_UNITS_MAX;
}

/* A plan's spans have a few lengths, which take turns, and short ones are whole. */
static uint64_t count_pieces(const td_attention_planner *p, const td_attention_span *spans, uint32_t keys)
{
  uint32_t known[LENGTHS_KNOWN] = {0}, of_span[LENGTHS_KNOWN];
  uint64_t n = 0;
  for (uint32_t i = 0; i < p->n_shared; i++) {
    uint32_t n_keys = spans[i].n_keys, at = n_keys / 16 % LENGTHS_KNOWN;
    if (known[at] != n_keys) {
      known[at] = n_keys;
      of_span[at] = n_keys <= keys && keys <= PIECE_UNITS_MAX * PIECE_UNIT_KEYS ? 1 : ceil_div(n_keys, piece_units(n_keys, keys) * PIECE_UNIT_KEYS);
    }
    n += of_span[at];
  }
  return n;
}

/* A piece's begin and end, and its partials' way to the rows: more where blocks do several, one after another, and where a row's warps share out
 * its partials. */
static uint32_t piece_cost_keys(const td_attention_planner *p, uint64_t n_pieces, uint32_t n_blocks)
{
  return n_pieces > n_blocks || p->config.group > TD_ATTENTION_BY_ROW_GROUP ? MANY_PIECE_KEYS : FEW_PIECE_KEYS;
}

/* Keys of a piece, at most. The longest span is in one, in two, in three ...: the blocks' time is taken for that of rounds as long as the longest piece, or,
 * if that is less, of as much work for each and one such round more; with it what pieces take of all places. */
static uint32_t piece_keys(const td_attention_planner *p, const td_attention_span *spans, uint32_t n_blocks)
{
  uint32_t longest = 0, best, places = places_of(&p->config);
  uint64_t least = UINT64_MAX, most = p->n_shared + (uint64_t)PIECE_ROUNDS * places;
  for (uint32_t i = 0; i < p->n_shared; i++)
    longest = spans[i].n_keys > longest ? spans[i].n_keys : longest;
  best = longest;
  for (uint32_t of_longest = 1; may_be_in(of_longest, longest); of_longest++) {
    uint32_t keys = ceil_div(longest, of_longest);
    uint64_t n = count_pieces(p, spans, keys);
    if (n > most)
      break;
    uint64_t round = piece_units(longest, keys) * PIECE_UNIT_KEYS + TD_ATTENTION_PIECE_BEGIN_KEYS, all = p->shared_keys + n * TD_ATTENTION_PIECE_BEGIN_KEYS;
    uint64_t rounds = (n + n_blocks - 1) / n_blocks * round, evenly = all / n_blocks + round;
    uint64_t time = (rounds < evenly ? rounds : evenly) + (p->shared_keys + n * piece_cost_keys(p, n, n_blocks)) / places;
    if (time < least) {
      least = time;
      best = keys;
    }
  }
  return best;
}

static bool cut_shared(td_attention_planner *p, td_attention_span *spans)
{
  td_attention_header *h = p->block;
  uint64_t n_slots = 0;
  uint32_t n_pieces = 0, keys = 0;
  p->shared_keys = 0;
  for (uint32_t i = 0; i < p->n_shared; i++)
    p->shared_keys += spans[i].n_keys;
  h->n_piece_blocks = td_attention_piece_blocks(p);
  if (p->n_shared > 0)
    keys = piece_keys(p, spans, most_piece_blocks(p));
  for (uint32_t i = 0; i < p->n_shared; i++) {
    td_attention_span *s = &spans[i];
    s->chunk16 = (uint16_t)(piece_units(s->n_keys, keys) * (PIECE_UNIT_KEYS / 16));
    s->first_task = n_pieces;
    s->n_tasks = ceil_div(s->n_keys, chunk_keys(s));
    s->slot = (uint32_t)n_slots;
    n_pieces += s->n_tasks;
    n_slots += (uint64_t)s->n_tasks * p->config.n_kv_heads * s->n_members;
  }
  if (n_slots > p->max_slots || n_pieces > td_attention_pieces_max(&p->config, p->config.max_rows))
    return false;
  td_attention_source *sources = (td_attention_source *)(void *)((unsigned char *)h + h->sources_at);
  for (uint32_t i = 0; i < p->n_sources; i++) {
    const td_attention_span *s = &spans[p->sources[i]];
    sources[i] = (td_attention_source){s->slot - s->first_member, s->n_tasks, s->n_members, s->first_task};
  }
  for (uint32_t i = p->n_shared; i < h->n_spans; i++) {
    spans[i].first_task = n_pieces;
    spans[i].n_tasks = 0;
    spans[i].slot = TD_ATTENTION_DIRECT;
  }
  p->stats.total_us = total_of(p, spans, 0, p->n_shared);
  h->n_slots = (uint32_t)n_slots;
  h->n_tasks = n_pieces;
  h->block_bytes = h->spans_at; /* no block reads spans */
  return true;
}

static double longest_piece_us(const td_attention_planner *p)
{
  const td_attention_span *spans = td_attention_at(p->block, p->block->spans_at);
  double longest = 0;
  for (uint32_t i = 0; i < p->n_shared; i++) {
    line l = line_of(p, &spans[i], cost_of(p, i));
    double us = l.piece_us + (spans[i].n_keys < l.chunk ? spans[i].n_keys : l.chunk) * l.key_us;
    longest = us > longest ? us : longest;
  }
  return longest;
}

bool td_attention_cut(td_attention_planner *p)
{
  td_attention_header *h = p->block;
  td_attention_span *spans = (td_attention_span *)(void *)((unsigned char *)h + h->spans_at);
  if (p->config.shared_only)
    return cut_shared(p, spans);
  double shared = total_of(p, spans, 0, p->n_shared), own = own_total_of(p, spans);
  double least = p->config.cost.start_us + p->config.cost.unit_keys * p->unit.key_us[0][0];
  double least_shared = least_shared_us(p, shared + own);
  cutting c = {.tasks = (td_attention_task *)(void *)((unsigned char *)h + h->tasks_at), .first_task = (uint32_t *)(h + 1),
               .n_ranges = ranges_of(p, shared, least_shared > least ? least_shared : least), .n_heads = p->config.n_kv_heads, .heads = p->config.n_kv_heads, .ends_us = p->ends_us, .taken_us = p->shared_us};
  double range_us = shared / c.n_ranges;
  for (uint32_t w = 0; w < c.n_ranges; w++)
    p->ends_us[w] = range_us * (w + 1);
  cut_spans(p, &c, spans, 0, p->n_shared, true);
  c.first_task += p->config.n_workers + 1;
  cut_own(p, &c, spans, shared, own, least);
  p->stats.total_us = shared + own;
  p->cut_keys = p->own_keys;
  if (c.n_slots > p->max_slots)
    return false;
  h->n_slots = (uint32_t)c.n_slots;
  h->n_tasks = c.n_tasks;
  h->block_bytes = h->tasks_at + c.n_tasks * (uint32_t)sizeof *c.tasks;
  return true;
}

double td_attention_longest_us(const td_attention_planner *p)
{
  const uint32_t *first_task = td_attention_first_task(p->block), n = p->config.n_workers;
  double longest = 0;
  if (p->config.shared_only)
    return longest_piece_us(p);
  for (uint32_t w = 0, shared = 0, own = p->n_shared; w < n; w++) {
    double us = worker_us(p, first_task, w, &shared) + worker_us(p, first_task + n + 1, w, &own);
    longest = us > longest ? us : longest;
  }
  return longest;
}
