//! `gemv tune`, `bench` and `report`, end to end: on the reference, which every build has, and on
//! written figures for what only a GPU measures. The page is opened in a headless Chromium where
//! there is one; GEMV_TEST_CHROMIUM=1 makes its absence a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Arguments, Failed, Trial};

fn gemv(dir: &Path, args: &[&str]) -> Result<String, Failed> {
    let out = Command::new(env!("CARGO_BIN_EXE_gemv"))
        .args(args)
        .current_dir(dir)
        .env("XDG_CONFIG_HOME", dir.join("config"))
        .env_remove("GEMV_TABLES")
        .output()?;
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
    assert_eq!(names.len(), 2, "{names:?}");
    let explained = gemv(dir, &["info", "--explain", "f32 row 64x64", "--device", "reference"])?;
    assert!(explained.contains("config/gemv/tables"), "{explained}");
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
    let arguments = Arguments::from_args();
    let required = std::env::var("GEMV_TEST_CHROMIUM").is_ok_and(|v| v == "1");
    let browser = chromium();
    let opens = Trial::test("page_opens_in_chromium", move || match browser {
        Some(browser) => page_opens_in_chromium(browser),
        None => Err("there is no Chromium, and GEMV_TEST_CHROMIUM asks for it".into()),
    });
    let trials = vec![
        Trial::test("page_holds_every_plot", page_holds_every_plot),
        Trial::test(
            "tuning_is_resumed_and_installed_only_on_request",
            tuning_is_resumed_and_installed_only_on_request,
        ),
        opens.with_ignored_flag(browser.is_none() && !required),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}
