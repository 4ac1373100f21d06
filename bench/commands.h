/* The subcommands of tandem-bench. Each reads its own arguments (argv[0] is its name) and returns an exit
 * code. */
#ifndef TD_BENCH_COMMANDS_H
#define TD_BENCH_COMMANDS_H

int td_bench_attention(int argc, char **argv);
int td_bench_engine(int argc, char **argv);
int td_bench_grammar(int argc, char **argv);
int td_bench_hybrid(int argc, char **argv);
int td_bench_kernels(int argc, char **argv);
int td_bench_steps(int argc, char **argv);
#ifdef TD_BENCH_SERVE /* built only with the server's libraries */
int td_bench_serve(int argc, char **argv);
int td_bench_fake(int argc, char **argv);
#endif

#endif
