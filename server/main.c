/* tandemd: reads the options and runs the server. */
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "config/options.h"
#include "server/server.h"

/* Makes glibc return freed memory to the system. By default, once a block of up to 32 MB has been freed,
 * glibc keeps blocks of that size in the heap. It would then also have to zero the engine's token arrays,
 * most of whose pages are never touched. */
static void give_memory_back(void)
{
  enum { OWN_MAPPING_BYTES = 64 << 10, KEPT_BYTES = 16 << 20 };
  (void)mallopt(M_MMAP_THRESHOLD, OWN_MAPPING_BYTES);
  (void)mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
}

int main(int argc, char **argv)
{
  static td_options options;
  td_options_action action;
  td_error err = {0};
  give_memory_back();
  td_options_init(&options);
  if (td_options_read(&options, argc, argv, &action, &err) != TD_OK) {
    fprintf(stderr, "tandemd: %s\n", err.message);
    return TD_EXIT_USAGE;
  }
  switch (action) {
  case TD_ACTION_HELP: td_options_print_help(); return TD_EXIT_OK;
  case TD_ACTION_VERSION:
    printf("tandemd %s\n", TD_VERSION);
    printf("%s KV events\n", td_kv_events_are_built_in ? "with" : "without");
    return TD_EXIT_OK;
  case TD_ACTION_PRINT_CONFIG: td_options_print_config(&options, stdout); return TD_EXIT_OK;
  default: break;
  }
  td_log_init(options.log_level, strcmp(options.log_format, "json") == 0);
  td_options_warn_of_variables();
  switch (action) {
  case TD_ACTION_CHECK_CONFIG: return td_server_check_options(&options);
  case TD_ACTION_CHECK: return td_server_check(&options);
  case TD_ACTION_CALIBRATE: return td_server_calibrate(&options);
  default: return td_server_run(&options, argc, argv);
  }
}
