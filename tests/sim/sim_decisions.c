/* sim_decisions FOLDER [--write]: prints the scheduler's decisions and predictions as text and compares
 * them with the files in FOLDER.
 *
 * Our own code wrote these files, so they prove nothing right, but detect changes. If you change decisions
 * on purpose, write them again (--write) and read the diff: the columns of a world's line show whether
 * schedules, counters or predictions moved. All numbers are sums and products of doubles without
 * contraction, so every machine prints the same; results of log and exp are printed with few digits. */
#include "sim_decisions.h"

#include <stdio.h>
#include <string.h>

#include "../golden/same_text.h"

static const struct {
  const char *name;
  void (*print)(td_buf *out);
} parts[] = {{"worlds", sim_print_worlds},
             {"lengths", sim_print_lengths},
             {"fits", sim_print_fits},
             {"guesses", sim_print_guesses},
             {"chances", sim_print_chances}};

int main(int argc, char **argv)
{
  bool writes = argc == 3 && strcmp(argv[2], "--write") == 0, ok = true;
  if (argc < 2 || (argc > 2 && !writes))
    return fprintf(stderr, "usage: sim_decisions FOLDER [--write]\n"), 2;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    char path[512];
    td_buf text;
    td_buf_init(&text, SAME_TEXT_BYTES - 1);
    parts[i].print(&text);
    snprintf(path, sizeof path, "%s/%s.txt", argv[1], parts[i].name);
    ok &= !text.failed &&
          (writes ? same_text_write(path, &text) : same_text_compare(path, parts[i].name, &text));
    td_buf_deinit(&text);
  }
  return ok ? 0 : 1;
}
