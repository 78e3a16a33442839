//! Which parameters of the published kernels `gemv bench` measures: all of them take hours.

use std::collections::{HashMap, HashSet};

use crate::tuner::{ProblemResult, Runner, SearchSettings, Trial, search};
use gemv::unstable::{Desc, Name, Params};
use gemv_baselines::Scan;

/// Parameters of each kernel that have a value of an argument which no earlier ones have.
pub(super) fn selection(all: &[Params]) -> Vec<Params> {
    let mut seen = HashSet::new();
    let mut fresh = |p: &Params| {
        let arg = |(name, value): (String, u32)| seen.insert((p.kernel(), name, value));
        p.args().map(arg).filter(|new| *new).count() > 0
    };
    all.iter().filter(|p| fresh(p)).copied().collect()
}

/// The ranges of the published kernels' arguments.
struct Space {
    /// The first parameters of each kernel.
    bases: Vec<Params>,
    /// The greatest value of each argument.
    most: HashMap<(Name, String), u32>,
}

impl Space {
    fn of(all: &[Params]) -> Space {
        let mut space = Space { bases: Vec::new(), most: HashMap::new() };
        for p in all {
            if space.bases.iter().all(|b| b.kernel() != p.kernel()) {
                space.bases.push(*p);
            }
            for (key, value) in p.args() {
                let most = space.most.entry((p.kernel(), key)).or_default();
                *most = value.max(*most);
            }
        }
        space
    }

    /// The arguments that differ from the kernel's first parameters, and whether each has
    /// its greatest value.
    fn other(&self, p: &Params) -> Vec<(String, bool)> {
        let base = self.bases.iter().find(|b| b.kernel() == p.kernel()).expect("each has one");
        let other = p.args().filter(|(k, v)| base.get(k) != Some(*v));
        other.map(|(k, v)| (k.clone(), self.most.get(&(p.kernel(), k)) == Some(&v))).collect()
    }
}

/// The published scans: each argument of every kernel over all its values, and what [`Scan`]
/// adds.
pub(super) fn scans(all: &[Params], scan: &dyn Fn(&str) -> Scan) -> Vec<Params> {
    let space = Space::of(all);
    let part = |p: &&Params| {
        let other = space.other(p);
        let more = match scan(p.kernel().as_str()) {
            Scan::None => return false,
            Scan::Each => false,
            Scan::Grid(args) => other.iter().all(|(k, _)| args.contains(&&**k)),
            Scan::AtMost(arg) => other.iter().all(|(k, most)| k == arg || *most),
        };
        more || other.len() < 2
    };
    all.iter().filter(part).copied().collect()
}

/// Results of one element type, from which the search of the next shape starts.
#[derive(Default)]
pub(super) struct Classic {
    known: Vec<ProblemResult>,
}

/// Shapes further apart than this, in powers of two of rows or columns, do not predict each
/// other.
pub(super) const FAR: f64 = 6.0;
/// This many of the nearest shapes count.
const NEAR: usize = 3;
/// This many of the best parameters of each.
const BEST: usize = 3;
/// A kernel is measured if its best there was at most this many times slower than the best of
/// all,
const HOPEFUL: f64 = 2.5;
/// or if it takes at most this many seconds here. That is cheap, and a kernel that is slow for
/// few columns may be the only one that splits many.
const CHEAP: f64 = 5e-3;

impl Classic {
    /// The parameters of `all` to measure for this shape. These are the best at the nearest
    /// shapes, with their neighbours in each argument, and the best of each kernel there,
    /// with its first parameters and the greatest value of each argument. With no near
    /// shape it is a selection that has every value of each argument.
    ///
    /// What was slow at the near shapes and is expensive here is skipped: one thread a row,
    /// where there is one row, takes seconds.
    pub(super) fn candidates(&self, desc: &Desc, all: &[Params]) -> Vec<Params> {
        let times = |a: usize, b: usize| a.max(1) as f64 / b.max(1) as f64;
        let log = |a: usize, b: usize| times(a, b).log2().abs();
        let far = |d: &Desc| log(d.m, desc.m).max(log(d.n, desc.n));
        let alike = |c: &&ProblemResult| (c.desc.dtype, c.desc.layout) == (desc.dtype, desc.layout);
        let mut near: Vec<&ProblemResult> = self.known.iter().filter(alike).collect();
        near.retain(|c| far(&c.desc) <= FAR && c.best().is_some());
        near.sort_by(|a, b| far(&a.desc).total_cmp(&far(&b.desc)));
        near.truncate(NEAR);
        if near.is_empty() {
            return selection(all);
        }
        // The same for every shape, so nothing more is compiled.
        let space = Space::of(all);
        let end = |p: &Params| matches!(&space.other(p)[..], [] | [(_, true)]);
        let ends: Vec<Params> = selection(all).into_iter().filter(end).collect();
        let (mut candidates, mut kernels) = (Vec::new(), HashSet::new());
        for result in near {
            let mut trials: Vec<&Trial> = result.trials.iter().collect();
            trials.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
            candidates.extend(trials.iter().take(BEST).map(|t| t.params));
            let best = result.best().expect("kept above");
            candidates.extend(beside(&best.params, all));
            // How much longer one thread for all of it could take.
            let grown =
                times(desc.m, result.desc.m).max(1.0) * times(desc.n, result.desc.n).max(1.0);
            for t in trials {
                let cheap = t.seconds * grown <= CHEAP || t.seconds <= HOPEFUL * best.seconds;
                // The nearest shape that has the kernel decides.
                if kernels.insert(t.params.kernel()) && cheap {
                    candidates.push(t.params);
                    let same = |p: &&Params| p.kernel() == t.params.kernel();
                    candidates.extend(ends.iter().filter(same));
                }
            }
        }
        let mut seen = HashSet::new();
        candidates.retain(|p| all.contains(p) && seen.insert(*p));
        candidates
    }

    /// Finds the best of `candidates`, and keeps the result for later shapes.
    pub(super) fn search(
        &mut self,
        runner: &mut dyn Runner,
        desc: &Desc,
        candidates: &[Params],
    ) -> ProblemResult {
        let mut settings = SearchSettings::default();
        (settings.finalists, settings.rounds, settings.tie) = (4, 3, 0.05);
        let result = search(runner, desc, candidates, &[], &settings);
        self.known.push(result.clone());
        result
    }
}

/// Parameters of `all` that differ in one argument, by its next smaller or larger value.
fn beside(of: &Params, all: &[Params]) -> Vec<Params> {
    let mut beside = Vec::new();
    for (key, value) in of.args() {
        let line = |p: &&Params| {
            p.kernel() == of.kernel() && p.args().all(|(k, v)| k == key || of.get(&k) == Some(v))
        };
        let along = |p: &Params| p.get(&key).filter(|v| *v != value).map(|v| (v, *p));
        let line: Vec<(u32, Params)> = all.iter().filter(line).filter_map(along).collect();
        beside.extend(line.iter().filter(|p| p.0 < value).max_by_key(|p| p.0).map(|p| p.1));
        beside.extend(line.iter().filter(|p| p.0 > value).min_by_key(|p| p.0).map(|p| p.1));
    }
    beside
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use crate::tuner::paper::Timed;
    use gemv::Dtype;

    use super::*;

    fn space() -> Vec<Params> {
        let mut all = Vec::new();
        for block in (32..=256).step_by(32) {
            for m in 1..=8 {
                let p = Params::new("test-rows").with("block", block).with("m", m);
                all.extend([1, 2, 4, 8].map(|vec| p.with("vec", vec)));
            }
        }
        for parts in [4, 1, 2, 8, 16, 32, 64] {
            for op in [1, 0, 2] {
                let p = Params::new("test-stages").with("parts", parts).with("op", op);
                all.extend([128, 32, 64, 256].map(|block| p.with("block", block)));
            }
        }
        all.extend((1..=8).map(|vec| Params::new("test-thread").with("vec", vec)));
        for block in [128, 32, 64, 256, 512, 1024] {
            let p = Params::new("test-block-x").with("block", block);
            all.extend([1, 4, 8].map(|rows| p.with("rows", rows)));
        }
        all.extend((1..=8).map(|n| Params::new("test-columns").with("n", n)));
        all.push(Params::new("test-general"));
        all
    }

    fn scan(kernel: &str) -> Scan {
        match kernel {
            "test-general" => Scan::None,
            "test-stages" => Scan::Grid(&["parts", "op"]),
            "test-block-x" => Scan::AtMost("block"),
            _ => Scan::Each,
        }
    }

    /// On paper: the more rows, the more of them a thread should have; one thread a row is hopeless
    /// for few.
    fn seconds(desc: &Desc, p: &Params) -> f64 {
        let arg = |k| f64::from(p.get_or(k, 1));
        let (m, bytes) = ((desc.m as f64).log2(), desc.bytes() as f64);
        let away = |a: f64, b: f64| 0.05 * (a - b).abs();
        let share = match p.kernel().as_str() {
            "test-columns" if desc.m > 1 => 1.0,
            // Of one row, its columns are shared out, or everything waits for one block.
            "test-columns" => return 3e-6 + 64e-8 * arg("n"),
            _ if desc.m == 1 => return 1e-6 + 1e-9 * desc.n as f64,
            "test-rows" => {
                away(arg("block") / 32.0, 1.0 + m / 3.0)
                    + away(arg("m"), m / 2.5)
                    + away(arg("vec").log2(), 2.0)
            }
            "test-stages" => {
                0.2 + away(arg("parts").log2(), 8.0 - m / 2.0)
                    + away(arg("op"), 1.0)
                    + away(arg("block").log2(), 6.0)
            }
            _ => 1e9 / desc.m as f64,
        };
        1e-6 + bytes / 1e12 * (1.0 + share)
    }

    fn desc(m: usize, n: usize) -> Desc {
        Desc::new(Dtype::F32, m, n, (n as isize, 1), 0)
    }

    #[test]
    fn neighbours_are_asked_first_and_what_is_found_is_as_good() {
        let (all, mut classic, measured) = (space(), Classic::default(), RefCell::new(Vec::new()));
        let note = |desc: &Desc, params: &Params| {
            measured.borrow_mut().push(*params);
            seconds(desc, params)
        };
        let mut paper = Timed { candidates: space(), seconds: note };
        for (k, size) in (0..12).map(|k| 2usize.pow(k) * 16).enumerate() {
            let desc = desc(size, size);
            let candidates = classic.candidates(&desc, &all);
            assert!(candidates.len() <= 60, "{}", candidates.len());
            measured.borrow_mut().clear();
            let found = classic.search(&mut paper, &desc, &candidates).best().unwrap().seconds;
            assert!(
                k == 0 || measured.borrow().iter().all(|p| p.kernel().as_str() != "test-thread")
            );
            let times = all.iter().map(|p| seconds(&desc, p));
            let best = times.fold(f64::INFINITY, f64::min);
            assert!(found <= 1.1 * best, "{desc}: {found} of {best}");
        }
        // What is slow for few columns may be the only one for many.
        let mut one = Classic::default();
        for n in [36, 1312, 47296, 1710384] {
            let candidates = one.candidates(&desc(1, n), &all);
            let found = one.search(&mut paper, &desc(1, n), &candidates);
            let (wide, best) = (n > 10_000, found.best().unwrap().params.to_string());
            assert_eq!(best == "test-columns n=1", wide, "{n}: {best}");
        }
        // What is far away, or of another layout, says nothing.
        assert_eq!(classic.candidates(&desc(1, 1 << 22), &all), selection(&all));
        let col = Desc::new(Dtype::F32, 512, 512, (1, 512), 0);
        assert_eq!(classic.candidates(&col, &all), selection(&all));
    }

    #[test]
    fn a_selection_has_every_value_and_scans_have_whole_lines() {
        let all = space();
        let (few, scans) = (selection(&all), scans(&all, &scan));
        for p in &all {
            for (key, value) in p.args() {
                let has = |q: &&Params| q.kernel() == p.kernel() && q.get(&key) == Some(value);
                assert!(few.iter().any(|q| has(&q)), "{p}");
                let general = p.kernel().as_str() == "test-general";
                assert!(general || scans.iter().any(|q| has(&q)), "{p}");
            }
        }
        let count = |name: &str| scans.iter().filter(|p| p.kernel().as_str() == name).count();
        // Blocks, rows and widths; parts by op, and blocks; blocks for the first and the last rows,
        // and the rows between.
        assert_eq!((count("test-rows"), count("test-stages")), (8 + 7 + 3, 7 * 3 + 3));
        assert_eq!((count("test-block-x"), count("test-general")), (2 * 6 + 1, 0));
    }

    #[test]
    fn neighbours_are_one_step_away() {
        let of: Params = "test-rows block=32 m=3 vec=8".parse().unwrap();
        let names: Vec<String> = beside(&of, &space()).iter().map(Params::to_string).collect();
        let want = [
            "block=64 m=3 vec=8",
            "block=32 m=2 vec=8",
            "block=32 m=4 vec=8",
            "block=32 m=3 vec=4",
        ];
        assert_eq!(names, want.map(|w| format!("test-rows {w}")));
    }
}
