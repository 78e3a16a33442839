/* Included by blas.c once for each type. L: its letter; R: its real type; PAIR: whether it is complex. */
#define N(name) PASTE(PASTE(L, _), name)
#define T N(element)
#define B(routine) PASTE(L, routine)

#ifdef PAIR
typedef struct { R re, im; } T;
static T N(of)(double re, double im) { T t = {(R)re, (R)im}; return t; }
static R N(re)(T t) { return t.re; }
static R N(im)(T t) { return t.im; }
#define FACTOR const T *
#define PASS(factor) &factor
#else
typedef R T;
static T N(of)(double re, double im) { (void)im; return (R)re; }
static R N(re)(T t) { return t; }
static R N(im)(T t) { (void)t; return 0; }
#define FACTOR T
#define PASS(factor) factor
#endif

/* Rule 7: a product that is added to a sum, and one by itself. */
static T N(fma)(T a, T x, T sum) {
#ifdef PAIR
    T t = {FMA(-a.im, x.im, FMA(a.re, x.re, sum.re)), FMA(a.im, x.re, FMA(a.re, x.im, sum.im))};
    return t;
#else
    return FMA(a, x, sum);
#endif
}
static T N(mul)(T a, T b) {
#ifdef PAIR
    T t = {FMA(-a.im, b.im, a.re * b.re), FMA(a.im, b.re, a.re * b.im)};
    return t;
#else
    return a * b;
#endif
}
static T N(add)(T a, T b) {
#ifdef PAIR
    T t = {a.re + b.re, a.im + b.im};
    return t;
#else
    return a + b;
#endif
}
static T N(conj)(T a) { return N(of)(N(re)(a), -N(im)(a)); }
static int N(is)(T a, double re) { return N(re)(a) == re && N(im)(a) == 0; }

/* Entries one after the other; `conj` conjugates the first operand. Rules 1 to 5. */
static T N(ordered)(const T *a, const T *x, size_t n, int conj) {
    size_t count = (n + SEGMENT - 1) / SEGMENT;
    if (count == 0) return N(of)(0, 0);
    T *sums = (T *)malloc(count * sizeof *sums);
    for (int level = 0; level == 0 || count > 1; level++) {
        size_t terms = level == 0 ? n : count;
        count = (terms + SEGMENT - 1) / SEGMENT;
        for (size_t s = 0; s < count; s++) {
            T lane[LANES];
            for (int l = 0; l < LANES; l++) lane[l] = N(of)(0, 0);
            for (size_t j = s * SEGMENT; j < terms && j < (s + 1) * SEGMENT; j++) {
                T *to = &lane[j % LANES];
                *to = level == 0 ? N(fma)(conj ? N(conj)(a[j]) : a[j], x[j], *to) : N(add)(*to, sums[j]);
            }
            for (int h = 32; h >= 1; h /= 2)
                for (int l = 0; l < h; l++) lane[l] = N(add)(lane[l], lane[l + h]);
            sums[s] = lane[0];
        }
    }
    T sum = sums[0];
    free(sums);
    return sum;
}

/* Rule 6. */
static T N(scale)(T alpha, T s, T beta, T y) {
    if (N(is)(alpha, 0)) return N(is)(beta, 0) ? N(of)(0, 0) : N(is)(beta, 1) ? y : N(mul)(beta, y);
    if (N(is)(beta, 0)) return N(is)(alpha, 1) ? s : N(mul)(alpha, s);
    T old = N(is)(beta, 1) ? y : N(mul)(beta, y);
    return N(is)(alpha, 1) ? N(add)(s, old) : N(fma)(alpha, s, old);
}

/* The routines: `N(name)` calls the one of a spelling. */
#ifdef PAIR
#define GERU B(geru)
#define DOTU B(dotu)
#define DOTU_C B(dotu_sub)
#else
#define GERU B(ger)
#define DOTU B(dot)
#define DOTU_C B(dot)
#endif

#define FORTRAN(Int, symbol) \
    void symbol(const char *, const Int *, const Int *, const T *, const T *, const Int *, const T *, const Int *, \
                const T *, T *, const Int *);
#define CBLAS(Int, symbol) \
    void symbol(int, int, Int, Int, FACTOR, const T *, Int, const T *, Int, FACTOR, T *, Int);
DECLARE(B(gemv))
#undef FORTRAN
#undef CBLAS
static void N(gemv)(int spelling, int layout, int op, int64_t m, int64_t n, T alpha, const T *a, int64_t lda,
                    const T *x, int64_t incx, T beta, T *y, int64_t incy) {
    char letter = op == 0 ? '?' : "NTC"[op - 111];
#define FORTRAN(Int, symbol) { \
        Int m_ = (Int)m, n_ = (Int)n, lda_ = (Int)lda, incx_ = (Int)incx, incy_ = (Int)incy; \
        symbol(&letter, &m_, &n_, &alpha, a, &lda_, x, &incx_, &beta, y, &incy_); \
    }
#define CBLAS(Int, symbol) \
    symbol(layout, op, (Int)m, (Int)n, PASS(alpha), a, (Int)lda, x, (Int)incx, PASS(beta), y, (Int)incy);
    switch (spelling) { CASES(B(gemv)) }
#undef FORTRAN
#undef CBLAS
}

#define FORTRAN(Int, symbol) \
    void symbol(const Int *, const Int *, const T *, const T *, const Int *, const T *, const Int *, T *, const Int *);
#define CBLAS(Int, symbol) void symbol(int, Int, Int, FACTOR, const T *, Int, const T *, Int, T *, Int);
DECLARE(GERU)
#ifdef PAIR
DECLARE(B(gerc))
#endif
#undef FORTRAN
#undef CBLAS
static void N(ger)(int spelling, int conj, int layout, int64_t m, int64_t n, T alpha, const T *x, int64_t incx,
                   const T *y, int64_t incy, T *a, int64_t lda) {
#define FORTRAN(Int, symbol) { \
        Int m_ = (Int)m, n_ = (Int)n, lda_ = (Int)lda, incx_ = (Int)incx, incy_ = (Int)incy; \
        symbol(&m_, &n_, &alpha, x, &incx_, y, &incy_, a, &lda_); \
    }
#define CBLAS(Int, symbol) symbol(layout, (Int)m, (Int)n, PASS(alpha), x, (Int)incx, y, (Int)incy, a, (Int)lda);
    if (!conj) switch (spelling) { CASES(GERU) }
#ifdef PAIR
    else switch (spelling) { CASES(B(gerc)) }
#endif
#undef FORTRAN
#undef CBLAS
}

#define FORTRAN(Int, symbol) T symbol(const Int *, const T *, const Int *, const T *, const Int *);
#ifdef PAIR
#define CBLAS(Int, symbol) void symbol(Int, const T *, Int, const T *, Int, T *);
DECLARE_OF(B(dotc), B(dotc_sub))
#else
#define CBLAS(Int, symbol) T symbol(Int, const T *, Int, const T *, Int);
#endif
DECLARE_OF(DOTU, DOTU_C)
#undef FORTRAN
#undef CBLAS
static T N(dot)(int spelling, int conj, int64_t n, const T *x, int64_t incx, const T *y, int64_t incy) {
    T t = N(of)(77, 77);
#define FORTRAN(Int, symbol) { Int n_ = (Int)n, incx_ = (Int)incx, incy_ = (Int)incy; t = symbol(&n_, x, &incx_, y, &incy_); }
#ifdef PAIR
#define CBLAS(Int, symbol) symbol((Int)n, x, (Int)incx, y, (Int)incy, &t);
#else
#define CBLAS(Int, symbol) t = symbol((Int)n, x, (Int)incx, y, (Int)incy);
#endif
    if (!conj) switch (spelling) { CASES_OF(DOTU, DOTU_C) }
#ifdef PAIR
    else switch (spelling) { CASES_OF(B(dotc), B(dotc_sub)) }
#endif
#undef FORTRAN
#undef CBLAS
    return t;
}

#define FORTRAN(Int, symbol) R symbol(const Int *, const T *, const Int *);
#define CBLAS(Int, symbol) R symbol(Int, const T *, Int);
DECLARE(NRM2)
#undef FORTRAN
#undef CBLAS
static R N(nrm2)(int spelling, int64_t n, const T *x, int64_t incx) {
    R t = 77;
#define FORTRAN(Int, symbol) { Int n_ = (Int)n, incx_ = (Int)incx; t = symbol(&n_, x, &incx_); }
#define CBLAS(Int, symbol) t = symbol((Int)n, x, (Int)incx);
    switch (spelling) { CASES(NRM2) }
#undef FORTRAN
#undef CBLAS
    return t;
}

#define IAMAX PASTE(i, B(amax))
#define FORTRAN(Int, symbol) Int symbol(const Int *, const T *, const Int *);
#define CBLAS(Int, symbol) size_t symbol(Int, const T *, Int);
DECLARE(IAMAX)
#undef FORTRAN
#undef CBLAS
/* From 1 on; C counts from 0. */
static int64_t N(iamax)(int spelling, int64_t n, const T *x, int64_t incx) {
    int64_t at = -1;
#define FORTRAN(Int, symbol) { Int n_ = (Int)n, incx_ = (Int)incx; at = symbol(&n_, x, &incx_); }
#define CBLAS(Int, symbol) at = (int64_t)symbol((Int)n, x, (Int)incx) + 1;
    switch (spelling) { CASES(IAMAX) }
#undef FORTRAN
#undef CBLAS
    return at;
}

#define FORTRAN(Int, symbol) void symbol(const Int *, const T *, const T *, const Int *, T *, const Int *);
#define CBLAS(Int, symbol) void symbol(Int, FACTOR, const T *, Int, T *, Int);
DECLARE(B(axpy))
#undef FORTRAN
#undef CBLAS
static void N(axpy)(int spelling, int64_t n, T alpha, const T *x, int64_t incx, T *y, int64_t incy) {
#define FORTRAN(Int, symbol) { Int n_ = (Int)n, incx_ = (Int)incx, incy_ = (Int)incy; symbol(&n_, &alpha, x, &incx_, y, &incy_); }
#define CBLAS(Int, symbol) symbol((Int)n, PASS(alpha), x, (Int)incx, y, (Int)incy);
    switch (spelling) { CASES(B(axpy)) }
#undef FORTRAN
#undef CBLAS
}

#define FORTRAN(Int, symbol) void symbol(const Int *, const T *, T *, const Int *);
#define CBLAS(Int, symbol) void symbol(Int, FACTOR, T *, Int);
DECLARE(B(scal))
#undef FORTRAN
#undef CBLAS
static void N(scal)(int spelling, int64_t n, T alpha, T *x, int64_t incx) {
#define FORTRAN(Int, symbol) { Int n_ = (Int)n, incx_ = (Int)incx; symbol(&n_, &alpha, x, &incx_); }
#define CBLAS(Int, symbol) symbol((Int)n, PASS(alpha), x, (Int)incx);
    switch (spelling) { CASES(B(scal)) }
#undef FORTRAN
#undef CBLAS
}

#ifdef PAIR
#define FORTRAN(Int, symbol) void symbol(const Int *, const R *, T *, const Int *);
#define CBLAS(Int, symbol) void symbol(Int, R, T *, Int);
DECLARE(SCAL_BY_REAL)
#undef FORTRAN
#undef CBLAS
static void N(scal_by_real)(int spelling, int64_t n, R alpha, T *x, int64_t incx) {
#define FORTRAN(Int, symbol) { Int n_ = (Int)n, incx_ = (Int)incx; symbol(&n_, &alpha, x, &incx_); }
#define CBLAS(Int, symbol) symbol((Int)n, alpha, x, (Int)incx);
    switch (spelling) { CASES(SCAL_BY_REAL) }
#undef FORTRAN
#undef CBLAS
}
#endif

/* An array of noise, of its own length: what lies beyond it is found. */
static T *N(array)(size_t len) {
    T *all = (T *)malloc(len * sizeof *all);
    for (size_t i = 0; i < len; i++) all[i] = N(of)(noise(), noise());
    return all;
}
static T *N(copy)(const T *of, size_t len) {
    T *all = (T *)malloc(len * sizeof *all);
    memcpy(all, of, len * sizeof *all);
    return all;
}
static size_t N(span)(int64_t n, int64_t inc) { return n == 0 ? 0 : (size_t)((n - 1) * (inc < 0 ? -inc : inc) + 1); }
static T *N(entry)(const T *x, int64_t n, int64_t inc, int64_t i) {
    return (T *)x + (inc < 0 ? (n - 1 - i) * -inc : i * inc);
}
/* The entries of a vector one after the other. */
static T *N(packed)(const T *x, int64_t n, int64_t inc) {
    T *all = (T *)malloc((size_t)(n + 1) * sizeof *all);
    for (int64_t i = 0; i < n; i++) all[i] = *N(entry)(x, n, inc, i);
    return all;
}
static void N(same)(const char *what, int spelling, const T *found, const T *expected, size_t len) {
    compared += (long)len;
    if (memcmp(found, expected, len * sizeof *found) != 0) fail(what, spelling, "other bits, or a write outside of the result");
}

static void N(test_gemv)(int64_t m, int64_t n, int64_t incx, int64_t incy, int64_t gap) {
    const double factors[][4] = {{1, 0, 0, 0}, {1, 0, 1, 0}, {0.5, 0.25, 0, 0}, {-1.5, 0.5, 0.75, -2},
                                 {0, 0, 0.5, 1}, {0, 0, 0, 0}, {0, 0, 1, 0}, {2, 0, 1, 0}};
    for (int layout = ROWS; layout <= COLUMNS; layout++)
        for (int op = 111; op <= 113; op++) {
            int64_t line = layout == ROWS ? n : m, lda = (line ? line : 1) + gap, rows = op == 111 ? m : n, cols = op == 111 ? n : m;
            size_t lines = (size_t)(layout == ROWS ? m : n), in_a = lines ? (lines - 1) * (size_t)lda + (size_t)line : 0;
            T *a = N(array)(in_a), *x = N(array)(N(span)(cols, incx)), *y = N(array)(N(span)(rows, incy));
            T *row = N(array)((size_t)cols), *xs = N(packed)(x, cols, incx), *sums = N(array)((size_t)rows);
            for (int64_t i = 0; i < rows; i++) {
                for (int64_t j = 0; j < cols; j++) {
                    int64_t r = op == 111 ? i : j, c = op == 111 ? j : i;
                    row[j] = a[layout == ROWS ? r * lda + c : c * lda + r];
                }
                sums[i] = N(ordered)(row, xs, (size_t)cols, op == 113);
            }
            for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
                T alpha = N(of)(factors[f][0], factors[f][1]), beta = N(of)(factors[f][2], factors[f][3]);
                T *before = N(copy)(y, N(span)(rows, incy));
                if (N(is)(beta, 0)) /* y is not read */
                    for (int64_t i = 0; i < rows; i++) *N(entry)(before, rows, incy, i) = N(of)(NAN, NAN);
                T *expected = N(copy)(before, N(span)(rows, incy));
                for (int64_t i = 0; i < rows && m > 0 && n > 0; i++) {
                    T *to = N(entry)(expected, rows, incy, i);
                    *to = N(scale)(alpha, sums[i], beta, *to);
                }
                int none = N(is)(alpha, 0); /* A and x are not read */
                for (int spelling = 0; spelling < SPELLINGS; spelling++) {
                    if (is_fortran(spelling) && layout == ROWS) continue;
                    T *found = N(copy)(before, N(span)(rows, incy));
                    N(gemv)(spelling, layout, op, m, n, alpha, none ? NULL : a, lda, none ? NULL : x, incx, beta, found, incy);
                    expect("gemv", spelling, 0, 2);
                    N(same)("gemv", spelling, found, expected, N(span)(rows, incy));
                    free(found);
                }
                free(before), free(expected);
            }
            free(a), free(x), free(y), free(row), free(xs), free(sums);
        }
}

static void N(test_ger)(int64_t m, int64_t n, int64_t incx, int64_t incy, int64_t gap) {
    for (int layout = ROWS; layout <= COLUMNS; layout++)
        for (int conj = 0; conj <= (sizeof(T) > sizeof(R)); conj++) {
            int64_t line = layout == ROWS ? n : m, lda = (line ? line : 1) + gap;
            size_t lines = (size_t)(layout == ROWS ? m : n), in_a = lines ? (lines - 1) * (size_t)lda + (size_t)line : 0;
            T *a = N(array)(in_a), *x = N(array)(N(span)(m, incx)), *y = N(array)(N(span)(n, incy));
            T alpha = N(of)(-1.25, 0.5), *expected = N(copy)(a, in_a);
            for (int64_t j = 0; j < n; j++) {
                T of = *N(entry)(y, n, incy, j), factor = N(mul)(alpha, conj ? N(conj)(of) : of);
                for (int64_t i = 0; i < m; i++) {
                    T *to = &expected[layout == ROWS ? i * lda + j : j * lda + i];
                    *to = N(fma)(factor, *N(entry)(x, m, incx, i), *to);
                }
            }
            for (int spelling = 0; spelling < SPELLINGS; spelling++) {
                if (is_fortran(spelling) && layout == ROWS) continue;
                T *found = N(copy)(a, in_a);
                N(ger)(spelling, conj, layout, m, n, alpha, x, incx, y, incy, found, lda);
                N(same)("ger", spelling, found, expected, in_a);
                N(ger)(spelling, conj, layout, m, n, N(of)(0, 0), NULL, incx, NULL, incy, NULL, lda);
                expect("ger", spelling, 0, 1);
                free(found);
            }
            free(a), free(x), free(y), free(expected);
        }
}

static R N(size)(T a) { return (R)(fabs((double)N(re)(a)) + fabs((double)N(im)(a))); }

static void N(test_level1)(int64_t n, int64_t incx, int64_t incy) {
    T *x = N(array)(N(span)(n, incx)), *y = N(array)(N(span)(n, incy)), alpha = N(of)(0.75, -1.5);
    T *xs = N(packed)(x, n, incx), *ys = N(packed)(y, n, incy);
    for (int spelling = 0; spelling < SPELLINGS; spelling++) {
        for (int conj = 0; conj <= (sizeof(T) > sizeof(R)); conj++) {
            T found = N(dot)(spelling, conj, n, x, incx, y, incy), expected = N(ordered)(xs, ys, (size_t)n, conj);
            N(same)("dot", spelling, &found, &expected, 1);
        }
        R norm = N(nrm2)(spelling, n, x, incx), root = SQRT(N(re)(N(ordered)(xs, xs, (size_t)n, 1)));
        if (memcmp(&norm, &root, sizeof norm) != 0) fail("nrm2", spelling, "other bits");
        int64_t largest = 0;
        for (int64_t i = 0; i < n && incx > 0; i++)
            if (i == 0 || N(size)(xs[i]) > N(size)(xs[largest - 1])) largest = i + 1;
        if (!is_fortran(spelling) && largest == 0) largest = 1;
        if (N(iamax)(spelling, n, x, incx) != largest) fail("iamax", spelling, "another place");
        T *found = N(copy)(y, N(span)(n, incy)), *expected = N(copy)(y, N(span)(n, incy));
        for (int64_t i = 0; i < n; i++) {
            T *to = N(entry)(expected, n, incy, i);
            *to = incy == 0 ? N(fma)(alpha, xs[i], *to) : N(fma)(alpha, xs[i], ys[i]);
        }
        N(axpy)(spelling, n, alpha, x, incx, found, incy);
        N(axpy)(spelling, n, N(of)(0, 0), NULL, incx, found, incy);
        N(same)("axpy", spelling, found, expected, N(span)(n, incy));
        free(found), free(expected);
        found = N(copy)(x, N(span)(n, incx)), expected = N(copy)(x, N(span)(n, incx));
        for (int64_t i = 0; i < n && incx > 0; i++) *N(entry)(expected, n, incx, i) = N(mul)(alpha, xs[i]);
        N(scal)(spelling, n, alpha, found, incx);
        N(scal)(spelling, n, N(of)(1, 0), NULL, incx);
        N(same)("scal", spelling, found, expected, N(span)(n, incx));
#ifdef PAIR
        for (int64_t i = 0; i < n && incx > 0; i++) {
            T *to = N(entry)(expected, n, incx, i);
            to->re *= (R)-0.375, to->im *= (R)-0.375;
        }
        N(scal_by_real)(spelling, n, (R)-0.375, found, incx);
        N(same)("scal by a real", spelling, found, expected, N(span)(n, incx));
#endif
        free(found), free(expected);
    }
    free(x), free(y), free(xs), free(ys);
}

/* A norm whose squares are beyond the numbers: a power of two changes no bit of it. */
static void N(test_large_and_tiny_norms)(void) {
    enum { LEN = 300 };
    T *x = N(array)(LEN), *far = N(array)(LEN);
    R norm = SQRT(N(re)(N(ordered)(x, x, LEN, 1)));
    int most = sizeof(R) == 4 ? 110 : 1000;
    for (int exponent = -most; exponent <= most; exponent += most / 5) {
        for (int i = 0; i < LEN; i++) far[i] = N(of)(LDEXP(N(re)(x[i]), exponent), LDEXP(N(im)(x[i]), exponent));
        R found = N(nrm2)(4, LEN, far, 1);
        if (found != LDEXP(norm, exponent)) fail("nrm2", 4, "a norm of other bits, of large or tiny entries");
        compared++;
    }
    far[7] = N(of)(-INFINITY, 0);
    if (N(nrm2)(4, LEN, far, 1) != INFINITY) fail("nrm2", 4, "not infinite");
    far[3] = N(of)(NAN, 0);
    if (!isnan(N(nrm2)(4, LEN, far, 1))) fail("nrm2", 4, "not NaN");
    /* As in the reference: a NaN that comes first is the largest, and another one never is. */
    for (int64_t len = 1; len <= 70; len++)
        for (int64_t at = 0; at < len; at++) {
            T some[70];
            for (int64_t i = 0; i < len; i++) some[i] = i == at ? N(of)(NAN, 0) : N(of)((R)(i % 3), 0);
            int64_t largest = 0;
            for (int64_t i = 1; i < len; i++)
                if (N(size)(some[i]) > N(size)(some[largest])) largest = i;
            if (N(iamax)(0, len, some, 1) - is_fortran(0) != largest) fail("iamax", 0, "another place beside NaN");
        }
    memset(far, 0, LEN * sizeof *far);
    if (N(nrm2)(4, LEN, far, 1) != 0) fail("nrm2", 4, "not 0");
    far[9] = N(of)(LDEXP(1, sizeof(R) == 4 ? -149 : -1074), 0);
    if (N(nrm2)(4, LEN, far, 1) != N(re)(far[9])) fail("nrm2", 4, "not the least number");
    free(x), free(far);
}

static void N(test_errors)(void) {
    T a[12], x[4], y[4], one = N(of)(1, 0);
    const char *gemv = STRING(B(gemv)), *ger = STRING(GERU), *dot = STRING(DOTU), *dot_c = STRING(DOTU_C);
    const int64_t huge = INT64_C(1) << 62;
    for (int i = 0; i < 12; i++) a[i] = N(of)(i, 0);
    for (int i = 0; i < 4; i++) x[i] = y[i] = N(of)(7, 0);
    T *odd = (T *)(void *)((char *)x + 1);
    for (int s = 0; s < SPELLINGS; s++)
        for (int layout = is_fortran(s) ? COLUMNS : ROWS; layout <= COLUMNS; layout++) {
            int64_t lda = layout == ROWS ? 4 : 3;
#define GEMV(argument, ...) N(gemv)(s, __VA_ARGS__), expect(gemv, s, argument, 1)
            if (!is_fortran(s)) N(gemv)(s, 7, 111, 3, 4, one, a, lda, x, 1, one, y, 1), expect(gemv, s, 1, 0);
            GEMV(1, layout, 0, 3, 4, one, a, lda, x, 1, one, y, 1);
            GEMV(2, layout, 111, -1, 4, one, a, lda, x, 1, one, y, 1);
            GEMV(3, layout, 111, 3, -1, one, a, lda, x, 1, one, y, 1);
            GEMV(5, layout, 111, 3, 4, one, NULL, lda, x, 1, one, y, 1);
            GEMV(5, layout, 111, 3, 4, one, odd, lda, x, 1, one, y, 1);
            GEMV(6, layout, 111, 3, 4, one, a, lda - 1, x, 1, one, y, 1);
            GEMV(6, layout, 111, 0, 0, one, a, 0, x, 1, one, y, 1);
            GEMV(7, layout, 111, 3, 4, one, a, lda, NULL, 1, one, y, 1);
            GEMV(8, layout, 111, 3, 4, one, a, lda, x, 0, one, y, 1);
            GEMV(10, layout, 111, 3, 4, one, a, lda, x, 1, one, NULL, 1);
            GEMV(11, layout, 111, 3, 4, one, a, lda, x, 1, one, y, 0);
            /* The first wrong one is told, and nothing is read where there is nothing to compute. */
            GEMV(2, layout, 111, -1, -1, one, NULL, 0, NULL, 0, one, NULL, 0);
            GEMV(0, layout, 111, 0, 4, one, NULL, 4, NULL, 1, one, NULL, 1);
            GEMV(0, layout, 111, 3, 0, one, NULL, 3, NULL, 1, N(of)(0, 0), y, 1);
#define GER(argument, ...) N(ger)(s, 0, __VA_ARGS__), expect(ger, s, argument, 1)
            if (!is_fortran(s)) N(ger)(s, 0, 7, 3, 4, one, x, 1, y, 1, a, lda), expect(ger, s, 1, 0);
            GER(1, layout, -1, 4, one, x, 1, y, 1, a, lda);
            GER(2, layout, 3, -1, one, x, 1, y, 1, a, lda);
            GER(4, layout, 3, 4, one, NULL, 1, y, 1, a, lda);
            GER(5, layout, 3, 4, one, x, 0, y, 1, a, lda);
            GER(6, layout, 3, 4, one, x, 1, NULL, 1, a, lda);
            GER(7, layout, 3, 4, one, x, 1, y, 0, a, lda);
            GER(8, layout, 3, 4, one, x, 1, y, 1, NULL, lda);
            GER(9, layout, 3, 4, one, x, 1, y, 1, a, lda - 1);
            GER(0, layout, 0, 4, one, NULL, 1, NULL, 1, NULL, lda);
            if (is_wide(s)) {
                GEMV(6, layout, 111, huge, huge, one, a, huge, x, 1, one, y, 1);
                GEMV(8, layout, 111, 3, 4, one, a, lda, x, INT64_MIN, one, y, 1);
                GEMV(11, layout, 111, 3, 4, one, a, lda, x, 1, one, y, INT64_MAX);
                GER(9, layout, 3, 4, one, x, 1, y, 1, a, huge);
            }
        }
    for (int s = 0; s < SPELLINGS; s++) {
        const char *name = is_fortran(s) ? dot : dot_c;
        N(dot)(s, 0, 4, NULL, 1, y, 1), expect(name, s, 2, 0);
        N(dot)(s, 0, 4, x, 1, NULL, 1), expect(name, s, 4, 0);
        N(nrm2)(s, 4, NULL, 1), expect(STRING(NRM2), s, 2, 0);
        N(axpy)(s, 4, one, NULL, 1, y, 1), expect(STRING(B(axpy)), s, 3, 0);
        N(axpy)(s, 4, one, x, 1, NULL, 1), expect(STRING(B(axpy)), s, 5, 0);
        N(scal)(s, 4, N(of)(2, 0), NULL, 1), expect(STRING(B(scal)), s, 3, 0);
#ifdef PAIR
        /* Of one entry the step does not matter. */
        T single = N(of)(2, -4);
        N(scal_by_real)(s, 1, (R)0.5, &single, is_wide(s) ? INT64_MAX : INT32_MAX), expect("", s, 0, 0);
        if (N(re)(single) != 1 || N(im)(single) != -2) fail("scal by a real", s, "one entry is not scaled");
#endif
        if (is_wide(s)) N(axpy)(s, huge, one, x, 4, y, 1), expect(STRING(B(axpy)), s, 3, 0);
        /* No entries, and steps that the BLAS answers by doing nothing. */
        T none = N(dot)(s, 0, -5, NULL, 1, NULL, 1);
        if (!N(is)(none, 0) || N(nrm2)(s, 0, NULL, 1) != 0) fail("dot", s, "an empty sum is not 0");
        N(axpy)(s, 0, one, NULL, 1, NULL, 1), N(scal)(s, 4, N(of)(2, 0), NULL, 0), expect("", s, 0, 0);
    }
    for (int i = 0; i < 12; i++)
        if (!N(is)(a[i], i)) fail("errors", 0, "A was written");
    for (int i = 0; i < 4; i++)
        if (!N(is)(x[i], 7) || !N(is)(y[i], 7)) fail("errors", 0, "a vector was written");
#undef GEMV
#undef GER
}

static void N(all)(void) {
    const int64_t sizes[][2] = {{0, 3}, {3, 0}, {1, 1}, {2, 2}, {5, 3}, {33, 7}, {3, 64}, {17, 300}, {40, 257}, {300, 20}, {2, 66000}};
    const int64_t steps[][2] = {{1, 1}, {2, -1}, {-3, 2}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes - (is_short ? 3 : 0); k++)
        for (int s = 0; s < (sizes[k][1] > 1000 ? 1 : 3); s++) {
            N(test_gemv)(sizes[k][0], sizes[k][1], steps[s][0], steps[s][1], s);
            if (sizes[k][1] < 1000) N(test_ger)(sizes[k][0], sizes[k][1], steps[s][0], steps[s][1], s);
        }
    const int64_t lengths[] = {0, 1, 2, 5, 64, 257, 70000};
    const int64_t both[][2] = {{1, 1}, {2, 3}, {-1, 2}, {0, 1}, {1, 0}, {-2, -2}};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths - (is_short ? 1 : 0); k++)
        for (size_t s = 0; s < sizeof both / sizeof *both; s++) N(test_level1)(lengths[k], both[s][0], both[s][1]);
    N(test_large_and_tiny_norms)();
    N(test_errors)();
}

#undef T
#undef N
#undef B
#undef FACTOR
#undef PASS
#undef GERU
#undef DOTU
#undef DOTU_C
#undef L
#undef R
#undef PAIR
#undef FMA
#undef SQRT
#undef LDEXP
#undef NRM2
#undef IAMAX
#undef SCAL_BY_REAL
