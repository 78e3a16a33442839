// What row-block and row-streamk share: SUBWARP neighbouring threads hold one segment of ROWS rows,
// and of x, in registers. Thread t of a sub-warp owns, of each 64 columns, the vectors
// t, t + SUBWARP, ... Stands between vectors.cuh and the kernel.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef SUBWARP
#define SUBWARP 16
#endif
#ifndef ROWS
#define ROWS 1
#endif
#define SLOTS (64 / (SUBWARP * VEC))
#define LOADS (4 * SLOTS)

// Registers of a thread: for A and x, for sums, two for the address and the condition of each load, and
// EXTRA_REGISTERS of the kernel's own. So many threads of a multiprocessor are to be resident: that many
// bytes in flight keep memory busy.
#define WORD(bytes) (((bytes) + 3) / 4)
#define REGISTERS                                                                               \
  (LOADS * WORD(VEC * ELEM_BYTES) * (ROWS + 1) + SLOTS * VEC * ROWS * WORD(sizeof(ACC)) + 2 * LOADS + EXTRA_REGISTERS)
#ifdef A_DTYPE
#undef REGISTERS
#define REGISTERS                                                                               \
  (LOADS * (WORD(VEC * A_ELEM_BYTES) * ROWS + WORD(VEC * ELEM_BYTES)) +                         \
   SLOTS * VEC * ROWS * WORD(sizeof(ACC)) + 2 * LOADS + EXTRA_REGISTERS)
#endif // A_DTYPE
#define RESIDENT_THREADS (REGISTERS <= 48 ? 1024 : REGISTERS <= 88 ? 512 : 256)
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, RESIDENT_THREADS > THREADS ? RESIDENT_THREADS / THREADS : 1)

// Replaces the elements from column `cols` on by factors whose products leave any sum as it is; vectors
// begin at column `from`. (A complex number has no such factors: there, `add_products` has a condition.)
STATIC void end_row(PACK (&av)[ROWS][LOADS], X_PACK (&xv)[LOADS], const U32 from, const U32 cols) {
#if VEC > 1 && !COMPLEX
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
#pragma unroll
    for (U32 c = 0; c < VEC; c++)
      if (from + k * SUBWARP * VEC + c >= cols) {
        xv[k].e[c] = MINUS_ZERO;
#pragma unroll
        for (U32 r = 0; r < ROWS; r++) av[r][k].e[c] = 0;
      }
#endif
}

// Adds the products of the vectors that begin before column `end`, for the columns before `cols`.
STATIC void add_products(ACC (&acc)[ROWS][SLOTS][VEC], const PACK (&av)[ROWS][LOADS], const X_PACK (&xv)[LOADS],
                         const U32 from, const U32 end, const U32 cols, const bool conj) {
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
    if (from + k * SUBWARP * VEC < end)
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
#pragma unroll
        for (U32 c = 0; c < VEC; c++)
          if (!COMPLEX || VEC == 1 || from + k * SUBWARP * VEC + c < cols)
            acc[r][k % SLOTS][c] = acc_fma(conj_if(a_widen(av[r][k].e[c]), conj), widen(xv[k].e[c]),
                                           acc[r][k % SLOTS][c]);
}
