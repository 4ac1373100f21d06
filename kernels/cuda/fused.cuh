// A captured decode step of few rows as five kernels a layer instead of nine (sm_90a).
//
// Between two products memory is idle for about as long as the kernels between them take, however short. So a
// norm, an addition or SwiGLU is done where the product before it ends or where the one after it begins, and
// rotation and the KV write where attention begins. fused_plan.cu reads a program and queues these instead of
// its ops; gemm_fused.cu and attention_decode.cu have the kernels.
#pragma once

#include "kernels/cuda/attention.cuh"

enum {
  FUSED_ROWS_MAX = 16,   // of a step
  FUSED_ALONE_MAX = 8,   // of a product by itself: from there on wgmma does better (gemm_skinny.cu)
  FUSED_TILES_MAX = 256, // of a product that ends in sums of squares: a warp reads them at once
};
static_assert((int)FUSED_ROWS_MAX < (int)TD_WARP_ITEM_ROWS_MIN,
              "attention that rotates knows no warp-level items");

enum fused_kind {
  FUSED_STORE,     // out[n, n_out] bf16, = or +=
  FUSED_STORE_F32, // out = in f32
  FUSED_SWIGLU,    // weight rows r and n_out + r are gate and up of out[., r]
  FUSED_ADD,       // x += product; h = x * norm, and sums of x * x by tile: the next norm's
};

// RMSNorm is split: whoever writes x also writes h = x * weights and its tile's sum of squares; whoever reads
// h by a product scales the result by 1 / rms.
struct fused_product {
  CUtensorMap w_map, x_map;
  uint32_t kind, n;
  uint32_t n_tiles, tile_rows; // weight rows of a tile
  uint32_t n_rounds;           // of tiles: each CTA has one of each round,
  uint32_t n_last_round;       // the first so many one of the last
  uint32_t out_rows, n_out;    // what a tile stores at most, what there is in all
  uint32_t n_parts;            // of a tile: a pipeline stage holds one
  uint32_t n_stages;
  uint32_t n_sums; // scales by the sums of squares of so many tiles; 0: does not
  uint32_t width;  // of x and h
  float eps;
  const bf16 *bias; // [n_out] or null
  const bf16 *held; // what is added: out, or null
  void *out;
  bf16 *h;           // [n, width]
  float *sums;       // [FUSED_ROWS_MAX, FUSED_TILES_MAX]
  const float *norm; // FUSED_ADD: of the norm that follows
};

// x and h of the embedding, sums[row][0].
struct fused_begin {
  const bf16 *table;
  const float *norm;
  bf16 *x, *h;
  float *sums;
  uint32_t n, width;
};

// ---- gemm_fused.cu ----

td_status td_fused_open(cuda_backend *b, td_error *err);
// Tiles, stages and maps of a product of p->n rows of x that ends as p->kind says. False: not served.
bool td_fused_lay_out(cuda_backend *b, fused_product *p, const td_cuda_weight *w, const void *x);
void td_fused_queue_product(cuda_backend *b, const fused_product &p);
void td_fused_queue_begin(cuda_backend *b, const fused_begin &g);

// ---- from ops to kernels: fused_plan.cu ----

struct fused_attention {
  attention_group *group;
  attention_args args;
  decode_rotation rotation;
};

struct fused_layer {
  fused_product qkv, o, gate_up, down;
  fused_attention attention;
};

struct fused_step {
  fused_begin begin;
  std::vector<fused_layer> layers;
  fused_product head;
  std::vector<td_op> rest; // what comes after the logits, as it was
};

// Reads a program's step of so many decodes. NULL: it is fused. Else why these kernels do not serve it, a
// short static text.
const char *td_fused_make(cuda_backend *b, const std::vector<td_op> &ops, uint32_t n_rows, fused_step *out);
void td_fused_queue(cuda_backend *b, const fused_step &s);
