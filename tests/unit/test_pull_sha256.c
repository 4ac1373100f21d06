/* SHA-256 compared with Python's hashlib, at every length where padding changes, and in parts of every
 * size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "pull/sha256.h"

/* SHA-256 of the bytes (7 i + 3) mod 256. */
static const struct {
  size_t n;
  const char *hex;
} known[] = {{0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
             {1, "084fed08b978af4d7d196a7446a86b58009e636b611db16211b65a9aadff29c5"},
             {54, "160bbf14b458c877b7049e7cb5771dd653930f97d20bdd8ee795c16062906233"},
             {55, "e7313d333c272e639f790978283f9eb392e843d0f29b7016828bb1daa4aac70b"},
             {56, "4324d65f3c103567f5589c710bc08f8523f929a9272e3af36fc968e52abc6c27"},
             {57, "35df609437dcfea3279283ab79fd554e2bf78f8f7ae2de532d8ee300b09e8f73"},
             {63, "81c80242132f230c3bd41b3e63bbcff16107339549214a99614ff26664625055"},
             {64, "39e3d7b6b5d075d37d053ad89b24b41bef4f3c29760c84447cab3f3be1882241"},
             {65, "aacca6ff74fdbb296d165a45cecfa04e5127bc008770fbbdd48006f2d2fae95e"},
             {119, "9ce7368e4daf32341631b492e80359dc9f594b48453cd0dd5bf0b19279cc177e"},
             {120, "7836b787757e95e58b3ca5aec90b1b004e8deba1e50e9675af9cabf1a13a04b5"},
             {128, "d2742f1f4ac6bb7ca2b239ee18402ba8b3f9f8e652d2a72973c2b9ba11c08cf6"},
             {1000, "1e9bc38cbf860b9ec31918b065f9b52476c549a782e0e7990bed8ce3868d2371"}};

static void test_known(void **state)
{
  uint8_t bytes[1000];
  char hex[TD_SHA256_HEX_BYTES];
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (uint8_t)(7 * i + 3);
  for (size_t k = 0; k < sizeof known / sizeof *known; k++)
    for (size_t part = 1; part <= 130; part++) {
      td_sha256 s;
      td_sha256_begin(&s);
      for (size_t at = 0; at < known[k].n; at += part)
        td_sha256_add(&s, bytes + at, part < known[k].n - at ? part : known[k].n - at);
      td_sha256_end(&s, hex);
      assert_string_equal(hex, known[k].hex);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_known)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
