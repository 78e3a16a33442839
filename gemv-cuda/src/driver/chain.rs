//! Steps of a record that share a launch: `vector_chain` of `vector.k` in gemv_gpu. What it is given, as data.

use gemv_core::Step;

use super::function::Keep;

/// Most operands, and most steps, of a launch.
const MOST: usize = 16;
/// Most bytes of an operand: a block has the bandwidth of one multiprocessor, and longer vectors are
/// faster with a launch a step.
const LONGEST: usize = 32 << 10;
/// Bytes of shared memory that the kernel has for itself: 64 sums, its parameters, barriers.
pub(super) const OWN: u32 = 64 * 16 + size_of::<Argument>() as u32;

/// One step of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Link {
    /// Of each entry, a plain one.
    Step(Step),
    /// The one entry of y becomes the dot product of x and z.
    Dot {
        /// Of the conjugate of x.
        conj: bool,
    },
}

impl Link {
    /// The code in `vector.k`, and the place of a step's function among those of all steps.
    pub(crate) fn code(self) -> u32 {
        let place = |step| Step::PLAIN.iter().position(|of| *of == step).expect("a plain step");
        match self {
            Link::Step(step) => place(step) as u32,
            Link::Dot { .. } => Step::PLAIN.len() as u32,
        }
    }
}

/// A vector or a number, where it lies in memory.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) dim: [usize; 3],
    /// Along the last axis, in elements.
    pub(super) stride: isize,
    pub(super) keep: Keep,
}

/// What a step is given. Of a dot product x and z.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) y: Place,
    /// x, z, the factor or its numerator, its denominator.
    pub(super) others: [Option<Place>; 4],
    pub(super) number: [u32; 4],
    pub(super) negate: bool,
}

/// Steps that wait for those that may follow.
#[derive(Debug)]
pub(super) struct Chain {
    /// Bytes of an element.
    element: usize,
    operands: Vec<Operand>,
    steps: Vec<[u32; 16]>,
    pub(super) memory: Vec<Keep>,
    /// Bytes of shared memory that the operands have.
    pub(super) shared: u32,
}

/// One vector, or number, of a chain.
#[derive(Debug, Clone, Copy)]
struct Operand {
    address: u64,
    stride: i64,
    length: u32,
    /// Its first element in shared memory.
    at: u32,
    read: Read,
    /// Whether a step has written it.
    written: bool,
    /// Bytes from its first to the end of its last element.
    span: (u64, u64),
}

/// Whether an operand is read before a step writes it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Read {
    Never,
    ByTheFirstStep,
    Later,
}

fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

impl Operand {
    fn new(of: &Place, element: usize) -> Option<Operand> {
        let [1, 1, len] = of.dim else { return None };
        if len == 0 || len * element > LONGEST {
            return None;
        }
        // Of a single element the stride says nothing.
        let (address, stride) = (of.address, if len == 1 { 1 } else { of.stride as i64 });
        let far = (len as i64 - 1) * stride * element as i64;
        let span = (
            address.wrapping_add_signed(far.min(0)),
            address.wrapping_add_signed(far.max(0)) + element as u64,
        );
        let (at, read, written) = (0, Read::Never, false);
        Some(Operand { address, stride, length: len as u32, at, read, written, span })
    }

    /// Bytes of shared memory. A pack is 16 bytes.
    fn bytes(&self, element: usize) -> u32 {
        (self.length * element as u32).next_multiple_of(16)
    }

    /// Whether it lies in packs.
    fn packed(&self) -> bool {
        self.stride == 1 && self.address.is_multiple_of(16)
    }

    /// `OPERAND` of `vector.k`.
    fn words(&self, element: usize) -> [u32; 8] {
        let [a0, a1] = halves(self.address);
        let [s0, s1] = halves(self.stride as u64);
        // An allocation ends with a whole pack, so the last one may be copied whole.
        let bulk = if self.packed() { self.bytes(element) } else { 0 };
        [a0, a1, s0, s1, self.length, self.at, self.read as u32, bulk]
    }
}

/// `PIECES` of `vector.k`: what is prefetched for the launch behind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Pieces {
    address: u64,
    distance: u64,
    bytes: u32,
    pub(super) count: u32,
}

/// `CHAIN` of `vector.k`: numbers of operands and steps, pieces, and the words of each.
#[repr(C, align(16))]
pub(super) struct Argument([u32; 8 + MOST * (8 + 16)]);

impl Argument {
    pub(super) fn new(chain: &Chain, pieces: Pieces) -> Argument {
        let strided =
            chain.operands.iter().any(|of| of.read != Read::Never && of.length > 1 && !of.packed());
        let counts = chain.operands.len() as u32 | (chain.steps.len() as u32) << 16;
        let [a0, a1] = halves(pieces.address);
        let [d0, d1] = halves(pieces.distance);
        let head = [counts, strided.into(), a0, a1, d0, d1, pieces.bytes, pieces.count];
        let operands = chain.operands.iter().flat_map(|of| of.words(chain.element));
        let steps = chain.steps.iter().flatten().copied();
        let mut all = [0; 8 + MOST * (8 + 16)];
        let words = head.into_iter().chain(operands).chain(steps);
        all.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        Argument(all)
    }
}

/// Memory that is prefetched lies in lines at one distance; a part of each, so that the launch behind finds
/// some of whatever it reads first in the cache, and reads the rest from memory meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Lines {
    address: u64,
    count: u64,
    distance: u64,
    bytes: u64,
}

impl Lines {
    /// Lines of memory without gaps, in bytes.
    const LINE: u64 = 16 << 10;
    /// Bytes of a line of the cache.
    const CACHE_LINE: u64 = 128;

    /// Those of a matrix; `None` where its elements do not follow one another, or in falling places.
    pub(super) fn of(
        address: u64,
        dim: [usize; 2],
        strides: [isize; 2],
        element: usize,
    ) -> Option<Lines> {
        let inner = (0..2).find(|&axis| strides[axis] == 1)?;
        let bytes = (dim[inner] * element) as u64;
        let count = dim[1 - inner] as u64;
        let distance = u64::try_from(strides[1 - inner]).ok()? * element as u64;
        if bytes == 0 || count == 0 || distance < bytes {
            return None;
        }
        Some(match distance == bytes {
            true => Lines::without_gaps(address, bytes * count),
            false => Lines { address, count, distance, bytes },
        })
    }

    /// Whole lines, or one that is shorter.
    fn without_gaps(address: u64, bytes: u64) -> Lines {
        let count = (bytes / Lines::LINE).max(1);
        Lines { address, count, distance: Lines::LINE, bytes: Lines::LINE.min(bytes) }
    }

    /// A part of each line: three quarters of the cache at most. Of a matrix that the cache holds from one
    /// product to the next, nothing.
    pub(super) fn pieces(self, cache: u64) -> Pieces {
        let all = self.count * self.bytes;
        if all <= cache / 8 * 5 {
            return Pieces::default();
        }
        let bytes = all.min(cache / 4 * 3) / self.count / Lines::CACHE_LINE * Lines::CACHE_LINE;
        match u32::try_from(self.count) {
            Ok(count) if bytes > 0 => Pieces {
                address: self.address,
                distance: self.distance,
                bytes: bytes as u32,
                count,
            },
            _ => Pieces::default(),
        }
    }
}

impl Chain {
    pub(super) fn new(element: usize) -> Chain {
        let (operands, steps, memory, shared) = Default::default();
        Chain { element, operands, steps, memory, shared }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The place of an operand among those of the chain; `None` where the chain cannot have it.
    fn place(&mut self, of: &Place, most: u32) -> Option<usize> {
        let new = Operand::new(of, self.element)?;
        for (place, known) in self.operands.iter().enumerate() {
            let key = |of: &Operand| (of.address, of.stride, of.length);
            if key(known) == key(&new) {
                return Some(place);
            }
            // Other elements of the same places are taken for the same ones.
            if new.span.0 < known.span.1 && known.span.0 < new.span.1 {
                return None;
            }
        }
        let bytes = new.bytes(self.element);
        if self.operands.len() == MOST || self.shared + bytes > most {
            return None;
        }
        self.operands.push(Operand { at: self.shared / self.element as u32, ..new });
        self.memory.push(of.keep.clone());
        self.shared += bytes;
        Some(self.operands.len() - 1)
    }

    /// The places of y and the others, of which those that are not given are taken to be y.
    fn places(&mut self, given: &Given, most: u32) -> Option<(usize, [usize; 4])> {
        let to = self.place(&given.y, most)?;
        let mut places = [to; 4];
        for (at, of) in places.iter_mut().zip(&given.others) {
            if let Some(of) = of {
                *at = self.place(of, most)?;
            }
        }
        Some((to, places))
    }

    /// Adds a step, if there is a place for each of its operands, in so many bytes of shared memory.
    pub(super) fn add(&mut self, link: Link, given: &Given, most: u32) -> bool {
        if self.steps.len() == MOST {
            return false;
        }
        let before = (self.operands.len(), self.shared);
        let Some((to, places)) = self.places(given, most) else {
            self.operands.truncate(before.0);
            self.memory.truncate(before.0);
            self.shared = before.1;
            return false;
        };
        let there = given.others.each_ref().map(|of| of.is_some());
        let reads_y = matches!(link, Link::Step(step) if step.reads_y());
        let when = if self.steps.is_empty() { Read::ByTheFirstStep } else { Read::Later };
        for (at, reads) in places.into_iter().zip(there).chain([(to, reads_y)]) {
            let of = &mut self.operands[at];
            if reads && of.read == Read::Never && !of.written {
                of.read = when;
            }
        }
        self.operands[to].written = true;
        let (y, [x, z, s, t]) = (self.operands[to], places.map(|at| self.operands[at]));
        let length = if let Link::Dot { .. } = link { x.length } else { y.length };
        let flags = [
            u8::from(there[2]) + u8::from(there[3]),
            u8::from(given.negate),
            u8::from(matches!(link, Link::Dot { conj: true })),
            u8::from(y.packed()),
        ];
        // `CHAINED` of `vector.k`.
        let [n0, n1, n2, n3] = given.number;
        let ([a0, a1], [s0, s1]) = (halves(y.address), halves(y.stride as u64));
        let (code, flags) = (link.code(), u32::from_ne_bytes(flags));
        let [x, z, y, s, t] = [x, z, y, s, t].map(|of| of.at);
        self.steps.push([n0, n1, n2, n3, a0, a1, s0, s1, code, length, x, z, y, s, t, flags]);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A vector of so many f32 at an address.
    fn vector(address: u64, len: usize, stride: isize) -> Place {
        Place { address, dim: [1, 1, len], stride, keep: Arc::new(()) }
    }

    fn axpy(chain: &mut Chain, x: Place, y: Place, factor: Option<Place>) -> bool {
        let given =
            Given { y, others: [Some(x), None, factor, None], number: [0; 4], negate: false };
        chain.add(Link::Step(Step::Axpy), &given, 64 << 10)
    }

    #[test]
    fn an_operand_is_read_once_and_only_if_no_step_has_written_it() {
        let mut chain = Chain::new(4);
        let (x, y, z) = (1 << 20, 2 << 20, 3 << 20);
        assert!(axpy(&mut chain, vector(x, 100, 1), vector(y, 100, 1), None));
        // A number that is an entry of another operand.
        assert!(!axpy(&mut chain, vector(y, 100, 1), vector(z, 100, 1), Some(vector(x, 1, 1))));
        assert!(axpy(&mut chain, vector(y, 100, 1), vector(z, 100, 1), None));
        let dot = Given {
            y: vector(64, 1, 1),
            others: [Some(vector(y, 100, 1)), Some(vector(z, 100, 1)), None, None],
            number: [0; 4],
            negate: false,
        };
        assert!(chain.add(Link::Dot { conj: true }, &dot, 64 << 10));
        assert!(axpy(&mut chain, vector(x, 100, 1), vector(y, 100, 1), Some(vector(64, 1, 1))));
        let reads: Vec<_> = chain.operands.iter().map(|of| (of.address, of.read)).collect();
        let (first, later) = (Read::ByTheFirstStep, Read::Later);
        // The number at 64 is the dot product's, and is read by nobody before.
        let want = [(y, first), (x, first), (z, later), (64, Read::Never)];
        assert_eq!(reads, want);
        // Of the dot product: its code, the length of x, conjugated.
        let step = chain.steps[2];
        assert_eq!((step[8], step[9]), (Step::PLAIN.len() as u32, 100));
        assert_eq!(step[15].to_ne_bytes(), [0, 0, 1, 1]);
        // A number of 4 bytes at 64 lies in a pack of its own. A factor is told.
        assert_eq!(chain.steps[3][15].to_ne_bytes(), [1, 0, 0, 1]);
        assert_eq!(chain.shared, 3 * 400 + 16);
    }

    #[test]
    fn a_chain_refuses_what_it_cannot_have() {
        let mut chain = Chain::new(4);
        let (x, y) = (1 << 20, 2 << 20);
        for (x, y, why) in [
            (vector(x, 8193, 1), vector(y, 8193, 1), "too long"),
            (vector(x, 0, 1), vector(y, 0, 1), "nothing"),
            (Place { dim: [1, 2, 3], ..vector(x, 6, 1) }, vector(y, 6, 1), "two axes"),
        ] {
            assert!(!axpy(&mut chain, x, y, None), "{why}");
        }
        assert!(chain.is_empty());
        assert!(axpy(&mut chain, vector(x, 8, 1), vector(y, 8, 1), None));
        // Some of the same places, but not the same ones; also backwards.
        assert!(!axpy(&mut chain, vector(x + 16, 8, 1), vector(y, 8, 1), None));
        assert!(!axpy(&mut chain, vector(x + 40, 8, -2), vector(y, 8, 1), None));
        assert!(axpy(&mut chain, vector(x + 32, 8, 1), vector(y, 8, 1), None));
        // No more steps, operands or memory.
        while chain.steps.len() < MOST {
            assert!(axpy(&mut chain, vector(x, 8, 1), vector(y, 8, 1), None));
        }
        assert!(!axpy(&mut chain, vector(x, 8, 1), vector(y, 8, 1), None));
        let mut chain = Chain::new(4);
        let all = (0..20).filter(|k| {
            let k = *k as u64 * 64;
            axpy(&mut chain, vector(x + k, 8, 1), vector(y + k, 8, 1), None)
        });
        assert_eq!(all.count(), MOST / 2);
        let mut chain = Chain::new(4);
        let long = |at| vector(at, 8192, 1);
        assert!(axpy(&mut chain, long(x), long(y), None));
        assert!(!axpy(&mut chain, long(x), long(3 << 20), None));
    }

    #[test]
    fn what_is_prefetched_lies_in_the_matrix_and_fits_the_cache() {
        let cache = 60 << 20;
        for (count, bytes, distance) in [
            (1, 1 << 10, 16 << 10),
            (4096, 16 << 10, 16 << 10),
            (1 << 20, 16 << 10, 16 << 10),
            (300_000, 400, 1000),
            (5, 40 << 20, 50 << 20),
        ] {
            let lines = Lines { address: 4096, count, distance, bytes };
            let Pieces { address, distance: apart, bytes: piece, count: pieces } =
                lines.pieces(cache);
            if pieces == 0 {
                let least = count * Lines::CACHE_LINE;
                assert!(count * bytes <= cache / 8 * 5 || least > cache / 4 * 3, "{lines:?}");
                continue;
            }
            assert_eq!((address, apart, u64::from(pieces)), (4096, distance, count));
            assert!(u64::from(piece) <= bytes && piece.is_multiple_of(128), "{lines:?}");
            assert!(u64::from(piece) * count <= cache / 4 * 3, "{lines:?}");
        }
    }

    #[test]
    fn a_matrix_without_gaps_has_lines_of_its_memory() {
        let whole = |bytes: u64| {
            let Lines { count, bytes, distance, .. } = Lines::without_gaps(0, bytes);
            (count, bytes, distance)
        };
        assert_eq!(whole(100), (1, 100, Lines::LINE));
        assert_eq!(whole(3 * Lines::LINE + 5), (3, Lines::LINE, Lines::LINE));
    }
}
