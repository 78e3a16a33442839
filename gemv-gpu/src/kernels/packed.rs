//! `packed-row`: products of packed matrices, and the arrangement in which the kernel reads them. The text is `packed.k`.

use gemv_core::gemv_packed::{Blocks, with_blocks};
use gemv_core::order::SEGMENT;
use gemv_core::{
    Arg, Format, Memory, PackedMatrix, PackedPlace, Params, Result, Values, zeros_on_host,
};

use crate::caps::Language;
use crate::kernel::{Case, Kernel, List, Rule};
use crate::launch::{Launch, Plan};
use crate::{gemm, split};

/// The kernel of packed matrices: of no other product, so that no list of kernels to choose from has it.
///
/// ```
/// use gemv_core::{Desc, Dtype, Format};
/// use gemv_gpu::{Caps, Language, PACKED};
///
/// let desc = Desc::packed(Format::Q8_0, Dtype::F32, (4096, 4096));
/// let mut caps = Caps::new(Language::OpenCl);
/// caps.max_group = 256;
/// let params = PACKED.candidates(&desc, &caps)[0];
/// assert_eq!(PACKED.fits(&desc, &params, &caps), Ok(()));
/// ```
pub static PACKED: Kernel = Kernel {
    name: "packed-row",
    about: "Products of a packed matrix: a warp takes tiles of 8 rows of a segment, whose elements the tensor core computes.",
    source: crate::source![
        gemm::GEMM_PRELUDE,
        include_str!("packed.k"),
        split::REDUCE_SOURCE,
        split::GEMM_REDUCE_SOURCE,
    ],
    args: &[
        Arg {
            name: "format",
            about: "The number of the matrix' format.",
            values: Values::Range(0, Format::ALL.len() as u32 - 1),
            default: 0,
            define: Some("FORMAT"),
        },
        Arg {
            name: "threads",
            about: "Threads of a block, whose warps have a segment each.",
            values: Values::Range(32, 1024),
            default: 256,
            define: Some("THREADS"),
        },
        Arg {
            name: "tile_rhs",
            about: "Columns of X that are multiplied at a time.",
            values: Values::Powers(1, 4),
            default: 1,
            define: Some("TILE_RHS"),
        },
        Arg {
            name: "rows",
            about: "Rows whose sums meet in local memory.",
            values: Values::Powers(8, 256),
            default: 32,
            define: Some("ROWS"),
        },
        Arg {
            name: "passes",
            about: "Segments of each warp.",
            values: Values::Range(1, 64),
            default: 1,
            define: Some("PASSES"),
        },
        Arg {
            name: "stages",
            about: "Copies in flight of each warp, where the device copies to shared memory.",
            values: Values::Range(2, 16),
            default: 4,
            define: Some("STAGES"),
        },
        Arg {
            name: "tiles",
            about: "Tiles of a copy.",
            values: Values::Powers(1, 8),
            default: 1,
            define: Some("TILES"),
        },
        Arg {
            name: "parts",
            about: "Blocks that share rows, each with every parts-th segment; 0: with segments that follow each other, whose sums a second launch adds up.",
            values: Values::Range(0, 32),
            default: 0,
            define: Some("PARTS"),
        },
        Arg {
            name: "plain",
            about: "1 for CPUs: a work-item for each row and segment.",
            values: Values::Range(0, 1),
            default: 0,
            define: Some("PLAIN"),
        },
        Arg {
            name: "ptx",
            about: "1 in OpenCL for the instructions of compute capability 9.0.",
            values: Values::Range(0, 1),
            default: 0,
            define: Some("PTX"),
        },
        Arg {
            name: "blocks",
            about: "Blocks for each multiprocessor.",
            values: Values::Range(1, 64),
            default: 1,
            define: None,
        },
    ],
    rules: &[
        Rule::For(|desc, _| desc.packing.is_some(), "the kernel is for packed matrices"),
        Rule::Holds(|of| of.get("format") == number(of), "the format is not that of the matrix"),
        Rule::Holds(|of| of.get("threads").is_multiple_of(32), "a block has whole warps"),
        Rule::UpTo(&["threads"], |of| of.caps.max_group.into()),
        Rule::Holds(
            |of| of.get("rows") >= 8 * of.get("tiles"),
            "a copy has tiles of the same rows",
        ),
        Rule::Holds(|of| of.get("plain") == 0 || of.get("parts") == 0, "parts is not for CPUs"),
        Rule::Holds(
            |of| of.get("plain") == 1 || of.get("parts") == 1 || of.segments() != 1,
            "a row of one segment is for parts=1",
        ),
        Rule::Holds(
            |of| of.get("parts") == 0 || of.get("parts").is_power_of_two(),
            "parts is a power of two",
        ),
        Rule::Holds(
            |of| {
                let (parts, all) = (of.get("parts"), of.segments());
                parts == 0
                    || (parts <= all.max(1)
                        && all <= parts * segments_of_block(of)
                        && segments_of_block(of) <= 64
                        && all <= SEGMENT as u64)
            },
            "parts blocks share a row of at most 256 segments, of which each has 1 to 64",
        ),
        Rule::Holds(
            |of| of.get("parts") != 1 || of.segments() > 1 || segments_of_block(of) == 1,
            "a row of one segment is for a block of one",
        ),
        Rule::Holds(
            |of| of.get("ptx") == 0 || of.caps.ptx_90 && of.get("plain") == 0,
            "ptx=1 is for NVIDIA's OpenCL, from compute capability 9.0 on",
        ),
        Rule::Holds(
            |of| {
                of.caps.language == Language::Cuda
                    || of.get("ptx") == 1
                    || of.all(["passes", "tiles"]) == [1, 1]
            },
            "without CUDA's instructions a warp has one segment, and reads tiles in place",
        ),
        Rule::Local(|of| {
            let [threads, rows, columns] = of.all(["threads", "rows", "tile_rhs"]);
            match of.caps.language {
                Language::Cuda => 0,
                Language::OpenCl if of.get("plain") == 1 => 0,
                Language::OpenCl if of.get("ptx") == 1 => shared(of),
                Language::OpenCl => {
                    4 * (rows * columns * (threads / 32 + 1) + threads * 2 * columns)
                }
            }
        }),
    ],
    candidates: &[List::Made(shapes), List::Once],
    plan,
    ..Kernel::GEMM
};

/// The number of the matrix' format.
fn number(of: &Case<'_>) -> u64 {
    of.desc.packing.map_or(0, |format| format.number() as u64)
}

fn code_bits(format: Format) -> u64 {
    with_blocks!(format, B => B::CODE_BITS).into()
}

/// Words of a tile of 8 rows and 256 columns.
fn tile_words(format: Format) -> usize {
    with_blocks!(format, B => B::CODE_BITS as usize * 64) + field_bytes(format) * 2
}

/// Bytes of a row's fields in a tile.
fn field_bytes(format: Format) -> usize {
    with_blocks!(format, B => B::FIELDS) + if format == Format::Q4K { 4 } else { 0 }
}

fn segments_of_block(of: &Case<'_>) -> u64 {
    of.get("threads") / 32 * of.get("passes")
}

/// Bytes of shared memory of a block that copies tiles there, as `packed.k` divides it.
fn shared(of: &Case<'_>) -> u64 {
    let tile = tile_words(of.desc.packing.expect("of a packed matrix")) as u64;
    let [stages, tiles, columns] = of.all(["stages", "tiles", "tile_rhs"]);
    let (warps, segments) = (of.get("threads") / 32, segments_of_block(of));
    let found = (2 * of.get("rows") * columns * (segments + 1)).next_multiple_of(4);
    let arrivals = 2 * (warps * stages).next_multiple_of(2);
    let x = match (columns, of.get("passes")) {
        (1, 1) => 0,
        _ => segments * 8 * (32 * columns + 4),
    };
    4 * (warps * stages * tiles * tile + found + arrivals + x)
}

fn shapes(of: &Case<'_>) -> Vec<Params> {
    let (caps, segments) = (of.caps, of.segments().max(1));
    let columns = match of.rhs() {
        0 | 1 => 1,
        2 => 2,
        _ => 4,
    };
    let format = ("format", number(of));
    if caps.cpu {
        return vec![of.with([format, ("threads", 32), ("tile_rhs", columns), ("plain", 1)])];
    }
    if caps.ptx_90 {
        return shapes_of_ptx(of, columns);
    }
    // Warps of a block, as many as registers allow.
    let most = match (caps.language, columns) {
        (Language::Cuda, _) | (_, 1) => 16,
        (_, 2) => 12,
        _ => 8,
    };
    // Where a block has few rows, sums of the first ones would wait for the last ones. Copies of several tiles take fewer
    // instructions: those bound formats of few bits, and memory the others.
    let of_block = of.m().div_ceil(caps.units.max(1).into());
    let (many, bits) = (of_block >= 64, code_bits(of.desc.packing.expect("of a packed matrix")));
    let (rows, stages, tiles) = match (bits, columns) {
        _ if caps.language == Language::OpenCl => (if of_block >= 192 { 128 } else { 64 }, 2, 1),
        (..=6, ..=2) if of_block >= 512 => (128, 2, 4),
        (..=6, _) | (_, 2) if many => (128, 2, 2),
        (..=6, _) => (64, 2, 2),
        _ => (64, if of_block >= 512 || many && columns == 1 { 3 } else { 2 }, 1),
    };
    let mut all = Vec::new();
    for most in [most, most / 2, most / 4] {
        let most = most.min(u64::from(caps.max_group) / 32).max(1);
        let several = match caps.language {
            Language::Cuda if segments <= 64 => segments.div_ceil(most),
            _ => 1,
        };
        // One vector of few bits takes all warps, which do not divide among parts as well.
        if caps.language == Language::Cuda && segments > 64 && (bits == 8 || columns > 1) {
            let parts = segments.div_ceil(most).next_power_of_two();
            all.push(of.with([
                format,
                ("threads", 32 * segments.div_ceil(parts)),
                ("tile_rhs", columns),
                ("rows", 64),
                ("stages", 2),
                ("tiles", 2),
                ("parts", parts),
            ]));
        }
        // One segment a warp needs the least memory for X.
        for passes in [several, 1] {
            let warps = segments.div_ceil(passes).div_ceil(segments.div_ceil(most * passes));
            for (rows, stages, tiles) in [
                (rows, stages, tiles),
                (64, 2, 2),
                (64, 2, 1),
                (32, 2, 2),
                (32, 2, 1),
                (8, 2, 1),
                (128, 2, 4),
            ] {
                all.push(of.with([
                    format,
                    ("threads", 32 * warps),
                    ("tile_rhs", columns),
                    ("rows", rows),
                    ("passes", passes),
                    ("stages", stages),
                    ("tiles", tiles),
                    ("parts", u64::from(segments <= warps * passes)),
                ]));
            }
        }
    }
    all
}

/// In OpenCL a block has less shared memory than in CUDA: rows whose vectors it holds are multiplied as a whole, by few warps that
/// take turns, and others in parts.
fn shapes_of_ptx(of: &Case<'_>, columns: u64) -> Vec<Params> {
    let (caps, segments) = (of.caps, of.segments().max(1));
    let most = (u64::from(caps.max_group) / 32).clamp(1, 16);
    let many = of.m().div_ceil(caps.units.max(1).into()) >= 64;
    let mut all = Vec::new();
    let mut push = |warps: u64, passes, parts, rows, tiles| {
        all.push(of.with([
            ("format", number(of)),
            ("threads", 32 * warps),
            ("tile_rhs", columns),
            ("rows", rows),
            ("passes", passes),
            ("stages", 2),
            ("tiles", tiles),
            ("parts", parts),
            ("ptx", 1),
            ("blocks", (16 / warps).max(1)),
        ]));
    };
    let warps = [most, most / 2, most / 4, most / 8].map(|most| most.max(1));
    let in_parts_first = columns > 1 && many;
    for in_parts in [in_parts_first, !in_parts_first] {
        for most in warps {
            let (passes, parts) = match in_parts {
                true => (1, segments.div_ceil(most).next_power_of_two()),
                false => (segments.div_ceil(most), 1),
            };
            let warps = segments.div_ceil(passes * parts);
            if parts > 1 {
                push(warps, 1, parts, 64, if columns == 2 { 2 } else { 1 });
                push(warps, 1, parts, 64, 1);
            } else if passes == 1 {
                push(warps, 1, 1, if many { 64 } else { 32 }, 1);
            }
            push(warps, passes, parts, 8, 1);
        }
    }
    push(most.min(8), 1, 0, 8, 1);
    push(most.min(2), 1, 0, 8, 1);
    all
}

fn plan(of: &Case<'_>) -> Plan {
    let (m, segments, threads) = (of.m(), of.segments(), of.get("threads"));
    let parts = of.get("parts");
    let groups = match parts {
        0 => segments.div_ceil(segments_of_block(of)).max(1),
        _ => parts,
    };
    let panels = of.rhs().div_ceil(of.get("tile_rhs"));
    // The first row may be any of its tile.
    let tiles = (m + 7).div_ceil(8).max(1);
    // One more than the multiprocessors have would take as long as twice as many.
    let blocks = tiles.min((of.blocks("blocks") / (groups * panels)).max(1));
    let first = Launch::new("packed_row", blocks, threads);
    // The text for CPUs does not wait for the launch ahead.
    let (grid, first) = match of.get("plain") {
        0 => ([blocks * panels, groups, 1], first.waiting()),
        _ => ([(m * segments).div_ceil(threads) * panels, 1, 1], first),
    };
    let shared = match of.caps.language {
        Language::Cuda => shared(of) as u32,
        Language::OpenCl => 0,
    };
    let mut plan = Plan::from(Launch { grid, shared, ..first });
    let outputs = m.saturating_mul(of.rhs());
    if parts > 1 {
        plan.launches.push(Launch::new("packed_reduce", outputs.div_ceil(128), 128));
        plan.workspace = outputs.saturating_mul(parts);
    } else if parts == 0 && segments > 1 {
        let split = split::Split { parts: groups, count: segments, super_segments: false };
        plan.launches.extend(split.gemm_reduce(outputs));
        plan.workspace = split.workspace(outputs);
    }
    plan
}

/// A packed matrix in the arrangement of the kernel, by tiles of 8 rows and 256 columns: words of 32 bits as the f32 that have
/// them, for [`Backend::upload`](gemv_core::Backend::upload).
///
/// # Errors
/// [`OutOfMemory`](gemv_core::Error::OutOfMemory) of the host.
///
/// # Panics
/// If it is not in the host's memory.
pub fn packed_tiles(matrix: PackedMatrix<'_>) -> Result<Vec<f32>> {
    let PackedPlace::Host(blocks) = matrix.place else { panic!("a matrix of the host") };
    let (m, n) = matrix.dim;
    if m == 0 || n == 0 {
        return Ok(Vec::new());
    }
    let words = with_blocks!(matrix.format, B => arrange::<B>(blocks, (m, n), matrix.format))?;
    Ok(words.into_iter().map(f32::from_bits).collect())
}

/// The memory of a packed matrix on a device, its first row there, and the strides of its operand: what `packed.k` takes
/// for `ab` is the number of tiles of a segment.
///
/// # Panics
/// If the matrix is in the host's memory, or is not in that block.
pub fn packed_place<'a>(matrix: &PackedMatrix<'a>) -> (&'a dyn Memory, usize, [isize; 3]) {
    let PackedPlace::Device(memory, first) = matrix.place else { panic!("a matrix of a device") };
    let (m, n) = matrix.dim;
    let tiles = match n.div_ceil(SEGMENT) * tile_words(matrix.format) {
        0 => 0,
        column => memory.len() / column,
    };
    assert!(n == 0 || first + m <= tiles * 8, "rows outside of the block");
    (memory, first, [tiles as isize, 0, 0])
}

fn arrange<B: Blocks>(blocks: &[u8], (m, n): (usize, usize), format: Format) -> Result<Vec<u32>> {
    // Integers of 8 bits count from -128.
    let offset = if format == Format::Q8_0 { 0x8080_8080 } else { 0 };
    let words = B::CODE_BITS as usize * 64;
    let (size, tiles) = (tile_words(format), m.div_ceil(8));
    let pair = field_bytes(format) / 2;
    let row_bytes = n / B::LEN * B::BYTES;
    let in_segment = SEGMENT / B::LEN * B::BYTES;
    let mut all = zeros_on_host::<u32>(size * tiles * n.div_ceil(SEGMENT))?;
    let mut fields = vec![0u8; B::FIELDS];
    let mut of_pair = vec![0u8; 4 * pair];
    for (at, tile) in all.chunks_exact_mut(size).enumerate() {
        let (segment, first) = (at / tiles, at % tiles * 8);
        // The rows of a thread.
        for j in 0..4 {
            let mut codes = [[0u8; SEGMENT]; 2];
            of_pair.fill(0);
            for (r, codes) in codes.iter_mut().enumerate() {
                let row = 2 * j + r;
                if first + row >= m {
                    continue;
                }
                let line = &blocks[(first + row) * row_bytes..][..row_bytes];
                let line = &line[segment * in_segment..];
                let line = &line[..line.len().min(in_segment)];
                let blocks = line.chunks_exact(B::BYTES);
                for (block, codes) in blocks.zip(codes.chunks_exact_mut(B::LEN)) {
                    B::codes(block, codes);
                }
                B::fields(line, &mut fields);
                if format == Format::Q4K {
                    pair_fields(&fields, r, &mut of_pair);
                } else {
                    of_pair[r * fields.len()..][..fields.len()].copy_from_slice(&fields);
                }
            }
            let to = &mut tile[words + j * pair..];
            for (to, from) in to.iter_mut().zip(of_pair.as_chunks::<4>().0) {
                *to = u32::from_le_bytes(*from);
            }
            for g in 0..8 {
                let code = |r: usize, i: usize| u32::from(codes[r][8 * i + g]);
                let both = |i: usize, bits: u32| {
                    let of = |r| code(r, i) & ((1 << bits) - 1);
                    of(0) | of(1) << 16
                };
                let lane = 4 * g + j;
                let mut put = |own: usize, word: u32| {
                    tile[(own / 4 * 32 + lane) * 4 + own % 4] = word;
                };
                if B::CODE_BITS == 8 {
                    for own in 0..16 {
                        let [a, b] = [2 * own, 2 * own + 1].map(|i| code(0, i) | code(1, i) << 8);
                        put(own, (a | b << 16) ^ offset);
                    }
                    continue;
                }
                for own in 0..8 {
                    put(own, (0..4).fold(0, |word, p| word | both(4 * own + p, 4) << (4 * p)));
                }
                if B::CODE_BITS == 6 {
                    let high = |i: usize| both(i, 6) >> 4 & 0x0003_0003;
                    for own in 0..4 {
                        let word = (0..8).fold(0, |word, p| word | high(8 * own + p) << (2 * p));
                        put(8 + own, word);
                    }
                }
            }
        }
    }
    Ok(all)
}

/// Fields of a row of Q4_K, the `r`-th of a pair: bytes of scales and minima of both rows in turn, then d and dmin of both rows,
/// then what the tensor core multiplies by: d and dmin again, or NaN where it would not be exact.
fn pair_fields(fields: &[u8], r: usize, of_pair: &mut [u8]) {
    let (header, bytes) = fields.split_at(4);
    for (i, byte) in bytes.iter().enumerate() {
        of_pair[2 * i + r] = *byte;
    }
    let [d, dmin] = [[header[0], header[1]], [header[2], header[3]]].map(u16::from_le_bytes);
    let wanted = if is_exact(d, dmin) { [d, dmin] } else { [0x7e00; 2] };
    of_pair[32 + 4 * r..][..4].copy_from_slice(header);
    for (to, from) in of_pair[40 + 4 * r..].as_chunks_mut::<2>().0.iter_mut().zip(wanted) {
        *to = from.to_le_bytes();
    }
}

/// Whether `sc q d - m dmin` needs at most 23 bits, whatever the integers are: sc and m below 64, q below 16. Bits of f16.
///
/// In units of its last bit a factor is below 2048, so that the products are below 2048 * 945 and 2048 * 63. Those units are
/// apart as the exponents are.
fn is_exact(d: u16, dmin: u16) -> bool {
    let [d_exponent, min_exponent] = [d, dmin].map(|of| i32::from(of >> 10 & 31));
    let apart = d_exponent.max(1) - min_exponent.max(1);
    let one = d & 0x7fff == 0 || dmin & 0x7fff == 0;
    d_exponent < 31 && min_exponent < 31 && (one || (-5..=2).contains(&apart))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::Caps;
    use gemv_core::{Desc, Dtype};

    /// All exponents, with the largest factors and with those of one bit.
    #[test]
    fn what_the_tensor_core_adds_has_23_bits() {
        // In units of 2^-24, of which each f16 is a multiple.
        let units = |of: u16| {
            let (exponent, low) = (u32::from(of >> 10 & 31), i64::from(of & 1023));
            if exponent == 0 { low } else { (low + 1024) << (exponent - 1) }
        };
        let halves = || (0..31 << 10).filter(|of| [0, 1, 512, 1023].contains(&(of & 1023)));
        let mut exact = 0;
        for (d, dmin) in halves().flat_map(|d| halves().map(move |dmin| (d, dmin))) {
            if !is_exact(d, dmin) {
                continue;
            }
            exact += 1;
            let (of_d, of_min) = (945 * units(d), 63 * units(dmin));
            let last = (of_d | of_min | 1 << 40).trailing_zeros();
            assert!((of_d + of_min) >> last < 1 << 23, "{d:04x} {dmin:04x}");
        }
        assert!(exact > 1000);
        // Infinities, NaN, and exponents that are further apart.
        for (d, dmin) in [(0x7c00, 0), (0, 0x7e00), (0x3c00, 0x3c00 + (6 << 10)), (0x3c00, 0x3000)]
        {
            assert!(!is_exact(d, dmin), "{d:04x} {dmin:04x}");
        }
    }

    /// A block of NVIDIA's OpenCL has 48 KiB, and there is a choice for every problem.
    #[test]
    fn every_problem_has_a_choice_in_opencl() {
        let mut caps = Caps::new(Language::OpenCl);
        (caps.max_group, caps.local_bytes, caps.units) = (1024, 48 << 10, 132);
        for ptx_90 in [true, false] {
            caps.ptx_90 = ptx_90;
            for &format in Format::ALL {
                for segments in (0..=70).chain([112, 255, 256, 257, 300, 70_000]) {
                    for (m, rhs) in [(1, 1), (4096, 2), (100_000, 4)] {
                        let n = segments * SEGMENT;
                        let desc = Desc { rhs, ..Desc::packed(format, Dtype::F32, (m, n)) };
                        let all = PACKED.candidates(&desc, &caps);
                        let first = all.first().unwrap_or_else(|| panic!("{desc:?}"));
                        assert_eq!(first.get("ptx") == Some(1), ptx_90, "{desc:?}: {first}");
                    }
                }
            }
        }
    }
}
