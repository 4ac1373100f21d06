/* API keys: a file with one key per line. Comparing takes time that depends on the number of keys only.
 *
 * A line is a key and its settings:
 *
 *   KEY name=alice requests_per_minute=600 tokens_per_minute=200000 requests=32 waiting=16 operator=1
 *
 * A key's account is a number, at first its place in the file. It also selects the key's cache namespace. Two
 * keys never share a namespace, so the timing of one tenant's requests reveals nothing about another's
 * prompts. When the file is read again, a key that stays keeps its account, and a new key gets a number that
 * no key has had. */
#ifndef TD_SERVER_AUTH_H
#define TD_SERVER_AUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "config/limits.h"

enum { TD_KEY_ACCOUNTS = TD_ACCOUNTS_MAX - 1 }; /* account 0 is no key's */

/* 0: no limit. */
typedef struct td_key_limits {
  uint64_t requests_per_minute, tokens_per_minute; /* tokens of prompts and answers */
  uint64_t requests, waiting; /* at the same time: waiting or running; without a first token */
} td_key_limits;

typedef struct td_key {
  unsigned char secret[TD_AUTH_KEY_BYTES]; /* zero-padded */
  char name[TD_KEY_NAME_BYTES]; /* in log and metrics; by default "key-N" for the Nth key of the file */
  uint32_t account;             /* 1 to TD_KEY_ACCOUNTS */
  td_key_limits limits;
  uint64_t is_operator; /* 1: /metrics shows this key what other keys use */
} td_key;

typedef struct td_keys {
  td_key *keys; /* owned */
  uint32_t n;
  uint32_t last_account;    /* highest account given so far */
  bool required;            /* there is a key file, so requests need a key */
  bool lacks_final_newline; /* the file's last line has no newline */
} td_keys;

/* path "": requests need no key. Blank lines and lines that begin with '#' are skipped. A file without keys,
 * a key over 255 bytes, and a repeated key or name are errors. The message never contains a key. */
TD_MUST_CHECK td_status td_keys_read(td_keys *k, const char *path, td_error *err);
/* Assigns accounts to the keys of next, the file as read again. Fails if no account is left. */
TD_MUST_CHECK td_status td_keys_keep_accounts(td_keys *next, const td_keys *now, td_error *err);
/* Whether the file read again (a, after td_keys_keep_accounts) has the same keys and settings as before. */
bool td_keys_equal(const td_keys *a, const td_keys *b);
void td_keys_deinit(td_keys *k);
/* The key in a request's headers: that of "Authorization: Bearer KEY", or of x-api-key if there is no
 * Authorization. Either value may be NULL. Returns NULL if there is no key, also if Authorization has another
 * form. */
const char *td_keys_from_headers(const char *authorization, const char *api_key);
/* Whether the key in the headers is one of these. On true *account is its account (0: keys are not asked). */
bool td_keys_allow(const td_keys *k, const char *authorization, const char *api_key, uint32_t *account);

#endif
