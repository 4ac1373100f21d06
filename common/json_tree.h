/* What the parse leaves in cJSON's tree for the getters. An integer that a double cannot hold is a cJSON_Raw.
 */
#ifndef TD_COMMON_JSON_TREE_H
#define TD_COMMON_JSON_TREE_H

/* 2^53 - 1: up to here a double tells an integer from its neighbours. */
#define TD_JSON_EXACT_MAX 9007199254740991.0

/* Set in the type of a whole number that was written as a float. cJSON looks at the lowest ten bits only. */
enum { TD_JSON_WRITTEN_AS_FLOAT = 1 << 12 };

#endif
