//! A row's bits depend on its own path only, whatever else shares the pass.

use pleach_kernels::{Activations, Capacity, DType, Device, FloatFormat, State, WeightFormat};
use proptest::prelude::*;

use crate::support::model::{Kind, Model, USUAL, VOCAB};
use crate::support::random::{Random, SHAPES, Shape, Tree, forest};
use crate::support::{bits, devices};

const KINDS: [Kind; 6] = [
    USUAL,
    Kind { cache: DType::F32, weights: WeightFormat::Float(FloatFormat::F32), activations: Activations::Float },
    Kind { cache: DType::BF16, weights: WeightFormat::Q4_1, activations: Activations::Int8PerGroup },
    Kind { cache: DType::F16, weights: WeightFormat::Int8PerRow, activations: Activations::Int8PerRow },
    Kind { cache: DType::F16, weights: WeightFormat::Q5_0, activations: Activations::Float },
    Kind { cache: DType::I8, weights: WeightFormat::Q8_0, activations: Activations::Int8PerGroup },
];

const CAPACITY: Capacity = Capacity { rows: 96, outputs: 1 };

fn model(device: &dyn Device, kind: Kind) -> Model {
    Model::new(device, kind, CAPACITY)
}

/// A fresh sequence after `tokens`, prefilled in one go.
fn prefilled(device: &dyn Device, model: &mut Model, tokens: &[u32]) -> Box<dyn State> {
    let mut state = device.state(&model.layout).unwrap();
    if !tokens.is_empty() {
        let rows = forest(&[Tree::chain(0, tokens.to_vec())]);
        model.run(&rows, &[&*state]);
        let path: Vec<_> = (0..tokens.len()).collect();
        model.pass.commit(&path, &mut *state).unwrap();
    }
    state
}

/// Runs `tokens` as one chain after `state`, and returns the hidden state of the last.
fn alone(model: &mut Model, tokens: Vec<u32>, state: &dyn State) -> Vec<f32> {
    let rows = forest(&[Tree::chain(state.len(), tokens)]);
    model.run(&rows, &[state]).pop().unwrap()
}

/// Runs `tokens` one at a time, committing each, and returns the hidden state of the last.
fn one_by_one(model: &mut Model, tokens: &[u32], state: &mut dyn State) -> Vec<f32> {
    let mut last = Vec::new();
    for &token in tokens {
        last = alone(model, vec![token], state);
        model.pass.commit(&[0], state).unwrap();
    }
    last
}

/// Sequences with random histories and trees.
#[derive(Debug)]
struct Company {
    histories: Vec<Vec<u32>>,
    trees: Vec<Tree>,
}

impl Company {
    fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let sequences = 1 + random.below(4);
        // Now and then past the end of a block of the cache.
        let lens: Vec<_> = (0..sequences).map(|_| if random.below(5) == 0 { 62 } else { random.below(12) }).collect();
        let histories: Vec<_> = lens.iter().map(|&len| random.tokens(len, VOCAB)).collect();
        let tree = |len: &usize| {
            let n = 1 + random.below(14);
            let shape = SHAPES[random.below(SHAPES.len())];
            Tree { len: *len, tokens: random.tokens(n, VOCAB), parents: random.tree(shape, n) }
        };
        Self { trees: lens.iter().map(tree).collect(), histories }
    }
}

fn check_company(device: &dyn Device, kind: Kind, seed: u64) {
    let company = Company::random(seed);
    let mut model = model(device, kind);
    let states: Vec<_> = company.histories.iter().map(|tokens| prefilled(device, &mut model, tokens)).collect();
    let rows = forest(&company.trees);
    let borrowed: Vec<&dyn State> = states.iter().map(|state| &**state).collect();
    let together = model.run(&rows, &borrowed);

    let mut path = Vec::new();
    for (row, hidden) in together.iter().enumerate() {
        rows.path_into(row, &mut path);
        let tokens: Vec<_> = path.iter().map(|&row| rows.tokens()[row]).collect();
        let state = &states[rows.sequence(row)];
        let chain = alone(&mut model, tokens.clone(), &**state);
        assert_eq!(bits(hidden), bits(&chain), "{}: row {row} as a chain, {company:?}", device.describe());
        let committed = one_by_one(&mut model, &tokens, &mut *state.snapshot());
        assert_eq!(bits(hidden), bits(&committed), "{}: row {row} step by step, {company:?}", device.describe());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// The promise that lossless drafting, batching and chunked prefill all rest on.
    #[test]
    fn a_row_gives_the_same_bits_in_any_company(seed: u64) {
        for device in devices() {
            check_company(&*device, USUAL, seed);
        }
    }

    /// Prompt chunks of any size leave the state that single steps leave.
    #[test]
    fn chunks_leave_the_same_state(seed: u64) {
        let mut random = Random::new(seed);
        let len = 1 + random.below(80);
        let tokens = random.tokens(len, VOCAB);
        for device in devices() {
            let mut model = model(&*device, USUAL);
            let mut single = device.state(&model.layout).unwrap();
            let last = one_by_one(&mut model, &tokens, &mut *single);
            let mut chunked = device.state(&model.layout).unwrap();
            let mut chunked_last = Vec::new();
            let mut rest = &tokens[..];
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(1 + random.below(rest.len()));
                chunked_last = alone(&mut model, chunk.to_vec(), &*chunked);
                let path: Vec<_> = (0..chunk.len()).collect();
                model.pass.commit(&path, &mut *chunked).unwrap();
                rest = after;
            }
            prop_assert_eq!(bits(&last), bits(&chunked_last));
            assert_same_state(&*single, &*chunked);
        }
    }
}

fn assert_same_state(a: &dyn State, b: &dyn State) {
    let (a, b) = (a.values(), b.values());
    assert_eq!(a.len, b.len);
    for (a, b) in a.attention.iter().zip(&b.attention) {
        assert_eq!(bits(&a.keys), bits(&b.keys), "keys");
        assert_eq!(bits(&a.values), bits(&b.values), "values");
    }
    for (a, b) in a.delta.iter().zip(&b.delta) {
        assert_eq!(bits(&a.recurrent), bits(&b.recurrent), "recurrent state");
        assert_eq!(bits(&a.window), bits(&b.window), "window");
    }
}

#[test]
fn every_cache_and_weight_keeps_the_promise() {
    for device in devices() {
        for (seed, kind) in KINDS.into_iter().enumerate() {
            check_company(&*device, kind, seed as u64);
        }
    }
}

/// The blocks of a long context are shared out among threads for few rows and not for many; nobody can tell.
#[test]
fn a_long_context_gives_the_same_bits_however_it_is_shared_out() {
    for device in devices() {
        for cache in [DType::F16, DType::I8] {
            let mut model = model(&*device, Kind { cache, ..USUAL });
            let mut random = Random::new(5);
            let mut state = device.state(&model.layout).unwrap();
            for _ in 0..5 {
                alone(&mut model, random.tokens(61, VOCAB), &*state);
                model.pass.commit(&(0..61).collect::<Vec<_>>(), &mut *state).unwrap();
            }
            let tree = Tree { len: 305, tokens: random.tokens(70, VOCAB), parents: random.tree(Shape::Random, 70) };
            let rows = forest(std::slice::from_ref(&tree));
            let together = model.run(&rows, &[&*state]);
            let mut path = Vec::new();
            for row in [0, 5, 33, 69] {
                rows.path_into(row, &mut path);
                let tokens: Vec<_> = path.iter().map(|&row| tree.tokens[row]).collect();
                let committed = one_by_one(&mut model, &tokens, &mut *state.snapshot());
                assert_eq!(bits(&together[row]), bits(&committed), "{} {cache:?}: row {row}", device.describe());
            }
        }
    }
}

/// 64 rows of one tree, as a drafter would fill it.
#[test]
fn a_full_tree_gives_the_bits_of_its_paths() {
    for device in devices() {
        let mut model = model(&*device, USUAL);
        let mut random = Random::new(3);
        let state = prefilled(&*device, &mut model, &random.tokens(20, VOCAB));
        let tree = Tree { len: 20, tokens: random.tokens(64, VOCAB), parents: random.tree(Shape::Binary, 64) };
        let rows = forest(std::slice::from_ref(&tree));
        let together = model.run(&rows, &[&*state]);
        let mut path = Vec::new();
        for row in [0, 1, 31, 62, 63] {
            rows.path_into(row, &mut path);
            let tokens = path.iter().map(|&row| tree.tokens[row]).collect();
            assert_eq!(bits(&together[row]), bits(&alone(&mut model, tokens, &*state)), "{}", device.describe());
        }
    }
}

/// 0 ─┬─ 1 ── 3
///    └─ 2 ─┬─ 4
///          └─ 5
#[test]
fn poking_one_branch_leaves_its_siblings_unchanged() {
    let parents = vec![None, Some(0), Some(0), Some(1), Some(2), Some(2)];
    for device in devices() {
        let mut model = model(&*device, USUAL);
        let state = prefilled(&*device, &mut model, &[1, 2, 3]);
        let mut run = |tokens: Vec<u32>| {
            let rows = forest(&[Tree { len: 3, tokens, parents: parents.clone() }]);
            model.run(&rows, &[&*state])
        };
        let before = run(vec![4, 5, 6, 7, 8, 9]);
        for (poked, changed) in [(2, vec![2, 4, 5]), (1, vec![1, 3]), (4, vec![4]), (0, vec![0, 1, 2, 3, 4, 5])] {
            let mut tokens = vec![4, 5, 6, 7, 8, 9];
            tokens[poked] = 20;
            let after = run(tokens);
            for row in 0..6 {
                let same = bits(&before[row]) == bits(&after[row]);
                assert_eq!(same, !changed.contains(&row), "{}: row {row} after poking {poked}", device.describe());
            }
        }
    }
}

#[test]
fn logits_are_those_of_the_rows_asked_for() {
    for device in devices() {
        let mut model = Model::new(&*device, USUAL, Capacity { rows: 8, outputs: 8 });
        let state = device.state(&model.layout).unwrap();
        let rows = forest(&[Tree::chain(0, vec![3, 1, 4, 1, 5])]);
        let mut logits = |outputs: &[usize]| {
            let inputs = pleach_kernels::PassInputs { rows: &rows, outputs, inputs: &[] };
            model.pass.run(&inputs, &[&*state]).unwrap();
            bits(model.pass.read(model.logits).unwrap())
        };
        let all = logits(&[0, 1, 2, 3, 4]);
        assert_eq!(logits(&[4, 1]), [&all[4 * VOCAB..], &all[VOCAB..2 * VOCAB]].concat(), "{}", device.describe());
        assert!(logits(&[]).is_empty());
    }
}
