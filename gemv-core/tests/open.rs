//! Several devices by one text: which are opened, and what is said where one is not there.
#![forbid(unsafe_code)]

use gemv_core::reference::Reference;
use gemv_core::{BackendEntry, Device, DeviceInfo, Engine, Error};

fn refusal(device: &str) -> Error {
    Error::Refused { device: device.into(), reason: "it flushes subnormals".into() }
}

/// `fast:1` is refused, `slow` has refused devices only, `lost` has no driver, `late` does not open.
fn engine() -> Engine {
    let entry = |name, discover, open| BackendEntry { name, rank: 1, discover, open };
    fn infos(ids: &[&str], refused: &str) -> Vec<DeviceInfo> {
        let info = |id: &&str| {
            let mut info = DeviceInfo::new(*id);
            info.refused = (*id == refused).then(|| "it flushes subnormals".into());
            info
        };
        ids.iter().map(info).collect()
    }
    let lost = || Err(Error::DriverMissing { backend: "lost", reason: "no liblost.so".into() });
    let entries = [
        entry(
            "fast",
            || Ok(infos(&["fast:0", "fast:1", "fast:2"], "fast:1")),
            |_| Ok(Reference::open()),
        ),
        entry("faster", || Ok(infos(&["faster"], "")), |_| Ok(Reference::open())),
        entry("slow", || Ok(infos(&["slow:0"], "slow:0")), |_| Err(refusal("slow:0"))),
        entry("lost", lost, |_| unreachable!("it has no device")),
        entry(
            "late",
            || Ok(infos(&["late:0", "late:1"], "")),
            |which| match which {
                0 => Ok(Reference::open()),
                _ => Err(Error::OutOfMemory { device: "late:1".into(), asked: 1, free: None }),
            },
        ),
    ];
    Engine::with_entries(entries, None)
}

#[test]
fn devices() {
    let engine = engine();
    for (text, names) in [
        ("fast:*", vec!["fast:0", "fast:2"]), // not that of `faster`
        ("faster:*", vec!["faster"]),
        (" fast:2 ,faster,reference", vec!["fast:2", "faster", "reference"]),
        ("reference:*,fast:*,fast", vec!["reference", "fast:0", "fast:2", "fast:0"]),
    ] {
        let want: Vec<Device> = names.iter().map(|name| engine.device(name).unwrap()).collect();
        assert_eq!(engine.open_devices(text).unwrap(), want, "{text}");
    }
}

#[test]
fn errors() {
    let engine = engine();
    for text in ["slow:*", "fast,slow:*"] {
        assert_eq!(engine.open_devices(text), Err(refusal("slow:0")));
    }
    let said = |text: &str| engine.open_devices(text).unwrap_err().to_string();
    assert_eq!(said("lost:*"), "lost is not available: no liblost.so");
    assert!(said("late:*").starts_with("late:1 is out of memory"));
    for (text, asked) in
        [("", ""), ("fast,", ""), (":*", ""), ("abacus:*", "abacus"), ("fast:3", "fast:3")]
    {
        assert!(said(text).starts_with(&format!("no such device: {asked:?}; there is fast:0")));
    }
}
