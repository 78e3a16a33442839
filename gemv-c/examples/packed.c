/* A matrix of packed weights: rounded from numbers, or of a file of GGUF or safetensors.
 * cc packed.c $(pkg-config --cflags --libs gemv)
 *
 *   packed [device [file name]]     such as: packed cuda:0 model.gguf blk.0.ffn_up.weight */
#include <gemv.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(gemv_status status) {
    if (status != GEMV_OK) fprintf(stderr, "%s\n", gemv_last_error());
    return status != GEMV_OK;
}

int main(int argc, char **argv) {
    gemv_device *device;
    if (failed(gemv_device_open(argc > 1 ? argv[1] : NULL, &device))) return 1;

    gemv_packed *packed, *resident;
    float alpha = 1; /* a factor that some files have */
    if (argc > 3) {
        gemv_weights *file;
        if (failed(gemv_weights_open(argv[2], 1, &file)) || failed(gemv_weights_packed(file, argv[3], &packed, &alpha))) return 1;
        gemv_weights_free(file); /* the matrix keeps it open */
    } else {
        static float a[4][64];
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 64; j++) a[i][j] = (float)(i + 1) * (j % 2 ? 0.5f : -1);
        gemv_array A = gemv_matrix_of(a, GEMV_F32, 4, 64);
        if (failed(gemv_packed_quantize("q4_0", &A, &packed))) return 1;
    }
    int64_t m, n;
    size_t size;
    if (failed(gemv_packed_shape(packed, &m, &n)) || failed(gemv_packed_blocks(packed, NULL, &size))) return 1;
    printf("%s, %lld x %lld: %zu bytes\n", gemv_packed_format(packed), (long long)m, (long long)n, size);

    /* Uploaded once; two vectors at once, each with the bits of its own product. */
    if (failed(gemv_packed_upload(device, packed, &resident))) return 1;
    float *x = calloc((size_t)(2 * n), sizeof *x), *y = calloc((size_t)(2 * m), sizeof *y);
    if (!x || !y) return 1;
    for (int64_t j = 0; j < n; j++) x[j] = 1, x[n + j] = j % 2 ? 1 : 0;
    gemv_array X = gemv_columns_of(x, GEMV_F32, n, 2, n), Y = gemv_columns_of(y, GEMV_F32, m, 2, m);
    if (failed(gemv_packed_mm(device, &alpha, resident, &X, NULL, &Y))) return 1;
    for (int64_t i = 0; i < m && i < 4; i++) printf("%g %g\n", y[i], y[m + i]);
    free(x), free(y);
    gemv_packed_free(resident), gemv_packed_free(packed);
    gemv_device_free(device);
    return 0;
}
