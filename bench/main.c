/* tandem-bench: one program for all measurements, with a subcommand for each kind. See README.md. */
#include <stdio.h>
#include <string.h>

#include "bench/commands.h"

typedef struct command {
  const char *name, *what;
  int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    {"kernels", "every op of a backend alone, beside its floor", td_bench_kernels},
    {"attention", "decode attention by policy: batches, shared prefixes, ragged traces", td_bench_attention},
    {"hybrid", "attention of prefill chunks, alone and beside decodes, by how prefill is cut",
     td_bench_hybrid},
    {"steps", "whole steps of a model by batch, context and prompt length, beside their floors",
     td_bench_steps},
    {"engine", "tokens per second of the engine without HTTP, as llama-bench counts them", td_bench_engine},
    {"grammar", "masks and verdicts of grammars that scripts/bench-grammar hands it", td_bench_grammar},
#ifdef TD_BENCH_SERVE
    {"serve", "load on an OpenAI-compatible server over HTTP: latencies, throughput, goodput",
     td_bench_serve},
    {"fake", "a server with made-up tokens at exact moments, to measure serve itself", td_bench_fake},
#endif
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static int usage(FILE *to)
{
  fprintf(to, "usage: tandem-bench COMMAND [options]; COMMAND --help says more\n\n");
  for (int i = 0; i < N_COMMANDS; i++)
    fprintf(to, "  %-9s %s\n", commands[i].name, commands[i].what);
  return to == stdout ? 0 : 64;
}

int main(int argc, char **argv)
{
  if (argc < 2)
    return usage(stderr);
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
    return usage(stdout);
  for (int i = 0; i < N_COMMANDS; i++)
    if (strcmp(argv[1], commands[i].name) == 0)
      return commands[i].run(argc - 1, argv + 1);
#ifndef TD_BENCH_SERVE
  if (strcmp(argv[1], "serve") == 0 || strcmp(argv[1], "fake") == 0) {
    fprintf(stderr, "tandem-bench: built without libuv and llhttp, so without '%s'\n", argv[1]);
    return 64;
  }
#endif
  fprintf(stderr, "tandem-bench: no command '%s'\n", argv[1]);
  return usage(stderr);
}
