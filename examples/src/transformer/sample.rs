//! Samples of text from a model.

use crate::Result;
use wgrad::{Array, Session, random::threefry2x32};
use wgrad_nn::{Gpt, data::Vocabulary};

/// The divisor of the logits before a symbol is drawn. A value below 1 makes likely symbols likelier.
const TEMPERATURE: f64 = 0.8;

/// Samples `count` characters one after another; each depends on the characters before it, as far back as the context
/// reaches. Returns the lines to print, the first of which is a heading.
///
/// # Errors
/// If the device fails.
pub fn sample(
    session: &mut Session,
    model: &Gpt,
    vocabulary: &Vocabulary,
    count: usize,
    seed: u64,
) -> Result<Vec<String>> {
    let context = model.config.context;
    // The sample starts as if a line had just ended.
    let mut symbols = vec![vocabulary.encode("\n").map_or(0, |symbols| symbols[0])];
    for at in 0..count as u32 {
        let window = &symbols[symbols.len().saturating_sub(context)..];
        // The decoder is causal, so the padding does not reach the positions before it.
        let padded = [window, &vec![0; context - window.len()]].concat();
        let (x, last) = (Array::new([1, context], padded), window.len() - 1);
        session.run_cached("sample", &[("x", &x)], |t| t.tap("logits", model.forward(t.input_like("x", &x), false)))?;
        session.wait()?;
        let taps = session.taps()?;
        let logits = taps.last().and_then(|taps| taps.get("logits")).expect("it is tapped").to_f64();
        let word = threefry2x32([seed as u32, (seed >> 32) as u32], [at, 0])[0];
        symbols.push(draw(&logits[last * vocabulary.len()..][..vocabulary.len()], f64::from(word) / 2f64.powi(32)));
    }
    let head = format!("A sample of {count} characters, at temperature {TEMPERATURE}:");
    let text = vocabulary.decode(&symbols[1..]);
    // Control characters could steer the terminal, so spaces replace them.
    let shown = |line: &str| format!("  | {}", line.replace(char::is_control, " "));
    Ok(std::iter::once(head).chain(text.lines().map(shown)).collect())
}

/// The symbol at `place`, in `[0, 1)`, of the cumulative distribution of the logits; the last symbol if the logits are
/// NaN.
fn draw(logits: &[f64], place: f64) -> u32 {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| ((logit - most) / TEMPERATURE).exp()).collect();
    let mut left = weights.iter().sum::<f64>() * place;
    let chosen = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    chosen.unwrap_or(logits.len() - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_drawn_by_their_probability() {
        // The odds are 1 : 32 at this temperature.
        let logits = [0.0, f64::NEG_INFINITY, 0.8 * 32f64.ln()];
        let drawn: Vec<u32> = (0..330).map(|i| draw(&logits, f64::from(i) / 330.0)).collect();
        assert_eq!([0, 1, 2].map(|symbol| drawn.iter().filter(|&&d| d == symbol).count()), [10, 0, 320]);
        assert!(drawn.is_sorted());
        assert_eq!(draw(&[f64::NAN; 3], 0.5), 2);
    }
}
