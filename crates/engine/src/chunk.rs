//! How much of a prompt a pass reads while texts are being written.

/// A pass with a part of a prompt may take as long as this many passes without.
const PASSES: f64 = 4.0;

/// Tokens of a prompt that a pass reads at least: fewer would make the prompt's reader wait for ever.
const FEWEST: usize = 8;

/// Tokens that are read before it is known what they take.
const FIRST: usize = 16;

/// Weight of the latest pass in the mean.
const LATEST: f64 = 0.3;

/// Seconds that a token of a prompt takes at least, and at most.
const SHORTEST_S: f64 = 1e-6;
const LONGEST_S: f64 = 1.0;

/// Learns what tokens of prompts take, and lets running texts wait no longer than a few of their passes.
#[derive(Debug, Default)]
pub(crate) struct ChunkPace {
    token_s: Option<f64>,
}

impl ChunkPace {
    /// Tokens for a pass beside texts whose own pass takes `plain_s`, if that is known; at most `most`.
    pub(crate) fn tokens(&self, plain_s: Option<f64>, most: usize) -> usize {
        let tokens = match (plain_s, self.token_s) {
            (Some(plain_s), Some(token_s)) => ((PASSES - 1.0) * plain_s / token_s) as usize,
            _ => FIRST,
        };
        tokens.max(FEWEST).min(most)
    }

    /// Notes what `tokens` tokens added to a pass. Times that no token takes, as noise and a machine that slept give them, count
    /// as the nearest that one may take.
    pub(crate) fn record(&mut self, tokens: usize, seconds: f64) {
        let token_s = (seconds / tokens.max(1) as f64).clamp(SHORTEST_S, LONGEST_S);
        self.token_s = Some(self.token_s.map_or(token_s, |before| before + LATEST * (token_s - before)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_takes_as_long_as_a_few_passes() {
        let mut pace = ChunkPace::default();
        assert_eq!(pace.tokens(Some(0.02), 256), FIRST);
        (0..40).for_each(|_| pace.record(16, 16.0 * 0.001));
        assert_eq!(pace.tokens(Some(0.0201), 256), 60);
        assert_eq!(pace.tokens(Some(9.0), 256), 256);
        assert_eq!(pace.tokens(Some(1e-9), 256), FEWEST);
        assert_eq!(pace.tokens(Some(1e-9), 4), 4);
    }

    #[test]
    fn odd_times_do_no_harm() {
        for odd in [-1.0, 0.0, 1e300, f64::INFINITY] {
            let mut pace = ChunkPace::default();
            pace.record(0, odd);
            // Within a few passes it is what it would be without.
            (0..30).for_each(|_| pace.record(16, 16.0 * 0.001));
            assert!((50..=61).contains(&pace.tokens(Some(0.0201), 256)), "{odd}: {}", pace.tokens(Some(0.0201), 256));
        }
    }
}
