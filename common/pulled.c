/* See pulled.h. */
#include "common/pulled.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MACHINE_FOLDER "/var/lib/tandem/models"

static bool join(char out[TD_PULLED_PATH_BYTES], const char *folder, const char *name)
{
  int n = snprintf(out, TD_PULLED_PATH_BYTES, "%s%s", folder, name);
  return n > 0 && n < TD_PULLED_PATH_BYTES;
}

static bool state_folder(char out[TD_PULLED_PATH_BYTES])
{
  const char *state = getenv("STATE_DIRECTORY");
  char first[TD_PULLED_PATH_BYTES];
  if (!state || *state != '/')
    return false;
  /* the first of several folders */
  int n = snprintf(first, sizeof first, "%.*s", (int)strcspn(state, ":"), state);
  return n > 0 && n < TD_PULLED_PATH_BYTES && join(out, first, "/models");
}

static bool user_folder(char out[TD_PULLED_PATH_BYTES])
{
  const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (geteuid() == 0) /* models that root fetches are for the machine */
    return false;
  if (xdg && *xdg == '/')
    return join(out, xdg, "/tandem/models");
  return home && *home == '/' && join(out, home, "/.cache/tandem/models");
}

static bool machine_folder(char out[TD_PULLED_PATH_BYTES]) { return join(out, MACHINE_FOLDER, ""); }

bool td_pulled_folder(size_t n, char out[TD_PULLED_PATH_BYTES])
{
  static bool (*const folders[TD_PULLED_FOLDERS])(char *) = {state_folder, user_folder, machine_folder};
  const char *only = getenv("TANDEM_MODEL_DIR");
  if (only && *only)
    return n == 0 && join(out, only, "");
  for (size_t i = 0; i < TD_PULLED_FOLDERS; i++)
    if (folders[i](out) && n-- == 0)
      return true;
  return false;
}

static bool is_name_byte(char c)
{
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-' || c == '+';
}

bool td_pulled_is_name(const char *name)
{
  size_t n = strlen(name), depth = 1;
  if (n == 0 || n >= TD_PULLED_NAME_BYTES || name[n - 1] == '/')
    return false;
  for (size_t i = 0; i < n; i++) {
    bool begins = i == 0 || name[i - 1] == '/';
    if (name[i] == '/' ? begins : !is_name_byte(name[i]) || (begins && (name[i] == '.' || name[i] == '-')))
      return false;
    depth += name[i] == '/';
  }
  return depth <= TD_PULLED_DEPTH;
}

static bool is_file(const char *path)
{
  struct stat s;
  return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

static bool is_gguf(const char *name)
{
  size_t n = strlen(name);
  return n > 5 && name[0] != '.' && strcmp(name + n - 5, ".gguf") == 0;
}

unsigned td_pulled_part(const char *file, size_t *n_stem)
{
  static const char tail[] = "00000-of-00000.gguf";
  size_t n = strlen(file), m = sizeof tail - 1;
  if (n <= m + 1 || file[n - m - 1] != '-')
    return 0;
  for (size_t i = 0; i < m; i++) {
    char c = file[n - m + i];
    if (tail[i] == '0' ? c < '0' || c > '9' : c != tail[i])
      return 0;
  }
  *n_stem = n - m;
  return (unsigned)strtoul(file + n - m, NULL, 10);
}

/* Appends the folder's only GGUF file, or the first part of its only split one. */
static bool only_gguf(char path[TD_PULLED_PATH_BYTES])
{
  char found[256] = "", folder[TD_PULLED_PATH_BYTES];
  struct dirent *entry;
  size_t n = 0, stem;
  DIR *d = opendir(path);
  if (!d)
    return false;
  while ((entry = readdir(d)) && n < 2)
    if (is_gguf(entry->d_name) && td_pulled_part(entry->d_name, &stem) <= 1) {
      snprintf(found, sizeof found, "/%.254s", entry->d_name);
      n++;
    }
  closedir(d);
  strcpy(folder, path);
  return n == 1 && join(path, folder, found);
}

/* path: a candidate; on success, the model's file or folder. */
static bool is_model(char path[TD_PULLED_PATH_BYTES])
{
  char inside[TD_PULLED_PATH_BYTES];
  if (is_file(path) || (join(inside, path, "/config.json") && is_file(inside)))
    return true;
  if (join(inside, path, ".gguf") && is_file(inside)) {
    strcpy(path, inside);
    return true;
  }
  return only_gguf(path);
}

bool td_pulled_find(const char *name, char out[TD_PULLED_PATH_BYTES])
{
  char folder[TD_PULLED_PATH_BYTES], below[TD_PULLED_NAME_BYTES + 1];
  if (!td_pulled_is_name(name))
    return false;
  snprintf(below, sizeof below, "/%s", name);
  for (size_t i = 0; td_pulled_folder(i, folder); i++)
    if (join(out, folder, below) && is_model(out))
      return true;
  return false;
}
