/* Tables of a Markdown file, written anew between their markers: a line <!-- NAME --> opens, <!-- end -->
   closes. Names: "compare CONFIG", "gemm", "peak", "scaling", "shmem", "breakeven", and "file PATH" for the
   text of a file. No figure in the file is typed by hand. */
#ifndef TESSERA_REPORT_REWRITE_H
#define TESSERA_REPORT_REWRITE_H

#include "src/report/records.h"

/* Rewrites `path`; with a tag only markers <!-- NAME TAG -->, without (NULL) only those without one. Markers
   of which the records have no data stay as they are, with a line on stderr. Every table starts with
   "Measured on: ...". The file is replaced only when the new one is whole. STATUS_BAD_DATA if it cannot be
   read or a known marker has no end, with the line; STATUS_FAILED if it cannot be written. */
enum status rewrite_tables(const char *path, const char *tag, const struct records *records);

#endif
