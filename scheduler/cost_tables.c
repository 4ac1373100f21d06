/* The built-in cost models, each named by device and model.
 *
 * H200, Llama-3-8B, bf16 (`tandem-bench steps --batches 1,2,4,8,16,32,48,64,96,128,192,256 --contexts 1024
 * --chunks 0 --prompts 128,192,256,257,384,512,513,...`, 2026-11-27):
 * - Up to 96 tokens the table is steps of decodes at context 1024 without their attention, 1024 x 131,072 B a
 *   row at 4.3 TB/s. Measured ms: 1 row 3.59, 2 3.61, 4 3.67, 8 3.79, 16 4.16, 32 4.98, 48 5.92, 64 6.41, 96
 *   7.63.
 * - From there on most steps have chunks, whose GEMMs take a little longer than those of as many decodes (128
 *   rows 8.74, 192 11.78, 256 14.61). So the table is prompts in steps of at most 4096 tokens, without their
 *   attention, 524,288 FLOP a pair at 560 TFLOP/s (up to 256 tokens without 10 us a layer, the least time of
 *   a chunk's attention). Measured ms: 128 5.23, 192 6.57, 256 7.55, 257 9.17, 384 10.05, 512 12.32, 513
 *   13.94, 576 14.67, 768 17.70, 1024 23.20, 1025 25.61, 1152 26.78, 1536 34.54, 2048 45.85, 2049 49.34, 2304
 *   51.70, 4096 94.77, 8192 204.6, 16384 467.1.
 * - Sampling is in the table.
 *
 * GEMMs have tiles of 128 rows, so a step that ends just past a tile takes as long as the whole next tile:
 * 257 tokens, 385, 513, 641, 769, 897, 1025, 2049. The points 385, 448, 640, 641, 769, 896 and 897 are sums
 * of a layer's GEMMs (`tandem-bench kernels`) plus the remaining time of 384 and 512. Gate and up of 448 are
 * taken as those of 456 to 512: the library's first guess, which tuning replaces, takes 3 ms more.
 *
 * Attention of chunks and of decodes runs side by side. Twelve cells, one layer, hot (docs/lab/2026-11.md,
 * "Prefill, and decodes beside it"), take the sum of both less 0.36 of the shorter, within 9 %. 1,474 steps
 * with chunks that a daemon served under load take 0.86 ms longer than their parts. With this constant they
 * are predicted within 3 % in the median, and within 7 % for nine of ten. (A chunk's attention takes at least
 * 10 us a layer, and such steps are not captured.)
 *
 * One core of an AMD EPYC 7003 (avx2), SmolLM2-135M in Q4_1 (`tandemd --calibrate --threads 1`,
 * 2026-11-24): steps of decodes and chunks at contexts of 64 to 1,456. The machine was shared, so the
 * table is the better part of what was measured. It is where learning starts, not a measure of speed. */
#include "scheduler/cost_model.h"

const td_cost_model td_cost_h200_llama3_8b = {
    .n_points = 33,
    .tokens = {1,   2,   4,   8,   16,  32,  48,  64,  96,   128,  192,  256,  257,  384,  385,  448,  512,
               513, 576, 640, 641, 768, 769, 896, 897, 1024, 1025, 1152, 2048, 2049, 4096, 8192, 16384},
    .tokens_us = {3562,  3545,  3548,  3544,  3665,  3984,  4418,  4416,  4630,  4900,   6220,
                  7200,  9100,  9980,  11850, 12000, 12200, 13820, 14520, 14970, 17100,  17420,
                  20000, 20200, 22200, 22700, 25120, 26160, 43890, 47370, 86920, 173190, 341450},
    .hybrid_us = 860,
    .decode_us_per_kv_token = 131072 / 4.3e6,
    .prefill_us_per_pair = 524288 / 560e6,
    .hybrid_beside = 0.36,
};

const td_cost_model td_cost_epyc_smollm2 = {
    .n_points = 9,
    .tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256},
    .tokens_us = {12000, 16000, 22000, 40000, 62000, 110000, 205000, 390000, 770000},
    .logits_us_per_row = 800,
    .decode_us_per_kv_token = 5,
    .prefill_us_per_pair = 0.8,
};
