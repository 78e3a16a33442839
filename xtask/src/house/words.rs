//! `unsafe` outside its folders, kernels' names outside their own files, and functions of OpenCL that have to be inlined.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::source::{self, Token};

/// Whether a file is below one of these folders, or is one of these files.
pub fn below(file: &Path, places: &[&str]) -> bool {
    places.iter().any(|p| file.starts_with(p))
}

/// Whether a file has the word `unsafe`, as more than a lint's name.
pub fn is_unsafe(text: &str) -> Result<bool> {
    Ok(source::tokens(text, false)?.iter().any(|t| t.is("unsafe")))
}

/// Whether a file prints by a macro that panics where the reader has left or the disk is full. Its tests may.
pub fn prints(text: &str) -> Result<bool> {
    let code = source::tokens(text, true)?;
    let is_print =
        |t: &[Token]| (t[0].is("println") || t[0].is("print")) && t[1] == Token::Mark('!');
    Ok(code.windows(2).any(is_print))
}

/// The lines of examples in the documentation that name gemv-core.
pub fn examples_of_core(text: &str) -> Vec<usize> {
    let (mut lines, mut is_example) = (Vec::new(), false);
    for (k, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or(line.strip_prefix("//!"));
        match doc.map(str::trim_start) {
            Some(doc) if doc.starts_with("```") => is_example = !is_example,
            Some(doc) if is_example && doc.contains("gemv_core") => lines.push(k + 1),
            Some(_) => {}
            None => is_example = false,
        }
    }
    lines
}

/// Whether a crate's root denies unsafe code.
pub fn denies_unsafe(text: &str) -> Result<bool> {
    let denies = |a: &Vec<Token>| {
        a.first().is_some_and(|t| t.is("deny") || t.is("forbid"))
            && a.iter().any(|t| t.is("unsafe_code"))
    };
    Ok(source::inner_attributes(text)?.iter().any(denies))
}

/// The functions of an OpenCL text that are not INLINED though they have a barrier, or a pointer to local memory: the known
/// bug `pocl-inline`.
pub fn not_inlined(text: &str) -> Vec<String> {
    let starts = text.match_indices("STATIC ").map(|(at, _)| at);
    let starts = starts.filter(|&at| at == 0 || text[..at].ends_with('\n'));
    let function = |at: usize| {
        let (head, rest) = text[at..].split_once('(')?;
        let (parameters, rest) = rest.split_once('{')?;
        // A declaration, or no function.
        if head.contains([';', '=', '#']) || parameters.contains(';') {
            return None;
        }
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        let body = &rest[..end.unwrap_or(rest.len())];
        let spoiled = parameters.contains("LOCAL_PTR(")
            || ["BARRIER()", "BARRIER_GLOBAL()", "barrier("].iter().any(|b| body.contains(b));
        let name = head.split_whitespace().last()?;
        (spoiled && !head.contains("INLINED")).then(|| name.to_string())
    };
    starts.filter_map(function).collect()
}

/// Words that are also names of kernels. Such a name counts only where it can mean nothing but a
/// kernel, and never in a test: a double's kernel may be called anything.
const WORDS: [&str; 4] = ["row", "col", "strided", "read"];

/// Kernels' names, and the files that may have them as literals.
#[derive(Debug, Default)]
pub struct Kernels {
    /// The files that describe a kernel.
    pub own: BTreeMap<String, BTreeSet<PathBuf>>,
    /// The crates that describe it, or have a table that names it: their tests may name it.
    pub crates: BTreeMap<String, BTreeSet<PathBuf>>,
}

impl Kernels {
    /// Notes the kernels that a source file of a crate describes: `Kernel { name: ".." }`.
    pub fn describe(&mut self, of: &Path, file: &Path, text: &str) -> Result<()> {
        let code = source::tokens(text, true).with_context(|| file.display().to_string())?;
        for (i, window) in code.windows(2).enumerate() {
            let [Token::Word(name), Token::Open('{')] = window else { continue };
            if !matches!(name.as_str(), "Kernel" | "KernelInfo") {
                continue;
            }
            let field = [Token::Word("name".into()), Token::Mark(':')];
            if let Some(Token::Text(name)) = code.get(i + 4)
                && code[i + 2..i + 4] == field
            {
                self.own.entry(name.clone()).or_default().insert(file.to_path_buf());
                self.crates.entry(name.clone()).or_default().insert(of.to_path_buf());
            }
        }
        Ok(())
    }

    /// Notes the kernels that a table of a crate names.
    pub fn table(&mut self, of: &Path, text: &str) {
        let rows = text.lines().map(|l| l.split('#').next().unwrap_or_default());
        for (_, params) in rows.filter_map(|l| l.split_once(" : ")) {
            if let Some(name) = params.split_whitespace().next() {
                self.crates.entry(name.to_owned()).or_default().insert(of.to_path_buf());
            }
        }
    }

    /// The kernels that a file names and may not. `test` is whether the file is a test.
    pub fn strangers(
        &self,
        of: &Path,
        file: &Path,
        text: &str,
        test: bool,
    ) -> Result<BTreeSet<String>> {
        let code = source::tokens(text, true).with_context(|| file.display().to_string())?;
        let mut found = BTreeSet::new();
        for (i, token) in code.iter().enumerate() {
            let Token::Text(text) = token else { continue };
            let mut words = text.split_whitespace();
            let Some(name) = words.next().filter(|n| self.crates.contains_key(*n)) else {
                continue;
            };
            let rest: Vec<&str> = words.collect();
            let params = rest.iter().all(|w| w.contains('='));
            let word = WORDS.contains(&name) && (test || rest.is_empty() && !made(&code[..i]));
            let in_crate = self.crates[name].contains(of);
            let own = match self.own.get(name) {
                Some(own) => own.contains(file),
                None => in_crate,
            };
            let may = own || (test && in_crate);
            if params && !word && !may {
                found.insert(name.to_owned());
            }
        }
        Ok(found)
    }
}

/// Whether what comes before a literal makes parameters or a name of it: `Params::new("row")`.
fn made(before: &[Token]) -> bool {
    let [.., of, Token::Mark(':'), Token::Mark(':'), new, Token::Open('(')] = before else {
        return false;
    };
    new.is("new") && (of.is("Params") || of.is("Name"))
}
