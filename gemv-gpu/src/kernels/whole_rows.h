// Words of the kernels for GPUs whose threads have whole rows, behind each backend's own words for vectors:
// PARTIALS <= 8 partial sums of ROWS * VEC values, of AT_ONCE lanes each, which merge as they come.
//
// CUDA's are templates of `vectors.cuh`, which other kernels have for other arrays.
#ifndef ROWS
#define ROWS 1
#endif
#ifdef __OPENCL_VERSION__
// A launch begins after the one ahead has ended.
#define BEGIN(next_may_begin)
#define LOAD_A(to, p, there) load_if(&(to), p, there)
// For elements that are read before they are known not to be used: a simulator stops at values that were not set.
#define CLEAR(vector)                                      \
  do {                                                     \
    for (U32 w_ = 0; w_ < WORDS; w_++) (vector).w[w_] = 0; \
  } while (0)

// Which partial sum comes b-th: b with its bits reversed, as digits.
#define VISITED(b) \
  ((PARTIALS == 8 ? 0x73516240u : PARTIALS == 4 ? 0x3120u : 0x10u) >> ((b) * 4) & 7u)

// Halves AT_ONCE lanes to one, the first. Trip counts are constant, so that every index is.
#define HALVE(lanes) halve(lanes, AT_ONCE)
STATIC void halve(ACC (*lanes)[ROWS * VEC], const U32 count) {
#pragma unroll
  for (U32 level = 1; level <= 3; level++)
#pragma unroll
    for (U32 q = 0; q < 4; q++)
      if (q < count >> level)
#pragma unroll
        for (U32 i = 0; i < ROWS * VEC; i++)
          lanes[q][i] = acc_add(lanes[q][i], lanes[q + (count >> level)][i]);
}

// Merges the b-th with those of 1, 2 and 4 partials that wait for it in `open`, or leaves it there.
// After the last one, `sum` is the sum of all.
#define MERGE(open, sum, b) merge(open, sum, PARTIALS, b)
STATIC void merge(ACC (*open)[ROWS * VEC], ACC *sum, const U32 partials, const U32 b) {
  bool goes_on = true;
#pragma unroll
  for (U32 k = 0; k < 3; k++) {
    if (1u << k >= partials) continue;
    if (goes_on && (b >> k & 1u) == 0) {
      goes_on = false;
#pragma unroll
      for (U32 i = 0; i < ROWS * VEC; i++) open[k][i] = sum[i];
    }
    if (goes_on)
#pragma unroll
      for (U32 i = 0; i < ROWS * VEC; i++) sum[i] = acc_add(open[k][i], sum[i]);
  }
}
#else
#define BEGIN(next_may_begin) begin(next_may_begin)
#define LOAD_A(to, p, there) load_a(to, p, there)
#define CLEAR(vector)
#define VISITED(b) visited<PARTIALS>(b)
#define HALVE(lanes) halve(lanes)
#define MERGE(open, sum, b) merge<PARTIALS>(open, sum, b)
#endif
