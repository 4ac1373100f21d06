/* Models that tandem-pull fetched: where they lie, and which one a name means. tandem-pull writes there, the
 * daemon looks there for a --model that is no path.
 *
 * $TANDEM_MODEL_DIR is the only folder where it is set. Else there are up to three, in this order:
 * $STATE_DIRECTORY/models (systemd sets that for the service), the user's own
 * ($XDG_CACHE_HOME/tandem/models or ~/.cache/tandem/models), and the machine's /var/lib/tandem/models.
 *
 * What is being fetched has a name that begins with a dot, and is no model to anybody. */
#ifndef TD_COMMON_PULLED_H
#define TD_COMMON_PULLED_H

#include <stdbool.h>
#include <stddef.h>

enum { TD_PULLED_PATH_BYTES = 4096, TD_PULLED_NAME_BYTES = 256, TD_PULLED_FOLDERS = 3, TD_PULLED_DEPTH = 8 };

/* The n-th folder that is looked in; false: there are fewer. */
bool td_pulled_folder(size_t n, char out[TD_PULLED_PATH_BYTES]);
/* Parts with '/' between, at most TD_PULLED_DEPTH, of letters, digits and "._-+", none of which begins with
 * '.' or '-': whatever it is joined to, it stays below. */
bool td_pulled_is_name(const char *name);
/* A GGUF file that is cut in parts has its first one's name, NAME-00001-of-00003.gguf. The number of the
 * part, from 1, and *n_stem bytes before the number; 0: it is no part. */
unsigned td_pulled_part(const char *file, size_t *n_stem);
/* A folder with config.json, a GGUF file with or without its ending, or a folder with one GGUF file. */
bool td_pulled_find(const char *name, char out[TD_PULLED_PATH_BYTES]);

#endif
