//! Rotary frequencies from the config.

use std::f64::consts::TAU;

use pleach_checkpoint::{RopeConfig, RopeScaling};

/// Frequencies of the rotated pairs: `[rotary_dim / 2]`, radians per position.
///
/// ```text
/// inv_freq[i] = theta^(−2i / rotary_dim), then scaled
/// ```
///
/// Llama 3 scaling: with the wavelength `λ = 2π / inv_freq` and the original context `L`, a frequency with
/// `λ < L / high_freq_factor` stays, one with `λ > L / low_freq_factor` is divided by `factor`, and those between are
/// blended linearly in `L / λ`. Source: the Llama 3.1 model card's `rope_scaling`.
pub(crate) fn inv_freq(rope: &RopeConfig) -> Vec<f32> {
    let pairs = rope.rotary_dim / 2;
    let plain = (0..pairs).map(|i| f64::from(rope.theta).powf(-2.0 * i as f64 / rope.rotary_dim as f64));
    let scaled = plain.enumerate().map(|(i, frequency)| scale(&rope.scaling, i, frequency));
    scaled.map(|frequency| frequency as f32).collect()
}

fn scale(scaling: &RopeScaling, i: usize, frequency: f64) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / f64::from(*factor),
        RopeScaling::Factors(factors) => frequency / f64::from(factors[i]),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
            let turns = *original_max_position_embeddings as f64 * frequency / TAU;
            let (low, high) = (f64::from(*low_freq_factor), f64::from(*high_freq_factor));
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (kept + (1.0 - kept) / f64::from(*factor))
        }
    }
}

#[cfg(test)]
mod tests {
    use pleach_checkpoint::RopePairing;

    use super::*;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta: 10000.0, rotary_dim: 8, scaling, pairing: RopePairing::Halves }
    }

    #[test]
    fn frequencies_fall_by_powers_of_theta() {
        let frequencies = inv_freq(&config(RopeScaling::None));
        for (found, expected) in frequencies.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            assert!((found / expected - 1.0_f32).abs() < 1e-6);
        }
    }

    #[test]
    fn factors_divide_each_frequency() {
        let frequencies = inv_freq(&config(RopeScaling::Factors(vec![1.0, 2.0, 4.0, 8.0])));
        assert!((frequencies[3] - 0.001 / 8.0).abs() < 1e-9);
    }
}
