/* The page at /, as the build embedded it (cmake/embed_page.cmake). */
#ifndef TD_SERVER_PAGE_H
#define TD_SERVER_PAGE_H

#include <stddef.h>

extern const unsigned char td_page[];
extern const size_t td_page_bytes;
extern const char td_page_etag[];   /* quotes included */
extern const char td_page_policy[]; /* value of the Content-Security-Policy header */

#endif
