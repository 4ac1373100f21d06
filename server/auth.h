/* API keys: one a line in a file; compared in time that depends on the number of keys only.
 *
 * A key's place in the file is its account, and names its prefix-cache namespace: two keys never share one,
 * so one tenant's timing says nothing of another's prompts. */
#ifndef TD_SERVER_AUTH_H
#define TD_SERVER_AUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum { TD_AUTH_KEY_BYTES = 256 };

typedef struct td_keys {
  unsigned char (*keys)[TD_AUTH_KEY_BYTES]; /* zero-padded; owned */
  uint32_t n;
  bool asked; /* a key file was given */
} td_keys;

/* path "" : no keys are asked. Blank lines and lines that begin with '#' are skipped. A file without keys, a
 * key over 255 bytes and a key twice are errors (the message never holds a key). */
TD_MUST_CHECK td_status td_keys_read(td_keys *k, const char *path, td_error *err);
void td_keys_deinit(td_keys *k);
/* authorization: the header's value or NULL. On true *account is the key's (0: no keys are asked). */
bool td_keys_allow(const td_keys *k, const char *authorization, uint32_t *account);

#endif
