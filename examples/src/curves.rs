//! Curves over a logarithmic axis, as SVG.

use std::error::Error;
use std::path::Path;

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
    let points = || curves.iter().flat_map(|curve| &curve.1);
    let low = points().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let (right, top) = points().fold((0.0f64, 0.0f64), |m, p| (m.0.max(p.0), m.1.max(p.1)));
    if points().next().is_none() {
        return Err("no curve has a point".into());
    }
    // An axis of one value has no length.
    let right = right.max(low * 2.0);
    let area = SVGBackend::new(path, (760, 460)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .margin_right(32)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((low..right).log_scale().base(2.0), 0.0..top * 1.05)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|&x| short(x))
        .light_line_style(WHITE)
        .draw()?;
    for (index, (name, points)) in curves.iter().enumerate() {
        let colour = DISTINCT[index % DISTINCT.len()];
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

/// A number in few characters: 512, 8 Ki, 2 Mi.
fn short(x: f64) -> String {
    match x {
        x if x < 1024.0 => format!("{x}"),
        x if x < 1_048_576.0 => format!("{} Ki", x / 1024.0),
        x => format!("{} Mi", x / 1_048_576.0),
    }
}
