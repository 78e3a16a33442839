//! The pictures: maps over the plane of shapes, and curves, as SVG.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use anyhow::ensure;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::colors::colormaps::ViridisRGB;

/// Colours that people with any colour vision can tell apart (Okabe and Ito).
const DISTINCT: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 228, 66),
    RGBColor(120, 120, 120),
];

/// A colour for each name, the same on every picture of a page.
#[derive(Default)]
pub(super) struct Colours(Vec<String>);

impl Colours {
    /// These names in this order, each once.
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Colours {
        let mut all: Vec<String> = Vec::new();
        for name in names {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        Colours(all)
    }

    fn index(&self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or(DISTINCT.len() - 1)
    }
}

/// The name of the curve that is no product.
pub(super) const READ: &str = "reading alone";

/// The axes of the maps of a section, so that they can be compared: the ends of rows and columns.
#[derive(Clone, Copy)]
pub(super) struct Axes {
    m: (usize, usize),
    n: (usize, usize),
}

impl Axes {
    /// Axes that hold these shapes.
    pub(super) fn of(shapes: impl Iterator<Item = (usize, usize)>) -> Axes {
        let none = (usize::MAX, 1);
        let wider = |(low, high): (usize, usize), v: usize| (low.min(v), high.max(v));
        shapes.fold(Axes { m: none, n: none }, |axes, (m, n)| Axes {
            m: wider(axes.m, m),
            n: wider(axes.n, n),
        })
    }
}

const SIZE: (u32, u32) = (420, 360);

/// Text as it may stand in HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// A transparent area with a text for the pointer.
struct Hover {
    at: (i32, i32),
    size: (i32, i32),
    text: String,
}

/// A value at each of some shapes.
#[derive(Default)]
pub(super) struct Map {
    cells: BTreeMap<(usize, usize), (f64, String)>,
    names: Vec<String>,
}

/// A point of a curve.
pub(super) struct Mark {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) hover: String,
}

/// A curve with its marks.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) marks: Vec<Mark>,
}

impl Curve {
    pub(super) fn best(&self) -> f64 {
        self.marks.iter().map(|m| m.y).fold(0.0, f64::max)
    }
}

/// A number in few characters.
fn short(v: usize) -> String {
    match v {
        _ if v >= 1024 && v.is_power_of_two() => format!("2^{}", v.ilog2()),
        0..10_000 => v.to_string(),
        10_000..1_000_000 => format!("{:.0}k", v as f64 / 1e3),
        _ => format!("{:.1}M", v as f64 / 1e6),
    }
}

/// Bytes with a binary prefix.
fn bytes(v: f64) -> String {
    let (mut v, mut unit) = (v, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if v < 1024.0 {
            break;
        }
        (v, unit) = (v / 1024.0, next);
    }
    format!("{v:.0} {unit}")
}

fn css(c: RGBColor) -> String {
    format!("#{:02x}{:02x}{:02x}", c.0, c.1, c.2)
}

/// A drawing and its legend.
pub(super) struct Picture {
    svg: String,
    legend: Vec<(RGBColor, String)>,
}

impl Picture {
    /// For a page, whose style the legend has.
    pub(super) fn html(&self) -> String {
        let entries: String = self
            .legend
            .iter()
            .map(|(c, name)| {
                format!("<li><i style=\"background:{}\"></i>{}</li>", css(*c), escape(name))
            })
            .collect();
        format!("{}<ul class=\"legend\">{entries}</ul>", self.svg)
    }

    /// As a file: caption, drawing and legend.
    pub(super) fn file(&self, caption: &str) -> String {
        const LINE: u32 = 20;
        let (width, drawing) = SIZE;
        let mut body = format!(
            "<text x=\"8\" y=\"15\" font-weight=\"600\">{}</text>\n\
             <g transform=\"translate(0 {LINE})\">{}</g>\n",
            escape(caption),
            self.svg
        );
        // As many entries a line as fit, at about 7 pixels a character.
        let (mut x, mut y) = (12, LINE + drawing + 12);
        for (colour, name) in &self.legend {
            let long = 30 + 7 * name.chars().count() as u32;
            if x > 12 && x + long > width {
                (x, y) = (12, y + LINE);
            }
            let _ = writeln!(
                body,
                "<rect x=\"{x}\" y=\"{}\" width=\"11\" height=\"11\" fill=\"{}\" stroke=\"#888\"/>\
                 <text x=\"{}\" y=\"{y}\">{}</text>",
                y - 10,
                css(*colour),
                x + 16,
                escape(name)
            );
            x += long;
        }
        let height = y + 10;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n{body}</svg>\n"
        )
    }
}

/// The logarithms of the ends of a cell: of its rows and of its columns.
struct Cell {
    m: (f64, f64),
    n: (f64, f64),
}

fn log(v: usize) -> f64 {
    (v.max(1) as f64).log2()
}

fn viridis(share: f64) -> RGBColor {
    ViridisRGB::get_color(share.clamp(0.0, 1.0))
}

/// A drawing, with its hover areas over it.
fn draw(
    paint: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> anyhow::Result<Vec<Hover>>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    let hovers = {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let hovers = paint(&area)?;
        area.present()?;
        hovers
    };
    let mut over = String::new();
    for Hover { at: (x, y), size: (width, height), text } in hovers {
        let text = escape(&text);
        let _ = write!(
            over,
            "<rect class=\"mark\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill-opacity=\"0\">\
             <title>{text}</title></rect>"
        );
    }
    if let Some(end) = svg.rfind("</svg>") {
        svg.insert_str(end, &over);
    }
    Ok(svg)
}

impl Map {
    pub(super) fn add(&mut self, m: usize, n: usize, value: f64, hover: String) {
        self.cells.insert((m, n), (value, hover));
    }

    /// A cell whose value is a name.
    pub(super) fn add_named(&mut self, m: usize, n: usize, name: &str, hover: String) {
        let index = self.names.iter().position(|k| k == name).unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        });
        self.add(m, n, index as f64, hover);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether a picture of it would have holes: among shapes that are smaller than one of its own.
    pub(super) fn is_partial(&self) -> bool {
        /// Points to each side that are looked at, and the share of them that has to lie in a cell.
        const POINTS: usize = 48;
        const FULL: f64 = 0.75;
        /// Fewer rows or columns are no plane.
        const LEAST: usize = 3;
        let different = |of: fn(&(usize, usize)) -> usize| {
            self.cells.keys().map(of).collect::<BTreeSet<usize>>().len()
        };
        if different(|key| key.0).min(different(|key| key.1)) < LEAST {
            return true;
        }
        let cells = self.rectangles();
        let ends = |of: fn((usize, usize)) -> usize| {
            let sizes = || self.cells.keys().map(|&key| log(of(key)));
            (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max))
        };
        let (rows, columns) = (ends(|key| key.0), ends(|key| key.1));
        let is_smaller =
            |x: f64, y: f64| self.cells.keys().any(|&(m, n)| y <= log(m) && x <= log(n));
        let at =
            |(low, high): (f64, f64), k: usize| low + (high - low) * k as f64 / (POINTS - 1) as f64;
        let (mut all, mut inside) = (0, 0);
        for (x, y) in (0..POINTS * POINTS).map(|k| (at(columns, k % POINTS), at(rows, k / POINTS)))
        {
            if !is_smaller(x, y) {
                continue;
            }
            all += 1;
            let holds = |cell: &Cell| {
                (cell.n.0..=cell.n.1).contains(&x) && (cell.m.0..=cell.m.1).contains(&y)
            };
            inside += usize::from(cells.iter().any(holds));
        }
        (inside as f64) < FULL * all as f64
    }

    /// Number of different values.
    pub(super) fn distinct(&self) -> usize {
        self.values().len()
    }

    fn values(&self) -> BTreeSet<u64> {
        self.cells.values().map(|c| c.0.to_bits()).collect()
    }

    /// One colour for each name.
    pub(super) fn categories(&self, axes: Axes, colours: &Colours) -> anyhow::Result<Picture> {
        let index = |v: f64| self.names.get(v as usize).map_or(0, |name| colours.index(name));
        let colour = |v: f64| DISTINCT[index(v) % DISTINCT.len()];
        let names = self.names.iter().enumerate().map(|(k, n)| (colour(k as f64), n.clone()));
        Ok(Picture { svg: self.picture(axes, &colour)?, legend: names.collect() })
    }

    /// From dark to light, over a range (that of the values, if none is given).
    pub(super) fn continuous(
        &self,
        axes: Axes,
        range: Option<(f64, f64)>,
    ) -> anyhow::Result<Picture> {
        let all = || self.cells.values().map(|c| c.0);
        let own = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
        let (low, high) = range.unwrap_or(own);
        ensure!(low.is_finite() && high.is_finite(), "a map has cells");
        let width = if high > low { high - low } else { 1.0 };
        let colour = |v: f64| viridis((v - low) / width);
        let steps = (0..=5).map(|k| {
            let v = low + width * f64::from(k) / 5.0;
            (
                colour(v),
                if range.is_some() {
                    format!("{:.0} %", 100.0 * v)
                } else {
                    format!("{v:.0} GB/s")
                },
            )
        });
        Ok(Picture { svg: self.picture(axes, &colour)?, legend: steps.collect() })
    }

    /// From dark to light, one step for each value that occurs.
    pub(super) fn levels(&self, axes: Axes) -> anyhow::Result<Picture> {
        let values: Vec<f64> = self.values().into_iter().map(f64::from_bits).collect();
        let top = values.len().max(2) - 1;
        let colour = |v: f64| {
            let rank = values.iter().position(|&w| w == v).unwrap_or(0);
            viridis(rank as f64 / top as f64)
        };
        let steps = values.iter().map(|&v| (colour(v), v.to_string()));
        Ok(Picture { svg: self.picture(axes, &colour)?, legend: steps.collect() })
    }

    /// What each cell covers.
    fn rectangles(&self) -> Vec<Cell> {
        // A cell reaches to halfway to the next one of its row or column.
        let reach = |sizes: &[usize], at: usize| {
            let k = sizes.binary_search(&at).expect("listed below");
            let half = |next: Option<&usize>| next.map(|&next| (log(next) - log(at)).abs() / 2.0);
            let low = half(k.checked_sub(1).and_then(|k| sizes.get(k)));
            let high = half(sizes.get(k + 1));
            let (low, high) = (low.or(high), high.or(low));
            (log(at) - low.unwrap_or(0.5).min(2.0), log(at) + high.unwrap_or(0.5).min(2.0))
        };
        let mut rows: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut columns: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &(m, n) in self.cells.keys() {
            rows.entry(m).or_default().push(n);
            columns.entry(n).or_default().push(m);
        }
        let of =
            |&(m, n): &(usize, usize)| Cell { m: reach(&columns[&n], m), n: reach(&rows[&m], n) };
        self.cells.keys().map(of).collect()
    }

    fn picture(&self, axes: Axes, colour: &dyn Fn(f64) -> RGBColor) -> anyhow::Result<String> {
        // Half a cell beyond the outermost sizes.
        let ends = |(low, high): (usize, usize)| {
            ((log(low) - 0.5).exp2()..(log(high) + 0.5).exp2()).log_scale()
        };
        let label = |at: f64| format!("2^{:.0}", at.log2());
        draw(|area| {
            let mut chart = ChartBuilder::on(area)
                .margin(8)
                .x_label_area_size(38)
                .y_label_area_size(58)
                .build_cartesian_2d(
                    ends(axes.n).with_key_points(ticks(axes.n)),
                    ends(axes.m).with_key_points(ticks(axes.m)),
                )?;
            chart
                .configure_mesh()
                .disable_mesh()
                .x_desc("columns")
                .y_desc("rows")
                .x_label_formatter(&|v| label(*v))
                .y_label_formatter(&|v| label(*v))
                .label_style(("sans-serif", 12))
                .draw()?;
            let mut hovers = Vec::new();
            for (cell, (value, hover)) in self.rectangles().iter().zip(self.cells.values()) {
                let corners = [(cell.n.0, cell.m.0), (cell.n.1, cell.m.1)];
                let corners = corners.map(|(x, y)| (x.exp2(), y.exp2()));
                let cell = Rectangle::new(corners, colour(*value).filled());
                chart.draw_series(std::iter::once(cell))?;
                let (left, bottom) = chart.backend_coord(&corners[0]);
                let (right, top) = chart.backend_coord(&corners[1]);
                hovers.push(Hover {
                    at: (left, top),
                    size: (right - left, bottom - top),
                    text: hover.clone(),
                });
            }
            Ok(hovers)
        })
    }
}

/// The powers of two that are labelled: every second, or every fourth of many.
fn ticks((low, high): (usize, usize)) -> Vec<f64> {
    let (low, high) = (low.max(1).next_power_of_two().ilog2(), high.max(1).ilog2());
    let step = if high.saturating_sub(low) > 12 { 4 } else { 2 };
    (low..=high).filter(|k| k % step == 0).map(|k| f64::from(k).exp2()).collect()
}

/// How the y of curves is drawn.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// From 0.
    Linear,
    /// So that what is small shows, too, over a number of bytes.
    Bytes,
    /// The same of ratios, over counts that are powers of two.
    Ratio,
}

/// The ratios that are labelled.
const RATIOS: [f64; 20] = [
    0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0,
    128.0, 256.0, 512.0,
];

/// Curves with marks over a logarithmic x. Those of one name have one colour on every picture.
pub(super) fn curves(
    (x, y): (&str, &str),
    scale: Scale,
    colours: &Colours,
    mut curves: Vec<Curve>,
) -> anyhow::Result<Picture> {
    for c in &mut curves {
        c.marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    let marks = || curves.iter().flat_map(|c| &c.marks);
    let low = marks().map(|m| m.x).fold(f64::INFINITY, f64::min);
    let high = marks().map(|m| m.x).fold(low, f64::max).max(low * 1.01);
    let top = 1.08 * marks().map(|m| m.y).fold(0.0, f64::max);
    let bottom = 0.8 * marks().map(|m| m.y).filter(|y| *y > 0.0).fold(top, f64::min);
    // A name that is not in the list, such as a setting of a scan, has a colour by its
    // place.
    let colour = |k: usize, curve: &Curve| {
        let known = colours.0.iter().position(|name| *name == curve.name);
        let grey = DISTINCT.len() - 1;
        let index = if curve.name == READ { grey } else { known.unwrap_or(k) % grey };
        (DISTINCT[index], index)
    };
    let svg = draw(|area| {
        let mut builder = ChartBuilder::on(area);
        builder.margin(8).margin_right(20).x_label_area_size(38).y_label_area_size(58);
        let x_axis = (low..high).log_scale();
        // The chart has another type for each scale.
        macro_rules! paint {
            ($x:expr, $y:expr) => {{
                let mut chart = builder.build_cartesian_2d($x, $y)?;
                chart
                    .configure_mesh()
                    .light_line_style(WHITE)
                    .bold_line_style(RGBColor(225, 225, 225))
                    .x_desc(x)
                    .y_desc(y)
                    .x_labels(7)
                    .y_labels(6)
                    .x_label_formatter(&|v| match scale {
                        Scale::Bytes => bytes(*v),
                        _ => short(v.round() as usize),
                    })
                    .label_style(("sans-serif", 12))
                    .draw()?;
                let mut hovers = Vec::new();
                for (k, curve) in curves.iter().enumerate() {
                    let (colour, form) = colour(k, curve);
                    let points: Vec<(f64, f64)> = curve.marks.iter().map(|m| (m.x, m.y)).collect();
                    chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
                    // Marks differ in form too.
                    for &at in &points {
                        let style = colour.filled();
                        let line = colour.stroke_width(2);
                        let drawn = match form % 3 {
                            0 => chart.draw_series([Circle::new(at, 3, style)]).map(drop),
                            1 => chart.draw_series([TriangleMarker::new(at, 5, style)]).map(drop),
                            _ => chart.draw_series([Cross::new(at, 4, line)]).map(drop),
                        };
                        drawn?;
                    }
                    for mark in &curve.marks {
                        let (left, top) = chart.backend_coord(&(mark.x, mark.y));
                        let (at, size) = ((left - 6, top - 6), (12, 12));
                        hovers.push(Hover { at, size, text: mark.hover.clone() });
                    }
                }
                Ok(hovers)
            }};
        }
        match scale {
            Scale::Bytes => {
                let sizes = (0..64).map(|k| f64::from(k).exp2());
                let sizes: Vec<f64> = sizes.filter(|v| (low..=high).contains(v)).collect();
                let every = sizes.len().div_ceil(5).max(1);
                let sizes = sizes.into_iter().rev().step_by(every).collect();
                paint!(x_axis.with_key_points(sizes), (bottom..top).log_scale())
            }
            Scale::Linear => paint!(x_axis, 0.0..top),
            Scale::Ratio => {
                let counts = (0..32).map(|k| f64::from(k).exp2());
                let counts = counts.filter(|k| (low..=high).contains(k)).collect();
                let ratios = RATIOS.into_iter().filter(|r| (bottom..=top).contains(r)).collect();
                let y_axis = (bottom..top).log_scale().with_key_points(ratios);
                paint!(x_axis.with_key_points(counts), y_axis)
            }
        }
    })?;
    let forms = ["●", "▲", "✕"];
    let legend = curves.iter().enumerate().map(|(k, c)| {
        let name = if c.name.is_empty() { "all" } else { &c.name };
        let (colour, form) = colour(k, c);
        (colour, format!("{} {name}", forms[form % 3]))
    });
    Ok(Picture { svg, legend: legend.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(cells: &[(usize, usize)]) -> Map {
        let mut map = Map::default();
        cells.iter().for_each(|&(m, n)| map.add(m, n, 1.0, String::new()));
        map
    }

    #[test]
    fn a_map_with_holes_is_partial() {
        let sizes: Vec<usize> = (0..12).map(|k| 1 << k).collect();
        let pairs = || sizes.iter().flat_map(|&m| sizes.iter().map(move |&n| (m, n)));
        let whole: Vec<_> = pairs().filter(|(m, n)| m * n <= 1 << 11).collect();
        assert!(!map(&whole).is_partial());
        // Coarse, and with finer cells in it.
        let coarse = |m: &usize| m.ilog2().is_multiple_of(4);
        let some: Vec<_> = pairs().filter(|(m, n)| coarse(m) && coarse(n)).collect();
        assert!(!map(&some).is_partial());
        let finer: Vec<_> = some.iter().copied().chain([(2, 2), (4, 8), (16, 32)]).collect();
        assert!(!map(&finer).is_partial());
        // One row, nothing, and only its ends.
        for cells in [&whole[..12], &[], &[(1, 1), (1, 2048), (2048, 1), (32, 32)]] {
            assert!(map(cells).is_partial(), "{cells:?}");
        }
    }

    #[test]
    fn bytes_have_binary_prefixes() {
        let of = [1.0, 1024.0, 65536.0, 1048576.0, 3e9].map(bytes);
        assert_eq!(of, ["1 B", "1 KiB", "64 KiB", "1 MiB", "3 GiB"]);
    }
}
