/* X-Forwarded-For: see forwarded.h. */
#include "server/forwarded.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

/* ADDRESS, IPv4:PORT or [IPv6]:PORT, n bytes. */
static bool read_address(const char *s, size_t n, td_address *out)
{
  char text[INET6_ADDRSTRLEN + 8];
  struct sockaddr_storage from = {0};
  if (n == 0 || n >= sizeof text)
    return false;
  memcpy(text, s, n);
  text[n] = '\0';
  char *ip = text, *end = text[0] == '['                            ? strchr(text, ']')
                          : strchr(text, ':') == strrchr(text, ':') ? strchr(text, ':')
                                                                    : NULL;
  if (text[0] == '[') {
    if (!end || (end[1] != '\0' && end[1] != ':'))
      return false;
    ip++;
  }
  if (end)
    *end = '\0';
  from.ss_family = AF_INET;
  if (text[0] != '[' && inet_pton(AF_INET, ip, &((struct sockaddr_in *)&from)->sin_addr) == 1)
    return td_address_of(&from, out);
  from.ss_family = AF_INET6;
  return inet_pton(AF_INET6, ip, &((struct sockaddr_in6 *)&from)->sin6_addr) == 1 &&
         td_address_of(&from, out);
}

bool td_forwarded_client(const td_ranges *trusted, const char *value, td_address *out)
{
  bool any = false;
  for (size_t end = strlen(value); end > 0;) {
    size_t begin = end;
    while (begin > 0 && value[begin - 1] != ',')
      begin--;
    const char *item = value + begin;
    size_t n = end - begin, blanks = strspn(item, " \t");
    blanks = blanks < n ? blanks : n;
    while (n > blanks && (item[n - 1] == ' ' || item[n - 1] == '\t'))
      n--;
    if (!read_address(item + blanks, n - blanks, out))
      return false; /* entries before this one cannot be trusted */
    any = true;
    if (!td_ranges_have(trusted, out))
      return true;
    end = begin > 0 ? begin - 1 : 0;
  }
  return any;
}
