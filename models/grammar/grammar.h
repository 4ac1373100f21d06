/* Grammars: what an answer may be, as masks of the tokens that may come next.
 *
 * A grammar is compiled from a JSON schema, a regular expression, a list of strings, GBNF, or a structural
 * tag. It is a set of byte-level rules that may call one another. A matcher reads an answer token by token
 * and says, at each place, which tokens can still lead to a whole answer: never one that the grammar forbids.
 *
 * Ownership: a grammar counts its holders (td_grammar_hold, td_grammar_drop); a matcher holds its grammar; a
 * vocabulary outlives its grammars. Threads: a vocabulary is read-only. A grammar may be used by many
 * threads: what it has found out of its states is shared by its matchers, under a lock of its own. A matcher
 * belongs to one thread at a time. Errors: TD_ERR_REQUEST for what is malformed, TD_ERR_UNSUPPORTED for what
 * cannot be done exactly; both name the keyword and its place. Rules: README.md. */
#ifndef TD_MODELS_GRAMMAR_GRAMMAR_H
#define TD_MODELS_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "step/grammar.h"

/* ---- the vocabulary ---- */

typedef struct td_vocabulary td_vocabulary;

/* Begins the bytes of a special token that structural tags may ask for; its text follows. No text of UTF-8
 * has that byte, so nothing else lets such a token through. */
#define TD_SPECIAL_BYTE "\xFF"

typedef struct td_token_bytes {
  const char *bytes; /* borrowed */
  uint32_t n_bytes;  /* 0: the token is never part of a text (a special token) */
} td_token_bytes;

/* tokens [n_tokens] by id. Ids of end_ids end an answer. max_bytes: memory of all its grammars that live. */
TD_MUST_CHECK td_status td_vocabulary_create(const td_token_bytes *tokens, uint32_t n_tokens,
                                             const int32_t *end_ids, uint32_t n_end_ids, size_t max_bytes,
                                             td_vocabulary **out, td_error *err);
void td_vocabulary_destroy(td_vocabulary *v); /* NULL: does nothing */
/* What its grammars have taken of max_bytes. */
size_t td_vocabulary_grammar_bytes(const td_vocabulary *v);

/* ---- grammars ---- */

typedef struct td_grammar td_grammar;

/* Budgets: TD_LIMIT_GRAMMAR_*. The grammar has one holder, the caller. TD_ERR_CAPACITY: others have taken
 * the memory. */
TD_MUST_CHECK td_status td_grammar_compile(const td_vocabulary *v, const td_grammar_source *source,
                                           td_grammar **out, td_error *err);
td_grammar *td_grammar_hold(td_grammar *g);
void td_grammar_drop(td_grammar *g); /* NULL: does nothing */

/* ---- an answer ---- */

typedef struct td_matcher td_matcher;

td_matcher *td_matcher_create(td_grammar *g); /* NULL: no memory */
void td_matcher_destroy(td_matcher *m);       /* NULL: does nothing */

/* Reads the answer's next token. False: the grammar forbids it, and nothing is read. */
TD_MUST_CHECK bool td_matcher_read(td_matcher *m, int32_t id);
/* Forgets all tokens behind the first n. */
void td_matcher_roll_back(td_matcher *m, uint32_t n_tokens);
uint32_t td_matcher_n_tokens(const td_matcher *m);
/* What has been read is a whole answer. */
bool td_matcher_is_whole(const td_matcher *m);
/* The tokens that may be next: bit i % 32 of word i / 32 for id i, (n_tokens + 31) / 32 words. Ids that end
 * an answer may where it is whole. At least one bit is set: those ids are where the matcher is stuck. */
void td_matcher_fill(td_matcher *m, uint32_t *mask);
/* Why no more can be said: no token of the vocabulary goes on, or the work of TD_LIMIT_GRAMMAR_WORK and
 * _TOKEN_WORK or memory is used up. Static text; NULL: it is not stuck. */
const char *td_matcher_stuck(const td_matcher *m);
/* It is stuck because the process has no memory, which is not the grammar's doing. */
bool td_matcher_lacks_memory(const td_matcher *m);
/* Steps that it may still take before it is stuck. */
uint64_t td_matcher_work_left(const td_matcher *m);
/* Bytes, for tests and for text that is known: reads all n, or nothing and returns false. */
TD_MUST_CHECK bool td_matcher_read_bytes(td_matcher *m, const char *bytes, size_t n);

#endif
