//! Circles of files inside one crate.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::source::{Module, Token, Tree};

/// The circles: each the files of which every one reaches every other.
///
/// What a file re-exports counts as an import of the file that defines it: for who uses the name,
/// and for the re-exporting file only if its own code uses the name too.
pub fn circles(tree: &Tree) -> Vec<BTreeSet<PathBuf>> {
    let n = tree.files.len();
    let mut reach = vec![vec![false; n]; n];
    for (path, module) in &tree.modules {
        for to in imports(tree, path, module) {
            reach[module.file][to] |= to != module.file;
        }
    }
    for k in 0..n {
        for i in 0..n {
            if reach[i][k] {
                let through = reach[k].clone();
                reach[i].iter_mut().zip(through).for_each(|(to, via)| *to |= via);
            }
        }
    }
    let mut seen = vec![false; n];
    let mut found = Vec::new();
    for i in 0..n {
        if !seen[i] && reach[i][i] {
            let members = (0..n).filter(|&j| reach[i][j] && reach[j][i]);
            let members: Vec<usize> = members.inspect(|&j| seen[j] = true).collect();
            found.push(members.into_iter().map(|j| tree.files[j].clone()).collect());
        }
    }
    found
}

/// The files that one file's code names, for a person who unties a circle.
pub fn named_by(tree: &Tree, file: &Path) -> BTreeSet<PathBuf> {
    let of_file = tree.modules.iter().filter(|(_, m)| tree.files[m.file] == file);
    of_file
        .flat_map(|(path, m)| imports(tree, path, m))
        .map(|to| tree.files[to].clone())
        .filter(|to| to != file)
        .collect()
}

/// The files that one module imports.
fn imports(tree: &Tree, at: &[String], module: &Module) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for import in &module.imports {
        let used = || module.code.iter().any(|t| t.is(&import.name));
        if !import.public || used() {
            found.extend(resolve(tree, at, &import.path, import.name.is_empty(), 0));
        }
    }
    for (path, whole) in paths(&module.code) {
        found.extend(resolve(tree, at, &path, whole, 0));
    }
    found
}

/// The paths of two names or more in flat tokens: `crate::x::Y`, `rows::run`; and whether what
/// follows is a group or a glob, which is taken for the whole module.
fn paths(code: &[Token]) -> Vec<(Vec<String>, bool)> {
    let colons =
        |i: usize| code.get(i..i + 2).is_some_and(|t| t.iter().all(|t| *t == Token::Mark(':')));
    let mut found = Vec::new();
    let mut i = 0;
    while i < code.len() {
        let Some(first) = code[i].word() else {
            i += 1;
            continue;
        };
        let after_colons = i >= 2 && colons(i - 2);
        let mut path = vec![first.to_owned()];
        i += 1;
        while colons(i)
            && let Some(next) = code.get(i + 2).and_then(Token::word)
        {
            path.push(next.to_owned());
            i += 3;
        }
        let open = |t: &Token| matches!(t, Token::Open('{') | Token::Mark('*'));
        let whole = colons(i) && code.get(i + 2).is_some_and(open);
        if !after_colons && (path.len() > 1 || whole) {
            found.push((path, whole));
        }
    }
    found
}

/// The file that defines what a path names; `None` where it lies outside the crate, or where the
/// path is that of a module alone (what is used of it counts) and `whole` is not set.
fn resolve(
    tree: &Tree,
    at: &[String],
    path: &[String],
    whole: bool,
    depth: usize,
) -> Option<usize> {
    // Two globs may name each other.
    if depth > 16 {
        return None;
    }
    let mut at = at.to_vec();
    let mut rest = path;
    let mut first = true;
    while let Some((name, tail)) = rest.split_first() {
        match name.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            name => {
                let child = [&at[..], &[name.to_owned()]].concat();
                let here = &tree.modules[&at];
                if tree.modules.contains_key(&child) {
                    at = child;
                } else if here.items.contains(name) {
                    return Some(here.file);
                } else if let Some(import) = here.imports.iter().find(|i| i.name == name) {
                    if import.path == path && first {
                        return None; // an import of another crate's name
                    }
                    let path = [&import.path[..], tail].concat();
                    return resolve(tree, &at, &path, whole, depth + 1);
                } else {
                    let globs = here.imports.iter().filter(|i| i.name.is_empty());
                    let inside = [&[name.to_owned()], tail].concat();
                    let through = globs.filter(|g| g.path != path).find_map(|glob| {
                        let path = [&glob.path[..], &inside].concat();
                        let inner = glob.path.first().is_some_and(|f| {
                            matches!(f.as_str(), "crate" | "self" | "super")
                                || tree
                                    .modules
                                    .contains_key(&[&at[..], std::slice::from_ref(f)].concat())
                        });
                        inner.then(|| resolve(tree, &at, &path, whole, depth + 1)).flatten()
                    });
                    // An associated item, a macro's name, or something of another crate.
                    return through.or((!first).then_some(here.file));
                }
            }
        }
        first = false;
        rest = tail;
    }
    whole.then(|| tree.modules[&at].file)
}
