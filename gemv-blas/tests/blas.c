/* Calls every routine of libgemv_blas in every spelling, and compares each bit with the order of docs/ORDER.md, which
 * blas_type.h computes from the text. It is C11 and C++17.
 *
 *   blas [short]              all of it, or a part for slow checkers
 *   blas without-handlers     a wrong call, in a program without xerbla (compiled with -DWITHOUT_HANDLERS)
 *
 * Compile it without contraction: cc -ffp-contract=off blas.c -lgemv_blas -lm -lpthread */
#ifndef __cplusplus
#define _POSIX_C_SOURCE 200809L
#endif
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __cplusplus
#define C extern "C"
#else
#define C extern
#endif

enum { SPELLINGS = 9, FORTRAN_SPELLINGS = 4, ROWS = 101, COLUMNS = 102 };

/* In this order; the first four are Fortran's. */
static int is_fortran(int spelling) { return spelling < FORTRAN_SPELLINGS; }
static int is_wide(int spelling) { return spelling == 2 || spelling == 3 || spelling >= 6; }

/* The cases of a switch over spellings: FORTRAN(integer, symbol) and CBLAS(integer, symbol). `r` is the routine's name. */
#define CASES(r) CASES_OF(r, r)
#define CASES_OF(r, c) CASES_PASTED(r, c)
#define CASES_PASTED(r, c) \
    case 0: FORTRAN(int32_t, r##_) break; \
    case 1: FORTRAN(int32_t, scipy_##r##_) break; \
    case 2: FORTRAN(int64_t, r##_64_) break; \
    case 3: FORTRAN(int64_t, scipy_##r##_64_) break; \
    case 4: CBLAS(int32_t, cblas_##c) break; \
    case 5: CBLAS(int32_t, scipy_cblas_##c) break; \
    case 6: CBLAS(int64_t, cblas_##c##_64) break; \
    case 7: CBLAS(int64_t, cblas_##c##64_) break; \
    case 8: CBLAS(int64_t, scipy_cblas_##c##64_) break;

/* The declarations of a routine in every spelling. */
#define DECLARE(r) DECLARE_OF(r, r)
#define DECLARE_OF(r, c) DECLARE_PASTED(r, c)
#define DECLARE_PASTED(r, c) \
    C FORTRAN(int32_t, r##_) C FORTRAN(int32_t, scipy_##r##_) \
    C FORTRAN(int64_t, r##_64_) C FORTRAN(int64_t, scipy_##r##_64_) \
    C CBLAS(int32_t, cblas_##c) C CBLAS(int32_t, scipy_cblas_##c) \
    C CBLAS(int64_t, cblas_##c##_64) C CBLAS(int64_t, cblas_##c##64_) C CBLAS(int64_t, scipy_cblas_##c##64_)

static long compared, errors_seen;
static int is_short;

static void fail(const char *what, int spelling, const char *how) {
    fprintf(stderr, "%s, spelling %d: %s\n", what, spelling, how);
    exit(1);
}

/* What the handlers of errors were given last. */
static int argument_seen;
static char name_seen[32];

#ifndef WITHOUT_HANDLERS
C void xerbla_(const char *name, const int *argument, size_t length);
C void xerbla_64_(const char *name, const int64_t *argument, size_t length);
C void cblas_xerbla(int argument, const char *name, const char *form, ...);

C void xerbla_(const char *name, const int *argument, size_t length) {
    argument_seen = *argument;
    snprintf(name_seen, sizeof name_seen, "%.*s", (int)length, name);
}
C void xerbla_64_(const char *name, const int64_t *argument, size_t length) {
    argument_seen = (int)*argument;
    snprintf(name_seen, sizeof name_seen, "%.*s", (int)length, name);
}
C void cblas_xerbla(int argument, const char *name, const char *form, ...) {
    (void)form;
    argument_seen = argument;
    snprintf(name_seen, sizeof name_seen, "%s", name);
}
#endif

/* Whether the last call reported this argument, by the number that it has in Fortran; 0 for none. `layout` is how many
 * arguments the C interface has before Fortran's. */
static void expect(const char *routine, int spelling, int argument, int layout) {
    char name[32] = "";
    if (argument && is_fortran(spelling)) {
        snprintf(name, sizeof name, "%-6s", routine);
        for (char *c = name; *c; c++)
            if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
    } else if (argument) {
        snprintf(name, sizeof name, "cblas_%s", routine);
        argument += layout;
    }
    if (argument != argument_seen || strcmp(name, name_seen) != 0) {
        fprintf(stderr, "expected %d of \"%s\", found %d of \"%s\"\n", argument, name, argument_seen, name_seen);
        fail(routine, spelling, "another error");
    }
    errors_seen += argument != 0;
    argument_seen = 0, name_seen[0] = 0;
}

static uint64_t state = 88172645463325252u;
static double noise(void) { /* in [-1, 1), of both signs and many exponents */
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return ldexp((double)(int64_t)state, -63 - (int)(state % 7));
}

enum { SEGMENT = 256, LANES = 64 };

#define STRING2(a) #a
#define STRING(a) STRING2(a)
#define PASTE2(a, b) a##b
#define PASTE(a, b) PASTE2(a, b)

#define L s
#define NRM2 snrm2
#define R float
#define FMA fmaf
#define SQRT sqrtf
#define LDEXP ldexpf
#include "blas_type.h"

#define L d
#define NRM2 dnrm2
#define R double
#define FMA fma
#define SQRT sqrt
#define LDEXP ldexp
#include "blas_type.h"

#define L c
#define NRM2 scnrm2
#define SCAL_BY_REAL csscal
#define R float
#define PAIR
#define FMA fmaf
#define SQRT sqrtf
#define LDEXP ldexpf
#include "blas_type.h"

#define L z
#define NRM2 dznrm2
#define SCAL_BY_REAL zdscal
#define R double
#define PAIR
#define FMA fma
#define SQRT sqrt
#define LDEXP ldexp
#include "blas_type.h"

/* Large enough for all threads of the library. */
enum { LARGE = 1500 };
static double *large_a, *large_x, *large_y;

static void large(double *y) {
    cblas_dgemv(ROWS, 111, LARGE, LARGE, 1, large_a, LARGE, large_x, 1, 0, y, 1);
}

static void *in_a_thread(void *unused) {
    (void)unused;
    double *y = (double *)malloc(LARGE * sizeof *y);
    for (int round = 0; round < 20; round++) {
        memset(y, 0xff, LARGE * sizeof *y);
        large(y);
        if (memcmp(y, large_y, LARGE * sizeof *y) != 0) fail("dgemv", 4, "other bits in a thread");
    }
    free(y);
    return NULL;
}

static void threads_and_forks(void) {
    large_a = (double *)malloc(sizeof(double) * LARGE * LARGE);
    large_x = (double *)malloc(sizeof(double) * LARGE);
    large_y = (double *)malloc(sizeof(double) * LARGE);
    for (int i = 0; i < LARGE * LARGE; i++) large_a[i] = noise();
    for (int i = 0; i < LARGE; i++) large_x[i] = noise();
    large(large_y);
    pthread_t threads[4];
    for (int k = 0; k < 4; k++)
        if (pthread_create(&threads[k], NULL, in_a_thread, NULL) != 0) fail("dgemv", 4, "no thread");
    for (int k = 0; k < 4; k++) pthread_join(threads[k], NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        in_a_thread(NULL);
        _exit(0);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) fail("dgemv", 4, "a forked child fails");
    free(large_a), free(large_x), free(large_y);
}

int main(int argc, char **argv) {
#ifdef WITHOUT_HANDLERS
    float y = 1;
    int one = 1, bad = -1;
    cblas_sgemv(ROWS, 111, 1, -1, 1, &y, 1, &y, 1, 0, &y, 1);
    sgemv_("N", &bad, &one, &y, &y, &one, &y, &one, &y, &y, &one);
    (void)argc, (void)argv;
    return y != 1;
#else
    is_short = argc > 1 && strcmp(argv[1], "short") == 0;
    s_all(), d_all(), c_all(), z_all();
    if (!is_short) threads_and_forks();
    printf("%ld results compared, %ld errors seen\n", compared, errors_seen);
    return 0;
#endif
}
