// A ring of pipeline stages in shared memory: producers fill them with asynchronous copies, consumers read
// them (from sm_90 on).
//
// Each stage has two mbarriers. "Full" ends a phase when a producer has said how many bytes come and they
// have come. "Empty" ends one when all consumers have released the stage. A phase ends once a round of the
// ring, so whoever waits must know the parity of its round: the ring keeps it beside the stage's index, and
// no kernel has phase bits of its own.
//   producer: acquire(), expect(bytes), copies to data() that complete full(), advance()
//   consumer: wait_full(), reads data(), release(), advance()
// Each thread has a copy of this struct: where the ring lies, and which stage the thread is at. All threads
// of a role go through the same stages in the same order. A producer's parity is the opposite of a consumer's
// (as_producer): in its first round it waits for the end of a phase before the first, which an mbarrier takes
// as ended, as its stages are empty from the start.
#pragma once

#include "kernels/cuda/mbarrier.cuh"

#ifdef TD_HAS_MBARRIER
// A stage in one round of its ring.
struct pipeline_stage {
  uint32_t index, phase;
};

// STAGES, STAGE_BYTES: 0 if only known at run time. CONSUMERS: how many releases make a stage empty. 0: the
// ring has no empty barriers, for a warp that fills only stages that it has read itself.
template <uint32_t STAGES, uint32_t STAGE_BYTES, uint32_t CONSUMERS> struct ring {
  static constexpr uint32_t BARRIERS = STAGES * (CONSUMERS > 0 ? 2 : 1);
  uint32_t first = 0, full_bars = 0, empty_bars = 0; // addresses of shared memory
  uint32_t count = 0, bytes = 0;                     // of the stages, where known at run time only
  pipeline_stage now = {0, 0};

  // barriers: 8 bytes for each stage's full one, then for each one's empty one.
  __device__ __forceinline__ void place(uint32_t data, uint32_t barriers, uint32_t n_stages = STAGES,
                                        uint32_t stage_bytes = STAGE_BYTES)
  {
    first = data;
    count = n_stages;
    bytes = stage_bytes;
    full_bars = barriers;
    empty_bars = barriers + n_stages * 8;
  }

  __device__ __forceinline__ uint32_t n_stages() const { return STAGES > 0 ? STAGES : count; }
  __device__ __forceinline__ uint32_t stage_bytes() const { return STAGE_BYTES > 0 ? STAGE_BYTES : bytes; }
  __device__ __forceinline__ uint32_t data(uint32_t index) const { return first + index * stage_bytes(); }
  __device__ __forceinline__ uint32_t full(uint32_t index) const { return full_bars + index * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t index) const { return empty_bars + index * 8; }

  // Barriers of some stages, by one thread. A fence follows (fence_barrier_init, barriers_made) and then a
  // meeting of all who use them.
  __device__ __forceinline__ void init(uint32_t from, uint32_t to) const
  {
#pragma unroll(STAGES > 0 ? STAGES : 4)
    for (uint32_t s = from; s < to; s++) {
      barrier_init(full(s), 1);
      if (CONSUMERS > 0)
        barrier_init(empty(s), CONSUMERS);
    }
  }

  // Where a consumer, or a producer, stands at number n, counted on over all rounds: for threads that count
  // anyway.
  __device__ __forceinline__ static pipeline_stage nth(uint32_t n) { return {n % STAGES, n / STAGES & 1}; }
  __device__ __forceinline__ static pipeline_stage nth_as_producer(uint32_t n)
  {
    return {n % STAGES, (n / STAGES & 1) ^ 1};
  }

  __device__ __forceinline__ void advance()
  {
    bool wraps = now.index + 1 == n_stages();
    now.index = wraps ? 0 : now.index + 1;
    now.phase ^= wraps;
  }

  // ---- by producers ----

  __device__ __forceinline__ ring as_producer() const
  {
    ring r = *this;
    r.now = {0, 1};
    return r;
  }
  // Until no consumer reads the stage any more.
  __device__ __forceinline__ void acquire(pipeline_stage s) const
  {
    static_assert(CONSUMERS > 0, "a stage without an empty barrier is acquired by program order");
    barrier_wait(empty(s.index), s.phase);
  }
  __device__ __forceinline__ void acquire() const { acquire(now); }
  // The stage is full when so many bytes have come. One thread says so once a round; copies of others may
  // have begun before.
  __device__ __forceinline__ void expect(uint32_t n_bytes) const { barrier_expect(full(now.index), n_bytes); }
  // The same of a stage whose data are there: the producer wrote the last of them itself.
  __device__ __forceinline__ void commit(uint32_t index) const { barrier_arrive(full(index)); }

  // ---- by consumers ----

  __device__ __forceinline__ void wait_full(pipeline_stage s) const { barrier_wait(full(s.index), s.phase); }
  __device__ __forceinline__ void wait_full() const { wait_full(now); }
  __device__ __forceinline__ void release(uint32_t index) const
  {
    static_assert(CONSUMERS > 0, "a stage without an empty barrier is released by program order");
    barrier_arrive(empty(index));
  }
  // The same, of the ring of a CTA of the cluster, where empty(0) lies at empty_there (address_in_cluster).
  __device__ __forceinline__ void release_in_cluster(uint32_t empty_there, uint32_t index) const
  {
    barrier_arrive_in_cluster(empty_there + index * 8);
  }

  // ---- of the stage that this thread is at ----

  __device__ __forceinline__ uint32_t data() const { return data(now.index); }
  __device__ __forceinline__ uint32_t full() const { return full(now.index); }
};
#endif
