//! Profiles of devices: their text, and the times that they estimate.

use gemv_core::profile::{Link, Product, Profile, ReadBandwidth, ReadPoint};
use gemv_core::{Desc, Dtype, Layout};

fn profile() -> Profile {
    let point = |bytes, cold, warm| ReadPoint { bytes, cold, warm };
    let product = |m, n, seconds| Product { dtype: Dtype::F32, layout: Layout::Row, m, n, seconds };
    Profile {
        name: "NVIDIA \"H200\"".into(),
        launch: 1e-6,
        round_trip: 2e-5,
        link: Some(Link { up: 1e10, down: 1e10, up_latency: 1e-5, down_latency: 1e-5 }),
        read_bandwidth: ReadBandwidth {
            points: vec![point(1 << 12, 1e-6, 1e-6), point(1 << 30, 2.5e-4, 2.5e-4)],
        },
        products: vec![product(4096, 4096, 2e-5), product(16, 16, 2e-6)],
        ..Profile::default()
    }
}

#[test]
fn text_round_trips_and_names_the_bad_line() {
    let text = profile().to_string();
    assert_eq!(Profile::parse("p", &text).unwrap(), profile(), "{text}");
    let bad = text.replace("f32 row 16x16", "f32 row 16");
    let e = Profile::parse("p", &bad).unwrap_err().to_string();
    assert!(e.starts_with("p, line ") && e.contains("f32 row 16"), "{e}");
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let text = profile().to_string();
    for (good, bad, part) in [
        (" up=1e10", " up=0", "0 is not above 0"),
        (" down=1e10", " down=inf", "is not above 0"),
        ("up_latency=1e-5", "up_latency=-1.0", "-1 is no time"),
        ("round_trip 2e-5", "round_trip nan", "is no time"),
        ("cold=2.5e-4", "cold=0.0", "is not above 0"),
        ("read 4096", "read 0", "do not ascend"),
        ("read 4096", "read 1073741824", "do not ascend"),
        ("read 4096", "read many", "no number of bytes"),
        ("cold=", "warm=", "is not cold="),
        (" warm=1e-6", "", "there have to be cold= warm="),
        ("row 16x16 2e-6", "row 16x16 0", "0 is not above 0"),
        ("row 16x16 2e-6", "row 16x16", "is not like"),
        ("row 16x16 2e-6", "row 16x0 2e-6", "is not like"),
        ("round_trip 2e-5", "launch 2e-5", "launch is there twice"),
        ("round_trip 2e-5", "", "there is no round_trip"),
        ("round_trip 2e-5", "round_trip", "not a line of a profile"),
        ("round_trip 2e-5", "trip 2e-5", "\"trip\" is not a line of a profile"),
    ] {
        assert!(text.contains(good), "{good}: {text}");
        let e = Profile::parse("p", &text.replacen(good, bad, 1)).unwrap_err().to_string();
        assert!(e.starts_with("p, line ") && e.contains(part), "{bad}: {e}");
    }
}

#[test]
fn read_bandwidth_is_interpolated_between_sizes_and_extended_beyond() {
    let read = profile().read_bandwidth;
    assert_eq!(read.seconds(1, false), Some(1e-6));
    assert_eq!(read.seconds(1 << 12, false), Some(1e-6));
    let mid = read.seconds(1 << 21, false).unwrap();
    assert!((mid - (1e-6f64 * 2.5e-4).sqrt()).abs() < 1e-9, "{mid}");
    assert_eq!(read.seconds(1 << 31, true), Some(5e-4));
    assert_eq!(ReadBandwidth::default().seconds(1, false), None);
}

#[test]
fn times_follow_the_nearest_products_and_grow_with_size() {
    let p = profile();
    let desc = |m, n| Desc::of(Dtype::F32, Layout::Row, (m, n), 6);
    let known = p.seconds(&desc(4096, 4096)).unwrap();
    assert!((known / 2e-5 - 1.0).abs() < 0.05, "{known}");
    assert!(p.seconds(&desc(8192, 8192)).unwrap() > 1.5 * known);
    assert_eq!(p.seconds(&desc(16, 16).of_type(Dtype::F64)), None);
}
