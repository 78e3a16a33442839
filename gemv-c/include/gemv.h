/* gemv: matrix-vector products on CPUs and GPUs, with the same bits on each.
 *
 * A program names a device, and gives arrays of any strides: in its own memory, in a device's, or in memory of the device
 * that another library owns. The sums follow one order of additions (docs/ORDER.md), so results do not depend on the
 * device, the layout, the steps between entries, or the number of threads.
 *
 *     gemv_device *device;
 *     gemv_device_open("cpu", &device);
 *     double a[] = {1, 2, 3, 4}, x[] = {1, 1}, y[2];
 *     gemv_array A = gemv_matrix_of(a, GEMV_F64, 2, 2), X = gemv_vector_of(x, GEMV_F64, 2),
 *                Y = gemv_vector_of(y, GEMV_F64, 2);
 *     if (gemv_mv(device, NULL, &A, &X, NULL, &Y) != GEMV_OK) puts(gemv_last_error());
 *     gemv_device_free(device);
 *
 * Every function may be called by any thread, also with handles of another. None throws or unwinds. A function that fails
 * returns a status, and gemv_last_error() has one sentence for people. What it was to write is then as it was; only a
 * result in a device's memory may be undefined after GEMV_ERROR_DEVICE.
 *
 * Link with: cc program.c $(pkg-config --cflags --libs gemv) */
#ifndef GEMV_H
#define GEMV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; gemv_version() is the library's. */
#define GEMV_VERSION_MAJOR 0
#define GEMV_VERSION_MINOR 1
#define GEMV_VERSION_PATCH 0

/* major << 16 | minor << 8 | patch. */
uint32_t gemv_version(void);

/* The order of additions: libraries with the same number give the same bits. */
uint32_t gemv_order_version(void);

typedef enum gemv_status {
    GEMV_OK = 0,
    GEMV_ERROR_ARGUMENT = 1,      /* a null pointer, an unknown flag or type, an array outside of its memory */
    GEMV_ERROR_SHAPE = 2,         /* numbers of rows and columns do not fit */
    GEMV_ERROR_NO_DEVICE = 3,     /* the sentence says what there is, or which driver is missing */
    GEMV_ERROR_UNSUPPORTED = 4,   /* the device cannot do this */
    GEMV_ERROR_OUT_OF_MEMORY = 5,
    GEMV_ERROR_DEVICE = 6,        /* the driver has failed or refused */
    GEMV_ERROR_FORKED = 7,        /* a GPU that was in use before this process was forked */
    GEMV_ERROR_INTERNAL = 8       /* a fault of gemv */
} gemv_status;

/* The sentence of the last error of this thread. It is valid until the thread's next error, or its end. */
const char *gemv_last_error(void);

/* A few words for a status, such as "out of memory". */
const char *gemv_status_name(int status);

/* ---- devices ------------------------------------------------------------------------------------------------------ */

typedef struct gemv_device gemv_device;

/* Opens a device by its name: "cpu", "cuda:0", "opencl:1", "reference". NULL is the default: GEMV_BACKEND, else the CPU. A
 * device that is opened twice is one device, with two handles to be freed. */
gemv_status gemv_device_open(const char *name, gemv_device **device);

/* A device whose work is all put into a cl_command_queue of the program, in its order. Its arrays are buffers of the queue's
 * context. Both are kept alive. */
gemv_status gemv_device_on_queue(void *queue, gemv_device **device);

/* A device whose work is all put into a CUstream (cudaStream_t) of the program on this GPU, in its order: `stream` NULL is
 * the legacy default stream. The stream stays alive as long as the device and its matrices. A graph that the program
 * captures on it takes in products that have run once, or were reserved. */
gemv_status gemv_device_on_stream(int ordinal, void *stream, gemv_device **device);

/* Frees a handle; NULL is allowed. Matrices of the device keep it alive. */
void gemv_device_free(gemv_device *device);

/* Its name, such as "cuda:0"; valid as long as the handle. */
const char *gemv_device_id(const gemv_device *device);

/* Every device, a line for each: its name, or why there is none. Writes at most `size` bytes with the final 0, and to
 * `*needed` how many there are; either pointer may be NULL. */
gemv_status gemv_devices(char *text, size_t size, size_t *needed);

/* Waits until all work of the device is done. */
gemv_status gemv_device_synchronize(const gemv_device *device);

/* Makes later work of the device wait for an event of another library: a CUevent or a cl_event. The host does not wait. */
gemv_status gemv_device_wait_for(const gemv_device *device, void *event);

/* Has an event come when all earlier work of the device is done: records a CUevent; of OpenCL, writes a new cl_event to the
 * place that `event` points to. */
gemv_status gemv_device_record_event(const gemv_device *device, void *event);

/* ---- arrays ------------------------------------------------------------------------------------------------------- */

typedef enum gemv_dtype {
    GEMV_F32 = 0,
    GEMV_F64 = 1,
    GEMV_F16 = 2,  /* summed in f32, as bf16 is */
    GEMV_BF16 = 3,
    GEMV_C64 = 4,  /* two f32: real and imaginary part */
    GEMV_C128 = 5  /* two f64 */
} gemv_dtype;

/* Flags of an array. Of one in the program's memory there may be none. */
enum {
    GEMV_RESIDENT = 1,   /* `data` is a gemv_matrix */
    GEMV_DEVICE = 2,     /* `data` is memory of the device that another library owns: a CUdeviceptr or a cl_mem */
    GEMV_CONJUGATED = 4, /* of the matrix of a product: its conjugate is multiplied */
    GEMV_READ_ONLY = 8   /* it is refused as a result */
};

/* An array of one to three axes: entry (i, j, k) lies at data[offset + i * stride[0] + j * stride[1] + k * stride[2]], in
 * elements. Strides may be negative, and 0 in arrays that are read. In a batch, the first of three axes is the matrix.
 * Set `reserved` to 0. */
typedef struct gemv_array {
    void *data;
    int64_t offset;
    int64_t dim[3];
    int64_t stride[3];
    uint32_t ndim;
    uint32_t dtype; /* a gemv_dtype */
    uint32_t flags;
    uint32_t reserved;
} gemv_array;

/* n entries, one after the other. */
static inline gemv_array gemv_vector_of(const void *data, gemv_dtype dtype, int64_t n) {
    gemv_array array = {(void *)data, 0, {n, 1, 1}, {1, 0, 0}, 1, (uint32_t)dtype, 0, 0};
    return array;
}

/* m rows of n entries, row by row. */
static inline gemv_array gemv_matrix_of(const void *data, gemv_dtype dtype, int64_t m, int64_t n) {
    gemv_array array = {(void *)data, 0, {m, n, 1}, {n, 1, 0}, 2, (uint32_t)dtype, 0, 0};
    return array;
}

/* The same, column by column, `apart` entries from one column to the next: Fortran's layout. */
static inline gemv_array gemv_columns_of(const void *data, gemv_dtype dtype, int64_t m, int64_t n, int64_t apart) {
    gemv_array array = {(void *)data, 0, {m, n, 1}, {1, apart, 0}, 2, (uint32_t)dtype, 0, 0};
    return array;
}

/* The transposed matrix, of a batch each of them: nothing is copied. */
static inline gemv_array gemv_transposed(gemv_array array) {
    unsigned row = array.ndim == 3 ? 1 : 0;
    int64_t dim = array.dim[row], stride = array.stride[row];
    array.dim[row] = array.dim[row + 1], array.stride[row] = array.stride[row + 1];
    array.dim[row + 1] = dim, array.stride[row + 1] = stride;
    return array;
}

/* ---- arrays in a device's memory ---------------------------------------------------------------------------------- */

/* A block of a device's memory. */
typedef struct gemv_matrix gemv_matrix;

/* Copies an array of one to three axes to the device. The layout stays. */
gemv_status gemv_matrix_upload(const gemv_device *device, const gemv_array *from, gemv_matrix **matrix);

/* An array of zeros, the last axis first. `dim` has `ndim` numbers. */
gemv_status gemv_matrix_zeros(const gemv_device *device, uint32_t dtype, uint32_t ndim, const int64_t *dim,
                              gemv_matrix **matrix);

/* Frees a matrix; NULL is allowed. Work that uses it is done first. */
void gemv_matrix_free(gemv_matrix *matrix);

/* The matrix as an array, to be passed to products. The program may change offset, dim and stride for a part of it.
 *
 * Parts share the block. A product whose A or x is a part of the same gemv_matrix as y, or that another thread's product
 * reads meanwhile, first copies the whole block on the device, each time, and y is written to the copy: A and x are read as
 * they were before the call. That takes as long as reading and writing all of the block, however small y is, and as much
 * memory again until the call is done. Keep what is written in a gemv_matrix of its own. */
gemv_status gemv_matrix_array(gemv_matrix *matrix, gemv_array *array);

/* Copies an array in a device's memory to one of the program's with the same type and dims, and waits for it. */
gemv_status gemv_download(const gemv_device *device, const gemv_array *from, const gemv_array *to);

/* ---- products ----------------------------------------------------------------------------------------------------- */

/* y = alpha A x + beta y.
 *
 *     A            x          y
 *     m x n        n          m
 *     b x m x n    b x n      b x m      for each matrix of a batch its vector
 *
 * alpha and beta point to numbers of the type in which x is summed: float for GEMV_F16 and GEMV_BF16, else x's own. NULL
 * is 1 for alpha and 0 for beta. With alpha = 0 no entry of A and x is read, with beta = 0 none of y.
 *
 * x and y are of one type. That of A is the same, or a narrower one: GEMV_F16 or GEMV_BF16 with GEMV_F32, GEMV_F32 with
 * GEMV_F64. y does not overlap A or x in the program's memory. Where all of A, x and y are on the device the call may
 * return before the work is done: gemv_download and gemv_device_synchronize wait. Memory with GEMV_DEVICE stays until then.
 *
 * A y in the gemv_matrix of A or x costs a copy of that matrix: see gemv_matrix_array. With GEMV_DEVICE it is refused where
 * they overlap. */
gemv_status gemv_mv(const gemv_device *device, const void *alpha, const gemv_array *a, const gemv_array *x,
                    const void *beta, const gemv_array *y);

/* Y = alpha A X + beta Y: each column of Y has the bits of its own product.
 *
 *     A            X              Y
 *     m x n        n x k          m x k
 *     b x m x n    b x n x k      b x m x k */
gemv_status gemv_mm(const gemv_device *device, const void *alpha, const gemv_array *a, const gemv_array *x,
                    const void *beta, const gemv_array *y);

/* Prepares products of a matrix of this type, shape and layout with so many columns: kernels are built and loaded, and scratch
 * memory is there. A program that captures its stream into a graph calls it before. */
gemv_status gemv_device_reserve(const gemv_device *device, const gemv_array *a, int64_t columns);

/* ---- packed weights ----------------------------------------------------------------------------------------------- */

/* A matrix of packed weights: int8, int4 and FP8 blocks, as files of language models have them. It never changes.
 *
 * Its product has the bits of the product of gemv_packed_dequantize's matrix in f32, rounded once to the type of y. Formats by
 * their names: q8_0, q4_0, q4_k, q6_k, mxfp4, nvfp4 as GGUF has them; fp8; int4g32, int4g64, int4g128, int4g256 with scales of
 * f16, and the same with bf16 behind for scales of bf16. The documentation of the crate gemv-packed lays out the blocks. */
typedef struct gemv_packed gemv_packed;

/* A matrix from its blocks: those of row 0, then those of row 1, and so on. Nothing is copied: the `size` bytes stay, and stay as
 * they are, until the matrix and all that gemv_packed_rows made of it are freed. `columns` is a multiple of the block. */
gemv_status gemv_packed_create(const char *format, int64_t rows, int64_t columns, const void *blocks, size_t size,
                               gemv_packed **packed);

/* Rounds a matrix of GEMV_F32 in the program's memory, as the reference of the format does. No weight is NaN or infinite. */
gemv_status gemv_packed_quantize(const char *format, const gemv_array *from, gemv_packed **packed);

/* Copies a matrix from the program's memory to the device, arranged as its kernels read it, to be multiplied many times. */
gemv_status gemv_packed_upload(const gemv_device *device, const gemv_packed *from, gemv_packed **packed);

/* `rows` of the rows from `first` on, which share the blocks: a handle of its own. */
gemv_status gemv_packed_rows(const gemv_packed *from, int64_t first, int64_t rows, gemv_packed **packed);

/* Frees a handle; NULL is allowed. */
void gemv_packed_free(gemv_packed *packed);

/* The name of its format; valid as long as the handle. */
const char *gemv_packed_format(const gemv_packed *packed);

/* Its rows and columns; either pointer may be NULL. */
gemv_status gemv_packed_shape(const gemv_packed *packed, int64_t *rows, int64_t *columns);

/* Its blocks in the program's memory, as gemv_packed_create takes them, and their bytes; either pointer may be NULL. They are valid
 * as long as the handle. */
gemv_status gemv_packed_blocks(const gemv_packed *packed, const void **blocks, size_t *size);

/* Writes the numbers that it stands for to a matrix of GEMV_F32 in the program's memory. */
gemv_status gemv_packed_dequantize(const gemv_packed *packed, const gemv_array *to);

/* y = alpha A x + beta y, and Y = alpha A X + beta Y, as gemv_mv and gemv_mm with a matrix A of two axes. x and y are of
 * GEMV_F32, GEMV_F16 or GEMV_BF16, alpha and beta point to float. A is on the device, or in the program's memory: the CPU reads
 * it there, for other devices it is copied for each such product. */
gemv_status gemv_packed_mv(const gemv_device *device, const void *alpha, const gemv_packed *a, const gemv_array *x,
                           const void *beta, const gemv_array *y);
gemv_status gemv_packed_mm(const gemv_device *device, const void *alpha, const gemv_packed *a, const gemv_array *x,
                           const void *beta, const gemv_array *y);

/* ---- files of weights --------------------------------------------------------------------------------------------- */

/* A file of weights, GGUF or safetensors, mapped into memory. It stays as it is while it is open, and while a matrix of it is:
 * where it is cut, reading what is gone ends the program with a signal. To be replaced, another is renamed over it. */
typedef struct gemv_weights gemv_weights;

/* Opens a file. `gptq_version` says how zeros of GPTQ are stored: 1, as one less, or 2, which a model's config.json calls
 * gptq_v2. */
gemv_status gemv_weights_open(const char *path, uint32_t gptq_version, gemv_weights **weights);

/* Frees a handle; NULL is allowed. Packed matrices of the file keep it open, arrays do not. */
void gemv_weights_free(gemv_weights *weights);

/* Every tensor, a line for each: its name, what its elements are, and its shape, with a tab between, numbers with a blank. Other
 * arguments as of gemv_devices. */
gemv_status gemv_weights_tensors(const gemv_weights *weights, char *text, size_t size, size_t *needed);

/* The packed matrix of this name, whose blocks are the file's own. All axes of its tensor but the last are rows. Where a file has
 * codes and scales as tensors of their own, such as those of GPTQ and AWQ, blocks are put together; the name is then that of the
 * layer, or of its codes. `*alpha` is a factor of the products: 1, but for the scale of a tensor of NVFP4. The pointer may be NULL
 * where that is 1. */
gemv_status gemv_weights_packed(const gemv_weights *weights, const char *name, gemv_packed **packed, float *alpha);

/* A tensor of numbers, of one to three axes, in the file's memory: valid as long as `weights`. */
gemv_status gemv_weights_array(const gemv_weights *weights, const char *name, gemv_array *array);

#ifdef __cplusplus
}
#endif
#endif
