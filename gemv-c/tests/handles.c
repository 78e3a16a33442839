/* Calls every function of gemv.h: products of every type, layout and place beside the device "reference", and what is wrong
 * one by one. It is C11 and C++17.
 *
 *   handles [device]     "cpu" by default */
#ifndef __cplusplus
#define _POSIX_C_SOURCE 200809L
#endif
#include <gemv.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int checks;

#define CHECK(what) do { checks++; if (!(what)) { \
    fprintf(stderr, "line %d: %s; %s\n", __LINE__, #what, gemv_last_error()); exit(1); } } while (0)
#define OK(call) CHECK((call) == GEMV_OK)

static const size_t BYTES[] = {4, 8, 2, 2, 8, 16};

static uint64_t state = 88172645463325252u;
static uint32_t noise(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* Random entries in [-1, 1), multiples of 2^-6, as bits of the type: each is exact in all of them. */
static void fill(void *data, unsigned dtype, size_t count) {
    size_t parts = dtype >= GEMV_C64 ? 2 : 1;
    for (size_t i = 0; i < count * parts; i++) {
        float value = (float)((int)(noise() % 128) - 64) / 64;
        if (dtype == GEMV_F32 || dtype == GEMV_C64) ((float *)data)[i] = value;
        if (dtype == GEMV_F64 || dtype == GEMV_C128) ((double *)data)[i] = value;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if (dtype == GEMV_BF16) ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        if (dtype == GEMV_F16)
            ((uint16_t *)data)[i] = (uint16_t)(value == 0 ? 0 : (bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023));
    }
}

static void *noise_of(unsigned dtype, size_t count) {
    void *data = malloc(count * BYTES[dtype] + 1);
    fill(data, dtype, count);
    return data;
}

/* Factors of the type in which sums are kept. */
static const float SINGLE[4] = {0.5f, 0.25f, -2, 0.125f};
static const double DOUBLE[4] = {0.5, 0.25, -2, 0.125};
static const void *factor(unsigned dtype, int which) {
    int is_double = dtype == GEMV_F64 || dtype == GEMV_C128;
    return is_double ? (const void *)&DOUBLE[2 * which] : (const void *)&SINGLE[2 * which];
}

static gemv_device *device, *reference;

/* The product on both devices, from the program's memory and from matrices. */
static void compare(gemv_array a, gemv_array x, gemv_array y, size_t in_y, int columns) {
    gemv_status (*product)(const gemv_device *, const void *, const gemv_array *, const gemv_array *, const void *,
                           const gemv_array *) = columns ? gemv_mm : gemv_mv;
    size_t bytes = in_y * BYTES[y.dtype];
    char *before = (char *)malloc(bytes), *expected = (char *)malloc(bytes), *found = (char *)malloc(bytes);
    memcpy(before, y.data, bytes);
    for (int scaled = 0; scaled < 2; scaled++) {
        const void *alpha = scaled ? factor(x.dtype, 0) : NULL, *beta = scaled ? factor(x.dtype, 1) : NULL;
        memcpy(y.data, before, bytes);
        OK(product(reference, alpha, &a, &x, beta, &y));
        memcpy(expected, y.data, bytes);
        memcpy(y.data, before, bytes);
        OK(product(device, alpha, &a, &x, beta, &y));
        CHECK(memcmp(y.data, expected, bytes) == 0);
        /* A and x on the device, y in the program's memory. */
        gemv_matrix *on[3];
        gemv_array there[3];
        memcpy(y.data, before, bytes);
        OK(gemv_matrix_upload(device, &a, &on[0]));
        OK(gemv_matrix_upload(device, &x, &on[1]));
        OK(gemv_matrix_upload(device, &y, &on[2]));
        for (int k = 0; k < 3; k++) OK(gemv_matrix_array(on[k], &there[k]));
        there[0].flags |= a.flags & GEMV_CONJUGATED;
        OK(product(device, alpha, &there[0], &there[1], beta, &y));
        CHECK(memcmp(y.data, expected, bytes) == 0);
        /* All three. */
        memcpy(y.data, before, bytes);
        OK(product(device, alpha, &there[0], &there[1], beta, &there[2]));
        OK(gemv_download(device, &there[2], &y));
        CHECK(memcmp(y.data, expected, bytes) == 0);
        for (int k = 0; k < 3; k++) gemv_matrix_free(on[k]);
    }
    memcpy(y.data, before, bytes);
    free(before), free(expected), free(found);
}

static gemv_array steps(gemv_array array, int64_t offset, int64_t s0, int64_t s1) {
    array.offset = offset, array.stride[0] = s0, array.stride[1] = s1;
    return array;
}

static void products(void) {
    const unsigned types[][2] = {{GEMV_F32, GEMV_F32}, {GEMV_F64, GEMV_F64}, {GEMV_F16, GEMV_F16}, {GEMV_BF16, GEMV_BF16},
                                 {GEMV_C64, GEMV_C64}, {GEMV_C128, GEMV_C128}, {GEMV_F16, GEMV_F32}, {GEMV_BF16, GEMV_F32},
                                 {GEMV_F32, GEMV_F64}};
    const int64_t shapes[][2] = {{1, 1}, {3, 5}, {17, 300}, {64, 64}, {2, 1000}};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            gemv_dtype of_a = (gemv_dtype)types[t][0], of_x = (gemv_dtype)types[t][1];
            int64_t m = shapes[s][0], n = shapes[s][1], k = 3, b = 2;
            void *a = noise_of(of_a, (size_t)(4 * m * n)), *x = noise_of(of_x, (size_t)(4 * n * k)), *y = noise_of(of_x, (size_t)(4 * m * k));
            gemv_array A = gemv_matrix_of(a, of_a, m, n), X = gemv_vector_of(x, of_x, n), Y = gemv_vector_of(y, of_x, m);
            size_t in_y = (size_t)(2 * m);
            compare(A, X, Y, in_y, 0);
            compare(gemv_columns_of(a, of_a, m, n, m), X, Y, in_y, 0);
            compare(gemv_transposed(gemv_matrix_of(a, of_a, n, m)), X, Y, in_y, 0);
            /* Padded rows, backwards; steps in x and y, from the end. */
            compare(steps(A, (m - 1) * (n + 2) + n - 1, -(n + 2), -1), steps(X, 2 * (n - 1), -2, 0), steps(Y, m - 1, -1, 0), in_y, 0);
            compare(steps(A, 1, 2 * n, 2), X, steps(Y, 1, 2, 0), in_y, 0);
            /* One row for all, and one entry of x. */
            compare(steps(A, 0, 0, 1), steps(X, 0, 0, 0), Y, in_y, 0);
            A.flags = GEMV_CONJUGATED | GEMV_READ_ONLY;
            compare(A, X, Y, in_y, 0);
            A.flags = 0;
            gemv_array XK = gemv_matrix_of(x, of_x, n, k), YK = gemv_matrix_of(y, of_x, m, k);
            compare(A, XK, YK, (size_t)(m * k), 1);
            compare(A, gemv_columns_of(x, of_x, n, k, n), gemv_columns_of(y, of_x, m, k, m + 1), (size_t)(3 * (m + 1)), 1);
            gemv_array AB = {a, 0, {b, m, n}, {m * n, n, 1}, 3, of_a, 0, 0}, XB = {x, 0, {b, n, 1}, {n, 1, 0}, 2, of_x, 0, 0},
                       YB = {y, 0, {b, m, 1}, {m, 1, 0}, 2, of_x, 0, 0}, XBK = {x, 0, {b, n, k}, {0, k, 1}, 3, of_x, 0, 0},
                       YBK = {y, 0, {b, m, k}, {m * k, k, 1}, 3, of_x, 0, 0};
            compare(AB, XB, YB, (size_t)(b * m), 0);
            compare(AB, XBK, YBK, (size_t)(b * m * k), 1);
            free(a), free(x), free(y);
        }
}

/* A column of a matrix on the device is written, and nothing else of it. */
static void windows(void) {
    int64_t dim[2] = {3, 4};
    gemv_matrix *basis;
    gemv_array all, column, a, x;
    float ones[] = {1, 1, 1, 1, 1, 1}, found[12];
    OK(gemv_matrix_zeros(device, GEMV_F32, 2, dim, &basis));
    OK(gemv_matrix_array(basis, &all));
    CHECK(all.dim[0] == 3 && all.dim[1] == 4 && all.stride[1] == 1 && all.data == (void *)basis);
    column = all;
    column.ndim = 1, column.dim[0] = 3, column.stride[0] = all.stride[0], column.offset = all.offset + 2;
    a = gemv_matrix_of(ones, GEMV_F32, 3, 2), x = gemv_vector_of(ones, GEMV_F32, 2);
    OK(gemv_mv(device, NULL, &a, &x, NULL, &column));
    gemv_array back = gemv_matrix_of(found, GEMV_F32, 3, 4);
    OK(gemv_download(device, &all, &back));
    for (int i = 0; i < 12; i++) CHECK(found[i] == (i % 4 == 2 ? 2 : 0));
    /* From one column to another of one block: x is read as it was. */
    gemv_array next = column;
    next.offset++;
    gemv_array square = gemv_matrix_of(ones, GEMV_F32, 1, 3), first = next;
    first.dim[0] = 1;
    OK(gemv_mv(device, NULL, &square, &column, NULL, &first));
    OK(gemv_download(device, &all, &back));
    CHECK(found[2] == 2 && found[3] == 6 && found[7] == 0);
    OK(gemv_device_reserve(device, &all, 1));
    OK(gemv_device_synchronize(device));
    /* Beyond the block, and of another type. */
    column.offset = 12;
    CHECK(gemv_mv(device, NULL, &a, &x, NULL, &column) == GEMV_ERROR_ARGUMENT);
    all.dtype = GEMV_F64;
    CHECK(gemv_download(device, &all, &back) == GEMV_ERROR_ARGUMENT);
    /* On another device. */
    OK(gemv_matrix_array(basis, &all));
    gemv_array y = gemv_vector_of(found, GEMV_F32, 3), four = gemv_vector_of(ones, GEMV_F32, 4);
    if (strcmp(gemv_device_id(device), "reference") != 0)
        CHECK(gemv_mv(reference, NULL, &all, &four, NULL, &y) == GEMV_ERROR_ARGUMENT);
    gemv_matrix_free(basis);
    gemv_matrix_free(NULL);
}

static void errors(void) {
    double a[6] = {1, 2, 3, 4, 5, 6}, x[3] = {1, 1, 1}, y[2] = {7, 7}, zero = 0;
    gemv_array A = gemv_matrix_of(a, GEMV_F64, 2, 3), X = gemv_vector_of(x, GEMV_F64, 3), Y = gemv_vector_of(y, GEMV_F64, 2), bad;
    gemv_device *none;
    gemv_matrix *no_matrix;
    int64_t dim[2] = {2, 3};
#define FAILS(with, call) do { CHECK((call) == GEMV_ERROR_##with && gemv_last_error()[0] != 0); \
    CHECK(y[0] == 7 && y[1] == 7); } while (0)
#define BAD(of, with, change) do { bad = of; bad.change; const gemv_array *all[3] = {&A, &X, &Y}; \
    for (int k = 0; k < 3; k++) if (all[k] == &of) all[k] = &bad; \
    FAILS(with, gemv_mv(device, NULL, all[0], all[1], NULL, all[2])); } while (0)
    FAILS(NO_DEVICE, gemv_device_open("abacus:3", &none));
    CHECK(strstr(gemv_last_error(), "abacus:3") != NULL);
    FAILS(ARGUMENT, gemv_device_open("cpu", NULL));
    FAILS(ARGUMENT, gemv_mv(NULL, NULL, &A, &X, NULL, &Y));
    FAILS(ARGUMENT, gemv_mv(device, NULL, NULL, &X, NULL, &Y));
    FAILS(ARGUMENT, gemv_mv(device, NULL, &A, NULL, NULL, &Y));
    FAILS(ARGUMENT, gemv_mv(device, NULL, &A, &X, NULL, NULL));
    BAD(A, ARGUMENT, data = NULL);
    BAD(X, ARGUMENT, data = NULL);
    BAD(Y, ARGUMENT, data = NULL);
    BAD(A, ARGUMENT, data = (char *)a + 1);
    BAD(Y, ARGUMENT, data = (char *)y + 4);
    BAD(A, ARGUMENT, offset = -1);
    BAD(A, ARGUMENT, offset = INT64_MAX);
    BAD(A, ARGUMENT, dim[0] = -2);
    BAD(A, ARGUMENT, dim[1] = INT64_MAX);
    BAD(A, ARGUMENT, stride[0] = INT64_MAX);
    BAD(A, ARGUMENT, stride[0] = INT64_MIN);
    BAD(A, ARGUMENT, stride[0] = -3);
    BAD(A, ARGUMENT, ndim = 1);
    BAD(A, ARGUMENT, ndim = 4);
    BAD(X, ARGUMENT, ndim = 2);
    BAD(A, ARGUMENT, dtype = 6);
    BAD(A, ARGUMENT, dtype = GEMV_C128);
    BAD(Y, ARGUMENT, dtype = GEMV_F32);
    BAD(A, ARGUMENT, flags = 16);
    BAD(A, ARGUMENT, flags = GEMV_RESIDENT | GEMV_DEVICE);
    BAD(A, ARGUMENT, reserved = 1);
    BAD(X, ARGUMENT, flags = GEMV_CONJUGATED);
    BAD(Y, ARGUMENT, flags = GEMV_READ_ONLY);
    BAD(Y, ARGUMENT, stride[0] = 0);
    BAD(A, SHAPE, dim[0] = 1);
    BAD(A, SHAPE, dim[1] = 2);
    BAD(X, SHAPE, dim[0] = 2);
    BAD(Y, SHAPE, dim[0] = 1);
    FAILS(ARGUMENT, gemv_mm(device, NULL, &A, &X, NULL, &Y));
    FAILS(ARGUMENT, gemv_matrix_upload(device, NULL, &no_matrix));
    FAILS(ARGUMENT, gemv_matrix_upload(NULL, &A, &no_matrix));
    FAILS(ARGUMENT, gemv_matrix_upload(device, &A, NULL));
    FAILS(ARGUMENT, gemv_matrix_zeros(device, 9, 2, dim, &no_matrix));
    FAILS(ARGUMENT, gemv_matrix_zeros(device, GEMV_F32, 4, dim, &no_matrix));
    FAILS(ARGUMENT, gemv_matrix_zeros(device, GEMV_F32, 2, NULL, &no_matrix));
    dim[0] = -1;
    FAILS(ARGUMENT, gemv_matrix_zeros(device, GEMV_F32, 2, dim, &no_matrix));
    dim[0] = INT64_C(1) << 61;
    FAILS(OUT_OF_MEMORY, gemv_matrix_zeros(device, GEMV_F32, 2, dim, &no_matrix));
    FAILS(ARGUMENT, gemv_matrix_array(NULL, &bad));
    bad = gemv_vector_of(y, GEMV_F64, 2);
    FAILS(ARGUMENT, gemv_download(device, NULL, &bad));
    FAILS(ARGUMENT, gemv_download(device, &X, &bad));
    FAILS(ARGUMENT, gemv_device_synchronize(NULL));
    FAILS(ARGUMENT, gemv_device_reserve(device, &X, 1));
    FAILS(ARGUMENT, gemv_device_reserve(device, &A, -1));
    FAILS(ARGUMENT, gemv_devices((char *)y, 1, NULL));
    /* The CPU takes no memory and no event of others. */
    if (strcmp(gemv_device_id(device), "cpu") == 0) {
        BAD(A, DEVICE, flags = GEMV_DEVICE);
        BAD(Y, DEVICE, flags = GEMV_DEVICE);
        FAILS(DEVICE, gemv_device_wait_for(device, y));
        FAILS(DEVICE, gemv_device_record_event(device, y));
    }
    CHECK(gemv_device_on_queue(NULL, &none) != GEMV_OK && gemv_device_on_stream(99, NULL, &none) != GEMV_OK);
    FAILS(ARGUMENT, gemv_device_on_stream(-1, NULL, &none));
    CHECK(strcmp(gemv_status_name(GEMV_ERROR_SHAPE), "shapes that do not fit") == 0);
    CHECK(gemv_device_id(NULL)[0] == 0);
    gemv_device_free(NULL);
    /* alpha = 0 reads neither A nor x, beta = 0 not y. */
    double nan = zero / zero;
    for (int i = 0; i < 6; i++) a[i] = nan;
    y[0] = y[1] = nan;
    OK(gemv_mv(device, &zero, &A, &X, &zero, &Y));
    CHECK(y[0] == 0 && y[1] == 0);
    /* Without columns the sum is 0; without rows nothing is written. */
    y[0] = 7;
    A.dim[1] = 0, X.dim[0] = 0, A.data = X.data = NULL;
    OK(gemv_mv(device, NULL, &A, &X, NULL, &Y));
    CHECK(y[0] == 0);
    A.dim[0] = 0, Y.dim[0] = 0, Y.data = NULL;
    OK(gemv_mv(device, NULL, &A, &X, NULL, &Y));
}

static void *in_a_thread(void *unused) {
    (void)unused;
    gemv_device *none;
    CHECK(gemv_last_error()[0] == 0); /* those of other threads are not seen */
    CHECK(gemv_device_open("thread:0", &none) == GEMV_ERROR_NO_DEVICE);
    CHECK(strstr(gemv_last_error(), "thread:0") != NULL);
    enum { N = 1200 };
    float *a = (float *)noise_of(GEMV_F32, (size_t)N * N), *x = (float *)noise_of(GEMV_F32, N), y[N], z[N];
    gemv_array A = gemv_matrix_of(a, GEMV_F32, N, N), X = gemv_vector_of(x, GEMV_F32, N), Y = gemv_vector_of(y, GEMV_F32, N), Z = gemv_vector_of(z, GEMV_F32, N);
    gemv_array columns = gemv_transposed(A);
    OK(gemv_mv(device, NULL, &A, &X, NULL, &Y));
    for (int round = 0; round < 5; round++) {
        OK(gemv_mv(device, NULL, &A, &X, NULL, &Z));
        CHECK(memcmp(y, z, sizeof y) == 0);
        OK(gemv_mv(device, NULL, &columns, &X, NULL, &Z));
    }
    free(a), free(x);
    return NULL;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "cpu";
    CHECK(gemv_version() == (GEMV_VERSION_MAJOR << 16 | GEMV_VERSION_MINOR << 8 | GEMV_VERSION_PATCH));
    CHECK(gemv_order_version() == 1);
    OK(gemv_device_open(name, &device));
    OK(gemv_device_open("reference", &reference));
    CHECK(strcmp(gemv_device_id(reference), "reference") == 0);
    size_t needed = 0;
    OK(gemv_devices(NULL, 0, &needed));
    char *text = (char *)malloc(needed);
    OK(gemv_devices(text, needed, NULL));
    CHECK(strlen(text) + 1 == needed && strstr(text, "cpu\n") != NULL);
    free(text);
    pthread_t threads[3];
    for (int k = 0; k < 3; k++) CHECK(pthread_create(&threads[k], NULL, in_a_thread, NULL) == 0);
    for (int k = 0; k < 3; k++) pthread_join(threads[k], NULL);
    products();
    windows();
    errors();
    if (strcmp(gemv_device_id(device), "cpu") == 0) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            windows();
            _exit(0);
        }
        int status = 1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    gemv_device_free(device), gemv_device_free(reference);
    printf("%d checks on %s\n", checks, name);
    return 0;
}
