//! The page: one file, without scripts, that loads nothing.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::Context;

use super::plot::{Picture, escape};
use crate::files::write;

/// A table of texts.
pub(super) struct Table {
    pub(super) caption: &'static str,
    pub(super) head: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

pub(super) struct Page {
    title: String,
    body: String,
    contents: String,
    sections: usize,
    plots: usize,
    /// What this section has no picture of, and why.
    left_out: Vec<String>,
    /// Pictures as files: texts by their names.
    files: BTreeMap<String, String>,
}

const STYLE: &str = "
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1320px; padding: 0 1rem;
  color: #1a1a1a; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc }
.plots { display: flex; flex-wrap: wrap; gap: 1.2rem }
figure { margin: 0; width: min(420px, 100%) } figure svg { width: 100%; height: auto }
figcaption { font-weight: 600; font-size: 14px; min-height: 2.7em }
.legend { font-size: 13px; margin: 0; padding: 0 }
.legend li { display: inline-block; margin-right: 1em; list-style: none }
.legend i { display: inline-block; width: 1em; height: 1em; vertical-align: -2px; margin-right: .35em;
  border: 1px solid #888 }
.plots > p { width: 100%; margin: .3rem 0; overflow-wrap: anywhere } .wide { width: 100%; overflow-x: auto }
table { border-collapse: collapse; font-size: 14px; margin: 1rem 0 } td { white-space: nowrap }
th, td { padding: .15rem .7rem; border-bottom: 1px solid #ddd; text-align: left }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem }
.mark:hover { stroke: #000; stroke-width: 2 }
.headline { font-size: 1.15rem } .busy { font-weight: 600 } .left, .from, dd { font-size: 14px; color: #555 }
dt { font-weight: 600 } summary { cursor: pointer }
code { font-size: 13px } details { margin: 1rem 0; width: 100% } details .plots { margin-top: 1rem }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818 } .left, .from, dd { color: #aaa }
  a { color: #8ab4f8 } h2 { border-color: #444 } th, td { border-color: #333 }
  .mark:hover { stroke: #fff }
  svg text[fill=\"#000000\"] { fill: #ddd } svg [stroke=\"#000000\"] { stroke: #aaa }
  svg > rect[fill=\"#FFFFFF\"] { fill: #181818 } svg [stroke=\"#FFFFFF\"] { stroke: #181818 }
  svg [stroke=\"#E1E1E1\"] { stroke: #3a3a3a } }
@media (max-width: 480px) { body { margin: 1rem auto; padding: 0 .6rem } h1 { font-size: 1.3rem }
  figcaption { min-height: 0 } th, td { padding: .15rem .4rem } }
";

/// What the words of the page mean.
const WORDS: &str = "<details><summary>What the words mean</summary><dl>\
<dt>cold, warm</dt><dd>Cold: each product takes other operands, so no cache holds them. Warm: each \
takes the same. Operands are resident on the device; for a CPU's table they are host arrays.</dd>\
<dt>share of the read bandwidth</dt><dd>The time of only reading as many bytes, by the time of the \
product. A product reads each entry of the matrix once, so 100 % is the ceiling. gemv bench measures both \
in the same rounds; a small excess is noise, or operands that a cache still held.</dd>\
<dt>spread</dt><dd>How far the middle half of the rounds lies apart, as a share of the median, which is the \
time.</dd>\
<dt>GB/s, KiB, us</dt><dd>10^9 bytes per second; 1024 bytes, and MiB and GiB 1024 times as many each; \
microseconds.</dd>\
<dt>aligned</dt><dd>Each line of the matrix (a row if row-major, a column if column-major) begins at a \
multiple of 16 bytes.</dd></dl></details>\n";

impl Page {
    pub(super) fn new(title: &str) -> Page {
        let title = title.to_owned();
        Page {
            title,
            body: String::new(),
            contents: String::new(),
            sections: 0,
            plots: 0,
            left_out: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    /// How many figures there are.
    pub(super) fn plots(&self) -> usize {
        self.plots
    }

    pub(super) fn section(&mut self, title: &str) {
        if self.sections > 0 {
            self.body.push_str("</div></section>\n");
        }
        self.sections += 1;
        let (id, title) = (self.sections, escape(title));
        let _ = writeln!(self.contents, "<li><a href=\"#s{id}\">{title}</a></li>");
        let _ = writeln!(self.body, "<section id=\"s{id}\"><h2>{title}</h2><div class=\"plots\">");
    }

    /// A paragraph of this class.
    pub(super) fn paragraph(&mut self, class: &str, text: &str) {
        let _ = writeln!(self.body, "<p class=\"{class}\">{}</p>", escape(text));
    }

    /// Notes what there is no picture of, and why.
    pub(super) fn leave_out(&mut self, why: &str) {
        self.left_out.push(why.into());
    }

    /// Says what was noted since the last time.
    pub(super) fn tell_left_out(&mut self) {
        for why in std::mem::take(&mut self.left_out) {
            self.paragraph("left", &format!("Left out: {why}."));
        }
    }

    /// What is folded away until it is asked for: everything until `unfold`.
    pub(super) fn fold(&mut self, summary: &str, is_open: bool) {
        let (summary, open) = (escape(summary), if is_open { " open" } else { "" });
        let _ =
            writeln!(self.body, "<details{open}><summary>{summary}</summary><div class=\"plots\">");
    }

    pub(super) fn unfold(&mut self) {
        self.body.push_str("</div></details>\n");
    }

    /// A figure; `kind` says which sort of picture it is, for whoever looks for one.
    pub(super) fn plot(&mut self, kind: &str, caption: &str, picture: &Picture) {
        self.plots += 1;
        // Two devices may have names of the same letters.
        let mut names = (1..).map(|number| file_name(caption, number));
        let name =
            names.find(|name| !self.files.contains_key(name)).expect("there is no last number");
        self.files.insert(name, picture.file(caption));
        let (id, caption, svg) = (self.plots, escape(caption), picture.html());
        let _ = writeln!(
            self.body,
            "<figure id=\"p{id}\" data-plot=\"{kind}\"><figcaption>{caption}</figcaption>{svg}</figure>"
        );
    }

    /// Those tables that there are, folded together.
    pub(super) fn tables(&mut self, tables: &[Option<Table>], is_open: bool) {
        if tables.iter().flatten().next().is_none() {
            return;
        }
        self.fold("Tables", is_open);
        tables.iter().flatten().for_each(|table| self.table(table));
        self.unfold();
    }

    fn table(&mut self, Table { caption, head, rows }: &Table) {
        let line = |tag: &str, cells: &mut dyn Iterator<Item = String>| {
            let cells: String = cells.map(|c| format!("<{tag}>{c}</{tag}>")).collect();
            format!("<tr>{cells}</tr>\n")
        };
        // On a narrow screen the table moves, not the page.
        let start = "<div class=\"wide\"><table>";
        let _ = writeln!(self.body, "{start}<caption>{}</caption>", escape(caption));
        self.body.push_str(&line("th", &mut head.iter().map(|h| escape(h))));
        for row in rows {
            self.body.push_str(&line("td", &mut row.iter().map(|c| escape(c))));
        }
        self.body.push_str("</table></div>\n");
    }

    /// Writes every picture to a file of its own, named by its caption.
    pub(super) fn write_pictures(&self, dir: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for (name, text) in &self.files {
            write(&dir.join(name), text)?;
        }
        Ok(())
    }

    pub(super) fn html(&self) -> String {
        let Page { title, body, contents, sections, plots, .. } = self;
        let end = if *sections > 0 { "</div></section>" } else { "" };
        // Of one section no list is needed.
        let contents = if *sections > 1 { format!("<ul>{contents}</ul>\n") } else { String::new() };
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title>\
             <style>{STYLE}</style></head>\n<body data-plots=\"{plots}\"><h1>{title}</h1>\n\
             <p>Point at a cell or a mark for its numbers. Times are medians of interleaved rounds. A time \
             counts only if the result was right.</p>\n{contents}{body}{end}\n{WORDS}</body></html>\n"
        )
    }
}

/// `NVIDIA H200, f32 row: wide` as `nvidia-h200-f32-row-wide.svg`, the second of this name with `-2`.
fn file_name(caption: &str, number: usize) -> String {
    let words = caption.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
    let mut words: Vec<String> = words.map(str::to_lowercase).collect();
    words.extend((number > 1).then(|| number.to_string()));
    words.join("-") + ".svg"
}
