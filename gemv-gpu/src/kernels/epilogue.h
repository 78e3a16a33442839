// Behind the prelude, steps.h and functions.h, in programs of CUDA that add a bias and take a function where they write y. The
// kernels' `const ACC beta` is rendered as `const EPILOGUE beta`.
//
// The entry of y at p has the bias at ((p - y) / by) % count * stride: y's strides are multiples of one another.
struct EPILOGUE {
  const ELEM *bias; // null if there is none
  const ELEM *y;
  U64 by, count;
  I64 stride;
  U64 unused;
  ACC beta;
};
STATIC bool acc_is(const EPILOGUE &of, const REAL v) { return acc_is(of.beta, v); }
STATIC void finish(ELEM *p, const ACC alpha, const ACC sum, const EPILOGUE &of) {
  ELEM entry = ELEM();
  if (!acc_is(of.beta, (REAL)0)) entry = *p;
  finish(&entry, alpha, sum, of.beta);
  if (of.bias) {
    const U64 at = (U64)(p - of.y);
    const bool small = (at | of.by | of.count) >> 32 == 0;
    const U64 place = small ? (U32)at / (U32)of.by % (U32)of.count : at / of.by % of.count;
    entry = narrow(acc_add(widen(entry), widen(of.bias[(I64)place * of.stride])));
  }
#ifdef FUNCTION
  entry = narrow(FUNCTION(widen(entry)));
#endif
  *p = entry;
}
#undef STEP
#undef R_
#undef SUB_
#undef TERM_

