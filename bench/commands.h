/* The subcommands of tandem-bench: each reads its own arguments (argv[0] is its name) and returns an exit code. */
#ifndef TD_BENCH_COMMANDS_H
#define TD_BENCH_COMMANDS_H

int td_bench_engine(int argc, char **argv);

#endif
