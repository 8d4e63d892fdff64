/* Any bytes as the Markdown file of `report --tables`; behind a byte 1 the text of the files "part.md" and
   "part.txt" that it may name, behind another one the log. Text outside of the markers is unchanged, writing
   twice gives the same file, a refused file is unchanged, and no other file is written. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/report/rewrite.h"
#include "tests/fuzz/fuzz.h"

static struct memory_file readme, part, log_file;
static struct records fixed; /* if there is no log in the input */

#define ROW(type, rest) \
    "{\"type\":\"" type "\",\"backend\":\"a|b\",\"verified\":true,\"noisy\":true," rest "}\n"
static const char LOG[] =
    "{\"type\":\"header\",\"cpu\":\"<cpu>\",\"gpu\":\"`gpu`\",\"threads\":2,\"command\":\"bench\"}\n" ROW(
        "compare", "\"config\":\"c\",\"agrees\":true,\"speedup\":2,\"median_epoch_seconds\":0.1")
        ROW("compare", "\"config\":\"c\",\"left_out\":\"<!-- end -->\"")
            ROW("compare", "\"agrees\":false,\"reason\":\"no\"") ROW(
                "gemm",
                "\"m\":10,\"n\":20,\"k\":30,\"gflops\":5,\"kernels\":[{\"name\":\"k\",\"threads\":64}]")
                ROW("peak", "\"device\":\"d\",\"threads\":1,\"gflops\":7")
                    ROW("scaling", "\"config\":\"c\",\"dtype\":\"f32\",\"threads\":2,\"speedup\":1.5") ROW(
                        "amdahl", "\"config\":\"c\",\"serial_fraction\":0.03")
                        ROW("shmem", "\"m\":1,\"n\":2,\"k\":3,\"tile\":16,\"gflops\":1") ROW(
                            "breakeven",
                            "\"batch\":8,\"hidden\":16,\"dtype\":\"f32\",\"wins\":true,\"step_seconds\":0.1");

static void prepare(void) {
    memory_file_open(&readme);
    memory_file_open(&part);
    memory_file_open(&log_file);
    forbid_except(readme.path);
    forbid_alias("part.md", part.path);
    forbid_alias("part.txt", part.path);
    memory_file_fill(&log_file, LOG, sizeof LOG - 1);
    if (records_read(&fixed, log_file.path)) fuzz_fail("the fixed log: %s", status_message());
    stderr = fopen("/dev/null", "w"); /* markers without data are reported there */
    if (!stderr) abort();
}

/* The text of a line that is one comment, trimmed; "" otherwise. */
static void comment_of(const char *line, size_t length, char *text, size_t size) {
    static const char SPACES[] = " \t\r\n\v\f";
    text[0] = '\0';
    while (length && strchr(SPACES, line[length - 1])) length--;
    while (length && strchr(SPACES, *line)) line++, length--;
    if (length < 7 || strncmp(line, "<!--", 4) != 0 || strncmp(line + length - 3, "-->", 3) != 0) return;
    line += 4;
    length -= 7;
    while (length && strchr(SPACES, line[length - 1])) length--;
    while (length && strchr(SPACES, *line)) line++, length--;
    snprintf(text, size, "%.*s", (int)length, line);
}

static int may_be_marker(const char *comment) {
    static const char *const names[] = {"compare", "gemm", "peak", "scaling", "shmem", "breakeven", "file"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcspn(comment, " ") == strlen(names[i]) && strncmp(comment, names[i], strlen(names[i])) == 0)
            return 1;
    return 0;
}

/* The text without what stands between a line that may be a marker and the next <!-- end -->; the caller
   frees it. */
static char *outside(const char *text) {
    char *kept = malloc(strlen(text) + 1), *to = kept, comment[1024];
    int inside = 0;
    if (!kept) abort();
    while (*text) {
        const size_t newline = strcspn(text, "\n"), length = newline + (text[newline] == '\n');
        comment_of(text, length, comment, sizeof comment);
        if (strcmp(comment, "end") == 0) inside = 0;
        if (!inside) to = mempcpy(to, text, length);
        if (may_be_marker(comment)) inside = 1;
        text += length;
    }
    *to = '\0';
    return kept;
}

static void check_outside(const char *before, const char *after) {
    char *a = outside(before), *b = outside(after);
    if (strcmp(a, b) != 0) fuzz_fail("outside of the markers was\n%sand is\n%s", a, b);
    free(a);
    free(b);
}

static void check_rewrite(const char *tag, const struct records *records) {
    size_t size, fresh_size, again_size;
    char *text = memory_file_read(&readme, &size);
    const enum status status = rewrite_tables(readme.path, tag, records);
    char *fresh = memory_file_read(&readme, &fresh_size);
    if (status) {
        if (status != STATUS_BAD_DATA) fuzz_fail("refused with status %d: %s", status, status_message());
        if (fresh_size != size || memcmp(fresh, text, size) != 0) fuzz_fail("refused, but changed");
    } else if (fresh_size != size || memcmp(fresh, text, size) != 0) {
        if (strlen(text) != size || strlen(fresh) != fresh_size) fuzz_fail("rewritten, with a NUL");
        check_outside(text, fresh);
        if (rewrite_tables(readme.path, tag, records)) fuzz_fail("not rewritten again: %s", status_message());
        char *again = memory_file_read(&readme, &again_size);
        if (again_size != fresh_size || memcmp(again, fresh, fresh_size) != 0)
            fuzz_fail("written as\n%sand then as\n%s", fresh, again);
        free(again);
    }
    free(text);
    free(fresh);
}

/* The bytes before the next byte 1, which is skipped. */
static const uint8_t *take(const uint8_t **data, size_t *size, size_t *length) {
    const uint8_t *start = *data, *end = *size ? memchr(start, 1, *size) : NULL;
    *length = end ? (size_t)(end - start) : *size;
    *data += *length + (end != NULL);
    *size -= *length + (end != NULL);
    return start;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct records records = {0};
    size_t length;
    if (!readme.fd) prepare();
    const uint8_t *markdown = take(&data, &size, &length);
    memory_file_fill(&readme, markdown, length);
    const uint8_t *text = take(&data, &size, &length);
    memory_file_fill(&part, text, length);
    const bool logged = size > 0;
    forbid_writing(1);
    if (logged) {
        memory_file_fill(&log_file, data, size);
        records_read(&records, log_file.path);
    }
    check_rewrite(NULL, logged ? &records : &fixed);
    check_rewrite("cpu", logged ? &records : &fixed);
    records_free(&records);
    forbid_writing(0);
    return 0;
}
