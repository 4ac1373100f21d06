/* test_golden_programs PROGRAMS MODELS [--write]: what each served architecture computes, as text.
 *
 * PROGRAMS has a file for each kind of model, named like the model in MODELS, with its program as
 * td_program_print writes it. So a change of what a model computes shows as a difference of a few lines.
 * --write writes the files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "same_text.h"

enum { MAX_TOKENS = 64, MAX_ROWS = 4, N_PAGES = 4, PAGE_TOKENS = 16 };

/* llama tied and untied, by safetensors and by GGUF (other rotation), with biases, with a window; q/k/v
 * biases; q/k norms; partial rotation; factors; layers without rotation; norms behind, of all heads; parts
 * side by side. */
static const char *const models[] = {"smollm2", "llama3", "gguf_llama3", "llama_biases", "mistral",
                                     "qwen2",   "qwen3",  "phi3",        "granite",      "minicpm",
                                     "smollm3", "olmo2",  "olmo3",       "cohere",       "cohere2"};

static void must(td_status st, const char *what, const td_error *err)
{
  if (st == TD_OK)
    return;
  fprintf(stderr, "%s: %s\n", what, err->message);
  exit(1);
}

/* Compiles it too, which checks shapes against the weights. */
static void print_program(const char *path, td_buf *out)
{
  td_error err = {0};
  td_model_files *files;
  td_model_desc desc;
  td_backend *be;
  td_model *model;
  td_kv *kv;
  td_program *forward, *sampling, *embedding;
  td_compiled *compiled;
  must(td_model_files_open(path, &files, &err), path, &err);
  must(td_model_desc_read(files, &desc, &err), path, &err);
  td_backend_config config = {.n_threads = 1,
                              .max_slots = MAX_ROWS,
                              .max_rows = MAX_ROWS,
                              .max_tokens = MAX_TOKENS,
                              .max_context_tokens = MAX_TOKENS,
                              .max_vocab = desc.vocab};
  must(td_backend_create("cpu", &config, &be, &err), path, &err);
  must(td_model_load(files, &desc, be, MAX_TOKENS, MAX_ROWS, NULL, NULL, &model, &err), path, &err);
  td_kv_spec shape = td_model_kv_spec(&desc, be->kv_dtype, N_PAGES, PAGE_TOKENS);
  must(be->ops->kv_create(be, &shape, &kv, &err), path, &err);
  must(td_model_program(model, kv, &forward, &err), path, &err);
  must(td_model_sampling(model, &sampling, &err), path, &err);
  must(td_model_embedding(model, kv, TD_POOL_MEAN, MAX_ROWS, &embedding, &err), path, &err);
  const struct {
    const char *name;
    td_program *program;
  } programs[] = {{"generate", forward}, {"sampling", sampling}, {"embed", embedding}};
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    must(be->ops->compile(be, programs[i].program, &compiled, &err), path, &err);
    td_buf_printf(out, "%s%s:\n", i ? "\n" : "", programs[i].name);
    td_program_print(programs[i].program, out);
    be->ops->discard(be, compiled);
    td_program_destroy(programs[i].program);
  }
  td_model_destroy(model);
  be->ops->destroy(be);
  td_model_files_close(files);
}

int main(int argc, char **argv)
{
  int failures = 0;
  bool writes = argc > 3 && strcmp(argv[3], "--write") == 0;
  if (argc < 3)
    return fprintf(stderr, "usage: test_golden_programs PROGRAMS MODELS [--write]\n"), 2;
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    char model[512], path[512];
    td_buf text;
    td_buf_init(&text, SAME_TEXT_BYTES);
    snprintf(model, sizeof model, "%s/%s%s", argv[2], models[i],
             strncmp(models[i], "gguf", 4) == 0 ? ".gguf" : "");
    snprintf(path, sizeof path, "%s/%s.txt", argv[1], models[i]);
    print_program(model, &text);
    bool ok =
        !text.failed && (writes ? same_text_write(path, &text) : same_text_compare(path, models[i], &text));
    failures += !ok;
    td_buf_deinit(&text);
  }
  return failures > 0;
}
