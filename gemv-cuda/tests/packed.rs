//! Compiles the programs of packed matrices, without a GPU: each format, one column of X and several, rows of one segment a warp
//! and of several.
//!
//! NVRTC is found as the backend finds it. Where there is none, the test says so and ends; `GEMV_REQUIRE=nvrtc` makes that a failure.
#![cfg(feature = "packed")]

use gemv_core::{Desc, Dtype, Format};
use gemv_cuda::{Nvrtc, cluster, options};
use gemv_gpu::{Caps, Language, PACKED, packed_params};

/// Bytes that a thread may spill, as for other kernels.
const FEW: u32 = 32;

#[test]
fn programs_of_packed_matrices_compile() {
    let nvrtc = match Nvrtc::find() {
        Ok(nvrtc) => nvrtc,
        Err(e) => {
            let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|of| of.trim() == "nvrtc"), "{e}");
            eprintln!("not tested: {e}");
            return;
        }
    };
    let mut caps = Caps::new(Language::Cuda);
    (caps.units, caps.max_group, caps.local_bytes) = (132, 1024, 48 << 10);
    (caps.cluster, caps.dynamic_bytes) = (cluster(90), 227 << 10);
    let mut compiled = 0;
    for &format in Format::ALL {
        // The others have the same text for their sizes of groups.
        let all = [Format::Q8_0, Format::Q6K].contains(&format);
        for (n, rhs, arch) in [(4096, 1, 90), (14_336, 1, 90), (4096, 4, 90), (4096, 1, 80)] {
            if !(all || (n, rhs, arch) == (4096, 1, 90)) {
                continue;
            }
            let mut options = options(&format!("sm_{arch}"));
            options.push("--ptxas-options=-v".into());
            let desc = Desc { rhs, ..Desc::packed(format, Dtype::F32, (4096, n)) };
            let params = packed_params(&desc, &caps)[0];
            let (_, log) = nvrtc
                .compile(&PACKED.program(Dtype::F32, &params), &options)
                .unwrap_or_else(|log| panic!("{params}: {log}"));
            assert!(!log.contains("warning"), "{params}: {log}");
            let spilled = log.lines().filter_map(|line| line.split(" bytes spill stores").next());
            let spilled = spilled.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
            assert!(arch != 90 || spilled.max().expect("a report") <= FEW, "{params}: {log}");
            compiled += 1;
        }
    }
    assert_eq!(compiled, Format::ALL.len() + 6);
}
