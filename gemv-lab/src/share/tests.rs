//! Products of a device compared with the reference: what the tables choose for every type, then every
//! candidate, until the time is over.

use std::time::{Duration, Instant};

use gemv::unstable::{Desc, Layout, Params, for_types, reference};
use gemv::{Accumulator, Device, Dtype, Element};
use ndarray::{Array1, Array2};
use serde_json::{Value, json};

use crate::interrupt::is_stopped;

/// Rows and columns: about the sizes of vectors, lanes and segments, and beyond one level.
const SHAPES: [(usize, usize); 12] = [
    (67, 300),
    (3, 4100),
    (1, 1),
    (3, 2),
    (5, 17),
    (67, 16),
    (33, 63),
    (130, 100),
    (17, 256),
    (21, 257),
    (300, 5),
    (2, 66_000),
];
/// Wrong products that are named.
const NAMED: usize = 100;

struct Tests {
    end: Instant,
    said: Instant,
    products: usize,
    wrong: Vec<String>,
    /// Types that the device does not compute, and parameters that it fails with.
    failed: Vec<String>,
    late: bool,
}

/// The results, as the file has them.
pub(super) fn run(device: &Device, end: Instant) -> Value {
    let (said, products, late) = (Instant::now(), 0, false);
    let mut tests = Tests { end, said, products, wrong: vec![], failed: vec![], late };
    for every in [false, true] {
        for dtype in Dtype::ALL {
            for_types!((dtype, dtype), T, _V => tests.of_type::<T>(device, every));
        }
    }
    let Tests { products, wrong, failed, late, .. } = tests;
    eprintln!("{products} products compared, {} are wrong", wrong.len());
    json!({ "products": products, "wrong": wrong, "failed": failed, "whole": !late })
}

impl Tests {
    fn of_type<T: Element>(&mut self, device: &Device, every: bool) {
        let probe = Desc::of(T::DTYPE, Layout::Row, (64, 64), 4);
        if let Err(why) = device.backend().accepts(&probe) {
            if !every {
                self.failed.push(why.to_string());
            }
            return;
        }
        for (m, n) in SHAPES {
            let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
            let mut part = || {
                // Marsaglia's xorshift, in magnitudes that show an order of additions.
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let unit = (seed >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
                unit * [1.0, 0.125, 16.0, 3.0][(seed % 4) as usize]
            };
            let mut value = || T::narrow(T::Acc::from_parts(part(), part()));
            let by_rows = Array2::from_shape_simple_fn((m, n), &mut value);
            let by_columns = by_rows.t().as_standard_layout().reversed_axes().into_owned();
            let x = Array1::from_shape_simple_fn(n, &mut value);
            let mut expected = Array1::from_elem(m, T::default());
            let (one, zero) = (T::Acc::ONE, T::Acc::ZERO);
            reference::gemv(one, by_rows.view(), false, x.view(), zero, expected.view_mut());
            for a in [&by_rows, &by_columns] {
                let strides = (a.strides()[0], a.strides()[1]);
                let desc = Desc::new(T::DTYPE, m, n, strides, a.as_ptr() as usize);
                let all: Vec<Params> = match every {
                    true => device.backend().candidates(&desc),
                    false => device.choose(&desc).into_iter().collect(),
                };
                for params in all {
                    if self.is_late() {
                        return;
                    }
                    let nan = T::narrow(T::Acc::from_parts(f64::NAN, f64::NAN));
                    let mut y = Array1::from_elem(m, nan);
                    match device.product(a, &x).with(&params).scaled(one, zero).to(&mut y) {
                        Ok(()) => self.compare(&desc, &params, &y, &expected),
                        Err(why) => self.failed.push(why.to_string()),
                    }
                }
            }
        }
    }

    fn compare<T: Element>(
        &mut self,
        desc: &Desc,
        params: &Params,
        got: &Array1<T>,
        expected: &Array1<T>,
    ) {
        self.products += 1;
        let differs = |(got, expected): (&T, &T)| got.bits() != expected.bits();
        if let Some(i) = got.iter().zip(expected).position(differs)
            && self.wrong.len() < NAMED
        {
            let (got, expected) = (got[i], expected[i]);
            self.wrong.push(format!("{desc} : {params}: row {i} is {got:?}, not {expected:?}"));
        }
        if self.said.elapsed() > Duration::from_secs(5) {
            self.said = Instant::now();
            eprintln!("{} products, {} wrong; now {desc}", self.products, self.wrong.len());
        }
    }

    fn is_late(&mut self) -> bool {
        self.late |= is_stopped() || Instant::now() >= self.end;
        self.late
    }
}
