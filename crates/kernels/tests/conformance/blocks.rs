//! What block drafters need: rows that see each other, windows, and convolutions inside a block.

use std::num::NonZeroUsize;

use pleach_kernels::ops::{AttentionShape, Sight};
use pleach_kernels::{
    Capacity, DType, Device, KvLayout, KvValues, Ops, PassInputs, Rows, SequenceRows, StateLayout, StateValues,
};

use super::attention::{SMALL, bare_heads, check_rows, layout};
use crate::support::case::{Case, Record, restored};
use crate::support::random::{Random, SHAPES, Shape, Tree, forest};
use crate::support::{Tolerance, bits, devices};

/// Rows of several sequences, each a block or a tree.
fn rows(parts: &[(usize, usize, Option<Shape>)]) -> Rows {
    let mut random = Random::new(parts.len() as u64);
    let trees: Vec<_> =
        parts.iter().map(|&(len, n, shape)| (len, vec![0; n], shape.map(|shape| random.tree(shape, n)))).collect();
    let parts: Vec<_> = trees
        .iter()
        .map(|(len, tokens, parents)| match parents {
            Some(parents) => SequenceRows::tree(*len, tokens, parents),
            None => SequenceRows::block(*len, tokens),
        })
        .collect();
    Rows::new(&parts).unwrap()
}

fn sight(window: Option<usize>, causal: bool) -> Sight {
    Sight { window: window.and_then(NonZeroUsize::new), causal }
}

/// Heads that fill registers and heads that do not.
fn shapes() -> [AttentionShape; 3] {
    let shape = |num_attention_heads, num_key_value_heads, head_dim| AttentionShape {
        num_attention_heads,
        num_key_value_heads,
        head_dim,
    };
    [SMALL, shape(9, 3, 64), shape(8, 1, 20)]
}

#[test]
fn rows_of_a_block_see_each_other() {
    for (seed, len) in [0, 1, 55, 63, 64, 130].into_iter().enumerate() {
        for n in [1, 2, 8, 17, 64] {
            check_rows(Random::new(seed as u64), SMALL, DType::F16, false, Sight::ALL, &rows(&[(len, n, None)]));
        }
    }
    for (seed, shape) in shapes().into_iter().enumerate() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8] {
            check_rows(Random::new(seed as u64), shape, dtype, true, Sight::ALL, &rows(&[(70, 16, None)]));
        }
    }
    // Few rows after a long text, whose blocks of positions are shared out among threads.
    check_rows(Random::new(9), SMALL, DType::F16, false, Sight::ALL, &rows(&[(1500, 8, None)]));
}

#[test]
fn blocks_stand_beside_other_sequences() {
    let parts = [(5, 7, Some(Shape::Binary)), (40, 16, None), (0, 1, Some(Shape::Chain)), (90, 8, None)];
    for sight in [Sight::ALL, sight(None, true), sight(Some(11), false)] {
        check_rows(Random::new(3), SMALL, DType::F32, true, sight, &rows(&parts));
    }
}

#[test]
fn causal_layers_see_no_later_rows_of_a_block() {
    for len in [0, 61, 200] {
        for n in [1, 8, 40] {
            check_rows(Random::new(n as u64), SMALL, DType::F16, false, sight(None, true), &rows(&[(len, n, None)]));
        }
    }
}

/// Windows that end inside a block of positions, at its end, before the pass and in it.
#[test]
fn windows_of_every_size() {
    for window in [1, 2, 5, 16, 63, 64, 65, 128, 150, 1000] {
        for causal in [false, true] {
            for (len, n) in [(0, 8), (3, 1), (64, 16), (190, 8), (200, 40)] {
                let sight = sight(Some(window), causal);
                check_rows(Random::new(window as u64), SMALL, DType::F16, false, sight, &rows(&[(len, n, None)]));
            }
        }
    }
    for dtype in [DType::F32, DType::BF16, DType::I8] {
        for shape in shapes() {
            check_rows(Random::new(5), shape, dtype, true, sight(Some(70), true), &rows(&[(300, 8, None)]));
        }
    }
}

#[test]
fn windows_over_chains_and_trees() {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        for window in [1, 4, 80] {
            let rows = rows(&[(75, 20, Some(shape)), (2, 9, Some(shape))]);
            check_rows(Random::new(seed as u64), SMALL, DType::F16, false, sight(Some(window), true), &rows);
        }
    }
}

/// A window far behind the first block, over enough positions for blocks to be shared out among threads.
#[test]
fn windows_after_a_long_text() {
    for window in [100, 1000] {
        for n in [1, 8] {
            let rows = rows(&[(2500, n, None)]);
            check_rows(Random::new(1), SMALL, DType::F16, true, sight(Some(window), false), &rows);
        }
    }
    let wide = AttentionShape { num_attention_heads: 20, num_key_value_heads: 1, head_dim: 256 };
    check_rows(Random::new(2), wide, DType::F16, false, sight(Some(900), true), &rows(&[(2500, 3, None)]));
}

/// Attention of the last of some rows, of which the first few are committed.
fn last_row(device: &dyn Device, sight: Sight, keys: &[f32], values: &[f32], committed: usize) -> Vec<u32> {
    let width = SMALL.key_value_width();
    let layout = KvLayout { window: sight.window, ..layout(SMALL, DType::F16) };
    let state_layout = StateLayout { attention: vec![layout], delta: vec![] };
    let cut = |all: &[f32]| all[..committed * width].to_vec();
    let cache = KvValues { keys: cut(keys), values: cut(values) };
    let state = StateValues { len: committed, attention: vec![cache], delta: vec![] };
    let state = restored(device, &state_layout, &state);
    let count = keys.len() / width - committed;
    let mut ops = Ops::new(Capacity { rows: count, outputs: 1 });
    let [q, k, v] = [SMALL.query_width(), width, width].map(|width| ops.input(width));
    let inv_freq = device.param(vec![]).unwrap();
    let heads = bare_heads(&mut ops, [q, k, v], SMALL, false, &inv_freq, DType::F16).unwrap();
    let out = ops.attention_within(sight, 0, layout, SMALL, 0.25, heads).unwrap();
    ops.keep(out);
    let mut pass = device.prepare(ops.finish()).unwrap();
    let rows = forest(&[Tree::chain(committed, vec![0; count])]);
    let queries: Vec<f32> = (0..count).flat_map(|_| (0..SMALL.query_width()).map(|i| (i as f32 * 0.7).sin())).collect();
    let inputs = [(q, &queries[..]), (k, &keys[committed * width..]), (v, &values[committed * width..])];
    pass.run(&PassInputs { rows: &rows, outputs: &[], inputs: &inputs }, &[&*state]).unwrap();
    let out = pass.read(out).unwrap();
    bits(&out[(count - 1) * SMALL.query_width()..])
}

/// Whether ancestors are committed or still in the pass changes no bit, with windows as without.
#[test]
fn windows_do_not_depend_on_what_is_committed() {
    let mut random = Random::new(4);
    let count = 210;
    let [keys, values] = [(); 2].map(|()| random.normals(count * SMALL.key_value_width()));
    // As an f16 cache holds them, so that both ways are given the same.
    let round = |all: Vec<f32>| all.into_iter().map(|x| half::f16::from_f32(x).to_f32()).collect::<Vec<_>>();
    let (keys, values) = (round(keys), round(values));
    for device in devices() {
        for window in [3, 64, 100] {
            let sight = sight(Some(window), true);
            let expected = last_row(&*device, sight, &keys, &values, count - 1);
            for committed in [0, 63, 64, 150, count - 2] {
                let found = last_row(&*device, sight, &keys, &values, committed);
                assert_eq!(found, expected, "{}, window {window}, {committed} committed", device.describe());
            }
        }
    }
}

fn check_grouped_conv(seed: u64, channels: usize, taps: usize, group_size: usize, rows: &Rows) {
    let mut random = Random::new(seed);
    let groups = channels / group_size;
    let x = random.normals(rows.len() * channels);
    let dynamic = random.normals(rows.len() * 2 * taps * groups);
    let base = random.normals(2 * taps * channels);
    let record: &Record<'_> = &|device, ops, inputs| {
        let base = device.param(base.clone())?;
        [0, 1].map(|side| ops.grouped_conv(inputs[0], &base, inputs[1], side, [taps, group_size])).into_iter().collect()
    };
    let formula = |side: usize, row: usize, c: usize| {
        let mut path = Vec::new();
        let mut next = Some(row);
        while let Some(row) = next {
            path.push(row);
            next = rows.parent(row);
        }
        let tap = |(j, &at): (usize, &usize)| {
            let base = base[(side * taps + j) * channels + c];
            let added = dynamic[(row * 2 * taps + side * taps + j) * groups + c / group_size];
            (f64::from(base) + f64::from(added)) * f64::from(x[at * channels + c])
        };
        path.iter().take(taps).enumerate().map(tap).sum::<f64>()
    };
    let side = |side: usize| {
        (0..rows.len())
            .flat_map(|row| (0..channels).map(move |c| (row, c)))
            .map(|(row, c)| formula(side, row, c))
            .collect()
    };
    Case {
        name: format!(
            "grouped_conv of {channels} channels in groups of {group_size}, {taps} taps, {} rows",
            rows.len()
        ),
        rows: rows.clone(),
        outputs: vec![],
        inputs: vec![x.clone(), dynamic.clone()],
        states: None,
        record,
        expected: vec![side(0), side(1)],
        // A handful of products, one of them of a sum.
        tolerance: Tolerance { absolute: 2e-6, relative: 1e-6 },
    }
    .check();
}

#[test]
fn grouped_conv() {
    for (channels, group_size) in [(64, 16), (64, 64), (48, 8), (20, 5), (7, 1), (96, 48)] {
        for taps in [1, 2, 3, 7] {
            let rows = rows(&[(9, 8, None), (0, 3, None), (30, 5, Some(Shape::Binary))]);
            check_grouped_conv(taps as u64, channels, taps, group_size, &rows);
        }
    }
}
