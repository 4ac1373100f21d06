// Adds the partials of a sequence's shared prefixes, which other CTAs of the launch wrote
// (attention_prefix.cuh), to the sums of its private KV.
//
// GQA groups of up to TD_REDUCE_BY_HEAD_GQA_GROUP_MAX heads do it head by head in the epilogue: a lane adds a
// few elements of one head. Larger groups do it in tiles, while a warp's sums are still in registers. Then
// partials are stored in the order in which a tile's threads hold the elements. This way loads the partials
// of all prefix splits at once, each whole partial by few loads. But four lanes handle one head, so with few
// heads most lanes would have no work.
#pragma once

#include "kernels/cuda/attention_epilogue.cuh"
#include "kernels/cuda/attention_prefix.cuh"

// The partials of a sequence's shared prefixes, for one kv head. In shared memory, because registers are
// scarce while keys are read.
struct prefix_run { // the partials of one shared-prefix group: first slot, count, slots between them, and the
                    // first's prefix split
  uint32_t first, n, step, split;
};
struct prefix_runs {
  prefix_run runs[TD_ATTENTION_LEVELS_MAX];
  uint64_t flag_value; // the value of this launch's flags of prefix splits
};

// ---- head by head ----

// Loads N elements of a partial, still in units.
template <int N> __device__ __forceinline__ void load_halves(__half (&v)[N], const unsigned char *src)
{
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *(uint2 *)&v[i] = __ldcg((const uint2 *)(src + 2 * i));
  } else if constexpr (N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2)
      *(uint32_t *)&v[i] = __ldcg((const uint32_t *)(src + 2 * i));
  } else {
#pragma unroll
    for (int i = 0; i < N; i++)
      *(unsigned short *)&v[i] = __ldcg((const unsigned short *)(src + 2 * i));
  }
}

template <int N>
__device__ __forceinline__ void add_partial(row_sum<N> &sum, const partial_end &end, const __half (&o)[N])
{
  float f, w;
  fold_factors(&sum.m, end.m, &f, &w);
  sum.l = fold(sum.l, f, end.l, w);
  w = __fmul_rn(w, end.unit);
#pragma unroll
  for (int k = 0; k < N; k++)
    sum.o[k] = fold(sum.o[k], f, __half2float(o[k]), w);
}

// Adds a sequence's partials of its shared prefixes for one kv head, in the order of keys. These keys come
// before those of the sequence's own items.
struct prefix_reduction {
  unsigned char *partials; // [slots][GQA group] of TD_ATTENTION_PARTIAL_BYTES
  const prefix_runs *prefixes;
  uint32_t n_runs, gqa_group;
  const uint64_t *done;    // flag of prefix split 0 and this kv head
  uint32_t done_stride;    // flags from prefix split to prefix split
  mutable bool flags_seen; // all flags have been seen

  // A warp waits until all partials are there.
  __device__ __forceinline__ void await() const
  {
    for (uint32_t r = 0; r < n_runs && !flags_seen; r++)
      for (uint32_t i = threadIdx.x % 32; i < prefixes->runs[r].n; i += 32)
        wait_flag(done + (size_t)(prefixes->runs[r].split + i) * done_stride, prefixes->flag_value);
    __syncwarp();
    flags_seen = true;
  }

  // Adds the partials to the sums of query heads p0 .. p0 + N - 1 of the GQA group, of which n_heads are
  // real. The lane has E elements from `element` on. Several partials are loaded at once, but added one by
  // one.
  template <int HD, int N, int E>
  __device__ __forceinline__ void add(row_sum<E> (&mine)[N], uint32_t p0, uint32_t n_heads,
                                      uint32_t element) const
  {
    constexpr uint32_t AT_ONCE = N == 1 ? 8 : 2;
    if (n_runs == 0)
      return;
    await();
    row_sum<E> sum[N];
    uint32_t run_at = 0, next = 0;
#pragma unroll
    for (int g = 0; g < N; g++)
      clear(sum[g]);
    while (run_at < n_runs) {
      partial_end end[AT_ONCE][N];
      alignas(8) __half o[AT_ONCE][N][E];
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++) {
        bool is = run_at < n_runs; // if there is no partial left, it gets no weight
        const prefix_run run = prefixes->runs[is ? run_at : 0];
        size_t first = (size_t)(run.first + (is ? next : 0) * run.step) * gqa_group + p0;
#pragma unroll
        for (int g = 0; g < N; g++) {
          const unsigned char *src = partial_at<HD>(partials, first + min((uint32_t)g, n_heads - 1));
          end[i][g] = end_of<HD>(src);
          end[i][g].m = is ? end[i][g].m : -INFINITY;
          end[i][g].l = is ? end[i][g].l : 0;
          load_halves<E>(o[i][g], src + 2 * element);
        }
        if (++next >= run.n) {
          next = 0;
          run_at++;
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
        for (int g = 0; g < N; g++)
          add_partial<E>(sum[g], end[i][g], o[i][g]);
    }
#pragma unroll
    for (int g = 0; g < N; g++) {
      add_term<E>(sum[g], mine[g]);
      mine[g] = sum[g];
    }
  }
};

#ifdef TD_HAS_MBARRIER
// One warp finds a sequence's partials and their flags. It reads nothing that the kernels before write.
__device__ __forceinline__ void find_prefixes(prefix_runs *out, const shared_prefixes &shared,
                                              const td_attention_item &it, const device_batch &batch,
                                              uint32_t kv_head)
{
  uint32_t lane = threadIdx.x % 32;
  if (lane < it.n_memberships) {
    const td_attention_membership s =
        ((const td_attention_membership *)(shared.plan + ((const td_attention_header *)shared.plan)
                                                             ->memberships_at))[it.first_membership + lane];
    out->runs[lane] = {s.base_partial + it.member + kv_head * s.n_splits * s.n_members, s.n_splits,
                       s.n_members, s.first_split};
  }
  if (lane == 0)
    out->flag_value = launch_flag(shared, batch);
  __syncwarp();
}

// ---- in tiles ----

// A thread's part of one query head's partial.
template <int HD> struct partial_fragment {
  uint4 o[HD / 32];
  partial_end end;

  // Loads this thread's part of partial `row`, or an empty part without weight if not `is`.
  __device__ __forceinline__ void load(const unsigned char *partials, size_t row, bool is)
  {
    end = {-INFINITY, 0, 0, 0};
    const unsigned char *src = partial_at<HD>((unsigned char *)partials, row);
#pragma unroll
    for (int j = 0; j < HD / 32; j++)
      o[j] = is ? __ldcg((const uint4 *)src + fragment_at(j)) : make_uint4(0, 0, 0, 0);
    if (is)
      end = end_of<HD>(src);
  }
  // Elements 8 (4 j + k) + 2 t and the next one, t = threadIdx.x % 4.
  __device__ __forceinline__ float2 pair(int j, int k) const
  {
    uint32_t v = k == 0 ? o[j].x : k == 1 ? o[j].y : k == 2 ? o[j].z : o[j].w;
    return __half22float2(*(__half2 *)&v);
  }
};

// Adds two partials to the warp's sums of query row lane / 4 + 8 h.
template <int HD>
__device__ __forceinline__ void add_two(warp_state<HD> &st, int h, const partial_fragment<HD> &a,
                                        const partial_fragment<HD> &b)
{
  float top = fmaxf(st.m[h], fmaxf(a.end.m, b.end.m)), safe = top == -INFINITY ? 0 : top;
  float f = exp2f(st.m[h] - safe), wa = exp2f(a.end.m - safe), wb = exp2f(b.end.m - safe);
  st.m[h] = top;
  st.l[h] = fold(fold(st.l[h], f, a.end.l, wa), 1, b.end.l, wb);
  wa = __fmul_rn(wa, a.end.unit);
  wb = __fmul_rn(wb, b.end.unit);
#pragma unroll
  for (int d = 0; d < HD / 8; d++) {
    float2 x = a.pair(d / 4, d % 4), y = b.pair(d / 4, d % 4);
    st.o[d][2 * h] = __fmaf_rn(y.x, wb, fold(st.o[d][2 * h], f, x.x, wa));
    st.o[d][2 * h + 1] = __fmaf_rn(y.y, wb, fold(st.o[d][2 * h + 1], f, x.y, wa));
  }
}

// A warp that has done its private KV waits for partials first, first + step, ... of a sequence with n_runs
// shared prefixes, and adds them.
template <int HD>
__device__ __forceinline__ void add_prefixes(warp_state<HD> &st, const attention_args &a,
                                             const shared_prefixes &shared, const prefix_runs &prefixes,
                                             uint32_t n_runs, uint32_t kv_head, uint32_t first, uint32_t step)
{
  uint32_t lane = threadIdx.x % 32, row = lane / 4,
           all = __reduce_add_sync(0xffffffffu, lane < n_runs ? prefixes.runs[lane].n : 0);
  if (first >= all)
    return;
  uint32_t n = (all - first - 1) / step + 1;
  for (uint32_t base = 0; base < n; base += 32) {
    uint32_t slot = 0, count = min(n - base, 32u);
    if (lane < count) {
      const prefix_run *r = prefixes.runs;
      uint32_t i = first + (base + lane) * step;
      for (; i >= r->n; r++)
        i -= r->n;
      wait_flag(shared.done + (size_t)(r->split + i) * a.n_kv_heads + kv_head, prefixes.flag_value);
      slot = r->first + i * r->step;
    }
    __syncwarp();
#pragma unroll 1
    for (uint32_t k = 0; k < count; k += 2) {
      size_t x = (size_t)__shfl_sync(0xffffffffu, slot, k) * a.gqa_group,
             y = (size_t)__shfl_sync(0xffffffffu, slot, k + 1) * a.gqa_group;
      partial_fragment<HD> fragment[2];
      fragment[0].load(shared.partials, x + row, row < a.gqa_group);
      fragment[1].load(shared.partials, y + row, row < a.gqa_group && k + 1 < count);
      add_two(st, 0, fragment[0], fragment[1]);
      if (a.gqa_group > 8) {
        fragment[0].load(shared.partials, x + row + 8, row + 8 < a.gqa_group);
        fragment[1].load(shared.partials, y + row + 8, row + 8 < a.gqa_group && k + 1 < count);
        add_two(st, 1, fragment[0], fragment[1]);
      }
    }
  }
}
#endif
