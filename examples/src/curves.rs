//! Curves with one logarithmic axis, and bars, as SVG.

use std::error::Error;
use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Colours that people with any colour vision can tell apart (Okabe and Ito), and a grey.
const DISTINCT: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
    RGBColor(240, 228, 66),
];

/// A curve: its name and its points.
pub type Curve = (String, Vec<(f64, f64)>);

/// The curve of values by their index.
pub fn numbered(name: &str, values: &[f64]) -> Curve {
    let points = values.iter().enumerate();
    (name.to_owned(), points.map(|(index, &value)| (index as f64, value)).collect())
}

/// Writes a picture with a legend. `x` and `y` name the axes; that of x is logarithmic.
///
/// # Errors
/// If the file cannot be written, or no curve has a point.
pub fn write(
    path: &Path,
    caption: &str,
    (x, y): (&str, &str),
    curves: &[Curve],
) -> Result<(), Box<dyn Error>> {
    let [(low, right), (_, top)] = ranges(curves)?;
    // An axis of one value has no length.
    let right = right.max(low * 2.0);
    let axes = ((low..right).log_scale().base(2.0), 0.0..top.max(0.0) * 1.05);
    let style = Style { labels: [Some(short), None], at: SeriesLabelPosition::UpperLeft, dots: 3 };
    draw(path, [caption, x, y], axes, &style, curves)
}

/// Writes a picture of what shrinks from iteration to iteration. The axis of y is logarithmic: values
/// that are not positive have no place on it and are left out. One curve alone needs no legend.
///
/// # Errors
/// If the file cannot be written, or no curve has a positive value.
pub fn convergence(
    path: &Path,
    caption: &str,
    y: &str,
    curves: &[Curve],
) -> Result<(), Box<dyn Error>> {
    let positive = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points.iter().copied().filter(|&(_, y)| y > 0.0 && y.is_finite()).collect()
    };
    let curves: Vec<Curve> =
        curves.iter().map(|(name, points)| (name.clone(), positive(points))).collect();
    let [(_, right), (low, top)] = ranges(&curves)?;
    let power = |y: f64| 10f64.powf(y);
    let low = power(low.log10().floor());
    let top = power(top.log10().ceil()).max(low * 10.0);
    let axes = (0.0..right.max(1.0), (low..top).log_scale());
    let labels: [Option<Label>; 2] = [Some(|x| format!("{x:.0}")), Some(|y| format!("{y:.0e}"))];
    let style = Style { labels, at: SeriesLabelPosition::UpperRight, dots: 0 };
    draw(path, [caption, "iteration", y], axes, &style, &curves)
}

/// Writes a picture of one bar for each name, the first above. `x` names the axis, which begins at 0.
///
/// # Errors
/// If the file cannot be written, or there is no bar.
pub fn bars(
    path: &Path,
    caption: &str,
    x: &str,
    bars: &[(String, f64)],
) -> Result<(), Box<dyn Error>> {
    let most = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    if bars.is_empty() || !most.is_finite() {
        return Err("there is no bar".into());
    }
    let area = SVGBackend::new(path, (760, 90 + 36 * bars.len() as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let rows = bars.len() as f64;
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .margin_right(32)
        .x_label_area_size(40)
        .y_label_area_size(120)
        .build_cartesian_2d(0.0..(1.05 * most).max(f64::MIN_POSITIVE), 0.0..rows)?;
    // The names stand beside the bars, drawn below.
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(x).disable_y_mesh().disable_y_axis().light_line_style(WHITE).draw()?;
    let names = ("sans-serif", 14).into_font();
    for (row, (name, length)) in bars.iter().enumerate() {
        let middle = rows - row as f64 - 0.5;
        let bar = [(0.0, middle - 0.35), (*length, middle + 0.35)];
        chart.draw_series([Rectangle::new(bar, DISTINCT[0].filled())])?;
        let (left, at) = chart.backend_coord(&(0.0, middle));
        let place = (left - 8 - names.box_size(name)?.0 as i32, at - 8);
        area.draw(&Text::new(name.clone(), place, names.clone()))?;
    }
    area.present().map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(())
}

/// The least and the largest x, and the same of y.
fn ranges(curves: &[Curve]) -> Result<[(f64, f64); 2], Box<dyn Error>> {
    let points = || curves.iter().flat_map(|curve| curve.1.iter().copied());
    if points().next().is_none() {
        return Err("no curve has a point".into());
    }
    let range = |of: fn((f64, f64)) -> f64| {
        let wider = |(low, high): (f64, f64), v: f64| (low.min(v), high.max(v));
        points().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), wider)
    };
    Ok([range(|p| p.0), range(|p| p.1)])
}

type Label = fn(&f64) -> String;

struct Style {
    /// How the numbers at x and y are written.
    labels: [Option<Label>; 2],
    /// Where the legend is.
    at: SeriesLabelPosition,
    /// How large the points are.
    dots: u32,
}

/// A picture with these words: the caption, x and y.
fn draw<X, Y>(
    path: &Path,
    [caption, x, y]: [&str; 3],
    axes: (X, Y),
    style: &Style,
    curves: &[Curve],
) -> Result<(), Box<dyn Error>>
where
    X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    let area = SVGBackend::new(path, (760, 460)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .margin_right(32)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(axes.0, axes.1)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(x).y_desc(y).light_line_style(WHITE);
    if let Some(label) = &style.labels[0] {
        mesh.x_label_formatter(label);
    }
    if let Some(label) = &style.labels[1] {
        mesh.y_label_formatter(label);
    }
    mesh.draw()?;
    for (index, (name, points)) in curves.iter().enumerate() {
        let colour = DISTINCT[index % DISTINCT.len()];
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(line.point_size(style.dots))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    if curves.len() > 1 {
        chart
            .configure_series_labels()
            .position(style.at.clone())
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    area.present().map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(())
}

/// A number in few characters: 512, 8 Ki, 2 Mi.
fn short(x: &f64) -> String {
    match *x {
        x if x < 1024.0 => format!("{x}"),
        x if x < 1_048_576.0 => format!("{} Ki", x / 1024.0),
        x => format!("{} Mi", x / 1_048_576.0),
    }
}
