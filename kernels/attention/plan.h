/* What one launch of decode attention does: a step's decode rows, cut into tasks for a fixed number of workers.
 *
 * A *span* is a run of consecutive keys and the rows ("members") that attend to all of it: a node of the prefix tree
 * with a tile of the rows that share it, or the keys of one row alone. Every key of every row lies in exactly one of
 * the row's spans. A span's *line* is its keys once per kv head, heads one after another.
 * The lines of the shared spans one after another are cut into one contiguous range per worker, equal in predicted time
 * (stream-K), and then the lines of the rows' own spans, so that both ranges of a worker together are equal. What of a
 * line falls into one range is a *task*, so a step has at most n_spans + 2 * n_workers tasks, and a line is cut at most
 * once per worker. Worker w does its tasks of shared spans [first_task[w], first_task[w + 1]), then, as the next
 * n_workers + 1 entries of first_task say, those of rows' own; in order, head by head. So what rows share is mostly done
 * when their own is, and who does that ends the row.
 *
 * What a task computes of one head is a *piece*: for each member, the softmax's (m, l, O) over the piece's keys. If the
 * row has no other span and the piece is the whole head, that is the row's output. Otherwise it goes to a partial, and
 * the piece adds its number of keys to the arrivals of each member and head; who makes them complete (members[].n_keys)
 * merges all partials of that row and head, span by span and in the order of keys, and resets the arrivals to 0. So
 * the result does not depend on who came last. Which partials: see td_attention_span.
 *
 * Or blocks of the launch that does rows' own keys do the shared spans (shared_only): then there are no tasks and no ranges. Each shared span is
 * cut into pieces of chunk16 * 16 keys, each of which a block does for one head, and its partials are written, not counted: who does what
 * td_attention_planner_own says is a row's own waits for the pieces of its spans and adds them up (kernels/cuda/attention_shared_sums.cuh).
 *
 * All of it is one block of memory, so that one copy takes it to the device; the same plan serves all layers. Sources:
 * PersistentKV (row-local ranges, no empty task), PAT (packing by profit), stream-K; README.md beside this says why. */
#ifndef TD_KERNELS_ATTENTION_PLAN_H
#define TD_KERNELS_ATTENTION_PLAN_H

#include <stdint.h>

#include "config/plan.h"

enum {
  TD_ATTENTION_TILE_ROWS_MAX = 128, /* query rows (members x heads of a GQA group) of a span with several members */
  TD_ATTENTION_LEVELS_MAX = 16,     /* shared spans of a row */
  TD_ATTENTION_INVARIANT_PIECES = 32, /* of a row and head, where they are fixed */
  TD_ATTENTION_PIECE_BEGIN_KEYS = 300, /* a piece's begin and end, in the keys that its block would have done meanwhile */
  TD_ATTENTION_BY_ROW_GROUP = 4,       /* groups of up to so many heads add the partials of pieces head by head where a row ends, larger ones in tiles */
};
#define TD_ATTENTION_DIRECT UINT32_MAX    /* instead of a slot: no partials */

/* A partial (slot) has room for the query heads of one kv head of one row. */
typedef struct td_attention_task {
  uint32_t begin_key, end_key;   /* of its span's line: from key begin_key of head begin_head on, and before */
  uint32_t n_keys;               /* key end_key, 1 to n_keys, of head end_head; keys are counted in the span */
  uint32_t first_page;           /* key k lies in page page_table[first_page + k / page_tokens] */
  uint32_t first_member;         /* members [first_member, first_member + n_members) */
  uint32_t slot;                 /* without chunks: the partial of head h and member i is slot + h * n_members + i */
  uint16_t begin_head, end_head; /* both have keys */
  uint16_t chunk16;              /* more than 0: pieces also end after every chunk16 * 16 keys of a head */
  uint8_t n_members;
  uint8_t shared; /* 1: its members have other spans */
} td_attention_task;

/* What a merge must know. Partials of head h: without chunks, of the tasks t of [first_task, first_task + n_tasks) that
 * have keys of the head, slot + (h + t - first_task) * n_members + i; with chunks, of every chunk c,
 * slot + (h * n_chunks + c) * n_members + i, n_chunks = ceil(n_keys / (16 * chunk16)). With shared_only pieces are counted instead of
 * tasks, those of one head: [first_task, first_task + n_tasks) are the span's, its chunks; rows' own spans have none. */
typedef struct td_attention_span {
  uint32_t n_keys, first_page;
  uint32_t first_task, n_tasks;
  uint32_t slot; /* TD_ATTENTION_DIRECT: the span is neither cut nor shared */
  uint32_t first_member;
  uint16_t chunk16;
  uint8_t n_members;
  uint8_t shared;
} td_attention_span;

/* With shared_only the block's sources are these: what a row's end must know of a span. The partial of head h, piece c and member i is
 * slot + (h * n_pieces + c) * n_members + i, modulo 2^32. */
typedef struct td_attention_source {
  uint32_t slot; /* as if the span's members began with member 0 */
  uint32_t n_pieces, n_members;
  uint32_t first_piece;
} td_attention_source;

/* Member i is a row; its spans are sources[first_source .. + n_sources), numbers of spans, then its own, n_shared_spans + i. */
typedef struct td_attention_member {
  uint32_t token;  /* its query: index of the plan's tokens */
  uint32_t n_keys; /* of all its spans */
  uint32_t first_source, n_sources;
} td_attention_member;

/* The block begins with this, then first_task[2][n_workers + 1], but with shared_only. Places are in bytes from the block's begin. */
typedef struct td_attention_header {
  uint32_t n_workers, n_tasks, n_spans, n_shared_spans, n_members, n_sources, n_slots;
  uint32_t members_at, sources_at, spans_at, tasks_at, block_bytes;
  uint32_t invariant_keys; /* as configured: how a piece is computed must not depend on other pieces either, if it is not 0 */
  uint32_t shared_only;    /* as configured: n_tasks is the number of pieces; block_bytes ends before the spans, which items have told */
  uint32_t n_piece_blocks; /* with shared_only: blocks for each kv head that do the pieces, at most */
  uint32_t reserved;
} td_attention_header;

typedef enum td_attention_policy {
  TD_ATTENTION_UNIFIED,      /* all below, by predicted time */
  TD_ATTENTION_PAT,          /* packing by PAT's rule, tiles of 64; what is longer than the mean is split; ranges by pieces */
  TD_ATTENTION_PERSISTENTKV, /* no packing; every row in up to 32 pieces, by its own length; ranges by pieces */
  TD_ATTENTION_FLASHDECODE,  /* no packing; every row in as few pieces as give each worker two; ranges by pieces */
} td_attention_policy;

/* td_backend_config.attention: 0, "serial"; 1 + a policy; or TD_ATTENTION_UNIFIED's where the device and the model have it and in steps in
 * which that saves time, else 0. */
enum { TD_ATTENTION_AUTO = 1 + TD_ATTENTION_FLASHDECODE + 1 };

/* The same of the option's word; UINT32_MAX: no such word. */
uint32_t td_attention_of(const char *word);

/* What the device is good for, as one worker sees it when all are busy. td_attention_cost_of_h200 has defaults. */
typedef struct td_attention_cost {
  double memory_bytes_us; /* KV from memory */
  double l2_bytes_us;     /* KV that another worker has just read, and partials */
  double l2_bytes;        /* how much KV is such */
  double tensor_flop_us;  /* of 64 query rows and more */
  double start_us;        /* of a piece */
  double partial_us;      /* of each member's partial and head, beside its bytes: counting arrivals, the merge */
  double shared_range_us; /* a worker's range of shared spans is at least as long, or as its whole share: a turn has its begin */
  double alone_bytes_us;  /* KV that rows have in common, where each reads it by itself */
  double apart_us;        /* of a step that shares, whatever it shares, with shared_only: what it saves must be more */
  uint32_t unit_keys;     /* heads are cut at multiples of it, and no part is shorter; a power of two, at least 16 */
} td_attention_cost;

td_attention_cost td_attention_cost_of_h200(uint32_t n_workers);
td_attention_cost td_attention_cost_of_h200_apart(uint32_t n_workers); /* the same of shared spans alone */

typedef struct td_attention_planner_config {
  td_attention_policy policy;
  uint32_t max_rows;  /* decode rows of a step */
  uint32_t n_workers; /* blocks of the launch; shared_only: blocks that run at once */
  uint32_t n_kv_heads, group, head_dim, page_tokens;
  uint32_t window_tokens; /* 0: none. What lies before every window is not read; the kernel masks what its page holds */
  uint32_t tile_rows;     /* at most so many query rows in a span of several members: what the kernel has; at least group */
  uint32_t max_slots;     /* 0: as many as td_attention_slots_of says */
  uint32_t invariant_keys; /* not 0: what is done of a row depends on its length alone, not on the batch: no packing, pieces of
                              so many keys, or of twice, four times ... as many, so that they are at most
                              TD_ATTENTION_INVARIANT_PIECES; a multiple of 64 */
  bool shared_only; /* rows' own keys are items (kernels/cuda/attention_items.c): of TD_ATTENTION_UNIFIED, and without invariant_keys. Nothing
                       is shared where that is not worth its time */
  td_attention_cost cost;
} td_attention_planner_config;

/* What the last plan is. */
typedef struct td_attention_stats {
  uint64_t n_full, n_lazy; /* plans since create; of the lazy ones, */
  uint64_t n_cut;          /* cut anew */
  uint64_t n_unpacked;     /* of them, without packing because the slots would not have sufficed */
  double total_us;         /* predicted, of all workers together; of shared_only what is shared */
  double longest_us;       /* of the worker with most; of shared_only the longest piece */
} td_attention_stats;

/* What of a row no shared span has: its keys from `begin` on, a page's first. */
typedef struct td_attention_own {
  uint32_t begin;
  uint32_t member, first_source, n_sources; /* n_sources 0: it shares nothing; then begin is 0, whatever its window */
} td_attention_own;

typedef struct td_attention_planner td_attention_planner;

uint32_t td_attention_slots_default(uint32_t max_rows, uint32_t n_kv_heads, uint32_t n_workers);
/* What a planner of this config needs: the default, or, where pieces are fixed, as many as there can be, so that no batch lacks any;
 * of shared spans alone, for six levels. */
uint32_t td_attention_slots_of(const td_attention_planner_config *config);
/* With shared_only: pieces of one head, of any plan of n_rows rows. */
uint32_t td_attention_pieces_max(const td_attention_planner_config *config, uint32_t n_rows);
uint32_t td_attention_block_bytes_max(const td_attention_planner_config *config);

/* TD_ERR_CONFIG for a shape that no plan can have, naming it. */
TD_MUST_CHECK td_status td_attention_planner_create(const td_attention_planner_config *config, td_attention_planner **out,
                                                    td_error *err);
void td_attention_planner_destroy(td_attention_planner *p);

/* Plans the rows of q_len 1; others are left out. Where these are the rows of the plan before, grown by some tokens, only
 * lengths are made anew, and the cuts from time to time. A page id that two rows have at the same place means that they have all pages before
 * it in common: KV depends on all tokens before it, so no right page table is otherwise.
 * TD_ERR_CAPACITY: more rows than max_rows, partials than slots, or keys than there are page table entries; nothing was planned. */
TD_MUST_CHECK td_status td_attention_planner_make(td_attention_planner *p, const td_plan *plan, td_error *err);
void td_attention_planner_forget(td_attention_planner *p); /* the next plan is made from nothing */
/* Other costs from the next plan on. TD_ERR_CONFIG as create, and nothing has changed. */
TD_MUST_CHECK td_status td_attention_planner_set_cost(td_attention_planner *p, const td_attention_cost *cost, td_error *err);

td_attention_planner_config td_attention_planner_config_of(const td_attention_planner *p);
uint32_t td_attention_planner_block_bytes(const td_attention_planner *p); /* as large as a block can be */

/* Whether the last plan is the one before with other lengths: the same rows in the same order, sharing the same. */
bool td_attention_planner_has_grown(const td_attention_planner *p);

/* The last plan. Valid until the next one is made. */
const td_attention_header *td_attention_planner_block(const td_attention_planner *p);
td_attention_stats td_attention_planner_stats(const td_attention_planner *p); /* goes through the tasks: not for every step */

/* Of each of plan's rows; the last plan was made of them. own: [plan->n_rows]. */
void td_attention_planner_own(const td_attention_planner *p, const td_plan *plan, td_attention_own *own);

/* A partial of one query head in the device's memory: elements as f16 in units of the largest, then the softmax's maximum and sum, the unit,
 * and a word that fills 16 bytes. Half of what f32 takes. Its error is an eighth of the bf16 output's, for elements of less than 2^-14 of
 * the largest 2^-25 of that: as large as the output's at 2^-17. An infinite element makes all of its row NaN, which ends the request. */
#define TD_ATTENTION_PARTIAL_BYTES(head_dim) (2u * (head_dim) + 16)

static inline const uint32_t *td_attention_first_task(const td_attention_header *h) { return (const uint32_t *)(h + 1); }
static inline const void *td_attention_at(const td_attention_header *h, uint32_t at)
{
  return (const unsigned char *)h + at;
}

#endif
