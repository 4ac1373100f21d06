/* Step times as a start knows them: read from a file, or guessed from the device class. A start measures
 * nothing, so it does not wait.
 *
 * The file's times were either measured (calibrate.c: `tandemd --calibrate`) or learned while serving
 * (learn.c). A measured table is used even if the machine is busy now; the effect of load is learned
 * separately. The file's name depends on an identity: everything that step times depend on. Its second line
 * holds the identity, and after it how the times came about. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "common/log.h"
#include "engine/internal.h"
#include "scheduler/cost_guess.h"
#include "scheduler/cost_text.h"

#define MEASURED "; %u of %u kinds of steps within %u ms"
#define MEASURED_SCAN "; %9u of %9u kinds of steps within %9u ms"
#define LEARNED "; learned from %llu steps"
#define LEARNED_SCAN "; learned from %19llu steps"

const char *const td_times_source_names[TD_TIMES_SOURCES] = {"none", "built-in", "learned", "kept",
                                                             "measured"};

static void identify(td_engine *e, uint32_t page_tokens)
{
  const td_model_desc *d = &e->desc;
  snprintf(e->cost_identity, sizeof e->cost_identity,
           "tandem %s, %s; %s%s%s: %u layers, width %u, ffn %u, heads %u/%u of %u, vocab %u, window %u, "
           "%llu bytes of weights; steps of %u rows, %u tokens, pages of %u%s%s",
           TD_VERSION, e->backend->identity, d->arch, d->qkv_bias ? " biased" : "",
           d->qk_norm ? " normed" : "", d->n_layers, d->width, d->ffn_width, d->n_heads, d->n_kv_heads,
           d->head_dim, d->vocab, d->window_tokens, (unsigned long long)e->info.weight_bytes,
           e->backend->max_rows, e->backend->max_tokens, page_tokens,
           td_option(&e->options, TD_LIMIT_BATCH_INVARIANT) ? ", batch invariant" : "",
           e->backend->ops->capture && td_option(&e->options, TD_LIMIT_CAPTURE_MS) ? ", captured" : "");
  for (char *s = e->cost_identity; *s; s++)
    if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
      *s = '?';
}

static void find_file(td_engine *e)
{
  char folder[TD_CACHE_PATH_BYTES], name[40];
  snprintf(name, sizeof name, "%s-%016llx", e->backend->ops->name,
           (unsigned long long)XXH3_64bits(e->cost_identity, strlen(e->cost_identity)));
  if (!td_cache_folder(e->options.cache_dir, folder) || !td_cache_path(folder, "steps", name, e->cost_path))
    *e->cost_path = '\0';
}

/* Fails unless the file is for this device and model. Reads how its times came about. */
static td_status read_identity(const td_engine *e, const char *identity, td_times_source *source,
                               uint64_t *n_steps, td_error *err)
{
  size_t n = strlen(e->cost_identity);
  unsigned n_measured, n_kinds, within_ms;
  unsigned long long n_learned;
  if (strncmp(identity, e->cost_identity, n) == 0) {
    *n_steps = 0;
    *source = TD_TIMES_KEPT;
    if (sscanf(identity + n, MEASURED_SCAN, &n_measured, &n_kinds, &within_ms) == 3)
      return TD_OK;
    *source = TD_TIMES_LEARNED;
    if (sscanf(identity + n, LEARNED_SCAN, &n_learned) == 1) {
      *n_steps = n_learned;
      return TD_OK;
    }
  }
  return td_fail(err, TD_ERR_CONFIG, "made for another device or model");
}

td_status td_engine_read_times(const td_engine *e, bool *found, td_kept_times *out, td_error *err)
{
  char identity[TD_COST_IDENTITY_BYTES];
  td_buf text;
  *found = false;
  if (!*e->cost_path)
    return TD_OK;
  td_buf_init(&text, TD_COST_TEXT_BYTES);
  td_status st = td_cache_read(e->cost_path, &text, found, err);
  if (st == TD_OK && *found)
    st = td_cost_parse(text.data, text.len_bytes, &out->cost, identity, err);
  if (st == TD_OK && *found)
    st = read_identity(e, identity, &out->source, &out->n_steps, err);
  if (st == TD_OK && *found)
    snprintf(out->history, sizeof out->history, "%s", identity + strlen(e->cost_identity));
  td_buf_deinit(&text);
  return st;
}

td_status td_engine_write_times(const td_engine *e, const td_cost_model *m, const char *history,
                                td_error *err)
{
  char identity[TD_COST_IDENTITY_BYTES];
  td_buf text;
  td_buf_init(&text, TD_COST_TEXT_BYTES);
  snprintf(identity, sizeof identity, "%s%s", e->cost_identity, history);
  td_cost_print(m, identity, &text);
  td_status st = text.failed ? td_fail(err, TD_ERR_NOMEM, "no memory")
                             : td_cache_write(e->cost_path, text.data, text.len_bytes, err);
  td_buf_deinit(&text);
  return st;
}

void td_engine_format_measured(char history[TD_TIMES_HISTORY_BYTES], uint32_t n_measured, uint32_t n_kinds,
                               uint32_t within_ms)
{
  snprintf(history, TD_TIMES_HISTORY_BYTES, MEASURED, n_measured, n_kinds, within_ms);
}

void td_engine_format_learned(char history[TD_TIMES_HISTORY_BYTES], uint64_t n_steps)
{
  snprintf(history, TD_TIMES_HISTORY_BYTES, LEARNED, (unsigned long long)n_steps);
}

/* ---- a start ---- */

static void guess(td_engine *e, uint32_t page_tokens)
{
  const td_model_desc *d = &e->desc;
  const td_cost_class *c = e->backend->on_device ? &td_cost_class_gpu : &td_cost_class_cpu;
  td_kv_spec kv = td_model_kv_spec(d, e->backend->kv_dtype, 1, page_tokens);
  double q = (double)d->n_heads * d->head_dim, kv_width = (double)d->n_kv_heads * d->head_dim;
  double layer = 2 * d->width * (q + kv_width) + 3.0 * d->width * d->ffn_width;
  double bytes_us = e->backend->bytes_us, flop_us = e->backend->flop_us;
  td_cost_basis basis = {.weight_bytes = (double)e->info.weight_bytes,
                         .token_flop = 2 * layer * d->n_layers,
                         .kv_token_bytes = (double)td_kv_token_bytes(&kv),
                         .pair_flop = 4 * q * d->n_layers,
                         .n_layers = d->n_layers,
                         .bytes_us = bytes_us > 0 ? bytes_us : c->basis.bytes_us,
                         .flop_us = flop_us > 0 ? flop_us : c->basis.flop_us};
  /* a CPU backend gives the rates of its kind, not of this machine */
  bool is_known = e->backend->on_device && bytes_us > 0 && flop_us > 0;
  e->cost = td_cost_guess(c, &basis);
  e->cost_uncertainty = is_known ? td_cost_guess_uncertainty(c, &basis) : TD_COST_UNCERTAINTY_GUESSED;
}

static void log_kept(const td_engine *e)
{
  char learned[100] = "";
  if (e->cost.learned[0] > 0 || e->cost.learned[1] > 0)
    snprintf(learned, sizeof learned,
             "; steps without and with prompts begin at %.3f and %.3f times these, learned under load",
             td_cost_learned(&e->cost, false), td_cost_learned(&e->cost, true));
  if (e->cost_source == TD_TIMES_LEARNED)
    snprintf(learned, sizeof learned, ", learned from %llu steps", (unsigned long long)e->n_learned_before);
  td_info("step times: %s%s", e->cost_path, learned);
}

void td_engine_load_times(td_engine *e, uint32_t page_tokens)
{
  td_kept_times kept;
  td_error why;
  bool found;
  identify(e, page_tokens);
  find_file(e);
  td_status st = td_engine_read_times(e, &found, &kept, &why);
  if (st != TD_OK)
    td_info("%s is not used: %s", e->cost_path, why.message);
  if (st == TD_OK && found) {
    e->cost = kept.cost;
    e->cost_uncertainty = TD_COST_UNCERTAINTY_LEARNED;
    e->cost_source = kept.source;
    e->n_learned_before = kept.n_steps;
    log_kept(e);
  } else {
    guess(e, page_tokens);
    e->cost_source = TD_TIMES_BUILT_IN;
    td_info("step times: built in, for this class of devices; they are learned while it serves, and "
            "--calibrate measures them");
  }
  td_engine_begin_learning(e);
}
