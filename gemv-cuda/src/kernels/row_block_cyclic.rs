//! `row-block-cyclic`: the sums of one process in a block-cyclic distribution of the columns.
//!
//! Its text is `row_block.cu` behind `row_block_cyclic.cu`. It computes no product, so it is not among the kernels that a
//! table or a person chooses.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Params, Values};
use gemv_gpu::{Arg, Caps, Kernel, Signature, value};

use super::row_block::{ARGS as ROW_BLOCK, legal_shape, plan};
use super::rules::{SUPER_SEGMENT, aligned, blocks, compiled, widest};
use super::segment::{held, resident_blocks};

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
    defines: &[],
    signature: Signature::Gemv,
    mixed: true,
    ordered: true,
    candidates: |_, _| Vec::new(),
    legal,
    plan: |desc, params, caps| plan("row_block_cyclic", desc, params, caps),
};

const ARGS: &[Arg] = &{
    let [threads, subwarp, warps_k, rows, vec, cluster_k, blocks_per_sm] = *ROW_BLOCK else {
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

/// Registers of a thread for the place of a super-segment, as the text counts them.
const EXTRA_REGISTERS: u32 = 8;

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(ARGS, params, name) as usize;
    let (processes, long) = (get("processes"), get("long_rows") == 1);
    let whole = SUPER_SEGMENT / processes;
    let most = if long { whole * SEGMENT } else { whole };
    if desc.n > most {
        return Err(format!("row-block-cyclic is for up to {most} columns here, not {}", desc.n));
    }
    let at_once = get("warps_k") * get("cluster_k");
    if at_once > LANES / processes {
        return Err(format!("{at_once} segments at once are more than {}", LANES / processes));
    }
    legal_shape(desc, params, if long { EXTRA_REGISTERS } else { 0 }, caps)?;
    blocks(&plan("row_block_cyclic", desc, params, caps))
}

/// What computes the sums of one of so many processes: a block as `row-block` has it for long rows. `None` where there is
/// no program: for complex numbers, whose sums are not exchanged between GPUs, and for rows that do not begin on 16 bytes.
pub(crate) fn params(desc: &Desc, processes: usize, caps: &Caps) -> Option<Params> {
    let vec = aligned(desc);
    let whole = desc.n > 0 && vec == widest(desc.dtype);
    if !PROCESSES.contains(&processes) || !whole || desc.vectors.is_complex() {
        return None;
    }
    let subwarp = (LANES as u32 / vec).min(32);
    let long_rows = u32::from(desc.n > SUPER_SEGMENT / processes);
    // Sub-warps with nothing to do in the last iteration cost more than iterations do.
    let segments = desc.n.div_ceil(SEGMENT).min(SEGMENT / processes) as u32;
    // The last super-segment may have few segments: with more sub-warps its rows would take as long as whole ones.
    let most = if long_rows == 1 { 8 } else { 512 / subwarp };
    let most = most.min((LANES / processes) as u32);
    let idle = |warps: &u32| segments.next_multiple_of(*warps) - segments;
    let warps_k = [32, 16, 8, 4, 2, 1].into_iter().filter(|warps| *warps <= most);
    let warps_k = warps_k.min_by_key(|warps| idle(warps) > segments / 16)?;
    let threads = (subwarp * warps_k).max(128);
    let params = Params::new(KERNEL.name)
        .with("threads", threads)
        .with("subwarp", subwarp)
        .with("warps_k", warps_k)
        .with(
            "rows",
            if (desc.dtype.bytes() == 2 || long_rows == 1) && warps_k > 1 { 2 } else { 1 },
        )
        .with("vec", vec)
        .with("processes", processes as u32)
        .with("long_rows", long_rows);
    let registers = held(desc, &params, long_rows * EXTRA_REGISTERS);
    let params = params.with("blocks_per_sm", resident_blocks(registers, threads));
    KERNEL.fits(desc, &params, caps).is_ok().then_some(params)
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
                    assert!(long.is_none_or(|l| (l == 1) == (n * processes > SUPER_SEGMENT)));
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
            ("processes=4", "up to 16384 columns here, not 20000"),
            ("processes=2 warps_k=64 threads=512 subwarp=8", "more than 32"),
            ("processes=2 subwarp=32 vec=4", "more than 64 lanes"),
        ] {
            let params: Params = format!("row-block-cyclic {text}").parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
