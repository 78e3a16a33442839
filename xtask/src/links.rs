//! Links that lead nowhere: in the pages that rustdoc has made, and between the project's Markdown files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Follows every link of the pages of this project's crates: to a page, and to a place on it.
pub fn pages(doc: &Path) -> Result<()> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(doc)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("gemv") && path.is_dir() {
            walk(&path, ".html", &mut files)?;
        }
    }
    ensure!(!files.is_empty(), "{} has no page of this project", doc.display());
    let (mut links, mut dead) = (0, Vec::new());
    let mut texts: BTreeMap<PathBuf, Option<String>> = BTreeMap::new();
    let mut moved: BTreeMap<PathBuf, Option<PathBuf>> = BTreeMap::new();
    for file in &files {
        let text = std::fs::read_to_string(file)?;
        let targets: BTreeSet<&str> =
            ["href=\"", "src=\""].iter().flat_map(|attribute| quoted(&text, attribute)).collect();
        // Scripts, and what they put together, are none.
        let is_link = |target: &&str| {
            is_relative(target) && !target.contains("${") && !target.ends_with(".js")
        };
        for target in targets.into_iter().filter(is_link) {
            links += 1;
            let (path, place) = target.split_once('#').unwrap_or((target, ""));
            let mut to = if path.is_empty() { file.clone() } else { joined(file, path) };
            // A page of a private module leads on to that of its item.
            if !place.is_empty() {
                let next = moved.entry(to.clone()).or_insert_with(|| redirect(&to));
                to = next.clone().unwrap_or(to);
            }
            // The views of sources have a place for each line.
            let place = if to.starts_with(doc.join("src")) { "" } else { place };
            let read = || std::fs::read_to_string(&to).ok();
            let is_there = match place.is_empty() {
                true => to.is_file(),
                false => {
                    let text = texts.entry(to.clone()).or_insert_with(read);
                    let id = format!("id=\"{place}\"");
                    text.as_ref().is_some_and(|text| text.contains(&id))
                }
            };
            if !is_there {
                let page = file.strip_prefix(doc).unwrap_or(file).display();
                dead.push(format!("{page}: {target}"));
            }
        }
    }
    dead.iter().for_each(|link| println!("{link}"));
    ensure!(dead.is_empty(), "{} links lead nowhere", dead.len());
    println!("{links} links on {} pages lead somewhere", files.len());
    Ok(())
}

/// The links of the Markdown files below a folder that lead nowhere, or out of a package whose README has them.
pub fn markdown(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    walk(root, ".md", &mut files)?;
    let mut texts = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        texts.insert(file, text);
    }
    let mut dead = Vec::new();
    for (file, text) in &texts {
        let shown = file.strip_prefix(root).context("a file below the folder")?;
        // Rustdoc reads those, and `pages` what it has made of them.
        if shown.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        let folder = file.parent().context("a folder")?;
        let travels =
            folder != root && shown.ends_with("README.md") && folder.join("Cargo.toml").exists();
        for target in targets(text) {
            let (path, place) = target.split_once('#').unwrap_or((&target, ""));
            let to = if path.is_empty() { file.clone() } else { joined(file, path) };
            let is_place = || match texts.get(&to) {
                Some(text) => headings(text).any(|heading| heading == place),
                None => false,
            };
            if !to.exists() || !place.is_empty() && !is_place() {
                dead.push(format!("{}: {target} leads nowhere", shown.display()));
            } else if travels && !to.starts_with(folder) {
                dead.push(format!("{}: {target} is not in the package", shown.display()));
            }
        }
    }
    Ok(dead)
}

fn walk(folder: &Path, end: &str, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        entries.push(entry?.path());
    }
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_hidden = name.starts_with('.') && name != ".github";
        if path.is_dir() && !is_hidden && !name.starts_with("target") {
            walk(&path, end, files)?;
        } else if name.ends_with(end) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether it is a page of this project or a place on one.
fn is_relative(target: &str) -> bool {
    let scheme = target.split(['/', '#', '?']).next().unwrap_or_default();
    !target.is_empty() && !scheme.contains(':') && !target.starts_with("//")
}

/// Where a link of a file leads.
fn joined(file: &Path, target: &str) -> PathBuf {
    let target = target.split('?').next().unwrap_or_default();
    let mut path = file.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    if target.ends_with('/') { path.join("index.html") } else { path }
}

/// Where a page sends its readers.
fn redirect(page: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(page).ok()?;
    let (_, rest) = text.split_once("http-equiv=\"refresh\" content=\"0;URL=")?;
    Some(joined(page, rest.split('"').next()?))
}

/// What stands between quotes behind an attribute.
fn quoted<'a>(text: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(attribute).skip(1).filter_map(|rest| rest.split('"').next())
}

/// The relative targets of a Markdown text, without those in code.
fn targets(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        let line: String = line.split('`').step_by(2).collect();
        let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let all = links.chain(quoted(&line, "src=\"")).chain(quoted(&line, "href=\""));
        found.extend(all.filter(|target| is_relative(target)).map(str::to_owned));
    }
    found
}

/// The names by which the headings of a Markdown text are linked to: small letters, digits, and a hyphen for each space.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_markdown() {
        let text = "[a](b.md#c-d) `[x](y)` <img src=\"p.png\"> [m](mailto:a@b) [h](https://c.d/e)\n\
                    ```\n[code](none.md)\n```\n[title](f.md \"text\") [here](#top)";
        let want = ["#top", "b.md#c-d", "f.md", "p.png"];
        assert_eq!(targets(text).into_iter().collect::<Vec<_>>(), want);
        assert_eq!(
            headings("# Programs on the H200\n## `a`, b").collect::<Vec<_>>(),
            ["programs-on-the-h200", "a-b"]
        );
    }

    #[test]
    fn a_dead_link_is_found() {
        let dir = std::env::temp_dir().join(format!("gemv-links-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("README.md", "[a](docs/a.md#one) [b](docs/b.md) [c](docs/a.md#two) [d](#e)\n# E\n");
        write("docs/a.md", "# One\n[up](../README.md#e)");
        write("part/Cargo.toml", "");
        write("part/README.md", "[up](../docs/a.md)");
        write("part/src/x.md", "[rustdoc](Knows)");
        let found = markdown(&dir).unwrap();
        assert_eq!(
            found,
            [
                "README.md: docs/a.md#two leads nowhere",
                "README.md: docs/b.md leads nowhere",
                "part/README.md: ../docs/a.md is not in the package",
            ]
        );
        write(
            "doc/gemv_x/index.html",
            "<a href=\"a.html#p\"> <a id=\"q\" href=\"#q\"> <a href=\"//x\">",
        );
        write("doc/gemv_x/a.html", "<b id=\"p\"> <a href=\"../other/\">");
        assert!(pages(&dir.join("doc")).is_err());
        write("doc/other/index.html", "");
        assert!(pages(&dir.join("doc")).is_ok());
        write("doc/gemv_x/a.html", "<b id=\"r\">");
        assert!(pages(&dir.join("doc")).is_err());
        write("doc/gemv_x/a.html", "<meta http-equiv=\"refresh\" content=\"0;URL=b/c.html\">");
        assert!(pages(&dir.join("doc")).is_err());
        write("doc/gemv_x/b/c.html", "<b id=\"p\">");
        assert!(pages(&dir.join("doc")).is_ok());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
