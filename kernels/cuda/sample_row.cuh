// Samples one row's token by the definition in kernels/sample_math.h, exactly as the CPU does.
//
// A row belongs to a cluster of 1 to 8 CTAs. Each warp of the cluster owns one contiguous segment of the row.
// Every pass reads the segment again (from the L1 cache if the row is divided, else mostly from memory), so
// nothing is stored for each token. The passes:
// - The maximum. A greedy row needs only this pass.
// - A histogram of counts or weights over 2,048 bins of the exponent, which shows in which bin a threshold
//   lies.
// - A pass that lists the tokens of that bin and sums the weights above it.
// The threshold is then found among the list digit by digit, and the draw reads one segment. If the bin has
// too many tokens (ties, very flat rows), further passes over the row find the digits instead.
//
// A special row (kernels/sample_state.h) takes the same path with two differences: processed_logits() adjusts
// every logit as it is read, and emit_token() counts the sampled token.
//
// In a cluster, each CTA sums one slice of the bins over all CTAs, and the CTA whose slice contains the
// threshold tells the others. Each CTA has a copy of the whole list. Sums are integers, so their order does
// not matter.
//
// Included by sample.cu, which provides peer and max_or_nan.
#pragma once

#include "kernels/sample_state.h"

enum {
  SAMPLE_THREADS = 512,
  SAMPLE_WARPS = SAMPLE_THREADS / 32,
  SAMPLE_CTAS_MAX = 8, // CTAs of a cluster
  SAMPLE_BINS = 4 * SAMPLE_THREADS,
  SAMPLE_LIST = 1536, // most tokens of a cut's bin that are listed
  SAMPLE_NO_CUT = SAMPLE_BINS,
};

typedef unsigned long long sample_sum;

struct sample_item {
  uint32_t id, key;
};

struct sample_best {
  float max, top; // top: NaN if the row has one
  uint32_t id;
};

struct __align__(16) sample_shared
{
  uint32_t low[SAMPLE_BINS], high[SAMPLE_BINS];        // counts or weights by bin
  sample_item own[SAMPLE_LIST], all[SAMPLE_LIST];      // this CTA's part of the list, and the whole list
  sample_sum segments[SAMPLE_CTAS_MAX * SAMPLE_WARPS]; // weights by segment; used in CTA 0
  sample_sum warp_sums[SAMPLE_WARPS];
  sample_best warp_best[SAMPLE_WARPS], cta_best[SAMPLE_CTAS_MAX];
  sample_sum slices[SAMPLE_CTAS_MAX];          // sum of each slice of the bins
  sample_sum above, inside;                    // results of find_bin
  uint32_t bin, n_own, lists[SAMPLE_CTAS_MAX]; // lists: n_own of each CTA
};

struct sample_row {
  const float *x;                     // aligned down to 16 bytes, so that token 0 is x[skip]
  uint32_t skip, end;                 // the row's tokens are x[skip..end)
  uint32_t segment_len, begin, limit; // this warp's segment: x[begin..limit)
  uint32_t rank, n_ctas;
  float max, inv_temperature;
  float floor;    // logits below are dropped
  uint32_t least; // weights below are dropped
};

struct masked_row : sample_row {
  const uint32_t *mask;
};

struct stateful_row : sample_row {
  const td_sample_state *state;
  uint16_t *words;
  const uint32_t *mask; // null: all tokens are allowed
  uint32_t n_tokens;    // length of the sequence
};

// Adjusts the logits of tokens id..id+3. Not inlined: a copy at each of the unrolled loads would take minutes
// to compile, and more instructions than the instruction cache holds.
__device__ __noinline__ float4 adjust(const td_sample_state *state, const uint16_t *words,
                                      const uint32_t *mask, uint32_t n_tokens, uint32_t id, float4 quad)
{
  float v[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
  for (uint32_t j = 0; j < 4; j++)
    if (v[j] > -INFINITY) // inside the row; all outside is -inf
      v[j] = td_sample_adjust(state, words[id + j], !mask || td_sample_is_allowed(mask, id + j),
                              (int32_t)(id + j), v[j], n_tokens);
  return make_float4(v[0], v[1], v[2], v[3]);
}

// The four logits x[i..i+4) as the sampler sees them. Outside the row they are -inf, whatever the mask.
__device__ __forceinline__ float4 processed_logits(const sample_row &, uint32_t, float4 v) { return v; }
__device__ __forceinline__ float4 processed_logits(const masked_row &r, uint32_t i, float4 v)
{
  uint32_t first = max(min(i, r.end - 1), r.skip) - r.skip, last = min(i + 3, r.end - 1) - r.skip;
  uint32_t allowed = __funnelshift_r(r.mask[first / 32], r.mask[last / 32], i - r.skip); // shift mod 32
  return make_float4(td_sample_masked(allowed & 1, v.x), td_sample_masked(allowed & 2, v.y),
                     td_sample_masked(allowed & 4, v.z), td_sample_masked(allowed & 8, v.w));
}
__device__ __forceinline__ float4 processed_logits(const stateful_row &r, uint32_t i, float4 v)
{
  return adjust(r.state, r.words, r.mask, r.n_tokens, i - r.skip, v);
}

// One thread calls it, when no other reads the row any more.
__device__ __forceinline__ void emit_token(const sample_row &, int32_t *out, int32_t id) { *out = id; }
__device__ __forceinline__ void emit_token(const stateful_row &r, int32_t *out, int32_t id)
{
  *out = id;
  if (id >= 0)
    r.words[id] = td_sample_count_once_more(r.words[id]);
}

struct sample_cut {
  uint32_t bin; // SAMPLE_NO_CUT: nothing is dropped
  sample_sum above, inside,
      target; // counts or weights: of earlier bins, of this bin, and the amount to reach
};

__device__ __forceinline__ void sync_row(const sample_row &r)
{
  if (r.n_ctas == 1)
    __syncthreads();
  else
    cluster_sync();
}

// Four logits from x[i]. Outside the row or the segment they are -inf, which has no weight.
template <typename ROW> __device__ __forceinline__ float4 load_quad(const ROW &r, uint32_t i, uint32_t limit)
{
  if (i >= r.skip && i + 4 <= limit)
    return processed_logits(r, i, *(const float4 *)(r.x + i));
  float v[4];
#pragma unroll
  for (uint32_t j = 0; j < 4; j++)
    v[j] = i + j >= r.skip && i + j < limit ? r.x[i + j] : -INFINITY;
  return processed_logits(r, i, make_float4(v[0], v[1], v[2], v[3]));
}

// Calls f(i, quad) over this warp's segment. DOWN: from its end, which is in the cache after the pass before.
template <int UNROLL, bool DOWN, typename ROW, typename F>
__device__ __forceinline__ void for_quads(const ROW &r, F f)
{
  uint32_t lane = threadIdx.x % 32, step = 128 * UNROLL,
           n_steps = r.begin < r.limit ? (r.limit - r.begin + step - 1) / step : 0;
  for (uint32_t s = 0; s < n_steps; s++) {
    uint32_t base = r.begin + (DOWN ? n_steps - 1 - s : s) * step, i = base + lane * 4;
    float4 v[UNROLL];
    if (base >= r.skip && base + step <= r.limit) { // all loads are in flight together
#pragma unroll
      for (uint32_t k = 0; k < UNROLL; k++)
        v[k] = *(const float4 *)(r.x + i + k * 128);
#pragma unroll
      for (uint32_t k = 0; k < UNROLL; k++)
        v[k] = processed_logits(r, i + k * 128, v[k]);
    } else {
#pragma unroll
      for (uint32_t k = 0; k < UNROLL; k++)
        v[k] = load_quad(r, i + k * 128, r.limit);
    }
#pragma unroll
    for (uint32_t k = 0; k < UNROLL; k++)
      f(i + k * 128, v[k]);
  }
}

// ---- the maximum ----

__device__ __forceinline__ void keep_better(sample_best *b, float max, float top, uint32_t id)
{
  if (max > b->max || (max == b->max && id < b->id)) {
    b->max = max;
    b->id = id;
  }
  b->top = max_or_nan(b->top, top);
}

// The maximum of the whole row, in every thread of the cluster. id is UINT32_MAX for a row with NaN or +inf.
template <typename ROW> __device__ sample_best find_best(const ROW &r, sample_shared *s)
{
  sample_best b = {-INFINITY, -INFINITY, UINT32_MAX};
  for_quads<8, false>(r, [&](uint32_t i, float4 v) {
    float h = max_or_nan(max_or_nan(v.x, v.y), max_or_nan(v.z, v.w));
    b.top = max_or_nan(b.top, h);
    if (h > b.max) {
      b.max = h;
      b.id = i - r.skip + (v.x == h ? 0 : v.y == h ? 1 : v.z == h ? 2 : 3);
    }
  });
  for (int o = 16; o > 0; o >>= 1) {
    float max = __shfl_xor_sync(0xffffffffu, b.max, o), top = __shfl_xor_sync(0xffffffffu, b.top, o);
    uint32_t id = __shfl_xor_sync(0xffffffffu, b.id, o);
    keep_better(&b, max, top, id);
  }
  if (threadIdx.x % 32 == 0)
    s->warp_best[threadIdx.x / 32] = b;
  __syncthreads();
  for (int w = 0; w < SAMPLE_WARPS; w++)
    keep_better(&b, s->warp_best[w].max, s->warp_best[w].top, s->warp_best[w].id);
  if (r.n_ctas > 1) {
    cluster_wait(); // every CTA has started (see sample_kernel), so its shared memory may be written
    if (threadIdx.x < r.n_ctas)
      peer(s, threadIdx.x)->cta_best[r.rank] = b;
    cluster_sync();
    for (uint32_t k = 0; k < r.n_ctas; k++)
      keep_better(&b, s->cta_best[k].max, s->cta_best[k].top, s->cta_best[k].id);
  }
  if (!(b.top < INFINITY)) // +inf or NaN
    b.id = UINT32_MAX;
  return b;
}

// ---- bins ----

// Rounding keeps the order, so a higher logit is never in a later bin.
__device__ __forceinline__ uint32_t bin_of(float exponent)
{
  float c = exponent > TD_SAMPLE_EXPONENT_MIN ? exponent : TD_SAMPLE_EXPONENT_MIN;
  return __float_as_uint(__fmaf_rn(c, (SAMPLE_BINS - 2) / TD_SAMPLE_EXPONENT_MIN, 8388608.0f)) &
         (SAMPLE_BINS - 1);
}

__device__ __forceinline__ void add_to_bin(sample_shared *s, uint32_t bin, uint32_t amount)
{
  uint32_t before = atomicAdd(&s->low[bin], amount);
  if (before > ~amount)
    atomicAdd(&s->high[bin], 1u);
}

__device__ __forceinline__ void clear_bins(sample_shared *s)
{
  for (uint32_t i = threadIdx.x; i < SAMPLE_BINS; i += SAMPLE_THREADS)
    s->low[i] = s->high[i] = 0;
  __syncthreads();
}

// Sum over all lower threads of the CTA. *total: sum over all threads.
__device__ sample_sum scan_cta(sample_sum v, sample_shared *s, sample_sum *total)
{
  sample_sum sum = v, before = 0, all = 0;
  for (int o = 1; o < 32; o <<= 1) {
    sample_sum up = __shfl_up_sync(0xffffffffu, sum, o);
    sum += threadIdx.x % 32 >= o ? up : 0;
  }
  if (threadIdx.x % 32 == 31)
    s->warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  for (uint32_t w = 0; w < SAMPLE_WARPS; w++) {
    before += w < threadIdx.x / 32 ? s->warp_sums[w] : 0;
    all += s->warp_sums[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - v;
}

// Sums the bins of this CTA's slice over all CTAs of the cluster. Each thread gets K of them, from number
// threadIdx.x * K on, as far as they exist.
template <uint32_t K>
__device__ void sum_slice(sample_shared *s, uint32_t rank, uint32_t n_ctas, sample_sum (&v)[K])
{
  uint32_t slice = SAMPLE_BINS / n_ctas, quads = slice / 4, cta = threadIdx.x / quads,
           quad = threadIdx.x % quads;
  const sample_shared *p =
      peer(s, cta); // `cta` is a CTA of the cluster: there are as many threads as quads in all slices
  uint4 low = *(const uint4 *)&p->low[rank * slice + quad * 4],
        high = *(const uint4 *)&p->high[rank * slice + quad * 4];
  sample_sum *sums = (sample_sum *)s->own; // [n_ctas][slice], in place of lists no longer needed
  static_assert(sizeof s->own + sizeof s->all >= SAMPLE_BINS * sizeof(sample_sum), "room for them");
  sample_sum *mine = sums + cta * slice + quad * 4;
  mine[0] = ((sample_sum)high.x << 32) + low.x;
  mine[1] = ((sample_sum)high.y << 32) + low.y;
  mine[2] = ((sample_sum)high.z << 32) + low.z;
  mine[3] = ((sample_sum)high.w << 32) + low.w;
  __syncthreads();
#pragma unroll
  for (uint32_t j = 0; j < K; j++) {
    v[j] = 0;
    for (uint32_t k = 0; k < n_ctas && threadIdx.x * K + j < slice; k++)
      v[j] += sums[k * slice + threadIdx.x * K + j];
  }
}

// find_bin for a cluster. After its first cluster barrier all bins have been read and may be cleared.
template <uint32_t K, typename TARGET>
__device__ sample_cut find_bin_in_slices(sample_shared *s, uint32_t rank, uint32_t n_ctas, TARGET target_of)
{
  sample_sum v[K], mine = 0, slice_sum, total = 0, before;
  sum_slice<K>(s, rank, n_ctas, v);
#pragma unroll
  for (uint32_t j = 0; j < K; j++)
    mine += v[j];
  before = scan_cta(mine, s, &slice_sum);
  if (threadIdx.x < n_ctas)
    peer(s, threadIdx.x)->slices[rank] = slice_sum;
  cluster_sync();
  for (uint32_t k = 0; k < n_ctas; k++) {
    before += k < rank ? s->slices[k] : 0;
    total += s->slices[k];
  }
  sample_sum target = target_of(total);
  if (target == 0 || target > total) // the same in the whole cluster
    return {SAMPLE_NO_CUT, 0, 0, 0};
#pragma unroll
  for (uint32_t j = 0; j < K; j++) {
    if (before < target && before + v[j] >= target) // true for one thread of one CTA, one j
      for (uint32_t k = 0; k < n_ctas; k++) {
        sample_shared *p = peer(s, k);
        p->bin = rank * (SAMPLE_BINS / n_ctas) + threadIdx.x * K + j;
        p->above = before;
        p->inside = v[j];
      }
    before += v[j];
  }
  cluster_sync();
  return {s->bin, s->above, s->inside, target};
}

// The first bin where the running sum over the bins of n_ctas CTAs reaches target(total), or no cut if target
// is 0. The bins must be complete. In a cluster, lists are overwritten.
template <typename TARGET>
__device__ sample_cut find_bin(sample_shared *s, uint32_t rank, uint32_t n_ctas, TARGET target_of)
{
  if (n_ctas > 1)
    return n_ctas == 2 ? find_bin_in_slices<2>(s, rank, n_ctas, target_of)
                       : find_bin_in_slices<1>(s, rank, n_ctas, target_of);
  sample_sum v[4], total;
#pragma unroll
  for (uint32_t j = 0; j < 4; j++)
    v[j] = ((sample_sum)s->high[threadIdx.x * 4 + j] << 32) + s->low[threadIdx.x * 4 + j];
  sample_sum before = scan_cta(v[0] + v[1] + v[2] + v[3], s, &total), target = target_of(total);
  if (target == 0 || target > total) // the same for all threads
    return {SAMPLE_NO_CUT, 0, 0, 0};
#pragma unroll
  for (uint32_t j = 0; j < 4; j++) {
    if (before < target && before + v[j] >= target) { // true for one thread, one j
      s->bin = threadIdx.x * 4 + j;
      s->above = before;
      s->inside = v[j];
    }
    before += v[j];
  }
  __syncthreads();
  sample_cut cut = {s->bin, s->above, s->inside, target};
  __syncthreads();
  return cut;
}

// ---- passes over the row ----

// Calls f(id, logit, bin, weight) for every token of this warp's segment that has been kept so far and lies
// in a bin up to last_bin.
template <bool DOWN, typename ROW, typename F>
__device__ __forceinline__ void for_kept(const ROW &r, uint32_t last_bin, F f)
{
  for_quads<4, DOWN>(r, [&](uint32_t i, float4 quad) {
    float v[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      float u = td_sample_exponent(v[j], r.max, r.inv_temperature);
      uint32_t bin = bin_of(u);
      if (bin <= last_bin) {
        uint32_t w = td_sample_weight(u);
        if (w >= r.least && v[j] >= r.floor)
          f(i + j - r.skip, v[j], bin, w);
      }
    }
  });
}

// Finds the bin of a threshold: of the first k tokens, or of the first tokens that have top_p of all weight.
template <typename ROW, typename TARGET>
__device__ sample_cut cut_row(const ROW &r, sample_shared *s, bool by_count, TARGET target_of)
{
  clear_bins(s);
  for_kept<true>(r, SAMPLE_BINS - 1,
                 [&](uint32_t, float, uint32_t bin, uint32_t w) { add_to_bin(s, bin, by_count ? 1 : w); });
  sync_row(r);
  return find_bin(s, r.rank, r.n_ctas, target_of);
}

// Sums the weights of bins before `first` by segment (in CTA 0), and lists the tokens of bins first..last.
// Returns their number; the list is complete only if that is at most SAMPLE_LIST.
template <typename ROW>
__device__ uint32_t gather(const ROW &r, sample_shared *s, uint32_t first, uint32_t last)
{
  sample_sum sum = 0;
  if (threadIdx.x == 0)
    s->n_own = 0;
  __syncthreads();
  for_kept<false>(r, last, [&](uint32_t id, float logit, uint32_t bin, uint32_t w) {
    if (bin < first) {
      sum += w;
    } else {
      uint32_t at = atomicAdd(&s->n_own, 1u);
      if (at < SAMPLE_LIST)
        s->own[at] = {id, td_sample_key(logit)};
    }
  });
  for (int o = 16; o > 0; o >>= 1)
    sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (threadIdx.x % 32 == 0)
    (r.n_ctas == 1 ? s : peer(s, 0))->segments[r.rank * SAMPLE_WARPS + threadIdx.x / 32] = sum;
  sync_row(r);
  if (threadIdx.x < r.n_ctas)
    s->lists[threadIdx.x] = (r.n_ctas == 1 ? s : peer(s, threadIdx.x))->n_own;
  __syncthreads();
  uint32_t n = 0, threads = SAMPLE_THREADS / r.n_ctas, from = threadIdx.x / threads, first_of = 0;
  for (uint32_t k = 0; k < r.n_ctas; k++) {
    first_of += k < from ? s->lists[k] : 0;
    n += s->lists[k];
  }
  const sample_shared *p = r.n_ctas == 1 ? s : peer(s, from);
  for (uint32_t i = threadIdx.x % threads; i < s->lists[from] && first_of + i < SAMPLE_LIST; i += threads)
    s->all[first_of + i] = p->own[i];
  __syncthreads();
  return n;
}

__device__ __forceinline__ uint32_t weight_of_item(const sample_row &r, sample_item item)
{
  return td_sample_weight(td_sample_exponent(td_sample_logit_of_key(item.key), r.max, r.inv_temperature));
}

// Finds the threshold: the highest logit for which the tokens with this or a higher logit reach
// target(total). It searches the list's n_list tokens or, if they are too many for the list, the row's tokens
// in `bin`.
template <typename ROW, typename TARGET>
__device__ float select_floor(const ROW &r, sample_shared *s, bool by_count, uint32_t n_list, uint32_t bin,
                              TARGET target_of)
{
  bool listed = n_list <= SAMPLE_LIST;
  uint32_t prefix = 0; // of the inverted key, so high logits come first
  sample_sum target = 0;
  for (int shift = 22; shift >= 0; shift -= 11) { // 10 + 11 + 11 bits
    auto add = [&](uint32_t key, uint32_t w) {
      if (shift == 22 || ~key >> (shift + 11) == prefix)
        add_to_bin(s, ~key >> shift & (SAMPLE_BINS - 1), by_count ? 1 : w);
    };
    clear_bins(s);
    if (listed) {
      for (uint32_t i = threadIdx.x; i < n_list; i += SAMPLE_THREADS)
        if (td_sample_logit_of_key(s->all[i].key) >= r.floor)
          add(s->all[i].key, weight_of_item(r, s->all[i]));
      __syncthreads();
    } else {
      for_kept<false>(r, bin, [&](uint32_t, float logit, uint32_t b, uint32_t w) {
        if (b == bin)
          add(td_sample_key(logit), w);
      });
      sync_row(r);
    }
    sample_cut cut = find_bin(s, r.rank, listed ? 1 : r.n_ctas,
                              [&](sample_sum total) { return shift == 22 ? target_of(total) : target; });
    if (cut.bin == SAMPLE_NO_CUT)
      return r.floor;
    prefix = prefix << 11 | cut.bin;
    target = cut.target - cut.above;
  }
  return td_sample_logit_of_key(~prefix);
}

// ---- thresholds and the draw ----

// Applies top-k and top-p: sets r->floor. Returns the number of listed tokens that the segments' sums do not
// include, or more than SAMPLE_LIST if those sums are still to be computed.
template <typename ROW>
__device__ uint32_t restrict_row(ROW *r, sample_shared *s, const td_sampling &p, uint32_t n)
{
  bool whole = false; // the list has all tokens that are kept
  uint32_t n_list = UINT32_MAX;
  auto target_count = [&](sample_sum total) {
    return total > (uint32_t)p.top_k ? (sample_sum)(uint32_t)p.top_k : 0;
  };
  auto target_weight = [&](sample_sum total) {
    return total > 0 ? (sample_sum)td_sample_want(total, p.top_p) : 0;
  };
  if (p.top_k > 0 && (uint32_t)p.top_k < n) {
    sample_cut cut = cut_row(*r, s, true, target_count);
    if (cut.bin != SAMPLE_NO_CUT) {
      whole = cut.above + cut.inside <= SAMPLE_LIST;
      n_list = gather(*r, s, whole ? 0 : cut.bin, cut.bin);
      sample_sum target = whole ? cut.target : cut.target - cut.above;
      r->floor = select_floor(*r, s, true, n_list, cut.bin, [&](sample_sum) { return target; });
    }
  }
  if (p.top_p < 1 && whole) {
    r->floor = select_floor(*r, s, false, n_list, 0, target_weight);
  } else if (p.top_p < 1) {
    sample_cut cut = cut_row(*r, s, false, target_weight);
    n_list = UINT32_MAX; // the list may have been overwritten with sums
    if (cut.bin != SAMPLE_NO_CUT) {
      n_list = gather(*r, s, cut.bin, cut.bin);
      r->floor =
          select_floor(*r, s, false, n_list, cut.bin, [&](sample_sum) { return cut.target - cut.above; });
    }
  }
  return n_list;
}

// Runs in CTA 0, which has the segments' sums (`segments` plus bins): finds the token whose running sum first
// exceeds the draw.
template <typename ROW>
__device__ void draw(const ROW &r, sample_shared *s, uint64_t random, uint32_t best, int32_t *out)
{
  uint32_t n_segments = r.n_ctas * SAMPLE_WARPS;
  sample_sum total, mine = 0;
  if (threadIdx.x < n_segments)
    mine = s->segments[threadIdx.x] + ((sample_sum)s->high[threadIdx.x] << 32) + s->low[threadIdx.x];
  sample_sum before = scan_cta(mine, s, &total);
  if (total == 0) { // min_p is above 1
    if (threadIdx.x == 0)
      emit_token(r, out, (int32_t)best);
    return;
  }
  sample_sum left = td_sample_draw(random, total);
  if (left >= before && left - before < mine) {
    s->bin = threadIdx.x;
    s->above = before;
  }
  __syncthreads();
  left -= s->above;
  uint32_t begin = s->bin * r.segment_len, limit = min(begin + r.segment_len, r.end);
  for (uint32_t i = begin; i < limit; i += SAMPLE_THREADS * 4) {
    float4 quad = load_quad(r, i + threadIdx.x * 4, limit);
    float v[4] = {quad.x, quad.y, quad.z, quad.w};
    uint32_t w[4];
    for (int j = 0; j < 4; j++) {
      w[j] = td_sample_weight(td_sample_exponent(v[j], r.max, r.inv_temperature));
      w[j] = w[j] >= r.least && v[j] >= r.floor ? w[j] : 0;
    }
    mine = (sample_sum)w[0] + w[1] + w[2] + w[3];
    before = scan_cta(mine, s, &total);
    if (left >= before && left - before < mine) {
      sample_sum at = before;
      for (uint32_t j = 0; j < 4; j++) {
        if (left >= at && left - at < w[j])
          emit_token(r, out, (int32_t)(i + threadIdx.x * 4 + j - r.skip));
        at += w[j];
      }
    }
    if (left < total)
      return;
    left -= total;
  }
}

// Samples one row by a cluster of n_ctas CTAs. If they are several, cluster_arrive() has been called. r: a
// special row's own fields are set.
template <typename ROW>
__device__ void sample_one_row(ROW r, const float *logits, uint32_t n, uint32_t rank, uint32_t n_ctas,
                               const uint32_t *slot, const uint32_t *position, const td_sampling *sampling,
                               sample_shared *s, int32_t *out)
{
  r.skip = (uint32_t)((uintptr_t)logits / 4 % 4);
  r.x = logits - r.skip;
  r.end = r.skip + n;
  r.segment_len = ((r.end + n_ctas * SAMPLE_WARPS - 1) / (n_ctas * SAMPLE_WARPS) + 127) / 128 * 128;
  r.begin = min((rank * SAMPLE_WARPS + threadIdx.x / 32) * r.segment_len, r.end);
  r.limit = min(r.begin + r.segment_len, r.end);
  r.rank = rank;
  r.n_ctas = n_ctas;
  td_sampling p = sampling[*slot];
  uint32_t at = *position;
  sample_best best = find_best(r, s);
  if (best.id == UINT32_MAX || td_sample_is_greedy(p.temperature)) {
    if (rank == 0 && threadIdx.x == 0)
      emit_token(r, out, best.id == UINT32_MAX ? TD_SAMPLED_NAN : (int32_t)best.id);
    return;
  }
  r.max = best.max;
  r.inv_temperature = td_sample_inv_temperature(p.temperature);
  r.least = td_sample_least(p.min_p);
  r.floor = -INFINITY;
  uint32_t n_list = restrict_row(&r, s, p, n);
  if (n_list > SAMPLE_LIST) {
    gather(r, s, SAMPLE_BINS, SAMPLE_BINS - 1);
    n_list = 0;
  }
  sync_row(r); // no CTA ends while others read its shared memory
  if (rank != 0)
    return;
  clear_bins(s);
  for (uint32_t i = threadIdx.x; i < n_list; i += SAMPLE_THREADS)
    if (td_sample_logit_of_key(s->all[i].key) >= r.floor)
      add_to_bin(s, (s->all[i].id + r.skip) / r.segment_len, weight_of_item(r, s->all[i]));
  __syncthreads();
  draw(r, s, td_sample_random(p.seed, at), best.id, out);
}
