//! The rows of one pass: a forest over the ends of its sequences.

use std::ops::Range;

use crate::KernelError;

/// The rows that one sequence brings to a pass.
#[derive(Clone, Copy, Debug)]
pub struct SequenceRows<'a> {
    /// Committed tokens of the sequence, which its roots continue.
    pub len: usize,
    /// Token of each row.
    pub tokens: &'a [u32],
    /// Row (of this sequence) that each row continues, `None` for the committed end.
    pub parents: Parents<'a>,
}

/// How the rows of one sequence hang together.
#[derive(Clone, Copy, Debug)]
pub enum Parents<'a> {
    /// Each row continues the one before it.
    Chain,
    /// An explicit tree; parents come before their children.
    Tree(&'a [Option<usize>]),
    /// At consecutive positions as in a chain, but each row sees all rows of its sequence, those after it included.
    Block,
}

impl<'a> SequenceRows<'a> {
    /// Rows that follow each other: a prompt chunk, or one row of plain decoding.
    pub const fn chain(len: usize, tokens: &'a [u32]) -> Self {
        Self { len, tokens, parents: Parents::Chain }
    }

    /// Rows at consecutive positions that all see each other, as a block drafter has them. They are not for layers with a
    /// recurrent state, and not to be committed.
    pub const fn block(len: usize, tokens: &'a [u32]) -> Self {
        Self { len, tokens, parents: Parents::Block }
    }

    /// A token tree; parents come before their children.
    pub const fn tree(len: usize, tokens: &'a [u32], parents: &'a [Option<usize>]) -> Self {
        Self { len, tokens, parents: Parents::Tree(parents) }
    }
}

/// One row of a depth-first walk over the recurrent state; see [`Rows::delta_walk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaVisit {
    /// Row to compute.
    pub row: usize,
    /// State the row continues.
    pub start: DeltaStart,
    /// Saved-state slot that keeps the state after this row for its later children.
    pub save: Option<usize>,
}

/// The state a visited row continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaStart {
    /// The committed state of the row's sequence.
    Committed,
    /// The state after the row visited just before.
    Previous,
    /// A state saved earlier in the walk.
    Saved(usize),
}

/// Everything the ops of a pass need to know of its rows.
///
/// Row order is the caller's: all rows of sequence 0, then of sequence 1, and so on; a parent comes before its children.
#[derive(Debug, Default)]
pub struct Rows {
    tokens: Vec<u32>,
    parents: Vec<Option<usize>>,
    sequences: Vec<usize>,
    positions: Vec<usize>,
    rope_positions: Option<Vec<[u32; 3]>>,
    sequence_lens: Vec<usize>,
    /// Rows of each sequence whose rows all see each other; empty for other sequences.
    blocks: Vec<Range<usize>>,
    walk: Vec<DeltaVisit>,
    walk_starts: Vec<usize>,
    num_saved: usize,
}

/// By hand, because a derived `clone_from` would allocate: a pass keeps the rows of its last run and takes new ones with it.
impl Clone for Rows {
    fn clone(&self) -> Self {
        let mut rows = Self::default();
        rows.clone_from(self);
        rows
    }

    fn clone_from(&mut self, source: &Self) {
        // Naming every field makes the compiler ask for each one added later.
        let Self {
            tokens,
            parents,
            sequences,
            positions,
            rope_positions,
            sequence_lens,
            blocks,
            walk,
            walk_starts,
            num_saved,
        } = source;
        self.tokens.clone_from(tokens);
        self.parents.clone_from(parents);
        self.sequences.clone_from(sequences);
        self.positions.clone_from(positions);
        self.rope_positions.clone_from(rope_positions);
        self.sequence_lens.clone_from(sequence_lens);
        self.blocks.clone_from(blocks);
        self.walk.clone_from(walk);
        self.walk_starts.clone_from(walk_starts);
        self.num_saved = *num_saved;
    }
}

impl Rows {
    /// Lays out the rows of a pass.
    ///
    /// # Errors
    /// [`KernelError::Parent`] if a parent is not an earlier row, [`KernelError::RowLists`] if lists differ in length.
    pub fn new(sequences: &[SequenceRows<'_>]) -> Result<Self, KernelError> {
        let mut rows = Self::default();
        for (sequence, part) in sequences.iter().enumerate() {
            rows.push_sequence(sequence, part)?;
        }
        rows.plan_walk();
        Ok(rows)
    }

    /// Replaces the rotary positions of text by (temporal, height, width) triples, one per row.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if there is not one triple per row.
    pub fn with_rope_positions(mut self, positions: Vec<[u32; 3]>) -> Result<Self, KernelError> {
        if positions.len() != self.len() {
            let (found, expected) = (positions.len(), self.len());
            return Err(KernelError::Shape { op: "rows", argument: "rope_positions", found, expected });
        }
        self.rope_positions = Some(positions);
        Ok(self)
    }

    fn push_sequence(&mut self, sequence: usize, part: &SequenceRows<'_>) -> Result<(), KernelError> {
        let base = self.tokens.len();
        if let Parents::Tree(parents) = part.parents
            && parents.len() != part.tokens.len()
        {
            return Err(KernelError::RowLists { sequence, tokens: part.tokens.len(), parents: parents.len() });
        }
        for (row, &token) in part.tokens.iter().enumerate() {
            let parent = match part.parents {
                Parents::Chain | Parents::Block => row.checked_sub(1),
                Parents::Tree(parents) => parents[row],
            };
            if let Some(parent) = parent.filter(|&parent| parent >= row) {
                return Err(KernelError::Parent { sequence, row, parent });
            }
            let parent = parent.map(|parent| base + parent);
            let position = parent.map_or(part.len, |parent| self.positions[parent] + 1);
            self.tokens.push(token);
            self.parents.push(parent);
            self.sequences.push(sequence);
            self.positions.push(position);
        }
        let is_block = matches!(part.parents, Parents::Block);
        self.blocks.push(base..if is_block { self.tokens.len() } else { base });
        self.sequence_lens.push(part.len);
        Ok(())
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Number of sequences.
    pub fn num_sequences(&self) -> usize {
        self.sequence_lens.len()
    }

    /// Committed tokens of a sequence.
    pub fn sequence_len(&self, sequence: usize) -> usize {
        self.sequence_lens[sequence]
    }

    /// Token of each row.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Sequence that a row belongs to.
    pub fn sequence(&self, row: usize) -> usize {
        self.sequences[row]
    }

    /// Row that a row continues; `None` is the committed end of its sequence.
    pub fn parent(&self, row: usize) -> Option<usize> {
        self.parents[row]
    }

    /// Place of a row in its sequence: committed length plus depth.
    pub fn position(&self, row: usize) -> usize {
        self.positions[row]
    }

    /// Places that a row sees: the committed tokens, and the rows that [`path_into`](Self::path_into) gives.
    pub fn seen(&self, row: usize) -> usize {
        let sequence = self.sequences[row];
        match self.blocks[sequence].len() {
            0 => self.positions[row] + 1,
            block => self.sequence_lens[sequence] + block,
        }
    }

    /// Rotary position of a row on axis 0 (temporal), 1 (height) or 2 (width); text has the same on all three.
    pub fn rope_position(&self, row: usize, axis: usize) -> u32 {
        match &self.rope_positions {
            Some(positions) => positions[row][axis],
            None => u32::try_from(self.positions[row]).unwrap_or(u32::MAX),
        }
    }

    /// Writes the rows that `row` sees into `path`: those from the root down to itself, or all of a block.
    ///
    /// The place of a row in it, added to the committed length, is its position.
    pub fn path_into(&self, row: usize, path: &mut Vec<usize>) {
        path.clear();
        let block = &self.blocks[self.sequences[row]];
        if !block.is_empty() {
            path.extend(block.clone());
            return;
        }
        let mut next = Some(row);
        while let Some(row) = next {
            path.push(row);
            next = self.parents[row];
        }
        path.reverse();
    }

    /// The depth-first order in which one sequence's recurrent states are computed.
    ///
    /// A state is saved only after a row with several children, so that the memory is one state per branch point of a
    /// path and the arithmetic of a row is the same as in plain decoding.
    pub fn delta_walk(&self, sequence: usize) -> &[DeltaVisit] {
        &self.walk[self.walk_starts[sequence]..self.walk_starts[sequence + 1]]
    }

    /// Saved-state slots that [`delta_walk`](Self::delta_walk) uses.
    pub fn num_saved(&self) -> usize {
        self.num_saved
    }

    /// Checks that `path` is a chain of rows from the committed end of one sequence, and returns that sequence.
    ///
    /// # Errors
    /// [`KernelError::Path`] with the first row that breaks the chain; an empty path breaks at row 0.
    pub fn check_path(&self, path: &[usize]) -> Result<usize, KernelError> {
        let mut before = None;
        for (place, &row) in path.iter().enumerate() {
            if row >= self.len() || self.parents[row] != before {
                return Err(KernelError::Path { row, place });
            }
            before = Some(row);
        }
        before.map(|row| self.sequences[row]).ok_or(KernelError::Path { row: 0, place: 0 })
    }

    fn plan_walk(&mut self) {
        let mut children = vec![Vec::new(); self.len()];
        let mut roots = vec![Vec::new(); self.num_sequences()];
        for row in 0..self.len() {
            match self.parents[row] {
                Some(parent) => children[parent].push(row),
                None => roots[self.sequences[row]].push(row),
            }
        }
        self.walk_starts.push(0);
        for roots in &roots {
            // A pending row carries the slots already in use on its path, so siblings' subtrees share slots.
            let mut pending: Vec<_> = roots.iter().rev().map(|&row| (row, DeltaStart::Committed, 0)).collect();
            while let Some((row, start, used)) = pending.pop() {
                let save = (children[row].len() > 1).then_some(used);
                self.num_saved = self.num_saved.max(save.map_or(0, |slot| slot + 1));
                self.walk.push(DeltaVisit { row, start, save });
                let used = used + usize::from(save.is_some());
                for (place, &child) in children[row].iter().enumerate().rev() {
                    let start = match save {
                        Some(slot) if place > 0 => DeltaStart::Saved(slot),
                        _ => DeltaStart::Previous,
                    };
                    pending.push((child, start, used));
                }
            }
            self.walk_starts.push(self.walk.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_block_see_each_other_and_no_other_sequence() {
        let rows = Rows::new(&[SequenceRows::chain(5, &[1, 2]), SequenceRows::block(7, &[3, 4, 5])]).unwrap();
        let seen = |row| {
            let mut path = Vec::new();
            rows.path_into(row, &mut path);
            path
        };
        assert_eq!([seen(0), seen(1)], [vec![0], vec![0, 1]]);
        assert_eq!([seen(2), seen(4)], [vec![2, 3, 4], vec![2, 3, 4]]);
        assert_eq!([2, 3, 4].map(|row| rows.position(row)), [7, 8, 9]);
        assert_eq!([0, 1, 2, 4].map(|row| rows.seen(row)), [6, 7, 10, 10]);
    }

    #[test]
    fn a_chain_continues_the_committed_end() {
        let rows = Rows::new(&[SequenceRows::chain(5, &[1, 2, 3])]).unwrap();
        assert_eq!((0..3).map(|row| rows.position(row)).collect::<Vec<_>>(), [5, 6, 7]);
        let starts: Vec<_> = rows.delta_walk(0).iter().map(|visit| visit.start).collect();
        assert_eq!(starts, [DeltaStart::Committed, DeltaStart::Previous, DeltaStart::Previous]);
        assert_eq!(rows.num_saved(), 0);
    }

    #[test]
    fn only_branch_points_are_saved() {
        // 0 ─┬─ 1 ── 3
        //    └─ 2 ─┬─ 4
        //          └─ 5
        let parents = [None, Some(0), Some(0), Some(1), Some(2), Some(2)];
        let rows = Rows::new(&[SequenceRows::tree(0, &[0; 6], &parents)]).unwrap();
        let walk: Vec<_> = rows.delta_walk(0).iter().map(|v| (v.row, v.start, v.save)).collect();
        assert_eq!(
            walk,
            [
                (0, DeltaStart::Committed, Some(0)),
                (1, DeltaStart::Previous, None),
                (3, DeltaStart::Previous, None),
                (2, DeltaStart::Saved(0), Some(1)),
                (4, DeltaStart::Previous, None),
                (5, DeltaStart::Saved(1), None),
            ]
        );
        assert_eq!(rows.num_saved(), 2);
    }

    #[test]
    fn sequences_do_not_share_parents() {
        let rows = Rows::new(&[SequenceRows::chain(2, &[1, 2]), SequenceRows::chain(9, &[3])]).unwrap();
        assert_eq!(rows.parent(2), None);
        assert_eq!((rows.sequence(2), rows.position(2)), (1, 9));
    }

    #[test]
    fn a_parent_must_come_first() {
        let error = Rows::new(&[SequenceRows::tree(0, &[1, 2], &[None, Some(1)])]).unwrap_err();
        assert_eq!(error.to_string(), "row 1 of sequence 0 has parent 1, expected an earlier row or none");
    }

    #[test]
    fn a_path_must_start_at_the_committed_end() {
        let rows = Rows::new(&[SequenceRows::chain(0, &[1, 2, 3])]).unwrap();
        assert_eq!(rows.check_path(&[0, 1]).unwrap(), 0);
        assert!(matches!(rows.check_path(&[1]), Err(KernelError::Path { row: 1, place: 0 })));
        assert!(matches!(rows.check_path(&[0, 2]), Err(KernelError::Path { row: 2, place: 1 })));
        assert!(rows.check_path(&[]).is_err());
        assert!(rows.check_path(&[7]).is_err());
    }
}
