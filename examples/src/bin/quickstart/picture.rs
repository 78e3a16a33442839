//! Small images as tiles of one picture, with a caption above each line of them.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use font8x8::legacy::BASIC_LEGACY;
use ndarray::{ArrayRef1, ArrayRef2};

/// Pixels of the picture along each side of a tile, and between tiles.
const TILE: usize = 120;
const GAP: usize = 8;
/// Pixels of a caption's letters along each side: two for each dot of the font. And of a caption with what is above it.
const LETTER: usize = 16;
const CAPTION: usize = LETTER + GAP;

/// How values become colours.
#[derive(Clone, Copy)]
pub(crate) enum Ink {
    /// White at 0 or below, black at this value.
    Grey(f64),
    /// White at 0, dark red at the image's strongest value, dark blue at its negative.
    RedBlue,
}

/// A line of tiles: its caption, in ASCII, its ink, and a matrix with an image a row.
pub(crate) type Line<'a> = (&'a str, Ink, &'a ArrayRef2<f64>);

/// Writes a PNG: for each of `lines` its caption, and below it a tile for each row of its matrix, which
/// holds `side` x `side` values.
pub(crate) fn write(path: &Path, lines: &[Line<'_>], side: usize) -> Result<(), Box<dyn Error>> {
    let across = lines.iter().map(|line| line.2.nrows()).max().unwrap_or(0);
    let length = |tiles: usize| tiles * (TILE + GAP) + GAP;
    let below = |lines: usize| length(lines) + lines * CAPTION;
    let (width, height) = (length(across), below(lines.len()));
    let mut rgb = vec![255; width * height * 3];
    for (down, (caption, ink, images)) in lines.iter().enumerate() {
        for (y, x) in dots(caption).filter(|(_, x)| x + GAP < width) {
            let at = ((below(down) + y) * width + GAP + x) * 3;
            rgb[at..at + 3].fill(0);
        }
        for (across, image) in images.rows().into_iter().enumerate() {
            let (top, left) = (below(down) + CAPTION, length(across));
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

/// Whether a caption is no wider than so many tiles.
#[cfg(test)]
pub(crate) fn fits(caption: &str, tiles: usize) -> bool {
    caption.len() * LETTER <= tiles * (TILE + GAP)
}

/// The pixels of a text, from its upper left corner.
fn dots(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let scale = LETTER / 8;
    text.bytes().enumerate().flat_map(move |(k, letter)| {
        let rows = BASIC_LEGACY.get(usize::from(letter)).copied().unwrap_or_default();
        let pixels = (0..LETTER * LETTER).map(|at| (at / LETTER, at % LETTER));
        let black = pixels.filter(move |(y, x)| rows[y / scale] >> (x / scale) & 1 == 1);
        black.map(move |(y, x)| (y, k * LETTER + x))
    })
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

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;

    #[test]
    fn a_caption_stands_above_its_line() {
        let file = tempfile();
        let white = Array2::zeros((4, 64));
        write(&file, &[("l", Ink::Grey(1.0), &white), ("?!", Ink::Grey(1.0), &white)], 8).unwrap();
        let mut png = png::Decoder::new(std::io::BufReader::new(File::open(&file).unwrap()));
        png.set_transformations(png::Transformations::IDENTITY);
        let mut png = png.read_info().unwrap();
        let mut rgb = vec![0; png.output_buffer_size().unwrap()];
        png.next_frame(&mut rgb).unwrap();
        let width = 4 * (TILE + GAP) + GAP;
        let black: Vec<(usize, usize)> = (0..rgb.len() / 3)
            .filter(|at| rgb[at * 3..at * 3 + 3] == [0; 3])
            .map(|at| (at / width, at % width))
            .collect();
        let second = GAP + CAPTION + TILE + GAP;
        for (top, letters) in [(GAP, 1), (second, 2)] {
            let here = |&&(y, x): &&(usize, usize)| {
                (top..top + LETTER).contains(&y) && (GAP..GAP + letters * LETTER).contains(&x)
            };
            assert!(black.iter().filter(here).count() > 20, "{black:?}");
        }
        assert_eq!(black.len(), dots("l").count() + dots("?!").count());
        std::fs::remove_file(file).unwrap();
    }

    fn tempfile() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("gemv-quickstart-{}.png", std::process::id()))
    }
}
