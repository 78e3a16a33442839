//! `gemv share`, end to end with tiny limits: on the reference, which every build has, and on an OpenCL
//! device where there is one (GEMV_REQUIRE=opencl makes its absence a failure).

use std::path::Path;
use std::process::{Command, Output};

fn gemv(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gemv"))
        .args(args)
        .current_dir(dir)
        .env("XDG_CONFIG_HOME", dir.join("config"))
        .env_remove("GEMV_TABLES")
        .output()
        .unwrap()
}

fn share(device: &str) {
    let dir = tempfile::tempdir().unwrap();
    let args = ["share", "--device", device, "--minutes", "0.06", "--max-bytes", "64k"];
    let name = "of-a-person/results";
    let results = dir.path().join(name).display().to_string();
    let args = [&args[..], &["--cold-bytes", "1M", "--out", &results]].concat();
    // The second run names the directory from where it is.
    let relative = [&args[..args.len() - 1], &[name]].concat();
    let read = |args: &[&str]| -> serde_json::Value {
        let out = gemv(dir.path(), args);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
        assert!(said.contains("share.json"), "{said}");
        let text = std::fs::read_to_string(dir.path().join(name).join("share.json")).unwrap();
        // Nothing of this machine but what the device and its driver say.
        assert!(!text.contains(&dir.path().display().to_string()), "{text}");
        assert!(!text.contains("of-a-person") && text.contains("--out=DIR/tune"));
        serde_json::from_str(&text).unwrap()
    };
    let results = read(&args);
    assert_eq!(results["device"]["id"], device);
    assert_eq!(results["tests"]["wrong"], serde_json::json!([]));
    // How many there is time for, where programs are compiled for them, is the machine's affair.
    let least = if device == "reference" { 20 } else { 1 };
    assert!(results["tests"]["products"].as_u64().unwrap() >= least, "{}", results["tests"]);
    for part in ["tune", "bench"] {
        assert!(results[part]["error"].is_null(), "{}", results[part]["error"]);
        let files = results[part]["files"].as_object().unwrap();
        assert!(files.values().any(|text| text.as_str().unwrap().lines().count() > 2), "{part}");
    }
    // The table, and what it was made from.
    let names = results["tune"]["files"].as_object().unwrap();
    assert!(names.keys().any(|name| name.ends_with(".cells.csv")), "{names:?}");
    // Once more: it goes on, measures no time twice, and leaves alone what is no result.
    std::fs::write(dir.path().join(name).join("tune/notes.txt"), "private").unwrap();
    let again = read(&relative);
    assert!(again["tune"]["files"].get("notes.txt").is_none());
    assert_eq!(again["bench"]["files"], results["bench"]["files"]);
    // Of other limits, or another device: not mixed.
    let other: Vec<_> = args.iter().map(|&arg| if arg == "64k" { "32k" } else { arg }).collect();
    let out = gemv(dir.path(), &other);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("has results of another device"), "{said}");
}

#[test]
fn the_reference_is_shared() {
    share("reference");
}

#[cfg(feature = "opencl")]
#[test]
fn an_opencl_device_is_shared() {
    let listed = gemv(Path::new("."), &["info", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let ids = listed["devices"].as_array().unwrap().iter().map(|device| device["id"].as_str());
    match ids.flatten().find(|id| id.starts_with("opencl:")) {
        Some(id) => share(id),
        None if std::env::var("GEMV_REQUIRE").is_ok_and(|all| all.contains("opencl")) => {
            panic!("no OpenCL device: {listed}")
        }
        None => eprintln!("not tested: there is no OpenCL device"),
    }
}

#[test]
fn a_device_that_is_not_there_is_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let out = gemv(dir.path(), &["share", "--device", "abacus:0"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("no such device: \"abacus:0\""), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
