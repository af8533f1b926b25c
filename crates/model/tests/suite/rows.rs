//! A row gives the same bits whatever company it has: chunks, trees, other sequences, snapshots.

use std::sync::Arc;

use crate::support::{devices, load};
use pleach_kernels::{Device, Rows, SequenceRows};
use pleach_model::{LoadOptions, Model, Runner, Sequence, Tap};
use proptest::prelude::*;

const MODELS: [&str; 4] = ["tiny-llama", "tiny-qwen3", "tiny-qwen35", "tiny-qwen35-moe"];

/// Every model on every device, with the options that people run: f16 caches and int8 activations where they apply.
fn models() -> Vec<Arc<Model>> {
    let pairs = devices().into_iter().flat_map(|device| MODELS.map(|path| (path, Arc::<dyn Device>::clone(&device))));
    pairs.map(|(path, device)| load(path, device, &LoadOptions::default())).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `ids` one by one with a commit after each; returns the logits of every row.
fn one_by_one(model: &Arc<Model>, sequence: &mut Sequence, ids: &[u32]) -> Vec<Vec<u32>> {
    let mut runner = Runner::new(Arc::clone(model));
    let row = |&id: &u32| {
        let rows = Rows::new(&[SequenceRows::chain(sequence.len(), &[id])]).unwrap();
        runner.forward(&rows, &[0], &[sequence]).unwrap();
        let logits = bits(runner.logits().unwrap());
        runner.commit(&[0], sequence).unwrap();
        logits
    };
    ids.iter().map(row).collect()
}

/// Everything a state holds, bit by bit.
fn state_bits(model: &Model, sequence: &Sequence) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for slot in 0..model.config().num_hidden_layers {
        if let Ok((keys, values)) = sequence.state().read_kv(slot) {
            all.extend([bits(&keys), bits(&values)]);
        }
        if let Ok((recurrent, window)) = sequence.state().read_delta(slot) {
            all.extend([bits(&recurrent), bits(&window)]);
        }
    }
    all
}

#[test]
fn a_prompt_in_chunks_leaves_the_bits_of_single_rows() {
    let ids: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % 490).collect();
    for model in models() {
        let mut alone = model.new_sequence().unwrap();
        let expected = one_by_one(&model, &mut alone, &ids);
        for chunk in [1, 3, 64, 70] {
            let mut runner = Runner::new(Arc::clone(&model));
            let mut sequence = model.new_sequence().unwrap();
            let mut found = Vec::new();
            for ids in ids.chunks(chunk) {
                let rows = Rows::new(&[SequenceRows::chain(sequence.len(), ids)]).unwrap();
                let all: Vec<_> = (0..ids.len()).collect();
                runner.forward(&rows, &all, &[&sequence]).unwrap();
                found.extend(runner.logits().unwrap().chunks_exact(model.config().vocab_size).map(bits));
                runner.commit(&all, &mut sequence).unwrap();
            }
            assert!(found == expected, "logits, chunks of {chunk}, {:?}", model.config().architecture);
            assert!(state_bits(&model, &sequence) == state_bits(&model, &alone), "state, chunks of {chunk}");
        }
    }
}

/// Rows that nobody reads leave their states, whether the pass keeps their hidden states or goes on without them.
#[test]
fn outputs_are_those_of_single_rows_whichever_are_asked_for() {
    let ids: Vec<u32> = (0..9).map(|i| (i * 37 + 11) % 490).collect();
    let all: Vec<_> = (0..ids.len()).collect();
    let rows = Rows::new(&[SequenceRows::chain(0, &ids)]).unwrap();
    for model in models() {
        let last = Tap::Layer(model.config().num_hidden_layers - 1);
        let mut alone = model.new_sequence().unwrap();
        let expected = one_by_one(&model, &mut alone, &ids);
        for taps in [&[][..], &[Tap::Embedding, Tap::Layer(0)], &[last], &[Tap::Final]] {
            let mut runner = Runner::with_taps(Arc::clone(&model), taps).unwrap();
            for outputs in [&[][..], &[8], &[3, 0, 8, 3]] {
                let mut sequence = model.new_sequence().unwrap();
                runner.forward(&rows, outputs, &[&sequence]).unwrap();
                let found = runner.logits().unwrap().chunks_exact(model.config().vocab_size).map(bits);
                let of_outputs = outputs.iter().map(|&row| expected[row].clone());
                assert!(found.eq(of_outputs), "{taps:?}, {outputs:?}, {:?}", model.config().architecture);
                for tap in 0..taps.len() {
                    let len = runner.tap(tap).unwrap().len();
                    assert_eq!(len, ids.len() * model.config().hidden_size, "{taps:?}: all rows");
                }
                runner.commit(&all, &mut sequence).unwrap();
                assert!(state_bits(&model, &sequence) == state_bits(&model, &alone), "{taps:?}, {outputs:?}");
            }
        }
    }
}

#[test]
fn a_pass_leaves_the_state_as_it_is() {
    for model in models() {
        let mut runner = Runner::new(Arc::clone(&model));
        let mut sequence = model.new_sequence().unwrap();
        one_by_one(&model, &mut sequence, &[5, 6, 7]);
        let before = state_bits(&model, &sequence);
        let rows = Rows::new(&[SequenceRows::tree(3, &[1, 2, 3], &[None, Some(0), Some(0)])]).unwrap();
        runner.forward(&rows, &[0, 1, 2], &[&sequence]).unwrap();
        assert!(state_bits(&model, &sequence) == before);
        assert_eq!(sequence.len(), 3);
    }
}

#[test]
fn a_snapshot_goes_its_own_way() {
    for model in models() {
        let mut sequence = model.new_sequence().unwrap();
        one_by_one(&model, &mut sequence, &[5, 6, 7]);
        let mut snapshot = sequence.snapshot();
        let left = one_by_one(&model, &mut sequence, &[8, 9]);
        one_by_one(&model, &mut snapshot, &[3]);
        let mut again = model.new_sequence().unwrap();
        assert_eq!(one_by_one(&model, &mut again, &[5, 6, 7, 8, 9])[3..], left);
        assert!(state_bits(&model, &again) == state_bits(&model, &sequence));
    }
}

/// A random forest: how long each sequence is already, and for each row its sequence, token and parent.
#[derive(Clone, Debug)]
struct Forest {
    prefixes: Vec<Vec<u32>>,
    tokens: Vec<Vec<u32>>,
    parents: Vec<Vec<Option<usize>>>,
}

fn forest() -> impl Strategy<Value = Forest> {
    let row = (0u32..490, any::<prop::sample::Index>(), any::<bool>());
    let sequence = (prop::collection::vec(0u32..490, 0..6), prop::collection::vec(row, 1..9));
    prop::collection::vec(sequence, 1..4).prop_map(|sequences| {
        let mut forest = Forest { prefixes: vec![], tokens: vec![], parents: vec![] };
        for (prefix, rows) in sequences {
            let parent = |(i, (_, index, deep)): (usize, &(u32, prop::sample::Index, bool))| match i {
                0 => None,
                // Index i stands for the committed end, so that forests of several roots occur too.
                _ if *deep => Some(i - 1),
                _ => Some(index.index(i + 1)).filter(|&parent| parent < i),
            };
            forest.parents.push(rows.iter().enumerate().map(parent).collect());
            forest.tokens.push(rows.iter().map(|row| row.0).collect());
            forest.prefixes.push(prefix);
        }
        forest
    })
}

/// Tokens from the root of a sequence's tree down to `row`, and the rows themselves.
fn path(parents: &[Option<usize>], row: usize) -> Vec<usize> {
    let mut rows: Vec<_> = std::iter::successors(Some(row), |&row| parents[row]).collect();
    rows.reverse();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Each row of a forest gives the logits, and each committed path the state, of running its path alone row by row.
    #[test]
    fn rows_do_not_notice_their_company(forest in forest(), pick: prop::sample::Index) {
        for model in models() {
            let vocab_size = model.config().vocab_size;
            let sequences: Vec<_> = forest.prefixes.iter().map(|prefix| {
                let mut sequence = model.new_sequence().unwrap();
                one_by_one(&model, &mut sequence, prefix);
                sequence
            }).collect();
            let parts: Vec<_> = (0..sequences.len())
                .map(|s| SequenceRows::tree(sequences[s].len(), &forest.tokens[s], &forest.parents[s]))
                .collect();
            let rows = Rows::new(&parts).unwrap();
            let all: Vec<_> = (0..rows.len()).collect();
            let mut runner = Runner::new(Arc::clone(&model));
            runner.forward(&rows, &all, &sequences.iter().collect::<Vec<_>>()).unwrap();
            let logits: Vec<_> = runner.logits().unwrap().chunks_exact(vocab_size).map(bits).collect();

            let mut base = 0;
            for (s, sequence) in sequences.iter().enumerate() {
                let (tokens, parents) = (&forest.tokens[s], &forest.parents[s]);
                for row in 0..tokens.len() {
                    let mut alone = sequence.snapshot();
                    let ids: Vec<_> = path(parents, row).iter().map(|&row| tokens[row]).collect();
                    let expected = one_by_one(&model, &mut alone, &ids);
                    prop_assert!(expected.last() == Some(&logits[base + row]), "row {row} of sequence {s}");
                }
                let accepted = path(parents, pick.index(tokens.len()));
                let mut alone = sequence.snapshot();
                one_by_one(&model, &mut alone, &accepted.iter().map(|&row| tokens[row]).collect::<Vec<_>>());
                let mut committed = sequence.snapshot();
                let rows: Vec<_> = accepted.iter().map(|&row| base + row).collect();
                runner.commit(&rows, &mut committed).unwrap();
                prop_assert!(state_bits(&model, &committed) == state_bits(&model, &alone), "commit of sequence {s}");
                base += tokens.len();
            }
        }
    }
}
