//! What a format is to a kernel.

/// A format as a type, so that a backend can compile its loops for each, under a target feature.
///
/// [`with_blocks!`](crate::with_blocks) gives the type of a [`Format`](crate::Format). Functions panic where a slice
/// has another length than they ask for.
///
/// ```
/// use gemv_packed::{Blocks, Q8_0};
///
/// let mut block = [0; Q8_0::BYTES];
/// Q8_0::encode(&[1.0; Q8_0::LEN], &mut block);
/// let (mut values, mut codes) = ([0.0; Q8_0::LEN], [0; Q8_0::LEN]);
/// Q8_0::decode(&block, &mut values);
/// Q8_0::codes(&block, &mut codes);
/// assert_eq!((values[0], codes[0]), (0.99993896, 127)); // the scale 1 / 127 is rounded to f16
/// ```
pub trait Blocks: Copy + Send + Sync + 'static {
    /// Elements of a block: a multiple of 16 that divides 256.
    const LEN: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Bits of a code: 4, 6 or 8.
    const CODE_BITS: u32;
    /// Bytes of all fields but the codes, of 256 columns of a row, as [`fields`](Self::fields) writes them: a multiple
    /// of 4.
    const FIELDS: usize;
    /// The expression of an element.
    const EXPRESSION: &'static str;

    /// The elements of one block: `block` has [`BYTES`](Self::BYTES), `to` [`LEN`](Self::LEN) entries.
    fn decode(block: &[u8], to: &mut [f32]);

    /// The code of each element of one block, in order of columns, as the low bits of a byte: `block` has
    /// [`BYTES`](Self::BYTES), `to` [`LEN`](Self::LEN).
    fn codes(block: &[u8], to: &mut [u8]);

    /// The other fields of the blocks of 256 columns of a row, in the order that the format's page says, each number of
    /// several bytes with its low byte first. `blocks` are those that are there, 256 / [`LEN`](Self::LEN) at most; of
    /// the others zeros are written. `to` has [`FIELDS`](Self::FIELDS) bytes. By default they are what a block begins with.
    fn fields(blocks: &[u8], to: &mut [u8]) {
        assert_eq!(to.len(), Self::FIELDS, "the fields of 256 columns");
        to.fill(0);
        let each = Self::FIELDS * Self::LEN / 256;
        for (to, block) in to.chunks_exact_mut(each).zip(blocks.chunks_exact(Self::BYTES)) {
            to.copy_from_slice(&block[..each]);
        }
    }

    /// Rounds finite weights to one block, as the format's page says: `from` has [`LEN`](Self::LEN) entries, `block`
    /// [`BYTES`](Self::BYTES).
    fn encode(from: &[f32], block: &mut [u8]);
}
