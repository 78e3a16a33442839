//! The handwritten digits of the UCI repository; see `examples/data/README.md`.

use std::error::Error;
use std::io::Read;

use flate2::read::GzDecoder;
use ndarray::Array2;

/// Pixels along each side of an image.
pub(crate) const SIDE: usize = 8;
/// The value of a pixel that is all ink.
pub(crate) const BLACK: f64 = 16.0;

/// The images, one a row: 1,797 x 64, each pixel from 0 to [`BLACK`].
pub(crate) fn read() -> Result<Array2<f64>, Box<dyn Error>> {
    let mut text = String::new();
    GzDecoder::new(&include_bytes!("../../../data/digits.csv.gz")[..]).read_to_string(&mut text)?;
    let mut pixels = Vec::new();
    for line in text.lines() {
        // The last number of a line is the digit's name, which nobody tells us here.
        for pixel in line.split(',').take(SIDE * SIDE) {
            pixels.push(pixel.parse::<f64>()?);
        }
    }
    Ok(Array2::from_shape_vec((pixels.len() / (SIDE * SIDE), SIDE * SIDE), pixels)?)
}
