//! What a sequence remembers: commits, snapshots, storage.

use pleach_kernels::{Capacity, DType, DeltaLayout, Device, KernelError, KvLayout, State, StateLayout, StateValues};

use crate::support::model::{Kind, Model, USUAL};
use crate::support::random::{Random, Tree, forest};
use crate::support::{bits, devices};

const CACHES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I8];

fn model(device: &dyn Device, cache: DType) -> Model {
    Model::new(device, Kind { cache, ..USUAL }, Capacity { rows: 80, outputs: 1 })
}

fn run_chain(model: &mut Model, tokens: &[u32], state: &dyn State) -> Vec<Vec<f32>> {
    model.run(&forest(&[Tree::chain(state.len(), tokens.to_vec())]), &[state])
}

fn commit_chain(model: &mut Model, tokens: &[u32], state: &mut dyn State) -> Vec<f32> {
    let hidden = run_chain(model, tokens, state);
    let path: Vec<_> = (0..tokens.len()).collect();
    model.pass.commit(&path, state).unwrap();
    hidden.concat()
}

#[test]
fn a_commit_and_what_follows_are_one_long_run() {
    let tokens: Vec<u32> = Random::new(1).tokens(75, 40);
    for device in devices() {
        for cache in CACHES {
            let mut model = model(&*device, cache);
            let mut whole = device.state(&model.layout).unwrap();
            let long = commit_chain(&mut model, &tokens, &mut *whole);
            let mut parts = device.state(&model.layout).unwrap();
            let first = commit_chain(&mut model, &tokens[..31], &mut *parts);
            let second = commit_chain(&mut model, &tokens[31..], &mut *parts);
            assert_eq!(bits(&long), bits(&[first, second].concat()), "{} {cache:?}", device.describe());
            assert_eq!(whole.values(), parts.values());
            assert_eq!(parts.len(), 75);
        }
    }
}

#[test]
fn only_the_accepted_path_is_kept() {
    for device in devices() {
        let mut model = model(&*device, DType::F16);
        let mut drafted = device.state(&model.layout).unwrap();
        commit_chain(&mut model, &[1, 2, 3], &mut *drafted);
        let mut plain = drafted.snapshot();

        let parents = vec![None, Some(0), Some(0), Some(2), Some(1)];
        let rows = forest(&[Tree { len: 3, tokens: vec![4, 5, 6, 7, 8], parents }]);
        model.run(&rows, &[&*drafted]);
        model.pass.commit(&[0, 2, 3], &mut *drafted).unwrap();

        for token in [4, 6, 7] {
            commit_chain(&mut model, &[token], &mut *plain);
        }
        assert_eq!(drafted.values(), plain.values(), "{}", device.describe());
    }
}

#[test]
fn each_sequence_of_a_pass_commits_its_own_path() {
    for device in devices() {
        let mut model = model(&*device, DType::F16);
        let mut states = [device.state(&model.layout).unwrap(), device.state(&model.layout).unwrap()];
        commit_chain(&mut model, &[9, 8], &mut *states[1]);
        let mut expected = states[1].snapshot();

        let rows = forest(&[Tree::chain(0, vec![1, 2]), Tree::chain(2, vec![3, 4, 5])]);
        model.run(&rows, &[&*states[0], &*states[1]]);
        model.pass.commit(&[2, 3], &mut *states[1]).unwrap();
        model.pass.commit(&[0], &mut *states[0]).unwrap();

        commit_chain(&mut model, &[3, 4], &mut *expected);
        assert_eq!(states[1].values(), expected.values(), "{}", device.describe());
        let mut expected = device.state(&model.layout).unwrap();
        commit_chain(&mut model, &[1], &mut *expected);
        assert_eq!(states[0].values(), expected.values(), "{}", device.describe());
    }
}

#[test]
fn a_run_leaves_the_state_untouched() {
    for device in devices() {
        let mut model = model(&*device, DType::F16);
        let mut state = device.state(&model.layout).unwrap();
        commit_chain(&mut model, &[1, 2, 3, 4, 5], &mut *state);
        let before = state.values();
        run_chain(&mut model, &[6, 7, 8], &*state);
        assert_eq!(state.values(), before, "{}", device.describe());
    }
}

#[test]
fn snapshots_are_isolated_both_ways() {
    for device in devices() {
        let mut model = model(&*device, DType::F16);
        let mut state = device.state(&model.layout).unwrap();
        commit_chain(&mut model, &[1, 2, 3], &mut *state);
        let mut snapshot = state.snapshot();
        let before = snapshot.values();

        commit_chain(&mut model, &[4, 5], &mut *state);
        assert_eq!(snapshot.values(), before, "{}", device.describe());

        let moved_on = state.values();
        let other = commit_chain(&mut model, &[6], &mut *snapshot);
        assert_eq!(state.values(), moved_on, "{}", device.describe());

        let mut again = device.state(&model.layout).unwrap();
        commit_chain(&mut model, &[1, 2, 3], &mut *again);
        assert_eq!(bits(&other), bits(&commit_chain(&mut model, &[6], &mut *again)));
    }
}

#[test]
fn a_stored_state_goes_on_like_the_original() {
    for device in devices() {
        for cache in CACHES {
            let mut model = model(&*device, cache);
            let mut state = device.state(&model.layout).unwrap();
            commit_chain(&mut model, &[7; 70], &mut *state);
            let stored = state.values();

            let mut restored = device.state(&model.layout).unwrap();
            commit_chain(&mut model, &[1, 2], &mut *restored);
            restored.restore(&stored).unwrap();
            assert_eq!(restored.len(), 70);
            assert_eq!(restored.values(), stored);
            assert_eq!(restored.size_bytes(), state.size_bytes());
            let [first, second] =
                [&mut state, &mut restored].map(|state| commit_chain(&mut model, &[3, 4], &mut **state));
            assert_eq!(bits(&first), bits(&second), "{} {cache:?}", device.describe());
        }
    }
}

fn small_layout() -> StateLayout {
    StateLayout {
        attention: vec![KvLayout { num_key_value_heads: 1, head_dim: 2, dtype: DType::F16, window: None }],
        delta: vec![DeltaLayout {
            num_key_heads: 1,
            num_value_heads: 1,
            key_head_dim: 2,
            value_head_dim: 3,
            conv_kernel_dim: 4,
        }],
    }
}

/// Restoring replaces: nothing of a longer history stays behind.
#[test]
fn a_shorter_state_replaces_a_longer_one() {
    let layout = small_layout();
    let mut random = Random::new(8);
    let (long, short) = (random.state(&layout, 130), random.state(&layout, 2));
    for device in devices() {
        let mut state = device.state(&layout).unwrap();
        state.restore(&short).unwrap();
        let (expected, size_bytes) = (state.values(), state.size_bytes());
        state.restore(&long).unwrap();
        state.restore(&short).unwrap();
        assert_eq!(
            (state.len(), state.values(), state.size_bytes()),
            (2, expected, size_bytes),
            "{}",
            device.describe()
        );
    }
}

/// Makes values that fit into values that do not.
type Spoil = fn(&mut StateValues);

/// A refused restore names what does not fit and changes nothing.
#[test]
fn values_of_another_model_are_refused() {
    let good = Random::new(2).state(&small_layout(), 3);
    let wrong: [(&str, Spoil); 6] = [
        ("the saved state has 0 attention layers, but the model has 1: it belongs to another model", |values| {
            values.attention.clear();
        }),
        ("the saved state has 2 DeltaNet layers, but the model has 1: it belongs to another model", |values| {
            values.delta.push(values.delta[0].clone());
        }),
        ("`restore`: `keys` has size 6, expected 8", |values| values.len = 4),
        ("`restore`: `values` has size 5, expected 6", |values| {
            values.attention[0].values.pop();
        }),
        ("`restore`: `recurrent` has size 0, expected 6", |values| values.delta[0].recurrent.clear()),
        ("`restore`: `window` has size 20, expected 21", |values| {
            values.delta[0].window.pop();
        }),
    ];
    for device in devices() {
        let mut state = device.state(&small_layout()).unwrap();
        state.restore(&good).unwrap();
        let before = state.values();
        for (message, spoil) in wrong {
            let mut values = Random::new(9).state(&small_layout(), 3);
            spoil(&mut values);
            assert_eq!(state.restore(&values).unwrap_err().to_string(), message);
            assert_eq!(state.values(), before);
        }
    }
}

#[test]
fn a_state_says_what_it_holds() {
    for device in devices() {
        let mut state = device.state(&small_layout()).unwrap();
        assert!(state.is_empty());
        let empty = state.size_bytes();
        assert!(empty >= 4 * (6 + 21), "{empty}");
        state.restore(&Random::new(2).state(&small_layout(), 65)).unwrap();
        // Two blocks of 64 tokens.
        assert_eq!(state.size_bytes() - empty, 2 * 64 * 2 * 2 * 2);
        let (keys, values) = state.read_kv(0).unwrap();
        assert_eq!((keys.len(), values.len()), (130, 130));
        let (recurrent, window) = state.read_delta(0).unwrap();
        assert_eq!((recurrent.len(), window.len()), (6, 21));
        assert!(matches!(state.read_kv(1), Err(KernelError::Missing { what: "attention layer", .. })));
        let error = state.read_delta(3).unwrap_err();
        assert_eq!(error.to_string(), "DeltaNet layer 3 does not exist: there are 1");
    }
}
