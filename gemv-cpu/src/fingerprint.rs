//! A hash of the text of each kernel: what a row of a tuned table rests on.

use crate::kernels::{KERNELS, SHARED_TEXT};

/// A short hash of a kernel's source text and arguments, or `None` if there is no such kernel.
///
/// Comments and white space do not count. A table stores the hash, so that a row of a kernel that has changed since can
/// be told.
///
/// ```
/// let row = gemv_cpu::fingerprint("row").expect("a kernel");
/// assert_eq!(row.len(), 16);
/// assert_ne!(gemv_cpu::fingerprint("col"), Some(row));
/// assert_eq!(gemv_cpu::fingerprint("no-such-kernel"), None);
/// ```
pub fn fingerprint(kernel: &str) -> Option<String> {
    let kernel = KERNELS.iter().find(|k| k.name == kernel)?;
    let mut hash = Fnv::new();
    for text in SHARED_TEXT.iter().chain(kernel.text) {
        hash_code(text, &mut hash);
    }
    format!("{} {:?}", kernel.name, kernel.args).bytes().for_each(|b| hash.byte(b));
    Some(format!("{:016x}", hash.0))
}

/// FNV-1a: the same in every build, unlike the standard library's hasher.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn byte(&mut self, b: u8) {
        self.0 = (self.0 ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    }
}

/// Hashes Rust text without line comments. White space counts as one space, and not at all between lines.
fn hash_code(text: &str, hash: &mut Fnv) {
    for line in text.lines() {
        for word in without_comment(line).split_whitespace() {
            word.bytes().for_each(|b| hash.byte(b));
            hash.byte(b' ');
        }
    }
}

/// The line up to `//` outside of a string.
fn without_comment(line: &str) -> &str {
    let (mut in_string, mut escaped) = (false, false);
    for (i, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            '/' if !in_string && line[i..].starts_with("//") => return &line[..i],
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(text: &str) -> u64 {
        let mut hash = Fnv::new();
        hash_code(text, &mut hash);
        hash.0
    }

    #[test]
    fn every_kernel_has_one_of_its_own() {
        let mut all: Vec<_> = KERNELS.iter().map(|k| fingerprint(k.name).unwrap()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), KERNELS.len());
    }

    #[test]
    fn comments_and_layout_do_not_count_and_code_does() {
        let code = "fn f() {\n    g(\"// text\"); // why\n}\n";
        assert_eq!(hash(code), hash("/// What.\nfn f() {\n  g(\"// text\");\n\n}"));
        assert_ne!(hash(code), hash("fn f() { g(\"//\"); }"));
        assert_ne!(hash(code), hash("fn f() { h(\"// text\"); }"));
    }
}
