/* API keys: one a line in a file; compared in time that depends on the number of keys only.
 *
 * A line is a key, and behind it what is known of its holder:
 *
 *   KEY name=alice requests_per_minute=600 tokens_per_minute=200000 requests=32 waiting=16 operator=1
 *
 * A key's account is its place in the file, and names its prefix-cache namespace: two keys never share one,
 * so one tenant's timing says nothing of another's prompts. When the file is read again, a key that stays
 * keeps its account, and a new one gets one that nobody had before. */
#ifndef TD_SERVER_AUTH_H
#define TD_SERVER_AUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "config/limits.h"

enum { TD_KEY_ACCOUNTS = TD_ACCOUNTS_MAX - 1 }; /* beside 0 */

/* 0: no such limit. */
typedef struct td_key_limits {
  uint64_t requests_per_minute, tokens_per_minute; /* of the API; prompt and answer */
  uint64_t requests, waiting;                      /* at once: waiting or running; without a first token */
} td_key_limits;

typedef struct td_key {
  unsigned char secret[TD_AUTH_KEY_BYTES]; /* zero-padded */
  char name[TD_KEY_NAME_BYTES]; /* in log and metrics; unless given, "key-N": the Nth of its file */
  uint32_t account;             /* 1 to TD_KEY_ACCOUNTS */
  td_key_limits limits;
  uint64_t is_operator; /* 1: /metrics show it what other keys use */
} td_key;

typedef struct td_keys {
  td_key *keys; /* owned */
  uint32_t n;
  uint32_t last_account; /* that was ever given */
  bool asked;            /* a key file was given */
  bool is_cut;           /* its last line has no end */
} td_keys;

/* path "" : no keys are asked. Blank lines and lines that begin with '#' are skipped. A file without keys, a
 * key over 255 bytes, and a key or name twice are errors (the message never holds a key). */
TD_MUST_CHECK td_status td_keys_read(td_keys *k, const char *path, td_error *err);
/* The file has been read again, as next: gives its keys their accounts. Fails if all accounts were given. */
TD_MUST_CHECK td_status td_keys_follow(td_keys *next, const td_keys *now, td_error *err);
/* Whether the file read again (a, after td_keys_follow) says what it said. */
bool td_keys_equal(const td_keys *a, const td_keys *b);
void td_keys_deinit(td_keys *k);
/* The key in the values of two headers, or NULL: Authorization, and x-api-key, which counts where the other
 * is absent. NULL: there is none, as in an Authorization that is no "Bearer KEY". */
const char *td_keys_given(const char *authorization, const char *api_key);
/* Whether the key in them is one of these. On true *account is the key's (0: no keys are asked). */
bool td_keys_allow(const td_keys *k, const char *authorization, const char *api_key, uint32_t *account);

#endif
