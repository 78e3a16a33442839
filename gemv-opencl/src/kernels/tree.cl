// What col_cpu.cl and gemm_col_cpu.cl share: lanes in bit-reversed order, and the stack of partial
// vectors, WIDES apart, that replaces them.

// Bit-reversal of the low `bits` bits; at most 6.
STATIC U32 reversed(const U32 b, const U32 bits) {
  const U32 two = (b & 0x15u) << 1 | (b >> 1 & 0x15u);
  return ((two & 3u) << 4 | (two & 0xcu) | two >> 4) >> (6 - bits);
}
// The bits of a lane number below `lanes`; at most 6.
STATIC U32 bits_for(U64 lanes) {
  U32 bits = 0;
  while (bits < 6 && (1u << bits) < lanes) bits++;
  return bits;
}

// Pushes lane number b of a halving tree: merges v with the complete partial sums of the stack. With
// `first` above 0, v is the sum of the 1 << first lanes from b on.
#define MERGE(stack, b, w, v) MERGE_FROM(0, stack, b, w, v)
#define MERGE_FROM(first, stack, b, w, v)                          \
  do {                                                             \
    U32 level_ = (first);                                          \
    for (; (b) >> level_ & 1u; level_++) v = sums_add((stack)[level_ * WIDES + (w)], v); \
    (stack)[level_ * WIDES + (w)] = v;                             \
  } while (0)
