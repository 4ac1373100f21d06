/* The meaning of the splitter names that GGUF files have under tokenizer.ggml.pre.
 *
 * GGUF names the splitter instead of writing it down, and that name also implies normalisation and
 * ignore_merges. Here each name means what the tokenizer.json of those models says. Names whose meaning is
 * not known are refused. */
#include "models/tokenizer/internal.h"

#include <string.h>

#define KEY "tokenizer.ggml.pre"

enum {
  NFC = 1,
  WHOLE_WORDS = 2, /* a word that is a token is that token (ignore_merges) */
  BOS = 4,
};

typedef struct pre {
  const char *name;
  const char *steps[6]; /* the splitter chain, NULL-terminated if shorter */
  unsigned flags;
} pre;

/* Steps that are not expressions. */
static const char punctuation[] = "Punctuation", digits[] = "Digits",
                  byte_digits[] = "Digits behind ByteLevel";

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" TAIL
#define QWEN2 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" TAIL
#define QWEN35                                                                                               \
  CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                                               \
               "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK                                                                                             \
  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"          \
  "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
/* Cased letters, from DeepSeek's tokenizer.json. The list is not complete. */
#define DEEPSEEK_LETTERS                                                                                     \
  "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"              \
  "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"          \
  "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"              \
  "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"              \
  "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"                \
  "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"        \
  "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"                 \
  "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"          \
  "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"              \
  "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"                        \
  "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"                     \
  "\U0001e900-\U0001e943]+"
#define DEEPSEEK_PUNCTUATION "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
#define DEEPSEEK_CJK "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
#define BAILING                                                                                              \
  "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]" \
  "|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(behind, digits)                                                                                \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" behind "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" behind   \
  "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const pre pres[] = {
    {"gpt-2", {GPT2}, 0},
    {"smollm", {digits, GPT2}, 0},
    {"starcoder", {digits, GPT2}, 0},
    {"refact", {digits, GPT2}, 0},
    {"command-r", {digits, GPT2}, NFC},
    {"llama-bpe", {LLAMA3}, WHOLE_WORDS | BOS},
    {"llama3", {LLAMA3}, WHOLE_WORDS | BOS},
    {"llama-v3", {LLAMA3}, WHOLE_WORDS | BOS},
    {"smaug-bpe", {LLAMA3}, 0}, /* also SmolLM3 */
    {"dbrx", {LLAMA3}, 0},      /* cl100k: Phi-4, OLMo 2 */
    {"chatglm-bpe", {LLAMA3}, 0},
    {"glm4", {LLAMA3}, WHOLE_WORDS},
    {"glm5", {LLAMA3}, WHOLE_WORDS},
    {"qwen2", {QWEN2}, NFC},
    {"deepseek-r1-qwen", {QWEN2}, NFC},
    {"qwen35", {QWEN35}, NFC},
    {"deepseek-v3", {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK}, 0},
    {"deepseek-llm",
     {"[\r\n]", "\\s?" DEEPSEEK_LETTERS, "\\s?" DEEPSEEK_PUNCTUATION, "\\s+$", DEEPSEEK_CJK, digits},
     BOS},
    {"deepseek-coder", {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, digits}, BOS},
    {"falcon", {punctuation, GPT2, byte_digits, "[0-9][0-9][0-9]"}, 0},
    {"mpt", {GPT2}, NFC},
    {"tekken", {CASED("", "\\p{N}")}, WHOLE_WORDS | BOS},
    {"gpt-4o", {CASED(CONTRACTIONS "?", "\\p{N}{1,3}")}, 0},
    {"llama4", {CASED(CONTRACTIONS "?", "\\p{N}{1,3}")}, 0},
    /* We had no vocabulary for the following names. Their expressions are those that llama.cpp cites from
     * their tokenizer.json, or GPT-2's. */
    {"seed-coder",
     {CONTRACTIONS
      "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
     0},
    {"bailingmoe", {BAILING}, 0},
    {"bailingmoe2", {BAILING}, 0},
    {"minicpm5", {"\\p{N}{1,3}", CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+" TAIL}, WHOLE_WORDS},
    {"tiny_aya", {"\\d{1,3}(?=(?:\\d{3})*\\b)", CASED(CONTRACTIONS "?", "\\p{N}{1,3}")}, 0},
    {"hunyuan-dense", {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK}, 0},
    {"kanana2", {CASED(CONTRACTIONS "?", "\\p{N}{1,3}")}, 0},
    {"stablelm2", {QWEN2}, 0},
    {"hunyuan", {QWEN2}, 0},
    {"megrez", {QWEN2}, 0},
    {"grok-2", {QWEN2}, 0},
    {"solar-open", {QWEN2}, 0},
    {"codeshell", {"\\p{N}", GPT2}, 0},
    {"exaone", {"\\p{N}", GPT2}, 0},
    {"minerva-7b", {"\\p{N}", GPT2}, 0},
    {"phi-2", {GPT2}, 0},
    {"trillion", {GPT2}, 0},
    {"granite-docling", {GPT2}, 0},
    {"mellum", {GPT2}, 0},
    {"gigachat", {GPT2}, 0},
    {"exaone4", {GPT2}, 0},
};

static bool load_step(const char *step, td_split *out)
{
  bool total;
  if (step != punctuation && step != digits && step != byte_digits)
    return td_split_from_regex(step, out, &total);
  *out = step == digits        ? (td_split){.kind = TD_SPLIT_DIGITS, .max_digits = 1}
         : step == punctuation ? (td_split){.kind = TD_SPLIT_PUNCTUATION}
                               : (td_split){.kind = TD_SPLIT_BYTE_DIGITS};
  return true;
}

static td_status load_splits(td_tokenizer *t, const pre *p, td_error *err)
{
  for (size_t k = 0; k < sizeof p->steps / sizeof *p->steps && p->steps[k]; k++)
    if (!load_step(p->steps[k], &t->splits[t->n_splits++]))
      return td_fail(err, TD_ERR_NOMEM, "no memory for a splitter");
  return TD_OK;
}

td_status td_pre_load(td_tokenizer *t, const td_model_files *files, td_error *err)
{
  td_gguf_string name;
  if (!td_gguf_get_string(files, KEY, &name))
    return td_fail(err, TD_ERR_UNSUPPORTED, "%s has no " KEY ": which splitter it needs is not known",
                   td_model_files_path(files));
  for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
    const pre *p = &pres[i];
    if (name.n_bytes != strlen(p->name) || memcmp(name.data, p->name, name.n_bytes) != 0)
      continue;
    TD_TRY(load_splits(t, p, err));
    t->nfc = p->flags & NFC;
    t->ignore_merges = p->flags & WHOLE_WORDS;
    t->adds_bos = p->flags & BOS;
    return TD_OK;
  }
  return td_fail(err, TD_ERR_UNSUPPORTED, KEY " \"%.*s\" is not supported",
                 name.n_bytes < 100 ? (int)name.n_bytes : 100, name.data);
}
