/* The CPU backend's own state, shared by its files: backend.c (create, destroy, memory), step.c (programs and
 * steps), op_*.c (one family of ops each). */
#ifndef TD_KERNELS_CPU_CPU_H
#define TD_KERNELS_CPU_CPU_H

#include "kernels/cpu/int8.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/sampler_cache.h"

TD_MUST_CHECK td_status td_cpu_backend_create(const td_backend_config *config, td_backend **out,
                                              td_error *err);

typedef struct cpu_part {
  td_dtype dtype;
  bool is_looked_up; /* no linear uses it, so it is never packed */
  const uint8_t *data;
  uint64_t row_bytes;         /* from one row to the next */
  const uint8_t *packed;      /* packed for int8 linears (td_int8_pack); NULL: not yet, or never */
  uint32_t n_rows, first_out; /* first_out: its first output feature */
  const float *bias;
} cpu_part;

/* What a td_weight * points to. */
typedef struct td_cpu_weight {
  td_weight base;
  uint32_t n_strips; /* strips of 32 columns, the last one padded */
  cpu_part parts[TD_WEIGHT_PARTS_MAX];
} td_cpu_weight;

static inline const td_cpu_weight *cpu_weight(const td_weight *w) { return (const td_cpu_weight *)w; }

/* KV of a group: [page][layer][kv head][K: page_tokens/16 groups of [dim][16] | V:
 * [page_tokens][padded_dim]] */
typedef struct cpu_kv_group {
  uint32_t padded_dim;
  bool f16; /* elements are f16; otherwise floats */
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

/* One call of the attention loops: a few query tokens of a row, some heads of one kv head, a run of key
 * segments. */
typedef struct cpu_attention_item {
  uint32_t row, first_token, n_tokens;   /* first_token: within the row */
  uint32_t kv_head, first_head, n_heads; /* first_head: within the GQA group */
  uint32_t segment_begin, segment_end;
  uint32_t partial; /* index of the first query's partial, or CPU_NO_PARTIAL */
} cpu_attention_item;
#define CPU_NO_PARTIAL UINT32_MAX

enum {
  CPU_ITEMS = 4096,    /* most attention items that run together */
  CPU_PARTIALS = 4096, /* most partials (query x segment) of a split attention */
};

typedef struct cpu_rope_table {
  uintptr_t inv_freq; /* whose table this is; 0: none yet in this step */
  float attn_factor;
  uint32_t n_pairs;
  float *cos_sin; /* [token][cos n_pairs | sin n_pairs] */
} cpu_rope_table;

typedef struct cpu_sampler_scratch {
  uint32_t *weights, *keys, *key_weights; /* [max_vocab] each */
  float *adjusted;                        /* [max_vocab] adjusted logits of a special row */
} cpu_sampler_scratch;

/* The arrays that td_outcome points to, for one step. */
typedef struct cpu_outcome {
  uint32_t n_logits;
  int32_t *ids;               /* [max_logits][TD_STEP_IDS] 0 if nothing was chosen */
  uint8_t *n_ids;             /* [max_logits] */
  uint8_t *flags;             /* [max_logits] */
  td_token_logprob *logprobs; /* [max_logits][TD_STEP_IDS] */
  bool has_logprobs;
  td_top_token *top; /* [max_logits][top_stride] */
  uint32_t top_stride;
} cpu_outcome;

typedef struct cpu_backend {
  td_backend base; /* must be first: a td_backend * is a cpu_backend * */
  td_backend_config config;
  const td_isa *isa;
  const td_int8 *int8; /* linears with int8 activations; NULL: all linears are exact */
  td_thread_pool *pool;
  struct cpu_block *blocks;     /* list of all memory */
  td_sampling *sampling;        /* [max_slots] */
  td_sampler_cache cache;       /* which slot has which entry of states and words */
  td_sample_state *states;      /* [max_rows] */
  uint16_t *words;              /* [max_rows][max_vocab] */
  const td_plan *plan;          /* the current step's */
  uint32_t *token_row;          /* [max_tokens] each token's row of the plan */
  int32_t *token_ids;           /* [max_tokens] of the step, with the ids that the previous step sampled */
  cpu_outcome outcomes[2];      /* of the last two steps; sampling writes the current step's */
  uint32_t n_sampled, n_ended;  /* steps so far; outcomes[n % 2] belongs to step n */
  const td_sample_input *input; /* the current step's sampling input, or NULL */
  cpu_rope_table rope;
  cpu_sampler_scratch *sampler; /* [threads] */
  /* Scratch of linears. It grows when a weight is imported. */
  float *packed; /* packed or padded activations */
  size_t packed_floats;
  td_int8_strip *rounded; /* activations rounded to int8 */
  size_t n_rounded;
  float **panels; /* [threads] */
  size_t panel_floats;
  cpu_attention_item *items, *split_items; /* [CPU_ITEMS] each */
  td_isa_softmax *partial_state;           /* [CPU_PARTIALS] */
  float *partial_out;                      /* [CPU_PARTIALS][TD_HEAD_DIM_MAX] */
  /* Packed weights: bytes that the weights imported so far still need; room left in the block for packed
   * weights, and its next free byte. */
  uint64_t unpacked_bytes, pack_room;
  uint8_t *pack_next;
} cpu_backend;

/* The outcome of the step that is being sampled, and that of the step before. */
static inline cpu_outcome *cpu_outcome_current(cpu_backend *be) { return &be->outcomes[be->n_sampled % 2]; }
static inline cpu_outcome *cpu_outcome_previous(cpu_backend *be)
{
  return &be->outcomes[(be->n_sampled + 1) % 2];
}

static inline cpu_backend *cpu_self(td_backend *be) { return (cpu_backend *)be; }
static inline float *cpu_floats(td_devptr p) { return (float *)p.addr; }

/* Returns zeroed memory, aligned to 64 bytes and freed with the backend. NULL if there is none. */
void *td_cpu_alloc(cpu_backend *be, size_t count, size_t size);

/* Runs fn on items [0, n), in tasks of `per` items. */
typedef void cpu_range_fn(void *arg, uint32_t begin, uint32_t end);
void td_cpu_for(cpu_backend *be, uint32_t n, uint32_t per, cpu_range_fn *fn, void *arg);

/* Sine and cosine of a float angle, the same on every machine. */
void td_trig_sincos(float angle, float *sine, float *cosine);

/* Runs one op of the current step. n_rows: the rows of its extent. */
#define TD_OP(KIND, name) void td_cpu_##name(cpu_backend *be, const td_##name##_params *p, uint32_t n_rows);
#define TD_PASS_OP(KIND, name)
#include "kernels/ops.def"

/* op_linear.c: bytes that the part takes when it is packed; 0 if it is never packed. */
uint64_t td_cpu_packed_bytes(const cpu_backend *be, const cpu_part *part, uint32_t n_strips);
/* Packs a weight. Call it before a program runs that has a linear with this weight. */
TD_MUST_CHECK td_status td_cpu_pack_weight(cpu_backend *be, const td_weight *weight, td_error *err);

/* op_logprob.c: log-probabilities of token `id` and of the n_top likeliest (top[]) in a row of logits. They
 * are NaN if the row is bad. */
void td_cpu_logprobs(const td_isa *isa, const float *logits, uint32_t n, int32_t id, uint32_t n_top,
                     td_token_logprob *out, td_top_token *top);

/* step.c */
td_status td_cpu_compile(td_backend *b, const td_program *program, td_compiled **out, td_error *err);
void td_cpu_discard(td_backend *b, td_compiled *compiled);
void td_cpu_submit(td_backend *b, td_compiled *forward, const td_plan *plan);
void td_cpu_sample_step(td_backend *b, td_compiled *sampling, const td_sample_input *input);
td_status td_cpu_wait(td_backend *b, td_outcome *out, td_error *err);

#endif
