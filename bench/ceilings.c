/* See ceilings.h. */
#include "bench/ceilings.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loadgen/tool.h"

enum { BYTES_PER_THREAD = 256 << 20, ROUNDS = 5, FLOP_LOOPS = 20000000, MAX_THREADS = 256 };
typedef float v8 __attribute__((vector_size(32)));
typedef uint64_t u4 __attribute__((vector_size(32)));

typedef struct worker {
  pthread_t thread;
  const void *memory;
  double result;
} worker;

/* Written out as a macro, so that the compiler keeps every chain in a register. */
#define CHAINS(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9)
enum { N_CHAINS = 10 }; /* independent chains, to cover a latency of 4 or 5 cycles at two a cycle */

static void *read_memory(void *arg)
{
  worker *w = arg;
  const u4 *p = w->memory, *end = p + BYTES_PER_THREAD / sizeof *p;
  u4 a = {0}, b = {0}, c = {0}, d = {0};
  for (; p < end; p += 4) {
    a ^= p[0];
    b ^= p[1];
    c ^= p[2];
    d ^= p[3];
  }
  a ^= b ^ c ^ d;
  w->result = (double)(a[0] ^ a[1]);
  return NULL;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void *multiply_add(void *arg)
{
  worker *w = arg;
  v8 a = {0.999f, 0.998f, 0.997f, 0.996f, 0.995f, 0.994f, 0.993f, 0.992f};
#define BEGIN(k) v8 s##k = a * (float)k;
#define ADD(k) s##k = __builtin_ia32_vfmaddps256(s##k, a, a);
#define TAKE(k) w->result += s##k[0] + s##k[7];
  CHAINS(BEGIN)
  for (int i = 0; i < FLOP_LOOPS; i++) {
    CHAINS(ADD)
  }
  CHAINS(TAKE)
  return NULL;
}
static bool has_multiply_add(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
static void *multiply_add(void *arg) { return NULL; }
static bool has_multiply_add(void) { return false; }
#endif

static double run_all(worker *w, uint32_t n, void *(*work)(void *))
{
  double begin = td_tool_now_s();
  for (uint32_t i = 0; i < n; i++)
    if (pthread_create(&w[i].thread, NULL, work, &w[i]) != 0)
      td_tool_die("no thread");
  for (uint32_t i = 0; i < n; i++)
    pthread_join(w[i].thread, NULL);
  return td_tool_now_s() - begin;
}

static uint32_t threads(uint32_t n)
{
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  n = n > 0 ? n : (uint32_t)(cores > 0 ? cores : 1);
  return n < MAX_THREADS ? n : MAX_THREADS;
}

/* Plain reads of memory larger than the caches. The best of several rounds: bandwidth that other programs use
 * does not lower the machine's limit. */
static double read_bytes_per_s(uint32_t n_threads)
{
  uint32_t n = threads(n_threads);
  worker *w = td_tool_alloc(n, sizeof *w);
  double best = 0;
  for (uint32_t i = 0; i < n; i++) {
    void *p = aligned_alloc(64, BYTES_PER_THREAD);
    if (!p)
      td_tool_die("no memory to measure its bandwidth");
    memset(p, 1, BYTES_PER_THREAD);
    w[i].memory = p;
  }
  for (int round = 0; round < ROUNDS; round++) {
    double rate = (double)n * BYTES_PER_THREAD / run_all(w, n, read_memory);
    best = rate > best ? rate : best;
  }
  for (uint32_t i = 0; i < n; i++)
    free((void *)w[i].memory);
  free(w);
  return best;
}

/* f32 multiply-adds on AVX2 vectors, if the machine has them. */
static double flop_per_s(uint32_t n_threads)
{
  uint32_t n = threads(n_threads);
  worker *w = td_tool_alloc(n, sizeof *w);
  double best = 0;
  for (int round = 0; round < ROUNDS && has_multiply_add(); round++) {
    double rate = (double)n * FLOP_LOOPS * N_CHAINS * 16 / run_all(w, n, multiply_add);
    best = rate > best ? rate : best;
  }
  free(w);
  return best > 0 ? best : 1e12; /* not known: operations then set no floor */
}

td_ceiling td_ceilings_of(const char *backend, double given_gb_s, double given_tflop_s, uint32_t n_threads)
{
  bool gpu = strcmp(backend, "cuda") == 0;
  td_ceiling c = {given_gb_s * 1e9, given_tflop_s * 1e12};
  if (given_gb_s <= 0)
    c.bytes_per_s = gpu ? 4.55e12 : read_bytes_per_s(n_threads);
  if (given_tflop_s <= 0)
    c.flop_per_s = gpu ? 790e12 : flop_per_s(n_threads);
  return c;
}
