/* An automaton of any text that does not contain some given texts. Each state is the longest suffix of the
 * input that begins one of them (Aho and Corasick). */
#include <string.h>

#include "models/grammar/internal.h"

typedef struct node {
  uint16_t next[256]; /* 0: not set, or the root */
  uint16_t fail;
  bool found;
} node;

typedef struct automaton {
  td_builder *b;
  node *nodes; /* [n] in the arena; 0 is the root */
  uint32_t n, cap;
} automaton;

static void add_text(automaton *a, const char *text)
{
  uint32_t at = 0;
  for (; *text; text++) {
    uint16_t *next = &a->nodes[at].next[(unsigned char)*text];
    if (!*next)
      *next = (uint16_t)a->n++;
    at = *next;
  }
  a->nodes[at].found = true;
}

/* Sets transitions for bytes that do not continue a state's text, from the root outwards. */
static void link_nodes(automaton *a, uint16_t *queue)
{
  uint32_t first = 0, last = 0;
  for (unsigned c = 0; c < 256; c++)
    if (a->nodes[0].next[c])
      queue[last++] = a->nodes[0].next[c];
  while (first < last) {
    node *at = &a->nodes[queue[first++]];
    const node *fail = &a->nodes[at->fail];
    at->found |= fail->found;
    for (unsigned c = 0; c < 256; c++)
      if (at->next[c]) {
        a->nodes[at->next[c]].fail = fail->next[c];
        queue[last++] = at->next[c];
      } else {
        at->next[c] = fail->next[c];
      }
  }
}

static bool is_text_byte(unsigned c) { return c < 0xC0 || (c > 0xC1 && c < 0xF5); }

/* Writes one edge for each state that bytes lead to. */
static void write_edges(automaton *a, const node *from, td_graph_state *out)
{
  td_graph_edge edges[256];
  uint32_t n = 0;
  for (unsigned c = 0; c < 256; c++) {
    uint32_t to = from->next[c], i = 0;
    if (a->nodes[to].found || !is_text_byte(c))
      continue;
    while (i < n && edges[i].to != to)
      i++;
    if (i == n)
      edges[n++] = (td_graph_edge){.to = to};
    td_byte_set_add(&edges[i].set, c);
  }
  out->whole = true;
  out->edges = td_arena_alloc_array(&a->b->arena, n + 1, sizeof *out->edges);
  a->b->failed |= !out->edges;
  if (out->edges) {
    memcpy(out->edges, edges, n * sizeof *edges);
    out->n_edges = n;
  }
}

const td_expr *td_any_text(td_builder *b, const char *const *without, uint32_t n)
{
  automaton a = {.b = b, .n = 1, .cap = 1};
  for (uint32_t i = 0; i < n; i++)
    a.cap += (uint32_t)strnlen(without[i], td_limit_max(TD_LIMIT_GRAMMAR_WITHOUT_BYTES));
  if (a.cap > td_limit_max(TD_LIMIT_GRAMMAR_WITHOUT_BYTES) || !td_builder_work(b, 256ull * a.cap)) {
    b->failed = true;
    return &td_expr_none;
  }
  a.nodes = td_arena_alloc_array(&b->arena, a.cap, sizeof *a.nodes);
  uint16_t *queue = td_arena_alloc_array(&b->arena, a.cap, sizeof *queue);
  td_expr *e = td_arena_alloc(&b->arena, sizeof *e);
  if (a.nodes && queue && e)
    for (uint32_t i = 0; i < n; i++)
      add_text(&a, without[i]);
  td_graph_state *states = a.nodes ? td_arena_alloc_array(&b->arena, a.n, sizeof *states) : NULL;
  if (!queue || !e || !states) {
    b->failed = true;
    return &td_expr_none;
  }
  link_nodes(&a, queue);
  for (uint32_t i = 0; i < a.n && !b->failed; i++)
    write_edges(&a, &a.nodes[i], &states[i]);
  *e = (td_expr){.kind = TD_EXPR_GRAPH, .n = a.n, .u.states = states};
  return b->failed ? &td_expr_none : e;
}
