//! Noise that depends on a seed, a position and a token, and on nothing else.
//!
//! The token at a position is the argmax of logits plus Gumbel noise. Since the noise is a pure function of its place,
//! it does not matter in which pass, in which order or how often a position is looked at: drafting cannot move it.

use crate::TokenId;
use crate::math::{ln, ln_1p};

/// Largest value [`Noise::gumbel`] can give is below this.
pub(crate) const GUMBEL_MAX: f32 = 23.0;

/// Tokens that share one call of the generator.
pub(crate) const BLOCK: usize = 4;

/// Standard Gumbel noise keyed by (seed, position, token).
///
/// The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
/// SC 2011). Its key is the hashed seed, its counter is the position and a quarter of the token id, and the last two
/// bits of the token id pick one of the four words. With `u = (word + ½) / 2³²`, open at both ends,
///
/// ```text
/// gumbel = −ln(−ln(1 − u))
/// ```
///
/// in f32, by additions and multiplications in a fixed order only, so every platform computes the same bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noise {
    key: [u32; 2],
}

impl Noise {
    /// Noise of a seed. The seed is hashed first, so that neighboring seeds share nothing.
    pub fn new(seed: u64) -> Self {
        let hashed = split_mix(seed);
        Self { key: [hashed as u32, (hashed >> 32) as u32] }
    }

    /// Standard Gumbel noise of one token at one position of the sequence, in (−3.2, 23).
    pub fn gumbel(&self, position: u64, token: TokenId) -> f32 {
        let words = self.words(position, token / BLOCK as u32);
        gumbel_of(words[token as usize % BLOCK])
    }

    /// The random words of tokens `4·block ..= 4·block + 3` at a position.
    pub(crate) fn words(&self, position: u64, block: u32) -> [u32; BLOCK] {
        philox([block, 0, position as u32, (position >> 32) as u32], self.key)
    }
}

/// Gumbel noise made of one random word.
pub(crate) fn gumbel_of(word: u32) -> f32 {
    -ln(exponential(word))
}

/// A bound that `gumbel_of(word)` never exceeds, without a logarithm.
///
/// `−ln(1 − u) ≥ u ≥ 2^−(z+1)` for a word with `z` leading zeros, so the noise is at most `(z + 1)·ln 2`; the constant
/// is rounded up by far more than the noise's own rounding.
pub(crate) fn gumbel_bound(word: u32) -> f32 {
    (word.leading_zeros() + 1) as f32 * 0.6932
}

/// `−ln(1 − u)` with full relative precision: small values, which become large noise, must not be coarse, or rare
/// tokens would be drawn too often or never.
fn exponential(word: u32) -> f32 {
    const SCALE: f32 = 1.0 / 4_294_967_296.0;
    if word < 1 << 30 { -ln_1p(-((word as f32 + 0.5) * SCALE)) } else { -ln((!word as f32 + 0.5) * SCALE) }
}

/// SplitMix64's output for a state (Steele, Lea and Flood, OOPSLA 2014): a bijection, so no two seeds meet.
fn split_mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Philox4x32 with ten rounds.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let even = u64::from(counter[0]) * 0xd251_1f53;
        let odd = u64::from(counter[2]) * 0xcd9e_8d57;
        counter = [
            (odd >> 32) as u32 ^ counter[1] ^ key[0],
            odd as u32,
            (even >> 32) as u32 ^ counter[3] ^ key[1],
            even as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with Random123 for `philox4x32` with 10 rounds.
    #[test]
    fn philox_gives_the_published_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn split_mix_gives_the_published_answers() {
        assert_eq!(split_mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(split_mix(1_234_567), 6_457_827_717_110_365_317);
    }

    /// Bits that every platform and every version must give: recorded texts depend on them.
    #[test]
    fn noise_has_its_recorded_bits() {
        let noise = Noise::new(42);
        let recorded = [
            (0, 0, 0xb958_fa41),
            (0, 1, 0x3f98_9846),
            (7, 248_319, 0xbed0_2a88),
            (1 << 40, 3, 0x3ecb_d091),
            (123_456, 77_777, 0xbfda_41d0),
        ];
        for (position, token, bits) in recorded {
            assert_eq!(noise.gumbel(position, token).to_bits(), bits, "position {position}, token {token}");
        }
    }

    #[test]
    fn ends_of_the_range_are_open() {
        for word in [0, 1, 2, (1 << 30) - 1, 1 << 30, 1 << 31, u32::MAX - 1, u32::MAX] {
            let gumbel = gumbel_of(word);
            assert!((-3.2..GUMBEL_MAX).contains(&gumbel), "word {word:#x} gives {gumbel}");
        }
    }

    #[test]
    fn noise_falls_as_its_word_rises() {
        let mut last = f32::INFINITY;
        for word in (0..u32::MAX - 65_537).step_by(65_537) {
            let gumbel = gumbel_of(word);
            assert!(gumbel <= last, "word {word:#x} gives {gumbel} after {last}");
            last = gumbel;
        }
    }

    #[test]
    fn noise_matches_double_precision() {
        for word in (0..u32::MAX).step_by(104_729) {
            let u = (f64::from(word) + 0.5) / 4_294_967_296.0;
            let exact = -(-(-u).ln_1p()).ln();
            assert!((f64::from(gumbel_of(word)) - exact).abs() <= 3e-7 * exact.abs().max(1.0), "word {word:#x}");
        }
    }

    #[test]
    fn bound_is_never_exceeded() {
        let edges = (0..32).flat_map(|bit| [1u32 << bit, (1u32 << bit) - 1, (1u32 << bit) + 1]);
        for word in edges.chain((0..u32::MAX).step_by(104_729)) {
            assert!(gumbel_of(word) <= gumbel_bound(word), "word {word:#x}");
        }
        assert!(gumbel_bound(0) <= GUMBEL_MAX);
    }

    #[test]
    fn a_next_seed_is_not_a_shifted_seed() {
        let sequence = |seed| (0..200).map(|position| Noise::new(seed).gumbel(position, 7)).collect::<Vec<_>>();
        let (first, second) = (sequence(41), sequence(42));
        for lag in 0..100 {
            let shared = first[lag..].iter().zip(&second).filter(|(a, b)| a == b).count()
                + second[lag..].iter().zip(&first).filter(|(a, b)| a == b).count();
            assert_eq!(shared, 0, "lag {lag}");
        }
    }

    #[test]
    fn every_part_of_the_key_counts() {
        let base = Noise::new(1).gumbel(5, 9);
        assert_ne!(base, Noise::new(2).gumbel(5, 9));
        assert_ne!(base, Noise::new(1).gumbel(6, 9));
        assert_ne!(base, Noise::new(1).gumbel(5 + (1 << 32), 9));
        assert_ne!(base, Noise::new(1).gumbel(5, 10));
        assert_ne!(base, Noise::new(1).gumbel(5, 13));
    }

    #[test]
    fn moments_are_those_of_the_gumbel_distribution() {
        let noise = Noise::new(3);
        let draws: Vec<f64> = (0..200_000).map(|i| f64::from(noise.gumbel(i / 100, (i % 100) as u32))).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.577_215_7).abs() < 0.01, "mean {mean}");
        assert!((variance - 1.644_934).abs() < 0.03, "variance {variance}");
    }
}
