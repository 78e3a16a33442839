//! Where products of host arrays go, by profiles.

use gemv_core::profile::{Link, Product, Profile, ReadBandwidth, ReadPoint};
use gemv_core::reference::Reference;
use gemv_core::router::{Estimate, Router};
use gemv_core::{Desc, Device, Dtype, Error, Layout};
use gemv_testkit::Host;

fn desc(m: usize, n: usize) -> Desc {
    Desc::of(Dtype::F32, Layout::Row, (m, n), 6)
}

/// A device that reads so many bytes a second, with or without a link.
fn profile(rate: f64, link: Option<f64>) -> Profile {
    let mut p = Profile::default();
    let point = |bytes: u64| {
        let seconds = 1e-6 + bytes as f64 / rate;
        ReadPoint { bytes, cold: seconds, warm: seconds }
    };
    p.read_bandwidth = ReadBandwidth { points: (12..=32).map(|k| point(1 << k)).collect() };
    p.link = link.map(|rate| Link { up_latency: 1e-5, up: rate, down_latency: 1e-5, down: rate });
    let product = |m: usize, n: usize| {
        let seconds = p.read_bandwidth.seconds(desc(m, n).bytes(), false).unwrap();
        Product { dtype: Dtype::F32, layout: Layout::Row, m, n, seconds }
    };
    let products = [(64, 64), (1024, 1024), (16384, 16384)].map(|(m, n)| product(m, n));
    Profile { products: products.into(), ..p }
}

fn router(cpu: f64, gpu: f64, link: f64) -> (Router, Device, Device) {
    let [home, away] = [0, 1].map(|_| Device::new(Reference::open()));
    let devices =
        vec![(home.clone(), profile(cpu, None)), (away.clone(), profile(gpu, Some(link)))];
    (Router::new(devices).unwrap(), home, away)
}

#[test]
fn a_slow_link_keeps_products_at_home_and_a_fast_one_sends_large_ones() {
    let (slow, home, _) = router(2e10, 4e12, 1e10);
    for k in 0..14 {
        assert!(slow.route(&desc(1 << k, 1 << k)).is(&home), "2^{k}");
    }
    let (fast, home, away) = router(1e10, 4e12, 5e10);
    assert!(fast.route(&desc(64, 64)).is(&home));
    assert!(fast.route(&desc(16384, 16384)).is(&away));
    assert!(fast.route(&desc(256, 256)).is(&home), "latency");
}

#[test]
fn the_choice_is_never_far_from_the_better_of_both() {
    let (router, _, away) = router(1e10, 4e12, 3e10);
    for k in 0..15 {
        let d = desc(1 << k, 1 << k);
        let bytes = d.bytes() as f64;
        let cpu = 1e-6 + bytes / 1e10;
        let gpu = 3e-5 + bytes / 3e10 + 1e-6 + bytes / 4e12;
        let chosen = if router.route(&d).is(&away) { gpu } else { cpu };
        assert!(chosen <= 1.1 * cpu.min(gpu), "{d}: {chosen} of {cpu} and {gpu}");
    }
}

#[test]
fn what_shares_the_memory_is_waited_for_and_has_to_be_much_faster() {
    let [here, there] = [0, 1].map(|_| Device::new(Reference::open()));
    let router = |rate: f64| {
        let (home, mut queue) = (profile(1e10, None), profile(rate, None));
        (queue.launch, queue.round_trip) = (2e-5, 1.4e-4);
        Router::new(vec![(here.clone(), home), (there.clone(), queue)]).unwrap()
    };
    // Twice as fast is what another day would say of the first.
    let twice = router(2e10);
    assert!((0..14).all(|k| twice.route(&desc(1 << k, 1 << k)).is(&here)));
    // Five times as fast, but for 120 us.
    let fast = router(5e10);
    assert!(fast.route(&desc(1000, 1000)).is(&here));
    assert!(fast.route(&desc(8192, 8192)).is(&there));
}

#[test]
fn what_is_resident_pays_no_upload_and_the_unknown_stays_at_home() {
    let p = profile(4e12, Some(1e10));
    let d = desc(4096, 4096);
    let (there, here) = (Estimate::of(&p, &d, true), Estimate::of(&p, &d, false));
    assert!(there.unwrap().total() < 0.1 * here.unwrap().total());
    let (router, home, _) = router(1e9, 4e12, 5e10);
    let unknown = desc(9999, 9999).of_type(Dtype::C64);
    assert!(router.route(&unknown).is(&home));
    assert!(Router::new(vec![(home, p)]).is_none());
}

#[test]
fn what_the_host_cannot_compute_is_never_sent_to_it() {
    fn f32_alone(desc: &Desc) -> Result<(), String> {
        if desc.dtype == Dtype::F32 { Ok(()) } else { Err("no kernels are compiled".into()) }
    }
    let home = || {
        let mut host = Host { accepts: f32_alone, ..Host::new("home") };
        host.info.host = true;
        host.device()
    };
    let away = || Device::new(Reference::open());
    // Small and large, with an estimate of the type elsewhere and without.
    let mut card = profile(4e12, Some(5e10));
    let measured = card.products[0];
    card.products.push(Product { dtype: Dtype::Bf16, ..measured });
    let (home, away, home_again) = (home(), away(), home());
    let one = |device: &Device, p: &Profile| (device.clone(), p.clone());
    let host = profile(1e10, None);
    let router = Router::new(vec![one(&home, &host), one(&away, &card)]).unwrap();
    for dtype in [Dtype::Bf16, Dtype::C64] {
        for n in [1, 64, 10_000] {
            let d = Desc { dtype, ..desc(n, n) };
            assert!(router.route(&d).is(&away), "{d}");
        }
    }
    assert!(router.route(&desc(64, 64)).is(&home));
    // Where no device can, the first says what is missing.
    let router = Router::new(vec![one(&home, &host), one(&home_again, &host)]).unwrap();
    let d = Desc { dtype: Dtype::C64, ..desc(64, 64) };
    assert!(router.route(&d).is(&home));
    assert!(matches!(home.choose(&d), Err(Error::Unsupported { .. })));
}

#[test]
fn a_choice_is_remembered_for_its_own_router() {
    let large = desc(16_384, 16_384);
    // One after the other at the same place in memory.
    let chosen = |rates: &[f64]| {
        let device = || Device::new(Reference::open());
        let devices = rates.iter().map(|&rate| (device(), profile(rate, Some(1e12)))).collect();
        let router = Router::new(devices).unwrap();
        let chosen = router.route(&large).clone();
        router.explain(&large).iter().position(|(device, _)| device.is(&chosen))
    };
    assert_eq!(chosen(&[1e10, 1e10, 4e12]), Some(2));
    assert_eq!(chosen(&[4e12, 1e10]), Some(0));
}

#[test]
fn columns_and_batches_are_carried_too() {
    let (card, one) = (profile(4e12, Some(1e10)), desc(1000, 500));
    let of = |desc: &Desc| Estimate::of(&card, desc, false).unwrap();
    let seconds = |elements: usize| 4.0 * elements as f64 / 1e10;
    let many = of(&Desc { rhs: 16, batch: 100, ..one });
    let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-9, "{got} and {want}");
    near(many.upload, 2e-5 + 100.0 * seconds(1000 * 500 + 16 * 500));
    near(many.download, 1e-5 + 100.0 * seconds(16 * 1000));
    // A batch of small products may be worth the way where one is not.
    let (fast, home, away) = router(1e10, 4e12, 5e10);
    assert!(fast.route(&desc(64, 64)).is(&home));
    assert!(fast.route(&Desc { batch: 65_536, ..desc(64, 64) }).is(&away));
}
