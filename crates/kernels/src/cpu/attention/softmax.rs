//! Running maximum and sum of exponentials, of a block of positions and over blocks.

use crate::cpu::math::exp;
use crate::cpu::simd::{LANES, Simd};
use crate::host::KV_BLOCK;

/// Turns the scores of one query in one block into weights `exp(score − max)`; returns maximum and sum.
#[inline(always)]
pub(super) fn weights<S: Simd>(s: S, scores: &mut [f32; KV_BLOCK]) -> (f32, f32) {
    let scores = scores.as_chunks_mut::<LANES>().0;
    let mut max = s.splat(f32::NEG_INFINITY);
    for scores in &*scores {
        max = s.max(s.load(scores), max);
    }
    let max = s.max_lane(max);
    let mut sum = s.splat(0.0);
    for scores in scores {
        let weights = exp(s, s.sub(s.load(scores), s.splat(max)));
        s.store(weights, scores);
        sum = s.add(sum, weights);
    }
    (max, s.sum(sum))
}

/// Maxima and sums of several queries; as many lanes as queries, in whole vectors.
pub(super) struct Softmax<'a> {
    pub(super) max: &'a mut [f32],
    pub(super) sum: &'a mut [f32],
}

impl Softmax<'_> {
    /// Maximum and sum of a query that sees nothing of a block. The maximum is a number, so that such a block may come
    /// first: it then leaves what follows as if it had not been there.
    pub(super) const NOTHING: (f32, f32) = (f32::MIN, 0.0);

    /// Makes this that of a block of which no query sees anything.
    pub(super) fn skip(&mut self) {
        self.max.fill(Self::NOTHING.0);
        self.sum.fill(Self::NOTHING.1);
    }

    pub(super) fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
    }

    /// Takes another block in. `before` and `block` become what the outputs so far and those of the block are to be
    /// multiplied with: `exp(max − new max)` of either.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(&mut self, s: S, max: &[f32], sum: &[f32], before: &mut [f32], block: &mut [f32]) {
        let totals = self.max.as_chunks_mut::<LANES>().0.iter_mut().zip(self.sum.as_chunks_mut::<LANES>().0);
        let blocks = max.as_chunks::<LANES>().0.iter().zip(sum.as_chunks::<LANES>().0);
        let factors = before.as_chunks_mut::<LANES>().0.iter_mut().zip(block.as_chunks_mut::<LANES>().0);
        for (((total_max, total_sum), (max, sum)), (before, block)) in totals.zip(blocks).zip(factors) {
            let (old, new) = (s.load(total_max), s.load(max));
            let most = s.max(new, old);
            let (old, new) = (exp(s, s.sub(old, most)), exp(s, s.sub(new, most)));
            s.store(most, total_max);
            s.store(s.fma(new, s.load(sum), s.mul(old, s.load(total_sum))), total_sum);
            s.store(old, before);
            s.store(new, block);
        }
    }
}

/// `total = before · total + block · sums`.
#[inline(always)]
pub(super) fn merge_outputs<S: Simd>(s: S, before: f32, block: f32, sums: &[f32], total: &mut [f32]) {
    let (before, block) = (s.splat(before), s.splat(block));
    for (sums, total) in sums.as_chunks().0.iter().zip(total.as_chunks_mut().0) {
        s.store(s.fma(block, s.load(sums), s.mul(before, s.load(total))), total);
    }
}
