/* GGUF value types, and functions that the parser and the getters share. */
#ifndef TD_MODELS_WEIGHTS_GGUF_H
#define TD_MODELS_WEIGHTS_GGUF_H

#include <stdint.h>

enum {
  TD_GGUF_U8,
  TD_GGUF_I8,
  TD_GGUF_U16,
  TD_GGUF_I16,
  TD_GGUF_U32,
  TD_GGUF_I32,
  TD_GGUF_F32,
  TD_GGUF_BOOL,
  TD_GGUF_STRING,
  TD_GGUF_ARRAY,
  TD_GGUF_U64,
  TD_GGUF_I64,
  TD_GGUF_F64,
};

/* Bytes of a number or bool; 0 for strings, arrays and unknown types. */
uint32_t td_gguf_scalar_bytes(uint32_t type);
/* Compares bytewise; a key that is a prefix of the other comes first. */
int td_gguf_compare_keys(const void *a, uint64_t n_a, const void *b, uint64_t n_b);

#endif
