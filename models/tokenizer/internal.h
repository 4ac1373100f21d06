/* The parts of a tokenizer, internal to this folder: vocabulary, merges, splitter chain, added tokens.
 *
 * A loader (load_json.c, load_gguf.c, load_spm.c) builds everything, and td_tokenizer_finish seals it. After
 * that it is read-only, except for one byte per token that caches a fact about the token (see bpe.c). There
 * are two families: texts of bytes in GPT-2's alphabet, cut by splitters (bpe.c), and texts of characters
 * with U+2581 for a space (SentencePiece: spm.c, and unigram.c for Unigram models). */
#ifndef TD_MODELS_TOKENIZER_INTERNAL_H
#define TD_MODELS_TOKENIZER_INTERNAL_H

#include "common/hash.h"
#include "common/progress.h"
#include "config/limits.h"
#include "models/tokenizer/tokenizer.h"

/* ---- vocab.c: one blob of texts, one record per id, one hash from text to id ---- */

enum {
  TD_TOKEN_PRESENT = 1, /* ids may have holes */
  TD_TOKEN_MODEL = 2,   /* belongs to the model's vocabulary (not only to the added tokens) */
  TD_TOKEN_ADDED = 4,   /* cut out of the text before the BPE; its text is raw bytes if MODEL is not set */
  TD_TOKEN_SPECIAL = 8, /* added, and recognised in trusted text only */
  TD_TOKEN_BYTE = 16,   /* SentencePiece's "<0x0A>": stands for a byte, and is never the result of a merge */
  TD_TOKEN_SPACED = 32, /* added, and matched together with the space that the normalizer puts before it */
};

/* Whether the BPE of a token's own text gives back just this token; bpe.c finds it out. */
enum { TD_WHOLE_UNKNOWN = 0, TD_WHOLE_YES = 1, TD_WHOLE_NO = 2 };

typedef struct td_token {
  uint32_t offset; /* of the text in the blob, where it is NUL-terminated */
  uint16_t n_bytes;
  uint8_t flags;
  uint8_t whole; /* TD_WHOLE_*; relaxed atomic */
} td_token;

/* tag holds other bits of the text's hash than the slot index, so most mismatches need no look at the
 * texts. */
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
  uint64_t seed; /* random, so that a hostile file cannot choose texts that collide */
  uint32_t longest_text_bytes;
} td_vocab;

td_status td_vocab_init(td_vocab *v, uint32_t n_ids, uint64_t n_text_bytes, td_error *err);
void td_vocab_deinit(td_vocab *v);
/* Refuses a text or id that is already there, and texts or ids beyond the limits. A token with empty text is
 * never found. */
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

/* ---- alphabet.c: GPT-2's mapping of the 256 bytes to printable characters, one to one ---- */

/* UTF-8 of the character that stands for a byte: 1 or 2 bytes. */
typedef struct td_byte_char {
  unsigned char n, utf8[2];
} td_byte_char;
extern const td_byte_char td_byte_alphabet[256];
/* Decodes a vocabulary text to the bytes that it stands for. Returns their number (<= n), or -1 if a
 * character is not in the alphabet. out has room for n bytes. */
long td_alphabet_decode(const char *text, size_t n, unsigned char *out);

/* ---- merges.c: pair of ids -> rank and id of the merged token ---- */

typedef struct td_merge_slot {
  uint32_t left, right, rank, whole;
} td_merge_slot;

typedef struct td_merges {
  td_merge_slot *slots; /* open addressing; left == UINT32_MAX: free */
  uint32_t n_slots, n_merges;
  uint8_t *maybe; /* a bit for each of 8 * n_slots hash values; a clear bit means that there is no such pair.
                     It has a sixteenth of the table's size, so most of it stays in the CPU cache */
  uint64_t seed;  /* random, so that a hostile file cannot choose pairs that collide */
} td_merges;

enum { TD_NO_RANK = UINT32_MAX };
td_status td_merges_init(td_merges *m, uint64_t n_merges, td_error *err);
void td_merges_deinit(td_merges *m);
/* Adds the next merge in rank order, by its texts. TD_ERR_MODEL, naming the merge, if a text is not in the
 * vocabulary. A repeated pair takes the later rank, as in the reference. */
td_status td_merges_add(td_merges *m, const td_vocab *v, const char *left, size_t left_bytes,
                        const char *right, size_t right_bytes, td_error *err);
/* Adds a merge by its ids. There must be at most as many as td_merges_init was told. Merges may share a rank;
 * the leftmost is then applied first. */
void td_merges_put(td_merges *m, td_merge_slot merge);
/* Like td_merges_add, for a "left right" line. */
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
  uint8_t class; /* of its characters, TD_CLASS_* or TD_LETTER_*; unused in some tables */
} td_code_range;

/* The range that contains cp, or NULL. The ranges must be sorted and disjoint. */
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
/* The same for a whole table. */
#define TD_CODE_RANGE_OF(table, cp) td_code_range_find(table, sizeof(table) / sizeof *(table), cp)

/* ---- unicode.c: character classes for splitters ---- */

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
/* Class of the pre_tokenizer Punctuation: \p{P} and ASCII's punctuation and symbols. */
bool td_unicode_is_punctuation(uint32_t cp);
/* Class of the pre_tokenizer Digits: \p{N} as of Unicode 17, which the expressions do not know. Compared for
 * all code points with `tokenizers` 0.23.3. */
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
/* The kind of a letter, TD_LETTER_*; 0 if cp is no letter. */
uint8_t td_unicode_letter(uint32_t cp);

/* ---- regex_table.c: how an expression matches ASCII, as a table ---- */

typedef enum td_regex_op_kind {
  TD_REGEX_OP_TAKE,        /* consumes a character in the set */
  TD_REGEX_OP_NEXT_IN,     /* the next character is in the set */
  TD_REGEX_OP_NEXT_NOT_IN, /* the next character is not in the set, or the text ends */
  TD_REGEX_OP_LINE_END,    /* here is the end of the text or of a line */
  TD_REGEX_OP_BOTH,        /* continues with the next op and, if that does not match, at `to` */
  TD_REGEX_OP_JUMP,        /* continues at `to` */
  TD_REGEX_OP_MATCH,
} td_regex_op_kind;

typedef struct td_regex_op {
  td_regex_op_kind kind;
  uint16_t to;
  uint64_t ascii[2]; /* the set, bit c for character c */
} td_regex_op;

enum { TD_REGEX_OPS_MAX = 512 };

typedef struct td_regex_table {
  uint8_t kind[128]; /* the column of a character */
  uint32_t n_kinds;  /* columns, the last of which is for the end of the text. 0: there is no table */
  uint32_t *next;    /* index of the next state's row << 1 | (a match ends before this character) */
} td_regex_table;

/* Returns false if there are too many states or no memory. */
bool td_regex_table_init(td_regex_table *t, const td_regex_op *ops, uint32_t n_ops);
void td_regex_table_deinit(td_regex_table *t);
/* Sets *match_end to the end of the match at p, or NULL. Returns false if the result depends on a character
 * beyond ASCII. */
bool td_regex_table_match(const td_regex_table *t, const unsigned char *p, const unsigned char *end,
                          size_t *steps_left, const unsigned char **match_end);

/* ---- regex.c: expressions that have no hand-written splitter ---- */

typedef struct td_regex td_regex;
td_regex *td_regex_create(const char *text); /* NULL: not in the grammar, or no memory */
void td_regex_destroy(td_regex *r);
bool td_regex_is_tabled(const td_regex *r);
/* Same contract as td_split_next. */
size_t td_regex_next(const td_regex *r, const unsigned char *text, size_t n, size_t *steps_left);
/* False if nothing can match in a text that consists of such bytes only. */
bool td_regex_may_match(const td_regex *r, unsigned char c);

/* ---- split.c: the hand-written splitters ---- */

typedef enum td_split_kind {
  TD_SPLIT_WORDS,       /* the GPT-2 / Llama-3 / Qwen family, by the flags below */
  TD_SPLIT_NUMBERS,     /* \p{N}{1,max_digits} */
  TD_SPLIT_CJK,         /* [U+4E00-U+9FA5 U+3040-U+30FF]+ */
  TD_SPLIT_PUNCT_WORDS, /* DeepSeek-V3's */
  TD_SPLIT_LINE_ENDS,   /* \s+$ */
  TD_SPLIT_PUNCTUATION, /* the pre_tokenizer Punctuation: runs, or with max_digits 1 single characters */
  TD_SPLIT_DIGITS,      /* the pre_tokenizer Digits: runs, or with max_digits 1 single characters */
  TD_SPLIT_BYTE_DIGITS, /* Digits after ByteLevel: bytes whose character in GPT-2's alphabet is a number */
  TD_SPLIT_REGEX,       /* any other expression: `regex` */
} td_split_kind;

typedef struct td_split {
  td_split_kind kind;
  bool modern;         /* Llama-3's shape: any one character may lead a word; line breaks are pieces */
  bool fold;           /* contractions match in upper and lower case */
  bool marks;          /* \p{M} counts as a letter */
  uint32_t max_digits; /* 0: any number */
  td_regex *regex;     /* for TD_SPLIT_REGEX; owned by the tokenizer */
} td_split;

/* Finds the splitter that equals a regular expression. Returns false if regex.c cannot handle it. *total: the
 * expression is known to match everywhere, so that "Removed" with invert means the same as "Isolated". */
bool td_split_from_regex(const char *regex, td_split *out, bool *total);
/* Length of the first piece of text (n > 0 bytes of valid UTF-8). TD_SPLIT_REGEX subtracts its work from
 * *steps_left, and returns 0 if nothing is left. */
size_t td_split_next(const td_split *s, const unsigned char *text, size_t n, size_t *steps_left);
/* False if a text that consists of such bytes only is always a single piece. */
bool td_split_may_cut(const td_split *s, unsigned char c);

/* ---- nfc.c ---- */

/* True if text is certain to be in NFC already; may be false although it is. */
bool td_nfc_quick(const unsigned char *text, size_t n);
/* Appends the NFC of text (valid UTF-8) to out, in linear time. spans (may be NULL) are byte ranges of text.
 * They become ranges of the appended text, relative to its start. A border inside a rewritten stretch moves
 * inwards. */
td_status td_nfc_append(const unsigned char *text, size_t n, td_buf *out, td_span *spans, size_t n_spans,
                        td_error *err);

/* ---- added.c: tokens that are cut out of the text ---- */

enum { TD_ADDED_SINGLE_WORD = 1, TD_ADDED_LSTRIP = 2, TD_ADDED_RSTRIP = 4 };

typedef struct td_added {
  char *pattern; /* owned; as it appears in normalised text if the token is matched there */
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
void td_added_seal(td_added_set *s); /* sorts; of equal patterns keeps the last */

typedef struct td_added_match {
  size_t start, end; /* include the white space that was stripped */
  int32_t id;
} td_added_match;

/* Index of the first of n sorted spans that ends after pos. */
size_t td_span_after(const td_span *spans, size_t n, size_t pos);

/* A search from left to right. The caller sets text, n, set, spans, n_spans and base, and zeroes the other
 * fields. */
typedef struct td_added_search {
  const td_added_set *set;
  const unsigned char *text;
  size_t n;
  const td_span *spans; /* trusted, sorted */
  size_t n_spans;
  size_t base;      /* offset of text in the coordinates of spans */
  size_t at;        /* where the search continues */
  size_t last_end;  /* end of the last match */
  size_t space_end; /* end of the white space of the last rstrip, so that none is looked at twice */
} td_added_search;
bool td_added_next(td_added_search *s, td_added_match *m);

/* ---- word_cache.c: short words that this thread has encoded before ---- */

enum { TD_WORD_BYTES = 16, TD_WORD_IDS = 3, TD_WORD_CACHE_BITS = 13 };

/* The content of a word of 1 to TD_WORD_BYTES bytes. Words are equal if and only if their keys are. */
typedef struct td_word_key {
  uint64_t first, last;
  uint32_t n_bytes; /* 0: free */
} td_word_key;

typedef struct td_word {
  uint64_t first, last;
  uint16_t n_bytes, n_ids;
  int32_t ids[TD_WORD_IDS];
} td_word;

typedef struct td_word_cache {
  uint64_t seed;
  uint64_t owner; /* serial of the tokenizer whose ids the table holds */
  td_word slots[1 << TD_WORD_CACHE_BITS];
} td_word_cache;

/* This thread's table, cleared first if it holds another tokenizer's ids. NULL if there is no memory, which
 * is harmless. */
td_word_cache *td_word_cache_of_thread(const td_tokenizer *t);

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

/* The slot of a word, which may hold another word. */
static inline td_word *td_word_cache_slot(td_word_cache *w, const td_word_key *key)
{
  uint64_t h = td_hash_mix(key->first ^ w->seed, (key->last + key->n_bytes) ^ 0x9E3779B97F4A7C15u);
  return &w->slots[h >> 9 & ((1 << TD_WORD_CACHE_BITS) - 1)];
}

static inline bool td_word_is(const td_word *w, const td_word_key *key)
{
  return w->first == key->first && w->last == key->last && w->n_bytes == key->n_bytes;
}

/* Where ids are appended, and how many are allowed. */
typedef struct td_id_sink {
  td_ids *ids;
  size_t base, max_tokens; /* base: ids->n at the start; max_tokens 0: no cap */
  td_error *err;
  bool after_unk;       /* the previous id came from a character that has no token */
  td_word_cache *words; /* NULL: words are not remembered */
  size_t room;          /* td_id_sink_grow must be called when ids->n reaches this */
} td_id_sink;
/* Makes room for one more id, or refuses it. */
td_status td_id_sink_grow(td_id_sink *sink);
static inline td_status td_id_sink_push(td_id_sink *sink, int32_t id)
{
  td_progress_add(1);
  if (sink->ids->n >= sink->room)
    TD_TRY(td_id_sink_grow(sink));
  sink->ids->ids[sink->ids->n++] = id;
  return TD_OK;
}

/* ---- spm.c: SentencePiece's handling of spaces, and merges between characters ---- */

typedef enum td_spm_prefix {
  TD_SPM_PREFIX_NONE,   /* no U+2581 is put before texts */
  TD_SPM_PREFIX_EVERY,  /* one before every stretch between added tokens */
  TD_SPM_PREFIX_ABSENT, /* one before each stretch that does not begin with a space */
  TD_SPM_PREFIX_FIRST,  /* the same, but only at the start of the whole text */
} td_spm_prefix;

typedef struct td_spm {
  bool on;            /* false: this is the family of bytes */
  bool marks_first;   /* spaces become U+2581 before (not after) normalised added tokens are searched */
  bool splits_spaces; /* no merge joins a U+2581 to characters before it */
  bool squeezes;      /* runs of spaces become one space; spaces at the ends are removed */
  bool byte_fallback; /* a character without a token becomes its bytes' tokens; if false, unk */
  bool fuse_unk;      /* a run of characters without tokens becomes one unk */
  bool decodes_strip; /* decoding removes one space from the very beginning of a text */
  td_spm_prefix prefix;
  int32_t unk;                  /* -1: none */
  int32_t ascii_id[128];        /* token of each ASCII character; -1: none */
  uint8_t *joins;               /* a bit by the hash of two characters; clear: no token has them in a row */
  uint8_t ascii_joins[128][16]; /* the same for two ASCII characters, one bit per pair */
} td_spm;

/* Appends text with each space as U+2581, after another U+2581 if `prefix`. spans (may be NULL) are
 * adjusted. */
td_status td_spm_mark(const td_tokenizer *t, const unsigned char *text, size_t n, bool prefix, td_buf *out,
                      td_span *spans, size_t n_spans, td_error *err);
/* Appends the ids of marked text, which must be valid UTF-8. */
td_status td_spm_encode(const td_tokenizer *t, const unsigned char *text, size_t n, td_id_sink *sink);
/* Marks the tokens that stand for bytes, for vocabularies that do not mark them. */
void td_spm_find_bytes(td_tokenizer *t);
/* Builds data that follows from the vocabulary: tokens of bytes and characters, and the pairs that no token
 * contains. */
td_status td_spm_finish(td_tokenizer *t, td_error *err);

/* ---- scores.c: merges from the scores of pieces ---- */

/* Makes a merge of every way to build a model token from two others. A higher score gives a lower rank.
 * scores: [n_tokens]; NaN counts as the lowest. */
td_status td_scores_to_merges(td_tokenizer *t, const float *scores, td_error *err);

/* ---- unigram.c: the pieces of a text whose scores have the highest sum ---- */

typedef struct td_unigram {
  bool on;         /* false: the model merges (BPE) */
  bool float_sums; /* sums are rounded as SentencePiece rounds them; false: as `tokenizers` does */
  double *scores;  /* [n_scores] by id */
  uint32_t n_scores;
  double unknown_score;          /* of a character that is not a piece by itself */
  struct td_unigram_node *nodes; /* a trie of the pieces' bytes; the root is node 0 */
  uint32_t starts[256];          /* the root's children by their bytes; 0: none */
  uint32_t longest_bytes;        /* of a piece */
  uint32_t n_sums;               /* a power of two above longest_bytes */
} td_unigram;

/* Takes scores over, even if it fails. The score of unknown characters follows from the least of them. */
td_status td_unigram_set_scores(td_tokenizer *t, double *scores, uint32_t n_scores, double least,
                                bool float_sums, td_error *err);
/* Builds the trie. Call it once all tokens are registered. */
td_status td_unigram_finish(td_tokenizer *t, td_error *err);
void td_unigram_deinit(td_unigram *u);
/* Appends the ids of marked text, which must be valid UTF-8. */
td_status td_unigram_encode(const td_tokenizer *t, const unsigned char *text, size_t n, td_id_sink *sink);

/* ---- protobuf.c: the parts of the wire format that we need ---- */

typedef struct td_protobuf {
  const unsigned char *at, *end;
} td_protobuf;

typedef struct td_protobuf_field {
  uint32_t number;
  uint8_t wire;               /* 0 varint, 1 64 bits, 2 bytes, 5 32 bits */
  uint64_t value;             /* for wire 0, 1 and 5 */
  const unsigned char *bytes; /* for wire 2; borrowed */
  size_t n_bytes;
} td_protobuf_field;

/* Returns 1 for a field, 0 at the end, and -1 if the bytes are not a valid message. */
int td_protobuf_next(td_protobuf *r, td_protobuf_field *f);

/* ---- bpe.c, encode.c, and the tokenizer as a whole ---- */

enum { TD_SPLITS_MAX = 8 /* number of bits in may_cut */, TD_AROUND_MAX = 8 };

/* Tokens that the model's own tokenizer adds before or after a text. */
typedef struct td_around {
  int32_t ids[TD_AROUND_MAX];
  uint32_t n;
} td_around;

struct td_tokenizer {
  uint64_t serial; /* unique in this process */
  td_vocab vocab;
  td_merges merges;
  int32_t byte_id[256];   /* token of each byte; -1: none, the byte is dropped */
  uint32_t *byte_rank;    /* [256 * 256] rank of the merge of two bytes' tokens, the first merges of a word */
  uint32_t longest_bytes; /* most bytes that one model token stands for */
  bool ignore_merges;     /* a word that is in the vocabulary becomes that token, whatever the merges say */
  bool nfc;
  td_split splits[TD_SPLITS_MAX];
  uint32_t n_splits;
  uint8_t may_cut[256];          /* bit i: splits[i] may cut a text that has this byte */
  td_added_set added_raw;        /* matched before normalisation */
  td_added_set added_normalized; /* matched after normalisation */
  td_spm spm;
  td_unigram unigram;
  int32_t bos, eos;
  bool adds_bos;
  td_around front, rear; /* front: between BOS and the text; rear: after the text */
};

/* One symbol in a long word, as an element of a linked list. */
typedef struct td_symbol {
  uint32_t id;
  uint32_t prev, next; /* UINT32_MAX: none */
  uint32_t rank;       /* of the current merge with next; heap entries with another rank are stale */
} td_symbol;

enum { TD_SHORT_WORD_BYTES = 40 };

/* Merges ids[0..n) in place; rank[i] is the rank of ids[i] with its next. Returns how many ids are left. */
uint32_t td_bpe_short(const td_merges *m, uint32_t *ids, uint32_t *rank, uint32_t n);
/* Merges n symbols, of which only the ids are set, and emits the remaining ones. */
td_status td_bpe_long(const td_tokenizer *t, td_symbol *s, uint32_t n, td_id_sink *sink);
/* Emits the ids of a word, and remembers them for the next time. */
td_status td_bpe_emit_word(const td_tokenizer *t, const unsigned char *word, size_t n, const uint32_t *ids,
                           uint32_t n_ids, td_id_sink *sink);
/* Emits the ids of a word (n > 0 bytes) if it is remembered; *hit says whether it was. */
static inline td_status td_bpe_emit_cached(const unsigned char *word, size_t n, td_id_sink *sink, bool *hit)
{
  *hit = false;
  if (n > TD_WORD_BYTES || !sink->words)
    return TD_OK;
  const td_word_key key = td_word_key_of(word, n);
  const td_word *w = td_word_cache_slot(sink->words, &key);
  if (!td_word_is(w, &key))
    return TD_OK;
  *hit = true;
  sink->after_unk = false;
  for (uint32_t i = 0; i < w->n_ids; i++)
    TD_TRY(td_id_sink_push(sink, w->ids[i]));
  return TD_OK;
}
/* Emits the ids of one word (n > 0 bytes) that is not remembered. */
td_status td_bpe_word(const td_tokenizer *t, const unsigned char *word, size_t n, td_id_sink *sink);

td_tokenizer *td_tokenizer_new(td_error *err);
/* Registers an added token. If the vocabulary has its text already, that id is used; otherwise the token is
 * added to it. */
td_status td_tokenizer_add(td_tokenizer *t, uint32_t id, const char *text, size_t n_bytes, bool special,
                           bool normalized, uint8_t flags, td_error *err);
/* Adds EOS, if there is one, after every text. */
void td_tokenizer_add_eos(td_tokenizer *t);
/* Builds data that follows from vocabulary, merges and added tokens. Call it once all tokens are
 * registered. */
td_status td_tokenizer_finish(td_tokenizer *t, td_error *err);
/* Registers a SentencePiece piece of type USER_DEFINED, which matches everywhere in marked text. */
td_status td_tokenizer_add_piece(td_tokenizer *t, uint32_t id, td_error *err);
/* Loads from the bytes of a tokenizer.model. config (tokenizer_config.json) and added (added_tokens.json) may
 * be NULL. */
td_status td_tokenizer_load_spm(td_tokenizer *t, const void *bytes, size_t n_bytes, const cJSON *config,
                                const cJSON *added, td_error *err);
/* Loads the splitter chain that a GGUF file names. */
td_status td_pre_load(td_tokenizer *t, const td_model_files *files, td_error *err);
td_status td_tokenizer_load_gguf(const td_model_files *files, td_tokenizer *t, td_error *err);

#endif
