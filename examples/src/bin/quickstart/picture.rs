//! Small images as tiles of one picture.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use ndarray::{ArrayRef1, ArrayRef2};

/// Pixels of the picture along each side of a tile, and between tiles.
const TILE: usize = 120;
const GAP: usize = 8;

/// How values become colours.
#[derive(Clone, Copy)]
pub(crate) enum Ink {
    /// White at 0 or below, black at this value.
    Grey(f64),
    /// White at 0, dark red at the image's strongest value, dark blue at its negative.
    RedBlue,
}

/// Writes a PNG: a line of tiles for each of `lines`, a tile for each row of its matrix, which
/// holds `side` x `side` values.
pub(crate) fn write(
    path: &Path,
    lines: &[(Ink, &ArrayRef2<f64>)],
    side: usize,
) -> Result<(), Box<dyn Error>> {
    let across = lines.iter().map(|line| line.1.nrows()).max().unwrap_or(0);
    let length = |tiles: usize| tiles * (TILE + GAP) + GAP;
    let (width, height) = (length(across), length(lines.len()));
    let mut rgb = vec![255; width * height * 3];
    for (down, (ink, images)) in lines.iter().enumerate() {
        for (across, image) in images.rows().into_iter().enumerate() {
            let (top, left) = (length(down), length(across));
            let strongest = image.iter().fold(0.0f64, |most, v| most.max(v.abs()));
            for y in 0..TILE {
                for x in 0..TILE {
                    let value = between(&image, side, y, x);
                    let at = ((top + y) * width + left + x) * 3;
                    rgb[at..at + 3].copy_from_slice(&match ink {
                        Ink::Grey(black) => grey(value / black),
                        Ink::RedBlue => red_blue(value / strongest),
                    });
                }
            }
        }
    }
    let mut file =
        BufWriter::new(File::create(path).map_err(|e| format!("{}: {e}", path.display()))?);
    let mut png = png::Encoder::new(&mut file, width as u32, height as u32);
    png.set_color(png::ColorType::Rgb);
    let mut png = png.write_header()?;
    png.write_image_data(&rgb)?;
    png.finish()?;
    // A full disk may be told only now.
    Ok(file.flush()?)
}

/// The image's value under pixel (y, x) of its tile, bilinear between the centres of its pixels.
fn between(image: &ArrayRef1<f64>, side: usize, y: usize, x: usize) -> f64 {
    let place = |p: usize| {
        let at = (p as f64 + 0.5) / TILE as f64 * side as f64 - 0.5;
        let at = at.clamp(0.0, (side - 1) as f64);
        (at as usize, (at as usize + 1).min(side - 1), at.fract())
    };
    let ((y0, y1, fy), (x0, x1, fx)) = (place(y), place(x));
    let along = |y: usize| image[y * side + x0] * (1.0 - fx) + image[y * side + x1] * fx;
    along(y0) * (1.0 - fy) + along(y1) * fy
}

fn grey(value: f64) -> [u8; 3] {
    [(247.0 * (1.0 - value.clamp(0.0, 1.0))).round() as u8; 3]
}

/// White at 0, to dark red at 1 and dark blue at -1.
fn red_blue(value: f64) -> [u8; 3] {
    let ends = if value < 0.0 {
        [[247.0, 247.0, 247.0], [67.0, 147.0, 195.0], [5.0, 48.0, 97.0]]
    } else {
        [[247.0, 247.0, 247.0], [214.0, 96.0, 77.0], [103.0, 0.0, 31.0]]
    };
    let at = value.abs().min(1.0) * 2.0;
    let (from, to) = if at < 1.0 { (ends[0], ends[1]) } else { (ends[1], ends[2]) };
    let part = if at < 1.0 { at } else { at - 1.0 };
    std::array::from_fn(|c| (from[c] + (to[c] - from[c]) * part).round() as u8)
}
