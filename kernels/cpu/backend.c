/* Creates and destroys the CPU backend: memory, weights, KV store. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef TD_ISA_ARM64
#include <sys/auxv.h>
#endif

#include "common/checked.h"
#include "common/host_memory.h"
#include "config/limits.h"
#include "common/log.h"
#include "kernels/cpu/cpu.h"
#include "kernels/dummy.h"

/* All memory of a backend is in one list and is freed with it. It is mapped, so it is zero and takes no
 * physical memory until it is used. */
typedef struct cpu_block {
  struct cpu_block *next;
  void *data;
  size_t bytes;
} cpu_block;

void *td_cpu_alloc(cpu_backend *be, size_t count, size_t size)
{
  enum { HUGE_BYTES = 2 << 20 };
  size_t bytes;
  cpu_block *b = malloc(sizeof *b);
  if (!b || !td_mul_size(count, size, &bytes)) {
    free(b);
    return NULL;
  }
  bytes = bytes ? bytes : 1;
  b->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (b->data == MAP_FAILED) {
    free(b);
    return NULL;
  }
  if (bytes >= HUGE_BYTES)
    madvise(b->data, bytes, MADV_HUGEPAGE); /* only a hint, for fewer TLB misses */
  b->bytes = bytes;
  b->next = be->blocks;
  be->blocks = b;
  return b->data;
}

static void free_memory(cpu_backend *be, void *data)
{
  for (cpu_block **at = &be->blocks; *at; at = &(*at)->next)
    if ((*at)->data == data) {
      cpu_block *b = *at;
      *at = b->next;
      munmap(b->data, b->bytes);
      free(b);
      return;
    }
}

typedef struct range_job {
  cpu_range_fn *fn;
  void *arg;
  uint32_t n, per;
} range_job;

static void range_task(void *arg, uint32_t task, uint32_t thread)
{
  range_job *j = arg;
  uint32_t begin = task * j->per, end = j->n - begin < j->per ? j->n : begin + j->per;
  j->fn(j->arg, begin, end);
}

void td_cpu_for(cpu_backend *be, uint32_t n, uint32_t per, cpu_range_fn *fn, void *arg)
{
  range_job j = {fn, arg, n, per};
  td_thread_pool_run(be->pool, range_task, &j, (uint32_t)td_div_ceil_u64(n, per));
}

static void destroy(td_backend *b)
{
  cpu_backend *be = cpu_self(b);
  td_thread_pool_destroy(be->pool);
  td_sampler_cache_deinit(&be->cache);
  while (be->blocks)
    free_memory(be, be->blocks->data);
  free(be);
}

static td_status op_alloc(td_backend *be, size_t bytes, td_devptr *out, td_error *err)
{
  void *p = td_cpu_alloc(cpu_self(be), bytes, 1);
  if (!p)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a buffer of %zu bytes", bytes);
  out->addr = (uintptr_t)p;
  return TD_OK;
}

static td_status op_upload_f32(td_backend *be, const float *src, size_t n, td_devptr *out, td_error *err)
{
  float *p = td_cpu_alloc(cpu_self(be), n, sizeof *p);
  if (!p)
    return td_fail(err, TD_ERR_NOMEM, "no memory for %zu floats", n);
  if (n)
    memcpy(p, src, n * sizeof *p);
  out->addr = (uintptr_t)p;
  return TD_OK;
}

static td_status op_download(td_backend *be, td_devptr src, size_t bytes, void *dst, td_error *err)
{
  memcpy(dst, (const void *)src.addr, bytes);
  return TD_OK;
}

/* Replaces *buffer by one of n floats. Its contents are lost. */
static bool grow(cpu_backend *be, float **buffer, size_t n)
{
  if (*buffer)
    free_memory(be, *buffer);
  *buffer = td_cpu_alloc(be, n, sizeof(float));
  return *buffer != NULL;
}

static bool grow_rounded(cpu_backend *be, size_t n)
{
  if (n <= be->n_rounded)
    return true;
  if (be->rounded)
    free_memory(be, be->rounded);
  be->rounded = td_cpu_alloc(be, n, sizeof *be->rounded);
  be->n_rounded = be->rounded ? n : 0;
  return be->rounded != NULL;
}

/* Makes room for linears of this width: packed activations of the largest step, and a panel for each
 * thread. */
static td_status reserve_scratch(cpu_backend *be, uint32_t n_strips, td_error *err)
{
  const td_backend_config *c = &be->config;
  size_t tokens = c->max_tokens > c->max_rows ? c->max_tokens : c->max_rows;
  size_t panel = (size_t)n_strips * 32 * TD_ISA_PANEL_ROWS,
         packed = (tokens + be->isa->tile_tokens) * n_strips * 32;
  bool ok = !be->int8 || grow_rounded(be, tokens * n_strips);
  if (be->int8 && panel < n_strips * (size_t)be->int8->panel_bytes / sizeof(float))
    panel = n_strips * (size_t)be->int8->panel_bytes / sizeof(float);
  if (ok && packed > be->packed_floats) {
    ok = grow(be, &be->packed, packed);
    be->packed_floats = ok ? packed : 0;
  }
  if (ok && panel > be->panel_floats) {
    for (uint32_t i = 0; ok && i < td_thread_pool_threads(be->pool); i++)
      ok = grow(be, &be->panels[i], panel);
    be->panel_floats = ok ? panel : 0;
  }
  return ok ? TD_OK
            : td_fail(err, TD_ERR_NOMEM, "no memory for scratch of products of width %u", n_strips * 32);
}

typedef struct dummy_job {
  const td_weight_part *part;
  uint16_t *out;
  uint64_t n_cols;
} dummy_job;

static void fill_dummy_rows(void *arg, uint32_t begin, uint32_t end)
{
  dummy_job *j = arg;
  for (uint64_t r = begin; r < end; r++)
    for (uint64_t c = 0, at = td_weight_part_element(j->part, j->n_cols, r, 0); c < j->n_cols; c++)
      j->out[r * j->n_cols + c] = td_dummy_bf16(j->part->seed, at + c);
}

/* Makes a part of dummy weights. Only these take memory at import. */
static td_status make_dummy(cpu_backend *be, const td_weight_part *part, uint64_t n_cols, cpu_part *out,
                            td_error *err)
{
  dummy_job j = {.part = part, .n_cols = n_cols};
  if (part->dtype != TD_BF16)
    return td_fail(err, TD_ERR_MODEL, "made-up weights are BF16, not %s", td_dtypes[part->dtype].name);
  out->row_bytes = n_cols * sizeof *j.out;
  j.out = td_cpu_alloc(be, out->n_rows, out->row_bytes);
  if (!j.out)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a made-up weight of %u rows of %llu elements",
                   out->n_rows, (unsigned long long)n_cols);
  out->data = (const uint8_t *)j.out;
  td_cpu_for(be, out->n_rows, 64, fill_dummy_rows, &j);
  return TD_OK;
}

static td_status import_part(cpu_backend *be, const td_weight_part *part, uint64_t n_cols, cpu_part *out,
                             td_error *err)
{
  if ((unsigned)part->dtype >= TD_DTYPE_COUNT)
    return td_fail(err, TD_ERR_MODEL, "weight of unknown element type %d", (int)part->dtype);
  const td_dtype_info *d = &td_dtypes[part->dtype];
  uint64_t total, row_bytes;
  if (!td_dtype_row_bytes(part->dtype, n_cols, &row_bytes) ||
      !td_weight_part_stride(part, n_cols, &out->row_bytes))
    return td_fail(err, TD_ERR_MODEL, "rows of %llu elements do not fit %s's blocks of %u",
                   (unsigned long long)n_cols, d->name, d->block_elements);
  if (part->n_rows == 0 || part->n_rows > td_limit_max(TD_LIMIT_MODEL_VOCAB) ||
      !td_mul_u64(part->n_rows, out->row_bytes, &total) || total > SIZE_MAX / 2)
    return td_fail(err, TD_ERR_MODEL, "weight of %llu rows of %llu elements is out of bounds",
                   (unsigned long long)part->n_rows, (unsigned long long)n_cols);
  out->dtype = part->dtype;
  out->is_looked_up = part->is_looked_up;
  out->data = part->data;
  out->n_rows = (uint32_t)part->n_rows;
  out->bias = NULL;
  if (part->bias) {
    float *bias = td_cpu_alloc(be, out->n_rows, sizeof *bias);
    if (!bias)
      return td_fail(err, TD_ERR_NOMEM, "no memory for a bias of %u", out->n_rows);
    memcpy(bias, part->bias, out->n_rows * sizeof *bias);
    out->bias = bias;
  }
  return part->data ? TD_OK : make_dummy(be, part, n_cols, out, err);
}

/* Weights are used as they are stored, and widened to floats as they are multiplied. */
static td_weight_type op_weight_type(const td_backend *be, td_dtype stored)
{
  return (td_weight_type){.storage = stored,
                          .compute = TD_F32,
                          .scales =
                              td_dtypes[stored].block_elements > 1 ? TD_SCALES_PER_BLOCK : TD_SCALES_NONE};
}

static td_status op_weight_import(td_backend *b, const td_weight_part *parts, uint32_t n_parts,
                                  uint64_t n_cols, td_weight **out, td_error *err)
{
  cpu_backend *be = cpu_self(b);
  if (n_parts == 0 || n_parts > TD_WEIGHT_PARTS_MAX)
    return td_fail(err, TD_ERR_MODEL, "a weight of %u parts", n_parts);
  if (n_cols == 0 || n_cols > td_limit_max(TD_LIMIT_MODEL_WIDTH) * 2)
    return td_fail(err, TD_ERR_MODEL, "weight rows of %llu elements are out of bounds",
                   (unsigned long long)n_cols);
  td_cpu_weight *w = td_cpu_alloc(be, 1, sizeof *w);
  if (!w)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a weight");
  w->base = (td_weight){.n_in = (uint32_t)n_cols, .n_parts = n_parts, .shard = parts[0].shard};
  w->n_strips = (uint32_t)td_div_ceil_u64(n_cols, 32);
  for (uint32_t i = 0; i < n_parts; i++) {
    TD_TRY(import_part(be, &parts[i], n_cols, &w->parts[i], err));
    be->unpacked_bytes += parts[i].is_looked_up ? 0 : td_cpu_packed_bytes(be, &w->parts[i], w->n_strips);
    w->parts[i].first_out = w->base.n_out;
    w->base.n_out += w->parts[i].n_rows;
    w->base.types[i] = op_weight_type(b, parts[i].dtype);
    w->base.has_bias |= parts[i].bias != NULL;
  }
  TD_TRY(reserve_scratch(be, w->n_strips, err));
  *out = &w->base;
  return TD_OK;
}

static td_status op_weights_wait(td_backend *b, td_error *err) { return TD_OK; }

static uint32_t padded_dim(uint32_t head_dim) { return (head_dim + 7) / 8 * 8; }

/* Half of the memory that will be free when the weights are packed. The rest is for the page cache, which
 * holds the weights that are not packed, and for other work of the machine. */
static uint64_t op_kv_budget_bytes(const td_backend *b)
{
  uint64_t room = td_host_available_bytes(), packed = ((const cpu_backend *)b)->unpacked_bytes;
  return room > packed ? (room - packed) / 2 : 0;
}

static td_status op_kv_check(const td_backend *be, const td_kv_spec *s, td_error *err)
{
  for (uint32_t i = 0; i < s->n_groups; i++)
    if (s->groups[i].dtype != be->kv_dtype)
      return td_fail(err, TD_ERR_UNSUPPORTED, "the CPU backend keeps KV as %s, not %s",
                     td_dtypes[be->kv_dtype].name, td_dtypes[s->groups[i].dtype].name);
  return TD_OK;
}

static size_t group_bytes_per_page(const td_kv_spec *s, const td_kv_group *g)
{
  size_t elements = (size_t)s->page_tokens * (g->head_dim + padded_dim(g->head_dim));
  return elements * g->n_kv_heads * g->n_layers * td_dtypes[g->dtype].block_bytes;
}

static size_t op_kv_bytes_per_page(const td_backend *be, const td_kv_spec *s)
{
  size_t bytes = 0;
  for (uint32_t i = 0; i < s->n_groups; i++)
    bytes += group_bytes_per_page(s, &s->groups[i]);
  return bytes;
}

/* Attention's workspace is allocated with the backend. */
static size_t op_kv_fixed_bytes(const td_backend *be, const td_kv_spec *s) { return 0; }

static td_status make_kv_group(cpu_backend *be, const td_kv_spec *s, const td_kv_group *g, cpu_kv_group *out,
                               td_error *err)
{
  TD_BUG_ON(g->head_dim == 0 || g->head_dim > TD_HEAD_DIM_MAX || s->page_tokens % TD_KEY_LANES);
  out->padded_dim = padded_dim(g->head_dim);
  out->f16 = g->dtype == TD_F16;
  out->head_bytes =
      (uint64_t)s->page_tokens * (g->head_dim + out->padded_dim) * td_dtypes[g->dtype].block_bytes;
  out->layer_bytes = out->head_bytes * g->n_kv_heads;
  out->page_bytes = out->layer_bytes * g->n_layers;
  out->data = td_cpu_alloc(be, s->n_pages, group_bytes_per_page(s, g));
  if (!out->data)
    return td_fail(err, TD_ERR_NOMEM, "no memory for %u KV pages of %zu bytes", s->n_pages,
                   group_bytes_per_page(s, g));
  return TD_OK;
}

static void op_kv_destroy(td_backend *b, td_kv *kv)
{
  cpu_backend *be = cpu_self(b);
  for (uint32_t i = 0; i < kv->spec.n_groups; i++)
    free_memory(be, ((td_cpu_kv *)kv)->groups[i].data);
  free_memory(be, kv);
}

static td_status op_kv_create(td_backend *b, const td_kv_spec *s, td_kv **out, td_error *err)
{
  cpu_backend *be = cpu_self(b);
  TD_BUG_ON(s->n_groups == 0 || s->n_groups > TD_KV_GROUPS_MAX);
  TD_TRY(op_kv_check(b, s, err));
  td_cpu_kv *kv = td_cpu_alloc(be, 1, sizeof *kv);
  if (!kv)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a KV store");
  kv->base.spec = *s;
  td_status st = TD_OK;
  for (uint32_t i = 0; i < s->n_groups && st == TD_OK; i++)
    st = make_kv_group(be, s, &s->groups[i], &kv->groups[i], err);
  if (st != TD_OK)
    op_kv_destroy(b, &kv->base);
  else
    *out = &kv->base;
  return st;
}

static void op_set_sampling(td_backend *b, uint32_t slot, const td_sampling *sampling)
{
  cpu_backend *be = cpu_self(b);
  TD_BUG_ON(slot >= be->config.max_slots);
  be->sampling[slot] = *sampling;
  td_sampler_cache_release(&be->cache, slot);
}

static void op_prepare_slot(td_backend *b, uint32_t slot, const td_sampling *sampling,
                            const td_sample_history *history)
{
  cpu_backend *be = cpu_self(b);
  uint32_t index, evicted_slot;
  if (td_sampler_cache_acquire(&be->cache, slot, &index, &evicted_slot))
    td_sample_state_make(sampling, history, be->config.max_vocab, &be->states[index],
                         be->words + (size_t)index * be->config.max_vocab);
}

static const td_backend_ops cpu_ops = {
    .name = "cpu",
    .destroy = destroy,
    .alloc = op_alloc,
    .upload_f32 = op_upload_f32,
    .download = op_download,
    .weight_type = op_weight_type,
    .weight_import = op_weight_import,
    .weights_wait = op_weights_wait,
    .kv_check = op_kv_check,
    .kv_fixed_bytes = op_kv_fixed_bytes,
    .kv_bytes_per_page = op_kv_bytes_per_page,
    .kv_budget_bytes = op_kv_budget_bytes,
    .kv_create = op_kv_create,
    .kv_destroy = op_kv_destroy,
    .set_sampling = op_set_sampling,
    .prepare_slot = op_prepare_slot,
    .compile = td_cpu_compile,
    .discard = td_cpu_discard,
    .submit = td_cpu_submit,
    .sample = td_cpu_sample_step,
    .wait = td_cpu_wait,
};

/* The host is the device, so planning a step ahead gains nothing. Tests use TANDEM_PIPELINE=2 for a depth of
 * 2 anyway. */
static uint32_t pipeline_depth(void)
{
  const char *want = getenv("TANDEM_PIPELINE");
  return want && strcmp(want, "2") == 0 ? 2 : 1;
}

/* Picks the best instruction set of this machine, or the one that TANDEM_ISA names (tests compare them). */
static td_status pick_isa(const td_isa **out, td_error *err)
{
  const char *want = getenv("TANDEM_ISA");
  const td_isa *usable[3];
  uint32_t n = 0;
#ifdef TD_ISA_X86
  __builtin_cpu_init();
  /* not every compiler knows "f16c" here, but every CPU with AVX2 has it */
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#ifdef TD_ISA_AVX512
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
    usable[n++] = &td_isa_avx512;
#endif
  if (avx2)
    usable[n++] = &td_isa_avx2;
#endif
#ifdef TD_ISA_ARM64
  usable[n++] = &td_isa_neon;
#endif
  usable[n++] = &td_isa_scalar;
  for (uint32_t i = 0; i < n; i++)
    if (!want || strcmp(want, usable[i]->name) == 0) {
      *out = usable[i];
#ifdef TD_ISA_X86 /* on x86, the scalar code is compiled without optimisation, for tests only */
      if (*out == &td_isa_scalar && !want)
        td_warn("this CPU has no AVX2: tandem is very slow here");
#endif
      return TD_OK;
    }
  return td_fail(err, TD_ERR_CONFIG, "TANDEM_ISA=%s: not an instruction set of this machine", want);
}

#ifdef TD_ISA_ARM64
bool td_has_dotprod(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
#endif

/* Picks the int8 linears for an instruction set. Those of AVX-512 need VNNI. */
static const td_int8 *pick_int8(const td_isa *isa)
{
#ifdef TD_ISA_ARM64
  if (isa != &td_isa_scalar)
    return td_has_dotprod() ? &td_int8_dotprod : &td_int8_neon;
#endif
#ifdef TD_ISA_X86
#ifdef TD_ISA_AVX512
  if (isa == &td_isa_avx512 && __builtin_cpu_supports("avx512vnni"))
    return &td_int8_avx512;
#endif
  if (isa != &td_isa_scalar)
    return &td_int8_avx2;
#endif
  (void)isa;
  return &td_int8_scalar;
}

static bool alloc_outcome(cpu_backend *be, cpu_outcome *o)
{
  uint32_t n = be->base.max_logits;
  o->ids = td_cpu_alloc(be, n, TD_STEP_IDS * sizeof *o->ids);
  o->n_ids = td_cpu_alloc(be, n, sizeof *o->n_ids);
  o->flags = td_cpu_alloc(be, n, sizeof *o->flags);
  o->logprobs = td_cpu_alloc(be, n, TD_STEP_IDS * sizeof *o->logprobs);
  o->top = td_cpu_alloc(be, n, TD_TOP_TOKENS_MAX * sizeof *o->top);
  return o->ids && o->n_ids && o->flags && o->logprobs && o->top;
}

static bool alloc_workspace(cpu_backend *be)
{
  const td_backend_config *c = &be->config;
  uint32_t n_threads = td_thread_pool_threads(be->pool);
  be->sampling = td_cpu_alloc(be, c->max_slots, sizeof *be->sampling);
  be->states = td_cpu_alloc(be, c->max_rows, sizeof *be->states);
  be->words = td_cpu_alloc(be, c->max_rows, c->max_vocab * sizeof *be->words);
  be->token_row = td_cpu_alloc(be, c->max_tokens, sizeof *be->token_row);
  be->token_ids = td_cpu_alloc(be, c->max_tokens, sizeof *be->token_ids);
  be->rope.cos_sin = td_cpu_alloc(be, (size_t)c->max_tokens * TD_HEAD_DIM_MAX, sizeof(float));
  be->panels = td_cpu_alloc(be, n_threads, sizeof *be->panels);
  be->items = td_cpu_alloc(be, CPU_ITEMS, sizeof *be->items);
  be->split_items = td_cpu_alloc(be, CPU_ITEMS, sizeof *be->split_items);
  be->partial_state = td_cpu_alloc(be, CPU_PARTIALS, sizeof *be->partial_state);
  be->partial_out = td_cpu_alloc(be, CPU_PARTIALS, TD_HEAD_DIM_MAX * sizeof(float));
  be->sampler = td_cpu_alloc(be, n_threads, sizeof *be->sampler);
  bool ok = be->sampling && be->token_row && be->token_ids && alloc_outcome(be, &be->outcomes[0]) &&
            alloc_outcome(be, &be->outcomes[1]) && be->rope.cos_sin && be->panels && be->items &&
            be->split_items && be->partial_state && be->partial_out && be->sampler && be->states && be->words;
  for (uint32_t i = 0; ok && i < n_threads; i++) {
    cpu_sampler_scratch *s = &be->sampler[i];
    s->weights = td_cpu_alloc(be, c->max_vocab, sizeof *s->weights);
    s->keys = td_cpu_alloc(be, c->max_vocab, sizeof *s->keys);
    s->key_weights = td_cpu_alloc(be, c->max_vocab, sizeof *s->key_weights);
    s->adjusted = td_cpu_alloc(be, c->max_vocab, sizeof *s->adjusted);
    ok = s->weights && s->keys && s->key_weights && s->adjusted;
  }
  return ok;
}

/* "AMD EPYC 7763 64-Core Processor, avx2, 8 threads"; with int8 activations and f16 KV "..., avx2 int8 f16,
 * ..." */
static void identify(cpu_backend *be)
{
  char line[256], model[160] = "a CPU";
  FILE *f = fopen("/proc/cpuinfo", "re");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "model name : %159[^\n]", model) == 1)
      break;
  if (f)
    fclose(f);
  snprintf(be->base.identity, sizeof be->base.identity, "%s, %s%s, %u threads", model, be->isa->name,
           be->int8 ? " int8 f16" : "", td_thread_pool_threads(be->pool));
}

/* Millions of operations per microsecond of one thread, by instruction set. Bytes per microsecond: of one
 * thread, and of the memory for all threads. */
#define SCALAR_MFLOP_US 0.006
#define AVX2_MFLOP_US 0.064
#define AVX512_MFLOP_US 0.09
#define NEON_MFLOP_US 0.02 /* a guess: no such machine was measured */
#define INT8_TIMES 2.5     /* speed of int8 linears over float linears */
#define THREAD_BYTES_US 8e3
#define MEMORY_BYTES_US 60e3

static void estimate_rates(cpu_backend *be)
{
  double n_threads = td_thread_pool_threads(be->pool);
  const char *isa = be->isa->name;
  double mflop_us = strcmp(isa, "avx512") == 0 ? AVX512_MFLOP_US
                    : strcmp(isa, "avx2") == 0 ? AVX2_MFLOP_US
                    : strcmp(isa, "neon") == 0 ? NEON_MFLOP_US
                                               : SCALAR_MFLOP_US;
  be->base.flop_us = 1e6 * mflop_us * n_threads * (be->int8 ? INT8_TIMES : 1);
  be->base.bytes_us = fmin(THREAD_BYTES_US * n_threads, MEMORY_BYTES_US);
}

td_status td_cpu_backend_create(const td_backend_config *config, td_backend **out, td_error *err)
{
  const td_isa *isa = NULL;
  TD_TRY(pick_isa(&isa, err));
  cpu_backend *be = calloc(1, sizeof *be);
  if (!be)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the CPU backend");
  be->base.ops = &cpu_ops;
  be->base.activation_bytes = sizeof(float);
  be->base.kv_dtype = config->int8_activations ? TD_F16 : TD_F32; /* README.md gives its cost */
  be->config = *config;
  /* Small steps: a chunk of 128 tokens keeps the cores as busy as one of 512, and running streams wait a
   * quarter of the time. */
  td_backend_choose_sizes(&be->config, 64, 128);
  be->base.pipeline_depth = pipeline_depth();
  be->base.max_rows = be->config.max_rows;
  be->base.max_tokens = be->config.max_tokens;
  be->base.max_logits = be->config.max_rows + be->config.prompt_logits;
  be->base.rank = be->config.rank;
  be->base.n_ranks = be->config.n_ranks;
  be->isa = isa;
  be->int8 = config->int8_activations ? pick_int8(isa) : NULL;
  be->base.sampling_bytes = td_sampler_state_bytes(be->config.max_vocab) * be->config.max_rows;
  td_status st = td_thread_pool_create(config->n_threads, &be->pool, err);
  if (st == TD_OK)
    st = td_sampler_cache_init(&be->cache, be->config.max_slots, be->config.max_rows, err);
  if (st == TD_OK && !alloc_workspace(be))
    st = td_fail(err, TD_ERR_NOMEM, "no memory for the CPU backend's workspace");
  if (st != TD_OK) {
    destroy(&be->base);
    return st;
  }
  identify(be);
  estimate_rates(be);
  *out = &be->base;
  return TD_OK;
}
