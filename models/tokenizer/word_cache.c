/* A cache of short words and their ids, so that a repeated word is not merged again.
 *
 * Each thread that encodes has a table of fixed size, kept from text to text. A word has only one possible
 * slot, and a later word with the same slot replaces it. The table holds short words with few ids, of one
 * tokenizer. Words that collide, even on purpose, cost no more than without the cache. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "models/tokenizer/internal.h"

static _Thread_local td_word_cache *here;
static pthread_key_t key; /* its destructor frees a thread's table when the thread ends */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool has_key;

static void create_key(void) { has_key = pthread_key_create(&key, free) == 0; }

static td_word_cache *create(void)
{
  pthread_once(&once, create_key);
  td_word_cache *w = has_key ? calloc(1, sizeof *w) : NULL;
  if (!w || pthread_setspecific(key, w) != 0) {
    free(w);
    return NULL;
  }
  w->seed = td_random_u64();
  return w;
}

td_word_cache *td_word_cache_of_thread(const td_tokenizer *t)
{
  if (!here)
    here = create();
  if (here && here->owner != t->serial) {
    memset(here->slots, 0, sizeof here->slots);
    here->owner = t->serial;
  }
  return here;
}
