// gemm-col-smem: Y = alpha A X + beta Y for many small column-major matrices of up to 128 columns, one right-hand side each. A
// block copies whole matrices and their X to shared memory; there a thread has whole rows.
//
//   entries    Each block has as many neighbouring ones, the last one fewer.
//   rows       Thread t has rows t, t + THREADS, .. of all of them: neighbours read and write neighbouring elements.
//   flat       Matrices without gaps are one run of elements, which is copied by the widest loads, wherever it begins;
//              others are copied by elements. So is X.
//   sums       are those of smem_rows.cuh.
//   never read A and X where alpha = 0; Y where beta = 0; vectors without an element of the block's matrices and of their X. The
//              ones at the ends are read whole; allocations begin and end with a whole one.

KERNEL(THREADS) gemm_col_smem(GEMM_ARGUMENTS) {
  extern __shared__ __align__(16) unsigned char shared[];
  begin(false);
  const U64 each = ceil_div(batch, GROUPS), entry = GROUP_ID * each;
  if (entry >= batch) return;
  const U32 entries = (U32)(batch - entry < each ? batch - entry : each), height = (U32)m, len = (U32)n;
  // Entry and row of it, and what comes to them from one row of the thread to the next.
  U32 e = LID / height, i = LID - e * height;
  const U32 e_step = THREADS / height, i_step = THREADS - e_step * height;
  const auto next = [&]() {
    e += e_step, i += i_step;
    if (i >= height) i -= height, e++;
  };
  ELEM *const out = y + y0 + (I64)entry * yb;
  const bool plain = acc_is(alpha, (REAL)1) && acc_is(beta, (REAL)0);
  if (acc_is(alpha, (REAL)0)) {
    for (; e < entries; next()) finish(out + (I64)e * yb + (I64)i * yrs, alpha, acc_zero(), beta);
    return;
  }

  const U32 size = height * len;
  ELEM *const matrices = (ELEM *)shared, *const xs = matrices + ((U32)each * size + 2 * WIDEST - 1) / WIDEST * WIDEST;
  const ELEM *const from = a + a0 + (I64)entry * ab;
  U32 begins = 0;
  if (rs == 1 && cs == (I64)m && (ab == (I64)size || entries == 1))
    begins = copy_run(matrices, from, entries * size);
  else
    copy_rows(matrices, height, height, entries * len, [&](const U32 column, const U32 row) {
      const U32 of = column / len;
      return from + (I64)of * ab + (I64)(column - of * len) * cs + (I64)row * rs;
    });
  const U32 x_begins = copy_x(xs, x + x0 + (I64)entry * xb, xrs, xb, entries, len);
  copies_are_there();

#pragma unroll 1
  for (; e < entries; next()) {
    const PACK *const own = (const PACK *)(matrices + begins + e * size + i), *const own_x = (const PACK *)(xs + x_begins + e * len);
    const ACC sum = sum_of_row(own, height, own_x, len, conj);
    ELEM *const to = out + (I64)e * yb + (I64)i * yrs;
    if (plain) *to = narrow(sum);
    else finish(to, alpha, sum, beta);
  }
}
