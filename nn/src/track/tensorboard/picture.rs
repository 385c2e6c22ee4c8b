//! The flow of gradients as a picture: layers or time steps by measurements, in colours on a logarithmic scale.

use std::io;

/// The most measurements in a picture. If there are more, neighbours are left out.
const COLUMNS: usize = 512;
/// The height and width of a number's rectangle in pixels, if there are few numbers.
const PIXELS: usize = 8;
/// Decades from the darkest colour to the brightest.
const DECADES: f64 = 12.0;
/// The magnitude of the brightest colour, as a power of 10.
const BRIGHTEST: f64 = 2.0;

/// Colours, dark to bright, that people with a red-green colour blindness can tell apart too: corners of viridis (van
/// der Walt and Smith 2015).
const COLOURS: [[f64; 3]; 5] =
    [[68.0, 1.0, 84.0], [59.0, 82.0, 139.0], [33.0, 145.0, 140.0], [94.0, 201.0, 98.0], [253.0, 231.0, 37.0]];

/// A picture as a PNG file.
pub struct Picture {
    pub width: usize,
    pub height: usize,
    pub png: Vec<u8>,
}

/// The colour of a magnitude: black for 0, red for a non-finite one.
fn colour(value: f64) -> [u8; 3] {
    if !value.is_finite() {
        return [255, 0, 0];
    }
    if value <= 0.0 {
        return [0, 0, 0];
    }
    let share = ((value.log10() - BRIGHTEST) / DECADES + 1.0).clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let below = (share as usize).min(COLOURS.len() - 2);
    let (low, high) = (COLOURS[below], COLOURS[below + 1]);
    std::array::from_fn(|i| (low[i] + (high[i] - low[i]) * (share - below as f64)).round() as u8)
}

/// Draws columns of magnitudes from left to right, each from its first row at the top. `None` if there is nothing to
/// draw.
///
/// # Errors
/// If the picture cannot be encoded.
pub fn draw(columns: &[Vec<f64>]) -> io::Result<Option<Picture>> {
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    if rows == 0 {
        return Ok(None);
    }
    let shown = columns.len().min(COLUMNS);
    let columns: Vec<&Vec<f64>> = (0..shown).map(|at| &columns[at * columns.len() / shown]).collect();
    let side = |count: usize| if count * PIXELS <= COLUMNS { PIXELS } else { 1 };
    let (wide, high) = (side(shown), side(rows));
    let (width, height) = (shown * wide, rows * high);
    let pixel = |at: usize| {
        let (row, column) = (at / width / high, at % width / wide);
        columns[column].get(row).map_or([255; 3], |value| colour(*value))
    };
    let pixels: Vec<u8> = (0..width * height).flat_map(pixel).collect();
    let mut png = vec![];
    let mut encoder = png::Encoder::new(&mut png, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(Some(Picture { width, height, png }))
}

#[cfg(test)]
mod tests {
    use super::{colour, draw};

    #[test]
    fn colours_rise_with_magnitudes() {
        assert_eq!([colour(0.0), colour(f64::NAN), colour(f64::INFINITY)], [[0, 0, 0], [255, 0, 0], [255, 0, 0]]);
        assert_eq!(
            [colour(1e-30), colour(1e-10), colour(1e2), colour(1e9)],
            [[68, 1, 84], [68, 1, 84], [253, 231, 37], [253, 231, 37]]
        );
        assert_eq!(colour(1e-4), [33, 145, 140]);
    }

    #[test]
    fn a_picture_has_a_rectangle_for_each_number() {
        assert!(draw(&[]).expect("nothing fails").is_none() && draw(&[vec![]]).expect("nothing fails").is_none());
        let picture = draw(&[vec![1e-4, 1e2], vec![0.0]]).expect("it can be drawn").expect("there is something");
        assert_eq!((picture.width, picture.height), (16, 16));
        let mut reader = png::Decoder::new(std::io::Cursor::new(picture.png)).read_info().expect("a picture");
        let mut pixels = vec![0; 16 * 16 * 3];
        reader.next_frame(&mut pixels).expect("its pixels");
        let pixel = |row: usize, column: usize| &pixels[(row * 16 + column) * 3..][..3];
        assert_eq!(
            [pixel(0, 0), pixel(15, 7), pixel(7, 8), pixel(8, 15)],
            [&[33, 145, 140], &[253, 231, 37], &[0, 0, 0], &[255, 255, 255]]
        );
        let wide = draw(&vec![vec![1.0; 3]; 5000]).expect("it can be drawn").expect("there is something");
        assert_eq!((wide.width, wide.height), (512, 24));
    }
}
