/* KV events: see page_events.h. */
#include "scheduler/page_events.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define NONE UINT32_MAX

bool td_page_events_init(td_page_events *e, uint32_t n_pages)
{
  *e = (td_page_events){.n_pages = n_pages, .oldest = NONE, .newest = NONE};
  e->pages = calloc(n_pages, sizeof *e->pages);
  e->removed = calloc(n_pages, sizeof *e->removed);
  e->links = calloc(n_pages, 2 * sizeof *e->links);
  if (!e->pages || !e->removed || !e->links)
    return false;
  for (uint32_t i = 0; i < 2 * n_pages; i++)
    e->links[i] = (td_page_events_link){i, i};
  return true;
}

void td_page_events_deinit(td_page_events *e)
{
  free(e->pages);
  free(e->removed);
  free(e->links);
  memset(e, 0, sizeof *e);
}

static bool is_listed(const td_page_events *e, uint32_t id) { return e->links[id].older != id; }

static void append(td_page_events *e, uint32_t id)
{
  TD_BUG_ON(is_listed(e, id));
  e->links[id] = (td_page_events_link){.older = e->newest, .newer = NONE};
  *(e->newest == NONE ? &e->oldest : &e->links[e->newest].newer) = id;
  e->newest = id;
  e->n++;
}

static void unlist(td_page_events *e, uint32_t id)
{
  td_page_events_link l = e->links[id];
  *(l.older == NONE ? &e->oldest : &e->links[l.older].newer) = l.newer;
  *(l.newer == NONE ? &e->newest : &e->links[l.newer].older) = l.older;
  e->links[id] = (td_page_events_link){id, id};
  e->n--;
}

/* Never 0, which means none. */
static uint64_t name_of(uint64_t before, uint64_t namespace_id, const int32_t *tokens, uint32_t n_tokens)
{
  uint64_t root[2] = {before, before == 0 ? namespace_id : 0};
  uint64_t seed = XXH3_64bits(root, sizeof root);
  uint64_t name = XXH3_64bits_withSeed(tokens, n_tokens * sizeof *tokens, seed);
  return name == 0 ? 1 : name;
}

void td_page_events_store(td_page_events *e, int32_t page, int32_t before, uint64_t namespace_id,
                          const int32_t *tokens, uint32_t n_tokens)
{
  td_page_event *p = &e->pages[page];
  uint64_t name_before = before < 0 ? 0 : e->pages[before].name;
  TD_BUG_ON(p->name != 0 || (before >= 0 && name_before == 0));
  *p = (td_page_event){.is_stored = true,
                       .name = name_of(name_before, namespace_id, tokens, n_tokens),
                       .before = name_before,
                       .namespace_id = namespace_id};
  append(e, (uint32_t)page);
}

void td_page_events_remove(td_page_events *e, int32_t page)
{
  uint32_t id = (uint32_t)page;
  TD_BUG_ON(e->pages[id].name == 0);
  if (is_listed(e, id)) { /* the reader does not know of it */
    unlist(e, id);
  } else {
    e->removed[id] = e->pages[id].name;
    append(e, e->n_pages + id);
  }
  e->pages[id].name = 0;
}

int32_t td_page_events_take(td_page_events *e, td_page_event *out)
{
  uint32_t id = e->oldest;
  if (id == NONE)
    return -1;
  unlist(e, id);
  if (id < e->n_pages) {
    *out = e->pages[id];
    return (int32_t)id;
  }
  id -= e->n_pages;
  *out = (td_page_event){.name = e->removed[id]};
  e->removed[id] = 0;
  return (int32_t)id;
}

void td_page_events_check(const td_page_events *e, uint32_t n_in_tree)
{
  uint32_t n = 0, older = NONE;
  for (uint32_t id = e->oldest; id != NONE; older = id, id = e->links[id].newer, n++)
    TD_BUG_ON(e->links[id].older != older || n == e->n);
  TD_BUG_ON(n != e->n || older != e->newest);
  for (uint32_t i = 0; i < e->n_pages; i++) {
    n_in_tree -= e->pages[i].name != 0;
    TD_BUG_ON(is_listed(e, i) && e->pages[i].name == 0);
    TD_BUG_ON(is_listed(e, e->n_pages + i) != (e->removed[i] != 0));
  }
  TD_BUG_ON(n_in_tree != 0);
}
