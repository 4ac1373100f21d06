/* Names on the disk. A new name is in its folder's data: it survives a power cut only once the folder has
 * been synced too. */
#ifndef TD_PULL_SYNC_H
#define TD_PULL_SYNC_H

#include "common/status.h"

/* Syncs the folder that holds `path`. */
TD_MUST_CHECK td_status td_sync_parent(const char *path, td_error *err);
/* Renames a file or folder whose content has been synced, and syncs the folder that holds it. */
TD_MUST_CHECK td_status td_sync_rename(const char *from, const char *to, td_error *err);

#endif
