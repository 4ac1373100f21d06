/* Model files made in memory, for tests of weights/ and models/: a growing byte string with little-endian
 * writers, and temporary files and folders. */
#ifndef TD_TESTS_WEIGHTS_FIXTURE_H
#define TD_TESTS_WEIGHTS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "models/weights/weights.h"

enum { FIXTURE_PAGE = 4096 };

static inline void put_u32(td_buf *b, uint32_t v) { td_buf_append(b, &v, 4); }
static inline void put_u64(td_buf *b, uint64_t v) { td_buf_append(b, &v, 8); }

static inline void put_text(td_buf *b, const char *s)
{
  put_u64(b, strlen(s));
  td_buf_append_str(b, s);
}

static inline void put_key(td_buf *b, const char *key, uint32_t type)
{
  put_text(b, key);
  put_u32(b, type);
}

static inline void put_key_u32(td_buf *b, const char *key, uint32_t v)
{
  put_key(b, key, 4);
  put_u32(b, v);
}

static inline void put_key_f32(td_buf *b, const char *key, float v)
{
  put_key(b, key, 6);
  td_buf_append(b, &v, 4);
}

static inline void put_key_text(td_buf *b, const char *key, const char *v)
{
  put_key(b, key, 8);
  put_text(b, v);
}

/* dims innermost first, as the file has them. */
static inline void put_tensor(td_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims,
                              uint32_t type, uint64_t offset)
{
  put_text(b, name);
  put_u32(b, n_dims);
  for (uint32_t i = 0; i < n_dims; i++)
    put_u64(b, dims[i]);
  put_u32(b, type);
  put_u64(b, offset);
}

static inline void put_padding(td_buf *b, size_t multiple)
{
  while (b->len_bytes % multiple)
    td_buf_append_char(b, 0);
}

static inline void put_header(td_buf *b, uint64_t n_tensors, uint64_t n_keys)
{
  td_buf_append_str(b, "GGUF");
  put_u32(b, 3);
  put_u64(b, n_tensors);
  put_u64(b, n_keys);
}

/* Opens bytes as a file of exactly that size. */
static inline td_status open_bytes(const void *bytes, size_t n, td_model_files **out, td_error *err)
{
  char path[64];
  int fd = memfd_create("model", MFD_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, bytes, n), (ssize_t)n);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  td_status st = td_model_files_open(path, out, err);
  close(fd);
  return st;
}

static inline void write_file(const char *folder, const char *name, const void *bytes, size_t n)
{
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
}

/* Writes model.safetensors from its header, which lacks only the last brace, and the tensors' data. Frees
 * both. */
static inline void write_tensors(const char *folder, td_buf *header, td_buf *data)
{
  td_buf file;
  td_buf_append_char(header, '}');
  while (header->len_bytes % 8)
    td_buf_append_char(header, ' ');
  td_buf_init(&file, 0);
  put_u64(&file, header->len_bytes);
  td_buf_append(&file, header->data, header->len_bytes);
  td_buf_append(&file, data->data, data->len_bytes);
  write_file(folder, "model.safetensors", file.data, file.len_bytes);
  td_buf_deinit(header);
  td_buf_deinit(data);
  td_buf_deinit(&file);
}

static inline void make_folder(char path[64])
{
  snprintf(path, 64, "/tmp/td_model_XXXXXX");
  assert_non_null(mkdtemp(path));
}

static inline void remove_folder(const char *path)
{
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", path);
  assert_int_equal(system(command), 0);
}

/* Reads every byte and value that an opened model returns: an access out of bounds faults. */
static inline uint64_t touch_everything(const td_model_files *files)
{
  uint64_t sum = 0;
  for (uint32_t i = 0; i < td_model_files_tensor_count(files); i++) {
    const td_tensor *t = td_model_files_tensor(files, i);
    for (uint64_t k = 0; k < t->bytes; k++)
      sum += ((const unsigned char *)t->data)[k];
    sum += strlen(t->name) + strlen(t->file);
    assert_ptr_equal(td_model_files_find(files, t->name), t);
  }
  return sum;
}

#endif
