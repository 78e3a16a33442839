// What kernels share whose teams hold a segment of ROWS rows, and of x, in registers: thread t of a team has, of each 64
// columns, the vectors t, t + TEAM, ... Stands between vectors.cu and each of them.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef TEAM
#define TEAM 16
#endif
#ifndef ROWS
#define ROWS 1
#endif
#define SLOTS (64 / (TEAM * VEC))
#define LOADS (4 * SLOTS)

// Registers of a thread for A and x, for sums, two for every load's address and condition, and OWN for what the kernel
// keeps besides; and how many threads of a unit are to find room: so many bytes have to be under way to keep memory busy.
#define WORD(bytes) (((bytes) + 3) / 4)
#define HELD                                                                               \
  (LOADS * WORD(VEC * ELEM_BYTES) * (ROWS + 1) + SLOTS * VEC * ROWS * WORD(sizeof(ACC)) + 2 * LOADS + OWN)
#define RESIDENT (HELD <= 48 ? 1024 : HELD <= 88 ? 512 : 256)
#define BOUNDS __launch_bounds__(THREADS, RESIDENT > THREADS ? RESIDENT / THREADS : 1)

// Of vectors from column `from` on, the elements from column `cols` on: their products leave any sum as it is. (A pair
// has no such factors: there, `add_products` asks for each.)
STATIC void end_row(PACK (&av)[ROWS][LOADS], PACK (&xv)[LOADS], const U32 from, const U32 cols) {
#if VEC > 1 && !COMPLEX
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
#pragma unroll
    for (U32 c = 0; c < VEC; c++)
      if (from + k * TEAM * VEC + c >= cols) {
        xv[k].e[c] = MINUS_ZERO;
#pragma unroll
        for (U32 r = 0; r < ROWS; r++) av[r][k].e[c] = 0;
      }
#endif
}

// Adds the products of the vectors that begin before column `end`, of the columns before `cols`.
STATIC void add_products(ACC (&acc)[ROWS][SLOTS][VEC], const PACK (&av)[ROWS][LOADS], const PACK (&xv)[LOADS],
                         const U32 from, const U32 end, const U32 cols, const bool conj) {
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
    if (from + k * TEAM * VEC < end)
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
#pragma unroll
        for (U32 c = 0; c < VEC; c++)
          if (!COMPLEX || VEC == 1 || from + k * TEAM * VEC + c < cols)
            acc[r][k % SLOTS][c] = acc_fma(conj_if(widen(av[r][k].e[c]), conj), widen(xv[k].e[c]),
                                           acc[r][k % SLOTS][c]);
}
