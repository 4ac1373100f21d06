/* Chooses the number of prefix splits of each shared-prefix group, and how many CTAs do them. README.md
 * explains the rules. Times are predicted, in keys. */
#include "kernels/attention/planner.h"

enum {
  UNIT_KEYS = 64,
  SPLIT_KEYS_MIN = 256, /* with three or more splits: a reduction fetches only two partials at a time */
  SQUARE_KEYS = 16,
  FEW_SPLIT_KEYS = TD_ATTENTION_SPLIT_FIXED_KEYS,
  MANY_SPLIT_KEYS = 650, /* time that a split takes of all resident CTAs, in addition to its keys */
  LENGTHS_CACHED = 16,
  SMALL_UNIT_KEYS = 128,  /* of small groups: a KV tile for each warp */
  SMALL_SQUARE_KEYS = 32, /* SQUARE_KEYS of small groups */
  SMALL_SPLITS = 8,       /* that a small group may always have: their partials are fetched at once */
  PRIVATE_KEYS_MANY = 6,  /* private keys for each key that splits read */
  ROWS_MANY = 8,          /* rows for each resident CTA */
};

/* CTAs that run at the same time, for each head. */
static uint32_t resident_of(const td_attention_planner_config *c)
{
  return c->n_resident > c->n_kv_heads ? c->n_resident / c->n_kv_heads : 1;
}

uint32_t td_attention_prefix_splits_max(const td_attention_planner_config *c, uint32_t n_rows)
{
  return td_attention_groups_max(c, n_rows) + (PREFIX_SPLIT_WAVES_MAX + (c->small_rows > 0)) * resident_of(c);
}

/* ---- small groups ---- */

/* The length of items if private KV and small groups' keys are divided evenly: over the resident CTAs, or, if
 * there are more, over the items. Small groups then have at most a wave of splits besides one each. */
static uint32_t small_item_keys(const td_attention_planner *p)
{
  uint32_t resident = resident_of(&p->config), n_items = p->n_rows;
  uint64_t keys = 0;
  for (uint32_t i = 0; i < p->n_groups; i++)
    if (is_small_group(&p->config, &p->groups[i])) {
      keys += p->groups[i].n_keys;
      n_items++;
    }
  uint64_t evenly = (keys + p->private_keys) / (n_items > resident ? n_items : resident),
           least = keys / resident;
  return (uint32_t)(evenly > least ? evenly : least) + 1;
}

static uint32_t small_split_keys(uint32_t n_keys, uint32_t item_keys)
{
  uint32_t n = ceil_div(n_keys, item_keys);
  while (n > SMALL_SPLITS && n * n * (uint64_t)SMALL_SQUARE_KEYS > n_keys)
    n--;
  return ceil_div(ceil_div(n_keys, n), SMALL_UNIT_KEYS) * SMALL_UNIT_KEYS;
}

/* ---- other groups ---- */

/* Whether a group may have this many splits. A reduction fetches a group's partials two at a time, so from
 * some number on, more and shorter splits take longer. */
static bool may_split(uint32_t n_splits, uint32_t n_keys)
{
  bool long_enough = n_keys >= n_splits * SPLIT_KEYS_MIN || (n_splits == 2 && n_keys > SPLIT_KEYS_MIN);
  return n_splits == 1 || (long_enough && n_splits * n_splits * (uint64_t)SQUARE_KEYS <= n_keys);
}

static uint32_t splits_of(uint32_t n_keys, uint32_t keys)
{
  uint32_t n = ceil_div(n_keys, keys), most = 1;
  while (most < n && may_split(most + 1, n_keys))
    most++;
  return most;
}

/* Keys of each split but the last. The group's splits have at most `keys` keys, or more if that many splits
 * do not pay. */
static uint32_t split_keys(uint32_t n_keys, uint32_t keys)
{
  return ceil_div(ceil_div(n_keys, splits_of(n_keys, keys)), UNIT_KEYS) * UNIT_KEYS;
}

/* The most CTAs that do splits. Groups are cut for this number. */
static uint32_t most_ctas(const td_attention_planner *p)
{
  uint32_t resident = resident_of(&p->config);
  if (p->n_rows >= ROWS_MANY * resident && p->private_keys > p->shared_keys)
    return resident - resident / 3;
  return p->private_keys > PRIVATE_KEYS_MANY * p->shared_keys ? resident - resident / 4 : resident;
}

/* The CTAs that do splits: all resident ones, because the sooner splits are done, the sooner sequences can
 * end. There are three exceptions:
 * - If sequences have so much private KV that few could end by then, a quarter of the CTAs is left to private
 *   KV, so that memory is busy from the start.
 * - If there are many sequences, with more private than shared KV, a third is left.
 * - If there is that much private KV and sequences are so few that each still finds a CTA, two thirds are
 *   left. */
uint32_t td_attention_prefix_ctas(const td_attention_planner *p)
{
  uint32_t resident = resident_of(&p->config), few = (resident + 2) / 3;
  return p->n_rows + few < resident && p->private_keys > PRIVATE_KEYS_MANY * p->shared_keys ? few
                                                                                            : most_ctas(p);
}

/* The number of splits if each has at most `keys` keys. Groups have few different lengths, so results are
 * kept by length. */
static uint64_t count_splits(const td_attention_planner *p, uint32_t keys)
{
  uint32_t cached_keys[LENGTHS_CACHED] = {0}, cached_splits[LENGTHS_CACHED];
  uint64_t n = 0;
  for (uint32_t i = 0; i < p->n_groups; i++) {
    if (is_small_group(&p->config, &p->groups[i]))
      continue;
    uint32_t n_keys = p->groups[i].n_keys, at = n_keys / 16 % LENGTHS_CACHED;
    if (cached_keys[at] != n_keys) {
      cached_keys[at] = n_keys;
      cached_splits[at] = n_keys <= keys ? 1 : ceil_div(n_keys, split_keys(n_keys, keys));
    }
    n += cached_splits[at];
  }
  return n;
}

/* The fixed cost of a split, in keys: prologue, epilogue, and the reduction of its partials. It is higher if
 * CTAs do several splits one after another, and if partials are reduced in tiles. */
static uint32_t fixed_keys(const td_attention_planner *p, uint64_t n_splits, uint32_t n_ctas)
{
  return n_splits > n_ctas || p->config.reduces_in_tiles ? MANY_SPLIT_KEYS : FEW_SPLIT_KEYS;
}

/* The most keys of a split. Tries the longest group in one split, in two, in three and so on. The predicted
 * time is the lesser of two: that of whole waves of splits as long as the longest, or equal work for each CTA
 * plus one such wave. The time that splits take of all resident CTAs is added. */
static uint32_t best_split_keys(const td_attention_planner *p, uint32_t n_ctas)
{
  uint32_t longest = 0, best, resident = resident_of(&p->config);
  uint64_t least = UINT64_MAX, most = (uint64_t)PREFIX_SPLIT_WAVES_MAX * resident, shared_keys = 0;
  for (uint32_t i = 0; i < p->n_groups; i++) {
    const td_attention_group *g = &p->groups[i];
    if (is_small_group(&p->config, g))
      continue;
    longest = g->n_keys > longest ? g->n_keys : longest;
    shared_keys += g->n_keys;
    most++; /* besides one split each */
  }
  best = longest;
  for (uint32_t of_longest = 1; longest > 0 && may_split(of_longest, longest); of_longest++) {
    uint32_t keys = ceil_div(longest, of_longest);
    uint64_t n = count_splits(p, keys);
    if (n > most)
      break;
    uint64_t wave_keys = split_keys(longest, keys) + TD_ATTENTION_SPLIT_FIXED_KEYS,
             all = shared_keys + n * TD_ATTENTION_SPLIT_FIXED_KEYS;
    uint64_t whole_waves_keys = (n + n_ctas - 1) / n_ctas * wave_keys, evenly = all / n_ctas + wave_keys;
    uint64_t time = (whole_waves_keys < evenly ? whole_waves_keys : evenly) +
                    (shared_keys + n * fixed_keys(p, n, n_ctas)) / resident;
    if (time < least) {
      least = time;
      best = keys;
    }
  }
  return best;
}

static double key_us_of(const td_attention_planner *p, uint32_t group)
{
  return p->unit.key_us[p->group_cost[group] / 3][p->group_cost[group] % 3];
}

static double fixed_us_of(const td_attention_planner *p, const td_attention_group *g)
{
  return p->config.cost.start_us + g->n_members * p->unit.partial_us;
}

static double predict_us(const td_attention_planner *p)
{
  double us = 0;
  for (uint32_t i = 0; i < p->n_groups; i++) {
    const td_attention_group *g = &p->groups[i];
    us += (g->n_keys * key_us_of(p, i) + fixed_us_of(p, g) * g->n_splits) * p->config.n_kv_heads;
  }
  return us;
}

bool td_attention_split_prefixes(td_attention_planner *p)
{
  td_attention_header *h = p->block;
  uint64_t n_partials = 0;
  uint32_t n_splits = 0, keys = 0, small_keys = small_item_keys(p);
  p->shared_keys = 0;
  for (uint32_t i = 0; i < p->n_groups; i++)
    p->shared_keys += p->groups[i].n_keys;
  h->prefix_ctas = td_attention_prefix_ctas(p);
  if (p->n_groups > 0)
    keys = best_split_keys(p, most_ctas(p));
  for (uint32_t i = 0; i < p->n_groups; i++) {
    td_attention_group *g = &p->groups[i];
    g->split_keys =
        is_small_group(&p->config, g) ? small_split_keys(g->n_keys, small_keys) : split_keys(g->n_keys, keys);
    g->first_split = n_splits;
    g->n_splits = ceil_div(g->n_keys, g->split_keys);
    g->first_partial = (uint32_t)n_partials;
    n_splits += g->n_splits;
    n_partials += (uint64_t)g->n_splits * p->config.n_kv_heads * g->n_members;
  }
  if (n_partials > p->max_partials ||
      n_splits > td_attention_prefix_splits_max(&p->config, p->config.max_rows))
    return false;
  td_attention_membership *memberships =
      (td_attention_membership *)(void *)((unsigned char *)h + h->memberships_at);
  for (uint32_t i = 0; i < p->n_memberships; i++) {
    const td_attention_group *g = &p->groups[p->memberships[i]];
    memberships[i] = (td_attention_membership){.base_partial = g->first_partial - g->first_member,
                                               .n_splits = g->n_splits,
                                               .n_members = g->n_members,
                                               .first_split = g->first_split};
  }
  p->stats.shared_us = predict_us(p);
  h->n_partials = (uint32_t)n_partials;
  h->n_splits = n_splits;
  return true;
}

double td_attention_longest_us(const td_attention_planner *p)
{
  double longest = 0;
  for (uint32_t i = 0; i < p->n_groups; i++) {
    const td_attention_group *g = &p->groups[i];
    double us = fixed_us_of(p, g) + (g->n_keys < g->split_keys ? g->n_keys : g->split_keys) * key_us_of(p, i);
    longest = us > longest ? us : longest;
  }
  return longest;
}
