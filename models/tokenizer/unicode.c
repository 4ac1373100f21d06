/* Character classes, as the reference's regular expressions define them.
 *
 * General categories come from utf8proc, whose Unicode version is the distribution's (15.0 in Debian 12). The
 * reference's engine knows Unicode 16. A table here has the characters that were assigned between the two, so
 * that ids do not depend on the distribution. tests/golden_text compares all code points with the
 * reference. */
#include "models/tokenizer/internal.h"

#include <utf8proc.h>

enum { L = TD_CLASS_LETTER, N = TD_CLASS_NUMBER, M = TD_CLASS_MARK, P = TD_CLASS_PUNCT, S = TD_CLASS_SYMBOL };
enum { D = TD_CLASS_NUMBER | TD_CLASS_DIGIT };
enum { W = TD_CLASS_SPACE, R = TD_CLASS_SPACE | TD_CLASS_NEWLINE };

/* clang-format off */
const uint8_t td_ascii_class[128] = {
  0, 0, 0, 0, 0, 0, 0, 0, 0, W, R, W, W, R, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
  W, P, P, P, S, P, P, P, P, P, P, S, P, P, P, P, D, D, D, D, D, D, D, D, D, D, P, P, S, S, S, P,
  P, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, P, P, P, S, P,
  S, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, P, S, P, S, 0,
};

/* Assigned after Unicode 15.0, up to 16.0. */
static const td_code_range newer[] = {
  {0x897, 0x897, M}, {0x1B4E, 0x1B4F, P}, {0x1B7F, 0x1B7F, P}, {0x1C89, 0x1C8A, L}, {0x2427, 0x2429, S},
  {0x2FFC, 0x2FFF, S}, {0x31E4, 0x31E5, S}, {0x31EF, 0x31EF, S}, {0xA7CB, 0xA7CD, L},
  {0xA7DA, 0xA7DC, L}, {0x105C0, 0x105F3, L}, {0x10D40, 0x10D49, D}, {0x10D4A, 0x10D65, L},
  {0x10D69, 0x10D6D, M}, {0x10D6E, 0x10D6E, P}, {0x10D6F, 0x10D85, L}, {0x10D8E, 0x10D8F, S},
  {0x10EC2, 0x10EC4, L}, {0x10EFC, 0x10EFC, M}, {0x11380, 0x11389, L}, {0x1138B, 0x1138B, L},
  {0x1138E, 0x1138E, L}, {0x11390, 0x113B5, L}, {0x113B7, 0x113B7, L}, {0x113B8, 0x113C0, M},
  {0x113C2, 0x113C2, M}, {0x113C5, 0x113C5, M}, {0x113C7, 0x113CA, M}, {0x113CC, 0x113D0, M},
  {0x113D1, 0x113D1, L}, {0x113D2, 0x113D2, M}, {0x113D3, 0x113D3, L}, {0x113D4, 0x113D5, P},
  {0x113D7, 0x113D8, P}, {0x113E1, 0x113E2, M}, {0x116D0, 0x116E3, D}, {0x11BC0, 0x11BE0, L},
  {0x11BE1, 0x11BE1, P}, {0x11BF0, 0x11BF9, D}, {0x11F5A, 0x11F5A, M}, {0x13460, 0x143FA, L},
  {0x16100, 0x1611D, L}, {0x1611E, 0x1612F, M}, {0x16130, 0x16139, D}, {0x16D40, 0x16D6C, L},
  {0x16D6D, 0x16D6F, P}, {0x16D70, 0x16D79, D}, {0x18CFF, 0x18CFF, L}, {0x1CC00, 0x1CCEF, S},
  {0x1CCF0, 0x1CCF9, D}, {0x1CD00, 0x1CEB3, S}, {0x1E5D0, 0x1E5ED, L}, {0x1E5EE, 0x1E5EF, M},
  {0x1E5F0, 0x1E5F0, L}, {0x1E5F1, 0x1E5FA, D}, {0x1E5FF, 0x1E5FF, P}, {0x1F8B2, 0x1F8BB, S},
  {0x1F8C0, 0x1F8C1, S}, {0x1FA89, 0x1FA89, S}, {0x1FA8F, 0x1FA8F, S}, {0x1FABE, 0x1FABE, S},
  {0x1FAC6, 0x1FAC6, S}, {0x1FADC, 0x1FADC, S}, {0x1FADF, 0x1FADF, S}, {0x1FAE9, 0x1FAE9, S},
  {0x1FBCB, 0x1FBEF, S}, {0x2EBF0, 0x2EE5D, L},
};
/* clang-format on */

static uint8_t newer_class(uint32_t cp)
{
  const td_code_range *r = TD_CODE_RANGE_OF(newer, cp);
  return r ? r->class : 0;
}

/* White_Space, for cp >= 128. The category alone does not decide it: U+0085 is a control character. */
static bool is_space(uint32_t cp)
{
  return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
         cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

uint8_t td_unicode_class_slow(uint32_t cp)
{
  switch (utf8proc_category((utf8proc_int32_t)cp)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO: return L;
  case UTF8PROC_CATEGORY_ND: return D;
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_NO: return N;
  case UTF8PROC_CATEGORY_MN:
  case UTF8PROC_CATEGORY_MC:
  case UTF8PROC_CATEGORY_ME: return M;
  case UTF8PROC_CATEGORY_PC:
  case UTF8PROC_CATEGORY_PD:
  case UTF8PROC_CATEGORY_PS:
  case UTF8PROC_CATEGORY_PE:
  case UTF8PROC_CATEGORY_PI:
  case UTF8PROC_CATEGORY_PF:
  case UTF8PROC_CATEGORY_PO: return P;
  case UTF8PROC_CATEGORY_SM:
  case UTF8PROC_CATEGORY_SC:
  case UTF8PROC_CATEGORY_SK:
  case UTF8PROC_CATEGORY_SO: return S;
  case UTF8PROC_CATEGORY_CN: return newer_class(cp);
  default: return is_space(cp) ? W : 0;
  }
}

/* Those letters in `newer` that are not Lo. */
static const td_code_range newer_letters[] = {
    {0x1C89, 0x1C89, TD_LETTER_UPPER},      {0x1C8A, 0x1C8A, TD_LETTER_LOWER},
    {0xA7CB, 0xA7CC, TD_LETTER_UPPER},      {0xA7CD, 0xA7CD, TD_LETTER_LOWER},
    {0xA7DA, 0xA7DA, TD_LETTER_UPPER},      {0xA7DB, 0xA7DB, TD_LETTER_LOWER},
    {0xA7DC, 0xA7DC, TD_LETTER_UPPER},      {0x10D4E, 0x10D4E, TD_LETTER_MODIFIER},
    {0x10D50, 0x10D65, TD_LETTER_UPPER},    {0x10D6F, 0x10D6F, TD_LETTER_MODIFIER},
    {0x10D70, 0x10D85, TD_LETTER_LOWER},    {0x16D40, 0x16D42, TD_LETTER_MODIFIER},
    {0x16D6B, 0x16D6C, TD_LETTER_MODIFIER},
};

uint8_t td_unicode_letter(uint32_t cp)
{
  switch (utf8proc_category((utf8proc_int32_t)cp)) {
  case UTF8PROC_CATEGORY_LU: return TD_LETTER_UPPER;
  case UTF8PROC_CATEGORY_LL: return TD_LETTER_LOWER;
  case UTF8PROC_CATEGORY_LT: return TD_LETTER_TITLE;
  case UTF8PROC_CATEGORY_LM: return TD_LETTER_MODIFIER;
  case UTF8PROC_CATEGORY_LO: return TD_LETTER_OTHER;
  case UTF8PROC_CATEGORY_CN: break;
  default: return 0;
  }
  if (newer_class(cp) != L)
    return 0;
  const td_code_range *r = TD_CODE_RANGE_OF(newer_letters, cp);
  return r ? r->class : TD_LETTER_OTHER;
}

/* \w is Alphabetic, marks, decimal digits, connector punctuation and Join_Control. The Alphabetic characters
 * that are not in the categories L, Nl and M are the circled and squared letters among the symbols. */
bool td_unicode_is_word(uint32_t cp)
{
  if (td_unicode_class(cp) & (L | M | TD_CLASS_DIGIT))
    return true;
  utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
  if (c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_PC)
    return true;
  return cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
         (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

/* The pre_tokenizer Punctuation knows an older Unicode than the expressions do. These characters were
 * assigned later, or had another category then. Compared for all code points with `tokenizers` 0.23.3. */
/* clang-format off */
static const td_code_range not_yet_punctuation[] = {
  {0x61D, 0x61D, P}, {0x9FD, 0x9FD, P}, {0xA76, 0xA76, P}, {0xC77, 0xC77, P}, {0xC84, 0xC84, P},
  {0x1B4E, 0x1B4F, P}, {0x1B7D, 0x1B7F, P}, {0x2E43, 0x2E5D, P}, {0x10D6E, 0x10D6E, P},
  {0x10EAD, 0x10EAD, P}, {0x10F55, 0x10F59, P}, {0x10F86, 0x10F89, P}, {0x113D4, 0x113D5, P},
  {0x113D7, 0x113D8, P}, {0x1144B, 0x1145D, P}, {0x11660, 0x1166C, P}, {0x116B9, 0x116B9, P},
  {0x1183B, 0x1183B, P}, {0x11944, 0x11946, P}, {0x119E2, 0x119E2, P}, {0x11A3F, 0x11AA2, P},
  {0x11B00, 0x11B09, P}, {0x11BE1, 0x11BE1, P}, {0x11C41, 0x11C71, P}, {0x11EF7, 0x11F4F, P},
  {0x11FFF, 0x11FFF, P}, {0x12FF1, 0x12FF2, P}, {0x16D6D, 0x16D6F, P}, {0x16E97, 0x16E9A, P},
  {0x16FE2, 0x16FE2, P}, {0x1E5FF, 0x1E5FF, P}, {0x1E95E, 0x1E95F, P},
};
/* clang-format on */

bool td_unicode_is_punctuation(uint32_t cp)
{
  if (cp < 128)
    return td_ascii_class[cp] & (P | S);
  if (cp == 0x166D || cp == 0x111C9) /* were punctuation then, but no longer are */
    return true;
  return td_unicode_class(cp) & P && !TD_CODE_RANGE_OF(not_yet_punctuation, cp);
}
