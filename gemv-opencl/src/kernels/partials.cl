// What the kernels with whole rows in a thread share: PARTIALS <= 8 partial sums of ROWS * VEC values, which
// merge as they come.
#ifndef ROWS
#define ROWS 1
#endif

// Which of them comes b-th: b with its bits reversed, as digits.
#define VISITED(b) \
  ((PARTIALS == 8 ? 0x73516240u : PARTIALS == 4 ? 0x3120u : 0x10u) >> ((b) * 4) & 7u)

// Merges the b-th with those of 1, 2 and 4 partials that wait for it in `open`, or leaves it there.
// After the last one, `sum` is the sum of all.
STATIC void merge(ACC *open, ACC *sum, const U32 partials, const U32 b) {
  bool goes_on = true;
#pragma unroll
  for (U32 k = 0; k < 3; k++) {
    if (1u << k >= partials) continue;
    if (goes_on && (b >> k & 1u) == 0) {
      goes_on = false;
#pragma unroll
      for (U32 i = 0; i < ROWS * VEC; i++) open[k * (ROWS * VEC) + i] = sum[i];
    }
    if (goes_on)
#pragma unroll
      for (U32 i = 0; i < ROWS * VEC; i++) sum[i] = acc_add(open[k * (ROWS * VEC) + i], sum[i]);
  }
}
