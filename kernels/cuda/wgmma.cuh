// Hopper's matrix products of a warpgroup (PTX ISA, wgmma): bf16 operands, f32 sums, 64 rows.
//
// `c` is the warpgroup's 64 x N result. With g = lane / 4 and t = lane % 4, a thread of warp w holds columns
// 8j + 2t and 8j + 2t + 1: of row 16w + g in c[4j..4j+1], and of row 16w + g + 8 in c[4j+2..4j+3]. wgmma runs
// asynchronously: threads must not touch its registers until wgmma_wait has said that it is done.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TD_HAS_WGMMA 1
#endif

// Matrix descriptor of a shared-memory operand with 128-byte or 64-byte swizzle (PTX ISA, "matrix
// descriptor"). leading_bytes, stride_bytes: the descriptor's leading and stride offsets. address16: the
// address in units of 16 bytes, so that callers can add offsets to it. If it is uniform over the warp
// (warp_uniform), that addition is one instruction instead of a dozen.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address16, uint32_t leading_bytes,
                                                     uint32_t stride_bytes, uint32_t swizzle_bytes = 128)
{
  return (uint64_t)(stride_bytes >> 4 | (swizzle_bytes == 128 ? 1u : 2u) << 30) << 32 |
         (address16 + (leading_bytes >> 4 << 16));
}

// A value that is the same in all threads of a warp, in a form that shows this to the compiler.
__device__ __forceinline__ uint32_t warp_uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

#ifdef TD_HAS_WGMMA
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit()
{
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wgmma_wait()
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps the compiler from moving uses of these registers across a wait.
template <int N> __device__ __forceinline__ void wgmma_fence_operand(float (&c)[N])
{
#pragma unroll
  for (int i = 0; i < N; i++)
    asm volatile("" : "+f"(c[i])::"memory");
}

#define TD_C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define TD_C16(i) TD_C4(i), TD_C4(i + 4), TD_C4(i + 8), TD_C4(i + 12)
#define TD_C32(i) TD_C16(i), TD_C16(i + 16)
#define TD_R32                                                                                               \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"                                                    \
  ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TD_R48 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TD_R64                                                                                               \
  TD_R48                                                                                                     \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TD_R96                                                                                               \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                                         \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define TD_R128                                                                                              \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"                             \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// setmaxnreg: changes a warpgroup's registers per thread to N. Producers give registers to the warpgroups
// that run wgmma. A kernel calls each function once, in the two branches of one `if`, and must have a
// register limit at entry (__launch_bounds__(threads, 1)).
template <int N> __device__ __forceinline__ void warpgroup_reg_dealloc()
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void warpgroup_reg_alloc()
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// c = a * b^T (c += if add), n = 8. TRANSPOSED: a is M-major in shared memory, else K-major.
template <bool TRANSPOSED>
__device__ __forceinline__ void wgmma_8(float (&c)[4], uint64_t a, uint64_t b, bool add)
{
  asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, %7, 0;}"
               : TD_C4(0)
               : "l"(a), "l"(b), "r"((int)add), "n"(TRANSPOSED ? 1 : 0));
}

// c = a * b^T (c += if add). Both operands are in shared memory, K-major.
__device__ __forceinline__ void wgmma_ss(float (&c)[8], uint64_t a, uint64_t b, bool add)
{
  asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, "
               "1, 1, 0, 0;}"
               : TD_C4(0), TD_C4(4)
               : "l"(a), "l"(b), "r"((int)add));
}

__device__ __forceinline__ void wgmma_ss(float (&c)[16], uint64_t a, uint64_t b, bool add)
{
  asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, 0;}"
               : TD_C16(0)
               : "l"(a), "l"(b), "r"((int)add));
}

__device__ __forceinline__ void wgmma_ss(float (&c)[32], uint64_t a, uint64_t b, bool add)
{
  asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TD_R32 "}, %32, %33, p, 1, 1, 0, 0;}"
               : TD_C32(0)
               : "l"(a), "l"(b), "r"((int)add));
}

__device__ __forceinline__ void wgmma_ss(float (&c)[48], uint64_t a, uint64_t b, bool add)
{
  asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" TD_R32 TD_R48
               "}, %48, %49, p, 1, 1, 0, 0;}"
               : TD_C32(0), TD_C16(32)
               : "l"(a), "l"(b), "r"((int)add));
}

__device__ __forceinline__ void wgmma_ss(float (&c)[64], uint64_t a, uint64_t b, bool add)
{
  asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TD_R32 TD_R64
               "}, %64, %65, p, 1, 1, 0, 0;}"
               : TD_C32(0), TD_C32(32)
               : "l"(a), "l"(b), "r"((int)add));
}

__device__ __forceinline__ void wgmma_ss(float (&c)[128], uint64_t a, uint64_t b, bool add)
{
  asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" TD_R32 TD_R64 TD_R96 TD_R128
               "}, %128, %129, p, 1, 1, 0, 0;}"
               : TD_C32(0), TD_C32(32), TD_C32(64), TD_C32(96)
               : "l"(a), "l"(b), "r"((int)add));
}

// c += a * b. a: 64 x 16 in registers, each warp's rows in mma.m16n8k16's layout. b: in shared memory,
// N-major.
__device__ __forceinline__ void wgmma_rs(float (&c)[32], const uint32_t *a, uint64_t b)
{
  asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TD_R32
               "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1;}"
               : TD_C32(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma_rs(float (&c)[48], const uint32_t *a, uint64_t b)
{
  asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" TD_R32 TD_R48
               "}, {%48,%49,%50,%51}, %52, p, 1, 1, 1;}"
               : TD_C32(0), TD_C16(32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma_rs(float (&c)[64], const uint32_t *a, uint64_t b)
{
  asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TD_R32 TD_R64
               "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;}"
               : TD_C32(0), TD_C32(32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma_rs(float (&c)[128], const uint32_t *a, uint64_t b)
{
  asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" TD_R32 TD_R64 TD_R96 TD_R128
               "}, {%128,%129,%130,%131}, %132, p, 1, 1, 1;}"
               : TD_C32(0), TD_C32(32), TD_C32(64), TD_C32(96)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif
