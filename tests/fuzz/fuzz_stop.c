/* Stop strings. Input: a byte n of stop strings, each with a length byte, then text. Property: the output
 * does not depend on how the text is split, and is what a plain search finds. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "server/stop_filter.h"

/* The text before the stop string that ends first, or the longest of those that end there. */
static size_t plain_search(const td_stop_set *set, const uint8_t *text, size_t n, bool *matched)
{
  for (size_t end = 1; end <= n; end++) {
    size_t longest = 0;
    for (uint32_t i = 0; i < set->n; i++) {
      size_t len = set->length[i];
      if (len <= end && len > longest && memcmp(text + end - len, set->text[i], len) == 0)
        longest = len;
    }
    if (longest) {
      *matched = true;
      return end - longest;
    }
  }
  *matched = false;
  return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  fuzz_input in = {data, size};
  td_stop_set set = {0};
  unsigned n = 1 + fuzz_take(&in) % TD_STOP_STRINGS_MAX, step = 1 + fuzz_take(&in) % 7;
  for (unsigned i = 0; i < n; i++) {
    size_t len = 1 + fuzz_take(&in) % 32;
    if (len > in.size)
      break;
    FUZZ_CHECK(td_stop_set_add(&set, (const char *)in.data, len));
    in.data += len;
    in.size -= len;
  }
  if (in.size > 4096)
    in.size = 4096;
  bool want_match, match = false;
  size_t want = plain_search(&set, in.data, in.size, &want_match);
  for (size_t piece = in.size + 1;; piece = step) {
    td_stop_filter f;
    td_buf out;
    td_stop_filter_init(&f, &set);
    td_buf_init(&out, 0);
    for (size_t at = 0; at < in.size; at += piece)
      match = td_stop_filter_push(&f, (const char *)in.data + at, piece < in.size - at ? piece : in.size - at,
                                  &out);
    td_stop_filter_finish(&f, &out);
    FUZZ_CHECK(in.size == 0 || match == want_match);
    FUZZ_CHECK(out.len_bytes == want && (want == 0 || memcmp(out.data, in.data, want) == 0));
    td_buf_deinit(&out);
    td_stop_filter_deinit(&f);
    if (piece == step)
      break;
  }
  td_stop_set_deinit(&set);
  return 0;
}
