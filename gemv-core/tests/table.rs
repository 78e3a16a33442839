//! Rows of tables, and which of them is nearest.
#![deny(unsafe_code)]

use gemv_core::table::Row;
use gemv_core::{Desc, Dtype, Layout, Table};

/// The one row of this text.
fn row(text: &str) -> Row {
    Table::parse("test", text).unwrap().rows.remove(0)
}

fn desc(dtype: Dtype, layout: Layout, m: usize, n: usize) -> Desc {
    Desc::of(dtype, layout, (m, n), 6)
}

#[test]
fn text_form_round_trips() {
    for text in [
        "f32 row m=2^12 n=2^10..2^12.500 : row threads=128 rows=4",
        "f64 col align=..8 m=1..96 n=1000.. : col",
        "f64 * align=16.. : col",
        "f64 col m=16 n=12345678..2^40 : col",
        "bf16 * m=2^33.250.. : col",
        "f32 row rhs=2 : row",
        "* * align=16.. rhs=5..8 batch=2.. m=16 : row",
        "f32 row n=8.. : row rows=2 ..",
        "f32 row : row ..",
    ] {
        let parsed = row(text);
        assert_eq!(parsed.to_string(), text);
        assert_eq!(row(&parsed.to_string()), parsed);
    }
    assert_eq!(row("* * : row").to_string(), "* * : row");
}

/// Beyond 2^24 not every whole number is a float: a bound comes back from its text all the same.
#[test]
fn bounds_of_any_size_come_back() {
    let near = |n: usize| [n.saturating_sub(1), n, n.saturating_add(1)];
    let powers = (0..usize::BITS).map(|k| 1usize << k);
    let tens = (0..20).map(|k| 10usize.pow(k));
    let sizes: Vec<usize> = powers.chain(tens).flat_map(near).chain([usize::MAX]).collect();
    let texts = sizes.iter().flat_map(|m| {
        let (half, more) = (m / 2, m.saturating_mul(3));
        [
            format!("f32 row m={m} : row"),
            format!("f32 row n={m}.. rhs={}.. : row", m.max(&1)),
            format!("f32 row m={half}..{m} n={m}..{more} batch=1..{} : row", m.max(&1)),
        ]
    });
    let logs = (0..64_000).step_by(77).map(|log| f64::from(log) / 1000.0 + 1e-5);
    for text in texts.chain(logs.map(|log| format!("f32 row m=2^{log} n=2^{log:.3} : row"))) {
        let read = row(&text);
        assert_eq!(row(&read.to_string()), read, "{text} became {read}");
    }
}

#[test]
fn nearest_row_wins_and_a_key_beats_a_distance() {
    let text = "* * : any\nf32 row m=16 n=16 : small\nf32 row m=4096..8192 n=4096 : large\n\
                f32 * : floats # a comment";
    let table = Table::parse("test", text).unwrap();
    let first = |d| table.nearest(&d)[0].params.to_string();
    assert_eq!(first(desc(Dtype::F32, Layout::Row, 20, 20)), "small");
    assert_eq!(first(desc(Dtype::F32, Layout::Row, 6000, 100_000)), "large");
    assert_eq!(first(desc(Dtype::F32, Layout::Row, 0, 0)), "small");
    assert_eq!(first(desc(Dtype::F32, Layout::Col, 20, 20)), "floats");
    assert_eq!(first(desc(Dtype::F64, Layout::Row, 20, 20)), "any");
    assert_eq!(table.nearest(&desc(Dtype::F32, Layout::Row, 20, 20)).len(), 4);
    // Alignment is no distance: a row for another does not hold, however near.
    let text = "f32 row align=16.. m=16 n=16 : whole\nf32 row align=..8 m=9999 n=9999 : odd";
    let table = Table::parse("test", text).unwrap();
    let at = |align| Desc { align, ..desc(Dtype::F32, Layout::Row, 16, 16) };
    let names = |align| table.nearest(&at(align)).iter().map(|r| r.params.to_string()).collect();
    let (whole, odd): (Vec<_>, Vec<_>) = (names(4), names(2));
    assert_eq!((whole, odd), (vec!["whole".to_string()], vec!["odd".to_string()]));
}

#[test]
fn rows_for_many_are_for_many_alone_and_come_first() {
    let text = "f32 row m=16 n=16 : one\n* * rhs=2..4 : few\n* * rhs=5.. : lots\n\
                * * batch=2.. : stack\nf32 row rhs=2 : two";
    let table = Table::parse("test", text).unwrap();
    let names = |rhs, batch| {
        let desc = Desc { rhs, batch, ..desc(Dtype::F32, Layout::Row, 16, 16) };
        table.nearest(&desc).iter().map(|r| r.params.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(1, 1), ["one"]);
    assert_eq!(names(2, 1), ["two", "few", "one"]);
    assert_eq!(names(4, 1), ["few", "one"]);
    assert_eq!(names(5, 1), ["lots", "one"]);
    assert_eq!(names(1, 2), ["stack", "one"]);
    assert_eq!(names(99, 9), ["lots", "stack", "one"]);
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_table() {
    let table = Table::parse("t", "\u{feff}# card: big\nf32 row : x").unwrap();
    assert_eq!(table.header, [("card".to_string(), "big".to_string())]);
    assert_eq!(table.rows.len(), 1);
}

#[test]
fn bad_rows_name_their_line() {
    for (text, part) in [
        ("\nf32 row", "colon"),
        ("\nf33 row : x", "f33"),
        ("\nf32 diagonal : x", "diagonal"),
        ("\nf32 row m=2^65 : x", "2^65"),
        ("\nf32 row m=9..3 : x", "ends before"),
        ("\nf32 row k=3 : x", "none of m=, n=, rhs=, batch= and align="),
        ("\nf32 row align=3 : x", "no range of powers of two"),
        ("\nf32 row m=1 n=2 m=1 : x", "m is there twice"),
        ("\nf32 row align=8 align=16 : x", "align is there twice"),
        ("\nf32 row rhs=0 : x", "\"0\" is no count from 1 on"),
        ("\nf32 row batch=9..3 : x", "ends before"),
        ("\nf32 row rhs=2 rhs=3 : x", "rhs is there twice"),
        ("\nf32 row : x a", "name=value"),
        ("\nf32 row : x a=1 a=2", "twice"),
        ("\nf32 row : x a=4294967296", "no whole number below 2^32"),
    ] {
        let e = Table::parse("t", text).unwrap_err().to_string();
        assert!(e.starts_with("t, line 2: ") && e.contains(part), "{e}");
    }
}
