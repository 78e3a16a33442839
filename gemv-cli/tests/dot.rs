//! `gemv dot` as other programs meet it: files in, bytes and exit codes out. The files in `npy/`
//! were made by NumPy; see `npy/make.py`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gemv::GpuDot;
use gemv::ndarray::{Array, Array1, Array2, Array3, Axis, Dimension, s};
use tempfile::TempDir;

/// A x of the files in `npy/`, real and complex.
const REAL: &str = "10.5\n21.5\n24.875\n";
const COMPLEX: &str = "11.5,-2.0\n19.5,-0.5\n27.875,3.0\n";

fn gemv() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gemv"));
    for name in ["GEMV_BACKEND", "GEMV_TABLES", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
}

fn numpy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/npy").join(format!("{name}.npy"))
}

fn dot(a: &Path, x: &Path, more: &[&str]) -> Output {
    gemv().arg("dot").args([a, x]).args(more).output().unwrap()
}

/// What a command does that is given this as standard input.
fn fed(command: &mut Command, input: &[u8]) -> Output {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    // It may have refused what it has seen.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// The program, in a shell that has said this.
fn behind(words: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{words}; exec \"$@\"");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_gemv"), "dot"]);
    command.env_remove("RUST_LOG");
    command
}

/// Numbers between -1 and 1.
fn noise(mut state: u64) -> impl FnMut() -> f32 {
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

#[track_caller]
fn text(output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{}: {err}", output.status);
    out.into_owned()
}

/// The one sentence of a failure.
#[track_caller]
fn failure(output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(out.is_empty(), "{out}");
    let err = err.strip_prefix("gemv: ").expect("the program's name").strip_suffix('\n');
    let err = err.expect("a whole line");
    assert!(!err.contains('\n') && !err.contains("panicked"), "{err}");
    err.into()
}

/// A failure whose sentence has these parts.
#[track_caller]
fn fails(output: &Output, parts: &[&str]) {
    let e = failure(output);
    for part in parts {
        assert!(e.contains(part), "{part}: {e}");
    }
}

/// These bytes with others in the place of the first that are like this.
fn patched(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
    [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
}

/// A file of format 1.0.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    header += &" ".repeat((64 - (header.len() + 11) % 64) % 64);
    header.push('\n');
    let start = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..]].concat();
    [&start, header.as_bytes(), data].concat()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A vector of f4.
fn vector(values: &[f32]) -> Vec<u8> {
    npy("<f4", &format!("({},)", values.len()), &floats(values))
}

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    /// A product that is written to a file: its bytes.
    #[track_caller]
    fn product(&self, a: &Path, x: &Path, more: &[&str]) -> Vec<u8> {
        let y = self.path("product.npy");
        assert_eq!(text(&dot(a, x, &[more, &["-o", y.to_str().unwrap()]].concat())), "");
        fs::read(y).unwrap()
    }
}

/// An archive of `numpy.savez_compressed`: a and x of f4.
fn archive() -> PathBuf {
    numpy("both").with_extension("npz")
}

fn member(archive: &Path, name: &str) -> PathBuf {
    PathBuf::from(format!("{}:{name}", archive.display()))
}

#[test]
fn every_type_byte_order_and_layout() {
    let real = ["le_f2", "le_f4", "le_f8", "be_f2", "be_f4", "be_f8", "bfloat16"];
    let complex = ["le_c8", "le_c16", "be_c8", "be_c16"];
    let complex = complex.map(|kind| (kind, COMPLEX));
    for (kind, wanted) in real.map(|kind| (kind, REAL)).into_iter().chain(complex) {
        for layout in ["a", "a_fortran"] {
            let (a, x) = (numpy(&format!("{kind}_{layout}")), numpy(&format!("{kind}_x")));
            assert_eq!(text(&dot(&a, &x, &[])), wanted, "{kind} {layout}");
        }
    }
    for version in ["version2_a", "version3_a"] {
        assert_eq!(text(&dot(&numpy(version), &numpy("be_f4_x"), &[])), REAL, "{version}");
    }
}

#[test]
fn output_is_a_file_of_the_same_type_as_numpy_writes_it() {
    let files = Files::new();
    for kind in ["le_f2", "be_f4", "le_f8", "le_c8", "be_c16", "bfloat16"] {
        let (a, x) = (numpy(&format!("{kind}_a")), numpy(&format!("{kind}_x")));
        files.product(&a, &x, &[]);
        // A product with the identity, from which x comes back, byte for byte as NumPy wrote it.
        let mut identity = vec![0u8; 0];
        let x_file = fs::read(numpy(&format!("{}_x", kind.replace("be_", "le_")))).unwrap();
        let size = (x_file.len() - 128) / 4;
        let (descr, one): (&str, &[u8]) = match kind {
            "le_f2" => ("<f2", &[0x00, 0x3c]),
            "be_f4" => ("<f4", &[0, 0, 0x80, 0x3f]),
            "le_f8" => ("<f8", &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f]),
            "le_c8" => ("<c8", &[0, 0, 0x80, 0x3f]),
            "be_c16" => ("<c16", &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f]),
            _ => ("<V2", &[0x80, 0x3f]),
        };
        for i in 0..16 {
            let at = identity.len();
            identity.resize(at + size, 0);
            if i % 5 == 0 {
                identity[at..at + one.len()].copy_from_slice(one);
            }
        }
        let identity = files.file("identity.npy", npy(descr, "(4, 4)", &identity));
        assert_eq!(files.product(&identity, &x, &[]), x_file, "{kind}");
    }
}

#[test]
fn transpose_and_conjugate() {
    let x = Files::new();
    let ones = x.file("x.npy", vector(&[1.0, 1.0, 1.0]));
    let columns = "5.0\n12.5\n9.75\n24.0\n";
    for layout in ["le_f4_a", "be_f4_a_fortran"] {
        assert_eq!(text(&dot(&numpy(layout), &ones, &["--transpose"])), columns);
        assert_eq!(text(&dot(&numpy(layout), &ones, &["--transpose", "--conj"])), columns);
    }
    let conjugate = "11.5,2.0\n19.5,0.5\n27.875,-3.0\n";
    assert_eq!(text(&dot(&numpy("le_c8_a"), &numpy("le_c8_x"), &["--conj"])), conjugate);
}

#[test]
fn factors() {
    let files = Files::new();
    let y = files.file("y.npy", vector(&[1.0, 2.0, f32::NAN]));
    let real = |more: &[&str]| {
        let y = ["--y", y.to_str().unwrap()];
        text(&dot(&numpy("le_f4_a"), &numpy("le_f4_x"), &[&y, more].concat()))
    };
    assert_eq!(real(&["--alpha", "-2", "--beta", "0.5"]), "-20.5\n-42.0\nNaN\n");
    assert_eq!(real(&["--beta", "0"]), REAL, "y is not read");
    assert_eq!(real(&["--alpha", "0", "--beta", "-0.5"]), "-0.5\n-1.0\nNaN\n");
    assert_eq!(real(&["--alpha", "0", "--beta", "0"]), "0.0\n0.0\n0.0\n");
    let complex = ["--alpha", "0,-1"];
    let product = "-2.0,-11.5\n-0.5,-19.5\n3.0,-27.875\n";
    assert_eq!(text(&dot(&numpy("be_c16_a"), &numpy("be_c16_x"), &complex)), product);
    let e = failure(&dot(&numpy("le_f4_a"), &numpy("le_f4_x"), &complex));
    assert_eq!(e, "--alpha is complex, but the arrays hold float32");
    // The factor is rounded to f32 at once, not by way of f64: 1 + 2^-24 + 2^-60 is above the
    // middle of two neighbours, and f64 loses what puts it there.
    let one = files.file("one.npy", vector(&[1.0]));
    let a = files.file("a.npy", npy("<f4", "(1, 1)", &floats(&[1.0])));
    let alpha = "1.000000059604644775390625867361737988403547205962240695953369140625";
    assert_eq!(alpha.parse::<f64>().unwrap() as f32, 1.0);
    assert_eq!(text(&dot(&a, &one, &["--alpha", alpha])), "1.0000001\n");
}

#[test]
fn the_result_may_replace_an_input() {
    let files = Files::new();
    let y = files.file("y.npy", vector(&[1.0, 2.0, 3.0]));
    let name = y.to_str().unwrap();
    let more = ["--y", name, "--beta", "1", "-o", name];
    text(&dot(&numpy("le_f4_a"), &numpy("le_f4_x"), &more));
    assert_eq!(fs::read(&y).unwrap(), vector(&[11.5, 23.5, 27.875]));
}

/// The old file stays until the new one is whole, and what is read is not overwritten.
#[test]
fn a_result_is_written_aside() {
    let files = Files::new();
    let names = |part: &str| -> Vec<String> {
        let all = fs::read_dir(files.0.path()).unwrap();
        let all = all.map(|e| e.unwrap().file_name().into_string().unwrap());
        all.filter(|name| name.contains(part)).collect()
    };
    let (a, x) = (numpy("le_f4_a"), numpy("le_f4_x"));
    let (own_a, own_x) = (files.file("a.npy", fs::read(&a).unwrap()), files.path("x.npy"));
    fs::copy(&x, &own_x).unwrap();
    let both = files.file("both.npz", fs::read(archive()).unwrap());
    let (a_of_both, x_of_both) = (member(&both, "a"), member(&both, "x"));
    let out = |a: &Path, x: &Path, y: &Path| dot(a, x, &["-o", y.to_str().unwrap()]);
    let spelled = files.0.path().join(".").join("a.npy");
    for (a, x, y) in [
        (&own_a, &own_x, &own_a),
        (&own_a, &own_x, &spelled),
        (&own_a, &own_x, &own_x),
        (&a_of_both, &own_x, &both),
    ] {
        let before = fs::read(y).unwrap();
        fails(&out(a, x, y), &["which is not overwritten: name another one"]);
        assert_eq!(fs::read(y).unwrap(), before);
    }
    // Nor the file of standard input, nor the other members of y's archive.
    let y = files.file("y.npy", vector(&[0.0; 3]));
    let dash = Path::new("-");
    for (a, x, more, of_y, y, what) in [
        (dash, &own_x, &[][..], None, &own_a, "the matrix"),
        (&own_a, &own_x, &[], Some(dash), &y, "y"),
        (&own_a, &y, &["-t"], Some(&*x_of_both), &both, "y"),
    ] {
        let before = fs::read(y).unwrap();
        let mut command = gemv();
        command.arg("dot").args([a, x]).args(more).arg("-o").arg(y);
        command.stdin(fs::File::open(y).unwrap());
        if let Some(of_y) = of_y {
            command.args(["--beta", "1", "--y"]).arg(of_y);
        }
        let e = failure(&command.output().unwrap());
        let wanted = format!("{}: this is the file of {what}, which is not", y.display());
        assert!(e.starts_with(&wanted), "{e}");
        assert_eq!(fs::read(y).unwrap(), before);
    }
    // A place that takes no file is told before the data is read, which is not there.
    let announced = npy("<f4", "(3, 4)", &[]);
    for (y, why) in [("missing/y.npy", "No such file"), (".", "it is a directory"), ("", "")] {
        let y = if y.is_empty() { own_a.join("y.npy") } else { files.path(y) };
        let mut command = gemv();
        command.args(["dot", "-"]).args([&x, Path::new("-o"), &y]);
        let e = failure(&fed(&mut command, &announced));
        assert!(
            e.starts_with(&format!("cannot write {}: ", y.display())) && e.contains(why),
            "{e}"
        );
    }
    assert_eq!(names(".part"), [""; 0]);
}

#[cfg(unix)]
#[test]
fn links_permissions_and_places_that_are_no_files() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let files = Files::new();
    let (a, x) = (numpy("le_f4_a"), numpy("le_f4_x"));
    let result = vector(&[10.5, 21.5, 24.875]);
    let out_of = |a: &Path, y: &Path| dot(a, &x, &["-o", y.to_str().unwrap()]);
    let out = |y: &Path| out_of(&a, y);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    // A link stays, and its file is replaced, or made.
    let (old, link, new) =
        (files.file("old.npy", b"old"), files.path("link"), files.path("new.npy"));
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("old.npy", &link).unwrap();
    symlink(&new, files.path("dangling")).unwrap();
    text(&out(&link));
    text(&out(&files.path("dangling")));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!((fs::read(&old).unwrap(), mode(&old)), (result.clone(), 0o640));
    assert_eq!(fs::read(&new).unwrap(), result);
    // As any other program's.
    fs::write(files.path("plain"), b"").unwrap();
    assert_eq!(mode(&new), mode(&files.path("plain")));
    // Links to what is read.
    let own = files.file("a.npy", fs::read(&a).unwrap());
    symlink(&own, files.path("soft")).unwrap();
    fs::hard_link(&own, files.path("hard")).unwrap();
    for y in ["soft", "hard"] {
        fails(&out_of(&own, &files.path(y)), &["this is the file of the matrix"]);
    }
    assert_eq!(fs::read(&own).unwrap(), fs::read(&a).unwrap());
    symlink("/dev/stdout", files.path("stdout")).unwrap();
    for y in ["/dev/stdout".into(), "/dev/fd/1".into(), files.path("stdout")] {
        let stdout = out(&y);
        assert!(stdout.status.success() && stdout.stdout == result, "{stdout:?}");
    }
    if Path::new("/dev/full").exists() {
        fails(&out(Path::new("/dev/full")), &["No space left"]);
    }
}

/// A file in memory is a file; and what a file has that is open already is not written over.
#[cfg(target_os = "linux")]
#[test]
fn files_below_dev() {
    let files = Files::new();
    let (a, x) = (numpy("le_f4_a"), numpy("le_f4_x"));
    let result = vector(&[10.5, 21.5, 24.875]);
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        let y = memory.path().join("y.npy");
        for old in [None, Some(vec![b'?'; 1000])] {
            old.map_or(Ok(()), |old| fs::write(&y, old)).unwrap();
            text(&dot(&a, &x, &["-o", y.to_str().unwrap()]));
            assert_eq!(fs::read(&y).unwrap(), result);
        }
    }
    for (script, y) in [(">>", "/dev/stdout"), ("3>>", "/dev/fd/3"), ("3>>", "/proc/self/fd/3")] {
        let log = files.file("log", b"what was there before\n");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("log=$1; shift; exec \"$@\" {script} \"$log\""), "sh"]);
        command.args([&log, Path::new(env!("CARGO_BIN_EXE_gemv"))]);
        let out = command.arg("dot").args([&a, &x]).args(["-o", y]).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        assert_eq!(fs::read(&log).unwrap(), [b"what was there before\n", &result[..]].concat());
    }
    // A file that may be written in a directory that takes no other.
    let e = failure(&dot(&a, &x, &["-o", "/proc/self/comm"]));
    let why = "cannot write /proc/self/comm: a new file is written beside it, which the directory";
    assert!(e.starts_with(why) && !e.contains(".part"), "{e}");
}

/// The limit of a file's size stands for a disk that is full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_loses_nothing() {
    let files = Files::new();
    let tall = files.file("tall", npy("<f4", "(9000, 1)", &vec![0; 36_000]));
    let one = files.file("one.npy", vector(&[1.0]));
    let y = files.file("y.npy", b"old");
    let mut command = behind("trap '' XFSZ; ulimit -f 8");
    let e = failure(&command.args([&tall, &one, Path::new("-o"), &y]).output().unwrap());
    assert!(e.starts_with(&format!("cannot write {}: File too large", y.display())), "{e}");
    assert_eq!(fs::read(&y).unwrap(), b"old");
    assert_eq!(fs::read_dir(files.0.path()).unwrap().count(), 3, "a part is left");
}

/// In the middle of writing, by the signal that such a limit sends: the file is the old one.
#[cfg(target_os = "linux")]
#[test]
fn a_killed_process_leaves_a_whole_file() {
    use std::os::unix::process::ExitStatusExt;
    let files = Files::new();
    let tall = files.file("tall", npy("<f4", "(9000, 1)", &vec![0; 36_000]));
    let one = files.file("one.npy", vector(&[1.0]));
    let y = files.file("y.npy", b"old");
    let mut command = behind("ulimit -c 0; ulimit -f 8");
    let killed = command.args([&tall, &one, Path::new("-o"), &y]).output().unwrap();
    assert_eq!(killed.status.signal(), Some(25), "SIGXFSZ: {killed:?}");
    assert_eq!(fs::read(&y).unwrap(), b"old");
    // Its part is there. A later result removes it when it is a day old, and nothing else.
    let left = || -> Vec<PathBuf> {
        let all = fs::read_dir(files.0.path()).unwrap().map(|e| e.unwrap().path());
        let mut left: Vec<_> = all.filter(|p| p.to_str().unwrap().contains(".gemv-")).collect();
        left.sort();
        left
    };
    assert_eq!(left().len(), 1);
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(2 * 24 * 60 * 60);
    let [part, other] = [left()[0].clone(), files.file(".gemv-notes", b"")];
    for (path, kept) in [(&other, 2), (&part, 1)] {
        fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
        text(&dot(&tall, &one, &["-o", y.to_str().unwrap()]));
        assert_eq!(left().len(), kept, "{:?}", left());
    }
    assert_eq!(left(), [other]);
}

/// While it computes there is nothing beside the old file.
#[test]
fn a_result_is_written_at_the_end() {
    let files = Files::new();
    let (x, y) = (files.file("x.npy", vector(&[1.0])), files.path("y.npy"));
    let rows = 100_000;
    let tall = npy("<f4", &format!("({rows}, 1)"), &vec![0; 4 * rows]);
    let mut child = gemv()
        .args(["dot", "-"])
        .args([&x, Path::new("-o"), &y])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // More than a pipe holds, so that the matrix is being read.
    pipe.write_all(&tall[..200_000]).unwrap();
    assert_eq!(fs::read_dir(files.0.path()).unwrap().count(), 1);
    pipe.write_all(&tall[200_000..]).unwrap();
    drop(pipe);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(&y).unwrap().len(), tall.len());
}

/// x comes slowly, and the matrix is another one when its turn comes.
#[cfg(unix)]
#[test]
fn a_file_that_is_changed_while_it_is_read_is_an_error() {
    let files = Files::new();
    let n = 100_000;
    let a = |value: f32| npy("<f4", &format!("(1, {n})"), &floats(&vec![value; n]));
    let path = files.path("a.npy");
    let past = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    let x = vector(&vec![1.0; n]);
    let fifo = files.path("x.npy");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (name, input) in [(&*path, None), (Path::new("-"), Some(&path))] {
        fs::write(&path, a(1.0)).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(past).unwrap();
        let mut command = gemv();
        command.arg("dot").args([name, &fifo]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(input.map_or(Stdio::null(), |path| fs::File::open(path).unwrap().into()));
        let child = command.spawn().unwrap();
        let mut pipe = fs::File::options().write(true).open(&fifo).unwrap();
        // More than a pipe holds: both files are open.
        pipe.write_all(&x[..200_000]).unwrap();
        fs::write(&path, a(2.0)).unwrap();
        pipe.write_all(&x[200_000..]).unwrap();
        drop(pipe);
        let e = failure(&child.wait_with_output().unwrap());
        assert_eq!(e, format!("{}: the file was changed while it was read", name.display()));
    }
}

/// A few bytes announce two gigabytes, and a result as large. There is no memory for either.
#[cfg(target_os = "linux")]
#[test]
fn what_is_announced_and_not_there_takes_no_memory() {
    let files = Files::new();
    let header = npy("<f4", "(500000000, 1)", &[]);
    let one = files.file("one.npy", vector(&[1.0]));
    // A stored member.
    let archive = fs::read(numpy("archive").with_extension("npz")).unwrap();
    let archive = patched(&archive, "'<f8'", "'<f4'");
    let mut archive = patched(&archive, "(3, 4), }        ", "(500000000, 1), }");
    // The length of the member, as its data has it.
    let at = archive.windows(4).position(|w| w == b"PK\x01\x02").unwrap() + 24;
    archive[at..at + 4].copy_from_slice(&2_000_000_128u32.to_le_bytes());
    let archive = files.file("a.npz", archive);
    for (a, part) in
        [(Path::new("-"), "2000000000 bytes of data, but 0 follow"), (&archive, "shorter")]
    {
        let mut command = behind("ulimit -v 1500000");
        command.args([a, &one]).args(["--device", "reference", "--max-result", "4G"]);
        fails(&fed(&mut command, &header), &[part]);
    }
}

/// What is read in parts has the bits of what is read whole; one that is not to be read in parts is read.
#[test]
fn in_parts() {
    let files = Files::new();
    let a = Array2::from_shape_fn((300, 700), |(i, j)| ((i * 700 + j) as f32).sin());
    let x = Array1::from_shape_fn(700, |j| (j as f32).cos());
    let of = |name: &str, x: &Array1<f32>| files.file(name, vector(x.as_slice().unwrap()));
    let short = x.slice(s![..300]).to_owned();
    let (x, short) = (of("x.npy", &x), of("short.npy", &short));
    let rows = files.file("rows.npy", floats_of(&a, false));
    let columns = files.file("columns.npy", floats_of(&a, true));
    let y = files.file("y.npy", vector(&[0.5; 300]));
    let y = ["--y", y.to_str().unwrap(), "--beta", "-2", "--alpha", "0.25"];
    let parts = |window: &'static str| ["--window", window];
    for (a, x, more) in [
        (&rows, &x, &[][..]),
        (&rows, &short, &["-t"]),
        (&columns, &x, &[]),
        (&columns, &short, &["-t"]),
        (&rows, &x, &y),
        (&columns, &x, &y),
    ] {
        let whole = text(&dot(a, x, more));
        assert!(whole.lines().count() >= 300);
        for window in ["1", "20K", "700K"] {
            assert_eq!(text(&dot(a, x, &[more, &parts(window)].concat())), whole, "{window}");
        }
        assert_eq!(
            text(&dot(a, x, &[more, &["--window", "1", "--device", "cpu"]].concat())),
            whole
        );
    }
    for kind in ["be_f2", "le_f8", "be_c16", "bfloat16"] {
        for layout in ["a", "a_fortran"] {
            let (a, x) = (numpy(&format!("{kind}_{layout}")), numpy(&format!("{kind}_x")));
            assert_eq!(text(&dot(&a, &x, &parts("1"))), text(&dot(&a, &x, &[])), "{kind} {layout}");
        }
    }
    let small = (member(&archive(), "a"), numpy("le_f4_x"));
    assert_eq!(text(&dot(&small.0, &small.1, &parts("1"))), REAL);
    let conj = [&parts("1")[..], &["--conj"]].concat();
    assert_eq!(text(&dot(&rows, &x, &conj)), text(&dot(&rows, &x, &[])));
    let e = dot(&rows, &x, &parts("many"));
    assert_eq!(e.status.code(), Some(2), "{}", String::from_utf8_lossy(&e.stderr));
}

#[test]
fn empty_shapes() {
    let files = Files::new();
    let empty = files.file("empty.npy", vector(&[]));
    let two = files.file("two.npy", vector(&[5.0, 6.0]));
    let rows = files.file("rows.npy", npy("<f4", "(0, 2)", &[]));
    let columns = files.file("columns.npy", npy("<f4", "(2, 0)", &[]));
    assert_eq!(text(&dot(&rows, &two, &[])), "");
    assert_eq!(text(&dot(&columns, &empty, &[])), "0.0\n0.0\n");
    assert_eq!(text(&dot(&rows, &empty, &["--transpose"])), "0.0\n0.0\n");
    let y = two.to_str().unwrap();
    assert_eq!(text(&dot(&columns, &empty, &["--y", y, "--beta", "2"])), "10.0\n12.0\n");
    // A file of 128 bytes asks for a result of any size.
    for (name, rows, bytes) in [
        ("large", 4_000_000_000u64, "16000000000"),
        ("endless", 2305843009213693951, "9223372036854775804"),
    ] {
        let a = files.file(name, npy("<f4", &format!("({rows}, 0)"), &[]));
        let e = failure(&dot(&a, &empty, &["-o", "-"]));
        let start = format!("the result ({rows}) has {bytes} bytes, far more than the operands");
        assert_eq!(e, format!("{start}: --max-result {bytes} allows it"));
    }
    let e = failure(&dot(&files.path("endless"), &empty, &["--max-result", "9223372036854775807"]));
    assert!(e.starts_with("no memory for 2305843009213693951 entries of y"), "{e}");
    // Columns and rows of one entry: the product is larger than both.
    let (tall, wide) = (vec![0; 4 * 400], npy("<f4", "(1, 400)", &vec![0; 4 * 400]));
    let (tall, wide) =
        (files.file("tall", npy("<f4", "(400, 1)", &tall)), files.file("wide", wide));
    let e = failure(&dot(&tall, &wide, &["--max-result", "10K"]));
    assert!(e.starts_with("the result (400 x 400) has 640000 bytes"), "{e}");
    files.product(&tall, &wide, &["--max-result", "640000"]);
    // No larger than the operands.
    let one = files.file("one.npy", vector(&[1.0]));
    assert_eq!(text(&dot(&tall, &one, &["--max-result", "1"])), "0.0\n".repeat(400));
    assert_eq!(files.product(&rows, &two, &[]), vector(&[]));
}

#[test]
fn text_reads_back_to_the_same_bits() {
    let files = Files::new();
    let values: Vec<f32> =
        vec![1e-45, -0.0, 16_777_216.0, f32::MAX, 0.1, f32::INFINITY, f32::NEG_INFINITY, 1e-7];
    let a = files.file("a.npy", npy("<f4", "(8, 1)", &floats(&values)));
    let out = text(&dot(&a, &files.file("one.npy", vector(&[1.0])), &[]));
    let read: Vec<u32> = out.lines().map(|l| l.parse::<f32>().unwrap().to_bits()).collect();
    // fma(v, 1, +0) turns -0 into +0, as the order says.
    let wanted: Vec<u32> = values.iter().map(|v| (v + 0.0).to_bits()).collect();
    assert_eq!(read, wanted, "{out}");
}

#[test]
fn bad_files_get_one_sentence_that_names_them() {
    let files = Files::new();
    let x = files.file("x.npy", vector(&[1.0; 4]));
    let a = numpy("le_f4_a");
    let whole = fs::read(&a).unwrap();
    let mut future = whole.clone();
    future[6] = 4;
    let mut long = whole.clone();
    long[8..10].copy_from_slice(&u16::MAX.to_le_bytes());
    let huge = npy("<f4", "(4611686018427387904, 4)", &[]);
    let wide = npy("<f4", "(0, 9223372036854775807)", &[]);
    let big = npy("<f4", "(1000000000, 1000)", &[0; 8]);
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], "the file is empty"),
        ("text", b"1.0 2.0\n3.0 4.0\n".into(), "not a NumPy file"),
        ("short", whole[..5].into(), "not a NumPy file"),
        ("magic", whole[..6].into(), "ends within its header"),
        ("version", whole[..8].into(), "ends within its header"),
        ("half", whole[..100].into(), "ends within its header"),
        ("long", long, "ends within its header"),
        ("future", future, "format 4.0"),
        ("cut", whole[..whole.len() - 1].into(), "announces 48 bytes of data, but 47 follow"),
        ("more", [&whole[..], b"\n"].concat(), "announces 48 bytes of data, but 49 follow"),
        ("huge", huge, "more than can be addressed"),
        ("wide", wide, "more than can be addressed"),
        ("big", big, "announces 4000000000000 bytes of data, but 8 follow"),
        ("vector", vector(&[1.0; 4]), "the array has 1 axis, but a matrix has 2"),
        ("four", npy("<f4", "(1, 1, 1, 4)", &[0; 16]), "has 4 axes, but a matrix has 2"),
        (
            "cube",
            npy("<f4", "(1, 1, 4)", &[0; 16]),
            "x.npy: the array has 1 axis, but for a batch of matrices it has 2 or 3",
        ),
        ("ints", fs::read(numpy("ints")).unwrap(), "the array holds integers (type \"<i8\")"),
        ("records", fs::read(numpy("records")).unwrap(), "records"),
        ("archive", b"PK\x03\x04 and no directory".into(), "the archive is truncated"),
        ("python", npy("<f4", "[3, 4]", &[]), "its header is not understood"),
    ];
    for (name, content, part) in cases {
        let bad = files.file(name, content);
        let e = failure(&dot(&bad, &x, &[]));
        let named = e.starts_with(&format!("{}: ", bad.display())) || name == "cube";
        assert!(named && e.contains(part), "{name}: {e}");
    }
    let missing = files.path("missing.npy");
    let e = failure(&dot(&a, &missing, &[]));
    assert!(e.starts_with(&format!("{}: No such file", missing.display())), "{e}");
    assert!(failure(&dot(files.0.path(), &x, &[])).starts_with(files.0.path().to_str().unwrap()));
    let e = failure(&dot(&a, &x, &["-o", "/nowhere/y.npy"]));
    assert!(e.starts_with("cannot write /nowhere/y.npy: "), "{e}");
    fails(&dot(&a, &numpy("scalar"), &[]), &["has 0 axes, but a vector has 1"]);
}

#[test]
fn operands_that_do_not_fit() {
    let files = Files::new();
    let (a, x) = (numpy("le_f4_a"), numpy("le_f4_x"));
    let e = failure(&dot(&a, &x, &["--transpose"]));
    let wanted = format!(
        "{}: the vector has 4 entries, but the transpose of {} is 4 x 3, so x needs 3",
        x.display(),
        a.display()
    );
    assert_eq!(e, wanted);
    let y = files.file("y.npy", vector(&[0.0; 4]));
    let e = failure(&dot(&a, &x, &["--y", y.to_str().unwrap(), "--beta", "0"]));
    assert!(e.starts_with(&format!("{}: ", y.display())) && e.ends_with("y needs 3"), "{e}");
    let types = ["le_f4_x.npy: the array holds float32, but", "holds float64"];
    fails(&dot(&numpy("le_f8_a"), &x, &[]), &types);
    // y is of x's type, not of the matrix'.
    fails(&dot(&a, &numpy("le_f8_x"), &["--y", x.to_str().unwrap(), "--beta", "0"]), &types);
}

#[test]
fn a_matrix_of_a_narrower_type() {
    for (a, x) in [("le_f2_a", "le_f4_x"), ("bfloat16_a", "le_f4_x"), ("le_f4_a", "le_f8_x")] {
        assert_eq!(text(&dot(&numpy(a), &numpy(x), &[])), REAL, "{a} {x}");
    }
    // Sums and results of f64.
    let files = Files::new();
    let a = files.file("a.npy", npy("<f4", "(1, 2)", &floats(&[1.0, 2.0])));
    let bytes: Vec<u8> = [1.0f64, 1e-12].into_iter().flat_map(f64::to_le_bytes).collect();
    let x = files.file("x.npy", npy("<f8", "(2,)", &bytes));
    let more = ["--alpha", "3", "--beta", "1", "--y"];
    let y = files.file("y.npy", npy("<f8", "(1,)", &1e-12f64.to_le_bytes()));
    let more = [&more[..], &[y.to_str().unwrap()]].concat();
    let wanted = 3.0f64.mul_add(1.0 + 2e-12, 1e-12);
    assert_eq!(text(&dot(&a, &x, &more)), format!("{wanted:?}\n"));
}

#[test]
fn wrong_usage() {
    let (a, x) = (numpy("le_f4_a"), numpy("le_f4_x"));
    for more in [
        &["--beta", "1"][..],
        &["--y", "y.npy"],
        &["--alpha", "one"],
        &["--alpha", "1,2,3"],
        &["--params", "row rows=many"],
        &["--conj", "--params", "row"],
        &["--frobnicate"],
    ] {
        let out = dot(&a, &x, more);
        assert_eq!(out.status.code(), Some(2), "{more:?}");
        assert!(!String::from_utf8_lossy(&out.stderr).contains("panicked"));
    }
}

#[test]
fn a_directory_of_tables_that_is_not_there_is_told_once() {
    let dir = TempDir::new().unwrap();
    let with = |tables: &Path| {
        let mut command = gemv();
        command.arg("dot").args([numpy("le_f4_a"), numpy("le_f4_x")]);
        command.env("GEMV_TABLES", tables).output().unwrap()
    };
    let lost = dir.path().join("lost");
    let out = with(&lost);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    let why = format!("gemv: warn: GEMV_TABLES names {}, which is no directory\n", lost.display());
    assert_eq!(err, why);
    // One that is there, and an empty name, which is none.
    for good in [dir.path(), Path::new("")] {
        text(&with(good));
    }
}

#[test]
fn devices_by_name() {
    let (a, x) = (numpy("le_f4_a"), numpy("le_f4_x"));
    assert_eq!(text(&dot(&a, &x, &["--device", "reference"])), REAL);
    assert_eq!(text(&dot(&a, &x, &["--device", "reference", "--params", "reference"])), REAL);
    let out = dot(&a, &x, &["--device", "reference", "--params", "row rows=4"]);
    fails(&out, &["row rows=4 does not fit f32 row 3x4 on reference"]);
    fails(&dot(&a, &x, &["--device", "abacus"]), &["no such device: \"abacus\""]);
    // The option beats the environment.
    let env = |more: &[&str]| {
        gemv().env("GEMV_BACKEND", "abacus").arg("dot").args([&a, &x]).args(more).output().unwrap()
    };
    fails(&env(&[]), &["abacus"]);
    assert_eq!(text(&env(&["--device", "reference"])), REAL);
}

/// A file of f4 of this shape, in the order of C or of Fortran.
fn floats_of<D: Dimension>(a: &Array<f32, D>, fortran: bool) -> Vec<u8> {
    let shape: Vec<String> = a.shape().iter().map(usize::to_string).collect();
    let shape = format!("({})", shape.join(", "));
    let order: Vec<f32> =
        if fortran { a.t().iter().copied().collect() } else { a.iter().copied().collect() };
    let file = npy("<f4", &shape, &floats(&order));
    if fortran { patched(&file, "False", "True ") } else { file }
}

/// Every column and every matrix of a batch has the bits of its own product; shapes are numpy.matmul's,
/// but for what --help says.
#[test]
fn several_vectors_and_batches() {
    let files = Files::new();
    let (b, m, n, k) = (3, 7, 300, 5);
    let mut noise = noise(3);
    let mut cube = |dim: (usize, usize, usize)| Array3::from_shape_simple_fn(dim, &mut noise);
    let (a, x, y0) = (cube((b, m, n)), cube((b, n, k)), cube((b, m, k)));
    // Column by column, as a vector each.
    let mut wanted = Array3::<f32>::zeros((b, m, k));
    for (b, c) in (0..b).flat_map(|b| (0..k).map(move |c| (b, c))) {
        let column = a.index_axis(Axis(0), b).gpu_dot(&x.index_axis(Axis(0), b).column(c));
        wanted.index_axis_mut(Axis(0), b).column_mut(c).assign(&column);
    }
    let devices = gemv::devices().into_iter().filter(|l| l.found.is_ok()).map(|l| l.id);
    let devices: Vec<String> = devices.chain(["reference".into()]).collect();
    let product = |a: &Path, x: &Path, more: &[&str]| files.product(a, x, more);
    for (fortran_a, fortran_x) in [(false, false), (true, false), (false, true), (true, true)] {
        let (one, many) =
            (a.index_axis(Axis(0), 0).to_owned(), x.index_axis(Axis(0), 0).to_owned());
        let vectors = x.index_axis(Axis(2), 2).to_owned();
        let column = x.slice(s![.., .., 2..3]).to_owned();
        let single = vector(many.column(2).to_owned().as_slice().unwrap());
        let file = |name: &str, content: Vec<u8>| files.file(name, content);
        let batch = file("batch.npy", floats_of(&a, fortran_a));
        let turned = file("turned.npy", floats_of(&a.clone().permuted_axes([0, 2, 1]), fortran_a));
        let one = file("one.npy", floats_of(&one, fortran_a));
        let many = file("many.npy", floats_of(&many, fortran_x));
        let vectors = file("vectors.npy", floats_of(&vectors, fortran_x));
        let column = file("column.npy", floats_of(&column, fortran_x));
        let all = file("all.npy", floats_of(&x, fortran_x));
        let single = file("single.npy", single);
        let first = floats_of(&wanted.index_axis(Axis(0), 0).to_owned(), false);
        for device in &devices {
            let on = &["--device", &**device][..];
            assert_eq!(product(&one, &many, on), first, "{device}");
            let each = vector(&wanted.slice(s![0, .., 2]).to_vec());
            assert_eq!(product(&one, &single, on), each, "{device}");
            let each = floats_of(&wanted.index_axis(Axis(2), 2).to_owned(), false);
            assert_eq!(product(&batch, &vectors, on), each, "{device}");
            let each = floats_of(&wanted.slice(s![.., .., 2..3]).to_owned(), false);
            assert_eq!(product(&batch, &column, on), each, "{device}");
            let whole = floats_of(&wanted, false);
            assert_eq!(product(&batch, &all, on), whole, "{device}");
            assert_eq!(product(&turned, &all, &[on, &["-t"]].concat()), whole, "{device}");
        }
        // With a y of either order.
        let y = file("y.npy", floats_of(&y0, fortran_x));
        let more = ["--y", y.to_str().unwrap(), "--beta", "1", "--device", "reference"];
        assert_eq!(product(&batch, &all, &more), floats_of(&(&wanted + &y0), false));
        let more = ["--params", "reference", "--device", "reference"];
        assert_eq!(product(&batch, &all, &more), floats_of(&wanted, false));
    }
}

#[test]
fn several_vectors_as_text_conjugated_and_refused() {
    let files = Files::new();
    let a = files.file("a.npy", npy("<f4", "(2, 2)", &floats(&[1.0, 2.0, 3.0, 4.0])));
    let x = files.file("x.npy", npy("<f4", "(2, 3)", &floats(&[1.0, 0.0, 1.0, 0.0, 1.0, 1.0])));
    assert_eq!(text(&dot(&a, &x, &[])), "1.0 2.0 3.0\n3.0 4.0 7.0\n");
    let none = files.file("none.npy", npy("<f4", "(2, 0)", &[]));
    assert_eq!(files.product(&a, &none, &[]), npy("<f4", "(2, 0)", &[]));
    let batch = files.file("b.npy", npy("<f4", "(2, 1, 2)", &floats(&[1.0, 2.0, 3.0, 4.0])));
    let each = files.file("e.npy", npy("<f4", "(2, 2)", &floats(&[1.0, 1.0, 10.0, 10.0])));
    assert_eq!(text(&dot(&batch, &each, &[])), "3.0\n70.0\n");
    let pairs = floats(&[1.0, 2.0, 1.0, 2.0, 10.0, 20.0, 10.0, 20.0]);
    let pairs = files.file("p.npy", npy("<f4", "(2, 2, 2)", &pairs));
    assert_eq!(text(&dot(&batch, &pairs, &[])), "3.0 6.0\n\n70.0 140.0\n");

    // (i) (1 + 2i, 3), conjugated.
    let i = files.file("i.npy", npy("<c8", "(1, 1)", &floats(&[0.0, 1.0])));
    let z = files.file("z.npy", npy("<c8", "(1, 2)", &floats(&[1.0, 2.0, 3.0, 0.0])));
    assert_eq!(text(&dot(&i, &z, &[])), "-2.0,1.0 0.0,3.0\n");
    assert_eq!(text(&dot(&i, &z, &["--conj"])), "2.0,-1.0 0.0,-3.0\n");

    let cases: [(&Path, &Path, &[&str], &str); 6] = [
        (&a, &batch, &[], "has 3 axes, but a vector has 1, and a matrix of several 2"),
        (&batch, &x, &[], "the vectors are 2 x 3, but each of the 2 matrices of"),
        (&batch, &x, &[], "is 1 x 2, so x needs 2 x 2"),
        (&batch, &batch, &[], "so x needs 2 x 2 x k"),
        (&batch, &each, &["-t"], "but the transpose of each of the 2 matrices of"),
        (&a, &x, &["--beta=1", "--y", a.to_str().unwrap()], "shape is 2 x 2, but y needs 2 x 3"),
    ];
    for (a, x, more, part) in cases {
        fails(&dot(a, x, more), &[part]);
    }
}

#[test]
#[cfg(unix)]
fn a_reader_that_leaves_is_no_failure() {
    let files = Files::new();
    let rows = 100_000;
    let a = files.file("a.npy", npy("<f4", &format!("({rows}, 0)"), &[]));
    let x = files.file("x.npy", vector(&[]));
    let mut command = gemv();
    command.arg("dot").args([&a, &x]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
}

#[test]
fn members_of_archives_are_read() {
    let path = archive();
    let member = |name: &str| member(&path, name);
    assert_eq!(text(&dot(&member("a"), &member("x.npy"), &[])), REAL);
    let why = "the archive has a, x: write one behind the file's name, as in a.npz:a";
    fails(&dot(&path, &member("x"), &[]), &[why]);
    let why = "the archive has no \"b\": it has a, x";
    fails(&dot(&member("b"), &member("x"), &[]), &[why]);
    // A single one needs no name; numpy.savez stores it as it is.
    let stored = numpy("archive").with_extension("npz");
    assert_eq!(text(&dot(&stored, &numpy("le_f8_x"), &[])), REAL);
}

#[test]
fn a_column_is_a_vector_and_a_dash_is_a_pipe() {
    let files = Files::new();
    let values = [0.5, -1.0, 2.0, 1.0];
    let [flat, column] = ["(4,)", "(4, 1)"].map(|shape| {
        files.file(&format!("{}.npy", shape.len()), npy("<f4", shape, &floats(&values)))
    });
    let a = numpy("le_f4_a");
    assert_eq!(text(&dot(&a, &column, &[])), text(&dot(&a, &flat, &[])));
    let row = files.file("row.npy", npy("<f4", "(1, 4)", &floats(&values)));
    let parts = ["the right-hand sides are 1 x 4, but", "x needs 4 rows"];
    fails(&dot(&a, &row, &[]), &parts);

    let product = files.product(&a, &column, &[]);
    let mut command = gemv();
    command.args(["dot", "-", column.to_str().unwrap(), "-o", "-"]);
    let out = fed(&mut command, &fs::read(&a).unwrap());
    assert!(out.status.success() && out.stdout == product);
    // A file behind it, from where another program has stopped reading.
    let with_more = files.file("more.npy", [b"a line\n", &fs::read(&a).unwrap()[..]].concat());
    for (cut, part) in [(0, None), (1, Some("announces 48 bytes of data, but 47 follow"))] {
        let bytes = fs::read(&with_more).unwrap();
        let mut input = fs::File::open(files.file("in", &bytes[..bytes.len() - cut])).unwrap();
        std::io::Seek::seek(&mut input, std::io::SeekFrom::Start(7)).unwrap();
        let out = gemv().args(["dot", "-"]).arg(&column).stdin(input).output().unwrap();
        match part {
            None => assert_eq!(text(&out), text(&dot(&a, &column, &[]))),
            Some(part) => fails(&out, &[part]),
        }
    }
    let dash = Path::new("-");
    fails(&dot(dash, dash, &[]), &["only one of the arrays can be standard input"]);
}

/// A pipe has no length to compare with, so its end says what is wrong.
#[test]
#[cfg(target_os = "linux")]
fn pipes_are_read_too() {
    let x = fs::read(numpy("le_f4_x")).unwrap();
    for (content, part) in [
        (x.clone(), None),
        (x[..x.len() - 3].into(), Some("announces 16 bytes of data, but 13 follow")),
        ([&x[..], b"?"].concat(), Some("announces 16 bytes of data, but more follow")),
    ] {
        let mut command = gemv();
        command.arg("dot").args([numpy("le_f4_a"), "/dev/stdin".into()]);
        let out = fed(&mut command, &content);
        match part {
            None => assert_eq!(text(&out), REAL),
            Some(part) => fails(&out, &["/dev/stdin: ", part]),
        }
    }
}

/// No thread can have a stack as large as all addresses.
#[test]
#[cfg(target_os = "linux")]
fn without_threads_it_computes() {
    let files = Files::new();
    let values: Vec<f32> = (0..700_000).map(|k| (k % 13) as f32).collect();
    let a = files.file("a.npy", npy("<f4", "(700, 1000)", &floats(&values)));
    let x = files.file("x.npy", vector(&values[..1000]));
    for more in [&[][..], &["--window", "700K"], &["--window", "700K", "--device", "reference"]] {
        let run = |stack: u64| {
            let mut command = gemv();
            command.arg("dot").args([&a, &x]).args(more).env("RAYON_NUM_THREADS", "4");
            command.env("RUST_MIN_STACK", stack.to_string()).output().unwrap()
        };
        let (many, none) = (run(1 << 20), run(1 << 47));
        let told = String::from_utf8_lossy(&none.stderr);
        assert!(none.status.success() && !told.contains("panicked"), "{more:?}: {told}");
        assert_eq!(String::from_utf8_lossy(&none.stdout), text(&many), "{more:?}");
    }
}

/// A library that is loaded before the program sets a floating-point mode, as those do that GCC linked with -ffast-math: it
/// changes neither the numbers of the options nor those of the result.
#[test]
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn a_library_that_sets_a_mode_changes_nothing() {
    let files = Files::new();
    let source = files.file(
        "mode.c",
        r#"
        __attribute__((constructor)) static void set(void) {
        #ifdef __x86_64__
            unsigned mode = 0xdfc0; /* rounds up, and flushes to zero */
            __asm__ volatile("ldmxcsr %0" : : "m"(mode));
        #else
            unsigned long mode = 1ul << 24 | 1ul << 22;
            __asm__ volatile("msr fpcr, %0" : : "r"(mode));
        #endif
        }
        "#,
    );
    let library = files.path("libmode.so");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .expect("the C compiler that links Rust's programs");
    assert!(made.success());
    let one = files.file("one.npy", vector(&[1.0]));
    let a = files.file("a.npy", npy("<f4", "(4, 1)", &floats(&[1.0, 1e-30, 0.1, 3e-39])));
    let x = files.file("x.npy", vector(&[0.7]));
    for more in [&["--alpha", "1e-41"], &["--alpha", "0.7"], &["--alpha", "1e-9"]] {
        for x in [&one, &x] {
            let plain = text(&dot(&a, x, more));
            let mut loaded = gemv();
            loaded.arg("dot").args([&a, x]).args(more).env("LD_PRELOAD", &library);
            assert_eq!(text(&loaded.output().unwrap()), plain, "{more:?}");
        }
    }
    let tiny = files.file("tiny.npy", npy("<f4", "(1, 1)", &floats(&[1e-30])));
    let small = files.file("small.npy", vector(&[1e-9]));
    assert_eq!(text(&dot(&tiny, &small, &[])), "1e-39\n");
    let mut loaded = gemv();
    loaded.arg("dot").args([&tiny, &small]).env("LD_PRELOAD", &library);
    assert_eq!(text(&loaded.output().unwrap()), "1e-39\n");
}

/// A matrix of a file of weights.
fn weights(file: &str, name: &str) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gemv-weights/tests/golden");
    golden.join(format!("{file}:{name}"))
}

#[test]
fn matrices_of_files_of_weights() {
    let files = Files::new();
    let ones = |n: usize| files.file(&format!("{n}.npy"), &vector(&vec![1.0; n]));
    // The values of each matrix lie in a file of their own, as f32; a vector of ones has its rows' sums.
    for (file, name, n, alpha) in [
        ("model.gguf", "blk.0.ffn_up.weight", 256, 1.0_f32),
        ("model.gguf", "blk.0.attn_v.weight", 64, 1.0),
        ("model.gguf", "blk.0.ffn_up_exps.weight", 32, 1.0),
        ("model.gguf", "blk.0.ffn_gate_inp.weight", 128, 0.75),
        ("layers.safetensors", "awq.weight", 128, 1.0),
        ("layers.safetensors", "rows.weight", 128, 1.0),
        ("layers.safetensors", "modelopt.weight", 128, 0.25),
    ] {
        let (base, _) = file.split_once('.').unwrap();
        let values = weights(&format!("{base}.values.safetensors"), name);
        let x = ones(n);
        let want = text(&dot(&values, &x, &["--alpha", &alpha.to_string()]));
        assert!(want.lines().count() >= 2, "{want}");
        assert_eq!(text(&dot(&weights(file, name), &x, &[])), want, "{name}");
        for device in ["reference", "cpu"] {
            let device = ["--device", device];
            assert_eq!(text(&dot(&weights(file, name), &x, &device)), want, "{name}");
        }
    }
    // Several right-hand sides, factors, and a file for the result.
    let a = weights("model.gguf", "blk.0.attn_v.weight");
    let plain = weights("model.values.safetensors", "blk.0.attn_v.weight");
    let values: Vec<f32> = (0..192).map(|i| (i as f32 * 0.7).sin()).collect();
    let x = files.file("x.npy", &npy("<f4", "(64, 3)", &floats(&values)));
    let y = files.file("y.npy", &npy("<f4", "(3, 3)", &floats(&values[..9])));
    let more = ["--alpha", "1.5", "--beta", "-0.25", "--y", y.to_str().unwrap()];
    assert_eq!(text(&dot(&a, &x, &more)), text(&dot(&plain, &x, &more)));
    assert!(files.product(&a, &x, &[]).starts_with(b"\x93NUMPY"));
    // f16 and bf16.
    let x = files.file("half.npy", &npy("<f2", "(64,)", &[0x00, 0x3c].repeat(64)));
    assert_eq!(text(&dot(&a, &x, &[])).lines().count(), 3);
    let x = files.file("bf16.npy", &npy("<V2", "(64,)", &[0x80, 0x3f].repeat(64)));
    assert_eq!(text(&dot(&a, &x, &[])).lines().count(), 3);
    // Numbers of a file are an array like any other.
    let (plain, x) = (weights("model.gguf", "blk.0.attn_k.weight"), files.path("bf16.npy"));
    let bf16 = files.file("6.npy", &npy("<V2", "(2,)", &[0x80, 0x3f].repeat(2)));
    assert_eq!(text(&dot(&plain, &bf16, &["--transpose"])).lines().count(), 6);

    for (a, x, more, want) in [
        (&a, &x, &["--transpose"][..], "--transpose: "),
        (&a, &x, &["--params", "row"], "--params: "),
        (
            &weights("model.gguf", "nothing"),
            &x,
            &[],
            "model.gguf: there is no tensor \"nothing\" among its 12",
        ),
        (&weights("model.gguf", "kinds.q5_1"), &x, &[], "is Q5_1, of which there are no products"),
        (&weights("none.gguf", "a"), &x, &[], "none.gguf: No such file or directory (os error 2)"),
        (&a, &ones(63), &[], "the vector has 63 entries, but "),
        (
            &a,
            &files.file("d.npy", &npy("<f8", "(64,)", &[0; 512])),
            &[],
            "is packed as q8_0, and takes float32, float16 and bfloat16",
        ),
    ] {
        fails(&dot(a, x, more), &[want]);
    }
    let file = files.file(
        "copy.gguf",
        &fs::read(weights("model.gguf", "").to_str().unwrap().trim_end_matches(':')).unwrap(),
    );
    fails(&dot(&file, &x, &[]), &["copy.gguf has many tensors: "]);
    let out = dot(&member(&file, "blk.0.attn_v.weight"), &x, &["-o", file.to_str().unwrap()]);
    fails(&out, &["this is the file of the matrix, which is not overwritten"]);
}
