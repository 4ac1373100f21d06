/* Status codes and error messages, for every room.
 *
 * A function that can fail returns td_status and fills a td_error, whose message names the thing that is
 * wrong (file, tensor, field, option). There are three classes: errors of the API's caller (request), lack of
 * room in the machine (capacity), and errors that end the process (fatal). A broken invariant of our own is a
 * bug and aborts through TD_BUG_ON. No request bytes and no model-file bytes may lead to an abort. */
#ifndef TD_COMMON_STATUS_H
#define TD_COMMON_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum td_status {
  TD_OK = 0,
  TD_ERR_REQUEST,     /* the client's error: 4xx */
  TD_ERR_UNSUPPORTED, /* understood, but not served here: 400 naming the field, or refused model */
  TD_ERR_CAPACITY,    /* no room now: 429/503 with Retry-After */
  TD_ERR_CONFIG,      /* options file, command line */
  TD_ERR_MODEL,       /* model file: truncated, lying, or of a kind that is not served */
  TD_ERR_IO,          /* a system call failed; the message has strerror */
  TD_ERR_NOMEM,       /* allocation failed */
  TD_ERR_DEVICE,      /* accelerator fault: fatal to the process */
  TD_ERR_NO_DEVICE,   /* at start: no accelerator, or driver or device too old for this build */
} td_status;

/* Process exit codes of tandemd (docs/OPERATING.md; systemd units use them). */
enum {
  TD_EXIT_OK = 0,
  TD_EXIT_USAGE = 64,  /* bad command line or options file */
  TD_EXIT_MODEL = 65,  /* model could not be loaded */
  TD_EXIT_LISTEN = 66, /* address could not be bound */
  TD_EXIT_NOMEM = 67,
  TD_EXIT_NO_DEVICE = 69, /* backend = cuda, but there is no device that this build can use */
  TD_EXIT_DEVICE = 70,    /* device fault */
};

#define TD_ERROR_MESSAGE_BYTES 512
#define TD_ERROR_PARAM_BYTES 64

typedef struct td_error {
  td_status code;
  char param[TD_ERROR_PARAM_BYTES]; /* request field or option at fault; "" if none */
  char message[TD_ERROR_MESSAGE_BYTES];
} td_error;

#define TD_MUST_CHECK __attribute__((warn_unused_result))
#define TD_PRINTF(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))

/* Fills *err (may be NULL) and returns code, so that `return td_fail(...)` works. Longer messages are cut to
 * the buffer. In message and param, '?' replaces each byte of a control character or of invalid UTF-8, so
 * that text from files or clients can be quoted safely. */
td_status td_fail(td_error *err, td_status code, const char *fmt, ...) TD_PRINTF(3, 4);

/* The same, naming the request field or option at fault. */
td_status td_fail_param(td_error *err, td_status code, const char *param, const char *fmt, ...)
    TD_PRINTF(4, 5);

/* Puts "prefix: " before the message already in *err (not NULL), and returns err->code. */
td_status td_error_prefix(td_error *err, const char *fmt, ...) TD_PRINTF(2, 3);

#define TD_TRY(expr)                                                                                         \
  do {                                                                                                       \
    td_status try_status_ = (expr);                                                                          \
    if (try_status_ != TD_OK)                                                                                \
      return try_status_;                                                                                    \
  } while (0)

__attribute__((noreturn)) void td_bug(const char *file, int line, const char *what);
#define TD_BUG_ON(cond)                                                                                      \
  do {                                                                                                       \
    if (__builtin_expect(!!(cond), 0))                                                                       \
      td_bug(__FILE__, __LINE__, #cond);                                                                     \
  } while (0)

#endif
