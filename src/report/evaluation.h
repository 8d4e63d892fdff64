/* What the sections of evaluations share. */
#ifndef TESSERA_REPORT_EVALUATION_H
#define TESSERA_REPORT_EVALUATION_H

#include <cjson/cJSON.h>

#include "src/data/classes.h"

enum { EVALUATION_CLASSES = 256 };

/* "digits.safetensors": the checkpoint without its folders; "" if its name was a temporary one of mktemp. */
const char *evaluation_checkpoint(const cJSON *evaluation);

/* The names in a "confusion" row of so many classes; none unless all of them are valid. */
void evaluation_classes(const cJSON *confusion, size_t classes, struct class_names *names);

#endif
