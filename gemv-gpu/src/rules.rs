//! What the descriptions of several kernels share: arguments that mean the same everywhere, rules, what follows from a
//! problem and its parameters, and plans.

use gemv_core::{Arg, Layout, Params, Values, order};

use crate::Language;
use crate::kernel::{Case, List, Rule};
use crate::launch::{Launch, MAX_GRID, Plan};
use crate::split::{MAX_SPLIT, Split, split_sets};

/// Lanes of a segment.
pub const LANES: u64 = order::LANES as u64;
/// Columns of a segment.
pub const SEGMENT: u64 = order::SEGMENT as u64;
/// Columns of a super-segment, whose 256 segments' sums are one value of the next level.
pub const SUPER_SEGMENT: u64 = SEGMENT * SEGMENT;
/// Most columns of kernels with two levels of sums.
pub const TWO_LEVELS: u64 = SEGMENT * SUPER_SEGMENT;

/// An argument that is compiled into the program.
pub const fn compiled(
    name: &'static str,
    about: &'static str,
    values: Values,
    default: u32,
    define: &'static str,
) -> Arg {
    Arg { name, about, values, default, define: Some(define) }
}

/// An argument of the launch alone.
pub const fn launched(
    name: &'static str,
    about: &'static str,
    values: Values,
    default: u32,
) -> Arg {
    Arg { name, about, values, default, define: None }
}

/// Threads of a block, whole warps, up to `most`.
pub const fn threads(default: u32, most: u32) -> Arg {
    compiled("threads", "Threads of a block.", Values::Powers(32, most), default, "THREADS")
}

/// Threads of a sub-warp, at least `least`.
pub const fn subwarp(least: u32) -> Arg {
    let about = "Neighbouring threads that share a segment of a row.";
    compiled("subwarp", about, Values::Powers(least, 32), 16, "SUBWARP")
}

/// Threads of a sub-warp along the columns, of any number.
pub const SUBWARP_OF_COLUMNS: Arg =
    Arg { about: "Threads of a sub-warp, which share the columns of a row.", ..subwarp(1) };

/// Sub-warps along a row.
pub const fn warps_k(default: u32) -> Arg {
    let about = "Sub-warps of a block that share a row, each with other segments.";
    compiled("warps_k", about, Values::Powers(1, 64), default, "WARPS_K")
}

/// Rows at a time, up to `most`.
pub const fn rows(about: &'static str, most: u32) -> Arg {
    compiled("rows", about, Values::Powers(1, most), 1, "ROWS")
}

/// Elements of a load; see [`ONE_LOAD`].
pub const fn vec(default: u32) -> Arg {
    let about = "Elements of a load, of at most 16 bytes.";
    compiled("vec", about, Values::Powers(1, 8), default, "VEC")
}

/// The same, of a kernel that may take elements one by one.
pub const VEC_OF_A: Arg =
    compiled("vec", "Elements of one load of A, at most 16 bytes.", Values::Powers(1, 8), 1, "VEC");

/// The same, of columns.
pub const VEC_OF_ROWS: Arg = Arg {
    about: "Neighbouring rows of a thread: elements of one load of A, at most 16 bytes.",
    ..VEC_OF_A
};

/// Threads along the columns, from `least` to `most`.
pub const fn threads_k(default: u32, least: u32, most: u32) -> Arg {
    let about = "Threads of a block that share the columns of the same rows.";
    compiled("threads_k", about, Values::Powers(least, most), default, "THREADS_K")
}

/// Columns of X at a time.
pub const fn tile_rhs(default: u32, values: Values) -> Arg {
    let about = "Columns of X that are multiplied at a time: A is read once for them.";
    compiled("tile_rhs", about, values, default, "TILE_RHS")
}

/// Lanes that are kept; see [`LANES_HOLD_COLUMNS`].
pub const LANES_KEPT: Arg = compiled(
    "lanes",
    "Lanes of a segment that are kept: all 64, or as many as a row has columns.",
    Values::Powers(1, 64),
    64,
    "LANES_KEPT",
);

/// Blocks of a cluster.
pub const fn cluster_k(about: &'static str) -> Arg {
    compiled("cluster_k", about, Values::Powers(1, 8), 1, "CLUSTER_K")
}

/// Resident blocks, up to `most`.
pub const fn min_blocks(most: u32) -> Arg {
    let about = "Blocks that are to be resident on a multiprocessor, and are launched for each.";
    compiled("min_blocks", about, Values::Range(1, most), 1, "MIN_BLOCKS")
}

/// Blocks of the grid, for each multiprocessor, up to `most`.
pub const fn blocks_per_sm(default: u32, most: u32) -> Arg {
    let about = "Most blocks of the grid for each multiprocessor.";
    launched("blocks_per_sm", about, Values::Range(1, most), default)
}

/// [`blocks_per_sm`] where blocks beyond those that are resident may wait.
pub const MANY_BLOCKS: u32 = 65_535;

/// Blocks that share a row; see [`rows_plan`]. A row of a table that says 0 serves many shapes and devices.
pub const SPLIT_K: Arg = launched(
    "split_k",
    "Blocks that share a row's columns; 0 takes as many as blocks_per_sm asks for.",
    Values::Range(0, MAX_SPLIT),
    0,
);

/// What fills the device where [`SPLIT_K`] is 0.
pub const BLOCKS_PER_SM: Arg = launched(
    "blocks_per_sm",
    "Blocks that each multiprocessor gets at least where split_k is 0.",
    Values::Range(1, 1024),
    8,
);

/// What the candidates of a kernel for GPUs begin with. It runs on CPUs as well, and is tested there.
pub const ON_GPUS: List = List::Only(|of| !of.caps.cpu);

/// Row-major matrices.
pub const BY_ROWS: Rule = Rule::Layout(Layout::Row);
/// Column-major matrices.
pub const BY_COLUMNS: Rule = Rule::Layout(Layout::Col);
/// No batch.
pub const ONE_MATRIX: Rule = Rule::For(|desc, _| desc.batch == 1, "the kernel is for one matrix");
/// No complex numbers.
pub const REAL: Rule =
    Rule::For(|desc, _| !desc.dtype.is_complex(), "the kernel is for real numbers");
/// Rows that loads of 16 bytes begin.
pub const ALIGNED: Rule =
    Rule::For(|desc, _| desc.align >= 4, "rows (columns) do not begin at multiples of 16 bytes");
/// At least one column.
pub const WITH_COLUMNS: Rule =
    Rule::For(|desc, _| desc.n > 0, "the kernel is for matrices with columns");
/// Two levels of sums.
pub const OF_TWO_LEVELS: Rule = Rule::Columns(0..=TWO_LEVELS);
/// A load of `vec` elements has at most 16 bytes.
pub const ONE_LOAD: Rule = Rule::UpTo(&["vec"], |of| of.widest());
/// The threads of a block, which are compiled into the program.
pub const THREADS_OF_DEVICE: Rule = Rule::UpTo(&["threads"], |of| of.caps.max_group.into());
/// The blocks of a cluster.
pub const CLUSTER_OF_DEVICE: Rule = Rule::UpTo(&["cluster_k"], |of| of.caps.cluster.into());
/// A sub-warp's loads are of one round of lanes.
pub const LOADS_OF_LANES: Rule = Rule::UpTo(&["subwarp", "vec"], |_| LANES);
/// The sub-warps of a row are of one block.
pub const WARPS_OF_BLOCK: Rule = Rule::UpTo(&["subwarp", "warps_k"], |of| of.get("threads"));
/// The threads along the columns are of one block.
pub const THREADS_K_OF_BLOCK: Rule = Rule::UpTo(&["threads_k"], |of| of.get("threads"));
/// All columns are held.
pub const WITHIN_MAX_N: Rule = Rule::AtMost("columns", |of| of.n(), |of| of.get("max_n"));
/// The [kept](LANES_KEPT) lanes hold the columns of a row.
pub const LANES_HOLD_COLUMNS: Rule = Rule::Holds(
    |of| of.get("lanes") == LANES || of.get("lanes") >= of.n(),
    "lanes are fewer than columns",
);

/// Of a thread with whole rows of a column-major matrix, all of whose lanes it has.
pub const COLUMNS_HELD: &[Rule] = &[
    BY_COLUMNS,
    Rule::Columns(0..=LANES),
    THREADS_OF_DEVICE,
    ONE_LOAD,
    WITHIN_MAX_N,
    Rule::AtMost(
        "registers of sums",
        |of| of.get("max_n").min(8) * of.get("rows") * of.get("vec") * of.words(),
        |_| 64,
    ),
];

/// The arguments that they relate.
pub const COLUMNS_OF_THREADS: &[Arg] = &[
    threads(128, 256),
    rows("Vectors of rows that a thread has.", 8),
    vec(1),
    compiled(
        "max_n",
        "Most columns; a thread has as many lanes.",
        Values::Powers(1, 64),
        64,
        "MAX_N",
    ),
];

/// The values of `max_n` beyond one element a lane of [`ROWS_IN_LOCAL_MEMORY`].
pub(crate) const MANY: [u64; 4] = [96, 128, 192, 256];

/// Of a thread with a whole row of a row-major matrix, which the block copies to local memory: `max_n` columns of each.
pub const ROWS_IN_LOCAL_MEMORY: &[Rule] = &[
    BY_ROWS,
    Rule::Columns(1..=SEGMENT),
    THREADS_OF_DEVICE,
    ONE_LOAD,
    Rule::Holds(
        |of| of.get("max_n").is_multiple_of(of.get("vec")),
        "max_n is not a multiple of vec",
    ),
    WITHIN_MAX_N,
    Rule::Holds(
        |of| match of.get("max_n") {
            few @ ..=16 => of.n() > few / 2,
            more @ 17..=64 => of.n() + 7 >= more,
            more => of.n() > MANY.into_iter().rfind(|few| *few < more).unwrap_or(LANES),
        },
        "columns are too few for max_n",
    ),
    Rule::AtMost(
        "registers of data",
        |of| of.get("max_n").min(8) * of.get("rows") * of.words(),
        |_| 64,
    ),
    Rule::Local(|of| {
        let [threads, rows, vec, max_n] = of.all(["threads", "rows", "vec", "max_n"]);
        // As PITCH of row_smem.k: on CUDA, rows of elements of 2 bytes may begin anywhere in a word of 8.
        let shifted = of.caps.language == Language::Cuda && of.bytes() == 2 && vec == 1;
        let pitch = if shifted && max_n > 16 {
            (((max_n + 6) / 4) | 1) * 4 + 1
        } else {
            ((max_n / vec) | 1) * vec
        };
        let elements = threads * rows * pitch + max_n.next_power_of_two();
        elements * of.bytes() + 32
    }),
];

/// Of tiles of a column-major matrix, one of which a block has in registers ahead of the one in local memory; `row_accs` are
/// segments' sums that it keeps for each row.
pub const TILES: &[Rule] = &[
    BY_COLUMNS,
    OF_TWO_LEVELS,
    THREADS_OF_DEVICE,
    ONE_LOAD,
    Rule::AtMost("columns at once", columns_at_once, |_| LANES),
    Rule::UpTo(&["vec"], columns_at_once),
    // A thread of a block of 512 has 128 registers, of smaller ones 255.
    Rule::AtMost("registers of data", tile_registers, |of| {
        if of.get("threads") > 256 { 72 } else { 192 }
    }),
    Rule::Holds(
        |of| match of.get("row_accs") {
            0 => true,
            LANES => (2..=SEGMENT).contains(&of.segments()),
            accs => (2..=accs).contains(&of.segments()),
        },
        "row_accs is for 2 segments to as many, 64 for 2 to 256 segments",
    ),
    Rule::AtMost("sets of rows", tile_sets, |_| MAX_GRID),
];

/// Columns of a tile that a block reads at once.
fn columns_at_once(of: &Case<'_>) -> u64 {
    of.get("threads") / (of.get("tile_m") / of.get("vec"))
}

/// Registers of a thread for loads in flight and sums.
pub fn tile_registers(of: &Case<'_>) -> u64 {
    let lanes = LANES / columns_at_once(of).max(1);
    lanes * (of.get("unroll") * of.load() + of.get("vec") * of.words())
}

/// Sets of the rows of a tile.
pub fn tile_sets(of: &Case<'_>) -> u64 {
    of.m().div_ceil(of.get("tile_m"))
}

/// Bytes of accumulators that a thread may have: more are spilled to memory.
pub const MAX_ACC_BYTES: u64 = 512;

impl Case<'_> {
    /// Rows.
    pub fn m(&self) -> u64 {
        self.desc.m as u64
    }

    /// Columns.
    pub fn n(&self) -> u64 {
        self.desc.n as u64
    }

    /// Columns of X.
    pub fn rhs(&self) -> u64 {
        self.desc.rhs as u64
    }

    /// Entries of Y.
    pub fn outputs(&self) -> u64 {
        self.m().saturating_mul(self.rhs()).saturating_mul(self.desc.batch as u64)
    }

    /// Segments of a row.
    pub fn segments(&self) -> u64 {
        self.n().div_ceil(SEGMENT)
    }

    /// Super-segments of a row, at least one.
    pub fn super_segments(&self) -> u64 {
        self.n().div_ceil(SUPER_SEGMENT).max(1)
    }

    /// Segments of the first super-segment.
    pub fn first_segments(&self) -> u64 {
        self.n().min(SUPER_SEGMENT).div_ceil(SEGMENT)
    }

    /// Parts of a super-segment, of at most so many segments each: a power of two.
    pub fn parts(&self, each: u64) -> u64 {
        self.first_segments().div_ceil(each).next_power_of_two()
    }

    /// Those of so many parts of all super-segments that have a segment.
    pub fn filled_parts(&self, parts: u64) -> u64 {
        let whole = self.super_segments() - 1;
        whole * parts + (self.segments() - whole * SEGMENT).clamp(1, parts)
    }

    /// Bytes of an element of A.
    pub fn bytes(&self) -> u64 {
        self.desc.dtype.bytes() as u64
    }

    /// Bytes of a sum.
    pub fn acc_bytes(&self) -> u64 {
        self.desc.vectors.acc_bytes() as u64
    }

    /// 32-bit registers of a sum.
    pub fn words(&self) -> u64 {
        self.acc_bytes() / 4
    }

    /// 32-bit registers of a load of A.
    pub fn load(&self) -> u64 {
        (self.get("vec") * self.bytes()).div_ceil(4)
    }

    /// Most elements of a load of 16 bytes.
    pub fn widest(&self) -> u64 {
        16 / self.bytes()
    }

    /// Elements of the widest load that every row (column) of this matrix can begin with.
    pub fn aligned(&self) -> u64 {
        ((1 << self.desc.align.min(4)) / self.bytes()).clamp(1, self.widest())
    }

    /// Blocks that the device has, of so many for each multiprocessor.
    pub fn blocks(&self, each: &str) -> u64 {
        u64::from(self.caps.units) * self.get(each)
    }
}

/// The registers of a thread, of blocks that are to be resident on a multiprocessor.
pub fn registers(threads: u64, blocks: u64) -> u64 {
    ((65_536 / (threads * blocks)) & !7).min(255)
}

/// 32-bit registers of a thread whose sub-warp holds a segment of its rows: for A and x, for sums, and for the loads.
pub fn segment_registers(of: &Case<'_>) -> u64 {
    let [subwarp, rows, vec] = of.all(["subwarp", "rows", "vec"]);
    let slots = LANES / (subwarp * vec);
    let load_of_x = (vec * of.desc.vectors.bytes() as u64).div_ceil(4);
    4 * slots * (of.load() * rows + load_of_x) + slots * vec * rows * of.words() + 8 * slots
}

/// As many of them as leave some for all else: a thread of a block of 512 has 128, of smaller ones 255.
pub fn most_segment_registers(of: &Case<'_>) -> u64 {
    if of.get("threads") > 256 { 88 } else { 176 }
}

/// Blocks that are to be resident on a multiprocessor, by the registers of a thread.
pub fn resident_blocks(registers: u64, threads: u64) -> u64 {
    let resident = match registers {
        0..=48 => 1024,
        49..=88 => 512,
        _ => 256,
    };
    (resident / threads).max(1)
}

/// How rows are split, of so many sets that are not: as `split_k` and `blocks_per_sm` ask for. Each block keeps at least so
/// many segments.
pub fn split(of: &Case<'_>, sets: u64, least: u64) -> Split {
    let asked = match of.get("split_k") {
        0 => split_sets(of, sets, least, of.get("blocks_per_sm")),
        split => split,
    };
    Split::of(of.desc.n, asked as u32)
}

/// The plan of a kernel whose block computes `block_rows` rows, with `split_k` blocks a row.
pub fn rows_plan(of: &Case<'_>, entry: &'static str, block_rows: u64) -> Plan {
    let (m, sets) = (of.m(), of.m().div_ceil(block_rows));
    let split = split(of, sets, 1);
    let mut launches = vec![Launch::new(entry, sets * split.parts, of.get("threads"))];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), counters: 0 }
}

/// One block shape with each way to split rows: not at all (0), or so many blocks a multiprocessor.
///
/// Rows stay whole only where that leaves at least an eighth of the multiprocessors with work.
pub fn with_splits(of: &Case<'_>, fills: &[u64], sets: u64) -> Vec<Params> {
    let whole = split_sets(of, sets, 1, 1) <= 8;
    let fills = fills.iter().filter(|&&fill| fill > 0 || whole);
    let with = fills.map(|&fill| match fill {
        0 => of.with([("split_k", 1)]),
        fill => of.with([("blocks_per_sm", fill)]),
    });
    with.collect()
}

/// The plan of a kernel whose first launch leaves sums of each [part](Case::parts) of each super-segment, of one matrix, and
/// y where one part has all columns: [`sums_plan`] adds the sums.
pub fn parts_plan(of: &Case<'_>, first: Launch, parts: u64) -> Plan {
    match (of.super_segments(), parts) {
        (1, 1) => first.into(),
        _ => sums_plan(of, first, parts),
    }
}

/// The same, of one that always leaves sums.
pub fn sums_plan(of: &Case<'_>, first: Launch, parts: u64) -> Plan {
    let (super_segments, outputs) = (of.super_segments(), of.outputs());
    let (entry, of_block) = match super_segments {
        1 => ("gemm_parts_reduce", 128),
        _ => ("gemm_parts_long_reduce", 4),
    };
    let second = Launch::new(entry, outputs.div_ceil(of_block), 128);
    let second = Launch { pdl_wait: first.pdl_wait, parts: first.parts, ..second };
    let workspace = outputs.saturating_mul(super_segments * parts);
    Plan { launches: vec![first, second], workspace, counters: 0 }
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype};

    use super::*;
    use crate::{Caps, Kernel};

    #[test]
    fn a_part_has_at_most_as_many_segments_as_asked_and_is_counted_where_it_has_one() {
        let (params, caps) = (Params::new("any"), Caps::new(Language::Cuda));
        for n in (0..1000).map(|k| k * 97).chain([65_536, 200_000, 1 << 24]) {
            let desc = Desc::of(Dtype::F32, Layout::Row, (1, n), 4);
            let of = Case::new(&Kernel::GEMM, &desc, &params, &caps);
            for each in 1..=16 {
                let (parts, super_segments) = (of.parts(each), of.super_segments());
                assert!(parts.is_power_of_two() && parts * each >= of.first_segments(), "{n}");
                let filled = of.filled_parts(parts);
                assert!(filled <= parts * super_segments, "{n}");
                assert!(filled > parts * (super_segments - 1), "{n}");
            }
        }
    }
}
