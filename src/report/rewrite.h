/* Rewrites the tables of a Markdown file between the lines <!-- NAME --> and <!-- end -->. Names: "compare
   CONFIG", "gemm", "peak", "scaling", "shmem", "kmeans-steps", "qr", "breakeven", and "file PATH" for the
   text of a file. */
#ifndef TESSERA_REPORT_REWRITE_H
#define TESSERA_REPORT_REWRITE_H

#include "src/report/records.h"

/* With a tag, rewrites only markers <!-- NAME TAG -->; with NULL only those without a tag. A marker without
   data in the records is kept and reported on stderr. Every table starts with "Measured on: ...". The file
   is replaced atomically. STATUS_BAD_DATA, with the line, if a known marker has no end, or if the file
   cannot be read; STATUS_FAILED if it cannot be written. */
enum status rewrite_tables(const char *path, const char *tag, const struct records *records);

#endif
