//! What a drafter has not read yet.

use pleach_model::MAX_ROWS;

/// Values of committed tokens that a drafter reads when the next draft needs them, at most [`MAX_ROWS`] of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending {
    /// Position of the first.
    pub(crate) start: usize,
    pub(crate) num_rows: usize,
    /// `[num_rows, width]`.
    pub(crate) values: Vec<f32>,
}

/// Whether what is pending continues what was read before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continuity {
    Kept,
    /// Tokens in between are missing: the drafter has to start anew.
    Broken,
}

impl Pending {
    /// Position after the last row.
    pub(crate) fn end(&self) -> usize {
        self.start + self.num_rows
    }

    /// Adds rows of `width` values of tokens from position `start` on.
    pub(crate) fn push(&mut self, start: usize, values: &[f32], width: usize) -> Continuity {
        let mut continuity = Continuity::Kept;
        if start != self.end() {
            *self = Self { start, ..Self::default() };
            continuity = Continuity::Broken;
        }
        self.values.extend_from_slice(values);
        self.num_rows += values.len() / width;
        let dropped = self.num_rows.saturating_sub(MAX_ROWS);
        if dropped > 0 {
            self.values.drain(..dropped * width);
            self.start += dropped;
            self.num_rows -= dropped;
            continuity = Continuity::Broken;
        }
        continuity
    }

    /// Bytes of its values.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&self.values[..])
    }

    /// Notes that everything was read.
    pub(crate) fn clear(&mut self) {
        self.start += self.num_rows;
        self.num_rows = 0;
        self.values.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_follow_each_other_are_kept() {
        let mut pending = Pending::default();
        assert_eq!(pending.push(0, &[1.0; 6], 2), Continuity::Kept);
        pending.clear();
        assert_eq!(pending.push(3, &[2.0; 2], 2), Continuity::Kept);
        assert_eq!((pending.start, pending.num_rows, pending.end()), (3, 1, 4));
        assert_eq!(pending.push(4, &[3.0; 2], 2), Continuity::Kept);
        assert_eq!((pending.start, pending.num_rows, &pending.values[..]), (3, 2, &[2.0, 2.0, 3.0, 3.0][..]));
        assert_eq!(pending.size_bytes(), 16);
    }

    #[test]
    fn a_gap_and_too_many_rows_break_off() {
        let mut pending = Pending::default();
        assert_eq!(pending.push(5, &[1.0; 2], 1), Continuity::Broken);
        assert_eq!((pending.start, pending.num_rows), (5, 2));
        assert_eq!(pending.push(7, &vec![3.0; MAX_ROWS], 1), Continuity::Broken);
        assert_eq!((pending.start, pending.num_rows, pending.values[0]), (7, MAX_ROWS, 3.0));
    }
}
