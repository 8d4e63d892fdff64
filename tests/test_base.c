/* src/base: random numbers, text, profile. */
#include "tests/support.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/pages.h"
#include "src/base/profile.h"
#include "src/base/rng.h"
#include "src/base/text.h"

/* Known answers of the authors' Random123 library (kat_vectors, philox4x32 10 rounds). */
static void philox_known_answers(void **state) {
    (void)state;
    static const uint32_t counters[3][4] = {{0, 0, 0, 0},
                                            {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                                            {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
    static const uint32_t keys[3][2] = {{0, 0}, {0xffffffff, 0xffffffff}, {0xa4093822, 0x299f31d0}};
    static const uint32_t wanted[3][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                          {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                          {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(counters[i], keys[i], out);
        assert_memory_equal(out, wanted[i], sizeof out);
    }
}

static void streams_differ(void **state) {
    (void)state;
    struct rng a = rng_open(1, RNG_INIT, 0), b = rng_open(1, RNG_INIT, 0), c = rng_open(2, RNG_INIT, 0),
               d = rng_open(1, RNG_SHUFFLE, 0), e = rng_open(1, RNG_INIT, 1),
               f = rng_open(1ull << 32 | 1, RNG_INIT, 0);
    const uint32_t first = rng_u32(&a);
    assert_int_equal(first, rng_u32(&b));
    assert_int_not_equal(first, rng_u32(&c));
    assert_int_not_equal(first, rng_u32(&d));
    assert_int_not_equal(first, rng_u32(&e));
    assert_int_not_equal(first, rng_u32(&f));
}

static void streams_open_anywhere(void **state) {
    (void)state;
    static const uint64_t far = (1ull << 34) - 2; /* where the counter carries */
    struct rng all = rng_open(9, RNG_INIT, 3);
    for (uint64_t word = 0; word < 11; word++) {
        struct rng at = rng_open_at(9, RNG_INIT, 3, word);
        assert_int_equal(rng_u32(&at), rng_u32(&all));
    }
    all = rng_open_at(9, RNG_INIT, 3, far - far % 4);
    for (uint64_t word = far - far % 4; word < far + 9; word++) {
        struct rng at = rng_open_at(9, RNG_INIT, 3, word);
        assert_int_equal(rng_u32(&at), rng_u32(&all));
    }
}

static void only_utf8_remains(void **state) {
    (void)state;
#define BAD "\xef\xbf\xbd"
    static const char *const cases[][2] = {
        {"", ""},
        {"plain", "plain"},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf",
         "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf"},
        {"a\xff", "a" BAD},
        {"\x80z", BAD "z"},
        {"\xc3", BAD}, /* cut off */
        {"\xe2\x82", BAD BAD},
        {"\xf0\x9f\x98\"", BAD BAD BAD "\""},
        {"\xc0\xaf", BAD BAD}, /* overlong '/' */
        {"\xe0\x80\xaf", BAD BAD BAD},
        {"\xf0\x8f\xbf\xbf", BAD BAD BAD BAD},
        {"\xed\xa0\x80", BAD BAD BAD},         /* a surrogate */
        {"\xf4\x90\x80\x80", BAD BAD BAD BAD}, /* above U+10FFFF */
        {"\xf5\x80\x80\x80", BAD BAD BAD BAD},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *copy = text_utf8(cases[i][0]);
        assert_string_equal(copy, cases[i][1]);
        free(copy);
    }
}

static void text_is_made_printable(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"\xc3\xbc\n12 \xe2\x82\xac", "\xc3\xbc\n12 \xe2\x82\xac"},
        {"\033[2J\r\x7f\t", "?[2J???"},
        {"\xc2\x9bm", "??m"},        /* a control sequence in one character */
        {"a\xe2\x80\xaez", "a???z"}, /* from right to left */
        {"\xff\xe2\x82", "???"},     /* not UTF-8 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        text_clean(text);
        assert_string_equal(text, cases[i][1]);
    }
}

static void text_is_cut_between_characters(void **state) {
    (void)state;
    static const char text[] = "a\xc3\xa9\xe2\x82\xacz"; /* 1, 2, 3 and 1 bytes */
    static const int whole[] = {0, 1, 1, 3, 3, 3, 6, 7, 7};
    for (size_t most = 0; most < sizeof whole / sizeof *whole; most++)
        assert_int_equal(text_cut(text, most), whole[most]);
}

static void moments(void **state) {
    (void)state;
    struct rng rng = rng_open(3, RNG_TEST, 0);
    enum { COUNT = 200000 };
    double sum = 0, square = 0, uniform = 0;
    for (int i = 0; i < COUNT; i++) {
        const double x = rng_normal(&rng), u = rng_uniform(&rng);
        assert_true(u >= 0 && u < 1);
        sum += x;
        square += x * x;
        uniform += u;
    }
    /* five standard errors */
    assert_near(sum / COUNT, 0, 5 / sqrt(COUNT));
    assert_near(square / COUNT, 1, 5 * sqrt(2.0 / COUNT));
    assert_near(uniform / COUNT, 0.5, 5 / sqrt(12.0 * COUNT));
}

static void permutation_is_one(void **state) {
    (void)state;
    uint32_t order[1000];
    bool seen[1000] = {false};
    size_t fixed = 0;
    struct rng rng = rng_open(5, RNG_SHUFFLE, 2);
    rng_permutation(&rng, order, 1000);
    for (size_t i = 0; i < 1000; i++) {
        assert_true(order[i] < 1000 && !seen[order[i]]);
        seen[order[i]] = true;
        fixed += order[i] == i;
    }
    assert_true(fixed < 20); /* one is expected */
}

static void below_is_unbiased(void **state) {
    (void)state;
    struct rng rng = rng_open(7, RNG_TEST, 1);
    unsigned counts[3] = {0};
    for (int i = 0; i < 30000; i++) counts[rng_below(&rng, 3)]++;
    for (int i = 0; i < 3; i++) assert_near(counts[i] / 30000.0, 1 / 3.0, 5 * sqrt(2.0 / 9 / 30000));
}

static void numbers_are_parsed_whole(void **state) {
    (void)state;
    int64_t integer = 42;
    double real = 42;
    assert_true(text_parse_int("-17", &integer) && integer == -17);
    static const char *const bad[] = {"",  " 1",  "1 ", "1x", "0x10", "1e3", "99999999999999999999",
                                      "-", "nan", NULL};
    for (size_t i = 0; bad[i]; i++) assert_false(text_parse_int(bad[i], &integer));
    assert_int_equal(integer, -17);
    assert_true(text_parse_real("1e-3", &real) && real == 1e-3);
    static const char *const unreal[] = {"", "nan", "inf", "1e999", "0.1abc", " 1", "0,5", NULL};
    for (size_t i = 0; unreal[i]; i++) assert_false(text_parse_real(unreal[i], &real));
    assert_true(real == 1e-3);
}

static void nearest_word(void **state) {
    (void)state;
    static const char *const words[] = {"batch-size", "epochs", "seed"};
    assert_string_equal(text_nearest("batchsize", words, 3), "batch-size");
    assert_string_equal(text_nearest("epoch", words, 3), "epochs");
    assert_null(text_nearest("quux", words, 3));
}

static void numbers_for_people(void **state) {
    (void)state;
    char directory[32];
    assert_string_equal(text_grouped(0).text, "0");
    assert_string_equal(text_grouped(999).text, "999");
    assert_string_equal(text_grouped(1234567).text, "1,234,567");
    assert_string_equal(text_bytes(1536).text, "1.5 KiB");
    text_directory("a/b/c", directory, sizeof directory);
    assert_string_equal(directory, "a/b");
    text_directory("/c", directory, sizeof directory);
    assert_string_equal(directory, "/");
    text_directory("c", directory, sizeof directory);
    assert_string_equal(directory, ".");
}

static void lines_of_a_text(void **state) {
    (void)state;
    static const char *const texts[] = {"one\ntwo\n", "one\ntwo"}; /* with and without a newline at the end */
    for (size_t i = 0; i < 2; i++) {
        const size_t first = text_line_length(texts[i]), second = text_line_length(texts[i] + first);
        assert_int_equal(first, 4);
        assert_int_equal(first + second, strlen(texts[i]));
        assert_int_equal(text_line_length(texts[i] + first + second), 0);
    }
}

static void messages_nest(void **state) {
    (void)state;
    assert_int_equal(status_set(STATUS_BAD_DATA, "file %d is short", 3), STATUS_BAD_DATA);
    assert_int_equal(status_context(STATUS_BAD_DATA, "loading"), STATUS_BAD_DATA);
    assert_string_equal(status_message(), "loading: file 3 is short");
}

static void pause_briefly(void) {
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* The parts add up to the total in any order of laps. */
static void profile_adds_up(void **state) {
    (void)state;
    struct profile profile;
    profile_start(&profile);
    const double start = profile.last;
    pause_briefly();
    profile_lap(&profile, (struct profile_slot){.part = PART_BATCH});
    pause_briefly();
    profile_lap(&profile, profile_gemm_slot(PART_GEMM_TN, 1, 10, 20, 30));
    pause_briefly();
    profile_divert(&profile, PART_EVALUATION);
    pause_briefly();
    profile_lap(&profile, profile_gemm_slot(PART_GEMM_NN, 0, 1, 1, 1));
    profile_restore(&profile);
    assert_near(profile_total(&profile), profile.last - start, 1e-9);
    assert_true(profile.seconds[PART_BATCH] >= 0.002 && profile.seconds[PART_EVALUATION] >= 0.002);
    assert_true(profile.seconds[PART_OTHER] >= 0.002 && profile.seconds[PART_GEMM_NN] == 0);
    assert_true(profile.gemm[1][1].flops == 12000 && profile.gemm[1][1].calls == 1 &&
                profile.gemm[0][0].calls == 0);
    assert_near(profile_training(&profile), profile_total(&profile) - profile.seconds[PART_EVALUATION],
                1e-12);

    const struct profile before = profile;
    profile_lap(&profile, (struct profile_slot){.part = PART_H2D});
    const struct profile since = profile_since(&profile, &before);
    assert_true(since.seconds[PART_BATCH] == 0 && profile_transfer_ratio(&since) == 1);
}

static bool crashes_at(const volatile char *byte) {
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* neither cmocka nor a sanitizer goes on */
        (void)*byte;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

/* Whatever was taken before: a smaller piece, a larger one, one of several pages. */
static void guards_are_next_to_what_was_taken(void **state) {
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), sizes[] = {3 * page, 10, page + 1, 5 * page, 2 * page};
    struct pages_guarded pages = {0};
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        const bool at_end = i % 2;
        const size_t bytes = sizes[i / 2], rounded = (bytes + page - 1) / page * page;
        char *memory = pages_guarded_take(&pages, bytes, at_end);
        assert_non_null(memory);
        memset(memory, 1, bytes);
        char *const first = at_end ? memory + bytes - rounded : memory;
        assert_true(crashes_at(first - 1) && crashes_at(first + rounded));
        assert_false(crashes_at(memory) || crashes_at(memory + bytes - 1));
    }
    pages_guarded_free(&pages);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(streams_differ),
        cmocka_unit_test(streams_open_anywhere),
        cmocka_unit_test(only_utf8_remains),
        cmocka_unit_test(text_is_made_printable),
        cmocka_unit_test(text_is_cut_between_characters),
        cmocka_unit_test(moments),
        cmocka_unit_test(permutation_is_one),
        cmocka_unit_test(below_is_unbiased),
        cmocka_unit_test(numbers_are_parsed_whole),
        cmocka_unit_test(nearest_word),
        cmocka_unit_test(numbers_for_people),
        cmocka_unit_test(lines_of_a_text),
        cmocka_unit_test(messages_nest),
        cmocka_unit_test(guards_are_next_to_what_was_taken),
        cmocka_unit_test(profile_adds_up),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
