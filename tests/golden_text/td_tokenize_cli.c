/* The tokenizer behind a pipe, for comparison with references that are not written in C.
 *
 *   td_tokenize_cli MODEL.gguf | FOLDER | tokenizer.json | tokenizer.model [--time]
 *
 * A request on standard input is four numbers (32 bits, this machine's byte order) and a payload:
 *   op, n_bytes, n_spans, max_tokens, then n_spans pairs of numbers [start, end), then n_bytes bytes.
 * op 0: encode with the spans trusted; 1: encode with everything trusted; 2: decode (bytes are ids); 3:
 * decode without special tokens; 4: encode trusted, with BOS as the model adds it; 5: the byte lengths of
 * the parts into which the splitters split the text, ignoring added tokens and normalisation. The answer is
 * a count and that many ids (encode) or bytes (decode). The count 2^32 - 1 means a refusal; a second count
 * and a message follow. --time prints the CPU time of loading and of all encoding to standard error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/limits.h"
#include "models/tokenizer/internal.h"

static double now_ms(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static _Noreturn void die(const char *what)
{
  fprintf(stderr, "td_tokenize_cli: %s\n", what);
  exit(1);
}

static char *read_file(const char *path, size_t *n)
{
  FILE *f = fopen(path, "rb");
  if (!f)
    die(path);
  size_t cap = 1 << 20;
  char *data = malloc(cap);
  *n = 0;
  for (size_t got; data && (got = fread(data + *n, 1, cap - *n, f)) > 0;) {
    *n += got;
    if (*n == cap)
      data = realloc(data, cap *= 2);
  }
  fclose(f);
  if (!data)
    die("no memory");
  return data;
}

static td_tokenizer *load(const char *path, bool timed)
{
  td_error err = {0};
  td_tokenizer *t = NULL;
  size_t len = strlen(path);
  if (len > 6 && strcmp(path + len - 6, ".model") == 0) {
    size_t n;
    char *bytes = read_file(path, &n);
    t = td_tokenizer_new(&err);
    double from = now_ms();
    if (!t || td_tokenizer_load_spm(t, bytes, n, NULL, NULL, &err) != TD_OK)
      die(err.message);
    if (timed)
      fprintf(stderr, "load: %.1f ms\n", now_ms() - from);
    free(bytes);
    return t;
  }
  if (len > 5 && strcmp(path + len - 5, ".json") == 0) {
    size_t n;
    char *text = read_file(path, &n);
    td_json_limits limits = {td_limit_max(TD_LIMIT_MODEL_JSON_DEPTH), td_limit_max(TD_LIMIT_MODEL_JSON_NODES),
                             TD_ERR_MODEL};
    cJSON *json = NULL;
    if (td_json_parse(text, n, &limits, &json, &err) != TD_OK)
      die(err.message);
    double from = now_ms();
    if (td_tokenizer_load_json(json, NULL, &t, &err) != TD_OK)
      die(err.message);
    if (timed)
      fprintf(stderr, "load: %.1f ms (JSON parsed before)\n", now_ms() - from);
    cJSON_Delete(json);
    free(text);
    return t;
  }
  td_model_files *files = NULL;
  if (td_model_files_open(path, &files, &err) != TD_OK)
    die(err.message);
  double from = now_ms();
  if (td_tokenizer_load(files, &t, &err) != TD_OK)
    die(err.message);
  if (timed)
    fprintf(stderr, "load: %.1f ms\n", now_ms() - from);
  td_model_files_close(files);
  return t;
}

static void get(void *out, size_t n)
{
  if (n && fread(out, 1, n, stdin) != n)
    die("request is cut off");
}

static void put(const void *data, size_t n)
{
  if (n && fwrite(data, 1, n, stdout) != n)
    die("cannot write");
}

static void put_count(uint32_t n) { put(&n, sizeof n); }

static void decode(const td_tokenizer *t, const char *bytes, uint32_t n_bytes, bool skip_special)
{
  td_detok d;
  td_buf out;
  td_detok_init(&d, t, skip_special, true);
  td_buf_init(&out, 0);
  for (uint32_t i = 0; i + 4 <= n_bytes; i += 4) {
    int32_t id;
    memcpy(&id, bytes + i, 4);
    td_detok_push(&d, id, &out);
  }
  td_detok_finish(&d, &out);
  put_count((uint32_t)out.len_bytes);
  put(out.data, out.len_bytes);
  td_buf_deinit(&out);
}

static void put_pieces(const td_tokenizer *t, uint32_t level, const unsigned char *p, size_t n)
{
  if (level == t->n_splits) {
    put_count((uint32_t)n);
    return;
  }
  for (size_t piece; n > 0; p += piece, n -= piece) {
    size_t steps = SIZE_MAX;
    piece = td_split_next(&t->splits[level], p, n, &steps);
    put_pieces(t, level + 1, p, piece);
  }
}

int main(int argc, char **argv)
{
  bool timed = argc == 3 && strcmp(argv[2], "--time") == 0;
  if (argc != 2 + timed)
    die("usage: td_tokenize_cli MODEL.gguf|FOLDER|tokenizer.json [--time]");
  td_tokenizer *t = load(argv[1], timed);
  uint32_t head[4];
  double spent_ms = 0;
  size_t total = 0;
  while (fread(head, sizeof head, 1, stdin) == 1) {
    uint32_t op = head[0], n = head[1], n_spans = head[2];
    uint32_t *pairs = calloc(n_spans + 1, 8);
    td_span *spans = calloc(n_spans + 1, sizeof *spans);
    char *text = malloc((size_t)n + 1);
    if (!pairs || !spans || !text)
      die("no memory");
    get(pairs, (size_t)n_spans * 8);
    get(text, n);
    for (uint32_t i = 0; i < n_spans; i++)
      spans[i] = (td_span){pairs[2 * i], pairs[2 * i + 1]};
    if (op == 1 || op == 4) {
      spans[0] = (td_span){0, n};
      n_spans = 1;
    }
    if (op == 2 || op == 3) {
      decode(t, text, n, op == 3);
    } else if (op == 5) {
      put_pieces(t, 0, (const unsigned char *)text, n);
      put_count(0);
    } else {
      td_ids ids = {0};
      td_error err = {0};
      double from = now_ms();
      td_status status = td_tokenizer_encode(t, text, n, spans, n_spans, op == 4, head[3], &ids, &err);
      spent_ms += now_ms() - from;
      total += n;
      if (status == TD_OK) {
        put_count((uint32_t)ids.n);
        put(ids.ids, ids.n * sizeof *ids.ids);
      } else {
        put_count(UINT32_MAX);
        put_count((uint32_t)strlen(err.message));
        put(err.message, strlen(err.message));
      }
      td_ids_deinit(&ids);
    }
    fflush(stdout);
    free(pairs);
    free(spans);
    free(text);
  }
  if (timed)
    fprintf(stderr, "encode: %zu bytes in %.1f ms\n", total, spent_ms);
  td_tokenizer_destroy(t);
  return 0;
}
