/* Parses the argument of the command line: a URL, OWNER/REPO, or OWNER/REPO/FILE. */
#ifndef TD_PULL_MODEL_REF_H
#define TD_PULL_MODEL_REF_H

#include "common/pulled.h"
#include "common/status.h"

enum { TD_MODEL_REF_URL_BYTES = 4096 };

typedef struct td_model_ref {
  char name[TD_PULLED_NAME_BYTES];  /* the name it is kept under, and that --model takes */
  char url[TD_MODEL_REF_URL_BYTES]; /* of a file; "": it is in a repository */
  char repo[TD_PULLED_NAME_BYTES];  /* OWNER/REPO */
  char file[TD_PULLED_NAME_BYTES];  /* the one file to fetch; "": all that a model needs */
} td_model_ref;

/* as: keep it under this name instead; "": no. */
TD_MUST_CHECK td_status td_model_ref_parse(const char *word, const char *as, td_model_ref *ref,
                                           td_error *err);

#endif
