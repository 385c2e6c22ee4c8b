//! Results computed with 50 digits, and the distance of a result from them in units in the last place.
//!
//! The scripts in `tests/precision` write one text file for each function. A line is a point:
//!
//! ```text
//! f32 3f800000,40000000 3f000000 | 3ff0000000000000 4005bf0a8b145769:bc92a2f4c1a4f2b1,7ff0000000000000
//! ```
//!
//! The line starts with the type. The arguments follow, separated by spaces; their elements are separated by commas.
//! Each element is the bits of a number of the type, in hexadecimal. The results follow after the bar, in the same
//! form. A result is the bits of the f64 nearest to the truth; if the type is f64, the f64 nearest to the remainder
//! follows after a colon. Trailing zeros of bits may be left out.

pub mod elementwise;
pub mod rows;

use std::path::Path;
use wgrad::{DType, f16};

/// A number with twice the digits of f64, as the sum of two. The low part of an infinity or NaN is 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Double {
    /// The f64 nearest to the number.
    pub high: f64,
    /// The f64 nearest to the remainder.
    pub low: f64,
}

impl From<f64> for Double {
    fn from(high: f64) -> Self {
        Self { high, low: 0.0 }
    }
}

/// The arguments of a function, and its exact results.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// The type of the arguments, and of the results that are compared with the truth.
    pub dtype: DType,
    /// The elements of each argument.
    pub inputs: Vec<Vec<f64>>,
    /// The elements of each result.
    pub truths: Vec<Vec<Double>>,
}

/// The points of a function, from `tests/precision/<name>.txt`. Lines that begin with `#` are comments.
///
/// # Panics
/// If there is no such file, or a line is not a point.
pub fn points(name: &str) -> Vec<Point> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("precision").join(name).with_extension("txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| point(line).unwrap_or_else(|| panic!("{}: not a point: {line}", path.display()))).collect()
}

fn point(line: &str) -> Option<Point> {
    let (left, right) = line.split_once('|')?;
    let (dtype, arguments) = left.trim().split_once(' ')?;
    let dtype = [DType::F64, DType::F32, DType::F16].into_iter().find(|d| d.to_string() == dtype)?;
    let bits = |text: &str, bytes: usize| {
        let padded = format!("{text:0<width$}", width = 2 * bytes);
        u64::from_str_radix(&padded, 16).ok().filter(|_| !text.is_empty())
    };
    let input = |text: &str| {
        let bits = bits(text, dtype.size())?;
        Some(match dtype {
            DType::F64 => f64::from_bits(bits),
            DType::F32 => f64::from(f32::from_bits(u32::try_from(bits).ok()?)),
            _ => f16::from_bits(u16::try_from(bits).ok()?).to_f64(),
        })
    };
    let truth = |text: &str| {
        let (high, low) = text.split_once(':').unwrap_or((text, "0"));
        Some(Double { high: f64::from_bits(bits(high, 8)?), low: f64::from_bits(bits(low, 8)?) })
    };
    let inputs = arguments.split_whitespace().map(|of| of.split(',').map(input).collect()).collect::<Option<_>>()?;
    let truths = right.split_whitespace().map(|of| of.split(',').map(truth).collect()).collect::<Option<_>>()?;
    Some(Point { dtype, inputs, truths })
}

/// The binary digits of a float type, and the exponents of its least normal and its greatest number.
fn format(dtype: DType) -> (i32, i32, i32) {
    match dtype {
        DType::F64 => (53, -1022, 1023),
        DType::F32 => (24, -126, 127),
        DType::F16 => (11, -14, 15),
        dtype => panic!("{dtype} is exact"),
    }
}

/// The exponent of the largest power of two that is not above the magnitude of a finite number other than 0.
fn exponent(x: f64) -> i32 {
    let (x, shift) = if x.is_subnormal() { (x * 2f64.powi(64), 64) } else { (x, 0) };
    ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023 - shift
}

/// The least positive normal number of a type.
pub fn least_normal(dtype: DType) -> f64 {
    2f64.powi(format(dtype).1)
}

/// The distance between neighbouring numbers of a type at a normal number.
pub fn unit(dtype: DType, x: f64) -> f64 {
    2f64.powi(exponent(x) + 1 - format(dtype).0)
}

/// The distance of a result from the truth, in units in the last place of the type at the truth. Among subnormal
/// numbers, the unit is the distance of these. A correctly rounded result has a distance of at most half a unit.
///
/// An infinite result is exact if the truth rounds to infinity. Otherwise it counts as the power of two beyond the
/// largest number. NaN is exact if the truth is NaN, and infinitely far from any other truth.
///
/// # Panics
/// If the type is not a float.
pub fn ulps(dtype: DType, have: f64, truth: Double) -> f64 {
    let (digits, least, greatest) = format(dtype);
    if have.is_nan() || truth.high.is_nan() {
        return if have.is_nan() && truth.high.is_nan() { 0.0 } else { f64::INFINITY };
    }
    // All numbers are divided by 4 where that is exact, so that f64 can hold the power of two beyond its largest
    // number.
    let quarter = dtype == DType::F64 && truth.high.abs().max(have.abs()) >= 1.0;
    let (by, scale) = if quarter { (2, 0.25) } else { (0, 1.0) };
    let (have, truth) = (have * scale, Double { high: truth.high * scale, low: truth.low * scale });
    let top = 2f64.powi(greatest + 1 - by);
    if have.is_infinite() && truth.high * have.signum() >= top - top * 2f64.powi(-digits - 1) {
        return 0.0;
    }
    let over = truth.high.abs() >= top;
    let (have, truth) = (have.clamp(-top, top), if over { Double::from(top.copysign(truth.high)) } else { truth });
    let power = if truth.high == 0.0 { least - by } else { exponent(truth.high).max(least - by) - i32::from(over) };
    let unit = power + 1 - digits;
    // The scaling takes two steps, because the reciprocal of the least unit overflows f64.
    let apart = (have - truth.high) - truth.low;
    (apart * 2f64.powi(-unit / 2) * 2f64.powi(unit / 2 - unit)).abs()
}

/// The same as [`ulps`], for a device that may flush subnormal numbers to 0, as WGSL allows.
pub fn ulps_flushed(dtype: DType, have: f64, truth: Double) -> f64 {
    if have == 0.0 && truth.high.abs() <= least_normal(dtype) { 0.0 } else { ulps(dtype, have, truth) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [DType; 3] = [DType::F64, DType::F32, DType::F16];

    /// The distance from 1 to the next larger number of a type.
    fn step(dtype: DType) -> f64 {
        2f64.powi(1 - format(dtype).0)
    }

    fn largest(dtype: DType) -> f64 {
        let half = 2f64.powi(format(dtype).2);
        half + (half - half * step(dtype))
    }

    #[test]
    fn a_unit_is_that_of_the_truth() {
        for dtype in TYPES {
            let step = step(dtype);
            for (have, truth, want) in [
                (1.0, 1.0, 0.0),
                (1.0 + step, 1.0, 1.0),
                (1.0 - step / 2.0, 1.0, 0.5),
                (2.0 - step, 2.0 - step, 0.0),
                (2.0, 2.0 - step, 1.0),
                (-3.0, -3.0 - 2.0 * step, 1.0),
                (1.0, -1.0, 2.0 / step),
                (-0.0, 0.0, 0.0),
            ] {
                assert_eq!(ulps(dtype, have, truth.into()), want, "{have} for {truth} in {dtype}");
            }
        }
    }

    #[test]
    fn the_rest_of_the_truth_counts() {
        let truth = Double { high: 1.0, low: 2f64.powi(-54) };
        assert_eq!(ulps(DType::F64, 1.0, truth), 0.25);
        assert_eq!(ulps(DType::F64, 1.0 + f64::EPSILON, truth), 0.75);
        let next = 2e200f64.next_up();
        assert_eq!(ulps(DType::F64, next, Double { high: 2e200, low: (next - 2e200) / 4.0 }), 0.75);
    }

    #[test]
    fn subnormal_numbers_are_equally_far_apart() {
        for dtype in TYPES {
            let least = least_normal(dtype) * step(dtype);
            assert_eq!(ulps(dtype, 0.0, least.into()), 1.0, "{dtype}");
            assert_eq!(ulps(dtype, 3.0 * least, least.into()), 2.0, "{dtype}");
            assert_eq!(ulps(dtype, least, 0.0.into()), 1.0, "{dtype}");
            let normal = least_normal(dtype);
            assert_eq!(ulps(dtype, normal - least, normal.into()), 1.0, "{dtype}");
            assert_eq!(ulps_flushed(dtype, 0.0, (normal - least).into()), 0.0, "{dtype}");
            assert_eq!(ulps_flushed(dtype, least, (normal - least).into()), 1.0 / step(dtype) - 2.0, "{dtype}");
            assert!(ulps_flushed(dtype, 0.0, (2.0 * normal).into()) > 1e2, "normal numbers are not taken for 0");
        }
    }

    #[test]
    fn what_rounds_to_infinity_is_infinite() {
        for dtype in TYPES {
            let (largest, unit) = (largest(dtype), 2f64.powi(format(dtype).2) * step(dtype));
            assert_eq!(ulps(dtype, largest, largest.into()), 0.0, "{dtype}");
            assert_eq!(ulps(dtype, f64::INFINITY, largest.into()), 1.0, "{dtype}");
            assert_eq!(ulps(dtype, largest - unit, largest.into()), 1.0, "{dtype}");
            let half = Double { high: largest, low: unit / 2.0 };
            assert_eq!(ulps(dtype, largest, half), 0.5, "{dtype}");
            assert_eq!(ulps(dtype, f64::INFINITY, f64::INFINITY.into()), 0.0, "{dtype}");
            assert_eq!(ulps(dtype, -f64::INFINITY, f64::NEG_INFINITY.into()), 0.0, "{dtype}");
            assert_eq!(ulps(dtype, largest, f64::INFINITY.into()), 1.0, "{dtype}");
            assert!(ulps(dtype, -f64::INFINITY, f64::INFINITY.into()) > 1e3, "{dtype}");
            assert!(ulps(dtype, f64::INFINITY, 1.0.into()) > 1e3, "{dtype}");
        }
        assert_eq!(ulps(DType::F32, f64::INFINITY, 1e300.into()), 0.0);
        assert_eq!(ulps(DType::F16, f64::INFINITY, 65_520.0.into()), 0.0);
        assert_eq!(ulps(DType::F16, f64::INFINITY, 65_519.0.into()), 17.0 / 32.0);
    }

    #[test]
    fn nan_is_right_where_the_truth_is_nan() {
        for dtype in TYPES {
            assert_eq!(ulps(dtype, f64::NAN, f64::NAN.into()), 0.0);
            assert_eq!(ulps(dtype, f64::NAN, 1.0.into()), f64::INFINITY);
            assert_eq!(ulps(dtype, 1.0, f64::NAN.into()), f64::INFINITY);
            assert_eq!(ulps(dtype, f64::INFINITY, f64::NAN.into()), f64::INFINITY);
        }
    }

    #[test]
    fn points_are_read_as_written() {
        let read = point("f16 3c00,c 0001 | 3ff0000000000000,7ff bff8:3c");
        let truths = vec![
            vec![1.0.into(), f64::INFINITY.into()],
            vec![Double { high: -1.5, low: f64::from_bits(0x3c00 << 48) }],
        ];
        let inputs = vec![vec![1.0, -2.0], vec![2f64.powi(-24)]];
        assert_eq!(read, Some(Point { dtype: DType::F16, inputs, truths }));
        for bad in
            ["", "f32 3f800000", "f32 | 0", "u32 1 | 0", "f32 1x | 0", "f16 3f800000 | 0", "f32 0 | 0:", "f32 0 | ,0"]
        {
            assert_eq!(point(bad), None, "{bad}");
        }
    }
}
