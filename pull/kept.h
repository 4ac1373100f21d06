/* The folder of models: making places in it, listing, removing. */
#ifndef TD_PULL_KEPT_H
#define TD_PULL_KEPT_H

#include "common/pulled.h"
#include "common/status.h"

/* Root becomes who owns the folder, or the first one above it that is not root's: its owner could put links
 * where root would write, and must be able to read what comes. Nothing changes for others. */
TD_MUST_CHECK td_status td_kept_become_owner(const char *folder, td_error *err);
/* folder/name, and all folders above it, made. */
TD_MUST_CHECK td_status td_kept_place(const char *folder, const char *name, char out[TD_PULLED_PATH_BYTES],
                                      td_error *err);
/* A line for each model on stdout: name, size; and for what was begun. */
TD_MUST_CHECK td_status td_kept_list(const char *folder, td_error *err);
/* The model, what was begun of it, and folders that are empty then. */
TD_MUST_CHECK td_status td_kept_remove(const char *folder, const char *name, td_error *err);

#endif
