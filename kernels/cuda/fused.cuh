// Fused steps: a captured decode step of few rows has five kernels a layer instead of nine (sm_90a).
//
// Between two GEMMs, memory is idle for about as long as the kernels between them take, even short ones. So
// norms, additions and SwiGLU are done in the epilogue of the GEMM before or at the beginning of the GEMM
// after. Rotation and the KV write are done at the beginning of attention. fused_plan.cu reads a program and
// queues these kernels instead of its ops; gemm_fused.cu and attention_decode.cu have the kernels.
#pragma once

#include "kernels/cuda/attention.cuh"

enum {
  FUSED_ROWS_MAX = 16,   // most rows of a fused step
  FUSED_ALONE_MAX = 8,   // most rows of a single GEMM: with more, wgmma is faster (gemm_skinny.cu)
  FUSED_TILES_MAX = 256, // most tiles of a GEMM that ends in sums of squares: a warp reads them together
};
static_assert((int)FUSED_ROWS_MAX < (int)TD_WARP_ITEM_ROWS_MIN,
              "attention that rotates knows no warp-level items");

enum fused_kind {
  FUSED_STORE,     // out[n, n_out] bf16, = or +=
  FUSED_STORE_F32, // out[n, n_out] f32, =
  FUSED_SWIGLU,    // weight rows r and n_out + r are gate and up of out[., r]
  FUSED_ADD_NORM,  // x += result; h = x * norm, and each tile's sum of x * x, for the norm that follows
};

// A GEMM with its epilogue. RMSNorm is divided between two GEMMs: the one that writes x also writes h = x *
// norm weights and its tiles' sums of squares; the one that reads h multiplies its result by 1 / rms.
struct fused_gemm {
  CUtensorMap w_map, x_map;
  uint32_t kind, n;
  uint32_t n_tiles, tile_rows; // tile_rows: weight rows of a tile
  uint32_t n_rounds;           // each CTA has one tile in each round;
  uint32_t n_last_round;       // the last round has only this many tiles
  uint32_t out_rows, n_out;    // most rows that a tile stores; columns of out
  uint32_t n_k_blocks;         // blocks of K_TILES k tiles; a pipeline stage holds one
  uint32_t n_stages;
  uint32_t n_sums; // tiles whose sums of squares give 1 / rms; 0: no scaling
  uint32_t width;  // columns of x and h
  float eps;
  const bf16 *bias;     // [n_out] or null
  const bf16 *residual; // values to add: out, or null
  void *out;
  bf16 *h;           // [n, width]
  float *sums;       // [FUSED_ROWS_MAX, FUSED_TILES_MAX]
  const float *norm; // FUSED_ADD_NORM: weights of the norm that follows
};

// The first kernel: x and h of the embedding, and sums[row][0].
struct fused_embedding {
  const bf16 *table;
  const float *norm;
  bf16 *x, *h;
  float *sums;
  uint32_t n, width;
};

// ---- gemm_fused.cu ----

td_status td_fused_open(cuda_backend *b, td_error *err);
// Chooses tiles, stages and tensor maps for p->n rows and the epilogue p->kind. Returns false if the kernels
// do not serve it.
bool td_fused_plan_gemm(cuda_backend *b, fused_gemm *p, const td_cuda_weight *w, const void *x);
void td_fused_queue_gemm(cuda_backend *b, const fused_gemm &p);
void td_fused_queue_embedding(cuda_backend *b, const fused_embedding &g);

// ---- from ops to kernels: fused_plan.cu ----

struct fused_attention {
  attention_group *group;
  attention_args args;
  decode_rotation rotation;
};

struct fused_layer {
  fused_gemm qkv, o, gate_up, down;
  fused_attention attention;
};

struct fused_step {
  fused_embedding embedding;
  std::vector<fused_layer> layers;
  fused_gemm head;
  std::vector<td_op> tail_ops; // the ops after the logits, unchanged
};

// Reads a program as a fused step of n_rows decodes. Returns NULL, or a short static text that says why these
// kernels cannot serve it.
const char *td_fused_make(cuda_backend *b, const std::vector<td_op> &ops, uint32_t n_rows, fused_step *out);
void td_fused_queue(cuda_backend *b, const fused_step &s);
