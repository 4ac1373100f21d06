/* Batches of decodes whose rows begin with the same tokens, as trees: the ones that PAT was measured on. */
#ifndef TD_BENCH_ATTENTION_TREES_H
#define TD_BENCH_ATTENTION_TREES_H

#include <stdint.h>
#include <stdio.h>

enum { TD_TREE_LEVELS_MAX = 8, TD_TREE_NAME_BYTES = 128 };

typedef struct td_attention_tree {
  uint32_t n, nodes[TD_TREE_LEVELS_MAX],
      tokens[TD_TREE_LEVELS_MAX]; /* of each level; the last level's nodes are the rows */
} td_attention_tree;

/* From PAT, figure 9. */
static const td_attention_tree td_pat_trees[] = {
    {2, {1, 10}, {4096, 416}},
    {2, {1, 256}, {256, 32}},
    {2, {1, 1024}, {2048, 32}},
    {3, {1, 2, 64}, {1024, 256, 256}},
    {3, {1, 4, 256}, {32, 256, 32}},
    {3, {1, 8, 512}, {32, 512, 256}},
    {3, {1, 8, 512}, {32, 2048, 256}},
    {3, {1, 8, 512}, {512, 512, 256}},
    {4, {1, 4, 8, 256}, {32, 256, 256, 32}},
    {4, {1, 4, 16, 512}, {1024, 256, 128, 32}},
    {6, {1, 4, 16, 64, 256, 1024}, {256, 32, 256, 64, 32, 256}},
    {6, {1, 16, 32, 64, 128, 1024}, {256, 128, 64, 32, 32, 32}},
    {6, {1, 16, 32, 64, 256, 1024}, {256, 128, 64, 32, 32, 32}},
    {7, {1, 8, 16, 32, 64, 128, 1024}, {256, 128, 64, 32, 32, 32, 32}},
    {7, {1, 8, 16, 32, 64, 256, 1024}, {256, 128, 64, 32, 32, 32, 32}},
    {4, {2, 8, 16, 256}, {256, 256, 32, 32}},
    {4, {4, 16, 256, 512}, {512, 32, 128, 32}},
    {4, {8, 16, 32, 256}, {512, 512, 256, 32}},
    {1, {256}, {1024}},
    {1, {256}, {4096}}};

/* "1,10_4096,416" */
static inline void td_attention_tree_name(const td_attention_tree *t, char name[TD_TREE_NAME_BYTES])
{
  int at = 0;
  for (uint32_t l = 0; l < t->n; l++)
    at += snprintf(name + at, TD_TREE_NAME_BYTES - (size_t)at, "%s%u", l ? "," : "", t->nodes[l]);
  for (uint32_t l = 0; l < t->n; l++)
    at += snprintf(name + at, TD_TREE_NAME_BYTES - (size_t)at, "%s%u", l ? "," : "_", t->tokens[l]);
}

/* Tokens that row r shares with the row before it. */
static inline uint32_t td_attention_tree_shared(const td_attention_tree *t, uint32_t r)
{
  uint32_t n_rows = t->nodes[t->n - 1], shared = 0;
  for (uint32_t l = 0;
       l < t->n && r > 0 && (uint64_t)r * t->nodes[l] / n_rows == (uint64_t)(r - 1) * t->nodes[l] / n_rows;
       l++)
    shared += t->tokens[l];
  return shared;
}

#endif
