/* Figures of the page as files: SVG, and PNG by the program rsvg-convert. */
#ifndef TESSERA_REPORT_FIGURE_H
#define TESSERA_REPORT_FIGURE_H

#include "src/base/status.h"
#include "src/report/legend.h"
#include "src/report/selection.h"

/* Writes folder/ID.svg: title, `svg` (the text of chart_svg, of this height) and legend on white. */
enum status figure_write(const char *folder, const char *id, const char *title, const char *svg,
                         double height, const struct legend *legend);

/* Converts folder/ID.svg to folder/ID.png for each id. STATUS_UNAVAILABLE if rsvg-convert is not in PATH,
   STATUS_FAILED if it refuses a file. */
enum status figure_convert(const char *folder, const struct names *ids);

#endif
