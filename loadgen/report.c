/* See report.h. */
#include "loadgen/report.h"

#include <math.h>
#include <stdio.h>

#include "loadgen/tool.h"

void td_report_begin(td_report *r, const char *tool, const char *list)
{
  char text[256];
  *r = (td_report){.json = cJSON_CreateObject()};
  snprintf(text, sizeof text, "%s %s", tool, TD_VERSION);
  cJSON_AddStringToObject(r->json, "tool", text);
  td_tool_machine(text, sizeof text);
  cJSON_AddStringToObject(r->json, "machine", text);
  r->rows = cJSON_AddArrayToObject(r->json, list);
}

static const char *shown(const td_report_field *f, char out[32])
{
  int decimals = f->decimals == TD_REPORT_MS ? (f->number < 99.995 ? 2 : 0) : f->decimals;
  if (f->text)
    return f->text;
  if (!isfinite(f->number))
    return "-";
  if (decimals == TD_REPORT_PERCENT)
    snprintf(out, 32, "%.0f%%", 100 * f->number);
  else
    snprintf(out, 32, "%.*f", decimals, f->number);
  return out;
}

void td_report_print(bool *has_head, const td_report_field *fields, size_t n)
{
  char text[32];
  for (bool head = !*has_head;; head = false) {
    for (size_t i = 0; i < n; i++)
      if (fields[i].head)
        printf(i > 0 ? " %*s" : "%*s", fields[i].width, head ? fields[i].head : shown(&fields[i], text));
    printf("\n");
    if (!head)
      break;
  }
  *has_head = true;
  fflush(stdout);
}

cJSON *td_report_row(td_report *r, const td_report_field *fields, size_t n)
{
  cJSON *o = cJSON_CreateObject();
  td_report_print(&r->has_head, fields, n);
  for (size_t i = 0; i < n; i++)
    if (fields[i].key && fields[i].text)
      cJSON_AddStringToObject(o, fields[i].key, fields[i].text);
    else if (fields[i].key && isfinite(fields[i].number))
      cJSON_AddNumberToObject(o, fields[i].key, fields[i].number);
  cJSON_AddItemToArray(r->rows, o);
  return o;
}

void td_report_write(const td_report *r, const char *path)
{
  if (path)
    td_tool_write_json(path, r->json);
}

void td_report_end(td_report *r, const char *path)
{
  td_report_write(r, path);
  cJSON_Delete(r->json);
  *r = (td_report){0};
}
