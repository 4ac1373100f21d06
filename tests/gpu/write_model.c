/* Writes the dummy weights of a folder's config.json (load_format = dummy) as model.safetensors, and a
 * tokenizer.json of single bytes if there is none: `write_model FOLDER [SEED]`. It is for measuring how a
 * large model loads without a real one, and for checking that the loaded weights are those written: both
 * formats must give the same tokens. */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/dummy.h"
#include "models/model_desc.h"
#include "models/roles.h"

enum { CHUNK = 1 << 20 /* elements */, THREADS = 16 };

typedef struct tensor {
  td_role role;
  uint32_t layer;
  uint64_t n, offset; /* elements; bytes in the file */
} tensor;

typedef struct job {
  const tensor *tensors;
  uint32_t n_tensors;
  uint64_t seed;
  int fd;
  _Atomic uint64_t next; /* chunk number over all tensors */
} job;

static void die(const char *what)
{
  perror(what);
  exit(1);
}

static void write_all(int fd, const void *data, size_t n, uint64_t at)
{
  for (size_t done = 0; done < n;) {
    ssize_t k = pwrite(fd, (const char *)data + done, n - done, (off_t)(at + done));
    if (k <= 0)
      die("write");
    done += (size_t)k;
  }
}

static void write_chunk(const job *j, const tensor *t, uint64_t first, uint16_t *buffer)
{
  uint64_t n = t->n - first < CHUNK ? t->n - first : CHUNK, seed = td_role_seed(j->seed, t->role, t->layer);
  for (uint64_t i = 0; i < n; i++)
    buffer[i] = td_role_is_norm(t->role) ? 0x3f80 : td_dummy_bf16(seed, first + i);
  write_all(j->fd, buffer, n * 2, t->offset + first * 2);
}

static void *run(void *arg)
{
  job *j = arg;
  uint16_t *buffer = malloc(CHUNK * sizeof *buffer);
  if (!buffer)
    die("memory");
  for (;;) {
    uint64_t chunk = j->next++;
    uint32_t i = 0;
    for (uint64_t have; i < j->n_tensors && chunk >= (have = (j->tensors[i].n + CHUNK - 1) / CHUNK); i++)
      chunk -= have;
    if (i == j->n_tensors)
      break;
    write_chunk(j, &j->tensors[i], chunk * CHUNK, buffer);
  }
  free(buffer);
  return NULL;
}

/* Appends the tensor and its line of the header. */
static size_t add(const td_model_desc *d, td_role role, uint32_t layer, tensor *t, uint64_t *bytes,
                  char *header, size_t at, size_t size)
{
  char name[TD_ROLE_NAME_BYTES];
  uint64_t shape[2];
  bool matrix = td_role_shape(role, d, shape) == 2;
  *t = (tensor){role, layer, shape[0] * (matrix ? shape[1] : 1), *bytes};
  at += (size_t)snprintf(header + at, size - at, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%" PRIu64,
                         at > 1 ? "," : "", td_role_name(role, d, layer, name), shape[0]);
  if (matrix)
    at += (size_t)snprintf(header + at, size - at, ",%" PRIu64, shape[1]);
  at += (size_t)snprintf(header + at, size - at, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *bytes,
                         *bytes + t->n * 2);
  *bytes += t->n * 2;
  return at;
}

static void write_weights(const td_model_desc *d, uint64_t seed, int fd)
{
  size_t most = TD_ROLE_COUNT * ((size_t)d->n_layers + 1), size = most * 256, at = 1;
  tensor *tensors = calloc(most, sizeof *tensors);
  char *header = calloc(1, size);
  pthread_t threads[THREADS];
  uint64_t bytes = 0;
  uint32_t n = 0;
  if (!tensors || !header)
    die("memory");
  header[0] = '{';
  for (uint32_t layer = 0; layer < d->n_layers; layer++)
    for (td_role r = 0; r < TD_ROLE_COUNT; r++)
      if (td_role_present(r, d) && (layer == 0 || r >= TD_ROLE_ATTN_NORM))
        at = add(d, r, layer, &tensors[n++], &bytes, header, at, size);
  header[at++] = '}';
  while (at % 8 != 0)
    header[at++] = ' ';
  uint64_t header_bytes = at; /* little-endian, as this program's machines are */
  write_all(fd, &header_bytes, 8, 0);
  write_all(fd, header, at, 8);
  for (uint32_t i = 0; i < n; i++)
    tensors[i].offset += 8 + header_bytes;
  job j = {.tensors = tensors, .n_tensors = n, .seed = seed, .fd = fd};
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&threads[i], NULL, run, &j) != 0)
      die("thread");
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  printf("%" PRIu32 " tensors, %.2f GB\n", n, (double)bytes / 1e9);
  free(header);
  free(tensors);
}

/* The 256 characters that represent bytes in byte-level vocabularies. */
static void write_tokenizer(const char *folder)
{
  char path[4096];
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  FILE *f = fopen(path, "wx");
  if (!f)
    return; /* there is one */
  fprintf(f, "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"post_processor\":null,\"pre_"
             "tokenizer\":{\"type\":"
             "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"decoder\":"
             "{\"type\":\"ByteLevel\"},"
             "\"model\":{\"type\":\"BPE\",\"vocab\":{");
  int id = 0, others = 256;
  for (int b = 0; b < 256; b++) {
    bool plain = (b > 32 && b < 127) || (b > 160 && b != 173);
    fprintf(f, "%s\"\\u%04x\":%d", id ? "," : "", plain ? b : others, id);
    id++;
    others += !plain;
  }
  fprintf(f, "},\"merges\":[]}}\n");
  if (fclose(f) != 0)
    die(path);
}

int main(int argc, char **argv)
{
  td_error err = {0};
  td_model_files *files;
  td_model_desc d;
  char path[4096];
  if (argc < 2)
    return fprintf(stderr, "usage: write_model FOLDER [SEED]\n"), 2;
  if (td_model_files_open_described(argv[1], &files, &err) || td_model_desc_read(files, &d, &err))
    return fprintf(stderr, "%s\n", err.message), 1;
  snprintf(path, sizeof path, "%s/model.safetensors", argv[1]);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0)
    die(path);
  write_weights(&d, argc > 2 ? strtoull(argv[2], NULL, 10) : 0, fd);
  write_tokenizer(argv[1]);
  if (close(fd) != 0)
    die(path);
  td_model_files_close(files);
  return 0;
}
