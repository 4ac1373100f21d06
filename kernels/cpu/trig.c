/* Sine and cosine of a float angle, in double precision with plain operations: the C library's results may
 * differ between machines in the last bit. Rounded to float, the result is the nearest float or its
 * neighbour. */
#include <math.h>

#include "kernels/cpu/cpu.h"

/* pi/2 in three parts. The first two have at most 25 bits, so their products with a quadrant number below
 * 2^28 are exact. */
static const double PIO2_A = 0x1.921fb5p+0, PIO2_B = 0x1.110b46p-26, PIO2_C = 0x1.1a62633145c07p-54;

/* Taylor series on [-pi/4, pi/4]: the first dropped terms are below 1e-14. */
static double sin_poly(double r)
{
  double z = r * r, s = 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  return r + r * z * s;
}

static double cos_poly(double r)
{
  double z = r * r, c = -1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = c * z - 0.5;
  return 1.0 + z * c;
}

void td_trig_sincos(float angle, float *sine, float *cosine)
{
  double x = (double)angle;
  if (!(fabs(x) < 0x1p27)) { /* larger than any angle of a sane model; also true for NaN */
    *sine = *cosine = NAN;
    return;
  }
  double n = floor(x * 0.63661977236758134308 + 0.5);
  double r = ((x - n * PIO2_A) - n * PIO2_B) - n * PIO2_C;
  double s = sin_poly(r), c = cos_poly(r);
  int quadrant = (int)((long long)n & 3);
  *sine = (float)(quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c);
  *cosine = (float)(quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s);
}
