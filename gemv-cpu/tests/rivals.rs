//! Other libraries' products that are linked: which one is offered, and what is said of names that are not there.

use std::sync::atomic::{AtomicU32, Ordering};

use gemv_core::ndarray::{Array3, ArrayView3, ArrayViewMut3};
use gemv_core::{Desc, Device, Dtype, Layout, Params, RIVALS, Rival};

/// By its name, the one that is offered is neither the first nor the last of those that are linked.
#[linkme::distributed_slice(RIVALS)]
static LAST: Rival = Rival::new("vendor-c", several, |_, _, _, _, _| (), |_, _, _, _, _| ());
#[linkme::distributed_slice(RIVALS)]
static FIRST: Rival = Rival::new("vendor-b", several, first, |_, _, _, _, _| ());
#[linkme::distributed_slice(RIVALS)]
static BETWEEN: Rival = Rival::new("vendor-d", several, |_, _, _, _, _| (), |_, _, _, _, _| ());

/// Two of one name.
#[linkme::distributed_slice(RIVALS)]
static ONE: Rival = Rival::new("vendor-a", several, |_, _, _, _, _| (), |_, _, _, _, _| ());
#[linkme::distributed_slice(RIVALS)]
static OTHER: Rival = Rival::new("vendor-a", several, |_, _, _, _, _| (), |_, _, _, _, _| ());

fn several(desc: &Desc) -> Result<(), String> {
    if desc.rhs > 1 { Ok(()) } else { Err("is for several right-hand sides".into()) }
}

static CALLS: AtomicU32 = AtomicU32::new(0);

fn first(
    _: f32,
    _: ArrayView3<'_, f32>,
    _: ArrayView3<'_, f32>,
    _: f32,
    mut y: ArrayViewMut3<'_, f32>,
) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    y.fill(7.0);
}

#[test]
fn the_first_by_name_is_offered_and_runs_by_name() {
    let cpu = Device::new(gemv_cpu::open(None).unwrap());
    let desc = Desc { rhs: 3, ..Desc::of(Dtype::F32, Layout::Row, (2, 2), 6) };
    let offered = cpu.backend().vendor(&desc);
    assert_eq!(offered, Some(Params::new("vendor-b")));
    let mut y = Array3::<f32>::zeros((1, 2, 3));
    let (a, x) = (Array3::<f32>::ones((1, 2, 2)), Array3::<f32>::ones((1, 2, 3)));
    cpu.product(&a, &x).with(&offered.unwrap()).to(&mut y).unwrap();
    assert_eq!((CALLS.load(Ordering::Relaxed), y), (1, Array3::from_elem((1, 2, 3), 7.0)));
}

#[test]
fn what_cannot_run_is_refused_in_one_sentence() {
    let cpu = gemv_cpu::open(None).unwrap();
    let desc = Desc { rhs: 3, ..Desc::of(Dtype::F32, Layout::Row, (2, 2), 6) };
    let refused = |params: &str| {
        let e = cpu.fits(&desc, &params.parse().unwrap()).unwrap_err().to_string();
        assert!(!e.contains('\n'), "{e}");
        e
    };
    let hint =
        "there is no kernel vendor-matrixmul; `use gemv_baselines as _;` in a program links it";
    for (params, why) in [
        ("vendor-a", "vendor-a is linked more than once"),
        ("vendor-b rows=1", "vendor-b has no rows"),
        ("vendor-matrixmul", hint),
        ("other", "there is no kernel other"),
    ] {
        assert!(refused(params).ends_with(why), "{}", refused(params));
    }
    let one = cpu.fits(&Desc { rhs: 1, ..desc }, &Params::new("vendor-b")).unwrap_err();
    assert!(one.to_string().ends_with("vendor-b is for several right-hand sides"), "{one}");
}
