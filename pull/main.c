/* tandem-pull: fetches a model into the folder where tandemd --model NAME finds it. See README.md. */
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pull/fetch.h"
#include "pull/hub.h"
#include "pull/model_folder.h"
#include "pull/sync.h"

/* The same numbers as tandemd's where the meaning is the same. */
enum { EXIT_USAGE = 64, EXIT_WRONG_CONTENT = 65, EXIT_NOT_FETCHED = 69 };

enum { STALL_S = 30, RETRIES = 5, STALL_S_MAX = 3600, RETRIES_MAX = 1000 };

typedef struct settings {
  const char *word, *as, *dir, *hub, *revision, *sha256, *remove;
  uint32_t stall_s, retries;
  bool list, quiet;
} settings;

typedef enum kind { TEXT, NUMBER, FLAG } kind;

typedef struct option {
  const char *name, *value, *help;
  kind kind;
  size_t offset;
  uint32_t max;
} option;

static const option options[] = {
    {"--list", "", "list the models in the folder, with their sizes", FLAG, offsetof(settings, list), 0},
    {"--remove", "NAME", "remove a model, or the incomplete download of one", TEXT,
     offsetof(settings, remove), 0},
    {"--as", "NAME", "store the model under this name", TEXT, offsetof(settings, as), 0},
    {"--sha256", "HEX", "SHA-256 that the file at a URL must have, 64 hex digits", TEXT,
     offsetof(settings, sha256), 0},
    {"--revision", "REV", "branch, tag or commit of a repository (default main)", TEXT,
     offsetof(settings, revision), 0},
    {"--hub", "URL", "hub of the repositories; also $TANDEM_HUB (default https://huggingface.co)", TEXT,
     offsetof(settings, hub), 0},
    {"--dir", "DIR",
     "folder of models; also $TANDEM_MODEL_DIR; default: /var/lib/tandem/models for root, "
     "$XDG_CACHE_HOME/tandem/models or ~/.cache/tandem/models for other users",
     TEXT, offsetof(settings, dir), 0},
    {"--retries", "N", "give up after this many further tries in a row that bring no new bytes [5, 0..1000]",
     NUMBER, offsetof(settings, retries), RETRIES_MAX},
    {"--stall-s", "S", "try again if the server sends nothing for this time [30, 1..3600 s]", NUMBER,
     offsetof(settings, stall_s), STALL_S_MAX},
    {"--quiet", "", "show no progress on stderr", FLAG, offsetof(settings, quiet), 0},
    {"--version", "", "print the version", FLAG, 0, 0},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

static void print_help(void)
{
  puts(
      "usage: tandem-pull [options] URL | OWNER/REPO | OWNER/REPO/FILE\n\n"
      "Fetches a model for tandemd --model NAME, and prints its path. From a repository it takes the "
      "configuration,\n"
      "tokenizer, chat template and safetensors, or one named file, such as a GGUF file. NAME is OWNER/REPO, "
      "OWNER/REPO/FILE,\n"
      "or the last part of the URL.\n\n"
      "An interrupted download continues where it stopped, also in a later run. Sizes and SHA-256 are "
      "checked if the hub\n"
      "or --sha256 gives them. A file gets its name only after that. $HF_TOKEN is sent to the hub, for "
      "private and gated\n"
      "models.\n\n"
      "Exit codes: 64 bad command line, 65 not the expected content, 69 network or disk.\n");
  for (int i = 0; i < N_OPTIONS; i++)
    printf("  %s %-*s %s\n", options[i].name, 20 - (int)strlen(options[i].name), options[i].value,
           options[i].help);
}

/* ---- the command line ---- */

static td_status set_option(settings *s, const option *o, const char *value, td_error *err)
{
  char *to = (char *)s + o->offset, *end;
  if (o->kind == TEXT) {
    *(const char **)to = value;
    return TD_OK;
  }
  errno = 0;
  unsigned long n = strtoul(value, &end, 10);
  if (*value < '0' || *value > '9' || *end || errno || n > o->max || (n == 0 && o->max == STALL_S_MAX))
    return td_fail(err, TD_ERR_CONFIG, "%s: '%s' is not in range", o->name, value);
  *(uint32_t *)to = (uint32_t)n;
  return TD_OK;
}

/* "--name VALUE" or "--name=VALUE". */
static td_status read_option(settings *s, int argc, char **argv, int *i, td_error *err)
{
  const char *word = argv[*i], *equals = strchr(word, '=');
  size_t n = equals ? (size_t)(equals - word) : strlen(word);
  for (int k = 0; k < N_OPTIONS; k++) {
    const option *o = &options[k];
    if (strlen(o->name) != n || strncmp(o->name, word, n) != 0)
      continue;
    if (o->kind == FLAG) {
      if (equals)
        return td_fail(err, TD_ERR_CONFIG, "%s takes no value", o->name);
      *((bool *)s + o->offset) = true;
      return TD_OK;
    }
    if (!equals && *i + 1 >= argc)
      return td_fail(err, TD_ERR_CONFIG, "%s needs a value", o->name);
    return set_option(s, o, equals ? equals + 1 : argv[++*i], err);
  }
  return td_fail(err, TD_ERR_CONFIG, "unknown option '%s' (see --help)", word);
}

static td_status read_args(settings *s, int argc, char **argv, td_error *err)
{
  for (int i = 1; i < argc; i++) {
    if (argv[i][0] == '-') {
      TD_TRY(read_option(s, argc, argv, &i, err));
      continue;
    }
    if (s->word)
      return td_fail(err, TD_ERR_CONFIG, "unexpected argument '%s': one model at a time", argv[i]);
    s->word = argv[i];
  }
  if ((s->word != NULL) + (s->remove != NULL) + s->list != 1)
    return td_fail(err, TD_ERR_CONFIG, "a model to fetch, --list or --remove NAME is needed (see --help)");
  if (*s->sha256 && (strlen(s->sha256) != 64 || strspn(s->sha256, "0123456789abcdefABCDEF") != 64))
    return td_fail(err, TD_ERR_CONFIG, "--sha256: not 64 hex digits");
  if (strspn(s->revision, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") !=
      strlen(s->revision))
    return td_fail(err, TD_ERR_CONFIG, "--revision: '%s' is no branch, tag or commit", s->revision);
  return TD_OK;
}

/* ---- fetching ---- */

static const char *hub_token(void)
{
  const char *token = getenv("HF_TOKEN");
  return token && !strpbrk(token, "\r\n") ? token : "";
}

static td_status fetch_url(const settings *s, const td_model_ref *ref, td_progress_line *progress,
                           const char *path, td_error *err)
{
  size_t n = strlen(s->hub); /* the token is for the hub only */
  bool of_hub = strncmp(ref->url, s->hub, n) == 0 && ref->url[n] == '/';
  td_fetch f = {.url = ref->url,
                .token = of_hub ? hub_token() : "",
                .name = ref->name,
                .sha256 = s->sha256,
                .n_bytes = TD_HTTP_UNKNOWN,
                .stall_s = s->stall_s,
                .retries = s->retries,
                .progress = progress};
  return td_fetch_file(&f, path, err);
}

/* Whether the file is there and has this hash. Always false without a hash. */
static bool has_sha256(const char *path, const char *sha256)
{
  char chunk[65536], hex[TD_SHA256_HEX_BYTES];
  td_sha256 hash;
  size_t n;
  FILE *f = *sha256 ? fopen(path, "re") : NULL;
  if (!f)
    return false;
  td_sha256_begin(&hash);
  while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
    td_sha256_add(&hash, chunk, n);
  bool bad = ferror(f) != 0;
  fclose(f);
  td_sha256_end(&hash, hex);
  return !bad && strcasecmp(hex, sha256) == 0;
}

static td_status fetch_hub_file(const settings *s, const td_hub *hub, const td_model_ref *ref,
                                const td_hub_list *list, const td_hub_file *file, td_progress_line *progress,
                                const char *path, td_error *err)
{
  char url[TD_MODEL_REF_URL_BYTES];
  if (has_sha256(path, file->sha256)) /* fetched by an earlier run */
    return TD_OK;
  TD_TRY(td_hub_url(hub, ref, list, file->name, url, err));
  td_fetch f = {.url = url,
                .token = hub->token,
                .name = file->name,
                .sha256 = file->sha256,
                .n_bytes = file->n_bytes,
                .stall_s = s->stall_s,
                .retries = s->retries,
                .progress = progress};
  return td_fetch_file(&f, path, err);
}

/* Fetches all files into a folder whose name marks it as incomplete, and renames the folder when all are
 * there. */
static td_status fetch_folder(const settings *s, const td_hub *hub, const td_model_ref *ref,
                              const td_hub_list *list, td_progress_line *progress, const char *path,
                              td_error *err)
{
  char partial[TD_PULLED_PATH_BYTES], file[TD_PULLED_PATH_BYTES];
  const char *last = strrchr(path, '/') + 1;
  int n = snprintf(partial, sizeof partial, "%.*s.%s.part", (int)(last - path), path, last);
  if (n < 0 || (size_t)n >= sizeof partial || (mkdir(partial, 0755) != 0 && errno != EEXIST))
    return td_fail(err, TD_ERR_IO, "%s: %s", partial, strerror(errno));
  for (size_t i = 0; i < list->n_files; i++) {
    TD_TRY(td_model_folder_make_path(partial, list->files[i].name, file, err));
    TD_TRY(fetch_hub_file(s, hub, ref, list, &list->files[i], progress, file, err));
  }
  return td_sync_rename(partial, path, err);
}

/* Fetches the file that was named last: the daemon is given its name, and then expects the other parts. */
static td_status fetch_parts(const settings *s, const td_hub *hub, const td_model_ref *ref,
                             const td_hub_list *list, td_progress_line *progress, const char *path,
                             td_error *err)
{
  char part_path[TD_PULLED_PATH_BYTES];
  const td_hub_file *first = NULL;
  size_t n_folder = (size_t)(strrchr(path, '/') - path);
  for (size_t i = 0; i < list->n_files; i++) {
    const td_hub_file *file = &list->files[i];
    const char *slash = strrchr(file->name, '/');
    if (strcmp(file->name, ref->file) == 0) {
      first = file;
      continue;
    }
    int n =
        snprintf(part_path, sizeof part_path, "%.*s/%s", (int)n_folder, path, slash ? slash + 1 : file->name);
    if (n < 0 || (size_t)n >= sizeof part_path || *s->as)
      return td_fail(err, TD_ERR_CONFIG, "%s is one of several parts, which have their own names: no --as",
                     ref->file);
    TD_TRY(fetch_hub_file(s, hub, ref, list, file, progress, part_path, err));
  }
  return first ? fetch_hub_file(s, hub, ref, list, first, progress, path, err)
               : td_fail(err, TD_ERR_CONFIG, "%s has no file %s", ref->repo, ref->file);
}

static td_status fetch_repo(const settings *s, const td_model_ref *ref, td_progress_line *progress,
                            const char *path, td_error *err)
{
  td_hub hub = {.endpoint = s->hub, .revision = s->revision, .token = hub_token(), .stall_s = s->stall_s};
  td_hub_list list;
  TD_TRY(td_hub_find(&hub, ref, &list, err));
  td_status st = *ref->file ? fetch_parts(s, &hub, ref, &list, progress, path, err)
                            : fetch_folder(s, &hub, ref, &list, progress, path, err);
  td_hub_list_deinit(&list);
  return st;
}

/* Whether the wanted model is there already. Fails if something else has its name. */
static td_status find_existing(const settings *s, const td_model_ref *ref, const char *path, bool *exists,
                               td_error *err)
{
  char config[TD_PULLED_PATH_BYTES + 16];
  struct stat is;
  bool is_folder = !*ref->url && !*ref->file;
  snprintf(config, sizeof config, "%s/config.json", path);
  *exists = false;
  if (stat(path, &is) != 0 || (S_ISDIR(is.st_mode) && rmdir(path) == 0)) /* an empty one is in the way */
    return TD_OK;
  *exists = is_folder ? access(config, F_OK) == 0 : S_ISREG(is.st_mode);
  if (!*exists)
    return td_fail(err, TD_ERR_CONFIG, "%s: %s; --as NAME keeps it under another name", path,
                   S_ISDIR(is.st_mode) ? "the folder holds other files" : "there is another file");
  if (*s->sha256 && !has_sha256(path, s->sha256))
    return td_fail(err, TD_ERR_MODEL, "%s is here already, but its SHA-256 is not the one of --sha256",
                   ref->name);
  return TD_OK;
}

static td_status fetch(const settings *s, td_error *err)
{
  td_model_ref ref;
  td_progress_line progress = {.quiet = s->quiet};
  char path[TD_PULLED_PATH_BYTES];
  bool exists;
  TD_TRY(td_model_ref_parse(s->word, s->as, &ref, err));
  if (*s->sha256 && !*ref.url)
    return td_fail(err, TD_ERR_CONFIG, "--sha256 is for URLs; the hub tells its own files'");
  TD_TRY(td_model_folder_make_path(s->dir, ref.name, path, err));
  TD_TRY(find_existing(s, &ref, path, &exists, err));
  if (exists) {
    if (!s->quiet)
      fprintf(stderr, "  %s is here already; tandem-pull --remove removes it\n", ref.name);
  } else {
    TD_TRY(*ref.url ? fetch_url(s, &ref, &progress, path, err) : fetch_repo(s, &ref, &progress, path, err));
  }
  puts(path);
  return TD_OK;
}

static int exit_code(td_status st)
{
  switch (st) {
  case TD_OK: return 0;
  case TD_ERR_CONFIG: return EXIT_USAGE;
  case TD_ERR_MODEL: return EXIT_WRONG_CONTENT;
  default: return EXIT_NOT_FETCHED;
  }
}

/* The address of the hub, without trailing slashes. */
static const char *hub_address(const char *given)
{
  static char address[TD_MODEL_REF_URL_BYTES / 2];
  const char *variable = getenv("TANDEM_HUB");
  const char *chosen = *given ? given : variable && *variable ? variable : "https://huggingface.co";
  snprintf(address, sizeof address, "%s", chosen);
  for (size_t n = strlen(address); n > 0 && address[n - 1] == '/'; n--)
    address[n - 1] = '\0';
  return address;
}

static td_status run(settings *s, td_error *err)
{
  static char folder[TD_PULLED_PATH_BYTES];
  if (!*s->dir && !td_pulled_folder(0, folder))
    return td_fail(err, TD_ERR_CONFIG, "no folder for models: --dir, $TANDEM_MODEL_DIR or $HOME is needed");
  if (!*s->dir)
    s->dir = folder;
  s->hub = hub_address(s->hub);
  if (s->list)
    return td_model_folder_list(s->dir, err);
  bool was_root = geteuid() == 0;
  TD_TRY(td_model_folder_become_owner(s->dir, err));
  td_status st = s->remove ? td_model_folder_remove(s->dir, s->remove, err) : fetch(s, err);
  if (st == TD_ERR_IO && was_root && geteuid() != 0) /* explains "Permission denied" to root */
    td_error_prefix(err, "as user %lu, who owns the folder", (unsigned long)geteuid());
  return st;
}

int main(int argc, char **argv)
{
  settings s = {.as = "",
                .dir = "",
                .hub = "",
                .revision = "main",
                .sha256 = "",
                .stall_s = STALL_S,
                .retries = RETRIES};
  td_error err = {0};
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      print_help();
      return 0;
    }
    if (strcmp(argv[i], "--version") == 0) {
      printf("tandem-pull %s\n", TD_VERSION);
      return 0;
    }
  }
  curl_global_init(CURL_GLOBAL_DEFAULT);
  td_status st = read_args(&s, argc, argv, &err);
  if (st == TD_OK)
    st = run(&s, &err);
  curl_global_cleanup();
  if (st != TD_OK)
    fprintf(stderr, "tandem-pull: %s\n", err.message);
  return exit_code(st);
}
