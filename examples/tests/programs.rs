//! The programs on every device, small: what they print and draw, with the same bits everywhere.
#![deny(unsafe_code)]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Check, trial};
use libtest_mimic::Trial;

/// What a program prints that ends well.
fn text(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    let out = command.env_remove("GEMV_BACKEND").args(arguments).output();
    let out = out.map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn printed(program: &str, arguments: &[&str]) -> Result<Vec<String>, String> {
    Ok(text(program, arguments)?.lines().map(str::to_owned).collect())
}

fn has(text: &str, part: &str) -> Check {
    if text.contains(part) { Ok(()) } else { Err(format!("no {part:?} in {text}")) }
}

/// A file for a device's picture, which is not there yet, and of which no other trial knows.
fn picture(device: &str, name: &str) -> Result<PathBuf, String> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{count}-{}-{name}", device.replace(':', "-"));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.to_string()),
        _ => Ok(path),
    }
}

/// The lines of a small system, solved; with a plot.
fn solved(device: &str, dtype: &str) -> Result<Vec<String>, String> {
    let svg = picture(device, "cg.svg")?;
    let place = svg.to_string_lossy();
    let options = ["--n", "301", "--device", device, "--dtype", dtype, "--plot", &*place];
    let lines = printed(env!("CARGO_BIN_EXE_conjugate_gradient"), &options)?;
    has(&std::fs::read_to_string(&svg).map_err(|e| e.to_string())?, "<polyline")?;
    Ok(lines)
}

/// A layer of a small model.
#[cfg(feature = "packed")]
const LAYER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gemv-weights/tests/golden/layer.gguf");

fn decoded(device: &str, more: &[&str]) -> Result<Vec<String>, String> {
    let svg = picture(device, &format!("decode{}.svg", more.concat().replace(['/', '.'], "")))?;
    let place = svg.to_string_lossy();
    let options = ["--tokens", "3", "--device", device, "--plot", &*place];
    let lines = printed(env!("CARGO_BIN_EXE_decode_layer"), &[&options, more].concat())?;
    has(&std::fs::read_to_string(&svg).map_err(|e| e.to_string())?, "gate")?;
    Ok(lines)
}

/// The lines of these names, which must be the same everywhere.
fn named<'a>(lines: &'a [String], names: &[&str]) -> Result<Vec<&'a str>, String> {
    let of = |name: &&str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(*name));
        line.map(str::trim).ok_or_else(|| format!("no {name:?} in {lines:?}"))
    };
    names.iter().map(of).collect()
}

/// What a program prints on a device, where the lines of these names are the same on the reference; and those lines.
fn as_the_reference(
    device: &str,
    names: &[&str],
    prints: impl Fn(&str) -> Result<Vec<String>, String>,
) -> Result<(Vec<String>, Vec<String>), String> {
    let (all, there) = (prints(device)?, prints("reference")?);
    let (here, there) = (named(&all, names)?, named(&there, names)?);
    if here != there {
        return Err(format!("{here:?}, but on the reference {there:?}"));
    }
    let here = here.into_iter().map(str::to_owned).collect();
    Ok((all, here))
}

fn solves_as_the_reference(device: &str, dtype: &str) -> Check {
    let names = ["iterations", "residual", "hash of the bits"];
    let (_, here) = as_the_reference(device, &names, |device| solved(device, dtype))?;
    // The residual is the last one that the recurrence had, and the computed one near it.
    let numbers: Vec<f64> =
        here[1].split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let most = if dtype == "f64" { 1e-11 } else { 1e-4 };
    match numbers[..] {
        [by_recurrence, computed] if by_recurrence < most && computed < most => Ok(()),
        _ => Err(format!("it did not converge: {here:?}")),
    }
}

/// Many systems at once: the hash is the same everywhere, and the program itself compares each column with a solver of its own.
fn solves_blocks_as_the_reference(device: &str) -> Check {
    let solved = |device: &str, layout: &str| {
        let options = ["--n", "150", "--columns", "5", "--device", device, "--layout", layout];
        printed(env!("CARGO_BIN_EXE_block_conjugate_gradient"), &options)
    };
    let names = ["iterations", "hash of the bits"];
    for layout in ["columns", "rows"] {
        let solved = |on: &str| solved(on, if on == device { layout } else { "rows" });
        as_the_reference(device, &names, solved).map_err(|e| format!("{layout}: {e}"))?;
    }
    Ok(())
}

fn decodes(device: &str, more: &[&str]) -> Check {
    let (here, _) = as_the_reference(device, &["hash of the bits"], |on| decoded(on, more))?;
    if more.contains(&"--columns") {
        named(&here, &["3 tokens at once"])?;
    }
    Ok(())
}

fn finds_components_as_the_reference(device: &str) -> Check {
    let found = |device: &str| {
        let png = picture(device, "quickstart.png")?;
        let place = png.to_string_lossy();
        let lines =
            printed(env!("CARGO_BIN_EXE_quickstart"), &["--device", device, "--picture", &*place])?;
        let written = std::fs::read(&png).map_err(|e| e.to_string())?;
        if !written.starts_with(b"\x89PNG") {
            return Err(format!("{place} is no picture"));
        }
        Ok(lines)
    };
    as_the_reference(device, &["        1", "        8", "hash of the bits"], found).map(drop)
}

fn learns_as_the_reference(device: &str) -> Check {
    let learnt = |device: &str| {
        let svg = picture(device, "ridge.svg")?;
        let place = svg.to_string_lossy();
        let options = ["--device", device, "--plot", &*place];
        let lines = printed(env!("CARGO_BIN_EXE_ridge_regression"), &options)?;
        has(&std::fs::read_to_string(&svg).map_err(|e| e.to_string())?, "<polyline")?;
        Ok::<_, String>(lines)
    };
    let (_, here) = as_the_reference(device, &["read", "hash of the bits"], learnt)?;
    // Nine in ten are read by a linear function.
    let percent =
        here[0].split(", ").last().and_then(|part| part.trim_end_matches(" %").parse().ok());
    match percent {
        Some(percent) if (90.0..100.0).contains(&percent) => Ok(()),
        _ => Err(format!("too few are read: {here:?}")),
    }
}

/// Four nodes that link to one, which links to none, and in pairs to each other. With a comment, a link that is
/// there twice, one from a node to itself, and a node of one link that `--nodes 5` leaves out.
#[cfg(feature = "solvers")]
const STAR: &str = "# from to\n1\t0\n2\t0\n3\t0\n4\t0\n4\t0\n1 2\n2 1\n3 4\n4 3\n2\t2\n\n9\t0\n";

/// The ranks by the nodes' names that are printed last.
#[cfg(feature = "solvers")]
fn ranks(lines: &[String]) -> Vec<(&str, f64)> {
    let pairs = lines.iter().rev().map(|line| line.split_whitespace());
    let pairs = pairs.map_while(|mut words| Some((words.next()?.parse().ok()?, words.next()?)));
    pairs.map(|(rank, name)| (name, rank)).collect()
}

#[cfg(feature = "solvers")]
fn ranks_as_the_reference(device: &str) -> Check {
    let file = picture(device, "star.txt")?;
    std::fs::write(&file, STAR).map_err(|e| e.to_string())?;
    let (graph, nodes) = (file.to_string_lossy(), ["--nodes", "5"]);
    let star = [&["--graph", &*graph][..], &nodes].concat();
    for graph in [&[][..], &star] {
        let ranked = |device: &str| {
            let svg = picture(device, "pagerank.svg")?;
            let place = svg.to_string_lossy();
            let options = [&["--device", device, "--plot", &*place], graph].concat();
            let lines = printed(env!("CARGO_BIN_EXE_pagerank"), &options)?;
            has(&std::fs::read_to_string(&svg).map_err(|e| e.to_string())?, "<polyline")?;
            Ok::<_, String>(lines)
        };
        let names = ["links", "iterations", "change", "sum of the ranks", "hash of the bits"];
        let (here, _) = as_the_reference(device, &names, ranked)?;
        has(named(&here, &["sum of the ranks"])?[0], "1.00000000000")?;
        if graph.is_empty() {
            let all = ranks(&here);
            let falling = all.windows(2).all(|pair| pair[0].1 <= pair[1].1);
            if all.len() != 10 || !falling || !all.iter().any(|(name, _)| *name == "libc") {
                return Err(format!("not the ranks of this workspace: {here:?}"));
            }
            continue;
        }
        // Each of the four has the rank r = 0.15 / 5 + 0.85 (r / 2 + r0 / 5), where 4 r + r0 = 1.
        let r = (0.03 + 0.17) / (1.0 - 0.425 + 0.68);
        let mut all = ranks(&here);
        all.sort_by_key(|(name, _)| name.to_owned());
        let wanted = [("0", 1.0 - 4.0 * r), ("1", r), ("2", r), ("3", r), ("4", r)];
        let right = |(mine, wanted): (&(&str, f64), &(&str, f64))| {
            mine.0 == wanted.0 && (mine.1 - wanted.1).abs() <= 1e-6
        };
        if all.len() != 5 || !all.iter().zip(&wanted).all(right) {
            return Err(format!("{all:?} is not {wanted:?}"));
        }
    }
    Ok(())
}

#[cfg(feature = "solvers")]
fn finds_eigenpairs_as_the_reference(device: &str, dtype: &str) -> Check {
    let found = |device: &str| {
        let svg = picture(device, "lobpcg.svg")?;
        let place = svg.to_string_lossy();
        let options =
            ["--n", "301", "--count", "5", "--device", device, "--dtype", dtype, "--plot", &*place];
        let lines = printed(env!("CARGO_BIN_EXE_lobpcg"), &options)?;
        let drawn = std::fs::read_to_string(&svg).map_err(|e| e.to_string())?;
        match drawn.matches("<polyline").count() {
            count if count >= 5 => Ok(lines),
            count => Err(format!("{count} curves were drawn")),
        }
    };
    let names = ["iterations", "orthonormal to", "eigenvalues", "hash of the bits"];
    let (_, here) = as_the_reference(device, &names, found)?;
    let most = if dtype == "f64" { 1e-13 } else { 1e-5 };
    let first = |line: &String| line.split_whitespace().next()?.parse::<f64>().ok();
    match (first(&here[1]), first(&here[2])) {
        (Some(orthonormal), Some(difference)) if orthonormal < most && difference < most => Ok(()),
        _ => Err(format!("the eigenpairs are wrong: {here:?}")),
    }
}

/// `explained_variance_` of `PCA(8, svd_solver="full").fit(load_digits().data)` of scikit-learn 1.9.1.
#[cfg(feature = "solvers")]
const SKLEARN: [f64; 8] = [
    179.00693009797206,
    163.7177468816774,
    141.78843909228425,
    101.1003752028481,
    69.51316559098744,
    59.10852488629974,
    51.8845391077953,
    44.015106669095424,
];

#[cfg(feature = "solvers")]
fn finds_the_variances_of_scikit_learn() -> Check {
    let svg = picture("default", "lobpcg.svg")?;
    let lines = printed(env!("CARGO_BIN_EXE_lobpcg"), &["--plot", &svg.to_string_lossy()])?;
    let numbers = lines.iter().filter_map(|line| {
        let numbers = line.split_whitespace().map(|word| word.parse().ok());
        numbers.collect::<Option<Vec<f64>>>().filter(|numbers| numbers.len() == 3)
    });
    let numbers: Vec<_> = numbers.collect();
    let right = |(mine, theirs): (&Vec<f64>, f64)| {
        (mine[1] - theirs).abs() <= 1e-9 * theirs && mine[2] <= 2e-10
    };
    if numbers.len() == 8 && numbers.iter().zip(SKLEARN).all(right) {
        Ok(())
    } else {
        Err(format!("{lines:?} has not {SKLEARN:?}"))
    }
}

/// What the solvers say to what they cannot do: one sentence.
#[cfg(feature = "solvers")]
fn refuses() -> Check {
    let file = picture("none", "edges.txt")?;
    let name = file.to_string_lossy();
    let (ranks, pairs) = (env!("CARGO_BIN_EXE_pagerank"), env!("CARGO_BIN_EXE_lobpcg"));
    let graph = ["--graph", &*name];
    let mut sentences = Vec::new();
    for (text, part) in [
        ("", "there is no link from one node to another"),
        ("1\t2\none\ttwo\n", "line 2: \"one\\ttwo\" is not two numbers"),
    ] {
        std::fs::write(&file, text).map_err(|e| e.to_string())?;
        sentences.push((text_of_failure(ranks, &graph)?, format!("pagerank: {name}: {part}")));
    }
    std::fs::remove_file(&file).map_err(|e| e.to_string())?;
    sentences.push((text_of_failure(ranks, &graph)?, format!("pagerank: {name}: ")));
    for (program, options, part) in [
        (ranks, ["--damping", "1"], "it is no number between 0 and 1"),
        (ranks, ["--abacus", "1"], "unexpected argument '--abacus'"),
        (pairs, ["--n", "29"], "lobpcg: --n 29: it is from 30 to 1797"),
        (pairs, ["--n", "1798"], "lobpcg: --n 1798: it is from 30 to 1797"),
        (pairs, ["--dtype", "f16"], "lobpcg: --dtype f16: there is f64 and f32"),
        (pairs, ["--tolerance", "0"], "lobpcg: --tolerance must be above 0"),
        (pairs, ["--abacus", "1"], "unexpected argument '--abacus'"),
        (env!("CARGO_BIN_EXE_views"), ["--step", "0"], "it is no number from 1 on"),
    ] {
        sentences.push((text_of_failure(program, &options)?, part.to_owned()));
    }
    for (said, part) in sentences {
        has(&said, &part)?;
        if said.contains("panicked") {
            return Err(said);
        }
    }
    Ok(())
}

#[cfg(feature = "solvers")]
fn text_of_failure(program: &str, options: &[&str]) -> Result<String, String> {
    match text(program, options) {
        Ok(text) => Err(format!("{options:?} ends well: {text}")),
        Err(why) => Ok(why),
    }
}

fn multiplies(device: &str) -> Check {
    let svg = picture(device, "bignum.svg")?;
    let place = svg.to_string_lossy();
    let args = ["--device", device, "--digits", "2048", "--threads", "32,64", "--svg", &*place];
    let out = text(env!("CARGO_BIN_EXE_bignum_digit"), &args)?;
    // For each of three sizes: three inputs and four factors for each way, and each way measured.
    let (ways, groups): (&[&str], usize) = match device {
        "cpu" => (&["rayon"], 1),
        _ => (
            &[
                "direct",
                "local memory",
                "2 digits a thread",
                "4 digits a thread",
                "8 digits a thread",
                "16 digits a thread",
                "two passes",
            ],
            2,
        ),
    };
    let products = 3 * ways.len() * (12 + groups);
    has(&out, &format!("\n{products} products compared with num-bigint, none differs\n"))?;
    let drawn = std::fs::read_to_string(&svg).map_err(|e| e.to_string())?;
    has(&drawn, "</svg>")?;
    for name in ways.iter().chain(&["copy", "num-bigint"]) {
        has(&out, name)?;
        has(&drawn, name)?;
    }
    Ok(())
}

fn rotates(device: &str) -> Check {
    let png = picture(device, "rotate.png")?;
    let place = png.to_string_lossy();
    // No multiple of any block.
    let args = ["--device", device, "--points", "10007", "--picture", &*place];
    let out = text(env!("CARGO_BIN_EXE_rotate_points"), &args)?;
    has(&out, "\n10007 points\n")?;
    let ways: &[&str] = if device == "cpu" { &["rayon"] } else { &["by point", "by component"] };
    for way in ways.iter().chain(&["library", "lib. columns"]) {
        has(&out, &format!("\n{way} "))?;
    }
    has(&out, "\nlib. columns: ")?;
    let drawn = std::fs::read(&png).map_err(|e| e.to_string())?;
    if drawn.starts_with(b"\x89PNG") { Ok(()) } else { Err("no PNG".into()) }
}

/// The limit of a file's size stands for a disk that takes all of a picture but its last byte.
#[cfg(target_os = "linux")]
fn tells_a_full_disk(device: &str) -> Check {
    for (program, options) in [
        (env!("CARGO_BIN_EXE_quickstart"), &[][..]),
        (env!("CARGO_BIN_EXE_rotate_points"), &["--points", "1000"]),
    ] {
        let png = picture(device, "full.png")?;
        let place = png.to_string_lossy();
        let options = [&["--device", device, "--picture", &*place], options].concat();
        text(program, &options)?;
        let bytes = std::fs::metadata(&png).map_err(|e| e.to_string())?.len() - 1;
        let script = format!("trap '' XFSZ; exec prlimit --fsize={bytes} \"$@\"");
        match text("sh", &[&["-c", &script, "sh", program], &options[..]].concat()) {
            Ok(text) => return Err(format!("it ends well: {text}")),
            Err(why) => has(&why, "File too large")?,
        }
    }
    Ok(())
}

/// In many parts, from a file and from memory.
fn streams_as_the_reference(device: &str) -> Check {
    for order in ["rows", "columns"] {
        let hash = |device, window, from| {
            let size = ["--size", "1M", "--columns", "700", "--window", window, "--times", "1"];
            let rest = ["--device", device, "--order", order, "--from", from];
            let lines = printed(env!("CARGO_BIN_EXE_streamed"), &[&size[..], &rest].concat())?;
            named(&lines, &["hash of the bits"]).map(|hash| hash.concat())
        };
        let want = hash("reference", "1G", "memory")?;
        for from in ["file", "memory"] {
            let got = hash(device, "100K", from)?;
            if got != want {
                return Err(format!("by {order} from a {from}: {got} in place of {want}"));
            }
        }
    }
    Ok(())
}

fn main() {
    let targets = common::targets();
    let mut trials: Vec<Trial> = common::absences(&targets);
    for target in targets.iter().filter(|target| target.device.is_ok()) {
        let mut on = |what: &str, check: fn(&str) -> Check| {
            let id = target.id.clone();
            trials.push(trial(format!("{id}/{what}"), move || check(&id)));
        };
        on("conjugate gradients in f64", |id| solves_as_the_reference(id, "f64"));
        on("conjugate gradients in f32", |id| solves_as_the_reference(id, "f32"));
        #[cfg(feature = "solvers")]
        {
            on("eigenpairs in f64", |id| finds_eigenpairs_as_the_reference(id, "f64"));
            on("eigenpairs in f32", |id| finds_eigenpairs_as_the_reference(id, "f32"));
            on("ranks", ranks_as_the_reference);
        }
        on("principal components", finds_components_as_the_reference);
        on("conjugate gradients of a block", solves_blocks_as_the_reference);
        on("ridge regression", learns_as_the_reference);
        if target.id != "reference" {
            on("a large number by one digit", multiplies);
            on("a cloud of points", rotates);
        }
        #[cfg(target_os = "linux")]
        if target.id == "cpu" {
            on("a full disk", tells_a_full_disk);
        }
        on("a layer", |id| decodes(id, &["--shrink", "32"]));
        #[cfg(feature = "packed")]
        {
            on("a layer of q8_0", |id| decodes(id, &["--format", "q8_0", "--shrink", "32"]));
            on("a layer of q4_k", |id| decodes(id, &["--format", "q4_k", "--shrink", "8"]));
            on("a layer of a file", |id| decodes(id, &["--weights", LAYER, "--columns", "3"]));
        }
        on("a matrix in parts", streams_as_the_reference);
    }
    #[cfg(feature = "solvers")]
    {
        let name = "eigenvalues that scikit-learn has".to_owned();
        trials.push(trial(name, finds_the_variances_of_scikit_learn));
        trials.push(trial("what the solvers refuse".to_owned(), refuses));
    }
    for program in [
        env!("CARGO_BIN_EXE_bignum_digit"),
        env!("CARGO_BIN_EXE_conjugate_gradient"),
        env!("CARGO_BIN_EXE_decode_layer"),
        #[cfg(feature = "solvers")]
        env!("CARGO_BIN_EXE_lobpcg"),
        #[cfg(feature = "solvers")]
        env!("CARGO_BIN_EXE_pagerank"),
        env!("CARGO_BIN_EXE_quickstart"),
        env!("CARGO_BIN_EXE_ridge_regression"),
        env!("CARGO_BIN_EXE_rotate_points"),
        env!("CARGO_BIN_EXE_streamed"),
    ] {
        let name = PathBuf::from(program);
        let name = name.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        trials.push(trial(format!("{name}/a device that is not there"), move || {
            match text(program, &["--device", "abacus"]) {
                Ok(text) => Err(format!("it ends well: {text}")),
                Err(why) => has(&why, &format!("{name}: no such device: \"abacus\"")),
            }
        }));
    }
    common::main(trials);
}
