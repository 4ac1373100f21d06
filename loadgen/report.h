/* What was measured, told twice: as a table of text while it is measured, and as JSON at the end. */
#ifndef TD_LOADGEN_REPORT_H
#define TD_LOADGEN_REPORT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* For `decimals`: shares are shown in percent; times of any size with two digits below 100, none above. */
enum { TD_REPORT_PERCENT = -1, TD_REPORT_MS = -2 };

/* One figure of a row. */
typedef struct td_report_field {
  const char *key, *head; /* key NULL: not in the JSON; head NULL: not in the table */
  int width;              /* below 0: from the left */
  int decimals;
  double number;    /* NaN: not known; '-' in the table, not in the JSON */
  const char *text; /* instead of the number, if not NULL */
} td_report_field;

typedef struct td_report {
  cJSON *json, *rows; /* the whole; its list of rows */
  bool has_head;      /* the table's first line stands there */
} td_report;

/* tool: "tandem-bench steps"; list: what the JSON calls the rows. The machine's name is in it. */
void td_report_begin(td_report *r, const char *tool, const char *list);
/* A line of the table; *has_head false: with the heads above it. */
void td_report_print(bool *has_head, const td_report_field *fields, size_t n);
/* The same, and a row of the JSON. Returns its object, which is the report's. */
cJSON *td_report_row(td_report *r, const td_report_field *fields, size_t n);
/* Writes the JSON where path is not NULL; ends the program if that fails. */
void td_report_write(const td_report *r, const char *path);
void td_report_end(td_report *r, const char *path); /* the same, and frees it */

#endif
