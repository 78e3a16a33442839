// gemm-row-smem: Y = alpha A X + beta Y for many row-major matrices of up to 128 columns, one right-hand side each. A block
// copies its rows and their X to shared memory; there a thread has whole rows.
//
//   rows       The rows of all entries form one list. A block has THREADS * ROWS of them; thread t has rows t, t + THREADS, ..,
//              so that neighbours write neighbouring elements.
//   flat       Rows without gaps of an odd number of vectors are one run of elements, which is copied by the widest
//              loads, wherever it begins. It has no bank conflicts as it is. So is an X without gaps.
//   apart      Other rows begin an odd number of vectors apart in shared memory, and are copied by vectors; where
//              one begins elsewhere, by elements.
//   sums       are those of smem_rows.cuh.
//   never read A and X where alpha = 0; Y where beta = 0; vectors without an element of the block's rows and of their X. The
//              ones at the ends are read whole; allocations begin and end with a whole one.
#ifndef ROWS
#define ROWS 1
#endif
#define BLOCK_ROWS (THREADS * ROWS)

KERNEL(THREADS) gemm_row_smem(GEMM_ARGUMENTS) {
  extern __shared__ __align__(16) unsigned char shared[];
  begin(false);
  const U64 all = m * batch, first = GROUP_ID * BLOCK_ROWS, entry = quotient(first, m), row0 = first - entry * m;
  const U32 count = all - first < BLOCK_ROWS ? (U32)(all - first) : BLOCK_ROWS, len = (U32)n;
  // Of a row of the block: its entry, counted from the first one.
  const auto entry_of = [&](const U32 r) {
    const U64 i = row0 + r;
    return i < m ? 0u : m >= BLOCK_ROWS ? 1u : (U32)i / (U32)m;
  };
  const U32 entries = entry_of(count - 1) + 1;
  // A thread's rows of Y: entry, row of it, and what comes to them from one to the next.
  U32 e = entry_of(LID);
  U64 i = row0 + LID - e * m;
  const U32 e_step = m > THREADS ? 0 : THREADS / (U32)m;
  const U64 i_step = THREADS - e_step * m;
  const auto next = [&]() {
    e += e_step, i += i_step;
    if (i >= m) i -= m, e++;
  };
  ELEM *const out = y + y0 + (I64)entry * yb;
  const bool plain = acc_is(alpha, (REAL)1) && acc_is(beta, (REAL)0);
  if (acc_is(alpha, (REAL)0)) {
    for (U32 r = LID; r < count; r += THREADS, next()) finish(out + (I64)e * yb + (I64)i * yrs, alpha, acc_zero(), beta);
    return;
  }

  // An odd number of vectors.
  const U32 apart = len + (len / VEC % 2 == 0 ? VEC : 0);
  ELEM *const rows = (ELEM *)shared, *const xs = rows + (BLOCK_ROWS * apart + 2 * WIDEST - 1) / WIDEST * WIDEST;
  const ELEM *const from = a + a0 + (I64)entry * ab + (I64)row0 * rs, *const column = x + x0 + (I64)entry * xb;
  // Where the first row begins.
  U32 begins = 0;
  const auto row_at = [&](const U32 r) {
    const U32 e = entry_of(r);
    return from + (I64)r * rs + (I64)e * (ab - (I64)m * rs);
  };
  const bool vectors = VEC == 1 || (BEYOND(from) == 0 && ((rs | ab) & (I64)(VEC - 1)) == 0);
  const bool even = ab == (I64)m * rs || entries == 1;
  if (vectors && even && rs == (I64)n && apart == len)
    begins = copy_run(rows, from, count * len);
  else if (vectors && even)
    copy_rows((WORDS *)rows, apart / VEC, len / VEC, count,
              [&](const U32 r, const U32 j) { return (const WORDS *)(from + (I64)r * rs) + j; });
  else if (vectors)
    copy_rows((WORDS *)rows, apart / VEC, len / VEC, count,
              [&](const U32 r, const U32 j) { return (const WORDS *)row_at(r) + j; });
  else
    copy_rows(rows, apart, len, count, [&](const U32 r, const U32 j) { return row_at(r) + j; });
  const U32 x_begins = copy_x(xs, column, xrs, xb, entries, len);
  copies_are_there();
#pragma unroll 1
  for (U32 r = LID; r < count; r += THREADS, next()) {
    const PACK *const own = (const PACK *)(rows + begins + r * apart), *const own_x = (const PACK *)(xs + x_begins + e * len);
    const ACC sum = sum_of_row(own, 1, own_x, len, conj);
    ELEM *const to = out + (I64)e * yb + (I64)i * yrs;
    if (plain) *to = narrow(sum);
    else finish(to, alpha, sum, beta);
  }
}
