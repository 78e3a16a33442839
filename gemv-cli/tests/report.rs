//! `gemv tune`, `bench` and `report`, end to end: on the reference, which every build has, and on
//! written figures for what only a GPU measures. The page is opened in a headless Chromium where
//! there is one; GEMV_TEST_CHROMIUM=1 makes its absence a failure.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

/// A directory of a test, of which one runs at a time: measurements that run beside others are repeated until they agree,
/// which takes longer than one after the other.
struct Dir {
    dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Dir {
    fn new() -> Dir {
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Dir { dir: tempfile::tempdir().unwrap(), _alone }
    }
}

impl Deref for Dir {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.dir.path()
    }
}

/// The program, with these words.
fn command(dir: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gemv"));
    command.args(words.split_whitespace()).current_dir(dir);
    command.env("XDG_CONFIG_HOME", dir.join("config")).env_remove("GEMV_TABLES");
    command
}

/// Standard output, and standard error.
fn said(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

#[track_caller]
fn gemv(dir: &Path, words: &str) -> String {
    let output = command(dir, words).output().unwrap();
    let [out, why] = said(&output);
    assert!(output.status.success(), "gemv {words}: {}: {why}", output.status);
    out
}

#[track_caller]
fn refused(dir: &Path, words: &str, part: &str) {
    let output = command(dir, words).output().unwrap();
    let [_, why] = said(&output);
    assert!(!output.status.success() && why.contains(part), "gemv {words}: {why}");
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// What `gemv report` says of these files, and its page.
#[track_caller]
fn report(dir: &Path, from: &str) -> (String, String) {
    let said = gemv(dir, &format!("report {from} --out page.html"));
    (said, read(dir.join("page.html")))
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

const TUNE: &str =
    "tune --device reference --mesh 4 --to 512 --max-bytes 256k --cold-bytes 1M --holdout";
const BENCH: &str =
    "bench --device reference --cold-bytes=1M --max-bytes=256k --rounds=2 --dtype=f32";

/// The table of the reference, where it is installed.
const TABLE: &str = "config/gemv/tables/reference-the-order-of-additions-written-to-be-read.txt";

/// Figures as a GPU's run would write them.
fn figures(path: PathBuf) {
    let mut csv =
        String::from("device,name,dtype,layout,curve,m,n,bytes,caches,who,params,us,gbs,roof_us\n");
    let mut add = |curve: &str, m: usize, n: usize, who: &str, params: &str, us: f64| {
        let bytes = 4 * (m * n + m + n);
        let (gbs, roof) = (bytes as f64 / us / 1e3, bytes as f64 / 4e6 + 1.0);
        csv += &format!(
            "cuda:0,Some <GPU> & more,f32,row,{curve},{m},{n},{bytes},cold,{who},{params},{us},{gbs},{roof}\n"
        );
    };
    for k in [1, 4, 16, 64, 256] {
        for (who, slow) in [("gemv", 1.1), ("cublas", 1.5), ("classic", 1.9)] {
            let us = |m: usize, n: usize| slow * ((m * n) as f64 / 1e6 + 1.0);
            for (curve, m, n) in
                [("tall", 100 * k, k), ("square", 10 * k, 10 * k), ("wide", k, 100 * k)]
            {
                add(curve, m, n, who, "row threads=128", us(m, n));
            }
            for n in [1, 16, 256] {
                add("mesh", k, n, who, "row threads=128", us(k, n));
            }
        }
    }
    for threads in [32, 64, 128, 256] {
        for width in [1, 2] {
            let params = format!("classic-partial threads={threads} width={width}");
            add("shape", 512, 512, "scan", &params, 3.0 + f64::from(threads * width) / 100.0);
        }
    }
    std::fs::write(path, csv).unwrap();
}

/// The tuner: four areas with kernel and speed; the figures: three curves, three maps, a scan.
fn whole_report(dir: &Path) -> String {
    gemv(dir, &format!("{TUNE} 3 --out run"));
    figures(dir.join("run/gpu.csv"));
    let (said, html) = report(dir, "run --pictures pictures");
    assert!(said.starts_with("15 plots"), "{said}");
    html
}

fn plots(html: &str) -> [(&str, usize); 4] {
    let count = |kind: &str| html.matches(&format!("data-plot=\"{kind}\"")).count();
    ["kernel", "share", "curve", "scan"].map(|kind| (kind, count(kind)))
}

#[test]
fn page_holds_every_plot() {
    let dir = &Dir::new();
    let html = whole_report(dir);
    assert_eq!(plots(&html), [("kernel", 4), ("share", 7), ("curve", 3), ("scan", 1)]);
    assert_eq!(html.matches("<svg").count(), 15);
    assert!(html.contains("Some &lt;GPU&gt; &amp; more") && !html.contains("<GPU>"));
    // Self-contained, and numbers under the pointer.
    for foreign in ["http-equiv", "src=", "href=\"http", "@import", "<script"] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    assert!(html.matches("<title>").count() > 100);
    // Each picture also by itself: named by its caption, with its legend.
    let pictures = dir.join("pictures");
    assert_eq!(fs::read_dir(&pictures).unwrap().count(), 15);
    let wide = read(pictures.join("some-gpu-more-f32-row-wide-n-x-100-n.svg"));
    assert!(wide.starts_with("<svg xmlns=") && wide.trim_end().ends_with("</svg>"));
    let caption = "Some &lt;GPU&gt; &amp; more, f32 row: wide";
    has(&wide, &[caption, "gemv</text>", "cublas</text>"]);
    assert_eq!(wide.matches("<g ").count(), wide.matches("</g>").count());
}

#[test]
fn page_opens_in_chromium() {
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let mut names = names.into_iter();
    let Some(browser) = names.find(|n| Command::new(n).arg("--version").output().is_ok()) else {
        let required = std::env::var("GEMV_TEST_CHROMIUM").is_ok_and(|v| v == "1");
        assert!(!required, "there is no Chromium, and GEMV_TEST_CHROMIUM asks for it");
        return eprintln!("not tested: there is no Chromium");
    };
    let dir = &Dir::new();
    whole_report(dir);
    let out = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("file://{}", dir.join("page.html").display()))
        .output()
        .unwrap();
    let [dom, _] = said(&out);
    // What the browser has made of it: every figure, each with a drawing in it.
    assert_eq!(plots(&dom), [("kernel", 4), ("share", 7), ("curve", 3), ("scan", 1)]);
    assert_eq!(dom.matches("</svg>").count(), 15, "{dom}");
}

#[test]
fn single_shapes_are_a_table_and_a_sentence() {
    let dir = &Dir::new();
    gemv(dir, &format!("{BENCH} --out one.csv --shape 32x48"));
    let (said, html) = report(dir, "one.csv");
    assert!(said.starts_with("0 plots"), "{said}");
    has(&said, &["single shapes make no picture"]);
    has(&html, &["Shapes by themselves", "f32 col 32x48"]);
}

/// The line of `gemv bench` for this problem: microseconds, and the column t(k)/t(1).
fn multiple(said: &str, problem: &str) -> (f64, f64) {
    let mut lines = said.lines().filter_map(|l| l.strip_prefix(problem)?.strip_prefix("  "));
    // who, us, spread, GB/s, share, t(k)/t(1), parameters
    let line = lines.next().expect(problem).replace(" %", "%");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(words[0] == "gemv" && words[6] == "reference" && lines.next().is_none(), "{said}");
    assert!(words[2].ends_with('%') && words[4] == "-", "{said}");
    (words[1].parse().unwrap(), words[5].parse().unwrap())
}

#[test]
fn right_hand_sides_and_batches_are_measured_and_told_apart() {
    let dir = &Dir::new();
    let bench = format!("{BENCH} --out run.csv --shape 32x48");
    let said = gemv(dir, &format!("{bench} --columns 4,1,2"));
    // Its words are explained below it.
    let words = ["spread: how far", "share: -, since nothing only", "t(k)/t(1): the time of k"];
    has(&said, &words);
    for layout in ["row", "col"] {
        let of = |rhs: &str| multiple(&said, &format!("f32 {layout} 32x48{rhs}"));
        let (one, times) = of("");
        assert_eq!(times, 1.0, "{said}");
        for rhs in [" rhs=2", " rhs=4"] {
            let (us, times) = of(rhs);
            // As printed, with two digits.
            assert!((us / one - times).abs() < 0.02 * times.max(1.0), "{rhs}: {said}");
        }
    }
    let samples = || -> Vec<[String; 3]> {
        let mut csv = csv::Reader::from_path(dir.join("run.csv")).unwrap();
        let header = csv.headers().unwrap().clone();
        let at = |name| header.iter().position(|h| h == name).unwrap();
        let columns = ["rhs", "batch", "bytes"].map(at);
        csv.records().map(|record| columns.map(|c| record.as_ref().unwrap()[c].into())).collect()
    };
    let line = |rhs: usize, batch: usize| {
        let bytes = 4 * batch * (32 * 48 + rhs * (32 + 48));
        [rhs, batch, bytes].map(|v| v.to_string())
    };
    let rows = [line(1, 1), line(2, 1), line(4, 1)];
    assert_eq!(samples(), [&rows[..], &rows].concat());
    // One number alone is no multiple of another.
    let said = gemv(dir, &format!("{bench} --columns=3 --batch=5 --layout=row --warm"));
    assert!(said.contains("f32 row 32x48 rhs=3 batch=5 ") && !said.contains("t(k)"), "{said}");
    assert_eq!(samples().pop(), Some(line(3, 5)));
    for wrong in ["--columns", "--batch"] {
        refused(dir, &format!("{bench} {wrong}=0"), wrong);
    }

    // A plot for each type and layout with several of them, and none without rivals.
    let (said, html) = report(dir, "run.csv");
    assert!(said.starts_with("2 plots"), "{said}");
    assert_eq!(html.matches("data-plot=\"columns\"").count(), 2);
    let rows = ["f32 row: t(k)/t(1)", "f32 col: t(k)/t(1)", "f32 row rhs=3 batch=5, warm 32x48"];
    has(&html, &rows);
}

#[test]
fn the_speed_over_others_is_drawn_by_the_right_hand_sides() {
    let dir = &Dir::new();
    let mut csv = String::from(
        "device,name,dtype,layout,curve,m,n,rhs,batch,bytes,caches,who,params,us,gbs,read_us\n",
    );
    // Of eight shapes one alone is there with four right-hand sides.
    let one = |k: usize| (256 << k, 1, 1., [3., 12.][k % 2]);
    for (m, rhs, ours, theirs) in (0..8).map(one).chain([(512, 4, 3., 12.)]) {
        for (who, us) in [("gemv", ours), ("cublas", theirs)] {
            csv += &format!("cuda:0,GPU,f32,row,shape,{m},512,{rhs},1,9,cold,{who},p,{us},1,\n");
        }
    }
    fs::write(dir.join("gpu.csv"), csv).unwrap();
    let (said, html) = report(dir, "gpu.csv");
    assert!(said.starts_with("2 plots"), "{said}");
    let parts = [
        "GPU, f32 row: speed of gemv over that of others",
        "6.00 times as fast as cublas (geometric mean of 8 products; least 3.00, at f32 row 256x512)",
        "Left out: how many times as fast as cublas: of 1 product with several right-hand sides or in \
         batches, too few for a mean",
        "gemv, k = 1: 1.00 (geometric mean of 8 shapes; least 1.00, most 1.00)",
        "gemv, k = 4: 3.00 (geometric mean of 1 shape; least 3.00, most 3.00)",
        "cublas, k = 4: 4.00 (geometric mean of 1 shape; least 4.00, most 4.00)",
        "cublas, k = 1: 6.00 (geometric mean of 8 shapes; least 3.00, most 12.00)",
    ];
    has(&html, &parts);
}

/// A point is no curve, few shapes are no map, few products no headline, few values no scan: sentences in their place,
/// and the numbers in a table, which is open where there is no picture.
#[test]
fn what_makes_no_good_picture_is_left_out() {
    let dir = &Dir::new();
    figures(dir.join("all.csv"));
    let all = read(dir.join("all.csv"));
    let (header, lines) = all.split_once('\n').unwrap();
    let page = |of: &dyn Fn(&str) -> Option<String>| {
        let lines: String = lines.lines().filter_map(|l| Some(of(l)? + "\n")).collect();
        fs::write(dir.join("part.csv"), format!("{header}\n{lines}")).unwrap();
        report(dir, "part.csv").1
    };
    let html = page(&|l| {
        let parts = [",tall,100,1,", ",mesh,4,", "threads=32 "];
        parts.iter().any(|part| l.contains(part)).then(|| l.into())
    });
    assert_eq!(html.matches("<figure").count(), 0, "{html}");
    for why in [
        "f32 row: tall, 100 N x N: one point is no curve (classic, cublas, gemv)",
        "f32 row, cublas: 3 shapes were measured, only in parts of the plane",
        "f32 row, gemv: 3 shapes were measured, only",
        "f32 row, classic-partial on 512x512: 2 times, with fewer than 4 values of any argument, are no scan",
        "how many times as fast as cublas: of 4 products, too few for a mean; the table has the times",
    ] {
        has(&html, &[&format!("<p class=\"left\">Left out: {why}")]);
    }
    has(&html, &["<details open><summary>Tables"]);
    assert!(!html.contains("headline\">"), "{html}");
    // Of the published kernels, as of others, there are maps where there are enough shapes.
    let html = page(&|l| {
        let few = l.contains(",mesh,1,") || l.contains(",mesh,4,");
        let kernel = if few { "narrow threads=64" } else { "broad threads=128 rows=2" };
        Some(l.replace("row threads=128", kernel))
    });
    has(&html, &["row, classic: best kernel", "row, classic: best value of 1 argument"]);
    // One of several curves; and pictures before tables, tables before commands, one unit for each quantity.
    let html = page(&|l| {
        let curve = l.contains(",tall,") || l.contains(",square,");
        let one = !l.contains(",cublas,") || l.contains(",100,1,");
        (curve && one).then(|| l.into())
    });
    has(&html, &["one point is no curve (cublas)"]);
    assert_eq!(html.matches("<figure").count(), 2, "{html}");
    let (tables, device) = ("<details><summary>Tables", "<details><summary>Device");
    let order = ["headline\">", "<figure", "left\">", tables, device];
    let places = order.map(|part| html.find(part).expect(part));
    assert!(places.is_sorted(), "{places:?}");
    for (unit, is_there) in [("GB/s", true), ("KiB", true), ("10^9 bytes per second", false)] {
        assert_eq!(html.contains(&format!("{unit}\n</text>")), is_there, "{unit}: {html}");
    }
}

/// Packed by gzip, named and found; what is no such file is a sentence.
#[test]
fn packed_files_are_read() {
    let dir = &Dir::new();
    fs::create_dir(dir.join("run")).unwrap();
    let (csv, gz) = (dir.join("run/gpu.csv"), dir.join("run/gpu.csv.gz"));
    figures(csv.clone());
    let plain = report(dir, "run").1;
    assert!(Command::new("gzip").arg("--keep").arg(&csv).status().unwrap().success());
    // Both are there: they are one.
    for from in ["run", "run/gpu.csv.gz"] {
        assert!(report(dir, from).1 == plain, "{from}");
    }
    fs::remove_file(&csv).unwrap();
    assert!(report(dir, "run").1 == plain);
    let packed = fs::read(&gz).unwrap();
    for (bytes, why) in [
        (&packed[..packed.len() / 2], "run/gpu.csv.gz: it cannot be unpacked"),
        (b"device,name", "it cannot be unpacked: invalid gzip header"),
    ] {
        fs::write(&gz, bytes).unwrap();
        refused(dir, "report run", why);
    }
}

#[test]
fn directories_are_made_and_a_cut_line_is_left_out() {
    let dir = &Dir::new();
    let bench = |shape: &str| format!("{BENCH} --out run/new/one.csv --shape {shape}");
    let page = || {
        gemv(dir, "report run/new --out pages/page.html");
        read(dir.join("pages/page.html"))
    };
    gemv(dir, &bench("32x48"));
    let path = dir.join("run/new/one.csv");
    let whole = read(&path);
    // The run was killed within the last line.
    fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    let html = page();
    assert!(html.contains("f32 row 32x48") && !html.contains("f32 col 32x48"), "{html}");
    // The next run goes on behind the last whole line.
    gemv(dir, &bench("16x48"));
    assert_eq!(read(&path).lines().count(), whole.lines().count() - 1 + 2);
    page();
    // Killed within its header, a file begins anew.
    fs::write(&path, &whole[..20]).unwrap();
    gemv(dir, &bench("16x48"));
    assert!(read(&path).starts_with(&whole[..100]));
    // Another program's columns are not mixed with these, and what it wrote stays, with an end or without.
    for precious in ["a,b\n1,2\n", "{\"a\": 1,\n\"b\": 2}", "{}", "\u{ff}\n"] {
        fs::write(&path, precious).unwrap();
        refused(dir, &bench("16x48"), "has other columns");
        assert_eq!(read(&path), precious);
    }
    let why = "lines are appended to a file by name";
    refused(dir, &format!("{BENCH} --out - --shape=16x48"), why);
}

/// Nothing that is read is written over, and the page is all that goes to standard output.
#[test]
fn a_report_keeps_what_it_reads() {
    let dir = &Dir::new();
    fs::create_dir(dir.join("run")).unwrap();
    let csv = dir.join("run/gpu.csv");
    figures(csv.clone());
    let before = read(&csv);
    for from in ["run", "run/gpu.csv"] {
        let report = format!("report {from} --out run/../run/gpu.csv");
        refused(dir, &report, "run/gpu.csv: what is read is not overwritten");
        assert_eq!(read(&csv), before);
    }
    let [page, why] = said(&command(dir, "report run --out -").output().unwrap());
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert_eq!(why, "7 plots in -\n");
    assert!(!dir.join("-").exists());
    // A page that has no place is told before anything is read.
    refused(dir, "report lost.csv --out run", "cannot write run: it is a directory");
}

/// Two runs of one name, and two devices whose names have the same letters.
#[test]
fn equal_names_are_told_apart() {
    let dir = &Dir::new();
    // Nine shapes, so that there is a map.
    let lines = |m: usize| {
        let head = "kind,dtype,layout,m,n,rhs,align,params,us,low_us,high_us,batches,checked,finalist,\
                    candidates,at_ceiling,read_us,note\n";
        let problem = |k: usize| {
            let of = format!("f32,row,{},{},1,6", m << (k / 3), 64 << (k % 3));
            format!("trial,{of},row,2,2,2,5,true,true,,,,\nend,{of},,,,,,,,9,true,1,\n")
        };
        head.to_owned() + &(0..9).map(problem).collect::<String>()
    };
    for (run, m) in [("one", 64), ("two", 128)] {
        fs::create_dir(dir.join(run)).unwrap();
        fs::write(dir.join(run).join("cuda-x.cells.csv"), lines(m)).unwrap();
    }
    let html = report(dir, "one two").1;
    has(&html, &["Tuning of cuda-x<", "Tuning of cuda-x (2)<", "64x64: row", "128x64: row"]);
    let csv = dir.join("names.csv");
    figures(csv.clone());
    let figures = read(&csv);
    let of = |name: &str| figures.replace("Some <GPU> & more", name);
    fs::write(&csv, of("A-1") + of("A 1").split_once('\n').unwrap().1).unwrap();
    report(dir, "names.csv --pictures pictures");
    let mut named = ["", "-2"].map(|end| {
        let text = read(dir.join(format!("pictures/a-1-f32-row-wide-n-x-100-n{end}.svg")));
        ["A-1, f32 row", "A 1, f32 row"].map(|caption| text.contains(caption))
    });
    named.sort();
    assert_eq!(named, [[false, true], [true, false]]);
    assert_eq!(fs::read_dir(dir.join("pictures")).unwrap().count(), 14);
}

/// Pipes that are only found, and what is too long; a pipe that is named is read and written.
#[cfg(unix)]
#[test]
fn pipes_and_endless_files() {
    let dir = &Dir::new();
    fs::create_dir_all(dir.join("run")).unwrap();
    let (found, named) = (dir.join("run/a.csv"), dir.join("b.csv"));
    make_pipe(&found);
    make_pipe(&named);
    refused(dir, "report run", "cannot read run/a.csv: it is no plain file");
    fs::remove_file(&found).unwrap();
    // Without a block on the disk.
    fs::File::create(&found).unwrap().set_len(1 << 40).unwrap();
    for from in ["report run", "report run/a.csv"] {
        refused(dir, from, "cannot read run/a.csv: it is longer than any file");
    }
    let path = named.clone();
    let reader = std::thread::spawn(move || read(path));
    gemv(dir, &format!("{BENCH} --out b.csv --shape=32x48 --layout=row"));
    let lines = reader.join().expect("no panic");
    assert!(lines.starts_with("device,name,dtype") && lines.lines().count() == 2, "{lines}");
    let writer = std::thread::spawn(move || fs::write(named, lines));
    let said = gemv(dir, "report b.csv");
    writer.join().expect("no panic").unwrap();
    assert!(said.starts_with("0 plots"), "{said}");
}

/// A table that is no text, or a pipe, would lose its rows: told before anything is measured.
#[cfg(unix)]
#[test]
fn a_table_that_cannot_be_read_is_not_replaced() {
    let dir = &Dir::new();
    let table = dir.join(TABLE);
    fs::create_dir_all(table.parent().unwrap()).unwrap();
    let tune = format!("{TUNE} 3 --out run --install");
    fs::write(&table, b"* * : reference # caf\xe9\n").unwrap();
    refused(dir, &tune, "to-be-read.txt: it is no text in UTF-8");
    fs::remove_file(&table).unwrap();
    make_pipe(&table);
    refused(dir, &tune, "to-be-read.txt: it is no plain file");
    assert_eq!(fs::read_dir(dir.join("run")).unwrap().count(), 0, "nothing is measured");
}

/// A full disk behind standard output is a sentence, and what was to be done is done.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_said_is_done() {
    let dir = &Dir::new();
    figures(dir.join("gpu.csv"));
    let run = |words: &str| {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let out = command(dir, words).stdout(full).output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        said(&out)[1].clone()
    };
    let few = "--out run --install --dtype=f32 --layout=row";
    let tune = format!("{TUNE} 3 {few}");
    for (words, made) in [("report gpu.csv", "gemv-report.html"), (&tune, TABLE)] {
        let why = run(words);
        let last = why.lines().last().unwrap_or_default();
        assert_eq!(last, "gemv: No space left on device (os error 28)", "{why}");
        assert!(dir.join(made).is_file(), "{why}");
    }
    // And what could not be done is told.
    has(&run(&format!("{TUNE} 0 {few} --resume")), &["nothing is installed"]);
}

#[test]
fn what_was_not_checked_is_not_installed() {
    let dir = &Dir::new();
    let tune = format!("{TUNE} 0 --out run");
    let said = gemv(dir, &tune);
    assert!(said.contains("this table     not checked") && !said.contains("0.00 %"), "{said}");
    refused(dir, &format!("{tune} --resume --install"), "nothing was checked");
    assert!(!dir.join("config").exists());
}

#[test]
fn a_limit_of_time_keeps_what_was_measured() {
    let dir = &Dir::new();
    let file = |seconds: &str| format!("{seconds}.csv");
    let limited = |seconds: &str| {
        format!("{BENCH},f64 --points=9 --out={} --seconds={seconds}", file(seconds))
    };
    let count = |seconds: &str| read(dir.join(file(seconds))).lines().count() - 1;
    let (text, all) = (gemv(dir, &limited("3600")), count("3600"));
    assert!(!text.contains("out of time") && all > 50, "{all}: {text}");
    // Twice as long, until there is something.
    let limits = (0..12).map(|k| (0.02 * f64::from(1 << k)).to_string());
    let mut tried = limits.map(|s| (command(dir, &limited(&s)).output().unwrap(), s));
    let (out, limit) = tried.find(|of| of.0.status.success()).expect("ever more time");
    has(&said(&out)[0], &["out of time"]);
    let some = count(&limit);
    assert!(0 < some && some < all, "{some} of {all}");
    // No time at all is an error, not an empty file that looks like a result.
    let nothing = "nothing was measured: the time of --seconds was over";
    refused(dir, &limited("0"), nothing);
    let nothing = "nothing was measured: a matrix of one row is row-major only";
    refused(dir, &format!("{BENCH} --shape=1x9 --layout=col"), nothing);
    let nothing = "nothing was measured: no problem of float32 fits --max-bytes";
    refused(dir, "bench --device reference --cold-bytes=1M --max-bytes=1", nothing);
    for wrong in ["-1", "soon"] {
        refused(dir, &limited(wrong), "--seconds");
    }
}

/// It ends between two problems, with what it has, and with the code that shells give such an end.
#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_was_measured() {
    let dir = &Dir::new();
    let limits = "--device reference --cold-bytes=1M";
    let tune = format!("tune {limits} --mesh 64 --max-bytes 256k --out run");
    let bench = format!("bench {limits} --points=256 --shapes=mesh --out run.csv");
    let cells = "run/reference-the-order-of-additions-written-to-be-read.cells.csv";
    for (words, made, end) in [
        (&tune, cells, "gemv: stopped; the same command with --resume goes on from run/"),
        (&bench, "run.csv", " times; run.csv has them: Ctrl-C"),
    ] {
        let mut command = command(dir, words);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = || fs::read_to_string(dir.join(made)).map_or(0, |text| text.lines().count());
        while lines() < 5 {
            assert!(child.try_wait().unwrap().is_none(), "{words} ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(130));
        has(&said(&out)[1], &["stopping after this problem", end]);
        assert!(lines() >= 5);
    }
}

#[test]
fn parameters_that_nothing_takes_are_an_error() {
    let dir = &Dir::new();
    let bench = format!("{BENCH} --out x.csv --shape=32x48 --params");
    refused(dir, &format!("{bench} bogus"), "bogus was not measured");
    refused(dir, &format!("{bench} bogus --params reference"), "bogus was not measured");
    gemv(dir, &format!("{bench} reference"));
    let late = "reference was not measured: time was up";
    refused(dir, &format!("{bench} reference --seconds=0"), late);
}

/// The first OpenCL device; without one nothing more is tested, or GEMV_REQUIRE is not met.
fn opencl(dir: &Path) -> bool {
    let is_there = gemv(dir, "info").lines().any(|l| l.trim().starts_with("opencl:0:"));
    let mut required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
    required.retain(|c| c != ' ');
    let is_required = required.split(',').any(|name| name == "opencl");
    assert!(is_there || !is_required, "there is no OpenCL device, and GEMV_REQUIRE asks for one");
    if !is_there {
        eprintln!("not tested: there is no OpenCL device");
    }
    is_there
}

/// On an OpenCL device: whole scans and the best of the published kernels, and pictures of both.
#[test]
fn published_kernels_are_scanned_and_mapped() {
    let dir = &Dir::new();
    if !opencl(dir) {
        return;
    }
    let bench = "bench --device opencl:0 --dtype=f32 --cold-bytes=4M --layout=row";
    let scanned = |file: &str, of: &str, kernel: &str, least: usize| {
        let csv = read(dir.join(file));
        let part = format!(",scan,classic-{of}{kernel} ");
        let count = csv.lines().filter(|l| l.contains(&part)).count();
        assert!(count >= least, "{kernel}: {csv}");
    };
    let scan = "--scan --shape=256x256 --max-bytes=1M --no-rivals --out=run.csv";
    gemv(dir, &format!("{bench} {scan}"));
    for kernel in ["thread", "columns", "rows", "spread", "stages", "block", "block-x", "tile"] {
        scanned("run.csv", "", kernel, 9);
    }
    let many = "--scan --shape=40x30 --columns=9 --max-bytes=1M --out=many.csv";
    gemv(dir, &format!("{bench} {many}"));
    for (kernel, least) in [("1", 4), ("2", 4), ("3", 7), ("4", 7)] {
        scanned("many.csv", "sgemm-", kernel, least);
    }
    let html = report(dir, "many.csv").1;
    assert!(html.contains("GFLOP/s") && html.contains("scan of width"), "{:?}", plots(&html));
    // Three small ones: most of the time goes to programs that are compiled.
    let mesh = "--classic --shapes=mesh --points=9 --max-bytes=1k --out=run.csv";
    gemv(dir, &format!("{bench} {mesh}"));
    let html = report(dir, "run.csv").1;
    assert!(html.matches("data-plot=\"scan\"").count() >= 15, "{:?}", plots(&html));
    for part in ["row, classic: 3 shapes were measured", "scan of parts"] {
        assert!(html.contains(part), "{part}");
    }
}

/// On an OpenCL device whose kernels are compiled anew, which takes longer than the limit of time.
#[test]
fn building_kernels_is_not_counted() {
    let dir = &Dir::new();
    if !opencl(dir) {
        return;
    }
    let bench = "bench --device opencl:0 --dtype=f32 --layout=row --cold-bytes=1M --max-bytes=256k \
                 --shape=64x64 --shape=3x5000 --no-rivals --rounds=1 --seconds=0.2 --out=run.csv";
    let out = command(dir, bench).env("GEMV_CACHE", "off").output().unwrap();
    let [_, why] = said(&out);
    assert!(out.status.success(), "{why}");
    has(&why, &["2 problems, ", "building kernels is not counted"]);
    let csv = read(dir.join("run.csv"));
    assert!(csv.lines().nth(1).is_some_and(|line| line.contains(",f32,row,shape,64,64,")), "{csv}");
}

/// The file of a directory whose name ends so; there is one.
fn found(dir: PathBuf, end: &str) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.to_str().unwrap().ends_with(end)).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn tuning_is_resumed_and_installed_only_on_request() {
    let dir = &Dir::new();
    let tune = format!("{TUNE} 3 --out run");
    gemv(dir, &tune);
    let cells = found(dir.join("run"), ".cells.csv");
    let whole = read(&cells);
    assert!(!dir.join("config").exists(), "nothing is installed unasked");
    // Not over what is there.
    refused(dir, &tune, "--resume");
    // Half of it is kept, the rest measured again.
    let half: Vec<&str> = whole.lines().take(whole.lines().count() / 2).collect();
    fs::write(&cells, half.join("\n") + "\n").unwrap();
    gemv(dir, &format!("{tune} --resume --install"));
    let now = read(&cells);
    assert_eq!(now.lines().count(), whole.lines().count());
    let kept = half.iter().filter(|l| now.lines().any(|n| n == **l)).count();
    assert!(kept + 2 >= half.len(), "{kept} of {} lines kept", half.len());
    found(dir.join("config/gemv/tables"), "");
    let explained = gemv(dir, "info --device reference --explain f32 row 64x64");
    has(&explained, &["config/gemv/tables"]);
}

#[test]
fn right_hand_sides_are_tuned_and_installed_beside_single_products() {
    let dir = &Dir::new();
    let table = |out: &str| read(found(dir.join(out), ".txt"));
    gemv(dir, &format!("{TUNE} 3 --out one --install --dtype=f32"));
    let said = gemv(dir, &format!("{TUNE} 3 --out many --install --dtype=f32 --rhs=8,2"));
    has(&said, &["  f32 row align=16.. rhs=5..8: geomean"]);
    let rows = |text: &str| -> Vec<String> {
        text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect()
    };
    let (one, many) = (table("one"), table("many"));
    assert!(rows(&many).iter().all(|row| row.contains(" batch=1 : ")), "{many}");
    for part in ["f32 row align=16.. rhs=2 batch=1 :", "f32 col align=..4 rhs=5..8 batch=1 :"] {
        assert!(rows(&many).iter().any(|row| row.starts_with(part)), "{part}: {many}");
    }
    has(&many, &["# rows for f32 row align=16.. rhs=5..8: "]);
    // The rows for one right-hand side stay.
    assert_eq!(rows(&read(dir.join(TABLE))), [rows(&many), rows(&one)].concat());
    let explain =
        |problem: &str| gemv(dir, &format!("info --device reference --explain {problem}"));
    let rhs = "from the row \"f32 row align=16.. rhs=5..8 batch=1 :";
    has(&explain("f32 row 64x64 rhs=7"), &[rhs]);
    has(&explain("f32 row 64x64"), &["from the row \"f32 row align=16.. :"]);
    assert!(!explain("f32 row 64x64 rhs=7 batch=2").contains("rhs=5..8 batch=1"));
    // What was measured of one number is not taken for another's.
    gemv(dir, &format!("{TUNE} 3 --out many --resume --dtype=f32 --rhs=4"));
    let more = table("many");
    assert!(rows(&more).iter().all(|row| row.contains(" rhs=3..4 ")), "{more}");
    let (said, html) = report(dir, "many");
    assert!(said.starts_with("12 plots"), "{said}");
    has(&html, &["f32 col rhs=4, aligned"]);
    for wrong in ["--rhs=3,4", "--rhs=0"] {
        refused(dir, &format!("{TUNE} 3 --out wrong {wrong}"), "--rhs");
    }
}
