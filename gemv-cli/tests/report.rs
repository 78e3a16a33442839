//! `gemv tune`, `bench` and `report`, end to end: on the reference, which every build has, and on
//! written figures for what only a GPU measures. The page is opened in a headless Chromium where
//! there is one; GEMV_TEST_CHROMIUM=1 makes its absence a failure.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gemv"));
    command.args(args).current_dir(dir).env("XDG_CONFIG_HOME", dir.join("config"));
    command.env_remove("GEMV_TABLES");
    command
}

fn gemv(dir: &Path, args: &[&str]) -> Result<String, Failed> {
    let out = command(dir, args).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(format!("gemv {args:?}: {}: {why}", out.status).into());
    }
    Ok(text)
}

const TUNE: [&str; 12] = [
    "tune",
    "--device",
    "reference",
    "--mesh",
    "4",
    "--to",
    "512",
    "--max-bytes",
    "256k",
    "--cold-bytes",
    "1M",
    "--holdout=3",
];

/// The table of the reference, where it is installed.
const TABLE: &str = "config/gemv/tables/reference-the-order-of-additions-written-to-be-read.txt";

/// Figures as a GPU's run would write them.
fn figures(path: &Path) -> std::io::Result<()> {
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
    std::fs::write(path, csv)
}

fn report(dir: &Path) -> Result<PathBuf, Failed> {
    gemv(dir, &[&TUNE[..], &["--out", "run"]].concat())?;
    figures(&dir.join("run/gpu.csv"))?;
    let said = gemv(dir, &["report", "run", "--out", "page.html", "--pictures", "pictures"])?;
    // The tuner: four areas with kernel and speed; the figures: three curves, three maps, a scan.
    if !said.starts_with("15 plots") {
        return Err(format!("not 15 plots: {said}").into());
    }
    Ok(dir.join("page.html"))
}

fn plots(html: &str) -> Vec<(&str, usize)> {
    let count = |kind: &str| html.matches(&format!("data-plot=\"{kind}\"")).count();
    ["kernel", "share", "curve", "scan"].map(|kind| (kind, count(kind))).into()
}

fn page_holds_every_plot() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let html = std::fs::read_to_string(report(dir.path())?)?;
    assert_eq!(plots(&html), [("kernel", 4), ("share", 7), ("curve", 3), ("scan", 1)]);
    assert_eq!(html.matches("<svg").count(), 15);
    assert!(html.contains("Some &lt;GPU&gt; &amp; more") && !html.contains("<GPU>"));
    // Self-contained, and numbers under the pointer.
    for foreign in ["http-equiv", "src=", "href=\"http", "@import", "<script"] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    assert!(html.matches("<title>").count() > 100);
    // Each picture also by itself: named by its caption, with its legend.
    let pictures = dir.path().join("pictures");
    assert_eq!(std::fs::read_dir(&pictures)?.count(), 15);
    let wide = "some-gpu-more-f32-row-wide-n-x-100-n.svg";
    let wide = std::fs::read_to_string(pictures.join(wide))?;
    assert!(wide.starts_with("<svg xmlns=") && wide.trim_end().ends_with("</svg>"));
    for part in ["Some &lt;GPU&gt; &amp; more, f32 row: wide", "gemv</text>", "cublas</text>"] {
        assert!(wide.contains(part), "{part}");
    }
    assert_eq!(wide.matches("<g ").count(), wide.matches("</g>").count());
    Ok(())
}

fn gemv_fails(dir: &Path, args: &[&str]) -> Result<String, Failed> {
    match gemv(dir, args) {
        Ok(said) => Err(format!("gemv {args:?} did not fail: {said}").into()),
        Err(why) => Ok(why.message().unwrap_or_default().to_owned()),
    }
}

const BENCH: [&str; 7] = [
    "bench",
    "--device",
    "reference",
    "--cold-bytes=1M",
    "--max-bytes=256k",
    "--rounds=2",
    "--out",
];

fn single_shapes_are_a_table_and_a_sentence() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let bench = [&BENCH[..], &["one.csv", "--shape", "32x48", "--dtype", "f32"]].concat();
    gemv(dir.path(), &bench)?;
    let said = gemv(dir.path(), &["report", "one.csv", "--out", "page.html"])?;
    assert!(
        said.starts_with("0 plots") && said.contains("single shapes make no picture"),
        "{said}"
    );
    let html = std::fs::read_to_string(dir.path().join("page.html"))?;
    assert!(html.contains("Shapes by themselves") && html.contains("f32 col 32x48"), "{html}");
    Ok(())
}

/// The line of `gemv bench` for this problem: microseconds, and the column t(k)/t(1).
fn multiple(said: &str, problem: &str) -> Result<(f64, f64), Failed> {
    let mut lines = said.lines().filter_map(|l| l.strip_prefix(problem)?.strip_prefix("  "));
    let line = lines.next().ok_or_else(|| format!("no {problem}: {said}"))?;
    // who, us, spread, GB/s, share, t(k)/t(1), parameters
    let line = line.replace(" %", "%");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(words[0] == "gemv" && words[6] == "reference" && lines.next().is_none(), "{said}");
    assert!(words[2].ends_with('%') && words[4] == "-", "{said}");
    Ok((words[1].parse()?, words[5].parse()?))
}

fn right_hand_sides_and_batches_are_measured_and_told_apart() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let bench = [&BENCH[..], &["run.csv", "--shape", "32x48", "--dtype", "f32"]].concat();
    let said = gemv(dir, &[&bench[..], &["--columns", "4,1,2"]].concat())?;
    // Its words are explained below it.
    for word in
        ["spread: how far", "share: -, since nothing only reads", "t(k)/t(1): the time of k"]
    {
        assert!(said.contains(word), "{word}: {said}");
    }
    for layout in ["row", "col"] {
        let of = |rhs: &str| multiple(&said, &format!("f32 {layout} 32x48{rhs}"));
        let (one, times) = of("")?;
        assert_eq!(times, 1.0, "{said}");
        for rhs in [" rhs=2", " rhs=4"] {
            let (us, times) = of(rhs)?;
            // As printed, with two digits.
            assert!((us / one - times).abs() < 0.02 * times.max(1.0), "{rhs}: {said}");
        }
    }
    let samples = || -> Result<Vec<[String; 3]>, Failed> {
        let mut csv = csv::Reader::from_path(dir.join("run.csv"))?;
        let header = csv.headers()?.clone();
        let at = |name: &str| header.iter().position(|h| h == name).ok_or(format!("no {name}"));
        let columns = [at("rhs")?, at("batch")?, at("bytes")?];
        csv.records().map(|record| Ok(record.map(|r| columns.map(|c| r[c].to_owned()))?)).collect()
    };
    let line = |rhs: usize, batch: usize| {
        let bytes = 4 * batch * (32 * 48 + rhs * (32 + 48));
        [rhs, batch, bytes].map(|v| v.to_string())
    };
    let rows = [line(1, 1), line(2, 1), line(4, 1)];
    assert_eq!(samples()?, [&rows[..], &rows].concat());
    // One number alone is no multiple of another.
    let more = ["--columns=3", "--batch=5", "--layout=row", "--warm"];
    let said = gemv(dir, &[&bench[..], &more].concat())?;
    assert!(said.contains("f32 row 32x48 rhs=3 batch=5 ") && !said.contains("t(k)"), "{said}");
    assert_eq!(samples()?.pop(), Some(line(3, 5)));
    for more in [&["--columns=0"][..], &["--batch=0"]] {
        gemv_fails(dir, &[&bench[..], more].concat())?;
    }

    // A plot for each type and layout with several of them, and none without rivals.
    let said = gemv(dir, &["report", "run.csv", "--out", "page.html"])?;
    assert!(said.starts_with("2 plots"), "{said}");
    let html = std::fs::read_to_string(dir.join("page.html"))?;
    assert_eq!(html.matches("data-plot=\"columns\"").count(), 2);
    assert!(html.contains("f32 row: t(k)/t(1)") && html.contains("f32 col: t(k)/t(1)"));
    assert!(html.contains("f32 row rhs=3 batch=5, warm 32x48"), "{html}");
    Ok(())
}

fn the_speed_over_others_is_drawn_by_the_right_hand_sides() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
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
    std::fs::write(dir.join("gpu.csv"), csv)?;
    let said = gemv(dir, &["report", "gpu.csv", "--out", "page.html"])?;
    assert!(said.starts_with("2 plots"), "{said}");
    let html = std::fs::read_to_string(dir.join("page.html"))?;
    for part in [
        "GPU, f32 row: speed of gemv over that of others",
        "6.00 times as fast as cublas (geometric mean of 8 products; least 3.00, at f32 row 256x512)",
        "Left out: how many times as fast as cublas: of 1 product with several right-hand sides or in \
         batches, too few for a mean",
        "gemv, k = 1: 1.00 (geometric mean of 8 shapes; least 1.00, most 1.00)",
        "gemv, k = 4: 3.00 (geometric mean of 1 shape; least 3.00, most 3.00)",
        "cublas, k = 4: 4.00 (geometric mean of 1 shape; least 4.00, most 4.00)",
        "cublas, k = 1: 6.00 (geometric mean of 8 shapes; least 3.00, most 12.00)",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    Ok(())
}

/// A point is no curve, few shapes are no map, few products no headline, few values no scan: sentences in their place,
/// and the numbers in a table, which is open where there is no picture.
fn what_makes_no_good_picture_is_left_out() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    figures(&dir.join("all.csv"))?;
    let all = std::fs::read_to_string(dir.join("all.csv"))?;
    let part = |keep: &dyn Fn(&str) -> bool| -> Result<String, Failed> {
        let lines: Vec<&str> =
            all.lines().enumerate().filter(|(k, l)| *k == 0 || keep(l)).map(|(_, l)| l).collect();
        std::fs::write(dir.join("part.csv"), lines.join("\n") + "\n")?;
        gemv(dir, &["report", "part.csv", "--out", "page.html"])?;
        Ok(std::fs::read_to_string(dir.join("page.html"))?)
    };
    let html = part(&|l| {
        l.contains(",tall,100,1,") || l.contains(",mesh,4,") || l.contains("threads=32 ")
    })?;
    assert_eq!(html.matches("<figure").count(), 0, "{html}");
    for why in [
        "f32 row: tall, 100 N x N: one point is no curve (classic, cublas, gemv)",
        "f32 row, cublas: 3 shapes were measured, only in parts of the plane",
        "f32 row, gemv: 3 shapes were measured, only",
        "f32 row, classic-partial on 512x512: 2 times, with fewer than 4 values of any argument, are no scan",
        "how many times as fast as cublas: of 4 products, too few for a mean; the table has the times",
    ] {
        assert!(html.contains(&format!("<p class=\"left\">Left out: {why}")), "{why}: {html}");
    }
    assert!(
        html.contains("<details open><summary>Tables") && !html.contains("headline\">"),
        "{html}"
    );
    // Of the published kernels, as of others, there are maps where there are enough shapes.
    let classic = |l: &str| match l.contains(",mesh,1,") || l.contains(",mesh,4,") {
        true => l.replace("row threads=128", "narrow threads=64"),
        false => l.replace("row threads=128", "broad threads=128 rows=2"),
    };
    let lines: String = all.lines().map(|l| classic(l) + "\n").collect();
    std::fs::write(dir.join("part.csv"), lines)?;
    gemv(dir, &["report", "part.csv", "--out", "page.html"])?;
    let html = std::fs::read_to_string(dir.join("page.html"))?;
    for part in ["row, classic: best kernel", "row, classic: best value of 1 argument"] {
        assert!(html.contains(part), "{part}");
    }
    // One of several curves; and pictures before tables, tables before commands, one unit for each quantity.
    let html = part(&|l| {
        (l.contains(",tall,") || l.contains(",square,"))
            && (!l.contains(",cublas,") || l.contains(",100,1,"))
    })?;
    assert!(html.contains("one point is no curve (cublas)"), "{html}");
    assert_eq!(html.matches("<figure").count(), 2, "{html}");
    let at = |part: &str| html.find(part).ok_or(format!("no {part}: {html}"));
    let order = [
        "headline\">",
        "<figure",
        "left\">",
        "<details><summary>Tables",
        "<details><summary>Device",
    ];
    let places = order.map(at).into_iter().collect::<Result<Vec<_>, _>>()?;
    assert!(places.is_sorted(), "{places:?}");
    for (unit, is_there) in [("GB/s", true), ("KiB", true), ("10^9 bytes per second", false)] {
        assert_eq!(html.contains(&format!("{unit}\n</text>")), is_there, "{unit}: {html}");
    }
    Ok(())
}

/// Packed by gzip, named and found; what is no such file is a sentence.
fn packed_files_are_read() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    std::fs::create_dir(dir.join("run"))?;
    figures(&dir.join("run/gpu.csv"))?;
    gemv(dir, &["report", "run", "--out", "plain.html"])?;
    assert!(Command::new("gzip").arg("--keep").arg(dir.join("run/gpu.csv")).status()?.success());
    let plain = std::fs::read_to_string(dir.join("plain.html"))?;
    // Both are there: they are one.
    for from in ["run", "run/gpu.csv.gz"] {
        gemv(dir, &["report", from, "--out", "page.html"])?;
        assert!(std::fs::read_to_string(dir.join("page.html"))? == plain, "{from}");
    }
    std::fs::remove_file(dir.join("run/gpu.csv"))?;
    gemv(dir, &["report", "run", "--out", "page.html"])?;
    assert!(std::fs::read_to_string(dir.join("page.html"))? == plain);
    let packed = std::fs::read(dir.join("run/gpu.csv.gz"))?;
    for (bytes, why) in [
        (&packed[..packed.len() / 2], "run/gpu.csv.gz: it cannot be unpacked"),
        (b"device,name", "it cannot be unpacked: invalid gzip header"),
    ] {
        std::fs::write(dir.join("run/gpu.csv.gz"), bytes)?;
        let said = gemv_fails(dir, &["report", "run"])?;
        assert!(said.contains(why), "{said}");
    }
    Ok(())
}

fn directories_are_made_and_a_cut_line_is_left_out() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let bench = |shape: &str| {
        gemv(dir, &[&BENCH[..], &["run/new/one.csv", "--shape", shape, "--dtype=f32"]].concat())
    };
    bench("32x48")?;
    let path = dir.join("run/new/one.csv");
    let whole = std::fs::read_to_string(&path)?;
    // The run was killed within the last line.
    std::fs::write(&path, &whole[..whole.len() - 3])?;
    gemv(dir, &["report", "run/new", "--out", "pages/page.html"])?;
    let html = std::fs::read_to_string(dir.join("pages/page.html"))?;
    assert!(html.contains("f32 row 32x48") && !html.contains("f32 col 32x48"), "{html}");
    // The next run goes on behind the last whole line.
    bench("16x48")?;
    let lines = std::fs::read_to_string(&path)?;
    assert_eq!(lines.lines().count(), whole.lines().count() - 1 + 2);
    gemv(dir, &["report", "run/new", "--out", "pages/page.html"])?;
    // Killed within its header, a file begins anew.
    std::fs::write(&path, &whole[..20])?;
    bench("16x48")?;
    assert!(std::fs::read_to_string(&path)?.starts_with(&whole[..100]));
    // Another program's columns are not mixed with these, and what it wrote stays, with an end or without.
    for precious in ["a,b\n1,2\n", "{\"a\": 1,\n\"b\": 2}", "{}", "\u{ff}\n"] {
        std::fs::write(&path, precious)?;
        let why = bench("16x48").unwrap_err();
        assert!(why.message().unwrap_or_default().contains("has other columns"), "{why:?}");
        assert_eq!(std::fs::read_to_string(&path)?, precious);
    }
    let dash = gemv_fails(dir, &[&BENCH[..], &["-", "--shape=16x48"]].concat())?;
    assert!(dash.contains("lines are appended to a file by name"), "{dash}");
    Ok(())
}

/// Nothing that is read is written over, and the page is all that goes to standard output.
fn a_report_keeps_what_it_reads() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    std::fs::create_dir(dir.join("run"))?;
    figures(&dir.join("run/gpu.csv"))?;
    let before = std::fs::read(dir.join("run/gpu.csv"))?;
    for from in ["run", "run/gpu.csv"] {
        let why = gemv_fails(dir, &["report", from, "--out", "run/../run/gpu.csv"])?;
        assert!(why.contains("run/gpu.csv: what is read is not overwritten"), "{why}");
        assert_eq!(std::fs::read(dir.join("run/gpu.csv"))?, before);
    }
    let out = command(dir, &["report", "run", "--out", "-"]).output()?;
    let (page, said) = (String::from_utf8(out.stdout)?, String::from_utf8(out.stderr)?);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert_eq!(said, "7 plots in -\n");
    assert!(!dir.join("-").exists());
    // A page that has no place is told before anything is read.
    let why = gemv_fails(dir, &["report", "lost.csv", "--out", "run"])?;
    assert!(why.contains("cannot write run: it is a directory"), "{why}");
    Ok(())
}

/// Two runs of one name, and two devices whose names have the same letters.
fn equal_names_are_told_apart() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
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
        std::fs::create_dir(dir.join(run))?;
        std::fs::write(dir.join(run).join("cuda-x.cells.csv"), lines(m))?;
    }
    gemv(dir, &["report", "one", "two", "--out", "page.html"])?;
    let html = std::fs::read_to_string(dir.join("page.html"))?;
    for part in ["Tuning of cuda-x<", "Tuning of cuda-x (2)<", "64x64: row", "128x64: row"] {
        assert!(html.contains(part), "{part}: {html}");
    }
    let csv = dir.join("names.csv");
    figures(&csv)?;
    let figures = std::fs::read_to_string(&csv)?;
    let of = |name: &str| figures.replace("Some <GPU> & more", name);
    std::fs::write(&csv, of("A-1") + of("A 1").split_once('\n').ok_or("no header")?.1)?;
    gemv(dir, &["report", "names.csv", "--out", "page.html", "--pictures", "pictures"])?;
    let mut named = Vec::new();
    for end in ["", "-2"] {
        let name = format!("pictures/a-1-f32-row-wide-n-x-100-n{end}.svg");
        let text = std::fs::read_to_string(dir.join(name))?;
        named.push(["A-1, f32 row", "A 1, f32 row"].map(|caption| text.contains(caption)));
    }
    named.sort();
    assert_eq!(named, [[false, true], [true, false]]);
    assert_eq!(std::fs::read_dir(dir.join("pictures"))?.count(), 14);
    Ok(())
}

/// Pipes that are only found, and what is too long; a pipe that is named is read and written.
#[cfg(unix)]
fn pipes_and_endless_files() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let pipe = |name: &str| Command::new("mkfifo").arg(dir.join(name)).status();
    std::fs::create_dir_all(dir.join("run"))?;
    assert!(pipe("run/a.csv")?.success() && pipe("b.csv")?.success());
    let why = gemv_fails(dir, &["report", "run"])?;
    assert!(why.contains("cannot read run/a.csv: it is no plain file"), "{why}");
    std::fs::remove_file(dir.join("run/a.csv"))?;
    // Without a block on the disk.
    std::fs::File::create(dir.join("run/a.csv"))?.set_len(1 << 40)?;
    for from in ["run", "run/a.csv"] {
        let why = gemv_fails(dir, &["report", from])?;
        assert!(why.contains("cannot read run/a.csv: it is longer than any file"), "{why}");
    }
    let reader = std::thread::spawn({
        let path = dir.join("b.csv");
        move || std::fs::read_to_string(path)
    });
    let bench = [&BENCH[..], &["b.csv", "--shape=32x48", "--dtype=f32", "--layout=row"]].concat();
    gemv(dir, &bench)?;
    let lines = reader.join().expect("no panic")?;
    assert!(lines.starts_with("device,name,dtype") && lines.lines().count() == 2, "{lines}");
    let writer = std::thread::spawn({
        let path = dir.join("b.csv");
        move || std::fs::write(path, lines)
    });
    let said = gemv(dir, &["report", "b.csv"])?;
    writer.join().expect("no panic")?;
    assert!(said.starts_with("0 plots"), "{said}");
    Ok(())
}

/// A table that is no text, or a pipe, would lose its rows: told before anything is measured.
#[cfg(unix)]
fn a_table_that_cannot_be_read_is_not_replaced() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let table = dir.join(TABLE);
    std::fs::create_dir_all(table.parent().ok_or("no directory")?)?;
    let tune = [&TUNE[..], &["--out", "run", "--install"]].concat();
    std::fs::write(&table, b"* * : reference # caf\xe9\n")?;
    let why = gemv_fails(dir, &tune)?;
    assert!(why.contains("to-be-read.txt: it is no text in UTF-8"), "{why}");
    std::fs::remove_file(&table)?;
    assert!(Command::new("mkfifo").arg(&table).status()?.success());
    let why = gemv_fails(dir, &tune)?;
    assert!(why.contains("to-be-read.txt: it is no plain file"), "{why}");
    assert_eq!(std::fs::read_dir(dir.join("run"))?.count(), 0, "nothing is measured");
    Ok(())
}

/// A full disk behind standard output is a sentence, and what was to be done is done.
#[cfg(target_os = "linux")]
fn what_cannot_be_said_is_done() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    figures(&dir.join("gpu.csv"))?;
    let full = || std::fs::File::options().write(true).open("/dev/full");
    let few = ["--out", "run", "--install", "--dtype=f32", "--layout=row"];
    let tune = [&TUNE[..], &few].concat();
    for (args, made) in [(&["report", "gpu.csv"][..], "gemv-report.html"), (&tune, TABLE)] {
        let out = command(dir, args).stdout(full()?).output()?;
        let said = String::from_utf8(out.stderr)?;
        let last = said.lines().last().unwrap_or_default();
        assert_eq!(last, "gemv: No space left on device (os error 28)", "{said}");
        assert!(out.status.code() == Some(1) && dir.join(made).is_file(), "{said}");
    }
    // And what could not be done is told.
    let tune = [&TUNE[..11], &few, &["--resume", "--holdout=0"]].concat();
    let out = command(dir, &tune).stdout(full()?).output()?;
    let said = String::from_utf8(out.stderr)?;
    assert!(said.contains("nothing is installed") && !out.status.success(), "{said}");
    Ok(())
}

fn what_was_not_checked_is_not_installed() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let tune = [&TUNE[..11], &["--holdout=0", "--out", "run"]].concat();
    let said = gemv(dir, &tune)?;
    assert!(said.contains("this table     not checked") && !said.contains("0.00 %"), "{said}");
    let why = gemv_fails(dir, &[&tune[..], &["--resume", "--install"]].concat())?;
    assert!(why.contains("nothing was checked"), "{why}");
    assert!(!dir.join("config").exists());
    Ok(())
}

fn a_limit_of_time_keeps_what_was_measured() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let shapes = |limit: &str, out: &str| -> Result<(String, usize), Failed> {
        let said = gemv(dir, &[&BENCH[..], &[out, "--points=9", "--seconds", limit]].concat())?;
        let lines = std::fs::read_to_string(dir.join(out))?.lines().count();
        Ok((said, lines - 1))
    };
    let (said, all) = shapes("3600", "all.csv")?;
    assert!(!said.contains("out of time") && all > 50, "{all}: {said}");
    // Twice as long, until there is something.
    let limits = (0..12).map(|k| 0.02 * f64::from(1 << k));
    let tried = limits.map(|s| shapes(&s.to_string(), &format!("{s}.csv")));
    let (said, some) = tried.filter_map(Result::ok).next().expect("ever more time");
    assert!(said.contains("out of time") && 0 < some && some < all, "{some} of {all}: {said}");
    // No time at all is an error, not an empty file that looks like a result.
    let none = gemv_fails(dir, &[&BENCH[..], &["none.csv", "--seconds=0"]].concat())?;
    assert!(none.contains("nothing was measured: the time of --seconds was over"), "{none}");
    let row = ["none.csv", "--shape=1x9", "--layout=col"];
    let none = gemv_fails(dir, &[&BENCH[..], &row].concat())?;
    assert!(none.contains("nothing was measured: a matrix of one row is row-major only"), "{none}");
    let none = gemv_fails(dir, &[&BENCH[..4], &["--max-bytes=1"]].concat())?;
    assert!(
        none.contains("nothing was measured: no problem of float32 fits --max-bytes"),
        "{none}"
    );
    for wrong in ["-1", "soon"] {
        let why =
            gemv_fails(dir, &[&BENCH[..], &["x.csv", &format!("--seconds={wrong}")]].concat())?;
        assert!(why.contains("--seconds"), "{why}");
    }
    Ok(())
}

/// It ends between two problems, with what it has, and with the code that shells give such an end.
#[cfg(unix)]
fn ctrl_c_keeps_what_was_measured() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let tune =
        [&TUNE[..4], &["64", "--cold-bytes", "1M", "--max-bytes", "256k", "--out", "run"]].concat();
    let bench =
        [&BENCH[..3], &["--cold-bytes=1M", "--points=256", "--shapes=mesh", "--out", "run.csv"]]
            .concat();
    let cells = "run/reference-the-order-of-additions-written-to-be-read.cells.csv";
    for (args, made, end) in [
        (&tune, cells, "gemv: stopped; the same command with --resume goes on from run/"),
        (&bench, "run.csv", " times; run.csv has them: Ctrl-C"),
    ] {
        let mut command = command(dir, args);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let lines =
            || std::fs::read_to_string(dir.join(made)).map_or(0, |text| text.lines().count());
        while lines() < 5 {
            assert!(child.try_wait()?.is_none(), "{args:?} ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status()?.success());
        let out = child.wait_with_output()?;
        let said = String::from_utf8(out.stderr)?;
        assert_eq!(out.status.code(), Some(130), "{said}");
        assert!(said.contains("stopping after this problem") && said.contains(end), "{said}");
        assert!(lines() >= 5);
    }
    Ok(())
}

fn parameters_that_nothing_takes_are_an_error() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let bench = [&BENCH[..], &["x.csv", "--shape=32x48", "--dtype=f32"]].concat();
    let why = gemv_fails(dir.path(), &[&bench[..], &["--params", "bogus"]].concat())?;
    assert!(why.contains("bogus was not measured"), "{why}");
    let both = ["--params", "bogus", "--params", "reference"];
    let why = gemv_fails(dir.path(), &[&bench[..], &both].concat())?;
    assert!(why.contains("bogus was not measured"), "{why}");
    gemv(dir.path(), &[&bench[..], &both[2..]].concat())?;
    let late = gemv_fails(dir.path(), &[&bench[..], &both[2..], &["--seconds=0"]].concat())?;
    assert!(late.contains("reference was not measured: time was up"), "{late}");
    Ok(())
}

/// On an OpenCL device: whole scans and the best of the published kernels, within a limit of time,
/// and pictures of both.
fn published_kernels_are_scanned_and_mapped(device: &str) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let common = ["bench", "--device", device, "--dtype=f32", "--cold-bytes=4M"];
    let scan = ["--layout=row", "--scan", "--shape=256x256", "--max-bytes=1M", "--no-rivals"];
    gemv(dir, &[&common[..], &scan, &["--out=run.csv"]].concat())?;
    let csv = std::fs::read_to_string(dir.join("run.csv"))?;
    for kernel in ["thread", "columns", "rows", "spread", "stages", "block", "block-x", "tile"] {
        let part = format!(",scan,classic-{kernel} ");
        assert!(csv.lines().filter(|l| l.contains(&part)).count() >= 9, "{kernel}: {csv}");
    }
    let many = ["--layout=row", "--scan", "--shape=40x30", "--columns=9", "--max-bytes=1M"];
    gemv(dir, &[&common[..], &many, &["--out=many.csv"]].concat())?;
    let csv = std::fs::read_to_string(dir.join("many.csv"))?;
    for (kernel, least) in [("1", 4), ("2", 4), ("3", 7), ("4", 7)] {
        let part = format!(",scan,classic-sgemm-{kernel} ");
        assert!(csv.lines().filter(|l| l.contains(&part)).count() >= least, "{kernel}: {csv}");
    }
    gemv(dir, &["report", "many.csv", "--out", "many.html"])?;
    let html = std::fs::read_to_string(dir.join("many.html"))?;
    assert!(html.contains("GFLOP/s") && html.contains("scan of width"), "{:?}", plots(&html));
    // Three small ones: most of the time goes to programs that are compiled.
    let mesh = ["--layout=row", "--classic", "--shapes=mesh", "--points=9", "--max-bytes=1k"];
    gemv(dir, &[&common[..], &mesh, &["--out=run.csv"]].concat())?;
    gemv(dir, &["report", "run.csv", "--out", "page.html"])?;
    let html = std::fs::read_to_string(dir.join("page.html"))?;
    assert!(html.matches("data-plot=\"scan\"").count() >= 15, "{:?}", plots(&html));
    for part in ["row, classic: 3 shapes were measured", "scan of parts"] {
        assert!(html.contains(part), "{part}");
    }
    Ok(())
}

/// On an OpenCL device whose kernels are compiled anew, which takes longer than the limit of time.
fn building_kernels_is_not_counted(device: &str) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let common = ["bench", "--device", device, "--dtype=f32", "--layout=row", "--cold-bytes=1M"];
    let shapes = ["--shape=64x64", "--shape=3x5000", "--no-rivals", "--rounds=1", "--seconds=0.2"];
    let args = [&common[..], &shapes, &["--max-bytes=256k", "--out=run.csv"]].concat();
    let out = command(dir, &args).env("GEMV_CACHE", "off").output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert!(
        said.contains("2 problems, ") && said.contains("building kernels is not counted"),
        "{said}"
    );
    let csv = std::fs::read_to_string(dir.join("run.csv"))?;
    assert!(csv.lines().nth(1).is_some_and(|line| line.contains(",f32,row,shape,64,64,")), "{csv}");
    Ok(())
}

/// The first OpenCL device, if there is one.
fn opencl() -> Option<String> {
    let out = Command::new(env!("CARGO_BIN_EXE_gemv")).arg("info").output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines().any(|l| l.trim().starts_with("opencl:0:")).then(|| "opencl:0".into())
}

fn tuning_is_resumed_and_installed_only_on_request() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    gemv(dir, &[&TUNE[..], &["--out", "run"]].concat())?;
    let cells = std::fs::read_dir(dir.join("run"))?.flatten().map(|e| e.path());
    let cells = cells.filter(|p| p.to_string_lossy().ends_with(".cells.csv"));
    let cells: Vec<PathBuf> = cells.collect();
    assert_eq!(cells.len(), 1);
    let whole = std::fs::read_to_string(&cells[0])?;
    assert!(!dir.join("config").exists(), "nothing is installed unasked");
    // Not over what is there.
    let again = gemv(dir, &[&TUNE[..], &["--out", "run"]].concat());
    assert!(again.unwrap_err().message().unwrap().contains("--resume"));
    // Half of it is kept, the rest measured again.
    let half: Vec<&str> = whole.lines().take(whole.lines().count() / 2).collect();
    std::fs::write(&cells[0], half.join("\n") + "\n")?;
    gemv(dir, &[&TUNE[..], &["--out", "run", "--resume", "--install"]].concat())?;
    let now = std::fs::read_to_string(&cells[0])?;
    assert_eq!(now.lines().count(), whole.lines().count());
    let kept = half.iter().filter(|l| now.lines().any(|n| n == **l)).count();
    assert!(kept + 2 >= half.len(), "{kept} of {} lines kept", half.len());
    let tables = dir.join("config/gemv/tables");
    let names: Vec<String> = std::fs::read_dir(&tables)?
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let explained = gemv(dir, &["info", "--explain", "f32 row 64x64", "--device", "reference"])?;
    assert!(explained.contains("config/gemv/tables"), "{explained}");
    Ok(())
}

fn right_hand_sides_are_tuned_and_installed_beside_single_products() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let table = |out: &str| -> Result<(String, PathBuf), Failed> {
        let files = std::fs::read_dir(dir.join(out))?.flatten().map(|e| e.path());
        let name = |p: &PathBuf| p.to_string_lossy().into_owned();
        let is = |p: &PathBuf| name(p).ends_with(".txt");
        let path = files.into_iter().find(is).ok_or("no table")?;
        Ok((std::fs::read_to_string(&path)?, path))
    };
    gemv(dir, &[&TUNE[..], &["--out", "one", "--install", "--dtype=f32"]].concat())?;
    let (one, _) = table("one")?;
    let more = ["--out", "many", "--install", "--dtype=f32", "--rhs=8,2"];
    let said = gemv(dir, &[&TUNE[..], &more].concat())?;
    assert!(said.contains("  f32 row align=16.. rhs=5..8: geomean"), "{said}");
    let rows = |text: &str| -> Vec<String> {
        text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect()
    };
    let (many, path) = table("many")?;
    assert!(rows(&many).iter().all(|row| row.contains(" batch=1 : ")), "{many}");
    for part in ["f32 row align=16.. rhs=2 batch=1 :", "f32 col align=..4 rhs=5..8 batch=1 :"] {
        assert!(rows(&many).iter().any(|row| row.starts_with(part)), "{part}: {many}");
    }
    assert!(many.contains("# rows for f32 row align=16.. rhs=5..8: "), "{many}");
    // The rows for one right-hand side stay.
    let installed = dir.join("config/gemv/tables").join(path.file_name().ok_or("no name")?);
    let installed = std::fs::read_to_string(installed)?;
    assert_eq!(rows(&installed), [rows(&many), rows(&one)].concat());
    let explain =
        |problem: &str| gemv(dir, &["info", "--explain", problem, "--device", "reference"]);
    let from = |row: &str| format!("from the row \"{row}");
    assert!(
        explain("f32 row 64x64 rhs=7")?.contains(&from("f32 row align=16.. rhs=5..8 batch=1 :"))
    );
    assert!(explain("f32 row 64x64")?.contains(&from("f32 row align=16.. :")));
    assert!(!explain("f32 row 64x64 rhs=7 batch=2")?.contains("rhs=5..8 batch=1"));
    // What was measured of one number is not taken for another's.
    let resumed = ["--out", "many", "--resume", "--dtype=f32", "--rhs=4"];
    gemv(dir, &[&TUNE[..], &resumed].concat())?;
    let (more, _) = table("many")?;
    assert!(rows(&more).iter().all(|row| row.contains(" rhs=3..4 ")), "{more}");
    let said = gemv(dir, &["report", "many", "--out", "page.html"])?;
    assert!(said.starts_with("12 plots"), "{said}");
    let html = std::fs::read_to_string(dir.join("page.html"))?;
    assert!(html.contains("f32 col rhs=4, aligned"), "{html}");
    for wrong in [&["--rhs=3,4"][..], &["--rhs=0"]] {
        gemv_fails(dir, &[&TUNE[..], &["--out", "wrong"], wrong].concat())?;
    }
    Ok(())
}

fn chromium() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    names.into_iter().find(|n| Command::new(n).arg("--version").output().is_ok())
}

fn page_opens_in_chromium(browser: &str) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let page = report(dir.path())?;
    let out = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .output()?;
    let dom = String::from_utf8_lossy(&out.stdout);
    // What the browser has made of it: every figure, each with a drawing in it.
    assert_eq!(plots(&dom), [("kernel", 4), ("share", 7), ("curve", 3), ("scan", 1)]);
    assert_eq!(dom.matches("</svg>").count(), 15, "{dom}");
    Ok(())
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Measurements that run beside others are repeated until they agree, which takes longer than one after the other.
    arguments.test_threads.get_or_insert(1);
    let chromium_required = std::env::var("GEMV_TEST_CHROMIUM").is_ok_and(|v| v == "1");
    let browser = chromium();
    let opens = Trial::test("page_opens_in_chromium", move || match browser {
        Some(browser) => page_opens_in_chromium(browser),
        None => Err("there is no Chromium, and GEMV_TEST_CHROMIUM asks for it".into()),
    });
    let device = opencl();
    let without = device.is_none();
    let required = |name: &str| {
        std::env::var("GEMV_REQUIRE").is_ok_and(|v| v.split(',').any(|v| v.trim() == name))
    };
    let published = Trial::test("published_kernels_are_scanned_and_mapped", move || {
        let device = device.ok_or("there is no OpenCL device, and GEMV_REQUIRE asks for one")?;
        published_kernels_are_scanned_and_mapped(&device)?;
        building_kernels_is_not_counted(&device)
    });
    macro_rules! trials {
        ($($(#[$cfg:meta])? $name:ident,)*) => {
            vec![$($(#[$cfg])? Trial::test(stringify!($name), $name)),*]
        };
    }
    let mut trials = trials![
        single_shapes_are_a_table_and_a_sentence,
        right_hand_sides_and_batches_are_measured_and_told_apart,
        the_speed_over_others_is_drawn_by_the_right_hand_sides,
        directories_are_made_and_a_cut_line_is_left_out,
        what_makes_no_good_picture_is_left_out,
        packed_files_are_read,
        a_report_keeps_what_it_reads,
        equal_names_are_told_apart,
        #[cfg(unix)]
        pipes_and_endless_files,
        #[cfg(unix)]
        a_table_that_cannot_be_read_is_not_replaced,
        #[cfg(target_os = "linux")]
        what_cannot_be_said_is_done,
        what_was_not_checked_is_not_installed,
        a_limit_of_time_keeps_what_was_measured,
        #[cfg(unix)]
        ctrl_c_keeps_what_was_measured,
        parameters_that_nothing_takes_are_an_error,
        page_holds_every_plot,
        tuning_is_resumed_and_installed_only_on_request,
        right_hand_sides_are_tuned_and_installed_beside_single_products,
    ];
    trials.push(published.with_ignored_flag(without && !required("opencl")));
    trials.push(opens.with_ignored_flag(browser.is_none() && !chromium_required));
    libtest_mimic::run(&arguments, trials).exit();
}
