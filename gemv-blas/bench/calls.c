/* Times of calls, beside those of another BLAS, and of dlopen.
 *
 *   cc -O2 gemv-blas/bench/calls.c -o calls -ldl
 *   ./calls target/packaged/libgemv_blas.so libopenblas.so.0
 *
 * Each number is the least of many runs, in which the two take turns. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef void sgemv_t(int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
typedef void dgemv_t(int, int, int, int, double, const double *, int, const double *, int, double, double *, int);
typedef float sdot_t(int, const float *, int, const float *, int);

enum { ROUNDS = 400, MOST = 256 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "%s\n", dlerror()), exit(1);
    return found;
}

static float a[MOST * MOST], x[MOST], y[MOST];
static double da[MOST * MOST], dx[MOST], dy[MOST];

static double sgemv(sgemv_t *f, int layout, int n, float alpha, float beta, int calls) {
    double start = now();
    for (int i = 0; i < calls; i++) f(layout, 111, n, n, alpha, a, n, x, 1, beta, y, 1);
    return (now() - start) / calls;
}

static double dgemv(dgemv_t *f, int layout, int n, double alpha, double beta, int calls) {
    double start = now();
    for (int i = 0; i < calls; i++) f(layout, 111, n, n, alpha, da, n, dx, 1, beta, dy, 1);
    return (now() - start) / calls;
}

static double sdot(sdot_t *f, int n, int calls) {
    double start = now();
    for (int i = 0; i < calls; i++) y[0] = f(n, x, 1, a, 1);
    return (now() - start) / calls;
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: calls LIBRARY OTHER\n"), 2;
    void *library[2];
    for (int k = 0; k < 2; k++) {
        double start = now();
        library[k] = dlopen(argv[k + 1], RTLD_NOW | RTLD_LOCAL);
        if (!library[k]) return fprintf(stderr, "%s\n", dlerror()), 1;
        printf("dlopen of %s: %.2f ms\n", argv[k + 1], (now() - start) / 1e6);
    }
    for (int i = 0; i < MOST * MOST; i++) a[i] = (float)(i % 97) / 97, da[i] = a[i];
    for (int i = 0; i < MOST; i++) x[i] = (float)(i % 89) / 89, dx[i] = x[i];
    printf("%-8s %4s %7s %5s %4s %10s %10s\n", "", "n", "layout", "alpha", "beta", "ours/ns", "other/ns");
    int sizes[] = {2, 8, 64, 256};
    for (int s = 0; s < 4; s++)
        for (int layout = 101; layout <= 102; layout++)
            for (int scaled = 0; scaled < 2; scaled++) {
                int n = sizes[s], calls = n > 64 ? 20 : 200;
                float alpha = scaled ? 0.5f : 1, beta = scaled ? 0.25f : 0;
                const char *order = layout == 101 ? "rows" : "columns";
                double least[2] = {1e30, 1e30}, dleast[2] = {1e30, 1e30};
                for (int round = 0; round < ROUNDS; round++)
                    for (int k = 0; k < 2; k++) {
                        double t = sgemv((sgemv_t *)symbol(library[k], "cblas_sgemv"), layout, n, alpha, beta, calls);
                        if (t < least[k]) least[k] = t;
                        t = dgemv((dgemv_t *)symbol(library[k], "cblas_dgemv"), layout, n, alpha, beta, calls);
                        if (t < dleast[k]) dleast[k] = t;
                    }
                printf("%-8s %4d %7s %5g %4g %10.1f %10.1f\n", "sgemv", n, order, alpha, beta, least[0], least[1]);
                printf("%-8s %4d %7s %5g %4g %10.1f %10.1f\n", "dgemv", n, order, alpha, beta, dleast[0], dleast[1]);
            }
    for (int n = 2; n <= MOST; n *= 8) {
        double least[2] = {1e30, 1e30};
        for (int round = 0; round < ROUNDS; round++)
            for (int k = 0; k < 2; k++) {
                double t = sdot((sdot_t *)symbol(library[k], "cblas_sdot"), n, 200);
                if (t < least[k]) least[k] = t;
            }
        printf("%-8s %4d %7s %5s %4s %10.1f %10.1f\n", "sdot", n, "", "", "", least[0], least[1]);
    }
    return 0;
}
