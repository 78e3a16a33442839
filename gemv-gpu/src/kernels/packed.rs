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
            name: "single",
            about: "1 if a block has all segments of its rows.",
            values: Values::Range(0, 1),
            default: 0,
            define: Some("SINGLE"),
        },
        Arg {
            name: "plain",
            about: "1 for CPUs: a work-item for each row and segment.",
            values: Values::Range(0, 1),
            default: 0,
            define: Some("PLAIN"),
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
        Rule::Holds(|of| of.get("plain") == 0 || of.get("single") == 0, "single=1 is not for CPUs"),
        Rule::Holds(
            |of| of.get("plain") == 1 || of.get("single") == 1 || of.segments() != 1,
            "a row of one segment is for single=1",
        ),
        Rule::Holds(
            |of| of.get("single") == 0 || (of.segments()..=64).contains(&segments_of_block(of)),
            "with single=1 a block has all segments of a row, and at most 64",
        ),
        Rule::Holds(
            |of| of.get("single") == 0 || of.segments() > 1 || segments_of_block(of) == 1,
            "a row of one segment is for a block of one",
        ),
        Rule::Holds(
            |of| of.caps.language == Language::Cuda || of.all(["passes", "tiles"]) == [1, 1],
            "in OpenCL a warp has one segment, and reads tiles in place",
        ),
        Rule::Local(|of| {
            let [threads, rows, columns] = of.all(["threads", "rows", "tile_rhs"]);
            match of.caps.language {
                Language::OpenCl if of.get("plain") == 0 => {
                    4 * (rows * columns * (threads / 32 + 1) + threads * 2 * columns)
                }
                _ => 0,
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
    with_blocks!(format, B => B::CODE_BITS as usize * 64 + B::FIELDS * 2)
}

fn segments_of_block(of: &Case<'_>) -> u64 {
    of.get("threads") / 32 * of.get("passes")
}

/// Bytes of shared memory of a block on CUDA, as `packed.k` divides it.
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
                    ("single", u64::from(segments <= warps * passes)),
                ]));
            }
        }
    }
    all
}

fn plan(of: &Case<'_>) -> Plan {
    let (m, segments, threads) = (of.m(), of.segments(), of.get("threads"));
    let groups = segments.div_ceil(segments_of_block(of)).max(1);
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
    if of.get("single") == 0 && segments > 1 {
        let outputs = m.saturating_mul(of.rhs());
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
    // Integers of 8 bits count from -128.
    let offset = if matrix.format == Format::Q8_0 { 0x8080_8080 } else { 0 };
    let words = with_blocks!(matrix.format, B => arrange::<B>(blocks, m, n, offset))?;
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

fn arrange<B: Blocks>(blocks: &[u8], m: usize, n: usize, offset: u32) -> Result<Vec<u32>> {
    let words = B::CODE_BITS as usize * 64;
    let (size, tiles) = (words + B::FIELDS * 2, m.div_ceil(8));
    let row_bytes = n / B::LEN * B::BYTES;
    let in_segment = SEGMENT / B::LEN * B::BYTES;
    let mut all = zeros_on_host::<u32>(size * tiles * n.div_ceil(SEGMENT))?;
    let mut fields = vec![0u8; B::FIELDS];
    for (at, tile) in all.chunks_exact_mut(size).enumerate() {
        let (segment, first) = (at / tiles, at % tiles * 8);
        // The rows of a thread.
        for j in 0..4 {
            let mut codes = [[0u8; SEGMENT]; 2];
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
                let to = &mut tile[words + row * (B::FIELDS / 4)..];
                for (to, from) in to.iter_mut().zip(fields.as_chunks::<4>().0) {
                    *to = u32::from_le_bytes(*from);
                }
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
