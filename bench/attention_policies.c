/* See attention_policies.h. */
#include "bench/attention_policies.h"

#include <string.h>

#include "bench/tool.h"

static bool never(uint32_t n_keys, uint32_t n_rows)
{
  (void)n_keys, (void)n_rows;
  return false;
}

/* Every sequence by itself, with the KV splits that serve. */
static const td_attention_policy none = {.name = "none", .shares = never};

const td_attention_policy *const td_attention_policies[] = {&none, &td_attention_always, NULL};

bool td_attention_policy_of(const char *name, const td_attention_policy **out)
{
  *out = NULL;
  for (uint32_t i = 0; td_attention_policies[i]; i++)
    if (strcmp(td_attention_policies[i]->name, name) == 0) {
      *out = td_attention_policies[i];
      return true;
    }
  return strcmp(name, TD_ATTENTION_AUTO_NAME) == 0;
}

const td_attention_policy *td_attention_policy_or_die(const char *name)
{
  const td_attention_policy *policy;
  if (!td_attention_policy_of(name, &policy))
    td_tool_die("--policy: no '%s'", name);
  return policy;
}
