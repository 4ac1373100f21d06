/* Cost models that are built in, each named by device and model.
 *
 * H200, Llama-3-8B, bf16 (`tandem-bench steps --batches 1,2,4,8,16,32,48,64,128,192,256 --contexts 1024
 * --prompts 384,512,768,1024,2048,4096,8192,16384 --chunks 0`, 2026-11-23). Steps of decodes at context 1024,
 * ms: 1 row 3.67, 2 3.67, 4 3.74, 8 3.86, 16 4.22, 32 5.18, 48 6.25, 64 6.79, 128 9.05, 192 11.98, 256 14.45;
 * less their attention, 1024 x 131,072 B a row at 4.3 TB/s, they are the table up to 256 tokens. Prompts, in
 * steps of at most 4096 tokens, ms: 384 10.28, 512 12.39, 768 17.74, 1024 23.25, 2048 46.16, 4096 94.91, 8192
 * 204.7, 16384 472.1; less attention, 524,288 FLOP a pair at 560 TFLOP/s, they are the rest. Sampling is in
 * the table.
 *
 * Products have tiles of 128 rows, so a step that ends a little behind one takes what the whole next tile
 * does. Chunks beside decodes say how much (the report of 3c46c6b, ms: 512 tokens at 1024 beside 16 rows at
 * 1024 15.73, beside 64 17.37; at 4096 18.57, 24.72; 2048 at 4096 beside 16 at 4096 56.06, beside 64 61.92):
 * less attention, 528 and 576 tokens take as long as each other, and 2064 and 2112. Without these four points
 * they were predicted 4 to 14 % short. Those steps ran prefill, then decodes. Now both run beside each other
 * on an H200's SMs: twelve cells, one layer, hot (docs/lab/2026-11.md, "Prefill, and decodes beside it") take
 * what one after the other takes less 0.36 of the shorter, within 9 %.
 *
 * One core of an AMD EPYC 7003 (avx2), SmolLM2-135M in Q4_1 (`tandemd --calibrate --threads 1`, 2026-11-24):
 * steps of decodes and chunks at contexts of 64 to 1,456. The machine was shared, so the table is the better
 * part of what was seen; it is where learning begins, no figure of speed. */
#include "scheduler/cost_model.h"

const td_cost_model td_cost_h200_llama3_8b = {
    .n_points = 23,
    .tokens = {1,   2,   4,   8,   16,   32,   48,   64,   128,  192,  256,  384,
               512, 513, 576, 768, 1024, 2048, 2049, 2112, 4096, 8192, 16384},
    .tokens_us = {3638,  3608,  3610,  3614,  3719,  4177,  4756,  4791,  5055,  5982,   6460,  10210,
                  12260, 14790, 14950, 17460, 22760, 44190, 48100, 48100, 87060, 173320, 346410},
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
