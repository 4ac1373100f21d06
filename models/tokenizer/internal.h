/* The parts of a tokenizer, seen from inside: vocabulary, merges, splitter chain, added tokens.
 *
 * Everything is built by a loader (load_json.c, load_gguf.c), sealed by td_tokenizer_finish, and read-only
 * after, but for one byte per token that remembers a fact about the token (see bpe.c). There are two
 * families: texts of bytes in GPT-2's alphabet, cut by splitters (bpe.c), and texts of characters with U+2581
 * for a space (SentencePiece, spm.c). */
#ifndef TD_MODELS_TOKENIZER_INTERNAL_H
#define TD_MODELS_TOKENIZER_INTERNAL_H

#include "common/hash.h"
#include "common/progress.h"
#include "config/limits.h"
#include "models/tokenizer/tokenizer.h"

/* ---- vocab.c: one blob of texts, one record per id, one hash from text to id ---- */

enum {
  TD_TOKEN_PRESENT = 1, /* ids may have holes */
  TD_TOKEN_MODEL = 2,   /* belongs to the BPE vocabulary (not only to the added tokens) */
  TD_TOKEN_ADDED = 4,   /* cut out of the text before the BPE; if not MODEL too, its text is raw bytes */
  TD_TOKEN_SPECIAL = 8, /* added, and recognised in trusted text only */
  TD_TOKEN_BYTE = 16,   /* SentencePiece's "<0x0A>": stands for a byte; no merge makes it */
  TD_TOKEN_SPACED = 32, /* added, and matched with the space that the normalizer puts in front of it */
};

/* What bpe.c has found out about a token: whether the BPE of its own text gives back the token alone. */
enum { TD_WHOLE_UNKNOWN = 0, TD_WHOLE_YES = 1, TD_WHOLE_NO = 2 };

typedef struct td_token {
  uint32_t offset; /* of the text in the blob; NUL-terminated there */
  uint16_t n_bytes;
  uint8_t flags;
  uint8_t whole; /* TD_WHOLE_*; relaxed atomic */
} td_token;

/* Other bits of a text's hash tell most strangers without a look at their texts. */
typedef struct td_vocab_slot {
  int32_t id; /* -1: free */
  uint32_t tag;
} td_vocab_slot;

typedef struct td_vocab {
  td_token *tokens; /* [n_tokens] by id */
  uint32_t n_tokens, cap_tokens;
  char *blob;
  uint32_t blob_bytes, blob_cap;
  td_vocab_slot *slots; /* open addressing */
  uint32_t n_slots, n_used;
  uint64_t seed; /* random: texts of a hostile file cannot be chosen to collide */
  uint32_t longest_text_bytes;
} td_vocab;

td_status td_vocab_init(td_vocab *v, uint32_t n_ids, uint64_t n_text_bytes, td_error *err);
void td_vocab_deinit(td_vocab *v);
/* Refuses a text or id that is there already, and bounds both. Text may be empty: then it is never found. */
td_status td_vocab_add(td_vocab *v, uint32_t id, const char *text, size_t n_bytes, uint8_t flags,
                       td_error *err);
int32_t td_vocab_find(const td_vocab *v, const char *text, size_t n_bytes); /* -1 if absent */
static inline const char *td_vocab_text(const td_vocab *v, uint32_t id)
{
  return v->blob + v->tokens[id].offset;
}
static inline bool td_vocab_has(const td_vocab *v, int64_t id)
{
  return id >= 0 && id < v->n_tokens && (v->tokens[id].flags & TD_TOKEN_PRESENT);
}

/* ---- alphabet.c: GPT-2's bijection of the 256 bytes with printable characters ---- */

/* UTF-8 of the character that stands for a byte: 1 or 2 bytes. */
typedef struct td_byte_char {
  unsigned char n, utf8[2];
} td_byte_char;
extern const td_byte_char td_byte_alphabet[256];
/* The bytes that a vocabulary text stands for. Returns the length (<= n), or -1 if some character is not of
 * the alphabet. out has room for n bytes. */
long td_alphabet_decode(const char *text, size_t n, unsigned char *out);

/* ---- merges.c: pair of ids -> rank and id of the whole ---- */

typedef struct td_merge_slot {
  uint32_t left, right, rank, whole;
} td_merge_slot;

typedef struct td_merges {
  td_merge_slot *slots; /* open addressing; left == UINT32_MAX: free */
  uint32_t n_slots, n_merges;
  uint8_t *maybe; /* a bit for 8 * n_slots hashes; clear: no such pair. A sixteenth of the table's size, so
                     most of it is in the cache */
  uint64_t seed;  /* random: pairs of a hostile file cannot be chosen to collide */
} td_merges;

enum { TD_NO_RANK = UINT32_MAX };
td_status td_merges_init(td_merges *m, uint64_t n_merges, td_error *err);
void td_merges_deinit(td_merges *m);
/* The next merge, in rank order, by its texts; TD_ERR_MODEL naming the line if one is not in the vocabulary.
 * A repeated pair takes the later rank, as the reference's map does. */
td_status td_merges_add(td_merges *m, const td_vocab *v, const char *left, size_t left_bytes,
                        const char *right, size_t right_bytes, td_error *err);
/* A merge by its ids; at most as many as init was told. Several may have one rank: the leftmost goes first.
 */
void td_merges_put(td_merges *m, td_merge_slot merge);
/* The same for a "left right" line. */
td_status td_merges_add_line(td_merges *m, const td_vocab *v, const char *line, size_t n, td_error *err);
static inline uint32_t td_merges_hash(const td_merges *m, uint32_t left, uint32_t right)
{
  return (uint32_t)td_hash_u64(m->seed, (uint64_t)left << 32 | right);
}
/* The merge of a pair, or NULL. */
static inline const td_merge_slot *td_merges_find(const td_merges *m, uint32_t left, uint32_t right)
{
  uint32_t hash = td_merges_hash(m, left, right), bit = hash & (8 * m->n_slots - 1);
  if (!(m->maybe[bit / 8] >> bit % 8 & 1))
    return NULL;
  for (uint32_t i = hash & (m->n_slots - 1);; i = (i + 1) & (m->n_slots - 1)) {
    const td_merge_slot *s = &m->slots[i];
    if (s->left == left && s->right == right)
      return s;
    if (s->left == UINT32_MAX)
      return NULL;
  }
}
static inline uint32_t td_merges_rank(const td_merges *m, uint32_t left, uint32_t right)
{
  const td_merge_slot *s = td_merges_find(m, left, right);
  return s ? s->rank : TD_NO_RANK;
}

/* ---- ranges of code points ---- */

typedef struct td_code_range {
  uint32_t first, last;
  uint8_t class; /* what its characters are, TD_CLASS_* or TD_LETTER_*, where that matters */
} td_code_range;

/* The one that cp is in; NULL: none. They are sorted, and none meets another. */
static inline const td_code_range *td_code_range_find(const td_code_range *ranges, size_t n, uint32_t cp)
{
  size_t lo = 0, hi = n;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (ranges[mid].last < cp)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo < n && ranges[lo].first <= cp ? &ranges[lo] : NULL;
}
/* The same of a whole table. */
#define TD_CODE_RANGE_OF(table, cp) td_code_range_find(table, sizeof(table) / sizeof *(table), cp)

/* ---- unicode.c: the classes that splitters ask for ---- */

enum {
  TD_CLASS_LETTER = 1,   /* \p{L} */
  TD_CLASS_NUMBER = 2,   /* \p{N} */
  TD_CLASS_MARK = 4,     /* \p{M} */
  TD_CLASS_SPACE = 8,    /* \s: White_Space */
  TD_CLASS_NEWLINE = 16, /* [\r\n], also TD_CLASS_SPACE */
  TD_CLASS_PUNCT = 32,   /* \p{P} */
  TD_CLASS_SYMBOL = 64,  /* \p{S} */
  TD_CLASS_DIGIT = 128,  /* \d: \p{Nd}, also TD_CLASS_NUMBER */
};
extern const uint8_t td_ascii_class[128];
uint8_t td_unicode_class_slow(uint32_t cp);
static inline uint8_t td_unicode_class(uint32_t cp)
{
  return cp < 128 ? td_ascii_class[cp] : td_unicode_class_slow(cp);
}
bool td_unicode_is_word(uint32_t cp); /* \w */
/* Of the pre_tokenizer Punctuation: ASCII's, symbols among them, and \p{P}. */
bool td_unicode_is_punctuation(uint32_t cp);
/* Of the pre_tokenizer Digits: \p{N}, and what is so from Unicode 17 on. It knows that and the expressions do
 * not, by all code points of `tokenizers` 0.23.3. */
static inline bool td_unicode_is_numeric(uint32_t cp)
{
  return (td_unicode_class(cp) & TD_CLASS_NUMBER) || (cp >= 0x11DE0 && cp <= 0x11DE9) ||
         (cp >= 0x16FF4 && cp <= 0x16FF6);
}

enum {
  TD_LETTER_UPPER = 1,    /* \p{Lu} */
  TD_LETTER_LOWER = 2,    /* \p{Ll} */
  TD_LETTER_TITLE = 4,    /* \p{Lt} */
  TD_LETTER_MODIFIER = 8, /* \p{Lm} */
  TD_LETTER_OTHER = 16,   /* \p{Lo} */
};
/* The kind of a letter; 0 for all else. */
uint8_t td_unicode_letter(uint32_t cp);

/* ---- regex_table.c: what an expression does with ASCII, as a table ---- */

typedef enum td_regex_op_kind {
  TD_REGEX_OP_TAKE,        /* a character of the set */
  TD_REGEX_OP_NEXT_IN,     /* the next character is of the set */
  TD_REGEX_OP_NEXT_NOT_IN, /* it is not, or the text ends */
  TD_REGEX_OP_LINE_END,    /* the text ends, or a line does */
  TD_REGEX_OP_BOTH,        /* goes on behind it; where that does not match, at `to` */
  TD_REGEX_OP_JUMP,        /* goes on at `to` */
  TD_REGEX_OP_MATCH,
} td_regex_op_kind;

typedef struct td_regex_op {
  td_regex_op_kind kind;
  uint16_t to;
  uint64_t ascii[2]; /* the set: bit c */
} td_regex_op;

enum { TD_REGEX_OPS_MAX = 512 };

typedef struct td_regex_table {
  uint8_t kind[128]; /* column of a character */
  uint32_t n_kinds;  /* columns; the last is the end of the text's. 0: no table */
  uint32_t *next;    /* place of the next state's row << 1 | (a match ends in front of this character) */
} td_regex_table;

/* False: too many states, or no memory. */
bool td_regex_table_init(td_regex_table *t, const td_regex_op *ops, uint32_t n_ops);
void td_regex_table_deinit(td_regex_table *t);
/* *behind: the end of the match at p, or NULL. False: that depends on a character beyond ASCII. */
bool td_regex_table_match(const td_regex_table *t, const unsigned char *p, const unsigned char *end,
                          size_t *steps_left, const unsigned char **behind);

/* ---- regex.c: expressions that are not written out by hand ---- */

typedef struct td_regex td_regex;
td_regex *td_regex_create(const char *text); /* NULL: beyond the grammar, or no memory */
void td_regex_destroy(td_regex *r);
bool td_regex_is_tabled(const td_regex *r);
/* As td_split_next. */
size_t td_regex_next(const td_regex *r, const unsigned char *text, size_t n, size_t *steps_left);
/* False: nothing matches where a text has only such bytes. */
bool td_regex_may_match(const td_regex *r, unsigned char c);

/* ---- split.c: the hand-written splitters ---- */

typedef enum td_split_kind {
  TD_SPLIT_WORDS,       /* the GPT-2 / Llama-3 / Qwen family, by the flags below */
  TD_SPLIT_NUMBERS,     /* \p{N}{1,max_digits} */
  TD_SPLIT_CJK,         /* [U+4E00-U+9FA5 U+3040-U+30FF]+ */
  TD_SPLIT_PUNCT_WORDS, /* DeepSeek-V3's */
  TD_SPLIT_LINE_ENDS,   /* \s+$ */
  TD_SPLIT_PUNCTUATION, /* the pre_tokenizer Punctuation: contiguous, or (max_digits 1) each by itself */
  TD_SPLIT_DIGITS,      /* the pre_tokenizer Digits: likewise */
  TD_SPLIT_BYTE_DIGITS, /* Digits behind ByteLevel: bytes that stand for themselves and are numbers */
  TD_SPLIT_REGEX,       /* any other: `regex` */
} td_split_kind;

typedef struct td_split {
  td_split_kind kind;
  bool modern;         /* Llama-3 shape: any one character may lead a word, line breaks are taken apart */
  bool fold;           /* contractions in either case */
  bool marks;          /* \p{M} counts as a letter */
  uint32_t max_digits; /* 0: any number */
  td_regex *regex;     /* owned by the tokenizer; of TD_SPLIT_REGEX */
} td_split;

/* The splitter that equals a regular expression; false if that is beyond regex.c. *total: it is known to
 * match everywhere, so that "Removed" + invert means the same as "Isolated". */
bool td_split_from_regex(const char *regex, td_split *out, bool *total);
/* Length of the first piece of text (n > 0 bytes of valid UTF-8). Expressions take from *steps_left; 0 if
 * they have used it up. */
size_t td_split_next(const td_split *s, const unsigned char *text, size_t n, size_t *steps_left);
/* False: where a text has only such bytes, its first piece is all of it. */
bool td_split_may_cut(const td_split *s, unsigned char c);

/* ---- nfc.c ---- */

/* True if text is certain to be in NFC already. */
bool td_nfc_quick(const unsigned char *text, size_t n);
/* Appends the NFC of text (valid UTF-8) to out, in linear time. spans (may be NULL) are byte ranges of text,
 * and become ranges of what was appended, counted from its start; a border inside a rewritten stretch moves
 * inwards. */
td_status td_nfc_append(const unsigned char *text, size_t n, td_buf *out, td_span *spans, size_t n_spans,
                        td_error *err);

/* ---- added.c: tokens that are cut out of the text ---- */

enum { TD_ADDED_SINGLE_WORD = 1, TD_ADDED_LSTRIP = 2, TD_ADDED_RSTRIP = 4 };

typedef struct td_added {
  char *pattern; /* owned; NFC of the text where `normalized` asks for it */
  uint32_t n_bytes;
  int32_t id;
  uint8_t flags; /* TD_ADDED_* */
  bool special;
} td_added;

/* Patterns in byte order; those that begin with byte b are [first[b], first[b + 1]). */
typedef struct td_added_set {
  td_added *items;
  uint32_t n, cap;
  uint32_t first[257];
} td_added_set;

void td_added_deinit(td_added_set *s);
td_status td_added_add(td_added_set *s, const char *pattern, size_t n_bytes, int32_t id, bool special,
                       uint8_t flags, td_error *err);
void td_added_seal(td_added_set *s); /* sorts; drops all but the last of equal patterns */

typedef struct td_added_match {
  size_t start, end; /* with the stripped white space */
  int32_t id;
} td_added_match;

/* Index of the first of n sorted spans that ends behind pos. */
size_t td_span_after(const td_span *spans, size_t n, size_t pos);

/* A search from left to right; the caller sets text, n, spans, n_spans and base and zeroes the rest. */
typedef struct td_added_search {
  const td_added_set *set;
  const unsigned char *text;
  size_t n;
  const td_span *spans; /* trusted, sorted */
  size_t n_spans;
  size_t base;      /* of text in the coordinates of spans */
  size_t at;        /* where the search goes on */
  size_t last_end;  /* end of the last match */
  size_t space_end; /* of the white space that an rstrip has looked at last: none does so twice */
} td_added_search;
bool td_added_next(td_added_search *s, td_added_match *m);

/* ---- words.c: short words that this thread has met before ---- */

enum { TD_WORD_BYTES = 16, TD_WORD_IDS = 3, TD_WORDS_BITS = 13 };

/* The bytes of a word of 1 to TD_WORD_BYTES bytes: equal keys are equal words. */
typedef struct td_word_key {
  uint64_t first, last;
  uint32_t n_bytes; /* 0: free */
} td_word_key;

typedef struct td_word {
  uint64_t first, last;
  uint16_t n_bytes, n_ids;
  int32_t ids[TD_WORD_IDS];
} td_word;

typedef struct td_words {
  uint64_t seed;
  uint64_t owner; /* the tokenizer that its ids are of */
  td_word slots[1 << TD_WORDS_BITS];
} td_words;

/* This thread's table, cleared if it was another tokenizer's. NULL: no memory, and no harm. */
td_words *td_words_here(const td_tokenizer *t);

static inline uint64_t td_word_load(const unsigned char *p, size_t n)
{
  uint64_t v = 0;
  __builtin_memcpy(&v, p, n);
  return v;
}

static inline td_word_key td_word_key_of(const unsigned char *p, size_t n)
{
  if (n >= 8)
    return (td_word_key){td_word_load(p, 8), td_word_load(p + n - 8, 8), (uint32_t)n};
  if (n >= 4)
    return (td_word_key){td_word_load(p, 4) | td_word_load(p + n - 4, 4) << 32, 0, (uint32_t)n};
  return (td_word_key){p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16, 0, (uint32_t)n};
}

/* The place of a word, which may hold another. */
static inline td_word *td_words_at(td_words *w, const td_word_key *key)
{
  uint64_t h = td_hash_mix(key->first ^ w->seed, (key->last + key->n_bytes) ^ 0x9E3779B97F4A7C15u);
  return &w->slots[h >> 9 & ((1 << TD_WORDS_BITS) - 1)];
}

static inline bool td_word_is(const td_word *w, const td_word_key *key)
{
  return w->first == key->first && w->last == key->last && w->n_bytes == key->n_bytes;
}

/* Where ids go, and how many may. */
typedef struct td_id_sink {
  td_ids *ids;
  size_t base, max_tokens; /* ids->n at the start; 0: no cap */
  td_error *err;
  bool behind_unk; /* the id before came of a character that has no token */
  td_words *words; /* NULL: words are not remembered */
  size_t room;     /* ids->n may become that before somebody has to look */
} td_id_sink;
/* Makes room for one id more, or refuses it. */
td_status td_id_sink_grow(td_id_sink *sink);
static inline td_status td_id_sink_push(td_id_sink *sink, int32_t id)
{
  td_progress_add(1);
  if (sink->ids->n >= sink->room)
    TD_TRY(td_id_sink_grow(sink));
  sink->ids->ids[sink->ids->n++] = id;
  return TD_OK;
}

/* ---- spm.c: SentencePiece's way with spaces, and merges between characters ---- */

typedef enum td_spm_prefix {
  TD_SPM_PREFIX_NONE,   /* texts get no U+2581 in front */
  TD_SPM_PREFIX_EVERY,  /* every stretch between added tokens does */
  TD_SPM_PREFIX_ABSENT, /* those that do not begin with one */
  TD_SPM_PREFIX_FIRST,  /* the same, and only where it begins the whole text */
} td_spm_prefix;

typedef struct td_spm {
  bool on;            /* false: the family of bytes */
  bool marks_first;   /* spaces are marked before normalised added tokens are looked for, not behind them */
  bool splits_spaces; /* no merge goes across the front of a U+2581 */
  bool squeezes;      /* runs of spaces become one, those at the ends vanish */
  bool byte_fallback; /* a character without a token goes out as its bytes; else as unk */
  bool fuse_unk;      /* a run of such characters is one unk */
  bool decodes_strip; /* decoded text loses one space at its very beginning */
  td_spm_prefix prefix;
  int32_t unk;                  /* -1: none */
  int32_t ascii_id[128];        /* token of each ASCII character; -1: none */
  uint8_t *joins;               /* bits by a hash of two characters; clear: no token has them side by side */
  uint8_t ascii_joins[128][16]; /* the same of two ASCII characters, a bit each */
} td_spm;

/* Appends text with U+2581 for each space, behind one more if `prefix`. spans (may be NULL) move along. */
td_status td_spm_mark(const td_tokenizer *t, const unsigned char *text, size_t n, bool prefix, td_buf *out,
                      td_span *spans, size_t n_spans, td_error *err);
/* The ids of marked text, valid UTF-8. */
td_status td_spm_encode(const td_tokenizer *t, const unsigned char *text, size_t n, td_id_sink *sink);
/* Marks the tokens that stand for bytes, where the vocabulary does not tell. */
void td_spm_find_bytes(td_tokenizer *t);
/* What derives from the vocabulary: tokens of bytes and characters, pairs that no token has. */
td_status td_spm_finish(td_tokenizer *t, td_error *err);

/* ---- scores.c: merges from the scores of pieces ---- */

/* Every way to put a model token together out of two others is a merge; the higher its score, the earlier.
 * scores: [n_tokens]; NaN is taken for the lowest. */
td_status td_scores_to_merges(td_tokenizer *t, const float *scores, td_error *err);

/* ---- protobuf.c: the wire format, as far as needed ---- */

typedef struct td_protobuf {
  const unsigned char *at, *end;
} td_protobuf;

typedef struct td_protobuf_field {
  uint32_t number;
  uint8_t wire;               /* 0 varint, 1 64 bits, 2 bytes, 5 32 bits */
  uint64_t value;             /* of wire 0, 1 and 5 */
  const unsigned char *bytes; /* of wire 2; borrowed */
  size_t n_bytes;
} td_protobuf_field;

/* 1: a field; 0: the end; -1: the bytes are no message. */
int td_protobuf_next(td_protobuf *r, td_protobuf_field *f);

/* ---- bpe.c, encode.c, the whole ---- */

enum { TD_SPLITS_MAX = 8 /* bits of may_cut */, TD_AROUND_MAX = 8 };

/* Tokens that the model's own tokenizer puts beside a text. */
typedef struct td_around {
  int32_t ids[TD_AROUND_MAX];
  uint32_t n;
} td_around;

struct td_tokenizer {
  uint64_t serial; /* no other tokenizer of this process has it */
  td_vocab vocab;
  td_merges merges;
  int32_t byte_id[256]; /* token of each byte; -1: it vanishes */
  uint32_t *byte_rank; /* [256 * 256] of the merge of two bytes' tokens: what a word's encoding begins with */
  uint32_t longest_bytes; /* most bytes that one model token stands for */
  bool ignore_merges;     /* a word that is in the vocabulary is that token, whatever the merges say */
  bool nfc;
  td_split splits[TD_SPLITS_MAX];
  uint32_t n_splits;
  uint8_t may_cut[256];          /* bit i: splits[i] may cut a text that has this byte */
  td_added_set added_raw;        /* matched before normalisation */
  td_added_set added_normalized; /* after it */
  td_spm spm;
  int32_t bos, eos;
  bool adds_bos;
  td_around front, rear; /* between BOS and the text; behind the text */
};

/* A place in a word of many symbols. */
typedef struct td_symbol {
  uint32_t id;
  uint32_t prev, next; /* UINT32_MAX: none */
  uint32_t rank;       /* of the merge with next, as it stands; heap entries that disagree are stale */
} td_symbol;

enum { TD_SHORT_WORD_BYTES = 40 };

/* Merges ids[0..n) in place, rank[i] being that of ids[i] with its next; returns how many are left. */
uint32_t td_bpe_short(const td_merges *m, uint32_t *ids, uint32_t *rank, uint32_t n);
/* Merges n symbols, of which only the ids are set, and emits what is left. */
td_status td_bpe_long(const td_tokenizer *t, td_symbol *s, uint32_t n, td_id_sink *sink);
/* Emits the ids of a word, and remembers them. */
td_status td_bpe_emit_word(const td_tokenizer *t, const unsigned char *word, size_t n, const uint32_t *ids,
                           uint32_t n_ids, td_id_sink *sink);
/* Emits the ids of a word (n > 0 bytes) that is remembered. *met: whether it was. */
static inline td_status td_bpe_emit_known(const unsigned char *word, size_t n, td_id_sink *sink, bool *met)
{
  *met = false;
  if (n > TD_WORD_BYTES || !sink->words)
    return TD_OK;
  const td_word_key key = td_word_key_of(word, n);
  const td_word *w = td_words_at(sink->words, &key);
  if (!td_word_is(w, &key))
    return TD_OK;
  *met = true;
  sink->behind_unk = false;
  for (uint32_t i = 0; i < w->n_ids; i++)
    TD_TRY(td_id_sink_push(sink, w->ids[i]));
  return TD_OK;
}
/* The ids of one word (n > 0 bytes), whether it is remembered or not. */
td_status td_bpe_word(const td_tokenizer *t, const unsigned char *word, size_t n, td_id_sink *sink);

td_tokenizer *td_tokenizer_new(td_error *err);
/* Registers an added token by id; the vocabulary has it already, or gets it. */
td_status td_tokenizer_add(td_tokenizer *t, uint32_t id, const char *text, size_t n_bytes, bool special,
                           bool normalized, uint8_t flags, td_error *err);
/* EOS, where there is one, stands behind a text. */
void td_tokenizer_add_eos(td_tokenizer *t);
/* Builds what derives from vocabulary, merges and added tokens. */
td_status td_tokenizer_finish(td_tokenizer *t, td_error *err);
/* A piece of SentencePiece that matches in marked text wherever it stands (USER_DEFINED). */
td_status td_tokenizer_add_piece(td_tokenizer *t, uint32_t id, td_error *err);
/* From the bytes of a tokenizer.model. config: tokenizer_config.json; added: added_tokens.json; may be NULL.
 */
td_status td_tokenizer_load_spm(td_tokenizer *t, const void *bytes, size_t n_bytes, const cJSON *config,
                                const cJSON *added, td_error *err);
/* The splitter chain that a GGUF file names. */
td_status td_pre_load(td_tokenizer *t, const td_model_files *files, td_error *err);
td_status td_tokenizer_load_gguf(const td_model_files *files, td_tokenizer *t, td_error *err);

#endif
