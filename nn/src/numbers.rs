//! Statistics of numbers on the host.

/// The median of the values that are not NaN, or NaN if there are none. Of an even count, it is the mean of the two
/// values in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    let [low, high] = [values.len().saturating_sub(1) / 2, values.len() / 2].map(|at| values.get(at).copied());
    low.zip(high).map_or(f64::NAN, |(low, high)| if low == high { low } else { 0.5 * low + 0.5 * high })
}

/// The mean, or NaN of an empty slice.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a whole population, or NaN of an empty slice.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn a_median_is_in_the_middle() {
        assert!(median([]).is_nan() && median([f64::NAN]).is_nan());
        assert_eq!([median([3.0]), median([4.0, 1.0]), median([f64::NAN, 9.0, 1.0, 2.0])], [3.0, 2.5, 2.0]);
        assert_eq!([median([f64::INFINITY; 2]), median([f64::MAX; 2])], [f64::INFINITY, f64::MAX]);
    }
}
