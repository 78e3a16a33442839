/* The order of additions of docs/ORDER.md, rules 1 to 9, as a program: a second oracle, in another language and from the
 * text alone. It is written to be read beside the text, and is slow.
 *
 * It reads products from standard input and writes their results to standard output, in the byte order of the machine:
 *
 *   u32 matrix, vectors   element types, as in `enum type`
 *   u32 conj, broken      whether A is conjugated; a rule to break, to test the comparison, or 0
 *   u32 m, n, rhs         A is m x n, X is n x rhs, Y is m x rhs, each row by row
 *   f64 alpha[2], beta[2] real and imaginary parts, which are numbers of the accumulator's type
 *   A, X, Y               elements; the result has the size of Y
 *
 * Compile it without contraction of a multiplication and an addition: cc -O2 -ffp-contract=off order.c -lm
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum type { F32, F64, F16, BF16, C32, C64 };
enum { SEGMENT = 256, LANES = 64 };

static int is_complex(uint32_t t) { return t == C32 || t == C64; }
static int is_double(uint32_t t) { return t == F64 || t == C64; }
static size_t bytes_of(uint32_t t) { return (size_t[]){4, 8, 2, 2, 8, 16}[t]; }

/* An accumulator: a number, or a pair. It is held in doubles; `wide` says whether it is one of f64. Every operation on one
 * of f32 is a function of f32, whose result a double holds. */
typedef struct { double re, im; } acc;

static int wide, complex_, conj_, broken;

static double add1(double a, double b) { return wide ? a + b : (double)((float)a + (float)b); }
static double mul1(double a, double b) { return wide ? a * b : (double)((float)a * (float)b); }
static double fma1(double a, double b, double c) {
    if (broken == 1) return add1(mul1(a, b), c); /* rounds twice */
    return wide ? fma(a, b, c) : (double)fmaf((float)a, (float)b, (float)c);
}

static acc add(acc a, acc b) {
    return (acc){add1(a.re, b.re), complex_ ? add1(a.im, b.im) : 0};
}

/* Rule 7: a product that is added to a sum. */
static acc add_product(acc a, acc x, acc sum) {
    if (!complex_) return (acc){fma1(a.re, x.re, sum.re), 0};
    return (acc){fma1(-a.im, x.im, fma1(a.re, x.re, sum.re)), fma1(a.im, x.re, fma1(a.re, x.im, sum.im))};
}

/* Rule 7: a product by itself. */
static acc product(acc a, acc b) {
    if (!complex_) return (acc){mul1(a.re, b.re), 0};
    return (acc){fma1(-a.im, b.im, mul1(a.re, b.re)), fma1(a.im, b.re, mul1(a.re, b.im))};
}

/* Rule 3: what the lanes of a segment add up to. */
static acc halve(acc lane[LANES]) {
    if (broken == 3) { /* one lane after the other */
        for (int l = 1; l < LANES; l++) lane[0] = add(lane[0], lane[l]);
        return lane[0];
    }
    for (int h = 32; h >= 1; h /= 2)
        for (int l = 0; l < h; l++) lane[l] = add(lane[l], lane[l + h]);
    return lane[0];
}

/* Rules 1 to 5: the dot product of a row of A and a column of X. `sums` has room for one number a segment. */
static acc dot(const acc *a, const acc *x, size_t rhs, size_t n, acc *sums) {
    size_t count = (n + SEGMENT - 1) / SEGMENT;
    if (count == 0) return (acc){0, 0}; /* rule 5 */
    for (size_t s = 0; s < count; s++) {
        acc lane[LANES];
        memset(lane, 0, sizeof lane); /* +0 */
        size_t end = (s + 1) * SEGMENT < n ? (s + 1) * SEGMENT : n;
        for (size_t j = s * SEGMENT; j < end; j++) {
            size_t l = (j - s * SEGMENT) % LANES;
            lane[l] = add_product(a[j], x[j * rhs], lane[l]); /* rule 2 */
        }
        sums[s] = halve(lane);
    }
    while (count > 1) { /* rule 4 */
        size_t next = (count + SEGMENT - 1) / SEGMENT;
        for (size_t s = 0; s < next; s++) {
            acc lane[LANES];
            memset(lane, 0, sizeof lane);
            size_t end = (s + 1) * SEGMENT < count ? (s + 1) * SEGMENT : count;
            for (size_t j = s * SEGMENT; j < end; j++) {
                size_t l = (j - s * SEGMENT) % LANES;
                lane[l] = add(lane[l], sums[j]);
            }
            sums[s] = halve(lane);
        }
        count = next;
    }
    return sums[0];
}

static int equals(acc a, double re) { return a.re == re && a.im == 0; }

/* Rule 6. `*keeps` is set where y stays as it is. */
static acc scale(acc alpha, acc s, acc beta, acc y, int *keeps) {
    if (equals(alpha, 0)) {
        if (equals(beta, 0)) return (acc){0, 0};
        if (equals(beta, 1)) *keeps = 1;
        return product(beta, y);
    }
    if (equals(beta, 0)) return equals(alpha, 1) ? s : product(alpha, s);
    acc old = equals(beta, 1) ? y : product(beta, y);
    if (broken == 6) return add(product(alpha, s), old);
    return equals(alpha, 1) ? add(s, old) : add_product(alpha, s, old);
}

/* Conversions of 16-bit types. To them a number is rounded once, to nearest, ties to even. */
static float f32_of(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static uint32_t bits_of(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }

static float from_f16(uint16_t h) {
    float sign = h & 0x8000 ? -1.0f : 1.0f;
    int exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(1024 + fraction), exponent - 25);
}

static uint16_t to_f16(float f) {
    uint16_t sign = bits_of(f) >> 16 & 0x8000;
    float size = fabsf(f);
    if (isnan(f)) return sign | 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    int exponent;
    frexpf(size, &exponent); /* size = fraction * 2^exponent, 1/2 <= fraction < 1 */
    int unit = exponent - 11 < -24 ? -24 : exponent - 11; /* of the last place */
    float count = nearbyintf(ldexpf(size, -unit)); /* exact, then rounded to even */
    float rounded = ldexpf(count, unit);
    if (rounded < ldexpf(1, -14)) return sign | (uint16_t)ldexpf(rounded, 24);
    frexpf(rounded, &exponent);
    return sign | (uint16_t)((exponent + 14) << 10 | ((int)ldexpf(rounded, 11 - exponent) & 1023));
}

static uint16_t to_bf16(float f) {
    uint32_t bits = bits_of(f);
    if (isnan(f)) return (bits >> 16) | 64;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static acc load(uint32_t type, const char *at) {
    uint16_t half;
    float pair[2] = {0, 0};
    double wide_pair[2] = {0, 0};
    switch (type) {
    case F16: memcpy(&half, at, 2); return (acc){from_f16(half), 0};
    case BF16: memcpy(&half, at, 2); return (acc){f32_of((uint32_t)half << 16), 0};
    case F32: case C32: memcpy(pair, at, bytes_of(type)); return (acc){pair[0], pair[1]};
    default: memcpy(wide_pair, at, bytes_of(type)); return (acc){wide_pair[0], wide_pair[1]};
    }
}

static void store(uint32_t type, char *at, acc value) {
    float pair[2] = {(float)value.re, (float)value.im};
    double wide_pair[2] = {value.re, value.im};
    uint16_t half = type == F16 ? to_f16(pair[0]) : to_bf16(pair[0]);
    switch (type) {
    case F16: case BF16: memcpy(at, &half, 2); break;
    case F32: case C32: memcpy(at, pair, bytes_of(type)); break;
    default: memcpy(at, wide_pair, bytes_of(type));
    }
}

static void *take(size_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    if (!memory) { fprintf(stderr, "no memory\n"); exit(1); }
    return memory;
}

static int read_all(void *to, size_t size) { return size == 0 || fread(to, size, 1, stdin) == 1; }

static acc *read_array(uint32_t type, size_t count, char **raw) {
    acc *values = take(count, sizeof(acc));
    *raw = take(count, bytes_of(type));
    if (!read_all(*raw, count * bytes_of(type))) { fprintf(stderr, "the input ends early\n"); exit(1); }
    for (size_t i = 0; i < count; i++) values[i] = load(type, *raw + i * bytes_of(type));
    return values;
}

int main(void) {
    uint32_t head[7];
    double factors[4];
    while (read_all(head, sizeof head)) {
        if (!read_all(factors, sizeof factors)) return 1;
        uint32_t matrix = head[0], vectors = head[1];
        size_t m = head[4], n = head[5], rhs = head[6];
        conj_ = head[2], broken = head[3];
        wide = is_double(matrix) || is_double(vectors), complex_ = is_complex(matrix);
        acc alpha = {factors[0], factors[1]}, beta = {factors[2], factors[3]};
        char *raw_a, *raw_x, *raw_y;
        acc *a = read_array(matrix, m * n, &raw_a);
        acc *x = read_array(vectors, n * rhs, &raw_x);
        acc *y = read_array(vectors, m * rhs, &raw_y);
        acc *sums = take(n / SEGMENT + 1, sizeof(acc));
        if (complex_ && conj_) /* rule 7 */
            for (size_t i = 0; i < m * n; i++) a[i].im = -a[i].im;
        for (size_t i = 0; i < m; i++)
            for (size_t c = 0; c < rhs; c++) { /* rule 8: each column by itself */
                acc s = equals(alpha, 0) ? (acc){0, 0} : dot(a + i * n, x + c, rhs, n, sums);
                int keeps = 0;
                acc result = scale(alpha, s, beta, y[i * rhs + c], &keeps);
                if (!keeps) store(vectors, raw_y + (i * rhs + c) * bytes_of(vectors), result);
            }
        fwrite(raw_y, bytes_of(vectors), m * rhs, stdout);
        free(a), free(x), free(y), free(sums), free(raw_a), free(raw_x), free(raw_y);
    }
    return fflush(stdout) != 0;
}
