/* Small files of measurements that make the next start faster: their paths, and reading and writing them
 * safely.
 *
 * A file's name holds what its content is valid for (device, driver, model ...). A reader must check the
 * content, because other programs may have written the file. */
#ifndef TD_COMMON_CACHE_H
#define TD_COMMON_CACHE_H

#include "common/buf.h"
#include "common/status.h"

enum { TD_CACHE_PATH_BYTES = 4352 };

/* The folder for the option cache_dir, created if it is missing. "auto" is $CACHE_DIRECTORY,
 * $XDG_CACHE_HOME/tandem or ~/.cache/tandem. False: the option is empty, or "auto" finds no folder. */
bool td_cache_folder(const char *option, char out[TD_CACHE_PATH_BYTES]);
/* folder/KIND-IDENTITY.txt; '-' replaces all characters except letters, digits and dots. False: too long. */
bool td_cache_path(const char *folder, const char *kind, const char *identity, char out[TD_CACHE_PATH_BYTES]);

/* Appends a regular file's bytes to `out`, up to its cap. If the file does not exist, returns TD_OK with
 * *found = false. */
TD_MUST_CHECK td_status td_cache_read(const char *path, td_buf *out, bool *found, td_error *err);
/* Writes under a temporary name, then renames: readers see either the old file or the new one. */
TD_MUST_CHECK td_status td_cache_write(const char *path, const char *data, size_t n_bytes, td_error *err);

#endif
