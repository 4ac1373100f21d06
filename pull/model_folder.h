/* The folder of models: creates paths in it, lists it, removes from it. */
#ifndef TD_PULL_MODEL_FOLDER_H
#define TD_PULL_MODEL_FOLDER_H

#include "common/pulled.h"
#include "common/status.h"

/* If the process is root, it becomes the owner of the first folder on the path, from / down, that root does
 * not own. That user could put links where root would write, and must be able to read the files. Changes
 * nothing for other users, or if all folders are root's. */
TD_MUST_CHECK td_status td_model_folder_become_owner(const char *folder, td_error *err);
/* Makes the path folder/name, and creates all folders above it. */
TD_MUST_CHECK td_status td_model_folder_make_path(const char *folder, const char *name,
                                                  char out[TD_PULLED_PATH_BYTES], td_error *err);
/* Prints a line for each model (name, size), and one for each that was not fetched completely. */
TD_MUST_CHECK td_status td_model_folder_list(const char *folder, td_error *err);
/* Removes the model, its incomplete parts, and the folders that are empty afterwards. */
TD_MUST_CHECK td_status td_model_folder_remove(const char *folder, const char *name, td_error *err);

#endif
