/* A vocabulary as tries of its tokens' bytes, and what is known of it whatever the grammar. */
#ifndef TD_MODELS_GRAMMAR_VOCABULARY_H
#define TD_MODELS_GRAMMAR_VOCABULARY_H

#include "models/grammar/machine.h"

/* Nodes lie in the order in which they are walked: a node, then all below it. Node 0 is the root. */
typedef struct td_trie_node {
  uint32_t end;   /* behind all below it */
  uint32_t first; /* tokens that end here and below are a range of the trie's; where it begins */
  int32_t token;  /* -1: none ends here */
  uint16_t depth;
  uint8_t byte;
} td_trie_node;

typedef struct td_trie {
  td_trie_node *nodes;
  uint32_t n_nodes;
  int32_t *tokens; /* [n_tokens] in the order of nodes, tokens of the same bytes too */
  uint32_t n_tokens;
  uint32_t below_root[256]; /* the node of each first byte; 0: there is none */
} td_trie;

/* Tokens by what they are made of, each kind in a trie of its own. A state that takes any letters, up to some
 * count, has the words of up to that many without a walk (slices.c). */
typedef enum td_letters {
  TD_LETTERS_ALNUM, /* words of A-Z, a-z, 0-9 */
  TD_LETTERS_PLAIN, /* other words of characters that no dialect of JSON or patterns treats apart */
  TD_LETTERS_NONE, /* all else: with backslashes, control or odd characters, parts of characters, long ones */
  TD_LETTERS_QUOTE, /* with a quote somewhere, where a string may end */
  TD_LETTERS_KINDS,
} td_letters;

enum { TD_WORD_CHARS = 32 }; /* longer ones are no words */

/* The mask of a state whose places return to the bottom, and the nodes at which it may return: what is the
 * same whoever called. */
typedef struct td_local {
  uint32_t *at; /* [n_at] instructions, ascending: all shared by the vocabulary's grammars */
  uint32_t n_at;
  uint32_t *mask;
  uint32_t *inside; /* of the mask, tokens without a quote */
  uint32_t *exits;  /* [n_exits] nodes of the trie of tokens with a quote */
  uint32_t n_exits;
} td_local;

enum {
  TD_LOCAL_STRING, /* inside, between characters */
  TD_LOCAL_STRING_ESCAPE,
  TD_LOCAL_KEY_REST,
  TD_LOCAL_KEY_REST_ESCAPE,
  TD_LOCAL_CHAR, /* where the rule begins; its mask is not used */
  TD_LOCAL_KEY_ODD,
  TD_LOCALS
};

/* A token that a string may have inside it, of more characters than a word has. */
typedef struct td_long_token {
  int32_t id;
  uint32_t n_chars;
} td_long_token;

struct td_vocabulary {
  td_trie tries[TD_LETTERS_KINDS];
  uint32_t max_depth;
  /* [TD_LETTERS_NONE][TD_WORD_CHARS + 1][n_words] masks: words of up to so many characters. Plain ones are
   * with those of the other kind. */
  uint32_t *slices;
  /* [TD_WORD_CHARS + 1][n_words] masks: tokens without a quote that begin with a character of a string and go
   * on with up to so many in all, the last of them maybe in part; and those of more characters. */
  uint32_t *char_slices;
  td_long_token *long_tokens;
  uint32_t n_long_tokens;
  int32_t *same;     /* [n_tokens]: another token of the same bytes; -1: none */
  char *bytes;       /* of all tokens */
  uint32_t *offsets; /* [n_tokens + 1] in bytes */
  uint32_t n_tokens, n_words;
  uint32_t *end_mask;
  td_local locals[TD_LOCALS];
  td_ledger_sum *memory; /* of its grammars */
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

/* Where the tokens below a node end. */
static inline uint32_t td_trie_last(const td_trie *t, const td_trie_node *n)
{
  return n->end < t->n_nodes ? t->nodes[n->end].first : t->n_tokens;
}

/* slices.c: which kind the token is of, and of how many characters. */
td_letters td_word_letters(const char *bytes, uint32_t n, uint32_t *n_chars);
/* Up to how many of these letters, whatever they are, the state takes, and takes no word of more;
 * TD_WORD_CHARS: of any number. -1: it depends on the letters. */
int td_slice_of(td_machine *m, uint32_t state, td_letters letters);
/* From the instruction any letters may follow, inside a string or a key. */
bool td_slices_is_free(const td_rules *r, uint32_t at);
/* Marks instructions behind whose byte any letters may follow: inside a string or a key. */
void td_slices_mark(td_rules *r);
/* Adds the bytes that an instruction takes. */
void td_slices_add_taken(const td_rules *r, const td_inst *t, td_byte_set *out);
/* All of plain ASCII is there, but for the quote and the backslash. */
bool td_slices_is_all(const td_byte_set *s);
/* Bytes behind which the state takes any letters. */
void td_slices_free(const td_machine *m, uint32_t state, td_byte_set *out);

#endif
