#include "src/window/drift.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/augment.h"
#include "src/base/text.h"

enum status drift_parse(const char *text, struct image_drift *drift) {
    static const char kind[] = "rotate:";
    const char *numbers = text + sizeof kind - 1;
    char from[32];
    const char *dots = strncmp(text, kind, sizeof kind - 1) == 0 ? strstr(numbers, "..") : NULL;
    const size_t length = dots ? (size_t)(dots - numbers) : sizeof from;
    if (length < sizeof from) {
        memcpy(from, numbers, length);
        from[length] = '\0';
        if (text_parse_real(from, &drift->from) && text_parse_real(dots + 2, &drift->to) &&
            fabs(drift->from) <= 180 && fabs(drift->to) <= 180)
            return STATUS_OK;
    }
    return status_set(
        STATUS_USAGE,
        "drift must be rotate:FROM..TO in degrees from -180 to 180, as in rotate:0..45, not '%s'", text);
}

/* As augment_map_of, with this angle and nothing else. */
static struct augment_map map_of(const struct augment_plan *plan, double radians) {
    const int32_t half = 1 << (AUGMENT_PIXEL_BITS - 1), across = 1 - plan->to_width,
                  down = 1 - plan->to_height;
    float cosine, sine;
    augment_cos_sin((float)radians, &cosine, &sine);
    struct augment_map map = {.xx = augment_step(cosine),
                              .xy = augment_step(sine),
                              .yx = augment_step(-sine),
                              .yy = augment_step(cosine)};
    map.x0 = map.xx * across + map.xy * down + (plan->width - 1) * half;
    map.y0 = map.yx * across + map.yy * down + (plan->height - 1) * half;
    return map;
}

static void turn(const struct augment_plan *plan, double radians, const uint8_t *from, uint8_t *to) {
    const struct augment_map map = map_of(plan, radians);
    for (int32_t y = 0; y < plan->height; y++)
        for (int32_t x = 0; x < plan->width; x++)
            to[y * plan->width + x] =
                augment_read(plan, from, augment_fine(map.x0 + 2 * y * map.xy + 2 * x * map.xx),
                             augment_fine(map.y0 + 2 * y * map.yy + 2 * x * map.yx));
}

enum status drift_apply(const struct image_drift *drift, struct dataset *set) {
    static const double DEGREE = 3.14159265358979323846 / 180;
    const struct augmentation nothing = {0};
    const size_t pixels = set->height * set->width;
    struct augment_plan plan;
    if (set->height > AUGMENT_MOST_SIDE || set->width > AUGMENT_MOST_SIDE)
        return status_set(STATUS_USAGE, "drift turns images of up to %d x %d pixels; these have %zu x %zu",
                          AUGMENT_MOST_SIDE, AUGMENT_MOST_SIDE, set->height, set->width);
    uint8_t *turned = malloc(pixels);
    if (!turned) return status_set(STATUS_FAILED, "out of memory");
    augment_plan_make(&plan, &nothing, 0, set->height, set->width, set->height, set->width);
    for (size_t i = 0; i < set->count; i++) {
        const double share = set->count > 1 ? (double)i / (double)(set->count - 1) : 0;
        turn(&plan, DEGREE * (drift->from + (drift->to - drift->from) * share), set->images + i * pixels,
             turned);
        memcpy(set->images + i * pixels, turned, pixels);
    }
    free(turned);
    return STATUS_OK;
}
