//! Numbers as JSON values.

use serde_json::Value;

/// A number; a text for NaN and infinities, which JSON lacks.
pub fn exact(value: f64) -> Value {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        _ => value.into(),
    }
}

/// As [`exact`], rounded to the digits of an f32.
pub fn number(value: f64) -> Value {
    if !value.is_finite() || !(value as f32).is_finite() {
        return exact(value);
    }
    // The shortest text that reads as the same f32.
    (value as f32).to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
