// How a block of attention_unified.cu goes through its tasks of a plan (kernels/attention/plan.h), and the merge: partials of a row's
// pieces, counts of their arrival, and their sum by whoever comes last, in the order of keys.
#pragma once

#include "kernels/cuda/attention_partials.cuh"
#include "kernels/cuda/attention_ring.cuh"

enum {
  UNIFIED_WARPS = 8, // that compute
  UNIFIED_THREADS = WG + UNIFIED_WARPS * 32,
  COMPUTE_THREADS = UNIFIED_WARPS * 32,
  PRODUCER_REGISTERS_U = 40,
  COMPUTE_REGISTERS_U = 232,
  SLICE_KEYS = 16,
  SMALL_ROWS = 16, // query rows of a task that is bound by bytes
  SUM_ROWS = 4,    // that the warps of a block sum at once
  TILE_ROWS = TD_ATTENTION_TILE_ROWS_MAX,
  TASKS_AT_HAND = 32,
  SHORT_KEYS = 64,  // always short
  PIECES_EACH = 3,  // or so short that every warp has so many of them
};

struct unified_args {
  attention_args a;
  const unsigned char *plan; // the block
  unsigned char *partials;   // [slots][group] of TD_ATTENTION_PARTIAL_BYTES
  uint32_t *arrived;         // [members][kv heads], zero between launches
};

#ifdef TD_HAS_WGMMA
// What all threads of a block know.
struct block_plan {
  const td_attention_header *h;
  const td_attention_task *tasks;
  const td_attention_span *spans;
  const td_attention_member *members;
  const uint32_t *sources;
  const td_attention_task *at_hand; // copies of tasks [first, first + TASKS_AT_HAND)
  uint32_t first, end;              // this block's tasks, of shared spans or of rows' own

  __device__ __forceinline__ const td_attention_task &task(uint32_t t) const
  {
    return t - first < TASKS_AT_HAND ? at_hand[t - first] : tasks[t];
  }
  __device__ __forceinline__ bool is_small(uint32_t t, uint32_t group) const { return task(t).n_members * group <= SMALL_ROWS; }
};

// A piece: keys [begin, end) of a head of task t.
struct piece_at {
  uint32_t t, head, begin, end, number; // counted in the run of tasks
};

__device__ __forceinline__ uint32_t piece_end(const td_attention_task &k, uint32_t head, uint32_t begin)
{
  uint32_t end = head == k.end_head ? k.end_key : k.n_keys, chunk = k.chunk16 * 16u;
  return chunk > 0 ? min(end, begin / chunk * chunk + chunk) : end;
}

__device__ __forceinline__ piece_at first_piece(const block_plan &bp, uint32_t t)
{
  const td_attention_task &k = bp.task(t);
  return {t, k.begin_head, k.begin_key, piece_end(k, k.begin_head, k.begin_key), 0};
}

// The piece after p among tasks before t_end; its t is t_end if there is none.
__device__ __forceinline__ piece_at piece_after(const block_plan &bp, const piece_at &p, uint32_t t_end)
{
  const td_attention_task &k = bp.task(p.t);
  uint32_t head = p.head + (p.end == k.n_keys), begin = p.end == k.n_keys ? 0 : p.end;
  if (head < k.end_head || (head == k.end_head && begin < k.end_key))
    return {p.t, head, begin, piece_end(k, head, begin), p.number + 1};
  if (p.t + 1 >= t_end)
    return {t_end, 0, 0, 0, 0};
  piece_at next = first_piece(bp, p.t + 1);
  next.number = p.number + 1;
  return next;
}

// Partial of the task's first member, or TD_ATTENTION_DIRECT: the piece is all that its row has of the head.
__device__ __forceinline__ uint32_t slot_of(const td_attention_task &k, const piece_at &p)
{
  uint32_t chunk = k.chunk16 * 16u;
  if (k.slot == TD_ATTENTION_DIRECT || (!k.shared && p.end - p.begin == k.n_keys))
    return TD_ATTENTION_DIRECT;
  return k.slot + (chunk > 0 ? p.head * ((k.n_keys + chunk - 1) / chunk) + p.begin / chunk : p.head) * k.n_members;
}

__device__ __forceinline__ void sync_compute() { named_sync(5, COMPUTE_THREADS); }

// ---- the merge ----

// Sums of N query heads of a group, a lane's elements of each; partials are added in their order.
template <int HD, int N> struct merger {
  static constexpr int PER_LANE = HD / 32;
  float m[N], l[N], o[N][PER_LANE];

  // n partials, `stride` heads' apart, of which heads 0 .. n_heads - 1 are wanted.
  __device__ __forceinline__ void add(unsigned char *part, uint32_t n, size_t stride, uint32_t n_heads)
  {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll 2
    for (uint32_t i = 0; i < n; i++) {
      partial_end end[N];
      float po[N][PER_LANE];
#pragma unroll
      for (int g = 0; g < N; g++) {
        const unsigned char *r = partial_at<HD>(part, i * stride + min((uint32_t)g, n_heads - 1));
        end[g] = end_of<HD>(r);
#pragma unroll
        for (int k = 0; k < PER_LANE; k++)
          po[g][k] = element_of(r, k * 32 + lane);
      }
#pragma unroll
      for (int g = 0; g < N; g++) {
        float f, w;
        fold_factors(&m[g], end[g].m, &f, &w);
        l[g] = fold(l[g], f, end[g].l, w);
        w = __fmul_rn(w, end[g].unit);
#pragma unroll
        for (int k = 0; k < PER_LANE; k++)
          o[g][k] = fold(o[g][k], f, po[g][k], w);
      }
    }
  }
};

// The output of N query heads, from g0 on, of a member and kv head.
template <int HD, int N>
__device__ __forceinline__ void merge_member(const unified_args &u, const block_plan &bp, uint32_t member, uint32_t head, uint32_t g0)
{
  constexpr int PER_LANE = HD / 32;
  const td_attention_member mem = bp.members[member];
  uint32_t n_heads = min((uint32_t)N, u.a.group - g0);
  merger<HD, N> sum = {};
#pragma unroll
  for (int g = 0; g < N; g++)
    sum.m[g] = -INFINITY;
  for (uint32_t i = 0; i <= mem.n_sources; i++) {
    uint32_t span = i < mem.n_sources ? bp.sources[mem.first_source + i] : bp.h->n_shared_spans + member;
    partial_run run = partials_of(bp.spans, bp.tasks, span, member, head);
    sum.add(partial_at<HD>(u.partials, (size_t)run.first * u.a.group + g0), run.n, (size_t)run.step * u.a.group, n_heads);
  }
  bf16 *dst = u.a.out + ((size_t)mem.token * u.a.n_heads + head * u.a.group + g0) * HD;
#pragma unroll
  for (int g = 0; g < N; g++)
    if (g < n_heads)
#pragma unroll
      for (int k = 0; k < PER_LANE; k++)
        dst[g * HD + k * 32 + threadIdx.x % 32] = __float2bfloat16(divided(sum.o[g][k], sum.l[g]));
}

// Counts a piece's keys for a member that has n_keys; true: all are there now.
__device__ __forceinline__ bool completes(const unified_args &u, uint32_t member, uint32_t n_keys, const piece_at &p)
{
  uint32_t *n = u.arrived + member * u.a.n_kv_heads + p.head;
  if (atomicAdd(n, p.end - p.begin) + p.end - p.begin != n_keys)
    return false;
  *n = 0;
  return true;
}

// A piece's partials are written: counts them for each member, and merges what is complete now. By all that compute.
template <int HD>
__device__ __forceinline__ void arrive_and_merge(const unified_args &u, const block_plan &bp, const td_attention_task &k, const piece_at &p)
{
  __shared__ uint32_t n_ready, ready[TILE_ROWS];
  uint32_t id = threadIdx.x - WG, warp = id / 32;
  uint32_t n_keys = id < k.n_members ? bp.members[k.first_member + id].n_keys : 0;
  if (id == 0)
    n_ready = 0;
  __threadfence();
  sync_compute();
  if (id < k.n_members && completes(u, k.first_member + id, n_keys, p))
    ready[atomicAdd(&n_ready, 1)] = k.first_member + id;
  sync_compute();
  __threadfence();
  uint32_t n = n_ready, n_fours = (u.a.group + 3) / 4;
  if (n * u.a.group <= UNIFIED_WARPS) {
    if (warp < n * u.a.group)
      merge_member<HD, 1>(u, bp, ready[warp / u.a.group], p.head, warp % u.a.group);
  } else {
    for (uint32_t i = warp; i < n * n_fours; i += UNIFIED_WARPS)
      merge_member<HD, 4>(u, bp, ready[i / n_fours], p.head, i % n_fours * 4);
  }
  sync_compute(); // n_ready is free
}

// The same of a piece that one warp did.
template <int HD>
__device__ __forceinline__ void arrive_and_merge_alone(const unified_args &u, const block_plan &bp, const td_attention_task &k,
                                                       const piece_at &p)
{
  uint32_t lane = threadIdx.x % 32, n_keys = lane < k.n_members ? bp.members[k.first_member + lane].n_keys : 0;
  __threadfence();
  __syncwarp();
  uint32_t ready = __ballot_sync(0xffffffffu, lane < k.n_members && completes(u, k.first_member + lane, n_keys, p));
  __threadfence();
  for (; ready; ready &= ready - 1)
    for (uint32_t g = 0; g < u.a.group; g += 4)
      merge_member<HD, 4>(u, bp, k.first_member + __ffs(ready) - 1, p.head, g);
}
#endif
