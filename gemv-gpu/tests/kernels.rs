//! The shared kernels: their descriptions, their candidates, and the rules that refuse parameters.

use gemv_core::{Desc, Dtype, Layout, Params};
use gemv_gpu::{Caps, Language, Signature, kernel, kernels};

fn caps(language: Language) -> Caps {
    let mut caps = Caps::new(language);
    (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
    caps
}

#[test]
fn every_kernel_is_described_and_has_a_name_of_its_own() {
    for (i, kernel) in kernels().iter().enumerate() {
        kernel.described().unwrap();
        assert!(kernels()[..i].iter().all(|k| k.name != kernel.name), "{}", kernel.name);
        Params::new(kernel.name); // a legal name
    }
}

#[test]
fn candidates_fit_and_cover_every_problem() {
    for language in [Language::OpenCl, Language::Cuda] {
        let caps = caps(language);
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                for (m, n) in [(1, 1), (1, 1 << 40), (1 << 31, 1), (0, 5), (5, 0), (1000, 1000)] {
                    for align in 0..=6 {
                        let desc = Desc::of(dtype, layout, (m, n), align);
                        let mut found = 0;
                        for kernel in kernels() {
                            for params in kernel.candidates(&desc, &caps) {
                                kernel.fits(&desc, &params, &caps).unwrap();
                                found += 1;
                            }
                        }
                        assert!((1..=34).contains(&found), "{desc}: {found} candidates");
                    }
                }
            }
        }
    }
}

#[test]
fn candidates_for_many_columns_fit_and_cover_every_problem() {
    for language in [Language::OpenCl, Language::Cuda] {
        let caps = caps(language);
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                for (m, n) in [(1, 1), (4, 4), (1, 1 << 24), (1 << 20, 1), (16, 16), (1000, 1000)] {
                    for (rhs, batch) in [(2, 1), (3, 1), (8, 1), (17, 1), (64, 3), (1, 100_000)] {
                        for align in [1, 4] {
                            let one = Desc::of(dtype, layout, (m, n), align);
                            let desc = Desc { rhs, batch, ..one };
                            let mut found = 0;
                            for kernel in kernels() {
                                for params in kernel.candidates(&desc, &caps) {
                                    kernel.fits(&desc, &params, &caps).unwrap();
                                    let many = kernel.signature == Signature::Gemm;
                                    found += usize::from(many);
                                    // They are not for one column, whose arguments are others.
                                    assert_eq!(kernel.fits(&one, &params, &caps).is_err(), many);
                                }
                            }
                            assert!((1..=16).contains(&found), "{desc}: {found} candidates");
                        }
                    }
                }
            }
        }
    }
}

/// A launch begins early only where its text waits for the one ahead.
#[test]
#[cfg(feature = "packed")]
fn packed_launches_that_begin_early_wait() {
    use gemv_core::Format;
    let mut caps = caps(Language::Cuda);
    caps.dynamic_bytes = 200 << 10;
    let desc = Desc::packed(Format::Q8_0, Dtype::F32, (100, 8192));
    let plan = |text: &str| {
        let params = text.parse::<Params>().unwrap();
        gemv_gpu::PACKED.fits(&desc, &params, &caps).unwrap();
        gemv_gpu::PACKED.plan(&desc, &params, &caps).launches[0].pdl_wait
    };
    assert!(plan("packed-row threads=256") && !plan("packed-row threads=32 plain=1"));
}

/// Rows without columns take no memory, however many they are.
#[test]
#[cfg(feature = "packed")]
fn a_packed_matrix_without_elements_has_no_tiles() {
    use gemv_core::{Format, PackedMatrix, PackedPlace};
    for dim in [(usize::MAX, 0), (0, 1 << 63), (0, 0)] {
        for format in Format::ALL {
            let matrix = PackedMatrix { format: *format, dim, place: PackedPlace::Host(&[]) };
            assert!(gemv_gpu::packed_tiles(matrix).unwrap().is_empty(), "{format} {dim:?}");
        }
    }
}

#[test]
fn what_is_not_legal_is_said() {
    let desc = Desc::of(Dtype::F32, Layout::Row, (10, 10), 6);
    let caps = caps(Language::OpenCl);
    for (text, part) in [
        ("row threads=2048", "from 32 to 1024"),
        ("row threads=48", "power of two"),
        ("row split_k=2000000", "split_k=2000000 is not from 0 to 1048576"),
        ("row blocks_per_sm=0", "blocks_per_sm=0"),
        ("row subwarp=32 vec=4", "subwarp=32 times vec=4 is more than 64"),
        ("row subwarp=1 rows=8", "bytes of accumulators"),
        ("row vec=8", "vec=8 is more than 4"),
        ("row threads_k=4", "no argument threads_k"),
        ("col", "layout col"),
        ("strided vec=2", "vec=2 is not 1"),
        ("strided-col vec=2", "vec=2 is not 1"),
        ("read contiguous=2", "0 or 1"),
        ("read unroll=17", "from 1 to 16"),
        ("read threads=2048", "at most 1024"),
    ] {
        let params: Params = text.parse().unwrap();
        let kernel = kernel(params.kernel().as_str()).unwrap();
        let why = kernel.fits(&desc, &params, &caps).unwrap_err();
        assert!(why.contains(part), "{text}: {why}");
    }
}
