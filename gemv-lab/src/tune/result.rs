//! The results of a run: the table with its header, and what is printed.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::tuner::{
    DeviceSpeed, Fit, Holdout, Measurements, Mesh, Mode, ProblemClass, Regret, RunnerSettings,
    kernel_key, present_rows,
};
use anyhow::{Context, bail};
use gemv::Device;
use gemv::unstable::table::{Row, file_name, user_dirs};
use gemv::unstable::{Desc, Params, Table};

use crate::files::{read_found, write};

pub(super) fn tell(speed: &DeviceSpeed) {
    let us = |s: f64| format!("{:.2} us", s * 1e6);
    eprintln!("launch {}, round trip {}", us(speed.launch), us(speed.round_trip));
    if let Some(l) = &speed.link {
        let (up, down) = (l.up / 1e9, l.down / 1e9);
        eprintln!("host link: {up:.1} GB/s up, {down:.1} GB/s down, {} to begin", us(l.up_latency));
    }
    if let Some(p) = speed.read_bandwidth.points.last() {
        eprintln!("read bandwidth: {:.1} GB/s of memory", p.bytes as f64 / p.cold / 1e9);
    }
}

/// The nearest legal row's parameters.
pub(super) fn first_legal(table: &Table, device: &Device, desc: &Desc) -> Option<Params> {
    let legal = |row: &&&Row| device.backend().fits(desc, &row.params).is_ok();
    table.nearest(desc).iter().find(legal).map(|row| row.params)
}

pub(super) fn header(
    device: &Device,
    caches: String,
    mesh: &Mesh,
    what: &str,
    took: Duration,
    regret: &[Regret],
) -> Vec<(String, String)> {
    let info = device.info();
    let mut header = vec![
        ("device", info.name.clone()),
        ("architecture", info.arch.clone()),
        ("driver", info.driver.clone()),
        ("date", chrono::Utc::now().format("%Y-%m-%d").to_string()),
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("caches", caches),
        (
            "mesh",
            format!(
                "{} sizes from {} to {}, {what}, {:.0} s",
                mesh.sizes().len(),
                mesh.sizes()[0],
                mesh.sizes()[mesh.sizes().len() - 1],
                took.as_secs_f64()
            ),
        ),
    ];
    for (key, regret) in ["regret before", "regret"].iter().zip(regret) {
        header.push((key, regret.to_string()));
    }
    header.into_iter().filter(|h| !h.1.is_empty()).map(|(k, v)| (k.into(), v)).collect()
}

/// The tables whose rows were kept, each by its name and a hash of its rows: a later table of
/// that name may have others.
pub(super) fn started(
    device: &Device,
    classes: &[ProblemClass],
    parts: &[Fit],
) -> Vec<(String, String)> {
    let mut all: Vec<String> = Vec::new();
    for (&class, _) in classes.iter().zip(parts).filter(|(_, part)| part.kept > 0) {
        if let Some((table, _)) = present_rows(device.tables(), class) {
            // A path of this user means nothing elsewhere.
            let name = Path::new(&table.origin).file_name().unwrap_or_default();
            let named = format!("{}, rows {}", name.to_string_lossy(), hash(&table.rows));
            if !all.contains(&named) {
                all.push(named);
            }
        }
    }
    all.into_iter().map(|named| ("started from".into(), named)).collect()
}

/// FNV-1a of their text: the same with every compiler.
fn hash(rows: &[Row]) -> String {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:012x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, mix) >> 16)
}

/// A class, as its rows begin.
fn name(class: &ProblemClass) -> String {
    let rhs = match class.counts() {
        Some((low, usize::MAX)) => format!(" rhs={low}.."),
        Some((low, high)) if low == high => format!(" rhs={low}"),
        Some((low, high)) => format!(" rhs={low}..{high}"),
        None => String::new(),
    };
    format!("{} {} align={}{rhs}", class.dtype, class.layout, class.align)
}

/// How many rows each class has, and their cost at the measured points.
pub(super) fn of_parts(classes: &[ProblemClass], parts: &[Fit]) -> Vec<(String, String)> {
    let line = |(class, part): (&ProblemClass, &Fit)| {
        let name = format!("rows for {}", name(class));
        let (cost, worst) = (100.0 * part.cost, 100.0 * part.worst);
        let kept = match part.kept {
            0 => String::new(),
            kept => format!(" ({kept} as before)"),
        };
        (name, format!("{}{kept}, at a cost of {cost:.2} %, worst {worst:.1} %", part.rows.len()))
    };
    classes.iter().zip(parts).map(line).collect()
}

/// Whether a table fails at more shapes, or, where neither fails, costs more by half a per
/// cent: less is noise.
pub(super) fn is_worse(this: &Regret, other: &Regret) -> bool {
    this.failed > other.failed
        || this.failed + other.failed == 0 && this.geomean > other.geomean + 0.005
}

/// Whether it is so much worse, on enough shapes, that it must not replace the other.
pub(super) fn is_refused(this: &Regret, other: &Regret) -> bool {
    let far = this.shapes >= 8 && this.geomean > other.geomean + 0.02;
    this.failed > other.failed || far && is_worse(this, other)
}

/// What the caches held, for the header.
pub(super) fn caches(settings: &RunnerSettings) -> String {
    let kib = settings.both_to >> 10;
    match settings.mode {
        Mode::Cold if kib > 0 => {
            format!("cold; warm up to {} KiB, both up to {kib} KiB; host arrays", kib / 4)
        }
        mode => mode.name().into(),
    }
}

/// The classes in which no held-out shape was measured.
pub(super) fn unchecked(classes: &[ProblemClass], holdouts: &[Holdout]) -> Vec<ProblemClass> {
    let of = |class: &ProblemClass| {
        let here = |h: &&Holdout| class.holds(&h.result.desc);
        Regret::of(1, &holdouts.iter().filter(here).cloned().collect::<Vec<_>>())
    };
    classes.iter().copied().filter(|class| of(class).shapes == 0).collect()
}

pub(super) fn per_class(
    say: &mut impl Write,
    classes: &[ProblemClass],
    holdouts: &[Holdout],
) -> io::Result<()> {
    for a in classes {
        let here = |h: &&Holdout| a.holds(&h.result.desc);
        let part: Vec<Holdout> = holdouts.iter().filter(here).cloned().collect();
        writeln!(say, "  {}: {}", name(a), Regret::of(1, &part))?;
    }
    Ok(())
}

/// Prints how many choices would change.
pub(super) fn changes(
    say: &mut impl Write,
    device: &Device,
    table: &Table,
    known: &Measurements,
) -> io::Result<()> {
    let differs = |desc: &&Desc| {
        let old = device.tables().explain(device.backend(), desc).0;
        first_legal(table, device, desc).is_some_and(|new| new != old)
    };
    let changed = known.keys().filter(differs).count();
    writeln!(say, "{changed} of {} problems would be computed otherwise", known.len())
}

/// Where this user's table of a device lies, and the one that is there.
pub(super) fn present(device: &Device) -> anyhow::Result<(PathBuf, Option<Table>)> {
    let dir = user_dirs().into_iter().next().context("this user has no home directory")?;
    let path = dir.join(file_name(device.backend()));
    let text = read_found(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let old = text.map(|text| Table::parse(&path.display().to_string(), &text)).transpose()?;
    Ok((path, old))
}

/// Puts a table into the user's directory, and says so. Classes in which no held-out shape was measured keep
/// their present rows.
pub(super) fn install(
    device: &Device,
    table: &Table,
    unchecked: &[ProblemClass],
) -> anyhow::Result<String> {
    let (mut table, mut said) = (table.clone(), String::new());
    for class in unchecked {
        said += &format!("{} was not checked: its present rows stay\n", name(class));
        let here = (Some(class.dtype), Some(class.layout), class.align, class.counts());
        table.rows.retain(|r| (r.dtype, r.layout, r.align, r.rhs) != here);
    }
    if table.rows.is_empty() {
        bail!("nothing is installed, since nothing was checked: it takes --holdout and more time");
    }
    table.header.retain(|(key, _)| {
        let kernel = key.strip_prefix("kernel ");
        kernel.is_none_or(|k| table.rows.iter().any(|row| row.params.kernel().as_str() == k))
    });
    let (path, old) = present(device)?;
    if let Some(old) = old {
        let of = |r: &Row| (r.dtype, r.layout, r.align, r.rhs, r.batch);
        let new: Vec<_> = table.rows.iter().map(of).collect();
        let other = |r: &&Row| !new.contains(&of(r));
        let kept: Vec<Row> = old.rows.iter().filter(other).copied().collect();
        // The fingerprints of the kept rows' kernels, unless a new row names the same
        // kernel.
        for kernel in kept.iter().map(|row| kernel_key(row.params.kernel().as_str())) {
            if let (Some(then), None) = (old.header(&kernel), table.header(&kernel)) {
                let then = then.to_owned();
                table.header.push((kernel, then));
            }
        }
        table.rows.extend(kept);
    }
    write(&path, &table.to_string())?;
    Ok(said + &format!("installed in {}\n", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_of_rows_alone() {
        let rows = |text| Table::parse("t", text).unwrap().rows;
        let (one, other) = ("# a: b\nf32 row : a\n", "f32   row  : a # as before");
        assert_eq!(hash(&rows(one)), hash(&rows(other)));
        assert_ne!(hash(&rows(one)), hash(&rows("f32 row : b")));
        assert_eq!(hash(&[]), "cbf29ce48422"); // FNV-1a of nothing
    }

    fn regret(shapes: usize, geomean: f64, failed: usize) -> Regret {
        Regret { shapes, geomean, worst: 0.1, worst_at: None, failed }
    }

    #[test]
    fn a_table_is_worse_by_more_than_chance() {
        let of = |geomean, failed| regret(32, geomean, failed);
        assert!(is_worse(&of(0.061, 0), &of(0.015, 0)));
        assert!(!is_worse(&of(0.018, 0), &of(0.015, 0)));
        assert!(!is_worse(&of(0.015, 0), &of(0.061, 0)));
        // One that fails somewhere is not the better one for that.
        assert!(!is_worse(&of(0.061, 0), &of(0.0, 3)));
        assert!(is_worse(&of(0.0, 3), &of(0.061, 0)));
    }

    #[test]
    fn only_a_table_that_is_much_worse_is_refused() {
        let of = regret;
        assert!(is_refused(&of(32, 0.061, 0), &of(32, 0.015, 0)));
        assert!(!is_refused(&of(32, 0.025, 0), &of(32, 0.015, 0)));
        // Few shapes say little, but wrong bits at one are enough.
        assert!(!is_refused(&of(7, 0.061, 0), &of(7, 0.015, 0)));
        assert!(is_refused(&of(7, 0.0, 1), &of(7, 0.0, 0)));
    }
}
