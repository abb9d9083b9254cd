//! Rotary position embedding: which angle each position turns each pair of entries by.

use serde_json::Value;
use verify::{Error, Result};

use crate::backend::Span;
use crate::families::Keys;

/// What a config says about the rotation. Its table is made by [`Self::table`], when tensors have shown that heads are
/// as wide as it says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeConfig {
    theta: f64,
    /// Entries of a head that are rotated.
    rotated: usize,
    scaling: Scaling,
}

/// How the frequencies are stretched.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scaling {
    None,
    /// All divided.
    Linear(f32),
    Llama3(Llama3),
}

/// Frequencies of the rotated part of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// `rotated / 2` frequencies, radians for each position.
    inverse: Vec<f32>,
}

impl RopeConfig {
    /// Reads `rope_parameters`, or `rope_theta`, `partial_rotary_factor` and `rope_scaling` of older files.
    ///
    /// # Errors
    /// Exit 3 for a scaling that is not implemented, by its name, and for numbers that make no sense.
    pub fn parse(keys: &Keys, head_dim: usize, default_theta: f64, default_part: f64) -> Result<Self> {
        let object = |key: &str| keys.get(key).filter(|v| v.is_object());
        let scaling = object("rope_parameters").or_else(|| object("rope_scaling"));
        let number = |key: &str, default: f64| match scaling.and_then(|s| s.get(key)).filter(|v| !v.is_null())
        {
            Some(v) => keys.as_number(v, key),
            None => keys.number_or(key, default),
        };
        let theta = number("rope_theta", default_theta)?;
        let part = number("partial_rotary_factor", default_part)?;
        let rotated = (head_dim as f64 * part) as usize;
        if !(theta > 0.0 && part > 0.0 && part <= 1.0) || rotated < 2 || !rotated.is_multiple_of(2) {
            return Err(keys
                .wrong("rotary embedding")
                .found(format!("theta {theta}, {rotated} of {head_dim} entries rotated"))
                .expected("a positive theta and an even number of rotated entries"));
        }
        let kind = scaling.and_then(|s| s.get("rope_type").or_else(|| s.get("type"))).and_then(Value::as_str);
        let scaling = match kind.unwrap_or("default") {
            // In text all three axes of mrope stand at the same position.
            "default" | "mrope" => Scaling::None,
            "linear" => {
                let factor = number("factor", f64::NAN)? as f32;
                check_factors(keys, &[factor])?;
                Scaling::Linear(factor)
            }
            "llama3" => {
                let scaled = Llama3 {
                    factor: number("factor", f64::NAN)? as f32,
                    low: number("low_freq_factor", f64::NAN)? as f32,
                    high: number("high_freq_factor", f64::NAN)? as f32,
                    original: number("original_max_position_embeddings", f64::NAN)? as f32,
                };
                check_factors(keys, &[scaled.factor, scaled.low, scaled.original, scaled.high - scaled.low])?;
                Scaling::Llama3(scaled)
            }
            other => return Err(refused(keys, other)),
        };
        Ok(RopeConfig { theta, rotated, scaling })
    }

    /// The frequencies.
    pub fn table(&self) -> Rope {
        let exponent = |i: usize| f64::from((2 * i) as f32 / self.rotated as f32);
        let scaled = |f: f32| match self.scaling {
            Scaling::None => f,
            Scaling::Linear(factor) => f / factor,
            Scaling::Llama3(llama3) => llama3.apply(f),
        };
        let plain = |i: usize| 1.0 / (self.theta.powf(exponent(i)) as f32);
        Rope { inverse: (0..self.rotated / 2).map(|i| scaled(plain(i))).collect() }
    }
}

impl Rope {
    /// Shape and values of the angles of every row: cosines, then sines, see [`crate::Backend::rotate`].
    pub fn angles(&self, spans: &[Span]) -> ([usize; 2], Vec<f32>) {
        let positions = || spans.iter().flat_map(|s| s.start..s.start + s.len);
        let mut values = Vec::new();
        for position in positions() {
            // The angle is rounded to f32 as the references do; its cosine then is the nearest f32, on every machine.
            let angle = |f: &f32| f64::from(position as f32 * f);
            values.extend(self.inverse.iter().map(|f| angle(f).cos() as f32));
            values.extend(self.inverse.iter().map(|f| angle(f).sin() as f32));
        }
        ([positions().count(), 2 * self.inverse.len()], values)
    }
}

/// Frequencies stretched as for Llama 3.1: slow ones by `factor`, fast ones not, with a ramp between.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Llama3 {
    factor: f32,
    low: f32,
    high: f32,
    original: f32,
}

impl Llama3 {
    fn apply(&self, f: f32) -> f32 {
        let wavelength = 2.0 * std::f32::consts::PI / f;
        if wavelength > self.original / self.low {
            f / self.factor
        } else if wavelength < self.original / self.high {
            f
        } else {
            let s = (self.original / wavelength - self.low) / (self.high - self.low);
            (1.0 - s) * f / self.factor + s * f
        }
    }
}

fn check_factors(keys: &Keys, factors: &[f32]) -> Result<()> {
    match factors.iter().all(|f| *f > 0.0 && f.is_finite()) {
        true => Ok(()),
        false => Err(keys.wrong("rotary scaling").expected("all factors present, positive and in order")),
    }
}

fn refused(keys: &Keys, kind: &str) -> Error {
    keys.wrong("rotary scaling")
        .found(format!("`{kind}`"))
        .expected("`default`, `linear` or `llama3`")
        .hint("remove the scaling to run the model within its original context")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(json: &str) -> Result<Rope> {
        let text = format!("{{\"model_type\":\"x\",{json}}}");
        let config = verify::checkpoint::Config::parse(text, std::path::Path::new("config.json"))?;
        Ok(RopeConfig::parse(&Keys::new(&config), 8, 10000.0, 1.0)?.table())
    }

    #[test]
    fn old_and_new_keys_say_the_same() {
        let new =
            rope(r#""rope_parameters":{"rope_type":"default","rope_theta":100,"partial_rotary_factor":0.5}"#);
        let old = rope(r#""rope_theta":100,"partial_rotary_factor":0.5,"rope_scaling":null"#);
        assert_eq!(new.unwrap(), old.unwrap());
    }

    #[test]
    fn unknown_scaling_is_refused_by_name() {
        let e = rope(r#""rope_scaling":{"type":"yarn","factor":4.0}"#).unwrap_err();
        assert!(e.to_string().contains("`yarn`"), "{e}");
    }

    #[test]
    fn llama3_leaves_fast_and_divides_slow() {
        let e = r#""rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
            "high_freq_factor":4.0,"original_max_position_embeddings":256}"#;
        let (plain, scaled) = (rope(r#""rope_theta":1e4"#).unwrap(), rope(e).unwrap());
        assert_eq!(scaled.inverse[0], plain.inverse[0]);
        assert_eq!(scaled.inverse[3], plain.inverse[3] / 8.0);
        assert!(rope(r#""rope_scaling":{"type":"llama3","factor":8.0}"#).is_err());
    }

    #[test]
    fn odd_rotation_is_refused() {
        assert!(rope(r#""partial_rotary_factor":0.4"#).is_err());
        assert!(rope(r#""rope_theta":0"#).is_err());
    }
}
