//! The read bandwidth and the 8-bit integer peak of this machine, on the device's own threads.
//!
//! Both loops are written against [`Simd`], so each instruction set is measured with the loads and products that its
//! kernels are made of.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use super::instruction_set::InstructionSet;
use super::memory::Arena;
use super::pool::Pool;
use super::share::for_each_part;
use super::simd::{CODE_BYTES, Codes, Kernel, LANES, Simd};
use crate::{Ceilings, Rate};

/// Memory that is read over and over: several times the last-level cache that one core complex of a server chip has.
const BYTES: usize = 256 << 20;

/// Piece of it that a thread takes at a time.
const PIECE_BYTES: usize = 2 << 20;

/// How far ahead of a load its cache line is asked for.
const AHEAD_BYTES: usize = 4096;

/// Time for each measurement, warm-up aside.
const TIME: Duration = Duration::from_millis(150);

/// Samples at least, however slow the machine is.
const SAMPLES: usize = 3;

/// Takes less than a second and, meanwhile, 256 MiB.
pub(super) fn measure(set: InstructionSet, pool: &mut Pool) -> Ceilings {
    Ceilings { read_bytes_per_s: read_rate(set, pool), int8_macs_per_s: int8_rate(set, pool) }
}

fn read_rate(set: InstructionSet, pool: &mut Pool) -> Rate {
    let mut memory = Arena::default().take(BYTES);
    // Pages that were never written are all the same zeroed page, which stays in the cache.
    for_each_part(pool, memory.bytes_mut(), PIECE_BYTES, 0, |_, part, bytes| bytes.fill(part as u8 | 1));
    let bytes = memory.bytes();
    sample(|| {
        pool.run(BYTES / PIECE_BYTES, &|chunk| {
            black_box(set.run(Read(&bytes[chunk.index * PIECE_BYTES..][..PIECE_BYTES])));
        });
        BYTES as f64
    })
}

/// The best of several numbers of rows: too few leave the multipliers waiting for codes, too many do not fit the registers;
/// and the better of codes of 8 bits and of 4: AVX2 multiplies the second faster.
fn int8_rate(set: InstructionSet, pool: &mut Pool) -> Rate {
    let bytes = [multiply_rate::<2, 255>, multiply_rate::<4, 255>, multiply_rate::<6, 255>];
    let nibbles = [multiply_rate::<2, 15>, multiply_rate::<4, 15>];
    let rates = bytes.iter().chain(&nibbles).map(|rate| rate(set, pool));
    rates.max_by(|a, b| a.median.total_cmp(&b.median)).expect("there are several")
}

fn multiply_rate<const R: usize, const MAX: i32>(set: InstructionSet, pool: &mut Pool) -> Rate {
    // More threads than processors multiply no faster, and would only take longer.
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let chunks = 8 * pool.num_threads().min(processors);
    sample(|| {
        pool.run(chunks, &|_| set.run(Multiply::<R, MAX>));
        (chunks * Multiply::<R, MAX>::MACS) as f64
    })
}

/// Rates of `once`, which says how much it did. The first call only warms up.
fn sample(mut once: impl FnMut() -> f64) -> Rate {
    once();
    let started = Instant::now();
    let mut rates = Vec::new();
    while rates.len() < SAMPLES || started.elapsed() < TIME {
        let start = Instant::now();
        let units = once();
        rates.push(units / start.elapsed().as_secs_f64());
    }
    Rate::of(rates)
}

/// Reads bytes, and does no more with them than it takes for the reads to happen.
struct Read<'a>(&'a [u8]);

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        // As many sums as hide the latency of an addition.
        const SUMS: usize = 8;
        let lines = self.0.as_chunks::<{ 4 * LANES }>().0.as_chunks::<SUMS>().0;
        let mut sums = [s.splat(0.0); SUMS];
        for lines in lines {
            for (sum, line) in sums.iter_mut().zip(lines) {
                s.prefetch(line.as_ptr().wrapping_add(AHEAD_BYTES));
                *sum = s.add(*sum, s.load_f32_bytes(line));
            }
        }
        sums.into_iter().map(|sum| s.sum(sum)).sum()
    }
}

/// Code vectors of each half that rows meet.
const VECTORS: usize = 8;

/// Products of codes up to `MAX` with activations, both in the first-level cache, as the inner loop of a tile has them: `R`
/// rows at a time.
struct Multiply<const R: usize, const MAX: i32>;

impl<const R: usize, const MAX: i32> Multiply<R, MAX> {
    const BLOCKS: usize = 4096 * 8 / R;
    const MACS: usize = Self::BLOCKS * R * 2 * VECTORS * CODE_BYTES;
}

impl<const R: usize, const MAX: i32> Kernel for Multiply<R, MAX> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let codes = [[3; CODE_BYTES]; 2 * VECTORS];
        let x = [[[5_i8; 4]; VECTORS]; R];
        for _ in 0..Self::BLOCKS {
            // Opaque from block to block, so that each is computed.
            let (codes, x) = (black_box(&codes), black_box(&x));
            let codes = Stored::<MAX>(codes);
            black_box(match MAX {
                255 => s.dot_bytes::<_, VECTORS, R, 2>(codes, x.each_ref(), [0; R]),
                _ => s.dot_codes::<_, VECTORS, R, 2>(codes, x.each_ref(), [0; R]),
            });
        }
    }
}

/// Bytes that are their own codes.
#[derive(Clone, Copy)]
struct Stored<'a, const MAX: i32>(&'a [[u8; CODE_BYTES]; 2 * VECTORS]);

impl<const MAX: i32> Codes for Stored<'_, MAX> {
    const MAX: i32 = MAX;

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, half: usize, p: usize) -> S::Codes {
        s.load_codes(&self.0[2 * p + half])
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    #[test]
    fn every_instruction_set_has_ceilings() {
        let mut pool = Pool::new(NonZeroUsize::MIN).unwrap();
        for set in InstructionSet::ALL.into_iter().filter(|set| set.is_available()) {
            let Rate { median, best } = int8_rate(set, &mut pool);
            // From slower than any machine to faster than a core of any.
            assert!((1e7..1e13).contains(&median) && best >= median, "{set}: {median}");
        }
    }

    #[test]
    fn samples_go_on_until_there_are_enough() {
        let mut calls = 0;
        let rate = sample(|| {
            calls += 1;
            std::thread::sleep(TIME / 2);
            1.0
        });
        assert_eq!(calls, 1 + SAMPLES);
        assert!(rate.best <= 2.0 / TIME.as_secs_f64(), "{rate:?}");
    }
}
