/* The sampling section of test_ops: the backend's tokens compared with the CPU's, and their cost. */
#ifndef TD_TESTS_GPU_OPS_SAMPLE_H
#define TD_TESTS_GPU_OPS_SAMPLE_H

/* How much to run: everything; what memcheck, initcheck and synccheck finish in a minute; every kernel at
 * least once on few elements, for racecheck, which checks each access to shared memory. */
typedef enum test_size { TEST_ALL, TEST_SMALL, TEST_TINY } test_size;

/* Thousands of rows, every token equal to the CPU backend's. */
void test_sampled_tokens(const char *backend, test_size size, int *n_passed, int *n_failed);
/* Prints microseconds per op, or nothing if the backend captures no steps. */
void time_sampling(const char *backend);

/* ops_special.c: steps of plain rows mixed with rows that have penalties, biases, min_tokens, masks,
 * requested log-probabilities, targets: every token, flag and log-probability equal to the CPU backend's. */
void test_special_tokens(const char *backend, test_size size, int *n_passed, int *n_failed);
/* Prints the device's microseconds for the sampling of a step of such rows, if known. */
void time_special_rows(const char *backend);

#endif
