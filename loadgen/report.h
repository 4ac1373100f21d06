/* Reports measurements twice: as a table of text while they are made, and as JSON at the end. */
#ifndef TD_LOADGEN_REPORT_H
#define TD_LOADGEN_REPORT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* For `decimals`. PERCENT: a share, shown in percent. MS: a time, with two digits below 100 and none
 * above. */
enum { TD_REPORT_PERCENT = -1, TD_REPORT_MS = -2 };

/* One cell of a row. */
typedef struct td_report_field {
  const char *key, *head; /* key NULL: not in the JSON; head NULL: not in the table */
  int width;              /* negative: aligned to the left */
  int decimals;
  double number;    /* NaN: unknown; shown as '-' and left out of the JSON */
  const char *text; /* replaces the number if it is not NULL */
} td_report_field;

typedef struct td_report {
  cJSON *json, *rows; /* the whole document; its list of rows */
  bool has_head;      /* the head of the table has been printed */
} td_report;

/* tool: for example "tandem-bench steps". list: the name of the rows in the JSON. Adds the machine's name. */
void td_report_begin(td_report *r, const char *tool, const char *list);
/* Prints a line of the table. If *has_head is false, prints the head first. */
void td_report_print(bool *has_head, const td_report_field *fields, size_t n);
/* Prints the line and adds a row to the JSON. Returns the row's object, which the report owns. */
cJSON *td_report_row(td_report *r, const td_report_field *fields, size_t n);
/* Writes the JSON if path is not NULL. Ends the program if that fails. */
void td_report_write(const td_report *r, const char *path);
void td_report_end(td_report *r, const char *path); /* writes it, then frees the report */

#endif
