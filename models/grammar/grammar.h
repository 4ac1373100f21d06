/* Grammars: what an answer may be, as masks of the tokens that may come next.
 *
 * A grammar is compiled from a JSON schema, a regular expression, a list of strings, GBNF, or a structural
 * tag. It is a set of byte-level rules that may call one another. A matcher reads an answer token by token.
 * At each place it says which tokens can still lead to a complete answer, and never allows one that the
 * grammar forbids.
 *
 * Ownership: a grammar counts its holders (td_grammar_hold, td_grammar_drop). A matcher holds its grammar. A
 * vocabulary must outlive its grammars. Threads: a vocabulary is read-only. Many threads may use a grammar:
 * its matchers share the states and masks that were computed, under the grammar's own lock. A matcher belongs
 * to one thread at a time. Errors: TD_ERR_REQUEST for malformed sources, TD_ERR_UNSUPPORTED for those that
 * cannot be served exactly; both name the keyword and its place. Rules: README.md. */
#ifndef TD_MODELS_GRAMMAR_GRAMMAR_H
#define TD_MODELS_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "step/grammar.h"

/* ---- the vocabulary ---- */

typedef struct td_vocabulary td_vocabulary;

/* The first byte of a special token that structural tags may ask for; the token's text follows it. UTF-8
 * never contains this byte, so only a tag that names the token can match it. */
#define TD_SPECIAL_BYTE "\xFF"

typedef struct td_token_bytes {
  const char *bytes; /* borrowed */
  uint32_t n_bytes;  /* 0: the token never matches any text (a special token) */
} td_token_bytes;

/* tokens [n_tokens] by id. end_ids are the ids that end an answer. max_bytes bounds the memory of all live
 * grammars of this vocabulary. */
TD_MUST_CHECK td_status td_vocabulary_create(const td_token_bytes *tokens, uint32_t n_tokens,
                                             const int32_t *end_ids, uint32_t n_end_ids, size_t max_bytes,
                                             td_vocabulary **out, td_error *err);
void td_vocabulary_destroy(td_vocabulary *v); /* NULL: does nothing */
/* How much of max_bytes its grammars have taken. */
size_t td_vocabulary_grammar_bytes(const td_vocabulary *v);

/* ---- grammars ---- */

typedef struct td_grammar td_grammar;

/* The caller becomes the grammar's only holder. Budgets: TD_LIMIT_GRAMMAR_*. TD_ERR_CAPACITY: other grammars
 * have taken the memory. */
TD_MUST_CHECK td_status td_grammar_compile(const td_vocabulary *v, const td_grammar_source *source,
                                           td_grammar **out, td_error *err);
td_grammar *td_grammar_hold(td_grammar *g);
void td_grammar_drop(td_grammar *g); /* NULL: does nothing */

/* ---- an answer ---- */

typedef struct td_matcher td_matcher;

td_matcher *td_matcher_create(td_grammar *g); /* NULL: no memory */
void td_matcher_destroy(td_matcher *m);       /* NULL: does nothing */

/* Reads the answer's next token. Returns false, and reads nothing, if the grammar forbids it. */
TD_MUST_CHECK bool td_matcher_read(td_matcher *m, int32_t id);
/* Undoes all tokens after the first n_tokens. */
void td_matcher_roll_back(td_matcher *m, uint32_t n_tokens);
uint32_t td_matcher_n_tokens(const td_matcher *m);
/* Whether the tokens read so far are a complete answer. */
bool td_matcher_is_whole(const td_matcher *m);
/* Fills the tokens that may be next: bit i % 32 of word i / 32 for id i, (n_tokens + 31) / 32 words. Ids that
 * end an answer are allowed if the answer is complete. A matcher that is stuck allows only them, so at least
 * one bit is set if there is an end id. */
void td_matcher_fill(td_matcher *m, uint32_t *mask);
/* Why the matcher is stuck: no token of the vocabulary fits, memory is used up, or the work of
 * TD_LIMIT_GRAMMAR_WORK and _TOKEN_WORK is. Static text; NULL if it is not stuck. */
const char *td_matcher_stuck(const td_matcher *m);
/* Whether it is stuck because the process has no memory, for which the grammar is not to blame. */
bool td_matcher_lacks_memory(const td_matcher *m);
/* Number of steps that it may still take before it is stuck. */
uint64_t td_matcher_work_left(const td_matcher *m);
/* Reads bytes instead of a token, for tests and for known text. Reads all n bytes, or none and returns
 * false. */
TD_MUST_CHECK bool td_matcher_read_bytes(td_matcher *m, const char *bytes, size_t n);

#endif
