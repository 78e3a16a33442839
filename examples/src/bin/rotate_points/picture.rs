//! Clouds of points as a picture.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Pixels of a cloud along each side.
const SIDE: usize = 480;
/// The plane shows x and y from -REACH to REACH.
const REACH: f32 = 5.0;

/// Writes a PNG of clouds side by side, seen along z: the more points, the darker; what is nearer is
/// redder.
pub(crate) fn write(path: &Path, clouds: &[&[f32]]) -> Result<(), Box<dyn Error>> {
    let width = SIDE * clouds.len();
    let mut rgb = vec![255; width * SIDE * 3];
    for (across, cloud) in clouds.iter().enumerate() {
        // The points of each pixel, and the sum of their heights.
        let mut pixels = vec![(0u32, 0.0f32); SIDE * SIDE];
        for point in cloud.chunks_exact(3) {
            let place = |v: f32| ((v / REACH + 1.0) * 0.5 * SIDE as f32) as isize;
            let (x, y) = (place(point[0]), place(-point[1]));
            let inside = 0..SIDE as isize;
            if inside.contains(&x) && inside.contains(&y) {
                let pixel = &mut pixels[y as usize * SIDE + x as usize];
                *pixel = (pixel.0 + 1, pixel.1 + point[2]);
            }
        }
        let most = pixels.iter().map(|pixel| pixel.0).max().unwrap_or(0).max(1);
        for (index, (count, height)) in pixels.into_iter().enumerate() {
            if count == 0 {
                continue;
            }
            let dark = (1.0 + count as f32).ln() / (1.0 + most as f32).ln();
            let near = (height / count as f32 / 4.0 + 0.5).clamp(0.0, 1.0);
            let full = [200.0 * near, 40.0, 200.0 * (1.0 - near)];
            let at = (index / SIDE * width + across * SIDE + index % SIDE) * 3;
            for (byte, full) in rgb[at..at + 3].iter_mut().zip(full) {
                *byte = (255.0 + (full - 255.0) * dark) as u8;
            }
        }
    }
    let mut file =
        BufWriter::new(File::create(path).map_err(|e| format!("{}: {e}", path.display()))?);
    let mut png = png::Encoder::new(&mut file, width as u32, SIDE as u32);
    png.set_color(png::ColorType::Rgb);
    let mut png = png.write_header()?;
    png.write_image_data(&rgb)?;
    png.finish()?;
    // A full disk may be told only now.
    Ok(file.flush()?)
}
