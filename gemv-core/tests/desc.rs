//! Layouts, alignments and the text form of problems.
#![deny(unsafe_code)]

use gemv_core::{Align, Desc, Dtype, Layout};

#[test]
fn layouts_by_strides() {
    for ((m, n, rs, cs), want) in [
        ((3, 5, 5, 1), Layout::Row),
        ((3, 5, -9, 1), Layout::Row),
        ((3, 5, 0, 1), Layout::Row),
        ((3, 5, 1, 1), Layout::Row), // overlapping windows
        ((3, 5, 1, 3), Layout::Col),
        ((3, 5, 1, -4), Layout::Col),
        ((3, 5, 1, 0), Layout::Col),
        ((3, 5, 10, 2), Layout::Strided),
        ((3, 5, 5, -1), Layout::Strided),
        ((3, 5, -1, 3), Layout::Strided),
        ((3, 5, 0, 0), Layout::Strided),
        // One column whose entries are neighbours is read along it.
        ((5, 1, 1, 1), Layout::Col),
        ((1, 5, 5, 1), Layout::Row),
        ((1, 1, 7, -3), Layout::Row),
    ] {
        assert_eq!(Layout::of(m, n, rs, cs), want, "{m}x{n} {rs},{cs}");
    }
    for layout in Layout::ALL {
        assert_eq!(Layout::parse(layout.name()), Some(layout));
    }
    assert_eq!(Layout::parse("Row"), None);
}

#[test]
fn alignment_of_every_line() {
    let align = |dtype, m, n, strides, at| Desc::new(dtype, m, n, strides, at).align;
    assert_eq!(align(Dtype::F32, 3, 64, (64, 1), 0), 6);
    assert_eq!(align(Dtype::F32, 3, 64, (64, 1), 4), 2);
    assert_eq!(align(Dtype::F32, 3, 5, (5, 1), 64), 2);
    assert_eq!(align(Dtype::F32, 3, 5, (-12, 1), 64), 4);
    // A single row starts where it starts.
    assert_eq!(align(Dtype::F32, 1, 5, (5, 1), 64), 6);
    // Lines that overlap have no boundary but that of an element.
    assert_eq!(align(Dtype::F32, 9, 5, (0, 1), 32), 2);
    assert_eq!(align(Dtype::F16, 9, 64, (16, 1), 32), 1);
    assert_eq!(align(Dtype::F16, 8, 3, (1, 8), 16), 4);
    assert_eq!(align(Dtype::Bf16, 8, 3, (1, 7), 16), 1);
    assert_eq!(align(Dtype::C64, 3, 3, (3, 1), 1 << 20), 4);
    // At most 64 bytes, and never more than 6, wherever the block lies.
    assert_eq!(align(Dtype::F64, 2, 64, (64, 1), 0), 6);
}

#[test]
fn classes_of_alignment_in_bytes() {
    for (text, low, high) in
        [("16..", 4, 6), ("..8", 0, 3), ("4", 2, 2), ("2..8", 1, 3), ("64", 6, 6), ("..32", 0, 5)]
    {
        let align = Align { low, high };
        assert_eq!(Align::parse(text), Some(align), "{text}");
        assert_eq!(align.to_string(), text);
    }
    for bad in ["", "..", "3", "128", "16..8", "x.."] {
        assert_eq!(Align::parse(bad), None, "{bad}");
    }
    for align in 0..=6 {
        assert!(Align::ANY.holds(align));
        assert_eq!(Align::WHOLE.holds(align), align >= 4);
    }
}

#[test]
fn every_text_is_read_back() {
    for (dtype, layout) in Dtype::ALL.into_iter().zip(Layout::ALL.into_iter().cycle()) {
        for (m, n) in [(0, 0), (1, 1), (1, 100), (100, 1), (64, 100), (1023, 65)] {
            for align in 0..=6 {
                for (rhs, batch) in [(1, 1), (8, 1), (1, 16), (0, 3)] {
                    let desc = Desc { rhs, batch, ..Desc::of(dtype, layout, (m, n), align) };
                    assert_eq!(desc.to_string().parse(), Ok(desc), "{desc}");
                }
            }
        }
    }
    let desc = Desc::new(Dtype::F32, 64, 128, (128, 1), 0);
    assert_eq!(desc.to_string(), "f32 row 64x128");
    assert_eq!(Desc { align: 2, ..desc }.to_string(), "f32 row 64x128 align=4");
    assert_eq!(Desc { rhs: 4, batch: 2, ..desc }.to_string(), "f32 row 64x128 rhs=4 batch=2");
    for (text, why) in [
        ("", "a type is missing in \"\""),
        ("f32 row", "a shape is missing in \"f32 row\""),
        ("f33 row 1x1", "\"f33\" is no element type"),
        ("f32 rows 1x1", "\"rows\" is no layout"),
        ("f32 row 1", "\"1\" is not like 64x128"),
        ("f32 row 1x-1", "\"-1\" is no whole number"),
        ("f32 row 1x1 align=4..8", "\"4..8\" is no alignment"),
        ("f32 row 1x1 k=1", "\"k=1\" is none of align=, rhs= and batch="),
    ] {
        assert_eq!(text.parse::<Desc>().unwrap_err(), why);
    }
}

#[test]
fn said_in_a_line() {
    let desc = Desc::new(Dtype::Bf16, 1023, 65, (65, 1), 2);
    assert_eq!(desc.to_string(), "bf16 row 1023x65");
    assert_eq!(desc.bytes(), 2 * (1023 * 65 + 1023 + 65));
    let many = Desc { rhs: 8, batch: 3, ..desc };
    assert_eq!(many.bytes(), 2 * 3 * (1023 * 65 + 8 * (1023 + 65)));
    // Beyond 2^32 bytes.
    let desc = Desc::new(Dtype::F32, 12_347, 174_000, (174_000, 1), 0);
    assert_eq!(desc.bytes(), 4 * (12_347 * 174_000 + 12_347 + 174_000));
}
