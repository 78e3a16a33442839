//! The handwritten digits of the UCI repository; see `examples/data/README.md`.

use std::error::Error;
use std::io::Read;

use flate2::read::GzDecoder;
use ndarray::Array2;

/// Pixels along each side of an image.
pub const SIDE: usize = 8;
/// The value of a pixel that is all ink.
pub const BLACK: f64 = 16.0;

/// The images, one a row: 1,797 x 64, each pixel from 0 to [`BLACK`].
///
/// # Errors
/// If the data set is not what it was.
pub fn read() -> Result<Array2<f64>, Box<dyn Error>> {
    Ok(named()?.0)
}

/// The images, as [`read`] has them, and the digit that each one shows.
///
/// # Errors
/// As [`read`].
pub fn named() -> Result<(Array2<f64>, Vec<usize>), Box<dyn Error>> {
    let mut text = String::new();
    GzDecoder::new(&include_bytes!("../data/digits.csv.gz")[..]).read_to_string(&mut text)?;
    let (mut pixels, mut names) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let mut numbers = line.split(',');
        for pixel in numbers.by_ref().take(SIDE * SIDE) {
            pixels.push(pixel.parse::<f64>()?);
        }
        names.push(numbers.next().ok_or("an image without a name")?.trim().parse()?);
    }
    Ok((Array2::from_shape_vec((names.len(), SIDE * SIDE), pixels)?, names))
}
