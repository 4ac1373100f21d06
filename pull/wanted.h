/* Parses the argument of the command line: a URL, OWNER/REPO, or OWNER/REPO/FILE. */
#ifndef TD_PULL_WANTED_H
#define TD_PULL_WANTED_H

#include "common/pulled.h"
#include "common/status.h"

enum { TD_WANTED_URL_BYTES = 4096 };

typedef struct td_wanted {
  char name[TD_PULLED_NAME_BYTES]; /* the name it is kept under, and that --model takes */
  char url[TD_WANTED_URL_BYTES];   /* of a file; "": it is in a repository */
  char repo[TD_PULLED_NAME_BYTES]; /* OWNER/REPO */
  char file[TD_PULLED_NAME_BYTES]; /* the one file to fetch; "": all that a model needs */
} td_wanted;

/* as: keep it under this name instead; "": no. */
TD_MUST_CHECK td_status td_wanted_read(const char *word, const char *as, td_wanted *w, td_error *err);

#endif
