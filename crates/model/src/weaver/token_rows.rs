//! Rows of values that depend on a token alone: texts use few tokens again and again.

use std::collections::HashMap;

/// Bytes that the rows take at most.
const MOST_BYTES: usize = 16 << 20;

/// Rows by token. When they are full, all are forgotten: what is in use is soon there again.
#[derive(Debug)]
pub(super) struct TokenRows {
    width: usize,
    places: HashMap<u32, usize>,
    /// `[rows, width]`.
    values: Vec<f32>,
}

impl TokenRows {
    pub(super) fn new(width: usize) -> Self {
        Self { width, places: HashMap::new(), values: Vec::new() }
    }

    /// Those of `tokens` that are not there, once each. After these are inserted, all of `tokens` are there.
    pub(super) fn missing(&mut self, tokens: &[u32]) -> Vec<u32> {
        if size_of::<f32>() * (self.values.len() + tokens.len() * self.width) > MOST_BYTES {
            self.places.clear();
            self.values.clear();
        }
        let mut missing: Vec<u32> = tokens.iter().copied().filter(|token| !self.places.contains_key(token)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Keeps the row of a token, given in parts.
    pub(super) fn insert(&mut self, token: u32, parts: &[&[f32]]) {
        self.places.insert(token, self.values.len() / self.width);
        parts.iter().for_each(|part| self.values.extend_from_slice(part));
    }

    /// The row of a token that is there.
    pub(super) fn get(&self, token: u32) -> &[f32] {
        &self.values[self.places[&token] * self.width..][..self.width]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_until_there_are_too_many() {
        let mut rows = TokenRows::new(3);
        assert_eq!(rows.missing(&[9, 4, 9]), [4, 9]);
        rows.insert(4, &[&[1.0], &[2.0, 3.0]]);
        rows.insert(9, &[&[4.0, 5.0, 6.0]]);
        assert_eq!(rows.missing(&[4, 7]), [7]);
        assert_eq!((rows.get(4), rows.get(9)), (&[1.0, 2.0, 3.0][..], &[4.0, 5.0, 6.0][..]));
        let many: Vec<u32> = (0..MOST_BYTES as u32 / 12).collect();
        assert_eq!(rows.missing(&many).len(), many.len(), "what does not fit beside them takes their place");
    }
}
