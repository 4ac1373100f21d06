/* The CPU backend's own state, shared by its files: backend.c (life, memory), step.c (programs and steps),
 * op_*.c (one op family each). */
#ifndef TD_KERNELS_CPU_CPU_H
#define TD_KERNELS_CPU_CPU_H

#include "kernels/cpu/int8.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "kernels/sampler_cache.h"

TD_MUST_CHECK td_status td_cpu_backend_create(const td_backend_config *config, td_backend **out,
                                              td_error *err);

typedef struct cpu_part {
  td_dtype dtype;
  bool is_looked_up; /* never multiplied, so never packed */
  const uint8_t *data;
  uint64_t row_bytes;         /* from one row to the next */
  const uint8_t *packed;      /* for linears of int8 activations (td_int8_pack); NULL: not yet, or never */
  uint32_t n_rows, first_out; /* first output feature */
  const float *bias;
} cpu_part;

/* What a td_weight * points to. */
typedef struct td_cpu_weight {
  td_weight base;
  uint32_t n_strips; /* 32 columns each, the last one padded */
  cpu_part parts[TD_WEIGHT_PARTS_MAX];
} td_cpu_weight;

static inline const td_cpu_weight *cpu_weight(const td_weight *w) { return (const td_cpu_weight *)w; }

/* KV of a group: [page][layer][kv head][K: page_tokens/16 groups of [dim][16] | V: [page_tokens][padded_dim]]
 */
typedef struct cpu_kv_group {
  uint32_t padded_dim;
  bool f16; /* elements; else floats */
  uint64_t head_bytes, page_bytes, layer_bytes;
  uint8_t *data;
} cpu_kv_group;

/* What a td_kv * points to. */
typedef struct td_cpu_kv {
  td_kv base;
  cpu_kv_group groups[TD_KV_GROUPS_MAX];
} td_cpu_kv;

static inline const cpu_kv_group *cpu_kv_group_of(const td_kv *kv, uint32_t group)
{
  return &((const td_cpu_kv *)kv)->groups[group];
}

/* One call of the attention loops: a few query tokens of a row, heads of one kv head, a run of segments. */
typedef struct cpu_attention_item {
  uint32_t row, first_token, n_tokens;   /* token within the row */
  uint32_t kv_head, first_head, n_heads; /* head within the group */
  uint32_t segment_begin, segment_end;
  uint32_t partial; /* first partial query, or CPU_NO_PARTIAL */
} cpu_attention_item;
#define CPU_NO_PARTIAL UINT32_MAX

enum {
  CPU_ITEMS = 4096,    /* attention items run together */
  CPU_PARTIALS = 4096, /* partial results (query x segment) of a split attention */
};

typedef struct cpu_rope_table {
  uintptr_t inv_freq; /* what the table was made for; 0: nothing yet in this step */
  float attn_factor;
  uint32_t n_pairs;
  float *cos_sin; /* [token][cos n_pairs | sin n_pairs] */
} cpu_rope_table;

typedef struct cpu_sampler_space {
  uint32_t *weights, *keys, *key_weights; /* [max_vocab] each */
  float *adjusted;                        /* [max_vocab] a special row's logits */
} cpu_sampler_space;

/* What td_outcome points to, of one step. */
typedef struct cpu_outcome {
  uint32_t n_logits;
  int32_t *ids;               /* [max_logits][TD_STEP_IDS] 0 where nothing was chosen */
  uint8_t *n_ids;             /* [max_logits] */
  uint8_t *flags;             /* [max_logits] */
  td_token_logprob *logprobs; /* [max_logits][TD_STEP_IDS] */
  bool has_logprobs;
  td_top_token *top; /* [max_logits][top_stride] */
  uint32_t top_stride;
} cpu_outcome;

typedef struct cpu_backend {
  td_backend base; /* first: td_backend * is cpu_backend * */
  td_backend_config config;
  const td_isa *isa;
  const td_int8 *int8; /* products with int8 activations; NULL: all are exact */
  td_pool *pool;
  struct cpu_block *blocks;     /* all memory */
  td_sampling *sampling;        /* [max_slots] */
  td_sampler_cache cache;       /* who has the next two */
  td_sample_state *states;      /* [max_rows] */
  uint16_t *words;              /* [max_rows][max_vocab] */
  const td_plan *plan;          /* of the current step */
  uint32_t *token_row;          /* [max_tokens] row of each token */
  int32_t *token_ids;           /* [max_tokens] of the step, those that the last one sampled filled in */
  cpu_outcome outcomes[2];      /* of steps, taking turns; a step's is written as it is sampled */
  uint32_t n_sampled, n_ended;  /* steps so far; outcomes[n % 2] is of the n-th */
  const td_sample_input *input; /* of the current step's sampling, or NULL */
  cpu_rope_table rope;
  cpu_sampler_space *sampler; /* [threads] */
  /* Scratch of linear, grown when a weight is imported. */
  float *packed; /* packed or padded activations */
  size_t packed_floats;
  td_int8_strip *rounded; /* activations as int8 */
  size_t n_rounded;
  float **panels; /* [threads] */
  size_t panel_floats;
  cpu_attention_item *items, *split_items; /* [CPU_ITEMS] each */
  td_isa_softmax *partial_state;           /* [CPU_PARTIALS] */
  float *partial_out;                      /* [CPU_PARTIALS][TD_HEAD_DIM_MAX] */
  /* Packed weights: what those imported so far would still take; where the next part goes, and the room. */
  uint64_t unpacked_bytes, pack_room;
  uint8_t *pack_next;
} cpu_backend;

/* Of the step that is being sampled; of the one before. */
static inline cpu_outcome *cpu_outcome_now(cpu_backend *be) { return &be->outcomes[be->n_sampled % 2]; }
static inline cpu_outcome *cpu_outcome_before(cpu_backend *be)
{
  return &be->outcomes[(be->n_sampled + 1) % 2];
}

static inline cpu_backend *cpu_self(td_backend *be) { return (cpu_backend *)be; }
static inline float *cpu_floats(td_devptr p) { return (float *)p.addr; }

/* Zeroed, 64-byte aligned, freed with the backend; NULL when there is no memory. */
void *td_cpu_alloc(cpu_backend *be, size_t count, size_t size);

/* Runs fn on [0, n) items in tasks of `per` items; below `serial` items on the caller alone. */
typedef void cpu_range_fn(void *arg, uint32_t begin, uint32_t end);
void td_cpu_for(cpu_backend *be, uint32_t n, uint32_t per, cpu_range_fn *fn, void *arg);

/* Sine and cosine of a float angle, the same on every machine. */
void td_trig_sincos(float angle, float *sine, float *cosine);

/* One op of the current step, of n rows where its params do not say how many. */
#define TD_OP(KIND, name) void td_cpu_##name(cpu_backend *be, const td_##name##_params *p, uint32_t n_rows);
#define TD_PASS_OP(KIND, name)
#include "kernels/ops.def"

/* op_linear.c: what packing takes, 0 where the part is not packed. */
uint64_t td_cpu_packed_bytes(const cpu_backend *be, const cpu_part *part, uint32_t n_strips);
/* Before a program runs that multiplies by this weight. */
TD_MUST_CHECK td_status td_cpu_pack_weight(cpu_backend *be, const td_weight *weight, td_error *err);

/* op_logprob.c: of token id, and of the n_top likeliest (top[]), of one row of logits. A bad row's are NaN.
 */
void td_cpu_logprobs(const td_isa *isa, const float *logits, uint32_t n, int32_t id, uint32_t n_top,
                     td_token_logprob *out, td_top_token *top);

/* step.c */
td_status td_cpu_compile(td_backend *b, const td_program *program, td_compiled **out, td_error *err);
void td_cpu_discard(td_backend *b, td_compiled *compiled);
void td_cpu_submit(td_backend *b, td_compiled *forward, const td_plan *plan);
void td_cpu_sample_step(td_backend *b, td_compiled *sampling, const td_sample_input *input);
td_status td_cpu_wait(td_backend *b, td_outcome *out, td_error *err);

#endif
