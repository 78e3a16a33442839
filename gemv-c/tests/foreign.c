/* Products in memory of another library, on its stream or queue: this program allocates, copies and waits by the driver.
 *
 *   foreign opencl      the first device of the first platform
 *   foreign cuda        GPU 0 */
#include <gemv.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) do { if (!(what)) { \
    fprintf(stderr, "line %d: %s; %s\n", __LINE__, #what, gemv_last_error()); exit(1); } } while (0)
#define OK(call) CHECK((call) == GEMV_OK)

static void *library;
static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "there is no %s\n", name), exit(1);
    return found;
}

/* The driver's functions by their types: a handle is a pointer or a number as wide as one. */
static void *stream, *context;
static int is_cuda;

static void open_opencl(void) {
    void *platform, *device;
    int why;
    int (*platforms)(unsigned, void **, unsigned *) = (int (*)(unsigned, void **, unsigned *))symbol("clGetPlatformIDs");
    int (*devices)(void *, uint64_t, unsigned, void **, unsigned *) =
        (int (*)(void *, uint64_t, unsigned, void **, unsigned *))symbol("clGetDeviceIDs");
    void *(*create)(const intptr_t *, unsigned, void *const *, void *, void *, int *) =
        (void *(*)(const intptr_t *, unsigned, void *const *, void *, void *, int *))symbol("clCreateContext");
    void *(*queue)(void *, void *, uint64_t, int *) = (void *(*)(void *, void *, uint64_t, int *))symbol("clCreateCommandQueue");
    CHECK(platforms(1, &platform, NULL) == 0 && devices(platform, 0xffffffff, 1, &device, NULL) == 0);
    context = create(NULL, 1, &device, NULL, NULL, &why);
    CHECK(why == 0);
    stream = queue(context, device, 0, &why);
    CHECK(why == 0);
}

static void open_cuda(void) {
    int (*init)(unsigned) = (int (*)(unsigned))symbol("cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))symbol("cuDevicePrimaryCtxRetain");
    int (*enter)(void *) = (int (*)(void *))symbol("cuCtxSetCurrent");
    int (*create)(void **, unsigned) = (int (*)(void **, unsigned))symbol("cuStreamCreate");
    CHECK(init(0) == 0 && retain(&context, 0) == 0 && enter(context) == 0 && create(&stream, 1) == 0);
}

static void *allocated(size_t bytes) {
    void *memory = NULL;
    if (is_cuda) {
        int (*alloc)(void **, size_t) = (int (*)(void **, size_t))symbol("cuMemAlloc_v2");
        CHECK(alloc(&memory, bytes) == 0);
    } else {
        int why;
        void *(*buffer)(void *, uint64_t, size_t, void *, int *) =
            (void *(*)(void *, uint64_t, size_t, void *, int *))symbol("clCreateBuffer");
        memory = buffer(context, 1, bytes, NULL, &why);
        CHECK(why == 0);
    }
    return memory;
}

/* Both in the order of the stream; the second waits. */
static void write_to(void *memory, const void *from, size_t bytes) {
    if (is_cuda) {
        int (*copy)(void *, const void *, size_t, void *) = (int (*)(void *, const void *, size_t, void *))symbol("cuMemcpyHtoDAsync_v2");
        CHECK(copy(memory, from, bytes, stream) == 0);
    } else {
        int (*copy)(void *, void *, unsigned, size_t, size_t, const void *, unsigned, void *, void *) =
            (int (*)(void *, void *, unsigned, size_t, size_t, const void *, unsigned, void *, void *))symbol("clEnqueueWriteBuffer");
        CHECK(copy(stream, memory, 0, 0, bytes, from, 0, NULL, NULL) == 0);
    }
}

static void read_from(void *to, void *memory, size_t bytes) {
    if (is_cuda) {
        int (*copy)(void *, void *, size_t, void *) = (int (*)(void *, void *, size_t, void *))symbol("cuMemcpyDtoHAsync_v2");
        int (*wait)(void *) = (int (*)(void *))symbol("cuStreamSynchronize");
        CHECK(copy(to, memory, bytes, stream) == 0 && wait(stream) == 0);
    } else {
        int (*copy)(void *, void *, unsigned, size_t, size_t, void *, unsigned, void *, void *) =
            (int (*)(void *, void *, unsigned, size_t, size_t, void *, unsigned, void *, void *))symbol("clEnqueueReadBuffer");
        CHECK(copy(stream, memory, 1, 0, bytes, to, 0, NULL, NULL) == 0);
    }
}

enum { M = 300, N = 700, APART = 705 };
static float a[M * APART + 1], x[2 * N], y[M + 3], expected[M + 3];

int main(int argc, char **argv) {
    is_cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    library = dlopen(is_cuda ? "libcuda.so.1" : "libOpenCL.so.1", RTLD_NOW);
    CHECK(library != NULL);
    if (is_cuda) open_cuda(); else open_opencl();
    gemv_device *device, *reference;
    OK(is_cuda ? gemv_device_on_stream(0, stream, &device) : gemv_device_on_queue(stream, &device));
    OK(gemv_device_open("reference", &reference));
    for (int i = 0; i < M * APART + 1; i++) a[i] = (float)((i * 7919) % 1000) / 997 - 0.5f;
    for (int i = 0; i < 2 * N; i++) x[i] = (float)((i * 104729) % 1000) / 991 - 0.5f;
    void *on_a = allocated(sizeof a), *on_x = allocated(sizeof x), *on_y = allocated(sizeof y);
    write_to(on_a, a, sizeof a), write_to(on_x, x, sizeof x);
    int products = 0;
    for (int transposed = 0; transposed < 2; transposed++)
        for (int scaled = 0; scaled < 2; scaled++) {
            /* Padded rows that begin at the second entry, x in steps of 2, y behind one entry and backwards. */
            int64_t m = transposed ? 200 : M, n = transposed ? M : N;
            gemv_array A = gemv_matrix_of(a, GEMV_F32, M, transposed ? 200 : N), X = gemv_vector_of(x, GEMV_F32, n),
                       Y = gemv_vector_of(expected, GEMV_F32, m);
            A.offset = 1, A.stride[0] = APART, X.stride[0] = 2, Y.offset = m, Y.stride[0] = -1;
            if (transposed) A = gemv_transposed(A);
            float alpha = 0.5f, beta = -2;
            for (int i = 0; i < M + 3; i++) expected[i] = y[i] = (float)i;
            write_to(on_y, y, sizeof y);
            OK(gemv_mv(reference, &alpha, &A, &X, scaled ? &beta : NULL, &Y));
            A.data = on_a, X.data = on_x, Y.data = on_y;
            A.flags = X.flags = GEMV_DEVICE | GEMV_READ_ONLY, Y.flags = GEMV_DEVICE;
            OK(gemv_device_reserve(device, &A, 1));
            OK(gemv_mv(device, &alpha, &A, &X, scaled ? &beta : NULL, &Y)); /* queued, and not waited for */
            read_from(y, on_y, sizeof y);
            CHECK(memcmp(y, expected, sizeof y) == 0);
            /* The same A with arrays of the program. */
            for (int i = 0; i < M + 3; i++) y[i] = (float)i;
            X.data = x, X.flags = 0, Y.data = y, Y.flags = 0;
            OK(gemv_mv(device, &alpha, &A, &X, scaled ? &beta : NULL, &Y));
            CHECK(memcmp(y, expected, sizeof y) == 0);
            /* What may not be written, and what overlaps. */
            Y.data = on_y, Y.flags = GEMV_DEVICE | GEMV_READ_ONLY;
            CHECK(gemv_mv(device, &alpha, &A, &X, NULL, &Y) == GEMV_ERROR_ARGUMENT);
            Y.data = on_x, Y.flags = GEMV_DEVICE, X.data = on_x, X.flags = GEMV_DEVICE;
            CHECK(gemv_mv(device, &alpha, &A, &X, NULL, &Y) == GEMV_ERROR_ARGUMENT);
            products += 2;
        }
    printf("%d products on %s, in memory of this program\n", products, gemv_device_id(device));
    gemv_device_free(device), gemv_device_free(reference);
    return 0;
}
