/* KV events in MessagePack: see kv_batch.h. */
#include "server/kv_batch.h"

#include <inttypes.h>
#include <msgpack/pack.h>
#include <stdio.h>
#include <string.h>

static int write_to(void *out, const char *data, size_t n)
{
  td_buf_append(out, data, n); /* a failure is recorded in the buffer */
  return 0;
}

static void pack_text(msgpack_packer *p, const char *s)
{
  size_t n = strlen(s);
  msgpack_pack_str(p, n);
  msgpack_pack_str_body(p, s, n);
}

static void begin_batch(msgpack_packer *p, const td_kv_batch *b, size_t n_events)
{
  msgpack_pack_array(p, 3);
  msgpack_pack_double(p, b->time_s);
  msgpack_pack_array(p, n_events);
}

static void end_batch(msgpack_packer *p) { msgpack_pack_uint32(p, 0); }

static void begin_event(msgpack_packer *p, const char *type, size_t n_fields)
{
  msgpack_pack_map(p, 1 + n_fields);
  pack_text(p, "type");
  pack_text(p, type);
}

static void pack_names(msgpack_packer *p, const td_engine_kv_event *events, uint32_t n)
{
  pack_text(p, "block_hashes");
  msgpack_pack_array(p, n);
  for (uint32_t i = 0; i < n; i++)
    msgpack_pack_uint64(p, events[i].name);
}

static void pack_medium(msgpack_packer *p)
{
  pack_text(p, "medium");
  pack_text(p, "GPU");
}

static bool has_extra_keys(const td_kv_batch *b, const td_engine_kv_event *first)
{
  return first->before == 0 && first->namespace_id != 0 && first->namespace_id != b->plain_namespace;
}

/* Like a cache_salt in vLLM's events: the key is given for the first page of the prefix only. */
static void pack_extra_keys(msgpack_packer *p, uint64_t namespace_id, uint32_t n)
{
  char key[32];
  snprintf(key, sizeof key, "%016" PRIx64, namespace_id);
  pack_text(p, "extra_keys");
  msgpack_pack_array(p, n);
  msgpack_pack_array(p, 1);
  pack_text(p, key);
  for (uint32_t i = 1; i < n; i++)
    msgpack_pack_nil(p);
}

static void pack_stored(msgpack_packer *p, const td_kv_batch *b, const td_engine_kv_event *events, uint32_t n)
{
  bool extra = has_extra_keys(b, events);
  begin_event(p, "BlockStored", extra ? 8 : 7);
  pack_names(p, events, n);
  pack_text(p, "parent_block_hash");
  if (events->before == 0)
    msgpack_pack_nil(p);
  else
    msgpack_pack_uint64(p, events->before);
  pack_text(p, "token_ids");
  msgpack_pack_array(p, (size_t)n * b->page_tokens);
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t k = 0; k < b->page_tokens; k++)
      msgpack_pack_int32(p, events[i].tokens[k]);
  pack_text(p, "block_size");
  msgpack_pack_uint32(p, b->page_tokens);
  pack_text(p, "lora_id");
  msgpack_pack_nil(p);
  pack_medium(p);
  pack_text(p, "lora_name");
  msgpack_pack_nil(p);
  if (extra)
    pack_extra_keys(p, events->namespace_id, n);
}

static void pack_removed(msgpack_packer *p, const td_engine_kv_event *events, uint32_t n)
{
  begin_event(p, "BlockRemoved", 2);
  pack_names(p, events, n);
  pack_medium(p);
}

/* How many of the n events, counted from the first, are merged into one. */
static uint32_t count_together(const td_engine_kv_event *events, uint32_t n)
{
  uint32_t k = 1;
  while (k < n && events[k].is_stored == events->is_stored &&
         (!events->is_stored || events[k].before == events[k - 1].name))
    k++;
  return k;
}

void td_kv_batch_render(const td_kv_batch *b, const td_engine_kv_event *events, uint32_t n, td_buf *out)
{
  msgpack_packer p;
  msgpack_packer_init(&p, out, write_to);
  uint32_t n_events = 0;
  for (uint32_t i = 0; i < n; i += count_together(events + i, n - i))
    n_events++;
  begin_batch(&p, b, n_events);
  for (uint32_t i = 0, k; i < n; i += k) {
    k = count_together(events + i, n - i);
    if (events[i].is_stored)
      pack_stored(&p, b, events + i, k);
    else
      pack_removed(&p, events + i, k);
  }
  end_batch(&p);
}

void td_kv_batch_render_cleared(const td_kv_batch *b, td_buf *out)
{
  msgpack_packer p;
  msgpack_packer_init(&p, out, write_to);
  begin_batch(&p, b, 1);
  begin_event(&p, "AllBlocksCleared", 0);
  end_batch(&p);
}
