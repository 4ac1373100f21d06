/* See gpt3.h.
 *
 * A stage's cost comes from the A100 as the paper has it and the shape of the model:
 * - 312 TFLOP/s and 2.0 TB/s ("FLOPs/MemBandwidth about 156", 5.1.2), of which products reach 55 % and reads
 * 80 %. With these, its table 4 for LLaMA-33B on an A100 (1K, batch 10, P:D 28, chunk 256) comes out at a
 * gain of 1.31 against 1.25.
 * - "the throughput of a single layer of GPT-3 peaks at a chunk of 256 on an A100" (4.2): from there on time
 * is proportional; half of that chunk is an eighth less efficient, as half the saturating 512 is for
 * LLaMA-13B (4.2), whose saturating chunk LLaMA-33B is taken to share. Fewer tokens take what reading the
 * weights takes. Tiles of 128 (4.4): one token more costs a whole tile.
 * - Two all-reduces a layer over NVLink: 20 us and 1.75 bytes a byte at 230 GB/s; from stage to stage each
 *   of the eight GPUs sends an eighth at 25 GB/s, and 20 us. (The paper profiled these and does not give
 * them.)
 * - Attention: prompts at 30 % of the peak, decodes by reading their KV. */
#include "capacity/gpt3.h"

#include <math.h>
#include <stdlib.h>

#include "bench/random.h"
#include "bench/tool.h"
#include "kernels/dummy.h"

enum { LAYERS = 96, WIDTH = 12288, TP = 8, STAGES = 8, TILE = 128, PEAK_TOKENS = 256 };
enum {
  PIPELINE_BATCH = 27,
  REPLICA_BATCH = 11,
  CHUNK = 256,
  CONTEXT = 4096,
  PAGE_TOKENS = 16,
  LANE_STEP_TOKENS = CONTEXT + 64
};
static const double FLOP_S = 312e12, ATTENTION_SHARE = 0.30, BYTES_S = 2.0e12;
static const double ALL_REDUCE_BYTES_S = 230e9, SEND_US = 20, SEND_BYTES_S = 25e9;
const td_gpt3_guesses td_gpt3_guessed = {.product_share = 0.55, .read_share = 0.80, .all_reduce_us = 20, .lanes_per_stage = 1};

const char *const td_gpt3_scene_names[TD_GPT3_SCENES] = {"TP8 x PP8, Orca best case",
                                                         "TP8 x PP8, SARATHI 256", "TP8 x PP8, tandem 256",
                                                         "8 x TP8, Orca best case"};

/* Products of whole tiles. */
static double products_us(const td_gpt3_guesses *g, double n_parameters, uint32_t n_tokens, uint32_t peak_tokens)
{
  double tiles = ceil((double)n_tokens / TILE) * TILE;
  double peak_us = 2 * n_parameters * tiles / (FLOP_S * g->product_share) * 1e6;
  double read_us = 2 * n_parameters / (BYTES_S * g->read_share) * 1e6;
  return fmax(read_us, tiles < peak_tokens ? peak_us / pow(0.875, log2(peak_tokens / tiles)) : peak_us);
}

static double all_reduce_us(const td_gpt3_guesses *g, uint32_t n_tokens, uint32_t width, uint32_t n_gpus)
{
  double bytes = 2.0 * width * n_tokens;
  return n_gpus == 1 ? 0 : g->all_reduce_us + bytes * 2 * (n_gpus - 1) / n_gpus / ALL_REDUCE_BYTES_S * 1e6;
}

static void add_point(td_cost_model *m, const td_gpt3_guesses *g, uint32_t n, uint32_t width, uint32_t n_layers, uint32_t n_gpus,
                      uint32_t peak_tokens)
{
  double parameters = 12.0 * width * width * n_layers / n_gpus;
  m->tokens[m->n_points] = n;
  m->tokens_us[m->n_points++] =
      products_us(g, parameters, n, peak_tokens) + 2.0 * n_layers * all_reduce_us(g, n, width, n_gpus);
}

static td_cost_model layers(const td_gpt3_guesses *g, uint32_t width, uint32_t n_layers, uint32_t n_gpus, uint32_t peak_tokens)
{
  td_cost_model m = {0};
  /* A stair to 8 tiles, each with its two ends; beyond, a tile more or less is a few percent. */
  for (uint32_t tile = 0; tile < 8; tile++) {
    add_point(&m, g, tile * TILE + 1, width, n_layers, n_gpus, peak_tokens);
    add_point(&m, g, (tile + 1) * TILE, width, n_layers, n_gpus, peak_tokens);
  }
  for (uint32_t n = 2048; n <= 8192; n *= 2)
    add_point(&m, g, n, width, n_layers, n_gpus, peak_tokens);
  double kv_bytes = 2.0 * 2 * width * n_layers / n_gpus;
  m.decode_us_per_kv_token = kv_bytes / (BYTES_S * g->read_share) * 1e6;
  m.prefill_us_per_kv_token = m.decode_us_per_kv_token;
  m.prefill_us_per_pair = 4.0 * width * n_layers / n_gpus / (FLOP_S * ATTENTION_SHARE) * 1e6;
  return m;
}

td_cost_model td_a100_layers(uint32_t width, uint32_t n_layers, uint32_t n_gpus, uint32_t peak_tokens)
{
  return layers(&td_gpt3_guessed, width, n_layers, n_gpus, peak_tokens);
}

/* ---- the load ---- */

void td_gpt3_load(td_load *l, size_t n, uint32_t low, uint32_t high, double theta, double ratio,
                  uint64_t seed)
{
  uint32_t n_ranks = high - low + 1;
  double *below = td_tool_alloc(n_ranks, sizeof *below), sum = 0;
  td_random r;
  td_random_init(&r, seed);
  for (uint32_t i = 0; i < n_ranks; i++)
    below[i] = sum += pow(i + 1, -theta);
  for (size_t i = 0; i < n; i++) {
    double u = td_random_double(&r) * sum;
    uint32_t first = 0, end = n_ranks - 1;
    while (first < end) {
      uint32_t middle = first + (end - first) / 2;
      if (below[middle] > u)
        end = middle;
      else
        first = middle + 1;
    }
    uint32_t total = low + first, out = (uint32_t)lrint(total / (1 + ratio));
    td_load_begin(l, 0, out);
    td_load_segment_add(l, td_dummy_hash(seed, i), total - out);
  }
  free(below);
}

/* ---- the scenes ---- */

td_pipeline_config td_gpt3_config(td_gpt3_scene scene, const td_gpt3_guesses *g, td_cost_model *stage)
{
  bool piped = scene != TD_GPT3_ORCA_REPLICAS, orca = scene == TD_GPT3_ORCA_PIPELINE || !piped;
  uint32_t batch = piped ? PIPELINE_BATCH : REPLICA_BATCH;
  *stage = layers(g, WIDTH, piped ? LAYERS / STAGES : LAYERS, TP, PEAK_TOKENS);
  for (uint32_t k = 0; k < stage->n_points; k++)
    stage->tokens_us[k] += g->stage_us * (piped ? 1 : STAGES); /* a replica is all stages */
  return (td_pipeline_config){.n_pipelines = piped ? 1 : STAGES,
                              .n_stages = piped ? STAGES : 1,
                              .n_lanes = piped ? STAGES * g->lanes_per_stage : 1,
                              .sched = {.n_slots = batch,
                                        .max_running = batch,
                                        .step_tokens = orca ? LANE_STEP_TOKENS : g->beside ? CHUNK + batch - 1 : CHUNK,
                                        .page_tokens = PAGE_TOKENS,
                                        .n_pages = batch * (CONTEXT / PAGE_TOKENS + 1),
                                        .max_context_tokens = CONTEXT,
                                        .policy = orca ? TD_POLICY_ORCA : TD_POLICY_SARATHI},
                              .stage = stage,
                              .send_us = SEND_US,
                              .send_us_per_token = 2.0 * WIDTH / TP / SEND_BYTES_S * 1e6,
                              .one_prompt = scene != TD_GPT3_TANDEM_PIPELINE,
                              .padded = g->padded,
                              .scatter = g->scatter};
}
