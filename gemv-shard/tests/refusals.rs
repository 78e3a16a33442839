//! What does not fit together is refused in one sentence, and y stays as it was.
#![forbid(unsafe_code)]

mod common;

use common::{Random, reference, text};
use gemv::ndarray::{Array1, Array2};
use gemv_core::{Error as CoreError, ShapeMismatch};
use gemv_shard::{Error, Partial, dtype_of_bytes};
use gemv_testkit::Host;
use proptest::prelude::*;

/// Columns `first` to `first + k - 1` of `total`, 3 rows.
fn part(first: usize, k: usize, total: usize) -> gemv_shard::Result<Partial<f32>> {
    Partial::new(&reference(), &Array2::<f32>::ones((3, k)), &Array1::<f32>::ones(k), first, total)
}

#[test]
fn cuts() {
    for (first, k, total) in [(1, 255, 256), (0, 255, 256), (256, 256, 511), (0, 100, 300)] {
        let Err(Error::Cut { .. }) = part(first, k, total) else { panic!("{first} {k} {total}") };
    }
    let e = text(part(usize::MAX, 256, usize::MAX));
    assert!(
        e.ends_with("it must begin at a multiple of 256, and end at one or with the last column")
    );
    assert_eq!(part(300, 0, 300).unwrap().len(), 0);
    assert!(matches!(part(301, 0, 300), Err(Error::Cut { .. })));
    let of = |process, processes, k| {
        let (a, x) = (Array2::<f32>::ones((3, k)), Array1::<f32>::ones(k));
        Partial::cyclic(&reference(), &a, &x, process, processes, 600)
    };
    assert_eq!(
        text(of(1, 2, 100)),
        "process 1 of 2 holds 100 columns, where blocks of 256 of 600 columns give it 256"
    );
    assert!(text(of(2, 2, 0)).ends_with("give it no place"));
    assert!(text(of(0, 0, 0)).ends_with("give it no place"));
    assert_eq!(of(7, 8, 0).unwrap().len(), 0);
}

#[test]
fn operands() {
    let (a, x) = (Array2::<f32>::ones((3, 256)), Array1::<f32>::ones(255));
    let e = Partial::new(&reference(), &a, &x, 0, 256).unwrap_err();
    let shapes = ShapeMismatch::MatrixVector { matrix: (3, 256), x: 255, y: None };
    assert_eq!(e, CoreError::Shape(shapes).into());
    let there = reference().matrix(&a).unwrap();
    let e = Partial::new(&reference(), &there, &Array1::<f32>::ones(256), 0, 256).unwrap_err();
    assert!(matches!(e, Error::Product(CoreError::WrongDevice { .. })));
}

#[test]
fn rows() {
    let sums = part(0, 256, 256).unwrap();
    assert_eq!(sums.slice_rows(3..3).unwrap().rows(), 0);
    let (first, end) = (2, 1);
    for (rows, said) in
        [(0..4, "0 to 3"), (4..4, "from 4 up to before 4"), (first..end, "from 2 up to before 1")]
    {
        let text = text(sums.slice_rows(rows));
        assert_eq!(text, format!("partial sums of 3 rows have no rows {said}"));
    }
}

#[test]
fn sets() {
    let merged = |parts: Vec<Partial<f32>>| Partial::merge(parts);
    assert_eq!(text(merged(vec![])), "there are no partial sums to merge");
    let (low, high) = (part(0, 512, 700).unwrap(), part(512, 188, 700).unwrap());
    let again = part(256, 256, 700).unwrap();
    for parts in [[&low, &high, &again], [&again, &low, &high], [&high, &again, &low]] {
        let parts = parts.map(Clone::clone).to_vec();
        assert_eq!(text(merged(parts)), "partial sums came twice: columns 256 to 511");
    }
    let twice = merged(vec![high.clone(), high.clone()]);
    assert_eq!(text(twice), "partial sums came twice: columns 512 to 699");
    let rows = Partial::new(&reference(), &Array2::<f32>::ones((4, 512)), &[1.0f32; 512], 0, 700);
    let e = text(merged(vec![high.clone(), rows.unwrap()]));
    assert_eq!(e, "partial sums do not belong together: 3 rows and 4 rows");
    let e = text(merged(vec![high.clone(), part(0, 512, 800).unwrap()]));
    assert!(e.ends_with("a matrix of 700 columns and a matrix of 800 columns"), "{e}");
    let whole = merged(vec![high.clone(), low.clone()]).unwrap().reduce(1).unwrap();
    let e = text(merged(vec![high.clone(), whole.clone()]));
    assert!(e.ends_with("sums of segments and sums reduced for 1 processes"), "{e}");
    assert_eq!(text(merged(vec![whole.clone(), whole])), "partial sums came twice: process 0 of 1");
}

#[test]
fn gaps() {
    let finish = |parts: Vec<Partial<f32>>, rows: usize| {
        let mut y = vec![7.0f32; rows];
        let e = Partial::merge(parts).unwrap().finish(&reference(), 1.0, 0.0, &mut y);
        assert_eq!(y, vec![7.0; rows]);
        text(e)
    };
    let parts = [(0, 256), (256, 256), (512, 256), (768, 32)];
    let [a, b, c, d] = parts.map(|(first, k)| part(first, k, 800).unwrap());
    let all = [&a, &b, &c, &d];
    for (left_out, (first, k)) in parts.into_iter().enumerate() {
        let some = all.into_iter().enumerate().filter(|(i, _)| *i != left_out);
        let e = finish(some.map(|(_, part)| part.clone()).collect(), 3);
        let last = first + k - 1;
        assert_eq!(e, format!("partial sums are missing: columns {first} to {last}"));
    }
    let e = finish(vec![part(0, 0, 800).unwrap()], 3);
    assert_eq!(e, "partial sums are missing: columns 0 to 799");
    let e = finish(vec![a.clone(), b.clone(), c.clone(), d.clone()], 2);
    assert!(e.ends_with("y must have 3 entries, but it has 2"), "{e}");

    // Reduced: two of four processes have been here.
    let of = |process: usize| {
        let k = if process == 3 { 32 } else { 256 };
        let (a, x) = (Array2::<f32>::ones((3, k)), Array1::<f32>::ones(k));
        Partial::cyclic(&reference(), &a, &x, process, 4, 800).unwrap().reduce(4).unwrap()
    };
    assert_eq!(finish(vec![of(3), of(0)], 3), "partial sums are missing: processes 1 to 2 of 4");
    assert_eq!(finish(vec![of(3), of(0), of(1)], 3), "partial sums are missing: process 2 of 4");
}

#[test]
fn reductions() {
    let low = part(0, 512, 1000).unwrap();
    assert_eq!(
        text(low.clone().reduce(2)),
        "partial sums cannot be reduced for 2 processes: the part has 1 of the 2 blocks of 256 columns \
         of process 0"
    );
    for processes in [0, 3, 12, 65, 128, usize::MAX] {
        assert!(text(low.clone().reduce(processes)).ends_with("a power of two up to 64"));
    }
    // Each of the four blocks is all that a process of 4, 8 or more has.
    let reduced = low.clone().reduce(4).unwrap();
    assert_eq!(reduced, low.clone().reduce(4).unwrap());
    assert!(text(reduced.reduce(4)).ends_with("they are reduced for 4 already"));
    // Nothing to reduce.
    let short = part(0, 200, 200).unwrap();
    assert_eq!(short.clone().reduce(64).unwrap(), short);
}

/// A device that fails leaves y as it was, on the host and resident.
#[test]
fn failing_devices() {
    let late = CoreError::Device { device: "fake:0".into(), call: "launch", reason: "late".into() };
    let failing = Host {
        compute: Box::new({
            let late = late.clone();
            move |job, _| {
                gemv_testkit::compute(job);
                Err(late.clone())
            }
        }),
        ..Host::new("fake:0")
    };
    let failing = failing.device();
    let sums = Partial::merge([part(0, 256, 300).unwrap(), part(256, 44, 300).unwrap()]).unwrap();
    let mut y = [7.0f32; 3];
    assert_eq!(sums.finish(&failing, 1.0, 0.0, &mut y), Err(late.clone().into()));
    assert_eq!(y, [7.0; 3]);
    let mut y = reference().vector(&[7.0f32; 3]).unwrap();
    assert_eq!(sums.finish(&failing, 1.0, 1.0, &mut y), Err(late.clone().into()));
    assert_eq!(y.download().unwrap().to_vec(), [7.0; 3]);
    let (a, x) = (Array2::<f32>::ones((3, 10)), Array1::<f32>::ones(10));
    assert_eq!(Partial::new(&failing, &a, &x, 0, 10), Err(late.into()));
}

/// Partial sums of some forms, small enough to try every byte.
fn samples() -> Vec<Vec<u8>> {
    let whole = Partial::merge([part(0, 512, 700).unwrap(), part(512, 188, 700).unwrap()]).unwrap();
    let gap = Partial::merge([part(0, 256, 900).unwrap(), part(512, 256, 900).unwrap()]).unwrap();
    let reduced = whole.clone().reduce(2).unwrap();
    let empty = part(0, 0, 700).unwrap();
    let no_rows =
        Partial::new(&reference(), &Array2::<f32>::ones((0, 512)), &[1.0f32; 512], 0, 512).unwrap();
    [whole, gap, reduced, empty, no_rows].iter().map(|sums| sums.to_bytes().unwrap()).collect()
}

/// Reads bytes from anywhere, and uses what they are: without a panic, without memory beyond theirs.
fn uses(bytes: &[u8]) -> bool {
    let Ok(sums) = Partial::<f32>::from_bytes(bytes) else {
        let e = Partial::<f32>::from_bytes(bytes).unwrap_err();
        assert!(matches!(e, Error::Bytes { .. }), "{e}");
        return false;
    };
    assert_eq!(sums.to_bytes().unwrap(), bytes);
    let mut y = [1.0f32; 3];
    let _ = sums.finish(&reference(), 1.0, 0.5, &mut y);
    let _ = sums.clone().reduce(2);
    let _ = sums.clone().reduce(64);
    let _ = Partial::merge([sums.clone(), sums.clone()]);
    let _ = Partial::merge([part(512, 188, 700).unwrap(), sums]);
    true
}

#[test]
fn every_byte_and_length() {
    for bytes in samples() {
        assert!(uses(&bytes));
        for end in 0..bytes.len() {
            assert!(!uses(&bytes[..end]), "{end} of {} bytes", bytes.len());
        }
        assert!(!uses(&[&bytes[..], &[0]].concat()));
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[at] = value;
                let read = uses(&changed);
                // Magic, versions, type, form and what is reserved.
                let fixed = at < 13 || at == 14 || at == 15;
                assert!(!(read && fixed && changed != bytes), "byte {at} as {value}");
            }
        }
    }
}

#[test]
fn sentences_of_bytes() {
    let bytes = part(0, 256, 256).unwrap().to_bytes().unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        text(Partial::<f32>::from_bytes(&bytes))
    };
    let begin = "these bytes are no partial sums: ";
    for (at, value, rest) in [
        (0, b'G', "they do not begin with \"gemvsums\""),
        (8, 2, "their format has version 2, but only 1 is known"),
        (10, 2, "their order of additions has version 2, but only 1 is known"),
        (12, 9, "there is no type 9"),
        (12, 2, "they hold sums of f64, where f32 is asked"),
        (13, 3, "there is no form 3"),
        (13, 2, "sums of 256 columns cannot be reduced"),
        (14, 1, "bytes 14 and 15 are not 0"),
        (16, 4, "they have 68 bytes, where their header announces 72"),
        (32, 2, "they end within their 2 runs"),
        (48, 2, "0 to 2 is no run of units here"),
    ] {
        assert_eq!(with(at, value), format!("{begin}{rest}"));
    }
    assert!(text(dtype_of_bytes(b"gemvsums\x01")).ends_with("they end within their header"));
}

proptest! {
    /// Numbers of any size in the header.
    #[test]
    fn any_header(
        sample in 0usize..5,
        at in prop::sample::select(vec![16usize, 24, 32, 40, 48]),
        number in prop_oneof![any::<u64>(), Just(u64::MAX), Just(1 << 63), Just(1 << 32), 0u64..2000],
        form in prop::sample::select(vec![0u8, 1, 2, 64]),
        other in any::<u64>(),
    ) {
        let mut bytes = samples().swap_remove(sample);
        if at + 8 <= bytes.len() {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[13] = form;
        uses(&bytes);
        bytes[24..32].copy_from_slice(&other.to_le_bytes());
        uses(&bytes);
    }
}

/// Merging in steps and in any order gives one value.
#[test]
fn steps() {
    let random = &mut Random(7);
    let n = 9 * 256 + 17;
    let (a, x): (Array2<f64>, Array1<f64>) = (random.matrix(2, n), random.vector(n));
    let whole = Partial::new(&reference(), &a, &x, 0, n).unwrap();
    for _ in 0..20 {
        let mut parts: Vec<_> = (0..10)
            .map(|s| {
                let columns = gemv::ndarray::Slice::from(256 * s..n.min(256 * (s + 1)));
                let a = a.slice_axis(gemv::ndarray::Axis(1), columns);
                let x = x.slice_axis(gemv::ndarray::Axis(0), columns);
                Partial::new(&reference(), a, x, 256 * s, n).unwrap()
            })
            .collect();
        random.shuffle(&mut parts);
        while parts.len() > 1 {
            let some = parts.split_off(parts.len() - 2 - random.below(parts.len() - 1));
            parts.insert(random.below(parts.len() + 1), Partial::merge(some).unwrap());
        }
        assert_eq!(parts[0], whole);
    }
}
