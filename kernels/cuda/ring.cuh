// A ring of pipeline stages in shared memory: producers fill stages with asynchronous copies, consumers read
// them (from sm_90 on).
//
// Each stage has two mbarriers. A phase of the "full" barrier ends when a producer has announced the number
// of bytes and they have arrived. A phase of the "empty" barrier ends when all consumers have released the
// stage. There is one phase for each round of the ring, so a thread that waits must know its round's parity.
// The ring keeps the parity with the stage index; no kernel has phase bits of its own.
//   producer: acquire(), expect(bytes), copies to data() that complete full(), advance()
//   consumer: wait_full(), reads data(), release(), advance()
// Each thread has its own copy of this struct: where the ring lies, and the thread's current stage. All
// threads of a role go through the same stages in the same order. A producer's parity is the opposite of a
// consumer's (as_producer). In its first round a producer waits for the phase before the first, which counts
// as ended for a fresh mbarrier, so it finds all stages empty.
#pragma once

#include "kernels/cuda/mbarrier.cuh"

#ifdef TD_HAS_MBARRIER
// A stage in one round of its ring.
struct pipeline_stage {
  uint32_t index, phase;
};

// STAGES, STAGE_BYTES: 0 if known only at run time. CONSUMERS: number of releases that make a stage empty.
// CONSUMERS 0: the ring has no empty barriers, because one warp both fills and reads its stages.
template <uint32_t STAGES, uint32_t STAGE_BYTES, uint32_t CONSUMERS> struct ring {
  static constexpr uint32_t BARRIERS = STAGES * (CONSUMERS > 0 ? 2 : 1);
  uint32_t first = 0, full_bars = 0, empty_bars = 0; // shared addresses
  uint32_t count = 0, bytes = 0;                     // number of stages and bytes of a stage, if known only
                                                     // at run time
  pipeline_stage now = {0, 0};

  // barriers: 8 bytes each, first the full barriers of all stages, then the empty ones.
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

  // Initialises the barriers of stages [from, to); one thread calls it. A fence must follow
  // (fence_barrier_init, publish_barriers), then a barrier of all threads that use the ring.
  __device__ __forceinline__ void init(uint32_t from, uint32_t to) const
  {
#pragma unroll(STAGES > 0 ? STAGES : 4)
    for (uint32_t s = from; s < to; s++) {
      barrier_init(full(s), 1);
      if (CONSUMERS > 0)
        barrier_init(empty(s), CONSUMERS);
    }
  }

  // The stage and phase of a consumer, or a producer, at position n counted over all rounds. For threads that
  // keep such a count anyway.
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

  // ---- for producers ----

  __device__ __forceinline__ ring as_producer() const
  {
    ring r = *this;
    r.now = {0, 1};
    return r;
  }
  // Waits until all consumers have released the stage.
  __device__ __forceinline__ void acquire(pipeline_stage s) const
  {
    static_assert(CONSUMERS > 0, "a stage without an empty barrier is acquired by program order");
    barrier_wait(empty(s.index), s.phase);
  }
  __device__ __forceinline__ void acquire() const { acquire(now); }
  // Announces the bytes that make the stage full. One thread calls it once a round; other threads' copies may
  // already be under way.
  __device__ __forceinline__ void expect(uint32_t n_bytes) const { barrier_expect(full(now.index), n_bytes); }
  // Marks a stage full without bytes to wait for, because the producer wrote the last of its data itself.
  __device__ __forceinline__ void commit(uint32_t index) const { barrier_arrive(full(index)); }

  // ---- for consumers ----

  __device__ __forceinline__ void wait_full(pipeline_stage s) const { barrier_wait(full(s.index), s.phase); }
  __device__ __forceinline__ void wait_full() const { wait_full(now); }
  __device__ __forceinline__ void release(uint32_t index) const
  {
    static_assert(CONSUMERS > 0, "a stage without an empty barrier is released by program order");
    barrier_arrive(empty(index));
  }
  // Releases a stage of another CTA's ring in the cluster. empty_there: that ring's empty(0), by
  // address_in_cluster.
  __device__ __forceinline__ void release_in_cluster(uint32_t empty_there, uint32_t index) const
  {
    barrier_arrive_in_cluster(empty_there + index * 8);
  }

  // ---- the thread's current stage ----

  __device__ __forceinline__ uint32_t data() const { return data(now.index); }
  __device__ __forceinline__ uint32_t full() const { return full(now.index); }
};
#endif
