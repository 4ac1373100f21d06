/* See search.h. */
#include "capacity/search.h"

#include <math.h>

enum { DOUBLINGS_MAX = 40 };
static const double AT_ONCE_S = 0.001;

double td_source_rate(const td_load *load)
{
  double s = load->n > 1 ? load->requests[load->n - 1].due_s - load->requests[0].due_s : 0;
  return s > 0 ? (double)(load->n - 1) / s : 1;
}

/* Estimates the rate that the devices could hold if every step had 2048 tokens: about an upper bound, to
 * begin with. */
static double guess(const td_source *s, const td_replay_config *c)
{
  const td_cost_model *m = c->daemon.cost;
  double token_us = td_cost_tokens_us(m, 2048) / 2048, us = 0;
  for (size_t i = 0; i < s->load.n; i++) {
    double in = s->load.requests[i].n_in, out = s->load.requests[i].n_out;
    us += (in + out) * token_us + in * in / 2 * m->prefill_us_per_pair +
          out * (in + out / 2) * m->decode_us_per_kv_token;
  }
  return us > 0 ? (double)s->load.n / us * 1e6 * c->n_replicas : 1;
}

void td_source_set_rate(const td_source *s, double rate, td_replay_config *c)
{
  c->speed = rate / s->rate;
  c->window_s = s->load.n > 0 ? s->load.requests[s->load.n - 1].due_s / c->speed : 0;
}

static td_status is_held(const td_source *s, td_replay_config *c, double rate, td_search_result *out,
                         bool *held, td_error *err)
{
  td_replay_result r;
  td_source_set_rate(s, rate, c);
  TD_TRY(td_replay(&s->load, c, &r, err));
  *held = r.held;
  if (r.held) {
    out->rate = rate;
    out->at = r;
  }
  return TD_OK;
}

td_status td_search(const td_source *s, const td_replay_config *config, double tolerance,
                    td_search_result *out, td_error *err)
{
  td_replay_config c = *config;
  c.stop_when_missed = true;
  *out = (td_search_result){0};
  double rate = 0.7 * guess(s, &c), low = 0, high = INFINITY;
  for (int i = 0; i < DOUBLINGS_MAX && (low == 0 || isinf(high)); i++) {
    bool held;
    TD_TRY(is_held(s, &c, rate, out, &held, err));
    if (held && c.window_s < AT_ONCE_S) {
      out->all_at_once = true;
      out->rate = 0;
      return TD_OK;
    }
    if (held)
      low = rate;
    else
      high = rate;
    rate *= held ? 1.3 : 1 / 1.3;
  }
  while (low > 0 && !isinf(high) && high > low * (1 + tolerance)) {
    bool held;
    rate = sqrt(low * high);
    TD_TRY(is_held(s, &c, rate, out, &held, err));
    if (held)
      low = rate;
    else
      high = rate;
  }
  if (low > 0)
    return TD_OK;
  c.stop_when_missed = false;
  td_source_set_rate(s, rate, &c); /* so slow that no request delays another */
  return td_replay(&s->load, &c, &out->lowest, err);
}
