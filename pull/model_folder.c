/* See model_folder.h. */
#include "pull/model_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pull/progress_line.h"
#include "pull/sync.h"

static td_status join(char out[TD_PULLED_PATH_BYTES], const char *folder, const char *name, td_error *err)
{
  int n = snprintf(out, TD_PULLED_PATH_BYTES, "%s/%s", folder, name);
  return n > 0 && n < TD_PULLED_PATH_BYTES ? TD_OK
                                           : td_fail(err, TD_ERR_IO, "%s: the path is too long", folder);
}

/* ---- the owner ---- */

static td_status become(const struct stat *s, const char *path, td_error *err)
{
  if (setgroups(0, NULL) == 0 && setgid(s->st_gid) == 0 && setuid(s->st_uid) == 0)
    return TD_OK;
  return td_fail(err, TD_ERR_IO, "%s is user %lu's, who this process cannot become: %s", path,
                 (unsigned long)s->st_uid, strerror(errno));
}

td_status td_model_folder_become_owner(const char *folder, td_error *err)
{
  char path[TD_PULLED_PATH_BYTES], here[TD_PULLED_PATH_BYTES] = "";
  struct stat s;
  if (geteuid() != 0)
    return TD_OK;
  if (*folder != '/' && !getcwd(here, sizeof here))
    return td_fail(err, TD_ERR_IO, "%s: %s", folder, strerror(errno));
  TD_TRY(join(path, here, folder + (*folder == '/'), err));
  for (char *end = path; *end;) {
    end += 1 + strcspn(end + 1, "/");
    char after = *end;
    *end = '\0';
    if (lstat(path, &s) != 0)
      return TD_OK; /* root creates this folder and those below */
    bool is_others =
        s.st_uid != 0 || (stat(path, &s) == 0 && s.st_uid != 0); /* owns a link, or what it leads to */
    if (is_others)
      return become(&s, path, err);
    *end = after;
  }
  return TD_OK;
}

/* ---- places ---- */

td_status td_model_folder_make_path(const char *folder, const char *name, char out[TD_PULLED_PATH_BYTES],
                                    td_error *err)
{
  TD_TRY(join(out, folder, name, err));
  for (char *slash = strchr(out + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    td_status st = TD_OK;
    if (mkdir(out, 0755) == 0)
      st = td_sync_parent(out, err);
    else if (errno != EEXIST)
      st = td_fail(err, TD_ERR_IO, "%s: %s", out, strerror(errno));
    *slash = '/';
    TD_TRY(st);
  }
  return TD_OK;
}

/* ---- the list ---- */

static uint64_t size_below(int folder, const char *name)
{
  struct stat s;
  struct dirent *entry;
  if (fstatat(folder, name, &s, AT_SYMLINK_NOFOLLOW) != 0)
    return 0;
  if (!S_ISDIR(s.st_mode))
    return (uint64_t)s.st_size;
  int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
  uint64_t sum = 0;
  while (d && (entry = readdir(d)))
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      sum += size_below(dirfd(d), entry->d_name);
  if (d)
    closedir(d);
  else if (fd >= 0)
    close(fd);
  return sum;
}

static bool ends_with(const char *s, const char *end)
{
  size_t n = strlen(s), m = strlen(end);
  return n > m && strcmp(s + n - m, end) == 0;
}

/* Whether `name` is an entry of the list. If not, it may be a folder that has entries. */
static bool is_entry(int folder, const char *name, bool *is_partial)
{
  char inside[300];
  *is_partial = name[0] == '.' && ends_with(name, ".part");
  snprintf(inside, sizeof inside, "%s/config.json", name);
  return *is_partial ||
         (name[0] != '.' && (ends_with(name, ".gguf") || faccessat(folder, inside, F_OK, 0) == 0));
}

static void print_entry(int folder, const char *below, const char *name, bool is_partial)
{
  char size[32];
  int n = (int)strlen(name) - (is_partial ? 6 : 0); /* for ".NAME.part" */
  printf("%s%.*s\t%s%s\n", below, n, name + is_partial,
         td_progress_line_format_bytes(size_below(folder, name), size),
         is_partial ? "\tnot whole: pull it again to go on" : "");
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
  return strcmp((*a)->d_name, (*b)->d_name);
}

static void list_below(int fd, const char *below, int depth)
{
  struct dirent **entries;
  int n = scandirat(fd, ".", &entries, NULL, by_name);
  for (int i = 0; i < n; i++) {
    const char *name = entries[i]->d_name;
    char deeper[TD_PULLED_PATH_BYTES];
    bool is_partial;
    if (is_entry(fd, name, &is_partial)) {
      print_entry(fd, below, name, is_partial);
    } else if (name[0] != '.' && depth < TD_PULLED_DEPTH) {
      int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      int length = snprintf(deeper, sizeof deeper, "%s%s/", below, name);
      if (next >= 0 && length < (int)sizeof deeper)
        list_below(next, deeper, depth + 1);
      if (next >= 0)
        close(next);
    }
    free(entries[i]);
  }
  if (n >= 0)
    free(entries);
}

td_status td_model_folder_list(const char *folder, td_error *err)
{
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return errno == ENOENT ? TD_OK : td_fail(err, TD_ERR_IO, "%s: %s", folder, strerror(errno));
  list_below(fd, "", 1);
  close(fd);
  return TD_OK;
}

/* ---- removing ---- */

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *at)
{
  return remove(path);
}

/* Removes a file, a link (but not its target), or a model's folder with all that is in it. Returns false if
 * there is no such thing. */
static bool remove_tree(const char *path, td_status *st, td_error *err)
{
  char config[TD_PULLED_PATH_BYTES + 80];
  struct stat s;
  snprintf(config, sizeof config, "%s/config.json", path);
  if (lstat(path, &s) != 0)
    return false;
  if (S_ISDIR(s.st_mode) && access(config, F_OK) != 0 && !ends_with(path, ".part"))
    return false; /* the folder of an owner, which holds models */
  if (nftw(path, remove_one, 16, FTW_PHYS | FTW_DEPTH) != 0)
    *st = td_fail(err, TD_ERR_IO, "%s: %s", path, strerror(errno));
  return true;
}

td_status td_model_folder_remove(const char *folder, const char *name, td_error *err)
{
  static const char *const forms[] = {"%s%s",           "%s%s.gguf",       "%s.%s.part",
                                      "%s.%s.part.txt", "%s.%s.gguf.part", "%s.%s.gguf.part.txt"};
  char path[TD_PULLED_PATH_BYTES], whole[TD_PULLED_PATH_BYTES + 64], begin[TD_PULLED_PATH_BYTES];
  td_status st = TD_OK;
  bool any = false;
  if (!td_pulled_is_name(name))
    return td_fail(err, TD_ERR_CONFIG, "'%s' is no model's name", name);
  TD_TRY(join(path, folder, name, err));
  char *last = strrchr(path, '/') + 1;
  snprintf(begin, sizeof begin, "%.*s", (int)(last - path), path);
  for (size_t i = 0; i < sizeof forms / sizeof *forms && st == TD_OK; i++) {
    snprintf(whole, sizeof whole, forms[i], begin, last);
    any = remove_tree(whole, &st, err) || any;
  }
  if (st == TD_OK && !any)
    return td_fail(err, TD_ERR_CONFIG, "%s: no such model in %s", name, folder);
  for (char *slash = strrchr(path, '/'); st == TD_OK && (size_t)(slash - path) > strlen(folder);
       slash = strrchr(path, '/')) {
    *slash = '\0';
    if (rmdir(path) != 0)
      break;
  }
  return st;
}
