/* See hybrid.h.
 *
 * Prefill takes as long as its waves. Items go to the SMs (or pairs of SMs), longest
 * first. The time is that of as many waves as the items need, each of mean length, or that of the longest
 * item if it is longer. KV splits make more and shorter items. A pair copies its keys once, which saves
 * power, but each of its items takes longer.
 *
 * Decodes beside prefill get the bandwidth that their SMs can reach. In prefill's last wave they also get
 * that of the SMs that prefill leaves idle, and after prefill that of all SMs. Colocated decodes get a part
 * of the bandwidth and slow prefill down. */
#include "kernels/attention/hybrid.h"

#include <math.h>

enum {
  COLOCATED_KEYS = 2048, /* of a KV split of colocated decodes */
  BESIDE_KEYS = 2048,    /* of a KV split of decodes beside prefill */
  CTAS_OF_SM = 3,        /* of decodes */
  PAIR_TILES = 2,
  SPLIT_WAVES_MAX = 3,
  CANDIDATES_MAX = 16,
  WAVES_MAX = 12,
  SMS_BESIDE_LEAST = 4
};

/* Fitted to an H100 and an H200 (docs/lab/2026-11.md). The unit of *_tiles is the time of a KV tile: tile_us,
 * in which an SM reads and multiplies one. */
static const double sm_flop_us = 580e6 / 132; /* an SM's rate in prefill, with all SMs at work */
static const double item_tiles = 1.2;         /* an item's prologue and epilogue */
static const double pair_tiles = 1;           /* in addition, if the item is a pair */
static const double split_tiles = 0.8;        /* in addition, a KV split: it writes and awaits its partial */
static const double partial_tiles = 0.28;     /* in addition, for each KV split of its tile: reduction */
static const double pair_factor = 0.99;       /* factor of tile_us in a pair, */
static const double pair_factor_beside = 0.995; /* and in a pair with decodes beside or colocated */
static const double sm_bytes_us = 0.1e6;        /* bandwidth of an SM's decodes, if few SMs do decodes */
static const double slower_beside = 0.16;    /* part added to prefill's time by decodes at full bandwidth */
static const double sms_beside_part = 0.375; /* most SMs beside: they reach nearly all the bandwidth */
static const double colocated_slower = 1.12; /* factor of prefill's time with colocated decodes */
static const double colocated_byte_us = 1.5e-7; /* added to the time of a byte of all colocated decodes */
static const double beside_gain = 0.97;         /* most time with decodes beside, as a part of serial */
static const double split_gain = 0.93;          /* most time with KV splits, as a part of no splits; */
static const double split_gain_beside = 0.86;   /* with decodes beside, as these exceed predictions */
static const double late_item_part = 0.25;      /* most time of a decode's item, as a part of prefill's, */
static const double short_prefill_part = 0.25;  /* unless prefill takes less than this part of decodes' */

/* The items of a cut, for all kv heads. */
typedef struct cut_size {
  uint64_t n, n_partials;
  double tiles, longest, shortest;
  double split_extra; /* fixed cost of KV splits, in KV tiles */
} cut_size;

static cut_size size_of(const td_hybrid_config *c, const td_hybrid_chunk *chunks, uint32_t n_chunks,
                        const td_hybrid_cut *cut)
{
  cut_size s = {.shortest = 1e9};
  uint32_t item_tokens = c->tile_tokens * cut->tiles;
  for (uint32_t i = 0; i < n_chunks; i++)
    for (uint32_t begin = 0; begin < chunks[i].n_tokens; begin += item_tokens) {
      uint32_t left = chunks[i].n_tokens - begin, first = chunks[i].n_keys - left;
      uint32_t n_keys = first + (left < item_tokens ? left : item_tokens) - td_hybrid_first_key(c, first);
      uint32_t splits = td_hybrid_splits(cut, n_keys);
      double tiles = (double)((n_keys + c->tile_keys - 1) / c->tile_keys), tiles_per_split = tiles / splits;
      s.n += splits;
      if (splits > 1) {
        s.n_partials += splits;
        s.split_extra += splits * (split_tiles + partial_tiles * splits);
      }
      s.tiles += tiles;
      s.longest = tiles_per_split > s.longest ? tiles_per_split : s.longest;
      s.shortest = tiles_per_split < s.shortest ? tiles_per_split : s.shortest;
    }
  s.n *= c->n_kv_heads;
  s.n_partials *= c->n_kv_heads;
  s.tiles *= c->n_kv_heads;
  s.split_extra *= c->n_kv_heads;
  return s;
}

static bool is_beside(const td_hybrid_cut *cut) { return cut->sms_beside > 0 || cut->colocated_keys > 0; }

/* Prefill's time: all waves but the last, and the last; and the number of SMs idle in the last. */
typedef struct prefill_time {
  double full_waves_us, last_us;
  uint32_t n_idle_sms;
} prefill_time;

/* The part of memory's bandwidth that n_sms SMs reach. Few SMs reach n_sms times their own rate; many
 * approach the whole bandwidth. */
static double rate_part(const td_hybrid_config *c, uint32_t n_sms)
{
  double demand = n_sms * sm_bytes_us / c->memory_bytes_us, fourth = demand * demand * demand * demand;
  return demand / sqrt(sqrt(1 + fourth));
}

static uint64_t resident_items(const td_hybrid_config *c, const td_hybrid_cut *cut)
{
  return (c->n_sms - cut->sms_beside) / cut->tiles;
}

/* Returns false if there are too few partials. */
static bool time_prefill(const td_hybrid_config *c, const cut_size *s, const td_hybrid_cut *cut,
                         prefill_time *t)
{
  uint64_t resident = resident_items(c, cut), waves = (s->n + resident - 1) / resident;
  if (s->n_partials * cut->tiles > TD_PREFILL_PARTIALS_MAX)
    return false;
  bool pair = cut->tiles == PAIR_TILES, beside = is_beside(cut);
  double tile_us = 4.0 * 128 * c->tile_keys * c->head_dim / sm_flop_us; /* 128 query rows */
  tile_us *= pair ? (beside ? pair_factor_beside : pair_factor) : 1;
  tile_us *=
      (1 + slower_beside * rate_part(c, cut->sms_beside)) * (cut->colocated_keys > 0 ? colocated_slower : 1);
  double fixed = item_tiles + (pair ? pair_tiles : 0) + s->split_extra / (double)s->n;
  double mean = s->tiles / (double)s->n, last = waves > 1 ? s->shortest : s->longest;
  t->full_waves_us = (double)(waves - 1) * (mean + fixed) * tile_us;
  t->last_us = (last + fixed) * tile_us;
  t->n_idle_sms = (uint32_t)(waves * resident - s->n) * cut->tiles;
  double least_us = (s->longest + fixed) * tile_us;
  if (t->full_waves_us + t->last_us < least_us)
    t->last_us = least_us - t->full_waves_us;
  return true;
}

static double step_us(const td_hybrid_config *c, const prefill_time *t, double decode_us,
                      const td_hybrid_cut *cut)
{
  double prefill = t->full_waves_us + t->last_us, beside = 0;
  if (cut->colocated_keys > 0)
    beside = prefill / (1 + colocated_byte_us * c->memory_bytes_us);
  else if (cut->sms_beside > 0)
    beside = t->full_waves_us * rate_part(c, cut->sms_beside) +
             t->last_us * rate_part(c, cut->sms_beside + t->n_idle_sms);
  return beside >= decode_us ? prefill : prefill + decode_us - beside;
}

/* Updates *best and *us if a cut with this sms_beside and colocated_keys is predicted to be faster. */
static void try_cuts(const td_hybrid_config *c, const td_hybrid_chunk *chunks, uint32_t n_chunks,
                     double decode_us, uint32_t sms_beside, uint32_t colocated_keys, td_hybrid_cut *best,
                     double *us)
{
  static const uint8_t splits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16};
  for (uint32_t tiles = 1; tiles <= (c->has_pairs ? PAIR_TILES : 1); tiles++) {
    td_hybrid_cut cut = {.tiles = tiles, .sms_beside = sms_beside, .colocated_keys = colocated_keys};
    double longest = 0;
    for (size_t i = 0; i < sizeof splits; i++) {
      if (splits[i] > 1)
        cut.split_keys = ((uint32_t)(longest + splits[i] - 1) / splits[i]) * c->tile_keys;
      cut_size s = size_of(c, chunks, n_chunks, &cut);
      prefill_time t;
      longest = i == 0 ? s.longest : longest;
      double gain = is_beside(&cut) ? beside_gain * (splits[i] > 1 ? split_gain_beside : 1)
                    : splits[i] > 1 ? split_gain
                                    : 1;
      if (time_prefill(c, &s, &cut, &t) && step_us(c, &t, decode_us, &cut) / gain < *us) {
        *us = step_us(c, &t, decode_us, &cut) / gain;
        *best = cut;
      }
      if (s.n > SPLIT_WAVES_MAX * resident_items(c, &cut) || longest < 2 * splits[i])
        break;
    }
  }
}

/* Numbers of SMs that may be worth leaving to decodes: those that whole waves of prefill do not need, and a
 * few fixed ones. */
static uint32_t candidates_of(const td_hybrid_config *c, const td_hybrid_chunk *chunks, uint32_t n_chunks,
                              uint32_t out[CANDIDATES_MAX])
{
  static const uint8_t always[] = {SMS_BESIDE_LEAST, 16, 28, 40};
  uint32_t n = 0, tiles = c->has_pairs ? PAIR_TILES : 1;
  uint64_t n_items = size_of(c, chunks, n_chunks, &(td_hybrid_cut){.tiles = tiles}).n;
  for (size_t i = 0; i < sizeof always; i++)
    if (always[i] <= c->n_sms * sms_beside_part)
      out[n++] = always[i];
  for (uint64_t waves = 1; waves <= WAVES_MAX; waves++) {
    uint64_t sms = (n_items + waves - 1) / waves * tiles;
    if (sms + SMS_BESIDE_LEAST <= c->n_sms && (double)(c->n_sms - sms) <= c->n_sms * sms_beside_part)
      out[n++] = (uint32_t)(c->n_sms - sms) / 2 * 2;
  }
  return n;
}

/* Time of the decodes alone, on all SMs. */
static double decodes_us(const td_hybrid_config *c, const td_hybrid_decodes *d)
{
  return (double)d->keys * c->n_kv_heads * c->head_dim * 4 / c->memory_bytes_us + d->shared_us;
}

/* Whether whole decodes are too long as items beside this cut's prefill. One that begins late still runs on
 * the few SMs beside when prefill is done, and all other SMs wait. But if decodes outlast prefill by far,
 * they should rather fill all SMs afterwards. */
static bool cuts_decodes(const td_hybrid_config *c, const td_hybrid_chunk *chunks, uint32_t n_chunks,
                         const td_hybrid_cut *cut, uint32_t longest_keys, double decode_us)
{
  cut_size s = size_of(c, chunks, n_chunks, cut);
  prefill_time t;
  if (cut->sms_beside == 0 || !time_prefill(c, &s, cut, &t))
    return false;
  double prefill_us = t.full_waves_us + t.last_us, item_bytes = 4.0 * longest_keys * c->head_dim;
  double cta_bytes_us = rate_part(c, cut->sms_beside) * c->memory_bytes_us / (cut->sms_beside * CTAS_OF_SM);
  double item_us = item_bytes / cta_bytes_us;
  return item_us > late_item_part * prefill_us && prefill_us > short_prefill_part * decode_us;
}

td_hybrid_cut td_hybrid_cut_of(const td_hybrid_config *c, const td_hybrid_chunk *chunks, uint32_t n_chunks,
                               const td_hybrid_decodes *decodes)
{
  uint32_t beside[CANDIDATES_MAX];
  double us = 1e30, decode_us = decodes_us(c, decodes);
  td_hybrid_cut best = {.tiles = 1};
  if (n_chunks == 0 || c->tile_keys == 0)
    return best;
  if (c->policy && c->policy->hybrid.tiles > 0) {
    best = c->policy->hybrid;
    best.tiles = c->has_pairs ? best.tiles : 1;
    best.colocated_keys = decodes->may_colocate ? best.colocated_keys : 0;
    return best;
  }
  try_cuts(c, chunks, n_chunks, decode_us, 0, 0, &best, &us);
  if (decodes->keys == 0 || (c->policy && c->policy->never_beside))
    return best;
  uint32_t n = candidates_of(c, chunks, n_chunks, beside);
  for (uint32_t i = 0; i < n; i++)
    try_cuts(c, chunks, n_chunks, decode_us, beside[i], 0, &best, &us);
  if (decodes->may_colocate)
    try_cuts(c, chunks, n_chunks, decode_us, 0, COLOCATED_KEYS, &best, &us);
  if (cuts_decodes(c, chunks, n_chunks, &best, decodes->longest_keys, decode_us))
    best.beside_keys = BESIDE_KEYS;
  return best;
}
