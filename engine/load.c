/* From options to a model that can step: open the files, describe, tokenizer, template, memory plan, load.
 *
 * Sizes and allocates all memory of the engine, by a plan that is logged. Later, only submit allocates: a
 * request's own arrays. If something does not fit, the error names the option that would help. */
#include "engine/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/checked.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/io.h"
#include "common/list.h"
#include "common/log.h"
#include "common/pulled.h"
#include "scheduler/budget.h"

/* A start without KV memory for one request of this many tokens is refused. */
enum { MIN_KV_TOKENS = 1024, MIN_KV_PAGES = 2 };
#define MIB(bytes) ((double)(bytes) / 1048576.0)

/* The name of the file or folder, without .gguf. */
static void default_model_name(const char *path, char *out, size_t size)
{
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/')
    n--;
  size_t start = n;
  while (start > 0 && path[start - 1] != '/')
    start--;
  snprintf(out, size, "%.*s", (int)(n - start), path + start);
  char *dot = strrchr(out, '.');
  if (dot && strcmp(dot, ".gguf") == 0)
    *dot = '\0';
}

/* ---- chat template: the operator's file, or the model's own ---- */

static td_status read_small_file(const char *path, td_buf *out, td_error *err)
{
  char chunk[8192];
  size_t n;
  const char *why;
  FILE *f = td_file_open(path, &why);
  if (!f)
    return td_fail_param(err, TD_ERR_CONFIG, "chat_template", "%s: %s", path, why);
  while (!out->failed && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
    td_buf_append(out, chunk, n);
  bool bad = ferror(f) || out->failed;
  fclose(f);
  if (bad)
    return td_fail_param(err, TD_ERR_CONFIG, "chat_template",
                         "%s: unreadable, or larger than %" PRIu64 " bytes", path,
                         td_limit_max(TD_LIMIT_TEMPLATE_BYTES));
  return TD_OK;
}

/* The chat_template of tokenizer_config.json: a string, or a list of named templates. */
static const char *config_template(const cJSON *tokenizer_config, const char *wanted)
{
  const cJSON *t = td_json_get(tokenizer_config, "chat_template"), *one;
  if (cJSON_IsString(t))
    return strcmp(wanted, "default") == 0 ? t->valuestring : NULL;
  cJSON_ArrayForEach(one, t)
  {
    const cJSON *name = td_json_get(one, "name"), *text = td_json_get(one, "template");
    if (cJSON_IsString(name) && cJSON_IsString(text) && strcmp(name->valuestring, wanted) == 0)
      return text->valuestring;
  }
  return NULL;
}

/* name: "default", or another of the model's named templates. */
static bool model_template(const td_model_files *files, const char *name, const char **text, size_t *n)
{
  td_gguf_string s;
  bool is_default = strcmp(name, "default") == 0;
  char key[64];
  snprintf(key, sizeof key, "tokenizer.chat_template%s%s", is_default ? "" : ".", is_default ? "" : name);
  const char *other;
  /* with a template file, the templates in the configuration are ignored */
  if (td_model_files_chat_template(files, false, &other, n)) {
    const bool is_tools = strcmp(name, "tool_use") == 0;
    return (is_default || is_tools) && td_model_files_chat_template(files, is_tools, text, n);
  }
  if (td_gguf_get_string(files, key, &s)) {
    *text = s.data;
    *n = s.n_bytes;
    return true;
  }
  *text = config_template(td_model_files_tokenizer_config(files), name);
  *n = *text ? strlen(*text) : 0;
  return *text != NULL;
}

static void keep_template_text(td_engine *e, const char *text, size_t n)
{
  td_buf_clear(&e->template_text);
  td_buf_append(&e->template_text, text, n);
}

/* A broken template from the operator is an error. With a broken template from the model, completions still
 * work, and chat requests are refused. */
static td_status load_chat_template(td_engine *e, td_error *err)
{
  const char *path = e->options.chat_template, *text;
  size_t n;
  if (*path) {
    td_buf file;
    td_buf_init(&file, td_limit_max(TD_LIMIT_TEMPLATE_BYTES));
    td_status st = read_small_file(path, &file, err);
    if (st == TD_OK &&
        td_chat_template_compile(file.data ? file.data : "", file.len_bytes, &e->chat_template, err))
      st = td_error_prefix(err, "%s", path);
    e->info.template_has_developer = file.len_bytes > 0 && strstr(file.data, "developer");
    e->chat_template_text = st == TD_OK ? strndup(file.data ? file.data : "", file.len_bytes) : NULL;
    e->template_text = file;
    return st;
  }
  if (!model_template(e->files, "default", &text, &n)) {
    td_fail(&e->chat_template_error, TD_ERR_UNSUPPORTED, "this model has no chat template");
    return TD_OK;
  }
  if (td_chat_template_compile(text, n, &e->chat_template, &e->chat_template_error) != TD_OK)
    td_warn("the model's chat template is not usable, chat requests will be refused: %s",
            e->chat_template_error.message);
  else
    e->chat_template_text = strndup(text, n);
  e->info.template_has_developer = memmem(text, n, "developer", strlen("developer")) != NULL;
  keep_template_text(e, text, n);
  td_error why;
  if (!model_template(e->files, "tool_use", &text, &n))
    return TD_OK;
  if (td_chat_template_compile(text, n, &e->tool_template, &why) == TD_OK)
    keep_template_text(e, text, n);
  else
    td_warn("the model's chat template 'tool_use' is not usable, the default one is used: %s", why.message);
  return TD_OK;
}

/* ---- memory plan ---- */

typedef struct memory_plan {
  uint32_t max_running, step_tokens, page_tokens, n_pages, max_context;
  bool context_is_cut;
  uint64_t page_bytes, workspace_bytes,
      attention_bytes; /* the KV store's memory beside pages, and vectors of embeddings */
} memory_plan;

static bool is_dummy(const td_engine *e) { return strcmp(e->options.load_format, "dummy") == 0; }

/* Weight memory on the backend. */
static uint64_t weight_bytes(const td_engine *e)
{
  return td_model_weight_bytes(is_dummy(e) ? NULL : e->files, &e->desc, e->backend);
}

/* Plans the KV pages: kv_bytes of them; by default as many as every running request needs at full context,
 * but no more than the backend grants. If that is not enough for one request, the context is cut before the
 * start fails. */
static td_status plan_kv(td_engine *e, memory_plan *mp, td_error *err)
{
  uint64_t budget = (uint64_t)td_option(&e->options, TD_LIMIT_KV_BYTES);
  uint64_t pages_per_context =
               td_div_ceil_u64(mp->max_context + td_engine_beyond_context(e), mp->page_tokens),
           pages;
  if (budget > 0) {
    pages = budget / mp->page_bytes;
  } else {
    uint64_t room = e->backend->ops->kv_budget_bytes(e->backend);
    pages = room > mp->attention_bytes ? (room - mp->attention_bytes) / mp->page_bytes : 0;
    if (pages > mp->max_running * pages_per_context)
      pages = mp->max_running * pages_per_context;
  }
  if (pages > INT32_MAX)
    pages = INT32_MAX;
  if (pages < MIN_KV_PAGES)
    return td_fail_param(err, TD_ERR_NOMEM, "kv_bytes",
                         "no memory for KV pages: one takes %.1f MiB; raise kv_bytes%s or free memory",
                         MIB(mp->page_bytes), e->backend->on_device ? ", gpu_memory_percent" : "");
  mp->n_pages = (uint32_t)pages;
  if (pages < pages_per_context) {
    mp->max_context = mp->n_pages * mp->page_tokens - td_engine_beyond_context(e);
    mp->context_is_cut = true;
    td_warn("context cut to %u tokens: KV memory holds no more (kv_bytes)", mp->max_context);
  }
  td_info("memory: weights %.0f MiB, KV %.0f MiB (%u pages of %u tokens), workspace %.0f MiB, attention %.0f "
          "MiB, sampling %.0f MiB; steps of up to %u requests, %u tokens",
          MIB(weight_bytes(e)), MIB(mp->page_bytes * mp->n_pages), mp->n_pages, mp->page_tokens,
          MIB(mp->workspace_bytes), MIB(mp->attention_bytes), MIB(e->backend->sampling_bytes),
          mp->max_running, mp->step_tokens);
  return TD_OK;
}

static td_status plan_step(td_engine *e, memory_plan *mp, td_error *err)
{
  int64_t context = td_option(&e->options, TD_LIMIT_CONTEXT_TOKENS);
  mp->max_running = e->backend->max_rows;
  mp->step_tokens = e->backend->max_tokens;
  mp->page_tokens = (uint32_t)td_option(&e->options, TD_LIMIT_PAGE_TOKENS);
  mp->max_context = e->desc.context_tokens;
  if (context > e->desc.context_tokens)
    return td_fail_param(err, TD_ERR_CONFIG, "context_tokens",
                         "context_tokens is %lld, but the model was made for %u", (long long)context,
                         e->desc.context_tokens);
  if (context > 0)
    mp->max_context = (uint32_t)context;
  TD_TRY(td_model_desc_set_context(&e->desc, mp->max_context, e->options.model, err));
  mp->workspace_bytes =
      td_model_workspace_bytes(&e->desc, e->backend, mp->step_tokens, e->backend->max_logits);
  td_kv_spec one = td_model_kv_spec(&e->desc, e->backend->kv_dtype, 1, mp->page_tokens);
  if (e->backend->ops->kv_check(e->backend, &one, err) != TD_OK)
    return td_error_prefix(err, "%s", e->options.model);
  mp->page_bytes = e->backend->ops->kv_bytes_per_page(e->backend, &one);
  mp->attention_bytes = e->backend->ops->kv_fixed_bytes(e->backend, &one) + td_engine_vectors_bytes(e);
  return TD_OK;
}

/* Checks the memory before anything large is read. Weights that are used from the file mapping need no check:
 * the page cache gives way. */
static td_status check_room(const td_engine *e, const memory_plan *mp, td_error *err)
{
  const td_options *o = &e->options;
  bool device = e->backend->on_device;
  if (!device && !is_dummy(e))
    return TD_OK;
  uint32_t tokens = mp->max_context < MIN_KV_TOKENS ? mp->max_context : MIN_KV_TOKENS;
  uint64_t room = e->backend->ops->kv_budget_bytes(e->backend), weights = weight_bytes(e);
  uint64_t kv = (uint64_t)td_option(o, TD_LIMIT_KV_BYTES);
  if (kv == 0)
    kv = td_div_ceil_u64(tokens, mp->page_tokens) * mp->page_bytes;
  uint64_t need = weights + mp->workspace_bytes + mp->attention_bytes + kv;
  if (need <= room)
    return TD_OK;
  bool step_helps = weights + kv<room, kv_helps = td_option(o, TD_LIMIT_KV_BYTES)> 0;
  return td_fail_param(
      err, TD_ERR_NOMEM, device ? "gpu_memory_percent" : "",
      "not enough %s: %.0f MiB are missing. Weights take %.0f MiB, workspace %.0f MiB (step_tokens %u, "
      "running_requests %u), attention %.0f MiB (running_requests), KV %s%.0f MiB; %.0f MiB may be taken%s. "
      "What helps: %s%s%sa smaller model, or "
      "other programs using less",
      device ? "GPU memory" : "memory", MIB(need - room), MIB(weights), MIB(mp->workspace_bytes),
      mp->step_tokens, mp->max_running, MIB(mp->attention_bytes), kv_helps ? "" : "at least ", MIB(kv),
      MIB(room), device ? " by gpu_memory_percent" : "", device ? "a higher gpu_memory_percent, " : "",
      step_helps ? "lower step_tokens or running_requests, " : "", kv_helps ? "lower kv_bytes, " : "");
}

/* ---- loading ---- */

typedef struct progress {
  uint64_t begin_us, last_us, bytes;
} progress;

/* Silent for the first second, then logs one line a second, so that a long start shows progress. */
static void log_progress(void *arg, double share)
{
  progress *p = arg;
  uint64_t now = td_clock_us();
  if (now - p->last_us < 1000000)
    return;
  p->last_us = now;
  double gb = (double)p->bytes / 1e9, s = (double)(now - p->begin_us) / 1e6;
  td_info("loading: %.0f %%, %.1f of %.1f GB, %.1f GB/s", share * 100, gb * share, gb, gb * share / s);
}

static td_status load_weights(td_engine *e, const memory_plan *mp, td_error *err)
{
  uint64_t now = td_clock_us();
  progress p = {now, now, weight_bytes(e)};
  if (is_dummy(e))
    return td_model_make_up(&e->desc, e->backend, (uint64_t)td_option(&e->options, TD_LIMIT_DUMMY_SEED),
                            mp->step_tokens, e->backend->max_logits, log_progress, &p, &e->model, err);
  p.bytes = td_model_read_bytes(e->files, &e->desc);
  TD_TRY(td_model_load(e->files, &e->desc, e->backend, mp->step_tokens, e->backend->max_logits, log_progress,
                       &p, &e->model, err));
  double s = (double)(td_clock_us() - p.begin_us) / 1e6;
  if (e->backend->on_device)
    td_info("weights: %.2f GB in %.2f s, %.1f GB/s", (double)p.bytes / 1e9, s, (double)p.bytes / 1e9 / s);
  td_model_files_close_descriptors(e->files);
  return TD_OK;
}

static td_status make_compute(td_engine *e, memory_plan *mp, td_error *err)
{
  TD_TRY(check_room(e, mp, err));
  TD_TRY(load_weights(e, mp, err));
  TD_TRY(plan_kv(e, mp, err)); /* KV pages take the memory that is left, so they come last */
  uint32_t n_pages = e->only_checks ? MIN_KV_PAGES : mp->n_pages;
  td_kv_spec spec = td_model_kv_spec(&e->desc, e->backend->kv_dtype, n_pages, mp->page_tokens);
  TD_TRY(e->backend->ops->kv_create(e->backend, &spec, &e->kv, err));
  TD_TRY(td_engine_make_program(e, err));
  TD_TRY(e->backend->ops->compile(e->backend, e->program, &e->forward, err));
  if (td_engine_embeds(e))
    return TD_OK;
  td_program *sampling;
  TD_TRY(td_model_sampling(e->model, &sampling, err));
  td_status st = e->backend->ops->compile(e->backend, sampling, &e->sampling, err);
  td_program_destroy(sampling);
  return st;
}

static td_policy policy_of(const td_options *o)
{
  int i = 0;
  while (td_policy_names[i] && strcmp(td_policy_names[i], o->policy) != 0)
    i++;
  return (td_policy)i; /* the scheduler refuses an unknown policy */
}

static void log_slo(const td_engine *e, const td_sched_config *sc, double slo_us)
{
  if (slo_us == 0)
    td_info("policy %s: steps of up to %u tokens, however long they take", e->options.policy,
            sc->step_tokens);
  else if (sc->adaptive_slo.decode_factor > 0)
    td_info("policy %s: a step with prompts takes at most %.3g times what its answers take alone, but never "
            "less than %.0f ms nor more than %.0f ms",
            e->options.policy, sc->adaptive_slo.decode_factor, (double)sc->adaptive_slo.least_us * 1e-3,
            slo_us * 1e-3);
  else
    td_info("policy %s: a step with prompts takes at most %.0f ms", e->options.policy, slo_us * 1e-3);
}

static td_status make_scheduler(td_engine *e, const memory_plan *mp, td_error *err)
{
  td_sched_config sc = {.n_slots = e->n_slots,
                        .max_running = mp->max_running,
                        .step_tokens = mp->step_tokens,
                        .page_tokens = mp->page_tokens,
                        .prompt_logits = e->backend->max_logits - e->backend->max_rows,
                        .n_pages = mp->n_pages,
                        .max_context_tokens = mp->max_context + td_engine_beyond_context(e),
                        .policy = policy_of(&e->options),
                        .cost = &e->cost,
                        .cost_is_guess = e->cost_source <= TD_TIMES_LEARNED,
                        .tbt_slo_us = 1000 * (uint64_t)td_option(&e->options, TD_LIMIT_TBT_SLO_MS),
                        .slack_percent = (uint32_t)td_option(&e->options, TD_LIMIT_SLACK_PERCENT),
                        .priority_us = 1000 * (uint64_t)td_option(&e->options, TD_LIMIT_PRIORITY_MS),
                        .coalesces = true,
                        .reads_shared_once =
                            e->backend->on_device && !td_option(&e->options, TD_LIMIT_BATCH_INVARIANT),
                        .hash_seed = td_random_u64(),
                        .n_accounts = e->n_accounts,
                        .emits_page_events = e->kv_feed.events != NULL};
  if (sc.tbt_slo_us == 0)
    td_sched_set_default_slo(&sc, e->backend->on_device);
  td_sched_stats st;
  TD_TRY(td_sched_create(&sc, &e->sched, err));
  TD_TRY(td_sched_plan_create(e->sched, &e->plan, err));
  TD_TRY(td_sched_plan_create(e->sched, &e->next, err));
  TD_TRY(td_engine_make_step_memory(e, mp->max_running, e->backend->max_logits, err));
  TD_TRY(td_masks_create(e->n_slots, (uint32_t)td_option(&e->options, TD_LIMIT_MASK_THREADS), e->wake_fd,
                         &e->masks, err));
  td_sched_get_stats(e->sched, &st);
  log_slo(e, &sc, st.tbt_slo_us);
  if (st.tbt_slo_us > 0 && td_budget_smallest_step_us(&e->cost, &sc) > st.tbt_slo_us)
    td_info("tbt_slo_ms cannot be kept: a step of one request and a page of another's prompt takes %.0f ms",
            td_budget_smallest_step_us(&e->cost, &sc) * 1e-3);
  return TD_OK;
}

/* The operator's value, otherwise the model's (negative: none), otherwise the API's. */
static double sampling_default(double option, double model, td_limit_id limit)
{
  return option >= 0 ? option : model >= 0 ? model : td_limits[limit].def;
}

static void fill_info(td_engine *e, const memory_plan *mp)
{
  const td_model_desc *d = &e->desc;
  td_engine_info *i = &e->info;
  const char *names = e->options.served_model_name;
  td_list_item first;
  if (td_list_next(&names, &first))
    snprintf(i->model_name, sizeof i->model_name, "%.*s", (int)first.n, first.s);
  else
    default_model_name(e->options.model, i->model_name, sizeof i->model_name);
  snprintf(i->arch, sizeof i->arch, "%s", d->arch);
  snprintf(i->backend, sizeof i->backend, "%s", e->backend->ops->name);
  i->vocab = d->vocab;
  i->width = d->width;
  i->makes_embeddings = td_engine_embeds(e);
  i->max_context_tokens = mp->max_context;
  i->context_is_cut = mp->context_is_cut;
  i->page_tokens = mp->page_tokens;
  i->n_pages = mp->n_pages;
  i->n_slots = e->n_slots;
  i->max_running = mp->max_running;
  i->step_tokens = mp->step_tokens;
  i->parameters = td_model_desc_parameter_count(d);
  i->weight_bytes = weight_bytes(e);
  i->has_chat_template = e->chat_template != NULL;
  i->has_tokenizer = e->tokenizer != NULL;
  i->bos_id = e->tokenizer ? td_tokenizer_bos(e->tokenizer) : -1;
  i->eos_id = e->tokenizer ? td_tokenizer_eos(e->tokenizer) : -1;
  i->default_sampling = (td_sampling){
      .temperature = (float)sampling_default(e->options.temperature, (double)d->default_temperature,
                                             TD_LIMIT_TEMPERATURE),
      .top_p = (float)sampling_default(e->options.top_p, d->default_top_p > 0 ? (double)d->default_top_p : -1,
                                       TD_LIMIT_TOP_P),
      .min_p = (float)sampling_default(e->options.min_p, (double)d->default_min_p, TD_LIMIT_MIN_P),
      .top_k = (int32_t)sampling_default(e->options.top_k, d->default_top_k, TD_LIMIT_TOP_K),
      .repetition_penalty = d->default_repetition_penalty > 0 ? d->default_repetition_penalty : 1,
  };
  if (i->makes_embeddings)
    td_info("pooling %s: embeddings of %u numbers, and no text", e->options.pooling, i->width);
  else
    td_info("requests that do not say are sampled with temperature %g, top_p %g, top_k %d, min_p %g, "
            "repetition_penalty %g",
            (double)i->default_sampling.temperature, (double)i->default_sampling.top_p,
            i->default_sampling.top_k, (double)i->default_sampling.min_p,
            (double)i->default_sampling.repetition_penalty);
  i->loaded_at_unix_s = (uint64_t)time(NULL);
}

/* If the option model is no path, it may name a model that tandem-pull fetched. */
static td_status find_model(td_engine *e, td_error *err)
{
  char path[TD_PULLED_PATH_BYTES], *model = e->options.model;
  if (access(model, F_OK) == 0 || errno != ENOENT || !td_pulled_is_name(model))
    return TD_OK; /* if it cannot be opened, td_model_files_open says why */
  if (!td_pulled_find(model, path))
    return td_fail(err, TD_ERR_MODEL,
                   "%s: No such file or directory, and tandem-pull has fetched no model of that name", model);
  td_info("%s is %s", model, path);
  snprintf(model, sizeof e->options.model, "%s", path);
  return TD_OK;
}

static td_status open_model(td_engine *e, td_error *err)
{
  bool dummy = is_dummy(e);
  TD_TRY(find_model(e, err));
  TD_TRY(dummy ? td_model_files_open_described(e->options.model, &e->files, err)
               : td_model_files_open(e->options.model, &e->files, err));
  TD_TRY(td_model_desc_read(e->files, &e->desc, err));
  e->desc.headless = td_engine_embeds(e);
  if (*e->desc.unserved_defaults)
    td_warn("the model's files ask for sampling that is not served and is left out: %s",
            e->desc.unserved_defaults);
  if (dummy)
    td_warn("load_format = dummy: the weights are random, and so are all answers");
  return TD_OK;
}

static void log_ends(const td_engine *e)
{
  td_buf list;
  td_buf_init(&list, 0);
  for (uint32_t i = 0; i < e->desc.n_eos_ids; i++) {
    const char *text = td_tokenizer_token_text(e->tokenizer, e->desc.eos_ids[i]);
    td_buf_printf(&list, "%s%d %s", i ? ", " : "", e->desc.eos_ids[i], text ? text : "(no text)");
    if (text && !td_tokenizer_is_special(e->tokenizer, e->desc.eos_ids[i]))
      td_warn("the model's files end answers at token %d, '%s', which is not a special one: text may hold it",
              e->desc.eos_ids[i], text);
  }
  if (list.len_bytes > 0)
    td_info("answers end at: %s", list.data);
  else
    td_warn("the model's files name no token that ends an answer: all go on to max_tokens");
  td_buf_deinit(&list);
}

/* A model without a tokenizer is accepted only with load_format = dummy. */
static td_status load_text(td_engine *e, td_error *err)
{
  if (is_dummy(e) && !td_model_files_has_tokenizer(e->files)) {
    td_warn("%s has neither tokenizer.json nor tokenizer.model: prompts must be token ids", e->options.model);
    return TD_OK;
  }
  TD_TRY(td_tokenizer_load(e->files, &e->tokenizer, err));
  if (td_tokenizer_vocab(e->tokenizer) > e->desc.vocab)
    return td_fail(err, TD_ERR_MODEL, "%s: the tokenizer has %u tokens, the model's embedding only %u",
                   e->options.model, td_tokenizer_vocab(e->tokenizer), e->desc.vocab);
  TD_TRY(td_model_end_tokens(e->tokenizer, &e->desc, err));
  log_ends(e);
  TD_TRY(td_engine_load_grammars(e, err));
  return load_chat_template(e, err);
}

td_status td_engine_load(td_engine *e, td_error *err)
{
  uint64_t begin_us = td_clock_us();
  memory_plan mp = {0};
  td_status st = open_model(e, err);
  if (st == TD_OK)
    st = load_text(e, err);
  if (st != TD_OK) /* errors name files of the folder only: add the folder */
    return strstr(err->message, e->options.model) ? st : td_error_prefix(err, "%s", e->options.model);
  if (*e->options.trace)
    TD_TRY(td_trace_create(e->options.trace, (uint64_t)td_option(&e->options, TD_LIMIT_TRACE_STEPS),
                           &e->trace, err));
  td_backend_config bc = {.n_threads = (uint32_t)td_option(&e->options, TD_LIMIT_THREADS),
                          .batch_invariant = td_option(&e->options, TD_LIMIT_BATCH_INVARIANT) == 1,
                          .int8_activations = td_option(&e->options, TD_LIMIT_CPU_EXACT) == 0,
                          .max_slots = e->n_slots,
                          .max_rows = (uint32_t)td_option(&e->options, TD_LIMIT_RUNNING_REQUESTS),
                          .max_tokens = (uint32_t)td_option(&e->options, TD_LIMIT_STEP_TOKENS),
                          .prompt_logits = (uint32_t)td_option(&e->options, TD_LIMIT_PROMPT_LOGITS),
                          .max_context_tokens = e->desc.context_tokens,
                          .max_vocab = e->desc.vocab,
                          .device = (uint32_t)td_option(&e->options, TD_LIMIT_DEVICE),
                          .gpu_memory_percent =
                              (uint32_t)td_option(&e->options, TD_LIMIT_GPU_MEMORY_PERCENT)};
  if (bc.max_rows > e->n_slots)
    bc.max_rows = e->n_slots;
  TD_TRY(td_backend_create(e->options.backend, &bc, &e->backend, err));
  TD_TRY(plan_step(e, &mp, err));
  TD_TRY(make_compute(e, &mp, err));
  if (!e->only_checks) {
    TD_TRY(td_engine_begin_tuning(e, err));
    if (!td_engine_embeds(e)) /* embeddings have no decodes */
      td_engine_begin_captures(e);
    if (e->calibrates) /* so that steps are measured as they will be served */
      TD_TRY(td_engine_capture_all(e, err));
    td_engine_publish_idle_work(e);
  }
  fill_info(e, &mp);
  td_engine_load_times(e, mp.page_tokens);
  if (e->calibrates)
    TD_TRY(td_engine_measure_times(e, mp.page_tokens, mp.n_pages, mp.max_context, err));
  TD_TRY(make_scheduler(e, &mp, err));
  if (e->backend->pci_bus_id[0] && !e->only_checks && !e->calibrates)
    e->gpu_watch = td_gpu_watch_start("libnvidia-ml.so.1", e->backend->pci_bus_id);
  td_info("%s: %s, %.1f M parameters, context %u, backend %s, ready in %.2f s", e->info.model_name,
          e->info.arch, (double)e->info.parameters / 1e6, e->info.max_context_tokens, e->info.backend,
          (double)(td_clock_us() - begin_us) / 1e6);
  return TD_OK;
}
