//! What the planner decides, which is private: it is compiled once more here, without the kernels. That what a plan says is
//! done right, the tests of bits show.
#![allow(dead_code, unused_imports, unused_macros)]

#[path = "../src/simd/ops.rs"]
mod ops;
#[path = "../src/simd/plan.rs"]
mod plan;
#[path = "../src/simd/window.rs"]
mod window;

use plan::*;
use window::Vector;

/// f32 on AVX-512, and bf16.
const F32: Vector = Vector { element: 4, acc: 4, width: 16, bytes: 64, rotates: true };
const BF16: Vector = Vector { element: 2, acc: 4, width: 16, bytes: 32, rotates: true };

/// An address that is a multiple of 64, and `by` bytes.
fn place(by: usize) -> *const u8 {
    std::ptr::without_provenance(4096 + by)
}

fn vector(dim: (usize, usize), strides: (isize, isize)) -> VectorOperands {
    let (a, x) = (place(0), place(0));
    VectorOperands { a, dim, strides, x, x_stride: 1, y_stride: 1, unscaled: true }
}

fn plan_of(of: VectorOperands, v: Vector) -> VectorPlan {
    VectorPlan::new(&of, VectorArgs::CACHED, v, v.same())
}

#[test]
fn one_vector_is_read_where_it_lies_if_kernels_take_it_so() {
    use Reads::{Copied, InPlace, Widened};
    let reads = |of, v| (plan_of(of, v).lines, plan_of(of, v).a, plan_of(of, v).x);
    let rows = vector((100, 300), (300, 1));
    assert_eq!(reads(rows, F32), (Lines::Rows(1), InPlace, InPlace));
    assert_eq!(reads(vector((100, 300), (1, 100)), F32), (Lines::Columns(1), InPlace, InPlace));
    // Entries are widened; elements of stride two have kernels for real types alone; three has none.
    assert_eq!(reads(rows, BF16), (Lines::Rows(1), InPlace, Widened));
    assert_eq!(reads(vector((100, 300), (700, 2)), F32), (Lines::Rows(2), InPlace, InPlace));
    assert_eq!(reads(vector((100, 300), (700, 2)), BF16), (Lines::Rows(2), Copied, Widened));
    assert_eq!(reads(vector((100, 300), (1000, 3)), F32), (Lines::Rows(3), Copied, InPlace));
    // Rows that run backwards take x backwards.
    assert_eq!(reads(vector((100, 300), (300, -1)), F32), (Lines::Rows(-1), InPlace, Widened));
    assert_eq!(reads(VectorOperands { x_stride: 2, ..rows }, F32).2, Widened);
    // x is copied to where it is aligned as the rows are: these begin 12 elements before a vector.
    let apart = VectorOperands { a: place(16), strides: (320, 1), ..rows };
    let plan = plan_of(apart, F32);
    assert_eq!((plan.x, plan.x_first), (Widened, 4));
    assert_eq!(reads(VectorOperands { dim: (8, 300), ..apart }, F32).2, InPlace);
}

#[test]
fn kernels_write_y_itself_if_nothing_is_left_to_be_done() {
    let of = vector((100, 300), (300, 1));
    let writes = |of, v| plan_of(of, v).writes;
    assert_eq!(writes(of, F32), Writes::Y);
    assert_eq!(writes(of, BF16), Writes::Sums);
    assert_eq!(writes(VectorOperands { unscaled: false, ..of }, F32), Writes::Sums);
    assert_eq!(writes(VectorOperands { y_stride: -1, ..of }, F32), Writes::Sums);
    // Columns upside down turn y round.
    let down = VectorOperands { strides: (-1, 100), y_stride: -1, ..of };
    let plan = plan_of(down, F32);
    assert_eq!((plan.rows, plan.lines), (Rows::UpsideDown, Lines::Columns(1)));
    assert_eq!(plan.writes, Writes::Y);
    assert_eq!(writes(VectorOperands { y_stride: 1, ..down }, F32), Writes::Sums);
    let same = plan_of(VectorOperands { strides: (0, 1), unscaled: false, ..of }, F32);
    assert_eq!((same.rows, same.writes), (Rows::Same, Writes::Y));
}

#[test]
fn one_vector_is_cut_by_rows_or_by_segments() {
    let along = |dim: (usize, usize), strides, tasks| {
        let cut = plan_of(vector(dim, strides), F32).cut(F32, dim, tasks);
        (cut.along, cut.unit, cut.least)
    };
    // Enough rows, and 64 KiB of them; few rows of many segments; columns that are no multiple of the threads.
    assert_eq!(along((1000, 1024), (1024, 1), 4), (Along::Rows, 4, 16));
    assert_eq!(along((16, 1 << 16), (1 << 16, 1), 4), (Along::Segments, 1, 4));
    assert_eq!(along((16, 700), (700, 1), 4), (Along::Rows, 4, 24));
    assert_eq!(along((1000, 1024), (1, 1000), 4), (Along::Segments, 1, 1));
    assert_eq!(along((1 << 16, 700), (1, 1 << 16), 4), (Along::Rows, 16, 1024));
}

#[test]
fn scratch_has_an_area_for_each_purpose() {
    let scratch = |dim: (usize, usize), strides, args| {
        let plan = VectorPlan { args, ..plan_of(vector(dim, strides), F32) };
        plan.scratch(F32, dim)
    };
    let none = Scratch::default();
    // 64 sums; and for three segments, three lines of 16 rows and five above.
    let args = VectorArgs::CACHED;
    assert_eq!(scratch((8, 8), (8, 1), args), Scratch { sums: 256, ..none });
    let rows = scratch((100, 700), (700, 1), args);
    assert_eq!(rows, Scratch { sums: 256, lines: 3 * 64, spare: 5 * 64, ..none });
    // Tiles of 40 rows with a vector at either end, and six lines of partial sums.
    let memory = VectorArgs { tiles: Tiles::Memory(40), ..args };
    let columns = scratch((1000, 200), (1, 1000), memory);
    assert_eq!(columns, Scratch { sums: 320, stack: 6 * 320, ..none });
    let places = columns.at(place(0).cast_mut());
    assert_eq!(places.stack.addr() - places.sums.addr(), 320);
    assert_eq!(columns.bytes(), 7 * 320);
}

const KERNELS: Kernels = Kernels {
    vector: F32,
    element: 4,
    reads: true,
    same: true,
    several: Some(Reads::InPlace),
    narrow: false,
};

const ARGS: PanelArgs =
    PanelArgs { rows: 48, columns: 16, prefetch: 0, prefetch_next: false, narrow: false };

/// Matrices by rows, with X and Y by columns.
fn panel(batch: usize, m: usize, n: usize, columns: usize) -> PanelOperands {
    let stack = |rows: usize, strides: [usize; 2]| Stack {
        p: place(0),
        strides: [rows * strides[0].max(strides[1]), strides[0], strides[1]].map(|s| s as isize),
    };
    let a = stack(m, [n, 1]);
    let (x, y) = (stack(columns, [1, n]), stack(columns, [1, m]));
    PanelOperands { batch, m, n, columns, a, x, y, unscaled: true }
}

#[test]
fn a_panel_has_a_kernel_and_its_operands_are_read_as_that_takes_them() {
    let chosen = |of, kernels| {
        let plan = PanelPlan::new(of, ARGS, kernels);
        (plan.kernel, plan.a, plan.x, plan.writes)
    };
    use PanelKernel::{Narrow, One, Several, WholeRows};
    use Reads::{Copied, InPlace, Widened};
    let wide = panel(1, 1000, 1000, 8);
    assert_eq!(chosen(wide, KERNELS), (Several, InPlace, Widened, Writes::Sums));
    assert_eq!(chosen(panel(9, 1000, 200, 1), KERNELS), (One, InPlace, InPlace, Writes::Y));
    let scaled = PanelOperands { unscaled: false, ..panel(9, 1000, 200, 1) };
    assert_eq!(chosen(scaled, KERNELS), (One, InPlace, InPlace, Writes::Sums));
    // A matrix of a narrower type, which no kernel reads, or which is widened for several columns alone.
    let unread = Kernels { reads: false, ..KERNELS };
    assert_eq!(chosen(wide, unread).1, Widened);
    let converts = Kernels { several: Some(Widened), element: 2, ..KERNELS };
    assert_eq!(chosen(wide, converts).1, Widened);
    let mut apart = panel(9, 1000, 200, 1);
    apart.a.strides[2] = 2;
    apart.a.strides[1] = 500;
    assert_eq!(chosen(apart, KERNELS).1, Copied);
    // Sums of a row together, where Y has its rows so.
    let mut by_rows = wide;
    by_rows.y.strides = [0, 8, 1];
    assert_eq!(chosen(by_rows, KERNELS).3, Writes::RowSums);
    let narrow = Kernels { narrow: true, ..KERNELS };
    assert_eq!(chosen(panel(1, 1000, 4, 8), narrow), (Narrow, InPlace, InPlace, Writes::Y));
    // Entries that are segments of one matrix.
    let mut cut = panel(7, 1000, 256, 1);
    (cut.a.strides[0], cut.a.strides[1], cut.x.strides[0]) = (256, 7 * 256, 256);
    assert_eq!(chosen(cut, KERNELS), (WholeRows, InPlace, InPlace, Writes::Y));
}

#[test]
fn panels_are_cut_by_entries_rows_or_segments() {
    let cut = |of: PanelOperands, tasks| {
        let plan = PanelPlan::new(of, ARGS, KERNELS);
        assert!(!plan.is_whole(tasks));
        let cut = plan.cut(tasks, 256);
        (cut.along, cut.entries)
    };
    assert_eq!(cut(panel(100, 100, 100, 4), 4), (Along::Entries, 100));
    assert_eq!(cut(panel(2, 1000, 1000, 4), 4), (Along::Rows, 1));
    assert_eq!(cut(panel(2, 20, 100_000, 4), 4), (Along::Segments, 1));
    // Wide matrices are cut by segments whatever the rows are, and for one thread as well.
    assert_eq!(cut(panel(1, 500, 100_000, 4), 4), (Along::Segments, 1));
    assert_eq!(cut(panel(1, 500, 100_000, 4), 1), (Along::Segments, 1));
    assert!(PanelPlan::new(panel(1, 500, 1000, 4), ARGS, KERNELS).is_whole(1));
}

#[test]
fn scratch_of_a_panel_has_an_area_for_each_purpose() {
    let none = Scratch::default();
    let plan = PanelPlan::new(panel(1, 1000, 1000, 8), ARGS, KERNELS);
    // Eight columns of 48 sums; four segments of them and five lines above.
    let line = 8 * 48 * 4;
    let sums = Scratch { sums: line, lines: 4 * line, spare: 5 * line, ..none };
    assert_eq!((plan.rows, plan.scratch((48, 0), true)), (48, sums));
    // Where the sums of segments have a place, the rest alone: here entries of X.
    assert_eq!(plan.scratch((48, 100), false), Scratch { x: 112 * 4, ..none });
    let copies = PanelPlan::new(panel(1, 1000, 1000, 8), ARGS, Kernels { reads: false, ..KERNELS });
    assert_eq!(copies.scratch((48, 0), false), Scratch { copy: 48 * 256 * 4, ..none });
}

#[test]
fn a_plan_can_be_printed() {
    let plan = format!("{:?}", plan_of(vector((100, 300), (300, 1)), F32));
    assert!(plan.contains("lines: Rows(1), a: InPlace, x: InPlace"), "{plan}");
    assert!(plan.ends_with("writes: Y }"), "{plan}");
}
