//! A curve over a logarithmic scale, as SVG.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
/// Room for the axes' labels: left, and at the other sides.
const LEFT: f64 = 80.0;
const EDGE: f64 = 50.0;

/// The values by their index. Those that are not positive have no place and are left out.
pub fn logarithmic(title: &str, x_label: &str, y_label: &str, values: &[f64]) -> String {
    let logs: Vec<(usize, f64)> =
        values.iter().map(|v| v.log10()).enumerate().filter(|(_, log)| log.is_finite()).collect();
    let fold = |of: fn(f64, f64) -> f64, start| logs.iter().fold(start, |m, &(_, log)| of(m, log));
    let (low, high) = (fold(f64::min, 0.0).floor(), fold(f64::max, 0.0).ceil().max(1e-9));
    let most = values.len().saturating_sub(1).max(1) as f64;
    let x = |index: f64| LEFT + index / most * (WIDTH - LEFT - EDGE);
    let y = |log: f64| EDGE + (high - log) / (high - low).max(1.0) * (HEIGHT - 2.0 * EDGE);

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut label = |x: f64, y: f64, anchor: &str, text: &str| {
        let _ =
            writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
    };
    label(WIDTH / 2.0, 24.0, "middle", title);
    label(WIDTH / 2.0, HEIGHT - 10.0, "middle", x_label);
    label(8.0, 24.0, "start", y_label);
    let decades = (high - low) as usize;
    let powers = || (0..=decades).step_by(decades.div_ceil(8).max(1)).map(|k| high - k as f64);
    powers().for_each(|log| label(LEFT - 8.0, y(log) + 4.0, "end", &format!("1e{log:.0}")));
    let ticks = || (0..=4).map(|k| (most * f64::from(k) / 4.0).round());
    ticks().for_each(|tick| label(x(tick), HEIGHT - EDGE + 18.0, "middle", &format!("{tick:.0}")));
    for log in powers() {
        let (from, to, y) = (x(0.0), x(most), y(log));
        let _ = writeln!(
            out,
            "<line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>"
        );
    }
    let points: Vec<String> =
        logs.iter().map(|&(k, log)| format!("{:.1},{:.1}", x(k as f64), y(log))).collect();
    let points = points.join(" ");
    let _ = writeln!(
        out,
        "<polyline points=\"{points}\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\"/>\n</svg>"
    );
    out
}
