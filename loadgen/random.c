/* See random.h. */
#include "loadgen/random.h"

#include <math.h>

/* ---- SeedSequence: spreads a seed over a pool of 128 bits, and from there over the generator's state
 * ---- */

enum { POOL = 4 };

static uint32_t hash_in(uint32_t v, uint32_t *constant)
{
  v ^= *constant;
  *constant *= 0x931e8875u;
  v *= *constant;
  return v ^ v >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
  uint32_t v = 0xca01f9ddu * x - 0x4973f715u * y;
  return v ^ v >> 16;
}

static void spread_seed(uint64_t seed, uint64_t out[4])
{
  uint32_t pool[POOL], constant = 0x43b0d7e5u, words[8];
  uint32_t entropy[POOL] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0};
  for (int i = 0; i < POOL; i++)
    pool[i] = hash_in(entropy[i], &constant);
  for (int from = 0; from < POOL; from++)
    for (int to = 0; to < POOL; to++)
      if (from != to)
        pool[to] = mix(pool[to], hash_in(pool[from], &constant));
  constant = 0x8b51f9ddu;
  for (int i = 0; i < 8; i++) {
    uint32_t v = pool[i % POOL] ^ constant;
    constant *= 0x58f38dedu;
    v *= constant;
    words[i] = v ^ v >> 16;
  }
  for (int i = 0; i < 4; i++)
    out[i] = words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
}

/* ---- PCG64: a 128-bit linear congruential generator with XSL-RR output ---- */

static void step(td_random *r)
{
  const unsigned __int128 multiplier =
      (unsigned __int128)2549297995355413924ull << 64 | 4865540595714422341ull;
  r->state = r->state * multiplier + r->inc;
}

void td_random_init(td_random *r, uint64_t seed)
{
  uint64_t s[4];
  spread_seed(seed, s);
  *r = (td_random){.inc = ((unsigned __int128)s[2] << 64 | s[3]) << 1 | 1};
  step(r);
  r->state += (unsigned __int128)s[0] << 64 | s[1];
  step(r);
}

uint64_t td_random_next(td_random *r)
{
  step(r);
  uint64_t v = (uint64_t)(r->state >> 64) ^ (uint64_t)r->state;
  unsigned by = (unsigned)(r->state >> 122);
  return v >> by | v << (-by & 63);
}

double td_random_double(td_random *r) { return (double)(td_random_next(r) >> 11) * 0x1p-53; }

static uint32_t next_half(td_random *r)
{
  if (r->has_half) {
    r->has_half = false;
    return r->half;
  }
  uint64_t v = td_random_next(r);
  r->has_half = true;
  r->half = (uint32_t)(v >> 32);
  return (uint32_t)v;
}

uint32_t td_random_below(td_random *r, uint32_t bound)
{
  uint64_t m = (uint64_t)next_half(r) * bound;
  if ((uint32_t)m < bound) {
    uint32_t threshold = -bound % bound;
    while ((uint32_t)m < threshold)
      m = (uint64_t)next_half(r) * bound;
  }
  return (uint32_t)(m >> 32);
}

/* ---- ziggurats: 256 strips of equal area under a decreasing curve ---- */

enum { STRIPS = 256 };

typedef struct ziggurat {
  uint64_t inside[STRIPS]; /* a draw below this is certainly under the curve */
  double width[STRIPS];    /* of the strip, in units of the drawn integer */
  double height[STRIPS];   /* of the curve at the edge of the strip */
} ziggurat;

static const double exponential_edge = 7.6971174701310497140446280481,
                    normal_edge = 3.6541528853610087963519472518;

static double exponential_curve(double x) { return exp(-x); }
static double exponential_at(double y) { return -log(y); }
static double normal_curve(double x) { return exp(-0.5 * x * x); }
static double normal_at(double y) { return sqrt(-2 * log(y)); }

/* edge: where the rectangle of the last strip ends; area: of each strip; unit: the drawn integer is below
 * it. */
static void build(ziggurat *z, double edge, double area, double unit, double (*curve)(double),
                  double (*at)(double))
{
  double base = area / curve(edge), x = edge, above = edge;
  z->inside[0] = (uint64_t)(edge / base * unit);
  z->inside[1] = 0;
  z->width[0] = base / unit;
  z->height[0] = 1;
  z->width[STRIPS - 1] = edge / unit;
  z->height[STRIPS - 1] = curve(edge);
  for (int i = STRIPS - 2; i >= 1; i--) {
    x = at(area / above + curve(above));
    z->inside[i + 1] = (uint64_t)(x / above * unit);
    z->width[i] = x / unit;
    z->height[i] = curve(x);
    above = x;
  }
}

double td_random_exponential(td_random *r)
{
  static ziggurat z;
  if (z.height[0] == 0)
    build(&z, exponential_edge, (exponential_edge + 1) * exp(-exponential_edge), 0x1p53, exponential_curve,
          exponential_at);
  for (;;) {
    uint64_t v = td_random_next(r) >> 3;
    unsigned i = v & 0xff;
    v >>= 8;
    double x = (double)v * z.width[i];
    if (v < z.inside[i])
      return x;
    if (i == 0)
      return exponential_edge - log1p(-td_random_double(r));
    if ((z.height[i - 1] - z.height[i]) * td_random_double(r) + z.height[i] < exp(-x))
      return x;
  }
}

static double normal_tail(td_random *r, bool negative)
{
  for (;;) {
    double x = -log1p(-td_random_double(r)) / normal_edge, y = -log1p(-td_random_double(r));
    if (y + y > x * x)
      return negative ? -(normal_edge + x) : normal_edge + x;
  }
}

double td_random_normal(td_random *r)
{
  static ziggurat z;
  if (z.height[0] == 0) {
    double tail = sqrt(M_PI / 2) * erfc(normal_edge / M_SQRT2);
    build(&z, normal_edge, normal_edge * normal_curve(normal_edge) + tail, 0x1p52, normal_curve, normal_at);
  }
  for (;;) {
    uint64_t v = td_random_next(r);
    unsigned i = v & 0xff;
    bool negative = v >> 8 & 1;
    uint64_t size = v >> 9 & 0x000fffffffffffffull;
    double x = (double)size * z.width[i];
    if (size < z.inside[i])
      return negative ? -x : x;
    if (i == 0)
      return normal_tail(r, size >> 8 & 1);
    if ((z.height[i - 1] - z.height[i]) * td_random_double(r) + z.height[i] < exp(-0.5 * x * x))
      return negative ? -x : x;
  }
}
