/* Fitted costs as text, kept in cache_dir and taken again by the next start if they still hold.
 *
 *   tandem attention costs 2
 *   IDENTITY                     what it was measured on
 *   NAME NUMBER                  one line for each of `numbers`, in that order, %.17g
 *   checksum 16 HEX DIGITS       XXH3 of all before it
 *
 * Reading takes any bytes: what is not wholly so, and of costs that a device may have, is refused. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "config/cache.h"
#include "config/log.h"
#include "kernels/attention/fit.h"
#include "kernels/attention/planner.h"

#define TITLE "tandem attention costs 2"

static const struct {
  const char *name;
  size_t at;
  double least, most;
} numbers[] = {{"memory_bytes_us", offsetof(td_attention_fitted, cost.memory_bytes_us), 1, 1e9},
               {"l2_bytes_us", offsetof(td_attention_fitted, cost.l2_bytes_us), 1, 1e9},
               {"tensor_flop_us", offsetof(td_attention_fitted, cost.tensor_flop_us), 1, 1e12},
               {"start_us", offsetof(td_attention_fitted, cost.start_us), 0, 1e4},
               {"partial_us", offsetof(td_attention_fitted, cost.partial_us), 0, 1e4},
               {"launch_us", offsetof(td_attention_fitted, launch_us), 0, 1e6},
               {"error", offsetof(td_attention_fitted, error), 0, 1e3},
               {"error_of_nine", offsetof(td_attention_fitted, error_of_nine), 0, 1e3}};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static unsigned long long checksum_of(const char *text, size_t n) { return XXH3_64bits(text, n); }

void td_attention_fitted_print(const td_attention_fitted *f, const char *identity, td_buf *out)
{
  td_buf_printf(out, "%s\n%s\n", TITLE, identity);
  for (size_t i = 0; i < NUMBERS; i++) {
    double v;
    memcpy(&v, (const char *)f + numbers[i].at, sizeof v);
    td_buf_printf(out, "%s %.17g\n", numbers[i].name, v);
  }
  td_buf_printf(out, "n_trials %u\n", f->n_trials);
  if (!out->failed)
    td_buf_printf(out, "checksum %016llx\n", checksum_of(out->data, out->len_bytes));
}

/* The line at *at, without its end; NULL: there is none. */
static const char *next_line(const char **at, const char *end, size_t *n)
{
  const char *line = *at, *stop = line < end ? memchr(line, '\n', (size_t)(end - line)) : NULL;
  if (!stop)
    return NULL;
  *n = (size_t)(stop - line);
  *at = stop + 1;
  return line;
}

static bool is_line(const char *line, size_t n, const char *want) { return line && n == strlen(want) && memcmp(line, want, n) == 0; }

/* "NAME NUMBER", with nothing behind it. */
static bool read_number(const char *line, size_t n, const char *name, double *v)
{
  char text[96], *end = NULL;
  size_t n_name = strlen(name);
  if (!line || n <= n_name + 1 || n >= sizeof text || memcmp(line, name, n_name) != 0 || line[n_name] != ' ')
    return false;
  memcpy(text, line, n);
  text[n] = 0;
  if (strspn(text + n_name + 1, "0123456789.e+-") != n - n_name - 1)
    return false;
  *v = strtod(text + n_name + 1, &end);
  return *end == 0 && isfinite(*v);
}

td_status td_attention_fitted_parse(const char *text, size_t n_bytes, const char *identity, td_attention_fitted *out, td_error *err)
{
  const char *at = text, *end = text + n_bytes, *line;
  td_attention_fitted f = *out;
  size_t n = 0;
  double v;
  line = next_line(&at, end, &n);
  if (!is_line(line, n, TITLE))
    return td_fail(err, TD_ERR_CONFIG, "not attention costs of this version");
  line = next_line(&at, end, &n);
  if (!is_line(line, n, identity))
    return td_fail(err, TD_ERR_CONFIG, "made for another device or model");
  for (size_t i = 0; i < NUMBERS; i++) {
    line = next_line(&at, end, &n);
    if (!read_number(line, n, numbers[i].name, &v) || v < numbers[i].least || v > numbers[i].most)
      return td_fail(err, TD_ERR_CONFIG, "no %s that can be", numbers[i].name);
    memcpy((char *)&f + numbers[i].at, &v, sizeof v);
  }
  line = next_line(&at, end, &n);
  if (!read_number(line, n, "n_trials", &v) || v < 1 || v > 1e6)
    return td_fail(err, TD_ERR_CONFIG, "no n_trials that can be");
  f.n_trials = (uint32_t)v;
  char want[32];
  snprintf(want, sizeof want, "checksum %016llx", checksum_of(text, (size_t)(at - text)));
  line = next_line(&at, end, &n);
  if (!is_line(line, n, want) || at != end)
    return td_fail(err, TD_ERR_CONFIG, "damaged");
  *out = f;
  return TD_OK;
}

static void identify(const td_attention_fit_request *r, const char *device, char out[TD_ATTENTION_IDENTITY_BYTES])
{
  const td_attention_planner_config *c = &r->config;
  snprintf(out, TD_ATTENTION_IDENTITY_BYTES, "tandem %s, %.200s: %u workers, %u kv heads of %u, dim %u, pages of %u, tiles of %u", TD_VERSION,
           device, c->n_workers, c->n_kv_heads, c->group, c->head_dim, c->page_tokens, c->tile_rows);
  for (char *s = out; *s; s++)
    if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
      *s = '?';
}

static bool read_kept(const char *path, const char *identity, td_attention_fitted *out)
{
  bool found = false;
  td_error why;
  td_buf text;
  td_buf_init(&text, TD_ATTENTION_FIT_TEXT_BYTES);
  td_status st = td_cache_read(path, &text, &found, &why);
  if (st == TD_OK && found)
    st = td_attention_fitted_parse(text.data, text.len_bytes, identity, out, &why);
  td_buf_deinit(&text);
  if (st != TD_OK)
    td_info("%s is not used: %s", path, why.message);
  return st == TD_OK && found;
}

static void keep(const char *path, const char *identity, const td_attention_fitted *f)
{
  td_error why = {0};
  td_buf text;
  td_buf_init(&text, TD_ATTENTION_FIT_TEXT_BYTES);
  td_attention_fitted_print(f, identity, &text);
  if (text.failed || td_cache_write(path, text.data, text.len_bytes, &why) != TD_OK)
    td_warn("measured attention costs are not kept (cache_dir): %s", why.message);
  td_buf_deinit(&text);
}

td_status td_attention_calibrate(const td_attention_fit_request *r, const char *folder, const char *device, bool measure,
                                 td_attention_fitted *out, td_error *err)
{
  char identity[TD_ATTENTION_IDENTITY_BYTES], name[40], where[TD_CACHE_PATH_BYTES], path[TD_CACHE_PATH_BYTES];
  td_status st = TD_OK;
  double worst = 0;
  *out = (td_attention_fitted){.cost = r->config.cost};
  identify(r, device, identity);
  snprintf(name, sizeof name, "%016llx", checksum_of(identity, strlen(identity)));
  bool keeps = td_cache_folder(folder, where) && td_cache_path(where, "attention", name, path);
  td_attention_fitted kept = *out;
  if (keeps && read_kept(path, identity, &kept)) {
    if (!measure || td_attention_fit_holds(r, &kept, &worst, &st, err)) {
      *out = kept;
      td_info("attention costs: %s", path);
      return TD_OK;
    }
    TD_TRY(st);
    td_info("kept attention costs do not hold: a trial is %.0f %% off", 100 * worst);
  }
  if (!measure)
    return TD_OK;
  TD_TRY(td_attention_fit(r, out, err));
  td_info("attention costs from %u trials, error %.1f %% in the median, %.1f %% in nine of ten: memory %.0f GB/s, L2 cache %.0f, tensor cores "
          "%.0f TFLOP/s, a piece %.2f us, a partial %.3f, a launch %.1f",
          out->n_trials, 100 * out->error, 100 * out->error_of_nine, out->cost.memory_bytes_us * r->config.n_workers * 1e-3,
          out->cost.l2_bytes_us * r->config.n_workers * 1e-3, out->cost.tensor_flop_us * r->config.n_workers * 1e-6, out->cost.start_us,
          out->cost.partial_us, out->launch_us);
  if (keeps)
    keep(path, identity, out);
  return TD_OK;
}
