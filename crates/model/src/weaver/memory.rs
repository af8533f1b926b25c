//! Attention of a Weaver: over the prefix of the round and the ancestors of a node, a few dozen rows at most.
//!
//! It is computed here and not on the device, whose attention knows a committed text and the rows of one pass: a node's
//! ancestors come from earlier passes, and belong to a tree of which nothing is ever committed.

use std::array::from_fn;

/// Keys and values of the rows of one round.
#[derive(Debug)]
pub(super) struct Memory {
    num_heads: usize,
    head_dim: usize,
    /// Per block: `[rows, width]` of keys, rotated, and of values. The prefix comes first, then nodes as they were expanded.
    blocks: Vec<[Vec<f32>; 2]>,
    prefix_len: usize,
    /// For each node, its parent among the nodes.
    parents: Vec<Option<usize>>,
}

/// Cosines and sines of rotary positions.
#[derive(Debug)]
pub(super) struct Rotation {
    /// `[positions, head_dim / 2]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairs: usize,
}

impl Rotation {
    /// Angles `position · base^(−2i / head_dim)`, for positions below `positions`.
    pub(super) fn new(base: f32, head_dim: usize, positions: usize) -> Self {
        let pairs = head_dim / 2;
        let frequency = |pair: usize| f64::from(base).powf(-2.0 * pair as f64 / head_dim as f64);
        let angles = (0..positions).flat_map(|position| (0..pairs).map(move |pair| position as f64 * frequency(pair)));
        let (cos, sin) = angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip();
        Self { cos, sin, pairs }
    }

    /// Turns the pairs `(i, i + head_dim / 2)` of each head of a row.
    fn rotate(&self, row: &mut [f32], position: usize) {
        let angles = position * self.pairs..(position + 1) * self.pairs;
        let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
        for head in row.chunks_exact_mut(2 * self.pairs) {
            let (low, high) = head.split_at_mut(self.pairs);
            for ((low, high), (&cos, &sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}

impl Memory {
    pub(super) fn new(num_heads: usize, head_dim: usize, num_blocks: usize) -> Self {
        let blocks = (0..num_blocks).map(|_| Default::default()).collect();
        Self { num_heads, head_dim, blocks, prefix_len: 0, parents: Vec::new() }
    }

    /// Forgets the round.
    pub(super) fn clear(&mut self) {
        self.blocks.iter_mut().flatten().for_each(Vec::clear);
        self.parents.clear();
        self.prefix_len = 0;
    }

    /// Counts the rows so far as the prefix.
    pub(super) fn end_prefix(&mut self) {
        self.prefix_len = self.blocks[0][0].len() / self.width();
    }

    pub(super) fn prefix_len(&self) -> usize {
        self.prefix_len
    }

    fn width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Notes a node, and returns the rows that it sees: the prefix, its ancestors from the root down, and itself.
    pub(super) fn add_node(&mut self, parent: Option<usize>) -> Vec<usize> {
        let node = self.parents.len();
        // A parent comes before its children, so the walk upwards ends.
        self.parents.push(parent.filter(|&parent| parent < node));
        let path = std::iter::successors(Some(node), |&node| self.parents[node]);
        let mut seen: Vec<usize> = path.map(|node| self.prefix_len + node).collect();
        seen.extend((0..self.prefix_len).rev());
        seen.reverse();
        seen
    }

    /// Attention of new rows in one block, `[rows, width]`. `qkv` `[rows, 3 · width]` are their queries, keys and values
    /// before rotation; row `i` sees the rows `seen[i]` of the round, of which it is the last.
    pub(super) fn attend(
        &mut self,
        block: usize,
        qkv: &mut [f32],
        rotation: &Rotation,
        positions: &[usize],
        seen: &[Vec<usize>],
    ) -> Vec<f32> {
        let (width, head_dim) = (self.width(), self.head_dim);
        let [keys, values] = &mut self.blocks[block];
        for (row, &position) in qkv.chunks_exact_mut(3 * width).zip(positions) {
            rotation.rotate(&mut row[..width], position);
            rotation.rotate(&mut row[width..2 * width], position);
            keys.extend_from_slice(&row[width..2 * width]);
            values.extend_from_slice(&row[2 * width..]);
        }
        let mut attended = vec![0.0; seen.len() * width];
        let mut weights = Vec::new();
        for ((row, seen), out) in qkv.chunks_exact(3 * width).zip(seen).zip(attended.chunks_exact_mut(width)) {
            for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let first = head * head_dim;
                let query = &row[first..][..head_dim];
                weights.clear();
                weights.extend(seen.iter().map(|row| dot(query, &keys[row * width + first..][..head_dim])));
                softmax(&mut weights, 1.0 / (head_dim as f32).sqrt());
                for (row, &weight) in seen.iter().zip(&weights) {
                    let value = &values[row * width + first..][..head_dim];
                    out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
                }
            }
        }
        attended
    }
}

/// Shares `exp(scale · score)` of the whole.
fn softmax(scores: &mut [f32], scale: f32) {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = ((*score - highest) * scale).exp());
    let total: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= total);
}

/// `⟨x, y⟩`, in lanes that compile to vector instructions.
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (whole_x, rest_x) = x.as_chunks::<LANES>();
    let (whole_y, rest_y) = y.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (x, y) in whole_x.iter().zip(whole_y) {
        sums = from_fn(|lane| sums[lane] + x[lane] * y[lane]);
    }
    let rest: f32 = rest_x.iter().zip(rest_y).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_sees_the_prefix_its_ancestors_and_itself() {
        let mut memory = Memory::new(1, 2, 1);
        memory.blocks[0][0] = vec![0.0; 6];
        memory.end_prefix();
        assert_eq!(memory.add_node(None), [0, 1, 2, 3]);
        assert_eq!(memory.add_node(Some(0)), [0, 1, 2, 3, 4]);
        assert_eq!(memory.add_node(Some(0)), [0, 1, 2, 3, 5]);
        assert_eq!(memory.add_node(Some(2)), [0, 1, 2, 3, 5, 6]);
    }

    #[test]
    fn rotation_turns_pairs_by_the_position() {
        let rotation = Rotation::new(100.0, 4, 3);
        let mut row = [1.0, 1.0, 0.0, 0.0];
        rotation.rotate(&mut row, 2);
        let expected = [2f32.cos(), 0.2f32.cos(), 2f32.sin(), 0.2f32.sin()];
        assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{row:?}");
    }

    /// Two equal keys share the weight; a third is out of sight.
    #[test]
    fn what_is_not_seen_has_no_weight() {
        let mut memory = Memory::new(1, 2, 1);
        let rotation = Rotation::new(100.0, 2, 1);
        // Queries, keys and values of three rows.
        let mut qkv =
            [[1.0, 0.0, 3.0, 0.0, 1.0, 10.0], [1.0, 0.0, 3.0, 0.0, 2.0, 20.0], [1.0, 0.0, 3.0, 0.0, 6.0, 60.0]]
                .concat();
        let seen = [vec![0], vec![0, 1], vec![0, 2]];
        assert_eq!(memory.attend(0, &mut qkv, &rotation, &[0; 3], &seen), [1.0, 10.0, 1.5, 15.0, 3.5, 35.0]);
    }

    #[test]
    fn dots_count_every_element() {
        let x: Vec<f32> = (0..37).map(|i| i as f32).collect();
        assert_eq!(dot(&x, &x), (0..37).map(|i| i * i).sum::<i32>() as f32);
    }
}
