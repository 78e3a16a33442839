/* The order of additions of docs/ORDER.md as a program: a second oracle, in another language and from the text alone.
 * It is written to be read beside the text, and is slow.
 *
 * It reads problems from standard input and writes their results to standard output, in the byte order of the machine:
 *
 *   u32 what              as in `enum what`
 *   u32 matrix, vectors   element types, as in `enum type`
 *   u32 conj, broken      whether A is conjugated; a rule to break, to test the comparison, or 0
 *   u32 m, n, rhs         of a product: A is m x n, X is n x rhs, Y is m x rhs, each row by row
 *                         else: m = 1, n entries, and how the factor is made, as in `enum factor`
 *   f64 alpha[2], beta[2] real and imaginary parts, which are numbers of the accumulator's type
 *   A, X, Y               elements; of a product. The result has the size of Y
 *   X, Z, Y               elements; else. The result has the size of Y, or is one element, if `what` is a sum
 *
 * Compile it without contraction of a multiplication and an addition: cc -O2 -ffp-contract=off order.c -lm
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum type { F32, F64, F16, BF16, C32, C64 };
enum what { PRODUCT, FILL, ASSIGN, SCAL, AXPY, XPAY, ASSIGN_PRODUCT, ADD_PRODUCT, QUOTIENT, ROOT, DOT, NRM2 };
enum factor { NEGATED = 1, DIVIDED = 2 }; /* -alpha, alpha / beta, -(alpha / beta) */
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

static double div1(double a, double b) {
    if (broken == 10) return mul1(a, wide ? 1 / b : (double)(1 / (float)b)); /* rounds twice */
    return wide ? a / b : (double)((float)a / (float)b);
}
static double sqrt1(double a) { return wide ? sqrt(a) : (double)sqrtf((float)a); }

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

/* Rule 10: a quotient and a root. */
static acc quotient(acc a, acc b) {
    if (!complex_) return (acc){div1(a.re, b.re), 0};
    double d = fma1(b.im, b.im, mul1(b.re, b.re));
    double re = fma1(a.im, b.im, mul1(a.re, b.re)), im = fma1(a.im, b.re, -mul1(a.re, b.im));
    return (acc){div1(re, d), div1(im, d)};
}

static acc root(acc a) {
    if (!complex_) return (acc){sqrt1(a.re), 0};
    double size = sqrt1(fma1(a.im, a.im, mul1(a.re, a.re)));
    double t = sqrt1(mul1(add1(size, fabs(a.re)), 0.5));
    if (t == 0) return (acc){0, a.im};
    if (a.re < 0) return (acc){div1(fabs(a.im), add1(t, t)), copysign(t, a.im)};
    return (acc){t, div1(a.im, add1(t, t))};
}

/* Rule 10: one entry of a step. No factor is special. */
static acc step(uint32_t what, acc factor, acc x, acc z, acc y) {
    switch (what) {
    case FILL: return factor;
    case SCAL: return product(factor, y);
    case AXPY: return add_product(factor, x, y);
    case XPAY: return add_product(factor, y, x);
    case ASSIGN_PRODUCT: return product(x, z);
    case ADD_PRODUCT: return add_product(x, z, y);
    case QUOTIENT: return quotient(x, z);
    default: return root(x);
    }
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

static acc conjugate(acc a) { return complex_ ? (acc){a.re, -a.im} : a; }

/* Rules 1 to 9. */
static void compute_product(const uint32_t head[8], acc alpha, acc beta) {
    uint32_t matrix = head[1], vectors = head[2];
    size_t m = head[5], n = head[6], rhs = head[7];
    char *raw_a, *raw_x, *raw_y;
    acc *a = read_array(matrix, m * n, &raw_a);
    acc *x = read_array(vectors, n * rhs, &raw_x);
    acc *y = read_array(vectors, m * rhs, &raw_y);
    acc *sums = take(n / SEGMENT + 1, sizeof(acc));
    if (conj_) /* rule 7 */
        for (size_t i = 0; i < m * n; i++) a[i] = conjugate(a[i]);
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

/* Rules 10 and 11. */
static void compute_step(const uint32_t head[8], acc factor, acc divisor) {
    uint32_t what = head[0], type = head[1];
    size_t n = head[6], each = bytes_of(type);
    char *raw_x, *raw_z, *raw_y;
    acc *x = read_array(type, n, &raw_x), *z = read_array(type, n, &raw_z), *y = read_array(type, n, &raw_y);
    if (what == DOT || what == NRM2) {
        acc *sums = take(n / SEGMENT + 1, sizeof(acc)), *row = take(n + 1, sizeof(acc));
        int conjugated = conj_ || what == NRM2;
        for (size_t j = 0; j < n; j++) row[j] = conjugated ? conjugate(x[j]) : x[j];
        acc sum = dot(row, what == NRM2 ? x : y, 1, n, sums);
        char result[16];
        if (what == NRM2) {
            if (broken != 11) { /* it is rounded to the element type first */
                store(type, result, sum);
                sum = load(type, result);
            }
            sum = (acc){sqrt1(sum.re), 0};
        }
        store(type, result, sum);
        fwrite(result, each, 1, stdout);
        free(sums), free(row);
    } else {
        if (head[7] & DIVIDED) factor = quotient(factor, divisor);
        if (head[7] & NEGATED) factor = (acc){-factor.re, complex_ ? -factor.im : 0};
        for (size_t i = 0; i < n; i++) {
            if (what == ASSIGN) memcpy(raw_y + i * each, raw_x + i * each, each);
            else store(type, raw_y + i * each, step(what, factor, x[i], z[i], y[i]));
        }
        fwrite(raw_y, each, n, stdout);
    }
    free(x), free(z), free(y), free(raw_x), free(raw_z), free(raw_y);
}

int main(void) {
    uint32_t head[8];
    double numbers[4];
    while (read_all(head, sizeof head)) {
        if (!read_all(numbers, sizeof numbers)) return 1;
        conj_ = head[3], broken = head[4];
        wide = is_double(head[1]) || is_double(head[2]), complex_ = is_complex(head[1]);
        acc alpha = {numbers[0], numbers[1]}, beta = {numbers[2], numbers[3]};
        if (head[0] == PRODUCT) compute_product(head, alpha, beta);
        else compute_step(head, alpha, beta);
    }
    return fflush(stdout) != 0;
}
