/* A vocabulary as a trie of its tokens' bytes, and what is known of it whatever the grammar. */
#ifndef TD_MODELS_GRAMMAR_VOCABULARY_H
#define TD_MODELS_GRAMMAR_VOCABULARY_H

#include "models/grammar/machine.h"

/* Nodes lie in the order in which they are walked: a node, then all below it. Node 0 is the root. */
typedef struct td_trie_node {
  uint32_t end;  /* behind all below it */
  int32_t token; /* -1: none ends here */
  uint16_t depth;
  uint8_t byte;
} td_trie_node;

/* The mask of a state whose places return to the bottom, and the nodes at which it may return: what is the
 * same whoever called. */
typedef struct td_local {
  uint32_t *at; /* [n_at] instructions, ascending: all shared by the vocabulary's grammars */
  uint32_t n_at;
  uint32_t *mask;
  uint32_t *exits; /* [n_exits] trie nodes */
  uint32_t n_exits;
} td_local;

enum { TD_LOCALS = 4 };

struct td_vocabulary {
  td_trie_node *nodes;
  uint32_t n_nodes, max_depth;
  int32_t *same;     /* [n_tokens]: another token of the same bytes; -1: none */
  char *bytes;       /* of all tokens */
  uint32_t *offsets; /* [n_tokens + 1] in bytes */
  uint32_t n_tokens, n_words;
  uint32_t *end_mask;
  td_local locals[TD_LOCALS];
  uint32_t n_locals;
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

#endif
