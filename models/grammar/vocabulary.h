/* A vocabulary as tries of its tokens' bytes, and facts about it that hold for every grammar. */
#ifndef TD_MODELS_GRAMMAR_VOCABULARY_H
#define TD_MODELS_GRAMMAR_VOCABULARY_H

#include "models/grammar/machine.h"

/* Nodes are in preorder: a node, then everything below it. Node 0 is the root. */
typedef struct td_trie_node {
  uint32_t end;   /* index after everything below it */
  uint32_t first; /* start of the tokens that end here or below, a range of the trie's tokens */
  int32_t token;  /* -1: none ends here */
  uint16_t depth;
  uint8_t byte;
} td_trie_node;

typedef struct td_trie {
  td_trie_node *nodes;
  uint32_t n_nodes;
  int32_t *tokens; /* [n_tokens] in the order of nodes, including tokens with the same bytes */
  uint32_t n_tokens;
  uint32_t below_root[256]; /* the node for each first byte; 0: none */
} td_trie;

/* Tokens by their characters; each kind has a trie of its own. If a state takes any letters up to some count,
 * words up to that length are allowed without a walk (slices.c). */
typedef enum td_letters {
  TD_LETTERS_ALNUM, /* words of A-Z, a-z, 0-9 */
  TD_LETTERS_PLAIN, /* other words, of characters that no dialect of JSON or patterns treats specially */
  TD_LETTERS_NONE,  /* others: with backslashes, control or rare characters, parts of them; long words */
  TD_LETTERS_QUOTE, /* contain a quote, so a string may end in them */
  TD_LETTERS_KINDS,
} td_letters;

enum { TD_WORD_CHARS = 32 }; /* longer tokens are not words */

/* The mask of a state whose places return to TD_FRAMES_BOTTOM, and the nodes at which it may return. Both are
 * the same for every caller. */
typedef struct td_shared_state {
  uint32_t *at; /* [n_at] instructions, ascending; all grammars of the vocabulary share them */
  uint32_t n_at;
  uint32_t *mask;
  uint32_t *inside; /* the part of mask for tokens without a quote */
  uint32_t *exits;  /* [n_exits] nodes in the trie of tokens with a quote */
  uint32_t n_exits;
} td_shared_state;

enum {
  TD_SHARED_STATE_STRING, /* inside a string, between characters */
  TD_SHARED_STATE_STRING_ESCAPE,
  TD_SHARED_STATE_KEY_REST,
  TD_SHARED_STATE_KEY_REST_ESCAPE,
  TD_SHARED_STATE_CHAR, /* at the rule's start; its mask is not used */
  TD_SHARED_STATE_KEY_ODD,
  TD_SHARED_STATES
};

/* A token that may be inside a string and has more characters than a word may have. */
typedef struct td_long_token {
  int32_t id;
  uint32_t n_chars;
} td_long_token;

struct td_vocabulary {
  td_trie tries[TD_LETTERS_KINDS];
  uint32_t max_depth;
  /* [TD_LETTERS_NONE][TD_WORD_CHARS + 1][n_words]: masks of words of up to n characters. The masks for
   * TD_LETTERS_PLAIN include the TD_LETTERS_ALNUM words. */
  uint32_t *slices;
  /* [TD_WORD_CHARS + 1][n_words]: masks of tokens without a quote that begin at a character of a string and
   * have up to n characters in all, of which the last may be incomplete. long_tokens has those with more
   * characters. */
  uint32_t *char_slices;
  td_long_token *long_tokens;
  uint32_t n_long_tokens;
  int32_t *same;     /* [n_tokens]: another token with the same bytes; -1: none */
  char *bytes;       /* of all tokens */
  uint32_t *offsets; /* [n_tokens + 1] in bytes */
  uint32_t n_tokens, n_words;
  uint32_t *end_mask;
  td_shared_state shared_states[TD_SHARED_STATES];
  td_ledger_sum *memory; /* used by its grammars */
};

static inline void td_vocabulary_allow(const td_vocabulary *v, int32_t token, uint32_t *mask)
{
  for (; token >= 0; token = v->same[token])
    mask[token / 32] |= 1u << token % 32;
}

static inline bool td_vocabulary_ends(const td_vocabulary *v, int32_t id)
{
  return id >= 0 && (uint32_t)id < v->n_tokens && (v->end_mask[id / 32] >> id % 32 & 1);
}

static inline uint32_t *td_vocabulary_slice(const td_vocabulary *v, td_letters letters, uint32_t n_chars)
{
  return v->slices + ((size_t)letters * (TD_WORD_CHARS + 1) + n_chars) * v->n_words;
}

/* End of the range of tokens at or below a node. */
static inline uint32_t td_trie_last(const td_trie *t, const td_trie_node *n)
{
  return n->end < t->n_nodes ? t->nodes[n->end].first : t->n_tokens;
}

/* slices.c: the token's kind, and its number of characters if it is a word. */
td_letters td_word_letters(const char *bytes, uint32_t n, uint32_t *n_chars);
/* The number n such that the state takes every word of these letters with up to n characters, and no longer
 * one. TD_WORD_CHARS: words of any length. -1: it depends on the letters. */
int td_slice_of(td_machine *m, uint32_t state, td_letters letters);
/* Whether any letters may follow from this instruction, inside a string or a key. */
bool td_slices_is_free(const td_rules *r, uint32_t at);
/* Sets `free` on instructions after whose byte any letters may follow, inside a string or a key. */
void td_slices_mark(td_rules *r);
/* Adds the bytes that an instruction takes. */
void td_slices_add_taken(const td_rules *r, const td_inst *t, td_byte_set *out);
/* Whether s contains all of printable ASCII except the quote and the backslash. */
bool td_slices_is_all(const td_byte_set *s);
/* The bytes after which the state takes any letters. */
void td_slices_free(const td_machine *m, uint32_t state, td_byte_set *out);

#endif
