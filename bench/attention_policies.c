/* See attention_policies.h. */
#include "bench/attention_policies.h"

#include <string.h>

static bool never(uint32_t n_keys, uint32_t n_rows)
{
  (void)n_keys, (void)n_rows;
  return false;
}

/* Every sequence alone, with the KV splits of the daemon. */
static const td_attention_policy none = {.name = "none", .shares = never};

/* PAT (section 5.1): a child is split from its parent if 4 x rows < keys; a row is a child too. Private KV is
 * cut as in the daemon. */
static bool pat_shares(uint32_t n_keys, uint32_t n_rows) { return n_keys > 4ull * n_rows; }

static const td_attention_policy pat = {.name = "pat", .always_shares = true, .shares = pat_shares};

/* PersistentKV: every row is cut by its own length into up to 32 KV splits. The CTAs of an SM, of which three
 * are resident, get 16 together. */
static uint32_t persistentkv_splits(uint32_t n_decodes, uint32_t n_resident)
{
  enum { SPLITS_MAX = 32, PER_CTA = 16 / 3 };
  uint32_t n = n_decodes > 0 ? (PER_CTA * n_resident + n_decodes - 1) / n_decodes : 1;
  return n < SPLITS_MAX ? n : SPLITS_MAX;
}

static const td_attention_policy persistentkv = {
    .name = "persistentkv", .shares = never, .kv_splits = persistentkv_splits};

/* FlashDecoding: every row is cut into as many KV splits as give each resident CTA two. */
static uint32_t flashdecode_splits(uint32_t n_decodes, uint32_t n_resident)
{
  return n_decodes > 0 ? (2 * n_resident + n_decodes - 1) / n_decodes : 1;
}

static const td_attention_policy flashdecode = {
    .name = "flashdecode", .shares = never, .kv_splits = flashdecode_splits};

static const td_attention_policy tiles = {.name = "tiles", .always_shares = true, .never_small = true};

const td_attention_policy *const td_attention_policies[] = {&none,         &td_attention_always, &tiles, &pat,
                                                            &persistentkv, &flashdecode,         NULL};

static const td_attention_policy
    pairs = {.name = "pairs", .hybrid = {.tiles = 2}},
    splits = {.name = "splits", .hybrid = {.tiles = 1, .split_keys = 256}},
    pairs_in_splits = {.name = "pairs in splits", .hybrid = {.tiles = 2, .split_keys = 384}},
    beside = {.name = "beside", .hybrid = {.tiles = 1, .sms_beside = 4}},
    all_of_it = {.name = "pairs in splits beside",
                 .hybrid = {.tiles = 2, .split_keys = 256, .sms_beside = 32, .beside_keys = 512}},
    shared_beside = {.name = "shared prefixes beside",
                     .always_shares = true,
                     .hybrid = {.tiles = 1, .sms_beside = 16}},
    colocated = {.name = "colocated", .hybrid = {.tiles = 1, .colocated_keys = 128}},
    colocated_pairs = {.name = "colocated pairs in splits beside",
                       .hybrid = {.tiles = 2, .split_keys = 256, .sms_beside = 16, .colocated_keys = 512}};

const td_attention_policy *const td_attention_cuts[] = {&pairs,     &splits,          &pairs_in_splits,
                                                        &beside,    &all_of_it,       &shared_beside,
                                                        &colocated, &colocated_pairs, NULL};

bool td_attention_policy_of(const char *name, const td_attention_policy **out)
{
  *out = NULL;
  for (uint32_t i = 0; td_attention_policies[i]; i++)
    if (strcmp(td_attention_policies[i]->name, name) == 0) {
      *out = td_attention_policies[i];
      return true;
    }
  return strcmp(name, TD_ATTENTION_AUTO_NAME) == 0;
}
