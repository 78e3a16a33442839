//! `gemv info`, and what is said of devices and libraries that are not there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program with these words, on this user's tables.
fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gemv"));
    command.env_remove("GEMV_BACKEND").env_remove("GEMV_TABLES");
    command.args(words.split_whitespace());
    command
}

fn gemv(args: &[&str]) -> Output {
    command("").args(args).output().unwrap()
}

#[track_caller]
fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A directory of tables, and where a device's own lies in it.
fn tables(name: &str, device: &gemv::Device) -> (PathBuf, PathBuf) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let table = dir.join(gemv::unstable::table::file_name(device.backend()));
    (dir, table)
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn info_says_what_there_is_and_what_not() {
    let mut info = Command::new(env!("CARGO_BIN_EXE_gemv"));
    info.arg("info");
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| name.starts_with("GEMV_")) {
        info.env_remove(name);
    }
    let out = text(info.output().unwrap());
    assert!(out.contains(env!("CARGO_PKG_VERSION")), "{out}");
    assert!(!out.contains("Environment") && !out.contains("not set"), "{out}");
    let with = text(info.env("GEMV_BACKEND", "reference").output().unwrap());
    assert!(with.ends_with("\n\nEnvironment\n  GEMV_BACKEND=reference\n"), "{with}");
    for (linked, name) in [
        (cfg!(feature = "cpu"), "cpu"),
        (cfg!(feature = "opencl"), "opencl"),
        (cfg!(feature = "cuda"), "cuda"),
    ] {
        let named = out.lines().any(|l| {
            let l = l.trim();
            l.starts_with(&format!("no {name}: ")) || l.starts_with(&format!("{name}:"))
        });
        assert_eq!(named, linked, "{name}: {out}");
    }
}

#[test]
fn explain_names_the_row() {
    let words = ["info", "--explain", "f32", "row", "4096x8192", "--device", "reference"];
    let out = text(gemv(&["info", "--explain", "f32 row 4096x8192", "--device", "reference"]));
    assert_eq!(text(gemv(&words)), out);
    assert_eq!(
        out,
        "reference: f32 row 4096x8192 : reference\n  from the row \"* * : reference\" of reference\n"
    );
    let mut numpy = command("info --explain float32 row 4096x8192 --device reference");
    assert_eq!(text(numpy.output().unwrap()), out);
    let every = text(gemv(&["info", "--explain", "c64 strided 3x0"]));
    assert!(every.contains("c64"), "{every}");
    let more = ["rhs", "rhs=0", "batch=x", "align=3", "align=128", "rhs=2 rhs=2", "k=2"];
    let more = more.map(|more| format!("f32 row 4x4 {more}"));
    let wrong = ["f32 row", "f33 row 1x1", "f32 diagonal 1x1", "f32 row 1", "f32 row 1xx"];
    for wrong in wrong.into_iter().chain(more.iter().map(|more| &**more)) {
        let out = gemv(&["info", "--explain", wrong]);
        assert_eq!(out.status.code(), Some(2), "{wrong}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("--explain"), "{wrong}");
    }
}

#[test]
fn info_lists_the_tensors_of_a_file() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../gemv-weights/tests/golden");
    let file = format!("{golden}/model.gguf");
    let out = text(gemv(&["info", &file]));
    for line in [
        "  general.architecture = llama",
        "  kinds.text = größer als\\neine Zeile",
        "  kinds.texts = 3 values",
        "  blk.0.ffn_up.weight        q4_k      2 x 256         288 bytes",
        "  blk.0.ffn_up_exps.weight   q8_0      2 x 3 x 32      204 bytes",
        "  kinds.q5_1                 Q5_1      2 x 32          48 bytes",
    ] {
        assert!(out.lines().any(|of| of == line), "{line:?} is missing:\n{out}");
    }
    let json = json(&text(gemv(&["info", "--json", &file])));
    assert_eq!(json["metadata"]["kinds.i64"], -(1_i64 << 62));
    assert_eq!(json["tensors"][0]["shape"], serde_json::json!([7]));
    assert_eq!(json["tensors"][0]["type"], "f32");
    let out = text(gemv(&["info", &format!("{golden}/layers.safetensors")]));
    assert!(out.contains("F8_E4M3"), "{out}");
    let out = gemv(&["info", &format!("{golden}/../files.rs")]);
    assert!(!out.status.success() && out.stdout.is_empty());
    let out = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.lines().count(), 1, "{out}");
}

/// Such as `gemv bench` and `gemv tune` write it.
#[test]
fn explain_knows_right_hand_sides_batches_and_alignment() {
    let explain = |problem: &str, device: &str| {
        text(gemv(&["info", "--explain", problem, "--device", device]))
    };
    let given = "f64 col 8x30 align=16 rhs=8 batch=3";
    let out = explain(given, "reference");
    assert!(out.starts_with(&format!("reference: {given} : reference\n")), "{out}");
    let out =
        text(gemv(&["info", "--explain", "f32", "row", "64x64", "rhs=8", "batch=2", "align=4"]));
    assert!(out.contains("f32 row 64x64 align=4 rhs=8 batch=2"), "{out}");
    // An entry of the batch begins where the one before it ends.
    let out = explain("f32 col 5x1 batch=2", "reference");
    assert!(out.contains("f32 col 5x1 align=4 batch=2"), "{out}");
    if cfg!(feature = "cpu") {
        for problem in ["f32 row 4096x4096 rhs=8", "f64 col 16x16 batch=100000"] {
            let out = explain(problem, "cpu");
            assert!(out.starts_with(&format!("cpu: {problem} : gemm-")), "{out}");
            assert!(out.contains(" from the row \"") && out.contains("=2"), "{out}");
        }
    }
}

#[test]
fn explain_warns_when_and_only_when_the_rows_own_kernel_changed() {
    let kernels = json(&text(gemv(&["info", "--kernels", "--json"])));
    let listed = json(&text(gemv(&["info", "--json"])));
    for info in listed["devices"].as_array().unwrap() {
        let id = info["id"].as_str().unwrap();
        let device = gemv::Engine::new(None).device(id).unwrap();
        let desc = gemv::unstable::Desc::new(gemv::Dtype::F32, 64, 64, (64, 1), 0);
        let params = device.backend().candidates(&desc)[0];
        let name = params.kernel().to_string();
        let backend = id.split(':').next().unwrap();
        let Some(all) = kernels.get(backend).and_then(|all| all.as_array()) else { continue };
        let of = all.iter().find(|kernel| kernel["name"] == *name).unwrap();
        let now = of["fingerprint"].as_str().unwrap();

        let (dir, table) = tables(&format!("stale-{backend}"), &device);
        let run =
            |args: &[&str]| text(command("").env("GEMV_TABLES", &dir).args(args).output().unwrap());
        let explain = |header: &str| {
            std::fs::write(&table, format!("{header}* * : {params}\n")).unwrap();
            let out = run(&["info", "--explain", "f32 row 64x64", "--device", id]);
            assert!(out.contains("stale-"), "{out}");
            out.contains(&format!("tuned with another {name} ("))
        };
        assert!(!explain(""), "a table without a line for it");
        assert!(!explain("# kernel another: 0123456789abcdef\n"));
        assert!(!explain(&format!("# kernel {name}: {now}\n")));
        assert!(explain(&format!("# kernel {name}: 0123456789abcdef\n")));
        // Stamped, it is of these kernels again.
        run(&["tune", "--device", id, "--stamp", table.to_str().unwrap()]);
        let stamped = std::fs::read_to_string(&table).unwrap();
        assert_eq!(stamped, format!("# kernel {name}: {now}\n* * : {params}\n"));
    }
}

#[test]
fn a_row_in_parts_that_names_nothing_is_said() {
    let device = gemv::Engine::new(None).device("cpu").unwrap();
    let (dir, table) = tables("parts", &device);
    for (row, why) in [
        ("f32 row : diagonal ..", Some("there is no kernel diagonal")),
        ("f32 row : row rows=100000 ..", Some("row takes no rows=100000")),
        ("f32 row : row lanes=2 ..", Some("row takes no lanes=2")),
        ("f32 row : row ..", None),
    ] {
        std::fs::write(&table, row).unwrap();
        let mut command = command("info --explain f32 row 64x64 --device cpu");
        let out = command.env_remove("RUST_LOG").env("GEMV_TABLES", &dir).output().unwrap();
        let said = String::from_utf8(out.stderr.clone()).unwrap();
        match why {
            Some(why) => {
                assert!(said.contains(&format!("{row} serves nothing: {why}\n")), "{said}")
            }
            None => assert_eq!(said, ""),
        }
        assert_eq!(text(out).contains(&format!("\"{row}\"")), why.is_none());
    }
}

#[test]
fn the_glossary_names_every_kernel_of_a_table() {
    let glossary = text(gemv(&["info", "--kernels"]));
    let all = json(&text(gemv(&["info", "--kernels", "--json"])));
    for (backend, kernels) in all.as_object().unwrap() {
        assert!(glossary.lines().any(|line| line == backend), "{glossary}");
        for kernel in kernels.as_array().unwrap() {
            let name = kernel["name"].as_str().unwrap();
            assert!(glossary.contains(&format!("\n  {name}: ")), "{name}: {glossary}");
            for arg in kernel["args"].as_array().unwrap() {
                assert!(glossary.contains(&format!("    {} ", arg["name"].as_str().unwrap())));
            }
        }
    }
    assert!(!cfg!(feature = "cuda") || all.get("cuda").is_some(), "without a device, too");
}

/// Else `gemv bench` would compare another library without a word.
#[test]
fn a_blas_that_is_not_there_ends_a_benchmark_with_one_sentence() {
    let out = command("bench --device cpu --dtype f32 --shape 8x8 --cold-bytes 1M")
        .env("GEMV_CBLAS", "/nowhere/libblas.so")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.trim_end().lines().count() == 1, "{said}");
    assert!(said.contains("GEMV_CBLAS=/nowhere/libblas.so cannot be loaded: "), "{said}");
}

/// One word each, with the name that is nearest; what is like no name is only refused.
#[test]
fn wrong_names_are_answered_with_the_right_ones() {
    for (args, code, mean) in [
        (&["dto", "a.npy", "x.npy"][..], 2, "similar subcommand exists: 'dot'"),
        (&["bench", "--dtype", "flot32"], 2, "did you mean float32?"),
        (&["bench", "--dtype", "f23"], 2, "did you mean f32?"),
        (&["bench", "--layout", "rows"], 2, "did you mean row?"),
        (&["bench", "--shapes", "mess"], 2, "a similar value exists: 'mesh'"),
        (&["bench", "--dtypes", "f32"], 2, "a similar argument exists: '--dtype'"),
        (&["info", "--explain", "flaot32 row 4x4"], 2, "did you mean float32?"),
        (&["info", "--explain", "f32 row 4x4", "--device", "referense"], 1, "no such device"),
        (&["tune", "--device", "opencI"], 1, "did you mean opencl?"),
        (&["bench", "--device", "ocpu"], 1, "did you mean cpu?"),
    ] {
        let absent = |name| mean.contains(name) && !cfg!(feature = "opencl");
        if absent("opencl") {
            continue;
        }
        let out = gemv(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(code) && said.contains(mean), "{args:?}: {said}");
    }
    let said = String::from_utf8(gemv(&["multiply"]).stderr).unwrap();
    assert!(!said.contains("similar"), "{said}");
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let commands = ["info", "dot", "tune", "bench", "report", "share", "warm"];
    for shell in ["bash", "zsh", "fish"] {
        let out = text(gemv(&["completions", shell]));
        for word in commands.into_iter().chain(["max-result", "cold-bytes", "square"]) {
            assert!(out.contains(word), "{shell}: {word}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("share/man1");
    text(gemv(&["man", man.to_str().unwrap()]));
    for name in commands {
        let page = std::fs::read_to_string(man.join(format!("gemv-{name}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains(&format!("gemv\\-{name}")), "{page}");
    }
    let page = std::fs::read_to_string(man.join("gemv.1")).unwrap();
    assert!(page.contains("Exit codes"), "{page}");
    // Known to those who look for them, and no part of the list.
    let help = text(gemv(&["--help"]));
    assert!(help.contains("gemv completions SHELL") && !help.contains("\n  completions"), "{help}");
    assert!(!gemv(&["man", "/dev/null/x"]).status.success());
}
