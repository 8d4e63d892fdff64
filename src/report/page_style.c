/* The style sheet of the report. Colours are variables with a light and a dark value. The eight chart
   colours are distinct for common kinds of colour blindness (after Okabe and Ito, 2008); markers, dashes and
   hatchings need no colour. */
#include <string.h>

#include "src/report/page.h"

#define LIGHT                                                                                             \
    "color-scheme:light;--page:#fff;--ink:#1b1f24;--soft:#5b6570;--line:#e3e7eb;--tint:#f6f8fa;--shade:#" \
    "1b1f2440;--link:#"                                                                                   \
    "0b62a4;"                                                                                             \
    "--c0:#0072b2;--c1:#d55e00;--c2:#009270;--c3:#b8609a;--c4:#c98a00;--c5:#56a8de;--c6:#7a7c00;--c7:#"   \
    "7b858f;"

/* Also part of single figures. */
#define CHART_RULES                                                                                          \
    ".chart{overflow:visible}"                                                                               \
    "text{fill:var(--ink)}text.t,text.a{fill:var(--soft)}text.t,text.a{font-size:11px}text.v{font-weight:"   \
    "600}"                                                                                                   \
    "text.c{font-size:11px}"                                                                                 \
    "text.r{font-size:11px;fill:var(--soft);stroke:var(--page);stroke-width:3;paint-order:stroke}\n"         \
    ".reference{stroke:var(--soft);stroke-width:1.2;stroke-dasharray:5 3;fill:none}\n"                       \
    ".grid{stroke:var(--line);stroke-width:1;fill:none}\n"                                                   \
    ".line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}\n"                           \
    ".spread{fill:none;stroke-width:1;opacity:.7}\n"                                                         \
    ".mark{stroke:var(--page);stroke-width:.8}\n"                                                            \
    ".bar{stroke:var(--page);stroke-width:.6}\n"                                                             \
    ".hatch{fill:none;stroke:var(--page);stroke-width:.9;opacity:.5}\n"                                      \
    ".d1{stroke-dasharray:7 4}.d2{stroke-dasharray:2 4}.d3{stroke-dasharray:9 4 2 4}.d4{stroke-dasharray:4 " \
    "3}\n"                                                                                                   \
    ".f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}.f5{"    \
    "fill:"                                                                                                  \
    "var(--c5)}"                                                                                             \
    ".f6{fill:var(--c6)}.f7{fill:var(--c7)}\n"                                                               \
    ".s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--"  \
    "c4)"                                                                                                    \
    "}"                                                                                                      \
    ".s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}\n"                                      \
    ".h0{fill:none}.h1{fill:url(#hatch1)}.h2{fill:url(#hatch2)}.h3{fill:url(#hatch3)}.h4{fill:url(#hatch4)}" \
    ".h5{fill:url(#hatch5)}.h6{fill:url(#hatch6)}.h7{fill:url(#hatch7)}\n"

const char page_style_sheet[] =
    ":root{" LIGHT "}\n"
    "@media screen and "
    "(prefers-color-scheme:dark){:root{color-scheme:dark;--page:#14171b;--ink:#e4e8ec;--soft:#98a3ae;"
    "--line:#2b3138;--tint:#1b2026;--shade:#0009;--link:#6cb6f0;--c0:#4aa3df;--c1:#f08a3c;--c2:#2cc39a;--c3:#"
    "dd8fc4;--c4:#"
    "e6b23a;"
    "--c5:#9ad2f5;--c6:#b9bb4a;--c7:#8d98a3;}}\n"
    "*{box-sizing:border-box}\n"
    "html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}\n"
    "body{margin:0 auto;padding:3.5rem 1.25rem 6rem;max-width:72rem;background:var(--page);color:var(--ink);"
    "font:1rem/1.6 -apple-system,BlinkMacSystemFont,'Segoe UI',Roboto,'Helvetica "
    "Neue',Arial,system-ui,sans-serif;"
    "font-variant-numeric:tabular-nums}\n"
    "h1{font-size:2.25rem;line-height:1.15;letter-spacing:-.02em;margin:0 0 .75rem;font-weight:680}\n"
    "h2{font-size:1.5rem;line-height:1.25;letter-spacing:-.012em;margin:0 0 1rem;font-weight:650}\n"
    "h3{font-size:1.02rem;line-height:1.4;margin:2.25rem 0 .5rem;font-weight:620;overflow-wrap:anywhere}\n"
    "h4{font-size:.9rem;line-height:1.4;margin:0 0 .75rem;font-weight:620}\n"
    "p{margin:0 0 .75rem;max-width:44rem;overflow-wrap:anywhere}\n"
    "header p{font-size:1.1rem;color:var(--soft);margin-bottom:1.5rem}\n"
    "a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}\n"
    "a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid "
    "var(--link);outline-offset:2px}\n"
    "nav{display:flex;flex-wrap:wrap;gap:.35rem 1.25rem;font-size:.95rem}\n"
    "section{margin-top:4.5rem;scroll-margin-top:1rem}\n"
    "code{font:.92em/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}\n"
    ".columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:2rem 3rem;"
    "align-items:start;margin:1.25rem 0}\n"
    ".columns>*{min-width:0}.columns>.legend{grid-column:1/-1}\n"
    "figure{margin:0;break-inside:avoid}\n"
    "figcaption{font-size:.875rem;line-height:1.5;color:var(--soft);margin-top:.75rem;max-width:36rem}\n"
    ".defs{position:absolute}\n"
    ".chart{display:block;width:100%;max-width:34rem;height:auto;font-size:12px}\n" CHART_RULES
    "[class^=h]{pointer-events:none}\n"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.3rem 1.25rem;margin:.75rem 0 "
    "0;padding:0;font-size:.84rem;"
    "line-height:1.4}\n"
    ".legend li{display:inline-flex;align-items:center;gap:.5rem}.legend svg{flex:none}\n"
    ".plain{padding-left:1.1rem;margin:0}.plain li{margin:.35rem 0}\n"
    /* shadows at edges where content is hidden */
    ".scroll{container-type:inline-size;overflow-x:auto;margin:1.25rem 0 1.75rem;background:"
    "linear-gradient(to right,var(--page) 40%,transparent) 0/2.5rem 100% no-repeat local,"
    "linear-gradient(to left,var(--page) 40%,transparent) 100%/2.5rem 100% no-repeat local,"
    "linear-gradient(to right,var(--shade),transparent) 0/.7rem 100% no-repeat scroll,"
    "linear-gradient(to left,var(--shade),transparent) 100%/.7rem 100% no-repeat scroll}\n"
    ".columns>.scroll{margin-top:0}\n"
    "table{border-collapse:collapse;font-size:.84rem;line-height:1.45;min-width:min(100%,36rem)}\n"
    "caption{text-align:left;color:var(--soft);padding:0 0 "
    ".6rem;font-size:.875rem;position:sticky;left:0;max-width:min(44rem,100cqw)}\n"
    "th,td{padding:.4rem .75rem .42rem 0;text-align:left;vertical-align:top;white-space:nowrap;"
    "border-bottom:1px solid var(--line)}\n"
    "th:last-child,td:last-child{padding-right:.25rem}\n"
    "thead th{color:var(--soft);font-weight:560;font-size:.8rem;vertical-align:bottom}\n"
    "tbody th{font-weight:560;position:sticky;left:0;background:var(--page)}\n"
    ".long{white-space:normal;min-width:10rem;max-width:24rem;overflow-wrap:anywhere}\n"
    "details{margin:1.25rem 0 1.75rem}details .scroll{margin:.75rem 0 0}\n"
    "summary{cursor:pointer;font-size:.875rem;color:var(--link);max-width:44rem}\n"
    ".n{text-align:right}\n"
    ".say{white-space:normal;min-width:11rem;text-align:left;color:var(--soft)}\n"
    "tbody tr:hover>*{background:var(--tint)}\n"
    ".wide{min-width:46rem}.wide td,.wide th{white-space:normal}\n"
    ".digits{display:grid;grid-template-columns:repeat(auto-fill,minmax(6.25rem,1fr));gap:1.5rem "
    "1rem;margin-top:1.5rem}\n"
    ".digit img{display:block;image-rendering:pixelated;border-radius:4px}\n"
    ".digit figcaption{overflow-wrap:anywhere;margin-top:.4rem;font-size:.8rem;line-height:1.4}.digit "
    "b{color:var(--ink)}\n"
    "@media (max-width:40rem){body{padding:2rem 1rem 4rem}h1{font-size:1.8rem}section{margin-top:3.25rem}"
    ".chart{font-size:13.5px}text.t,text.a,text.r{font-size:13px}}\n"
    "@page{margin:14mm}\n"
    "@media print{:root{font-size:9pt;" LIGHT "}body{max-width:none;padding:0;print-color-adjust:exact;"
    "-webkit-print-color-adjust:exact}nav{display:none}.columns>.legend{break-after:avoid}section{margin-top:"
    "1.75rem}h2,h3,h4,caption,thead{break-after:avoid;break-inside:avoid}summary{display:none}"
    ".columns{grid-template-columns:1fr 1fr;gap:1.25rem 1.5rem}.columns>.scroll{grid-column:1/-1}"
    "tbody th{position:static;background:none}h2+p,h3+p,tbody tr:nth-child(-n+2){break-after:avoid}tbody "
    "tr:nth-last-child(-n+2){break-before:avoid}"
    ".chart{max-height:21cm}details::details-content{content-visibility:visible;display:block}"
    ".scroll{overflow:visible;background:none;container-type:normal;margin:.75rem 0 1rem}"
    "table{font-size:6.8pt}th,td{padding:.2rem .5rem .2rem "
    "0}.wide{min-width:0}caption{max-width:44rem;position:static}"
    "thead "
    "th{white-space:normal;font-size:6.6pt}.say{min-width:8rem}tr,.digit{break-inside:avoid}}"
    "\n";

void page_chart_style(FILE *out) {
    for (const char *at = CHART_RULES; *at;) {
        if (strncmp(at, "var(", 4) != 0) {
            fputc(*at++, out);
            continue;
        }
        char name[16];
        const size_t length = strcspn(at, ")");
        snprintf(name, sizeof name, "%.*s:", (int)length - 4, at + 4);
        const char *value = strstr(LIGHT, name) + strlen(name);
        fprintf(out, "%.*s", (int)strcspn(value, ";"), value);
        at += length + 1;
    }
}

/* Drawn over the colours of bars. */
void page_chart_patterns(FILE *out) {
    static const char *const marks[CHART_COLOURS] = {"M0 0",
                                                     "M0 6L6 0",
                                                     "M0 0L6 6",
                                                     "M3 0V6",
                                                     "M0 3H6",
                                                     "M0 0L6 6M0 6L6 0",
                                                     "M1 1h1v1h-1zM4 4h1v1h-1z",
                                                     "M0 3H6M3 0V6"};
    fputs("<defs>\n", out);
    for (int i = 0; i < CHART_COLOURS; i++)
        fprintf(out,
                "<pattern id=\"hatch%d\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
                "<path class=\"hatch\" d=\"%s\"/></pattern>\n",
                i, marks[i]);
    fputs("</defs>", out);
}
