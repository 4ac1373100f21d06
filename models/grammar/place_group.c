/* Finds groups of a state's places whose masks are known, because the inside of a string or key is the same
 * in every state.
 *
 * A state allows exactly the tokens that its places allow separately. So the mask of such a group is made
 * once, and the rest of the state is mostly a few names. */

#include "models/grammar/internal.h"

static bool is_at(const td_shared_state *l, const td_place *places, uint32_t n)
{
  uint32_t i = 0;
  while (l->n_at == n && i < n && l->at[i] == places[i].at)
    i++;
  return l->n_at == n && i == n;
}

/* ---- characters of a string of bounded length ---- */

/* Raises *most to the number of further characters that may follow one that returns to this frame. Returns
 * false if that is not known. */
static bool count_after(const td_machine *m, td_frame f, uint32_t *most)
{
  const td_rules *r = m->rules;
  const td_inst *i = f.ret < r->n_insts ? &r->insts[f.ret] : NULL;
  if (i && i->op == TD_RULE_OP_SPLIT && r->insts[i->x].op == TD_RULE_OP_CALL &&
      r->insts[i->x].x == TD_RULE_CHAR && r->insts[i->x].y == f.ret) { /* an unbounded loop of characters */
    *most = TD_REPEAT_MANY;
    return true;
  }
  if (!i || i->op != TD_RULE_OP_REPEAT || r->repeats[i->x].rule != TD_RULE_CHAR)
    return false;
  const td_inst *next = &r->insts[i->y];
  uint32_t max = r->repeats[i->x].max;
  td_frame_set counts = m->frame_sets[f.frames];
  if (next->op != TD_RULE_OP_RANGE || next->lo != '"' || next->hi != '"')
    return false;
  for (uint32_t k = 0; k < counts.n; k++) {
    uint32_t n = m->frame_items[counts.first + k].ret - TD_RET_COUNT;
    uint32_t more = max == TD_REPEAT_MANY ? max : max - n;
    *most = more > *most ? more : *most;
  }
  return true;
}

/* At the start of a character that returns to these frames: the most characters that may still come,
 * including this one. Returns false if that is not known. */
static bool count_chars(const td_machine *m, uint32_t frames, uint32_t *n_chars)
{
  td_frame_set s = m->frame_sets[frames];
  uint32_t most = 0;
  for (uint32_t k = 0; k < s.n; k++)
    if (!count_after(m, m->frame_items[s.first + k], &most))
      return false;
  *n_chars = most == TD_REPEAT_MANY ? most : most + 1;
  return s.n > 0;
}

/* ---- taking groups ---- */

/* Takes places with these frames whose instructions all grammars share, if they are a known group. */
static bool take_shared(td_grammar *g, const td_place *places, uint32_t n, uint32_t frames,
                        td_place_group *out)
{
  const td_vocabulary *v = g->vocab;
  out->n = 0;
  for (uint32_t i = 0; i < n; i++)
    if (places[i].return_frames == frames && places[i].at < g->rules.n_shared_insts)
      out->places[out->n++] = places[i];
  for (unsigned k = 0; k < TD_SHARED_STATE_CHAR; k++)
    if (is_at(&v->shared_states[k], out->places, out->n)) {
      out->kind = TD_PLACE_GROUP_SHARED;
      out->shared = &v->shared_states[k];
      return true;
    }
  if (is_at(&v->shared_states[TD_SHARED_STATE_CHAR], out->places, out->n) &&
      count_chars(&g->machine, frames, &out->n_chars)) {
    out->kind = TD_PLACE_GROUP_CHARS;
    return true;
  }
  return false;
}

/* Whether these frames return to a key with the frame set `key`, after an odd character of that key. */
static bool is_odd_of(const td_machine *m, uint32_t frames, uint32_t key)
{
  td_frame_set s = m->frame_sets[frames];
  if (s.n != 1)
    return false;
  td_frame f = m->frame_items[s.first];
  return f.frames == key && f.ret < m->rules->n_insts && td_slices_is_free(m->rules, f.ret);
}

/* Takes the places inside a key in which any letters may follow: those after whose bytes any letters may
 * follow, and those of odd characters. */
static bool take_key(td_grammar *g, const td_place *places, uint32_t n, uint32_t frames, td_place_group *out)
{
  const td_machine *m = &g->machine;
  td_byte_set letters = {0};
  uint32_t n_odd = 0;
  out->n = 0;
  for (uint32_t i = 0; i < n; i++) {
    const td_inst *t = &g->rules.insts[places[i].at];
    bool odd = places[i].at < g->rules.n_shared_insts;
    if (odd ? !is_odd_of(m, places[i].return_frames, frames) : places[i].return_frames != frames || !t->free)
      continue;
    if (!odd)
      td_slices_add_taken(&g->rules, t, &letters);
    out->places[out->n++] = places[i];
    n_odd += odd;
  }
  out->kind = TD_PLACE_GROUP_KEY;
  return n_odd > 0 && td_slices_is_all(&letters) &&
         is_at(&g->vocab->shared_states[TD_SHARED_STATE_KEY_ODD], out->places, n_odd);
}

static void leave_out(td_place *places, uint32_t *n, const td_place_group *taken)
{
  uint32_t k = 0, t = 0;
  for (uint32_t i = 0; i < *n; i++) {
    if (t < taken->n && places[i].at == taken->places[t].at &&
        places[i].return_frames == taken->places[t].return_frames)
      t++;
    else
      places[k++] = places[i];
  }
  *n = k;
}

bool td_place_group_take(td_grammar *g, td_place *places, uint32_t *n, td_place_group *out)
{
  uint32_t last = TD_FRAMES_NONE;
  td_machine *m = &g->machine;
  for (uint32_t i = 0; i < *n && !m->full; i++) {
    bool shared = places[i].at < g->rules.n_shared_insts;
    if (places[i].return_frames == last || (!shared && !g->rules.insts[places[i].at].free))
      continue;
    last = places[i].return_frames;
    td_machine_spend(m, *n);
    if (shared ? take_shared(g, places, *n, last, out) : take_key(g, places, *n, last, out)) {
      leave_out(places, n, out);
      return true;
    }
  }
  return false;
}
