/* Small files of what was measured, so that the next start is faster: where they lie, and reading and writing
 * them without surprises.
 *
 * A file is named by what it is good for (device, driver, model ...); whoever reads one checks what is in it,
 * for others may have written there. */
#ifndef TD_COMMON_CACHE_H
#define TD_COMMON_CACHE_H

#include "common/buf.h"
#include "common/status.h"

enum { TD_CACHE_PATH_BYTES = 4352 };

/* The folder that the option cache_dir means, made if it is missing: "auto" is $CACHE_DIRECTORY,
 * $XDG_CACHE_HOME/tandem or
 * ~/.cache/tandem. false: none is wanted, or "auto" finds none. */
bool td_cache_folder(const char *option, char out[TD_CACHE_PATH_BYTES]);
/* folder/KIND-IDENTITY.txt, with '-' for all but letters, digits and dots; false: too long. */
bool td_cache_path(const char *folder, const char *kind, const char *identity, char out[TD_CACHE_PATH_BYTES]);

/* Appends a regular file's bytes to `out`, up to its cap. TD_OK and *found = false where there is none. */
TD_MUST_CHECK td_status td_cache_read(const char *path, td_buf *out, bool *found, td_error *err);
/* Under a temporary name, then renamed: readers see the old file or the new one. */
TD_MUST_CHECK td_status td_cache_write(const char *path, const char *data, size_t n_bytes, td_error *err);

#endif
