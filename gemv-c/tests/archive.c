/* All of the library in a static archive, or in a shared library: every backend is found, and the CPU computes.
 *
 * A linker takes from an archive what is named. Backends enter a list of the library's without being named; gemv_devices
 * and gemv_device_open name them. */
#include <gemv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    size_t needed = 0;
    if (gemv_devices(NULL, 0, &needed) != GEMV_OK) return puts(gemv_last_error()), 1;
    char *text = malloc(needed);
    if (!text || gemv_devices(text, needed, NULL) != GEMV_OK) return puts(gemv_last_error()), 1;
    fputs(text, stdout);
    const char *backends[] = {"cpu", "opencl", "cuda"};
    for (int k = 0; k < 3; k++)
        if (!strstr(text, backends[k])) return printf("there is no word of %s\n", backends[k]), 1;
    if (strstr(text, "built without")) return puts("a backend is missing"), 1;
    free(text);
    gemv_device *device;
    float a[] = {1, 2, 3, 4, 5, 6}, x[] = {1, 0, -1}, y[] = {7, 7};
    gemv_array A = gemv_matrix_of(a, GEMV_F32, 2, 3), X = gemv_vector_of(x, GEMV_F32, 3), Y = gemv_vector_of(y, GEMV_F32, 2);
    if (gemv_device_open("cpu", &device) || gemv_mv(device, NULL, &A, &X, NULL, &Y)) return puts(gemv_last_error()), 1;
    gemv_device_free(device);
    return y[0] == -2 && y[1] == -2 ? 0 : 1;
}
