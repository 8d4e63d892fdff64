/* Reads PREFIXtrain.csv and PREFIXtest.csv of a directory, or one CSV file, whose images are training images.
   */
#include <stdio.h>
#include <string.h>

#include "src/data/csv.h"
#include "src/data/file_set.h"
#include "src/data/reader.h"

static const char *const train_files[] = {"train.csv", "train.csv.gz", NULL};
static const char *const test_files[] = {"test.csv", "test.csv.gz", NULL};
static const char *const any_files[] = {"train.csv", "train.csv.gz", "test.csv", "test.csv.gz", NULL};

bool csv_has_name(const char *source) {
    const size_t length = strlen(source);
    return (length > 4 && strcmp(source + length - 4, ".csv") == 0) ||
           (length > 7 && strcmp(source + length - 7, ".csv.gz") == 0);
}

static bool recognises(const char *source) {
    struct file_set set;
    return csv_has_name(source) || file_set_find(&set, source, any_files) > 0;
}

/* Kaggle's test.csv has no labels. */
static enum status check_columns(const struct dataset_pair *pair, const char *train, const char *test) {
    const size_t pixels = pair->train.height * pair->train.width;
    if (!pair->train.count || pair->test.height * pair->test.width + 1 != pixels) return STATUS_OK;
    return status_set(
        STATUS_BAD_DATA,
        "%s has no labels: it has one column less than %s. Train with --data %s --validation N, "
        "then: predict CHECKPOINT %s",
        test, train, train, test);
}

static enum status load(struct dataset_pair *pair, const char *source,
                        const struct dataset_options *options) {
    struct file_set set;
    char train[1300] = "", test[1300];
    if (csv_has_name(source)) {
        pair->transposed = file_set_is_emnist(source);
        return csv_read(&pair->train, source, 0);
    }
    enum status status = file_set_open(&set, source, any_files);
    if (status) return status;
    pair->transposed = file_set_is_emnist(set.prefix);
    const bool tested = file_set_path(&set, test_files, test, sizeof test);
    if (options->parts == DATASET_ALL || !tested) {
        if (!file_set_path(&set, train_files, train, sizeof train))
            return status_set(STATUS_BAD_DATA, "'%s' has a test.csv but no train.csv", source);
        status = csv_read(&pair->train, train, 0);
    }
    if (!status && tested) status = csv_read(&pair->test, test, 0);
    if (!status && tested) status = check_columns(pair, train, test);
    return status ? status : file_set_classes(&set, &pair->classes);
}

static void list_files(const char *source, struct dataset_files *files) {
    struct file_set set;
    if (csv_has_name(source)) {
        snprintf(files->path[files->count++], sizeof files->path[0], "%s", source);
    } else if (file_set_find(&set, source, any_files)) {
        files->count += file_set_path(&set, train_files, files->path[files->count], sizeof files->path[0]);
        files->count += file_set_path(&set, test_files, files->path[files->count], sizeof files->path[0]);
    }
}

const struct dataset_reader dataset_csv = {recognises, load, list_files};
