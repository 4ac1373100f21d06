/* Counts the memory of all live grammars of a vocabulary together, so that many grammars cannot take all
 * memory. Each grammar has a reserve that others cannot take, so it continues, more slowly, when everything
 * else is taken.
 *
 * Threads: the sum is shared. A ledger may be used only by the holder of its grammar's lock. */
#ifndef TD_MODELS_GRAMMAR_LEDGER_H
#define TD_MODELS_GRAMMAR_LEDGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct td_ledger_sum {
  atomic_size_t bytes;
  size_t max_bytes;
} td_ledger_sum;

typedef struct td_ledger {
  td_ledger_sum *sum;
  size_t reserve_bytes;
  size_t used_bytes; /* the sum counts the reserve or, if it is larger, this */
} td_ledger;

/* Returns false if there is no room. Then nothing was added, even for a moment: another thread, whose bytes
 * do fit, would be refused too. */
static inline bool td_ledger_take_all(td_ledger_sum *sum, size_t bytes)
{
  size_t before = atomic_load(&sum->bytes);
  do {
    if (bytes > 0 && (before > sum->max_bytes || bytes > sum->max_bytes - before))
      return false;
  } while (!atomic_compare_exchange_weak(&sum->bytes, &before, before + bytes));
  return true;
}

static inline size_t td_ledger_taken(const td_ledger *l)
{
  return l->used_bytes > l->reserve_bytes ? l->used_bytes : l->reserve_bytes;
}

/* Returns false if there is no room; nothing is taken then. */
static inline bool td_ledger_open(td_ledger *l, td_ledger_sum *sum, size_t reserve_bytes)
{
  bool ok = td_ledger_take_all(sum, reserve_bytes);
  *l = (td_ledger){.sum = ok ? sum : NULL, .reserve_bytes = ok ? reserve_bytes : 0};
  return ok;
}

static inline bool td_ledger_use(td_ledger *l, size_t bytes)
{
  size_t before = td_ledger_taken(l), used = l->used_bytes + bytes;
  size_t more = used > before ? used - before : 0;
  if (!td_ledger_take_all(l->sum, more))
    return false;
  l->used_bytes = used;
  return true;
}

static inline void td_ledger_free(td_ledger *l, size_t bytes)
{
  size_t before = td_ledger_taken(l);
  l->used_bytes -= bytes;
  atomic_fetch_sub(&l->sum->bytes, before - td_ledger_taken(l));
}

static inline void td_ledger_close(td_ledger *l)
{
  if (l->sum)
    atomic_fetch_sub(&l->sum->bytes, td_ledger_taken(l));
  *l = (td_ledger){0};
}

#endif
