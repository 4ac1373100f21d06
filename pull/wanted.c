/* See wanted.h. */
#include "pull/wanted.h"

#include <stdio.h>
#include <string.h>

/* The name is the last segment of the URL's path. */
static td_status read_url(const char *url, td_wanted *w, td_error *err)
{
  const char *path = strstr(url, "://") + 3;
  size_t n = strcspn(path, "?#"), begin = n;
  while (begin > 0 && path[begin - 1] != '/')
    begin--;
  if (strlen(url) >= sizeof w->url)
    return td_fail(err, TD_ERR_CONFIG, "the URL is longer than %zu bytes", sizeof w->url - 1);
  strcpy(w->url, url);
  snprintf(w->name, sizeof w->name, "%.*s", begin > 0 && n - begin < sizeof w->name ? (int)(n - begin) : 0,
           path + begin);
  return TD_OK;
}

static td_status read_repo(const char *word, td_wanted *w, td_error *err)
{
  const char *slash = strchr(word, '/'), *file = slash ? strchr(slash + 1, '/') : NULL;
  if (!td_pulled_is_name(word) || !slash)
    return td_fail(err, TD_ERR_CONFIG,
                   "'%s' is no URL (http://, https://), no OWNER/REPO and no OWNER/REPO/FILE", word);
  strcpy(w->name, word);
  snprintf(w->repo, sizeof w->repo, "%.*s", file ? (int)(file - word) : (int)strlen(word), word);
  snprintf(w->file, sizeof w->file, "%s", file ? file + 1 : "");
  return TD_OK;
}

td_status td_wanted_read(const char *word, const char *as, td_wanted *w, td_error *err)
{
  memset(w, 0, sizeof *w);
  bool is_url = strncmp(word, "https://", 8) == 0 || strncmp(word, "http://", 7) == 0;
  TD_TRY(is_url ? read_url(word, w, err) : read_repo(word, w, err));
  if (*as)
    snprintf(w->name, sizeof w->name, "%s", strlen(as) < sizeof w->name ? as : "");
  if (!td_pulled_is_name(w->name))
    return td_fail(err, TD_ERR_CONFIG, "'%s' is no name to keep a model under: --as NAME gives another",
                   *as ? as : w->name);
  return TD_OK;
}
