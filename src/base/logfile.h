/* Log files: lines that processes may append to one file at the same time. A line is one write under a lock
   (where the file system has locks, and no writer keeps it), so that it is never torn or mixed with another.
   */
#ifndef TESSERA_BASE_LOGFILE_H
#define TESSERA_BASE_LOGFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "src/base/status.h"

struct logfile;

/* Opens the file for appending. Unless `append`, an existing one is emptied first. If it does not end with a
   newline (its writer was killed), it gets one. If the path is "", *log is NULL. STATUS_FAILED with the
   reason. */
enum status logfile_open(struct logfile **log, const char *path, bool append);

bool logfile_is_empty(const struct logfile *log);

/* Appends a line, which ends with a newline. If it cannot be written whole (disk full), it is removed again,
   and logfile_close reports it. Does nothing if `log` is NULL. */
void logfile_write(struct logfile *log, const char *line, size_t length);

/* A line could not be made, for the reason errno: logfile_close reports it. */
void logfile_fail(struct logfile *log, int error);

/* Closes the log unless it is NULL. Returns `status`, or STATUS_FAILED if `status` is STATUS_OK and a line is
   missing. */
enum status logfile_close(struct logfile *log, enum status status);

#endif
