/* Places by account: see places.h. */
#include "scheduler/places.h"

#include <stdlib.h>
#include <string.h>

bool td_places_init(td_places *p, uint32_t n_accounts, uint32_t max_running, uint32_t n_ids)
{
  uint32_t most = max_running / TD_PLACES_KEPT_SHARE > 0 ? max_running / TD_PLACES_KEPT_SHARE : 1;
  *p = (td_places){.n_accounts = n_accounts};
  p->most_kept = n_accounts < 2 ? 0 : most < max_running ? most : max_running - 1;
  p->n_running = calloc(n_ids, sizeof *p->n_running);
  p->n_pages = calloc(n_ids, sizeof *p->n_pages);
  return p->n_running && p->n_pages;
}

void td_places_deinit(td_places *p)
{
  free(p->n_running);
  free(p->n_pages);
  memset(p, 0, sizeof *p);
}
