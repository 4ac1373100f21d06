/* sim_scheduler [--steps N] [--seed S]: runs the scheduler through N random steps in many small random
 * worlds, and checks every invariant after each. The same seed gives the same schedule, which the program
 * proves before it starts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_world.h"

enum { STEPS_PER_WORLD = 1500, STEPS_TWICE = 4000 };

/* Returns the hash of the schedule. */
static uint64_t run(uint64_t seed, uint64_t n_steps, uint64_t hash_seed, sim_totals *totals)
{
  sim_rng seeds = {.state = seed};
  uint64_t hash = 0;
  *totals = (sim_totals){0};
  while (totals->steps < n_steps) {
    sim_world *w = sim_world_create(sim_next(&seeds), hash_seed, totals);
    for (uint32_t i = 0; i < STEPS_PER_WORLD; i++)
      sim_world_step(w, true);
    sim_world_drain(w);
    hash = sim_mix(hash, w->schedule_hash);
    sim_world_destroy(w);
    totals->worlds++;
  }
  return hash;
}

static void print_totals(const sim_totals *t, uint64_t hash)
{
#define P(name, value) printf("%-24s %llu\n", name, (unsigned long long)(value))
  P("worlds", t->worlds);
  P("steps", t->steps);
  P("requests", t->requests);
  P("  finished", t->finished);
  P("  cancelled", t->cancelled);
  P("    waiting", t->cancelled_in[0]);
  P("    in prefill", t->cancelled_in[1]);
  P("    in decode", t->cancelled_in[2]);
  P("    following", t->cancelled_following);
  P("  expired waiting", t->expired[0]);
  P("    in prefill", t->expired[1]);
  P("    in decode", t->expired[2]);
  P("refused as too large", t->refused);
  P("followed a prompt", t->follows);
  P("short before long", t->overtakes);
  P("  elder's share kept", t->elder_kept);
  P("light before an earlier", t->light_first);
  P("turns between accounts", t->account_turns);
  P("  in places kept", t->kept_places);
  P("victims by priority", t->priority_victims);
  P("gave way to others", t->gave_way);
  P("  turns for a place", t->turns_due);
  P("  turns for pages", t->turns_for_pages);
  P("  by pages", t->page_turns);
  P("    certain before", t->page_turns_due);
  P("passed a front", t->passed_fronts);
  printf("%-24s %llu of 16\n", "  longest wait for one", (unsigned long long)t->longest_short_steps);
  printf("%-24s %.3f\n", "account's lead of bound", t->worst_share_of_lead);
  P("preemptions", t->preemptions);
  P("evicted pages", t->evicted);
  P("prefix hit tokens", t->hit_tokens);
  P("  of prompt tokens", t->query_tokens);
  P("rows", t->rows);
  P("  decodes", t->decode_rows);
  P("steps with >1 prompts", t->shared_steps);
  P("steps planned ahead", t->ahead_steps);
  P("  past a queue", t->ahead_past_queue);
  P("  rows for nothing", t->wasted_rows);
  P("rows that were late", t->late_rows);
  P("  ends of prompts", t->late_prompts);
  P("  planned ahead again", t->late_ahead);
  P("scored requests", t->scored_requests);
  P("  tokens", t->scored_tokens);
  P("  steps full of logits", t->full_of_logits);
  for (int i = 0; i < TD_POLICY_COUNT; i++)
    P(td_policy_names[i], t->steps_of[i]);
  P("decodes sharing KV", t->repeating_steps);
  P("hybrids with a target", t->timed_steps);
  P("  at the floor", t->floor_steps);
  P("longest wait, steps", t->longest_wait_steps);
  P("longest life, steps", t->longest_life_steps);
  printf("%-24s %.3f\n", "  most of its bound", t->worst_share_of_bound);
  printf("%-24s %016llx\n", "schedule hash", (unsigned long long)hash);
#undef P
}

/* A long run in which these never occurred would prove nothing. */
static bool covers_all(const sim_totals *t)
{
  for (int i = 0; i < TD_POLICY_COUNT; i++)
    if (t->steps_of[i] * 100 < t->steps)
      return false;
  if (t->repeating_steps * 100 < t->steps || t->timed_steps * 100 < t->steps || t->floor_steps < 100)
    return false;
  return t->preemptions * 1000 > t->steps && t->evicted > 1000 && t->hit_tokens > 1000 &&
         t->shared_steps > 100 && t->ahead_steps * 10 > t->steps && t->ahead_past_queue > 100 &&
         t->wasted_rows > 100 && t->late_rows > 1000 && t->late_prompts > 100 && t->late_ahead > 100 &&
         t->scored_requests > 1000 && t->scored_tokens > 10000 && t->full_of_logits > 100 &&
         t->cancelled_in[0] > 10 && t->cancelled_in[1] > 10 && t->cancelled_in[2] > 10 && t->refused > 10 &&
         t->cancelled_following > 5 && t->follows > 100 && t->overtakes > 300 && t->elder_kept > 100 &&
         t->account_turns > 1000 && t->kept_places > 1000 && t->turns_due > 30 && t->turns_for_pages > 50 &&
         t->page_turns > 30 && t->page_turns_due > 10 && t->passed_fronts > 50 && t->light_first > 100 &&
         t->priority_victims > 5 && t->expired[0] > 100 && t->expired[1] > 5 && t->expired[2] > 10 &&
         t->requests == t->finished + t->cancelled + t->expired[0] + t->expired[1] + t->expired[2];
}

int main(int argc, char **argv)
{
  uint64_t n_steps = 100000, seed = 1;
  for (int i = 1; i < argc; i++) {
    if (i + 1 < argc && strcmp(argv[i], "--steps") == 0) {
      n_steps = strtoull(argv[++i], NULL, 10);
    } else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
      seed = strtoull(argv[++i], NULL, 10);
    } else {
      fprintf(stderr, "usage: sim_scheduler [--steps N] [--seed S]\n");
      return 64;
    }
  }
  sim_totals totals;
  uint64_t once = run(seed, STEPS_TWICE, 1, &totals),
           again = run(seed, STEPS_TWICE, 0x123456789abcdef, &totals);
  if (once != again || once == run(seed + 1, STEPS_TWICE, 1, &totals)) {
    fprintf(stderr, "the schedule is not a function of the seed\n");
    return 1;
  }
  uint64_t hash = run(seed, n_steps, 1, &totals);
  print_totals(&totals, hash);
  if (n_steps >= 400000 && !covers_all(&totals)) {
    fprintf(stderr, "the run did not meet all that it must\n");
    return 1;
  }
  return 0;
}
