/* Cost models that are built in, each named by device and model.
 *
 * H200, Llama-3-8B, bf16. Steps of decodes at context 1024 (measured, ms): 1 row 4.13, 2 4.21, 4 4.28,
 * 8 4.45, 16 4.70, 32 5.45, 48 6.33, 64 6.97, 128 9.30, 256 14.8; less their attention, 1024 x 131,072 B a
 * row at 4.3 TB/s, they are the table up to 256 tokens. Prompts of 2048, 8192 and 16384 tokens took 47.6, 217
 * and 501 ms in steps of 2048; less attention, 524,288 FLOP a pair at 560 TFLOP/s, a step of 2048 tokens
 * takes 45.6 to 46.9. Between and beyond, the products of that model through cuBLAS (measured, ms: 384 9.55,
 * 512 10.99, 768 17.8, 1024 22.9, 4096 95.3, 8192 187) and 0.35 ms, what the two sources differ by at 256.
 * Sampling is in the table. */
#include "scheduler/cost_model.h"

const td_cost_model td_cost_h200_llama3_8b = {
    .n_points = 19,
    .tokens = {1, 2, 4, 8, 16, 32, 48, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384},
    .tokens_us = {4099, 4148, 4155, 4200, 4201, 4451, 4832, 4973, 5305, 5870, 6809, 9900, 11340, 18150, 23250,
                  45640, 95600, 187400, 374800},
    .decode_us_per_kv_token = 131072 / 4.3e6,
    .prefill_us_per_pair = 524288 / 560e6,
};
