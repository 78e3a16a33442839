/* Packed matrices by gemv.h: the bits of the dequantised matrix in every format and place, files of weights, and what is wrong
 * one by one. It is C11 and C++17.
 *
 *   packed [device [format]]     "cpu" and every format by default */
#ifndef __cplusplus
#define _XOPEN_SOURCE 700
#endif
#include <gemv.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int checks;

#define CHECK(what) do { checks++; if (!(what)) { \
    fprintf(stderr, "line %d: %s; %s\n", __LINE__, #what, gemv_last_error()); exit(1); } } while (0)
#define OK(call) CHECK((call) == GEMV_OK)
#define FAILS(with, call, word) do { CHECK((call) == GEMV_ERROR_##with); CHECK(strstr(gemv_last_error(), word) != NULL); } while (0)

enum { M = 7, N = 512, K = 3 };

static gemv_device *device, *reference;

static uint32_t noise(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* Random numbers, multiples of 2^-6 below 1, as bits of the type: each is exact in all three. */
static void fill(void *data, unsigned dtype, int count) {
    for (int i = 0; i < count; i++) {
        float value = (float)(1 + (int)(noise() % 63)) / 64 * (noise() % 2 ? 1.0f : -1.0f);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if (dtype == GEMV_F32) ((float *)data)[i] = value;
        if (dtype == GEMV_BF16) ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        if (dtype == GEMV_F16)
            ((uint16_t *)data)[i] = (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023));
    }
}

static size_t bytes_of(unsigned dtype) { return dtype == GEMV_F32 ? 4 : 2; }

/* A product on a device with y in the program's memory, and with x and y on the device: the bytes of y. */
static void same(const gemv_device *on, const gemv_packed *a, gemv_array x, gemv_array y, size_t in_y, int columns, const void *expected,
                 const void *before) {
    const float alpha = -1.5f, beta = 0.5f;
    gemv_status (*product)(const gemv_device *, const void *, const gemv_packed *, const gemv_array *, const void *,
                           const gemv_array *) = columns ? gemv_packed_mm : gemv_packed_mv;
    memcpy(y.data, before, in_y);
    OK(product(on, &alpha, a, &x, &beta, &y));
    CHECK(memcmp(y.data, expected, in_y) == 0);
    memcpy(y.data, before, in_y);
    gemv_matrix *there[2];
    gemv_array of[2];
    OK(gemv_matrix_upload(on, &x, &there[0]));
    OK(gemv_matrix_upload(on, &y, &there[1]));
    for (int k = 0; k < 2; k++) OK(gemv_matrix_array(there[k], &of[k]));
    OK(product(on, &alpha, a, &of[0], &beta, &of[1]));
    memset(y.data, 0, in_y);
    OK(gemv_download(on, &of[1], &y));
    CHECK(memcmp(y.data, expected, in_y) == 0);
    for (int k = 0; k < 2; k++) gemv_matrix_free(there[k]);
}

static void products(const char *format) {
    static float weights[M * N], dequantised[M * N], by_columns[M * N];
    const float alpha = -1.5f, beta = 0.5f;
    fill(weights, GEMV_F32, M * N);
    gemv_array from = gemv_matrix_of(weights, GEMV_F32, M, N), to = gemv_matrix_of(dequantised, GEMV_F32, M, N);
    gemv_array turned = gemv_columns_of(by_columns, GEMV_F32, M, N, M);
    gemv_packed *rounded, *packed, *there, *at_reference, *rows;
    const void *blocks;
    size_t size;
    int64_t m, n;
    OK(gemv_packed_quantize(format, &from, &rounded));
    OK(gemv_packed_blocks(rounded, &blocks, &size));
    void *copy = malloc(size);
    memcpy(copy, blocks, size);
    OK(gemv_packed_create(format, M, N, copy, size, &packed));
    OK(gemv_packed_shape(packed, &m, &n));
    CHECK(m == M && n == N && strcmp(gemv_packed_format(packed), format) == 0);
    OK(gemv_packed_dequantize(packed, &to));
    OK(gemv_packed_dequantize(rounded, &turned));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) CHECK(dequantised[i * N + j] == by_columns[i + j * M]);
    OK(gemv_packed_upload(device, packed, &there));
    OK(gemv_packed_upload(reference, packed, &at_reference));
    const unsigned types[] = {GEMV_F32, GEMV_F16, GEMV_BF16};
    for (int t = 0; t < 3; t++) {
        gemv_dtype type = (gemv_dtype)types[t];
        size_t bytes = bytes_of(type);
        char *x = (char *)malloc(2 * N * K * bytes), *y = (char *)malloc(M * K * bytes), *before = (char *)malloc(M * K * bytes),
             *expected = (char *)malloc(M * K * bytes);
        fill(x, type, 2 * N * K), fill(before, type, M * K);
        gemv_array columns = gemv_matrix_of(x, type, N, K), results = gemv_matrix_of(y, type, M, K);
        gemv_array steps = gemv_columns_of(x, type, N, K, 2 * N);
        steps.stride[0] = 2;
        for (int way = 0; way < 3; way++) {
            int single = way == 2;
            gemv_array X = way == 0 ? columns : steps, Y = results;
            if (single) X = gemv_vector_of(x, type, N), Y = gemv_vector_of(y, type, M);
            size_t in_y = M * (single ? 1 : K) * bytes;
            memcpy(y, before, in_y);
            if (type == GEMV_F32) OK((single ? gemv_mv : gemv_mm)(reference, &alpha, &to, &X, &beta, &Y));
            else OK((single ? gemv_packed_mv : gemv_packed_mm)(reference, &alpha, at_reference, &X, &beta, &Y));
            memcpy(expected, y, in_y);
            same(device, packed, X, Y, in_y, !single, expected, before);
            same(device, there, X, Y, in_y, !single, expected, before);
            same(reference, at_reference, X, Y, in_y, !single, expected, before);
        }
        /* Rows of it, without factors. */
        gemv_array X = gemv_vector_of(x, type, N), Y = gemv_vector_of(y, type, M);
        OK(gemv_packed_mv(device, NULL, there, &X, NULL, &Y));
        memcpy(expected, y, M * bytes);
        for (int which = 0; which < 2; which++) {
            OK(gemv_packed_rows(which ? there : packed, 2, 4, &rows));
            OK(gemv_packed_shape(rows, &m, NULL));
            CHECK(m == 4);
            memset(y, 0xff, M * bytes);
            Y.dim[0] = 4;
            OK(gemv_packed_mv(device, NULL, rows, &X, NULL, &Y));
            CHECK(memcmp(y, expected + 2 * bytes, 4 * bytes) == 0);
            gemv_packed_free(rows);
        }
        free(x), free(y), free(before), free(expected);
    }
    gemv_packed_free(rounded), gemv_packed_free(packed), gemv_packed_free(there), gemv_packed_free(at_reference), free(copy);
}

/* A file of safetensors: numbers, MXFP4, and NVFP4 with a scale of its own. */
static void files(void) {
    char path[] = P_tmpdir "/gemv-packed-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0);
    const char *header =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"n.weight_packed\":{\"dtype\":\"U8\",\"shape\":[1,32],\"data_offsets\":[24,56]},"
        "\"n.weight_scale\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,4],\"data_offsets\":[56,60]},"
        "\"n.weight_global_scale\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[60,64]},"
        "\"x.weight_packed\":{\"dtype\":\"U8\",\"shape\":[1,16],\"data_offsets\":[64,80]},"
        "\"x.weight_scale\":{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[80,81]}}   ";
    uint64_t length = strlen(header);
    float numbers[6] = {1, 2, 3, 4, 5, 6}, scale = 4;
    unsigned char bytes[81], one = 0x22; /* codes of 1 */
    memset(bytes, one, sizeof bytes);
    memcpy(bytes, numbers, 24), memset(bytes + 56, 0x38, 4), memcpy(bytes + 60, &scale, 4), bytes[80] = 128; /* scales of 1; of 2 */
    CHECK(write(file, &length, 8) == 8 && write(file, header, length) == (ssize_t)length && write(file, bytes, 81) == 81);
    close(file);
    gemv_weights *weights, *none;
    gemv_packed *packed;
    gemv_array a, array;
    float alpha = 7, x[64], y[2];
    for (int i = 0; i < 64; i++) x[i] = 1;
    FAILS(ARGUMENT, gemv_weights_open("gemv-no-such-file", 1, &none), "gemv-no-such-file");
    FAILS(ARGUMENT, gemv_weights_open(NULL, 1, &none), "path");
    FAILS(ARGUMENT, gemv_weights_open(path, 1, NULL), "place");
    OK(gemv_weights_open(path, 1, &weights));
    size_t needed;
    char text[400];
    OK(gemv_weights_tensors(weights, NULL, 0, &needed));
    FAILS(ARGUMENT, gemv_weights_tensors(weights, text, 10, NULL), "10");
    OK(gemv_weights_tensors(weights, text, sizeof text, NULL));
    CHECK(strlen(text) + 1 == needed && strstr(text, "a\tf32\t2 3\n") && strstr(text, "n.weight_scale\tF8_E4M3\t1 4\n"));
    OK(gemv_weights_array(weights, "a", &a));
    CHECK(a.ndim == 2 && a.dim[0] == 2 && a.dim[1] == 3 && a.flags == GEMV_READ_ONLY && a.dtype == GEMV_F32);
    gemv_array X = gemv_vector_of(x, GEMV_F32, 3), Y = gemv_vector_of(y, GEMV_F32, 2);
    OK(gemv_mv(device, NULL, &a, &X, NULL, &Y));
    CHECK(y[0] == 6 && y[1] == 15);
    FAILS(ARGUMENT, gemv_weights_array(weights, "b", &array), "b");
    FAILS(ARGUMENT, gemv_weights_array(weights, "x.weight_packed", &array), "U8");
    FAILS(ARGUMENT, gemv_weights_array(weights, "a", NULL), "place");
    FAILS(ARGUMENT, gemv_weights_packed(weights, "a", &packed, &alpha), "gemv_weights_array");
    FAILS(ARGUMENT, gemv_weights_packed(weights, "n", &packed, NULL), "factor of 0.25");
    FAILS(ARGUMENT, gemv_weights_packed(weights, "n", NULL, &alpha), "place");
    CHECK(alpha == 7);
    OK(gemv_weights_packed(weights, "n", &packed, &alpha));
    CHECK(alpha == 0.25f && strcmp(gemv_packed_format(packed), "nvfp4") == 0);
    gemv_packed *other;
    OK(gemv_weights_packed(weights, "x.weight", &other, NULL));
    gemv_weights_free(weights), gemv_weights_free(NULL);
    /* They keep the file. */
    X.dim[0] = 64, Y.dim[0] = 1;
    OK(gemv_packed_mv(device, &alpha, packed, &X, NULL, &Y));
    CHECK(y[0] == 16);
    X.dim[0] = 32;
    OK(gemv_packed_mv(device, NULL, other, &X, NULL, &Y));
    CHECK(y[0] == 64);
    gemv_packed_free(packed), gemv_packed_free(other);
    unlink(path);
}

static void errors(void) {
    static float weights[2 * 64];
    static unsigned char blocks[4 * 34];
    float x[64], y[2] = {7, 7};
    double wide[64], of_wide[2];
    fill(weights, GEMV_F32, 128), fill(x, GEMV_F32, 64);
    gemv_array W = gemv_matrix_of(weights, GEMV_F32, 2, 64), X = gemv_vector_of(x, GEMV_F32, 64), Y = gemv_vector_of(y, GEMV_F32, 2), bad;
    gemv_packed *packed, *there, *none;
    OK(gemv_packed_create("q8_0", 2, 64, blocks, sizeof blocks, &packed));
    FAILS(ARGUMENT, gemv_packed_create("q4_1", 2, 64, blocks, sizeof blocks, &none), "q8_0, q4_0");
    FAILS(ARGUMENT, gemv_packed_create(NULL, 2, 64, blocks, sizeof blocks, &none), "format");
    FAILS(ARGUMENT, gemv_packed_create("q8_0", 3, 64, blocks, sizeof blocks, &none), "204");
    FAILS(ARGUMENT, gemv_packed_create("q8_0", 2, 60, blocks, sizeof blocks, &none), "row of 60");
    FAILS(ARGUMENT, gemv_packed_create("q8_0", -2, 64, blocks, sizeof blocks, &none), "rows");
    FAILS(ARGUMENT, gemv_packed_create("q8_0", INT64_MAX, 64, blocks, sizeof blocks, &none), "addressed");
    FAILS(ARGUMENT, gemv_packed_create("q8_0", 2, 64, NULL, sizeof blocks, &none), "null");
    FAILS(ARGUMENT, gemv_packed_create("q8_0", 2, 64, blocks, SIZE_MAX, &none), "address space");
    FAILS(ARGUMENT, gemv_packed_create("q8_0", 2, 64, blocks, sizeof blocks, NULL), "place");
    FAILS(ARGUMENT, gemv_packed_quantize("q8_0", NULL, &none), "null");
    FAILS(ARGUMENT, gemv_packed_quantize("q8_0", &X, &none), "axes");
    bad = W, bad.dim[1] = 60;
    FAILS(ARGUMENT, gemv_packed_quantize("q8_0", &bad, &none), "row of 60");
    bad = W, bad.dtype = GEMV_F16;
    FAILS(ARGUMENT, gemv_packed_quantize("q8_0", &bad, &none), "f16");
    weights[5] = 1e9f;
    FAILS(ARGUMENT, gemv_packed_quantize("q8_0", &W, &none), "too large");
    FAILS(ARGUMENT, gemv_packed_upload(NULL, packed, &none), "device");
    FAILS(ARGUMENT, gemv_packed_upload(device, NULL, &none), "null");
    FAILS(ARGUMENT, gemv_packed_upload(device, packed, NULL), "place");
    FAILS(ARGUMENT, gemv_packed_rows(packed, 1, 2, &none), "has 2");
    FAILS(ARGUMENT, gemv_packed_rows(packed, -1, 1, &none), "negative");
    FAILS(ARGUMENT, gemv_packed_rows(packed, INT64_MAX, INT64_MAX, &none), "has 2");
    FAILS(ARGUMENT, gemv_packed_rows(NULL, 0, 1, &none), "null");
    FAILS(ARGUMENT, gemv_packed_shape(NULL, NULL, NULL), "null");
    FAILS(ARGUMENT, gemv_packed_blocks(NULL, NULL, NULL), "null");
    CHECK(gemv_packed_format(NULL)[0] == 0);
    FAILS(ARGUMENT, gemv_packed_dequantize(packed, NULL), "null");
    bad = W, bad.dim[0] = 1;
    FAILS(ARGUMENT, gemv_packed_dequantize(packed, &bad), "2 × 64");
    bad = W, bad.flags = GEMV_READ_ONLY;
    FAILS(ARGUMENT, gemv_packed_dequantize(packed, &bad), "read");
    bad = W, bad.stride[0] = 0;
    FAILS(ARGUMENT, gemv_packed_dequantize(packed, &bad), "one place");
    OK(gemv_packed_upload(device, packed, &there));
    FAILS(ARGUMENT, gemv_packed_dequantize(there, &W), "host's memory");
    FAILS(ARGUMENT, gemv_packed_blocks(there, NULL, NULL), "host's memory");
    FAILS(ARGUMENT, gemv_packed_upload(device, there, &none), "host's memory");
    /* Products. */
    FAILS(ARGUMENT, gemv_packed_mv(NULL, NULL, packed, &X, NULL, &Y), "device");
    FAILS(ARGUMENT, gemv_packed_mv(device, NULL, NULL, &X, NULL, &Y), "packed matrix is a null");
    FAILS(ARGUMENT, gemv_packed_mv(device, NULL, packed, NULL, NULL, &Y), "x is a null");
    FAILS(ARGUMENT, gemv_packed_mv(device, NULL, packed, &X, NULL, NULL), "y is a null");
    FAILS(ARGUMENT, gemv_packed_mm(device, NULL, packed, &X, NULL, &Y), "axes");
    bad = X, bad.dim[0] = 32;
    FAILS(SHAPE, gemv_packed_mv(device, NULL, packed, &bad, NULL, &Y), "2 × 64");
    bad = Y, bad.dim[0] = 1;
    FAILS(SHAPE, gemv_packed_mv(device, NULL, packed, &X, NULL, &bad), "2 × 64");
    gemv_array D = gemv_vector_of(wide, GEMV_F64, 64), E = gemv_vector_of(of_wide, GEMV_F64, 2);
    FAILS(ARGUMENT, gemv_packed_mv(device, NULL, packed, &D, NULL, &E), "q8_0, x of f64");
    FAILS(ARGUMENT, gemv_packed_mv(device, NULL, packed, &X, NULL, &E), "y of f64");
    bad = X, bad.flags = GEMV_CONJUGATED;
    FAILS(ARGUMENT, gemv_packed_mv(device, NULL, packed, &bad, NULL, &Y), "conjugated");
    bad = Y, bad.flags = GEMV_READ_ONLY;
    FAILS(ARGUMENT, gemv_packed_mv(device, NULL, packed, &X, NULL, &bad), "y has the flag");
    bad = Y, bad.stride[0] = 0;
    FAILS(ARGUMENT, gemv_packed_mv(device, NULL, packed, &X, NULL, &bad), "one place");
    if (strcmp(gemv_device_id(device), "reference") != 0) {
        gemv_matrix *elsewhere;
        gemv_array E3;
        FAILS(ARGUMENT, gemv_packed_mv(reference, NULL, there, &X, NULL, &Y), gemv_device_id(device));
        OK(gemv_matrix_upload(reference, &X, &elsewhere));
        OK(gemv_matrix_array(elsewhere, &E3));
        FAILS(ARGUMENT, gemv_packed_mv(device, NULL, there, &E3, NULL, &Y), "reference");
        gemv_matrix_free(elsewhere);
        OK(gemv_matrix_upload(reference, &Y, &elsewhere));
        OK(gemv_matrix_array(elsewhere, &E3));
        FAILS(ARGUMENT, gemv_packed_mv(device, NULL, there, &X, NULL, &E3), "reference");
        gemv_matrix_free(elsewhere);
    }
    CHECK(y[0] == 7 && y[1] == 7);
    /* With alpha = 0 no block is read, and without columns the sum is 0. */
    float zero = 0;
    memset(blocks, 0xff, sizeof blocks);
    OK(gemv_packed_mv(device, &zero, packed, &X, NULL, &Y));
    CHECK(y[0] == 0 && y[1] == 0);
    OK(gemv_packed_create("q8_0", 2, 0, NULL, 0, &none));
    X.dim[0] = 0, y[0] = 7;
    OK(gemv_packed_mv(device, NULL, none, &X, NULL, &Y));
    CHECK(y[0] == 0);
    gemv_packed_free(none), gemv_packed_free(packed), gemv_packed_free(there), gemv_packed_free(NULL);
}

int main(int argc, char **argv) {
    const char *formats[] = {"q8_0", "q4_0", "q4_k", "q6_k", "int4g32", "int4g64", "int4g128", "int4g256", "int4g32bf16",
                             "int4g64bf16", "int4g128bf16", "int4g256bf16", "fp8", "mxfp4", "nvfp4"};
    const char *name = argc > 1 ? argv[1] : "cpu";
    OK(gemv_device_open(name, &device));
    OK(gemv_device_open("reference", &reference));
    if (argc > 2) products(argv[2]);
    for (size_t k = 0; argc <= 2 && k < sizeof formats / sizeof *formats; k++) products(formats[k]);
    files();
    errors();
    gemv_device_free(device), gemv_device_free(reference);
    printf("%d checks of packed matrices on %s\n", checks, name);
    return 0;
}
