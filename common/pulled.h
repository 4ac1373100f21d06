/* Models that tandem-pull fetched: their folders, and which model a name refers to. tandem-pull writes there;
 * the daemon looks there if --model is no path.
 *
 * If $TANDEM_MODEL_DIR is set, it is the only folder. Otherwise there are up to three, in this order:
 * $STATE_DIRECTORY/models (systemd sets that for the service), the user's ($XDG_CACHE_HOME/tandem/models or
 * ~/.cache/tandem/models), and the machine's /var/lib/tandem/models.
 *
 * While a model is being fetched, its name begins with a dot, and it is not found. */
#ifndef TD_COMMON_PULLED_H
#define TD_COMMON_PULLED_H

#include <stdbool.h>
#include <stddef.h>

enum { TD_PULLED_PATH_BYTES = 4096, TD_PULLED_NAME_BYTES = 256, TD_PULLED_FOLDERS = 3, TD_PULLED_DEPTH = 8 };

/* The n-th folder to search. False: there are fewer. */
bool td_pulled_folder(size_t n, char out[TD_PULLED_PATH_BYTES]);
/* Whether a name is valid: at most TD_PULLED_DEPTH parts with '/' in between. A part consists of letters,
 * digits and "._-+", and does not begin with '.' or '-'. So a folder joined with a name never leads outside
 * the folder. */
bool td_pulled_is_name(const char *name);
/* A GGUF file split into parts has the name of its first part, NAME-00001-of-00003.gguf. Returns the part's
 * number, from 1, and in *n_stem the bytes before the number. 0: the file is no part. */
unsigned td_pulled_part(const char *file, size_t *n_stem);
/* Finds a folder with config.json, a GGUF file (the name may omit .gguf), or the GGUF file of a folder with
 * just one. */
bool td_pulled_find(const char *name, char out[TD_PULLED_PATH_BYTES]);

#endif
