/* The charts of the page for gnuplot: ID.dat with the numbers, ID.gp with the commands that make ID.png. */
#ifndef TESSERA_REPORT_GNUPLOT_H
#define TESSERA_REPORT_GNUPLOT_H

#include "src/report/chart.h"

/* Into a folder that exists. Text from files is reduced to letters, digits and harmless signs, since gnuplot
   runs commands that stand in backquotes. STATUS_FAILED if a file cannot be written. */
enum status gnuplot_chart(const char *folder, const struct chart *chart);
enum status gnuplot_grid(const char *folder, const struct grid *grid);

/* Is a gnuplot in PATH? */
bool gnuplot_there(void);

/* Runs gnuplot on the scripts, in the folder. STATUS_FAILED names the script that it refused. */
enum status gnuplot_run(const char *folder, const struct names *scripts);

#endif
