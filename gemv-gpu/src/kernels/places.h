
// Behind the prelude, in CUDA's programs that write y at several places at once: entry i of y, and entry i of arrays in
// the memory of this GPU and of others. `places`, the last argument of each entry point, says how far these are away.
typedef struct {
  U64 count;
  I64 bytes[15]; // from y's entry to that of each place
} OTHER_PLACES;
// Writes over the link need no answer: the end of the kernel waits for them.
STATIC void finish_at_places(ELEM *y, const ACC alpha, const ACC sum, const ACC beta, const OTHER_PLACES &places) {
  finish(y, alpha, sum, beta);
  const ELEM entry = *y;
#pragma unroll 1
  for (U32 k = 0; k < (U32)places.count; k++) *(ELEM *)((char *)y + places.bytes[k]) = entry;
}
#define finish(y, alpha, sum, beta) finish_at_places(y, alpha, sum, beta, places)
