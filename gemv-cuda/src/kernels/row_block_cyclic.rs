//! `row-block-cyclic`: the sums of one process in a block-cyclic distribution of the columns.
//!
//! Its text is `row_block.cu` behind `row_block_cyclic.cu`. It computes no product, so it is not among the kernels that a
//! table or a person chooses.

use gemv_core::{Arg, Desc, Params, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Caps, Case, Kernel, Rule};

use super::row_block::{self, BLOCK, plan};
use super::row_block_long;

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-block-cyclic",
    about: "A thread block sums a row's columns of one process, to which they are dealt in blocks of 256: \
            row-major.",
    source: concat!(
        include_str!("row_block_cyclic.cu"),
        include_str!("vectors.cuh"),
        include_str!("segment.cuh"),
        include_str!("row_block.cu")
    ),
    args: ARGS,
    rules: &[
        Rule::AtMost(
            "columns",
            |of| of.n(),
            |of| share(of) * if of.get("long_rows") == 1 { SEGMENT } else { 1 },
        ),
        Rule::UpTo(&["warps_k", "cluster_k"], |of| LANES / of.get("processes")),
        Rule::All(BLOCK),
        Rule::AtMost("registers", held, most_segment_registers),
    ],
    candidates: &[],
    plan: |of| plan(of, "row_block_cyclic"),
    ..row_block::KERNEL
};

const ARGS: &[Arg] = &{
    let [threads, subwarp, warps_k, rows, vec, cluster_k, blocks_per_sm] = *row_block::KERNEL.args
    else {
        panic!("the arguments of row-block")
    };
    let about = "Processes to which the columns are dealt.";
    let processes = compiled("processes", about, Values::Powers(2, 64), 2, "PROCESSES");
    let about = "1: this process has more columns than its share of 65,536.";
    let long_rows = compiled("long_rows", about, Values::OneOf(&[0, 1]), 0, "LONG_ROWS");
    [threads, subwarp, warps_k, rows, vec, cluster_k, blocks_per_sm, processes, long_rows]
};

/// Numbers of processes for which there are programs.
pub(crate) const PROCESSES: [usize; 3] = [2, 4, 8];

/// Columns of a super-segment that one process has.
fn share(of: &Case<'_>) -> u64 {
    SUPER_SEGMENT / of.get("processes")
}

/// Registers of a thread, as the text counts them.
fn held(of: &Case<'_>) -> u64 {
    match of.get("long_rows") {
        1 => row_block_long::held(of),
        _ => segment_registers(of),
    }
}

/// What computes the sums of one of so many processes: a block as `row-block` has it for long rows. `None` where there is
/// no program: for complex numbers, whose sums are not exchanged between GPUs, and for rows that do not begin on 16 bytes.
pub(crate) fn params(desc: &Desc, processes: usize, caps: &Caps) -> Option<Params> {
    let none = Params::new(KERNEL.name);
    let of = Case::new(&KERNEL, desc, &none, caps);
    let (vec, whole) = (of.aligned(), of.n() > 0 && of.aligned() == of.widest());
    if !PROCESSES.contains(&processes) || !whole || desc.vectors.is_complex() {
        return None;
    }
    let processes = processes as u64;
    let subwarp = (LANES / vec).min(32);
    let long_rows = of.n() > SUPER_SEGMENT / processes;
    // Sub-warps with nothing to do in the last iteration cost more than iterations do.
    let segments = of.segments().min(SEGMENT / processes);
    // The last super-segment may have few segments: with more sub-warps its rows would take as long as whole ones.
    let most = if long_rows { 8 } else { 512 / subwarp };
    let most = most.min(LANES / processes);
    let idle = |warps: &u64| segments.next_multiple_of(*warps) - segments;
    let warps_k = [32, 16, 8, 4, 2, 1].into_iter().filter(|warps| *warps <= most);
    let warps_k = warps_k.min_by_key(|warps| idle(warps) > segments / 16)?;
    let threads = (subwarp * warps_k).max(128);
    let two = (of.bytes() == 2 || long_rows) && warps_k > 1;
    let params = of.with([
        ("threads", threads),
        ("subwarp", subwarp),
        ("warps_k", warps_k),
        ("rows", if two { 2 } else { 1 }),
        ("vec", vec),
        ("processes", processes),
        ("long_rows", long_rows.into()),
    ]);
    let of = of.at(&params);
    let params = of.with([("blocks_per_sm", resident_blocks(held(&of), threads))]);
    of.at(&params).fits().then_some(params)
}

#[cfg(test)]
mod tests {
    use gemv_core::{Dtype, Layout};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn real_numbers_have_a_program_for_two_four_and_eight_processes() {
        for (dtype, vectors) in Dtype::ALL.map(|of| (of, of)).into_iter().chain(Dtype::MIXED) {
            for processes in [0, 1, 2, 3, 4, 8, 16] {
                for n in [1, 256, 257, 4000, 8192, 8193, 32_768, 65_536, 1 << 20] {
                    let one = Desc::of(dtype, Layout::Row, (1000, n), 6);
                    let found = params(&Desc { vectors, ..one }, processes, &caps());
                    let there = PROCESSES.contains(&processes) && !dtype.is_complex();
                    assert_eq!(found.is_some(), there, "{dtype} {vectors} {processes} {n}");
                    let long = found.and_then(|params| params.get("long_rows"));
                    assert!(long.is_none_or(|l| (l == 1) == (n * processes > 65_536)));
                }
            }
        }
        let desc = Desc::of(Dtype::F32, Layout::Row, (1000, 1000), 6);
        for other in
            [Desc { layout: Layout::Col, ..desc }, Desc { align: 3, ..desc }, Desc { n: 0, ..desc }]
        {
            assert_eq!(params(&other, 2, &caps()), None, "{other}");
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (1000, 20_000), 6);
        for (text, part) in [
            ("processes=4", "20000 columns are more than 16384"),
            ("processes=2 warps_k=64 threads=512 subwarp=8", "more than 32"),
            ("processes=2 subwarp=32 vec=4", "more than 64"),
        ] {
            let params: Params = format!("row-block-cyclic {text}").parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
