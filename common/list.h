/* Lists in options: "a, b". Blanks around items are ignored, and so are empty items. */
#ifndef TD_COMMON_LIST_H
#define TD_COMMON_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct td_list_item {
  const char *s;
  size_t n;
} td_list_item;

/* Returns the next item and moves *list behind it. False: there is none. */
static inline bool td_list_next(const char **list, td_list_item *item)
{
  *list += strspn(*list, ", \t");
  *item = (td_list_item){*list, strcspn(*list, ",")};
  *list += item->n;
  while (item->n > 0 && (item->s[item->n - 1] == ' ' || item->s[item->n - 1] == '\t'))
    item->n--;
  return item->n > 0;
}

static inline bool td_list_has(const char *list, const char *name)
{
  size_t n = strlen(name);
  for (td_list_item item; td_list_next(&list, &item);)
    if (item.n == n && memcmp(item.s, name, n) == 0)
      return true;
  return false;
}

#endif
