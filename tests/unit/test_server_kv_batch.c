/* KV events in MessagePack, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/kv_batch.h"

static void check_bytes(const td_buf *b, const char *want, size_t n)
{
  assert_false(b->failed);
  assert_int_equal(b->len_bytes, n);
  assert_memory_equal(b->data, want, n);
}

#define TIME "\xcb\x3f\xf8\0\0\0\0\0\0" /* 1.5 */
#define IS(want) check_bytes(&out, want, sizeof(want) - 1)
#define STORED(fields)                                                                                       \
  fields "\xa4type\xab"                                                                                      \
         "BlockStored\xac"                                                                                   \
         "block_hashes"
#define SIZES                                                                                                \
  "\xaa"                                                                                                     \
  "block_size\x02\xa7lora_id\xc0\xa6medium\xa3GPU\xa9lora_name\xc0"
#define REMOVED                                                                                              \
  "\x83\xa4type\xac"                                                                                         \
  "BlockRemoved\xac"                                                                                         \
  "block_hashes"

static void test_kv_batches(void **state)
{
  static const int32_t t[] = {1, 2, 3, 4};
  td_kv_batch b = {.time_s = 1.5, .page_tokens = 2, .plain_namespace = 9};
  td_buf out;
  td_buf_init(&out, 0);
  td_kv_batch_render_cleared(&b, &out);
  IS("\x93" TIME "\x91\x81\xa4type\xb0"
     "AllBlocksCleared\0");
  td_buf_clear(&out);
  td_kv_batch_render(&b, NULL, 0, &out);
  IS("\x93" TIME "\x90\0");
  td_buf_clear(&out);
  /* consecutive pages of a prefix are one event; others start a new one; a salt is sent with the first page
   */
  td_engine_kv_event e[] = {{true, 5, 0, 9, t},     {true, 6, 5, 9, t + 2}, {true, 7, 5, 9, t},
                            {true, 8, 0, 0xabc, t}, {true, 9, 8, 0xabc, t}, {true, 10, 0, 0, t},
                            {false, 5, 0, 9, NULL}, {false, 9, 0, 9, NULL}, {true, 11, 7, 0xabc, t}};
  td_kv_batch_render(&b, e, sizeof e / sizeof *e, &out);
  IS("\x93" TIME
     "\x96" STORED("\x88") "\x92\x05\x06\xb1parent_block_hash\xc0\xa9token_ids\x94\x01\x02\x03\x04" SIZES
         STORED("\x88") "\x91\x07\xb1parent_block_hash\x05\xa9token_ids\x92\x01\x02" SIZES STORED(
             "\x89") "\x92\x08\x09\xb1parent_block_hash\xc0\xa9token_ids\x94\x01\x02\x01\x02" SIZES "\xaa"
                     "extra_keys\x92\x91\xb0"
                     "0000000000000abc\xc0" STORED(
                         "\x88") "\x91\x0a\xb1parent_block_hash\xc0\xa9token_ids\x92\x01\x02" SIZES
                         REMOVED "\x92\x05\x09\xa6medium\xa3GPU" STORED(
                             "\x88") "\x91\x0b\xb1parent_block_hash\x07\xa9token_ids\x92\x01\x02" SIZES "\0");
  td_buf_deinit(&out);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_kv_batches)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
