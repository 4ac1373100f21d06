/* See model_ref.h. */
#include "pull/model_ref.h"

#include <stdio.h>
#include <string.h>

/* The name is the last segment of the URL's path. */
static td_status read_url(const char *url, td_model_ref *ref, td_error *err)
{
  const char *path = strstr(url, "://") + 3;
  size_t n = strcspn(path, "?#"), begin = n;
  while (begin > 0 && path[begin - 1] != '/')
    begin--;
  if (strlen(url) >= sizeof ref->url)
    return td_fail(err, TD_ERR_CONFIG, "the URL is longer than %zu bytes", sizeof ref->url - 1);
  strcpy(ref->url, url);
  snprintf(ref->name, sizeof ref->name, "%.*s",
           begin > 0 && n - begin < sizeof ref->name ? (int)(n - begin) : 0, path + begin);
  return TD_OK;
}

static td_status read_repo(const char *word, td_model_ref *ref, td_error *err)
{
  const char *slash = strchr(word, '/'), *file = slash ? strchr(slash + 1, '/') : NULL;
  if (!td_pulled_is_name(word) || !slash)
    return td_fail(err, TD_ERR_CONFIG,
                   "'%s' is no URL (http://, https://), no OWNER/REPO and no OWNER/REPO/FILE", word);
  strcpy(ref->name, word);
  snprintf(ref->repo, sizeof ref->repo, "%.*s", file ? (int)(file - word) : (int)strlen(word), word);
  snprintf(ref->file, sizeof ref->file, "%s", file ? file + 1 : "");
  return TD_OK;
}

td_status td_model_ref_parse(const char *word, const char *as, td_model_ref *ref, td_error *err)
{
  memset(ref, 0, sizeof *ref);
  bool is_url = strncmp(word, "https://", 8) == 0 || strncmp(word, "http://", 7) == 0;
  TD_TRY(is_url ? read_url(word, ref, err) : read_repo(word, ref, err));
  if (*as)
    snprintf(ref->name, sizeof ref->name, "%s", strlen(as) < sizeof ref->name ? as : "");
  if (!td_pulled_is_name(ref->name))
    return td_fail(err, TD_ERR_CONFIG, "'%s' is no name to keep a model under: --as NAME gives another",
                   *as ? as : ref->name);
  return TD_OK;
}
