/* A product in the program's memory, and a matrix that stays on the device.
 * cc quickstart.c $(pkg-config --cflags --libs gemv) */
#include <gemv.h>
#include <stdio.h>

static int failed(gemv_status status) {
    if (status != GEMV_OK) fprintf(stderr, "%s\n", gemv_last_error());
    return status != GEMV_OK;
}

int main(int argc, char **argv) {
    gemv_device *device;
    if (failed(gemv_device_open(argc > 1 ? argv[1] : NULL, &device))) return 1;

    double a[] = {1, 2, 3, 4, 5, 6}, x[] = {1, 0, -1}, y[2];
    gemv_array A = gemv_matrix_of(a, GEMV_F64, 2, 3), X = gemv_vector_of(x, GEMV_F64, 3), Y = gemv_vector_of(y, GEMV_F64, 2);
    if (failed(gemv_mv(device, NULL, &A, &X, NULL, &Y))) return 1;
    printf("A x = %g %g\n", y[0], y[1]);

    /* Uploaded once, used many times; the transposed matrix is no copy. */
    gemv_matrix *matrix;
    gemv_array resident;
    if (failed(gemv_matrix_upload(device, &A, &matrix)) || failed(gemv_matrix_array(matrix, &resident))) return 1;
    resident = gemv_transposed(resident);
    if (failed(gemv_mv(device, NULL, &resident, &Y, NULL, &X))) return 1;
    printf("on %s: A' A x = %g %g %g\n", gemv_device_id(device), x[0], x[1], x[2]);
    gemv_matrix_free(matrix);
    gemv_device_free(device);
    return 0;
}
