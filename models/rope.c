/* Rotary frequencies with the scalings of long-context models, computed in double and rounded once.
 *
 * Sources: RoFormer (plain); Chen et al., "Position interpolation" (linear); Llama 3.1's frequency bands
 * (llama3); Peng et al., "YaRN", section 3 (yarn); Ding et al., "LongRoPE" (longrope); NTK-aware scaling by
 * length (dynamic). Where the papers leave a choice, we follow transformers' modeling_rope_utils, because
 * that is what the weights are run with. */
#include <math.h>
#include <string.h>

#include "models/desc.h"

static double clamp(double v, double low, double high) { return v < low ? low : v > high ? high : v; }

/* Frequencies with long wavelengths are divided by the factor, those with short ones are kept, and those in
 * between are blended. */
static double llama3_frequency(const td_rope_spec *s, double freq)
{
  double wavelength = 2 * M_PI / freq;
  if (wavelength < s->original_context / s->high_freq)
    return freq;
  if (wavelength > s->original_context / s->low_freq)
    return freq / s->factor;
  double smooth = (s->original_context / wavelength - s->low_freq) / (s->high_freq - s->low_freq);
  return (1 - smooth) * freq / s->factor + smooth * freq;
}

/* The dimension that makes this number of turns within the original context. */
static double yarn_dimension(const td_rope_spec *s, double dim, double turns)
{
  return dim * log(s->original_context / (turns * 2 * M_PI)) / (2 * log(s->theta));
}

static void yarn_range(const td_rope_spec *s, double dim, double *low, double *high)
{
  *low = yarn_dimension(s, dim, s->beta_fast > 0 ? s->beta_fast : 32);
  *high = yarn_dimension(s, dim, s->beta_slow > 0 ? s->beta_slow : 1);
  if (!s->exact_range) {
    *low = floor(*low);
    *high = ceil(*high);
  }
  *low = fmax(*low, 0);
  *high = fmin(*high, dim - 1);
  if (*low == *high)
    *high += 0.001;
}

static double yarn_mscale(double factor, double scale)
{
  return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

/* The factor on cosine and sine. */
static double attn_factor_of(const td_rope_spec *s)
{
  if (s->kind != TD_ROPE_YARN && s->kind != TD_ROPE_LONGROPE)
    return 1;
  if (s->attn_factor > 0)
    return s->attn_factor;
  if (s->kind == TD_ROPE_LONGROPE)
    return s->factor <= 1 ? 1 : sqrt(1 + log(s->factor) / log(s->original_context));
  if (s->mscale > 0 && s->mscale_all > 0)
    return yarn_mscale(s->factor, s->mscale) / yarn_mscale(s->factor, s->mscale_all);
  return yarn_mscale(s->factor, 1);
}

static td_status check_spec(const td_rope_spec *s, const char *path, td_error *err)
{
  bool scaled = s->kind != TD_ROPE_PLAIN && s->kind != TD_ROPE_NONE;
  bool lengthens = scaled && s->kind != TD_ROPE_LINEAR;
  if (!(s->theta > 1 && isfinite(s->theta)))
    return td_fail(err, TD_ERR_MODEL, "%s: the RoPE base must be above 1, not %g", path, s->theta);
  if (scaled && !(s->factor >= 1 && s->factor <= 1e6))
    return td_fail(err, TD_ERR_MODEL, "%s: the RoPE scaling factor must be between 1 and 1e6, not %g", path,
                   s->factor);
  if (lengthens &&
      !(s->original_context >= 1 && s->original_context <= td_limits[TD_LIMIT_CONTEXT_TOKENS].max))
    return td_fail(err, TD_ERR_MODEL, "%s: RoPE scaling needs the original context length, not %g", path,
                   s->original_context);
  if (s->kind == TD_ROPE_LLAMA3 && !(s->low_freq > 0 && s->high_freq > s->low_freq && isfinite(s->high_freq)))
    return td_fail(err, TD_ERR_MODEL,
                   "%s: RoPE scaling llama3 needs 0 < low_freq_factor < high_freq_factor, not %g, %g", path,
                   s->low_freq, s->high_freq);
  return TD_OK;
}

/* base_for and divisors_for depend on the longest text that is to be served, not on the current one, because
 * the stored KV of a prompt must stay valid for whatever follows it. */
static double base_for(const td_rope_spec *s, double dim, uint32_t context)
{
  double longer = context / s->original_context;
  if (s->kind != TD_ROPE_DYNAMIC || longer <= 1)
    return s->theta;
  return s->theta * pow(s->factor * longer - (s->factor - 1), dim / (dim - 2));
}

static const float *divisors_for(const td_rope_spec *s, uint32_t context)
{
  if (s->kind == TD_ROPE_LONGROPE)
    return context > s->original_context ? s->long_divisors : s->divisors;
  return s->has_divisors ? s->divisors : NULL;
}

td_status td_rope_fill(const td_rope_spec *s, uint32_t rotary_dim, uint32_t context, const char *path,
                       float *inv_freq, float *attn_factor, td_error *err)
{
  double low = 0, high = 0, dim = rotary_dim;
  const float *divisors = divisors_for(s, context);
  *attn_factor = 1;
  memset(inv_freq, 0, rotary_dim / 2 * sizeof *inv_freq);
  if (s->kind == TD_ROPE_NONE)
    return TD_OK;
  TD_TRY(check_spec(s, path, err));
  if (s->kind == TD_ROPE_YARN)
    yarn_range(s, dim, &low, &high);
  for (uint32_t i = 0; i < rotary_dim / 2; i++) {
    double freq = pow(base_for(s, dim, context), -2.0 * i / dim);
    if (s->kind == TD_ROPE_LINEAR)
      freq /= s->factor;
    else if (s->kind == TD_ROPE_LLAMA3)
      freq = llama3_frequency(s, freq);
    else if (s->kind == TD_ROPE_YARN) {
      double interpolated = clamp((i - low) / (high - low), 0, 1);
      freq = freq / s->factor * interpolated + freq * (1 - interpolated);
    }
    if (divisors)
      freq /= (double)divisors[i];
    if (!(freq > 0 && freq <= 1e6))
      return td_fail(err, TD_ERR_MODEL, "%s: RoPE frequency %u comes out as %g", path, i, freq);
    inv_freq[i] = (float)freq;
  }
  *attn_factor = (float)attn_factor_of(s);
  if (!(*attn_factor > 0 && *attn_factor < 1e6f))
    return td_fail(err, TD_ERR_MODEL, "%s: RoPE attention factor %g", path, (double)*attn_factor);
  return TD_OK;
}
