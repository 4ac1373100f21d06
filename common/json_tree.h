/* What td_json_parse stores in cJSON's tree for the getters. An integer that a double cannot hold is a
 * cJSON_Raw. */
#ifndef TD_COMMON_JSON_TREE_H
#define TD_COMMON_JSON_TREE_H

/* 2^53 - 1: up to this value a double holds every integer exactly, and no other integer rounds to it. */
#define TD_JSON_EXACT_MAX 9007199254740991.0

/* Set in `type` of a whole number that was written as a float. cJSON uses only the lowest ten bits. */
enum { TD_JSON_WRITTEN_AS_FLOAT = 1 << 12 };

#endif
