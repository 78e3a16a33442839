//! How large the tree is: lines of code of each crate, tables, results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use super::source::is_code;

/// Lines that are neither blank nor a comment.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Lines {
    /// Rust that is not a test.
    pub rust: usize,
    /// The texts of kernels, for CUDA, for OpenCL or for both.
    pub kernels: usize,
    /// Rust that only tests have, benchmarks among it.
    pub tests: usize,
    /// C, C++, Fortran and Python, with their tests.
    pub other: usize,
}

/// What is counted.
#[derive(Debug, Default)]
pub struct Counts {
    /// By crate.
    pub crates: BTreeMap<String, Lines>,
    /// Bytes of the tables of parameters, and how many there are.
    pub tables: (usize, usize),
}

/// Crates that are tests as a whole.
const OF_TESTS: [&str; 2] = ["gemv-testkit", "fuzz"];

impl Counts {
    /// `shipped`: the files that the crates' roots lead to without their tests.
    pub fn of(files: &BTreeMap<PathBuf, String>, shipped: &BTreeSet<PathBuf>) -> Counts {
        let mut counts = Counts::default();
        // Of a crate outside of the workspace no root is known.
        let rooted: BTreeSet<String> = shipped.iter().map(|file| of(file)).collect();
        for (file, text) in files {
            let extension = file.extension().unwrap_or_default().to_string_lossy();
            let name = of(file);
            let is_test = below(file, "tests") || OF_TESTS.contains(&&*name);
            let code = text.lines().filter(|line| is_code(line)).count();
            if extension == "txt" {
                if !is_test {
                    counts.tables = (counts.tables.0 + text.len(), counts.tables.1 + 1);
                }
                continue;
            }
            let lines = counts.crates.entry(name).or_default();
            match &*extension {
                "rs" => {
                    let is_test = is_test
                        || below(file, "benches")
                        || below(file, "src")
                            && !shipped.contains(file)
                            && rooted.contains(&of(file));
                    let tests = if is_test { code } else { in_tests(text) };
                    lines.rust += code - tests;
                    lines.tests += tests;
                }
                "cu" | "cuh" | "cl" | "k" => lines.kernels += code,
                "h" if below(file, "kernels") => lines.kernels += code,
                "py" => {
                    let hash = |line: &&str| line.trim_start().starts_with('#');
                    lines.other += code - text.lines().filter(hash).count();
                }
                _ => lines.other += code,
            }
        }
        counts
    }

    /// Of several crates together.
    pub fn sum<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Lines {
        let all = names.into_iter().filter_map(|name| self.crates.get(name));
        all.fold(Lines::default(), |sum, of| Lines {
            rust: sum.rust + of.rust,
            kernels: sum.kernels + of.kernels,
            tests: sum.tests + of.tests,
            other: sum.other + of.other,
        })
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<22} {:>6} {:>8} {:>7} {:>7}",
            "lines of code", "Rust", "kernels", "tests", "other"
        )?;
        let mut line = |name: &str, of: Lines| {
            writeln!(
                f,
                "{name:<22} {:>6} {:>8} {:>7} {:>7}",
                of.rust, of.kernels, of.tests, of.other
            )
        };
        for (name, of) in &self.crates {
            line(name, *of)?;
        }
        line(
            &format!("all {} crates", self.crates.len()),
            self.sum(self.crates.keys().map(String::as_str)),
        )?;
        line("gemv-core, gemv-desc", self.sum(["gemv-core", "gemv-desc"]))?;
        writeln!(f, "tables: {} kB in {} files", self.tables.0 / 1000, self.tables.1)
    }
}

/// The crate of a file.
fn of(file: &Path) -> String {
    let first = file.iter().next().unwrap_or_default().to_string_lossy();
    // The root of the workspace is a crate, too.
    if ["src", "tests", "benches"].contains(&&*first) { "gemv".into() } else { first.into_owned() }
}

fn below(file: &Path, folder: &str) -> bool {
    file.iter().any(|part| part == folder)
}

/// The lines of code of what only tests have, in a file that has more: each item behind `#[cfg(test)]`. The text is as
/// rustfmt writes it, so an item ends in the column in which it begins.
fn in_tests(text: &str) -> usize {
    let (mut lines, mut count) = (text.lines(), 0);
    while let Some(line) = lines.next() {
        let rest = line.trim_start();
        if !rest.starts_with("#[cfg(test)]") && !rest.starts_with("#[cfg(all(test") {
            continue;
        }
        let column = line.len() - rest.len();
        count += 1;
        for line in lines.by_ref() {
            count += usize::from(is_code(line));
            let rest = line.trim_start();
            let is_end = rest.ends_with([';', '}']) && !rest.starts_with("//");
            if line.len() - rest.len() == column && is_end {
                break;
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_of_one_kind() {
        let rust = "\
//! About.
use a::b;

#[cfg(test)]
mod whole;
pub fn f() {} // a comment behind code
#[cfg(test)]
mod tests {
    // why
    fn f() {
    }
}
impl A {
    #[cfg(test)]
    fn g(
        &self,
    ) {
    }
    fn h(&self) {}
}
";
        let files = [
            ("gemv-x/src/lib.rs", rust),
            ("gemv-x/src/whole.rs", "fn t() {}\n"),
            ("gemv-x/tests/a.rs", "fn t() {}\n\n"),
            ("gemv-x/examples/a.rs", "fn main() {}"),
            ("gemv-x/build.rs", "fn main() {}"),
            ("gemv-x/src/kernels/a.k", "// what\nKERNEL() {\n}\n"),
            ("gemv-x/src/kernels/a.h", "\n#define A\n"),
            ("gemv-x/include/x.h", "void f();\n"),
            ("gemv-x/tests/a.py", "# why\nf()\n"),
            ("gemv-x/tables/a.txt", "row"),
            ("gemv-x/tests/tables/a.txt", "row"),
            ("gemv-testkit/src/lib.rs", "fn f() {}"),
            ("benches/a.rs", "fn main() {}"),
            ("src/lib.rs", "use b;"),
        ];
        let files = files.map(|(p, t)| (p.into(), t.to_owned())).into();
        let shipped = ["gemv-x/src/lib.rs", "src/lib.rs"].map(PathBuf::from).into();
        let counts = Counts::of(&files, &shipped);
        let of = |rust, kernels, tests, other| Lines { rust, kernels, tests, other };
        // Tests: mod whole, mod tests, and g, each with its attribute; then two files.
        assert_eq!(counts.crates["gemv-x"], of(5 + 2, 3, 2 + 5 + 5 + 2, 2));
        assert_eq!(counts.crates["gemv-testkit"], of(0, 0, 1, 0));
        assert_eq!(counts.crates["gemv"], of(1, 0, 1, 0));
        assert_eq!(counts.tables, (3, 1));
        assert_eq!(counts.sum(["gemv", "gemv-testkit"]), of(1, 0, 2, 0));
    }
}
