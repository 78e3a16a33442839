//! What a device does when the host has no memory to pack an operand or a result.

use gemv_core::ndarray::{Array, Array1, Array2, Array3, Dimension, s};
use gemv_core::{Device, Error, Result};

use crate::{LEAST, Numbers, each_failure};

/// Lets each allocation of a call fail that packs, for every kind of operand and result: the error is
/// [`Error::OutOfMemory`], y is as it was, and the next call works. An allocation that may not fail would end the process.
///
/// The program's allocator is a [`FailingAllocator`](crate::FailingAllocator), and nothing else runs in it meanwhile.
///
/// # Panics
/// If the device does anything else, or allocates nothing.
pub fn packing_fails(device: &Device) {
    let mut numbers = Numbers::new(8);
    let a = Array2::from_shape_vec((1200, 60), numbers.elements::<f64>(72_000)).unwrap();
    let x = Array1::from_vec(numbers.elements::<f64>(1800));
    let y = Array1::from_vec(numbers.elements::<f64>(1200));
    let (part, few) = (a.slice(s![..;2, ..;2]), x.slice(s![..;60]));

    fails("a matrix with gaps", &y.slice(s![..600]).to_owned(), |y| {
        device.gemv(2.0, part, few, -1.0, y)
    });
    fails("x with gaps", &y.slice(s![..60]).to_owned(), |y| {
        device.gemv(2.0, a.slice(s![..600, ..]).t(), x.slice(s![..;-3]), -1.0, y)
    });
    fails("y with gaps", &y, |y| {
        device.gemv(2.0, a.slice(s![..600, ..30]), few, -1.0, y.slice_mut(s![..;2]))
    });
    let stack = Array3::from_shape_vec((2, 600, 60), a.iter().copied().collect()).unwrap();
    let many = Array3::from_shape_vec((2, 60, 20), numbers.elements::<f64>(2400)).unwrap();
    let to = Array3::from_shape_vec((2, 600, 20), numbers.elements::<f64>(24_000)).unwrap();
    fails("several columns with gaps", &to, |y| {
        let (a, x) = (stack.slice(s![.., .., ..;2]), many.slice(s![.., ..;2, ..;2]));
        device.product(a, x).scaled(2.0, -1.0).to(y.slice_mut(s![.., .., ..;2]))
    });
    let narrow = part.mapv(|v| v as f32);
    let narrow = narrow.slice(s![.., ..;2]);
    fails("a matrix of another type", &y.slice(s![..600]).to_owned(), |y| {
        device.product(narrow, x.slice(s![..15])).scaled(2.0, -1.0).to(y)
    });
    fails("an upload", &y.slice(s![..600]).to_owned(), |y| {
        y.assign(&device.vector(&a.column(1).slice(s![..;2]))?.download()?);
        Ok(())
    });
    fails("a download with gaps", &y.slice(s![..600]).to_owned(), |y| {
        let there = device.vector(&a.column(0))?;
        y.assign(&there.step(.., 2).download()?);
        Ok(())
    });
    fails("a step", &y, |y| {
        let mut there = device.vector(&*y)?;
        there.axpy(2.0, a.column(3))?;
        y.assign(&there.download()?);
        Ok(())
    });
    fails("a new result", &y, |y| {
        y.assign(&device.try_gpu_dot(&a, &x.slice(s![..60]))?);
        Ok(())
    });
}

/// Lets each allocation of `call` fail, which writes to y or returns what it makes.
fn fails<D: Dimension>(
    what: &str,
    before: &Array<f64, D>,
    call: impl Fn(&mut Array<f64, D>) -> Result<()>,
) {
    let mut want = before.clone();
    // The first call compiles what it launches.
    call(&mut want).unwrap();
    let failed = each_failure(|failure| {
        let mut y = before.clone();
        match failure.during(|| call(&mut y)) {
            Ok(()) => assert_eq!(y, want, "{what}"),
            Err(Error::OutOfMemory { asked, .. }) => {
                assert!(asked >= LEAST as u64, "{what}: {asked} bytes");
                assert_eq!(&y, before, "{what}");
            }
            Err(e) => panic!("{what}: {e}"),
        }
        let mut again = before.clone();
        call(&mut again).unwrap();
        assert_eq!(again, want, "{what}, afterwards");
    });
    assert!(failed > 0, "{what}: no allocation failed");
}

/// The device of a backend that a test program is for; where `GEMV_REQUIRE` names it, none is a failure.
///
/// # Panics
/// If the backend is required and has no device.
pub fn required_device(id: &str) -> Option<Device> {
    let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
    let backend = id.split(':').next();
    match gemv_core::Engine::new(None).device(id) {
        Ok(device) => Some(device.clone()),
        Err(why) if required.split(',').any(|name| Some(name.trim()) == backend) => panic!("{why}"),
        Err(why) => {
            eprintln!("not tested: {why}");
            None
        }
    }
}
