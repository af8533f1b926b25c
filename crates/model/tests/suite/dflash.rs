//! Block drafters against their formula: every kind of layer, on every device.

use std::sync::Arc;

use pleach_checkpoint::{Checkpoint, DrafterCheckpoint, TensorData, TensorFormat};
use pleach_kernels::Device;
use pleach_model::{DFlash, DFlashRunner, Model, ModelError};

use crate::random_drafter::{BLOCK, HEAD_DIM, HEADS, KEY_HEADS, Kind, LAYERS, MASK, RandomDrafter, WIDTH, normal};
use crate::support::{EXACT, assert_close, devices, fixture, load};

const MODEL: &str = "tiny-qwen3";

fn kinds() -> Vec<Kind> {
    let full = Kind::default;
    vec![
        full(),
        Kind { window: Some(5), ..full() },
        Kind { window: Some(3), is_causal: Some(false), ..full() },
        Kind { is_causal: Some(true), ..full() },
        Kind { conv: Some((2, 16)), ..full() },
        Kind { conv: Some((3, 64)), window: Some(70), is_causal: Some(false), ..full() },
        Kind { mirai: true, window: Some(6), ..full() },
    ]
}

/// `y = x Wᵀ`, `w` of as many columns as `x` has elements.
fn product(w: &[f32], x: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
}

fn norm(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let scale = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-6).sqrt().recip();
    x.iter().zip(weight).map(|(x, &w)| x * scale * f64::from(w)).collect()
}

/// Heads normalized and turned to a position.
fn turned(heads: &[f64], weight: &[f32], position: usize) -> Vec<f64> {
    let turn = |head: &[f64]| {
        let head = norm(head, weight);
        let half = HEAD_DIM / 2;
        let angle = |i: usize| position as f64 * 10000f64.powf(-2.0 * i as f64 / HEAD_DIM as f64);
        let first = (0..half).map(|i| head[i] * angle(i).cos() - head[i + half] * angle(i).sin());
        let second = (0..half).map(|i| head[i + half] * angle(i).cos() + head[i] * angle(i).sin());
        first.chain(second).collect::<Vec<_>>()
    };
    heads.chunks_exact(HEAD_DIM).flat_map(turn).collect()
}

fn added(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// The formula of a drafter in f64: hidden states of a block.
struct Formula<'a> {
    drafter: &'a RandomDrafter,
    /// Per token.
    taps: &'a [Vec<f32>],
}

impl Formula<'_> {
    fn hidden(&self, embeddings: &[Vec<f32>]) -> Vec<Vec<f64>> {
        let drafter = self.drafter;
        let wide = |x: &Vec<f32>| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let context: Vec<_> = self
            .taps
            .iter()
            .map(|taps| norm(&product(drafter.values("fc.weight"), &wide(taps)), drafter.values("hidden_norm.weight")))
            .collect();
        let mut rows: Vec<_> = embeddings.iter().map(wide).collect();
        for layer in 0..LAYERS {
            let name = |name: &str| format!("layers.{layer}.{name}");
            let normed = |rows: &[Vec<f64>], weight: &str| -> Vec<Vec<f64>> {
                rows.iter().map(|row| norm(row, drafter.values(&name(weight)))).collect()
            };
            let x = normed(&rows, "input_layernorm.weight");
            let mixed = self.around(&name("attention_conv"), x, |x| self.attention(layer, &context, x));
            rows.iter_mut().zip(&mixed).for_each(|(row, mixed)| added(row, mixed));
            let x = normed(&rows, "post_attention_layernorm.weight");
            let expanded = self.around(&name("mlp_conv"), x, |x| x.iter().map(|x| self.mlp(layer, x)).collect());
            rows.iter_mut().zip(&expanded).for_each(|(row, expanded)| added(row, expanded));
        }
        rows.iter().map(|row| norm(row, drafter.values("norm.weight"))).collect()
    }

    fn around(&self, name: &str, x: Vec<Vec<f64>>, part: impl FnOnce(&[Vec<f64>]) -> Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        let Some((taps, group)) = self.drafter.kind.conv else { return part(&x) };
        let (base, hidden) = (self.drafter.values(&format!("{name}.base_kernel")), self.drafter.hidden);
        let projection = self.drafter.values(&format!("{name}.kernel_projection.weight"));
        let dynamic: Vec<_> = x.iter().map(|x| product(projection, x)).collect();
        let convolve = |x: &[Vec<f64>], side: usize| -> Vec<Vec<f64>> {
            let element = |row: usize, c: usize| {
                let reach = (0..taps).filter(|&j| j <= row);
                reach
                    .map(|j| {
                        let base = f64::from(base[(side * taps + j) * hidden + c]);
                        let own = dynamic[row][(side * taps + j) * (hidden / group) + c / group];
                        (base + own) * x[row - j][c]
                    })
                    .sum()
            };
            (0..x.len()).map(|row| (0..hidden).map(|c| element(row, c)).collect()).collect()
        };
        convolve(&part(&convolve(&x, 0)), 1)
    }

    fn attention(&self, layer: usize, context: &[Vec<f64>], x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let value = |name: &str| self.drafter.values(&format!("layers.{layer}.self_attn.{name}.weight"));
        let sources: Vec<_> = context.iter().chain(x).collect();
        let keys: Vec<_> = sources
            .iter()
            .enumerate()
            .map(|(position, x)| turned(&product(value("k_proj"), x), value("k_norm"), position))
            .collect();
        let values: Vec<_> = sources.iter().map(|x| product(value("v_proj"), x)).collect();
        let row = |(row, x): (usize, &Vec<f64>)| {
            let position = context.len() + row;
            let queries = turned(&product(value("q_proj"), x), value("q_norm"), position);
            let heads = (0..HEADS).flat_map(|head| {
                let query = &queries[head * HEAD_DIM..][..HEAD_DIM];
                let part = head / (HEADS / KEY_HEADS) * HEAD_DIM;
                let seen = (0..sources.len()).filter(|&other| self.sees(layer, position, other));
                let score =
                    |key: &[f64]| query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() / (HEAD_DIM as f64).sqrt();
                let weights: Vec<_> =
                    seen.map(|other| (other, score(&keys[other][part..part + HEAD_DIM]).exp())).collect();
                let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
                let values = &values;
                (0..HEAD_DIM)
                    .map(move |i| weights.iter().map(|(other, w)| w / total * values[*other][part + i]).sum::<f64>())
            });
            product(value("o_proj"), &heads.collect::<Vec<_>>())
        };
        x.iter().enumerate().map(row).collect()
    }

    fn sees(&self, layer: usize, position: usize, other: usize) -> bool {
        let kind = &self.drafter.kind;
        let window = kind.window.filter(|_| layer == 0);
        let causal = kind.is_causal.unwrap_or(window.is_some());
        let near = window.is_none_or(|window| position.abs_diff(other) < window);
        near && !(causal && other > position)
    }

    fn mlp(&self, layer: usize, x: &[f64]) -> Vec<f64> {
        let value = |name: &str| self.drafter.values(&format!("layers.{layer}.mlp.{name}.weight"));
        let gate = product(value("gate_proj"), x);
        let up = product(value("up_proj"), x);
        let both: Vec<_> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        assert_eq!(both.len(), WIDTH);
        product(value("down_proj"), &both)
    }
}

/// Rows of the target's embedding.
fn embeddings(tokens: &[u32], hidden: usize) -> Vec<Vec<f32>> {
    let checkpoint = Checkpoint::open(&fixture(MODEL)).unwrap();
    let table = checkpoint.tensors.get("embed_tokens.weight").unwrap();
    let TensorData::Plain(bytes) = &table.data else { panic!("the table is plain") };
    let row = |token: u32| {
        let place = token as usize * hidden;
        match table.format {
            TensorFormat::F32 => {
                bytes.as_chunks().0[place..place + hidden].iter().map(|x| f32::from_le_bytes(*x)).collect()
            }
            TensorFormat::BF16 => bytes.as_chunks().0[place..place + hidden]
                .iter()
                .map(|x| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16))
                .collect(),
            other => panic!("the table is {other}"),
        }
    };
    tokens.iter().map(|&token| row(token)).collect()
}

fn runner(drafter: &RandomDrafter, model: &Model) -> DFlashRunner {
    let checkpoint = Checkpoint::open(&fixture(MODEL)).unwrap();
    let head = checkpoint.tensors.get("lm_head.weight").or_else(|| checkpoint.tensors.get("embed_tokens.weight"));
    let opened = DrafterCheckpoint::open(&drafter.path()).unwrap();
    DFlashRunner::new(Arc::new(DFlash::load(opened, model, head.unwrap(), &EXACT).unwrap()))
}

fn random_taps(drafter: &RandomDrafter, count: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut state = seed;
    (0..count).map(|_| (0..2 * drafter.hidden).map(|_| normal(&mut state)).collect()).collect()
}

/// Hidden states of the guesses after `last`. Taps are read in several goes, as a text grows.
fn block(runner: &mut DFlashRunner, taps: &[Vec<f32>], last: u32) -> Vec<f32> {
    let mut sequence = runner.drafter().new_sequence().unwrap();
    let (first, rest) = taps.split_at(taps.len() / 3);
    for part in [first, rest].into_iter().filter(|part| !part.is_empty()) {
        runner.read(&part.concat(), &mut sequence).unwrap();
    }
    runner.draft(last, BLOCK - 1, &sequence).unwrap();
    assert_eq!(sequence.len(), taps.len(), "a draft leaves nothing behind");
    runner.hidden().unwrap().to_vec()
}

#[test]
fn every_kind_of_layer_gives_its_formula_on_every_device() {
    let models: Vec<_> =
        devices().into_iter().map(|device| load(MODEL, Arc::<dyn Device>::clone(&device), &EXACT)).collect();
    for (seed, kind) in kinds().iter().enumerate() {
        let drafter = RandomDrafter::new(&fixture(MODEL), kind, seed as u64);
        let mut tokens = vec![MASK; BLOCK];
        tokens[0] = 17;
        for count in [1, 9, 75] {
            let taps = random_taps(&drafter, count, seed as u64 + 100);
            let expected = Formula { drafter: &drafter, taps: &taps }.hidden(&embeddings(&tokens, drafter.hidden));
            let expected: Vec<f32> = expected[1..].concat().iter().map(|&x| x as f32).collect();
            for model in &models {
                let what = format!("{kind:?} after {count} tokens on {}", model.device().describe());
                assert_close(&what, &block(&mut runner(&drafter, model), &taps, 17), &expected, 2e-4);
            }
        }
    }
}

/// Causal layers alone: then a row cannot know how many follow it.
#[test]
fn rows_of_causal_drafters_do_not_see_those_after_them() {
    let kind = Kind { is_causal: Some(true), conv: Some((2, 16)), ..Kind::default() };
    let drafter = RandomDrafter::new(&fixture(MODEL), &kind, 1);
    let taps = random_taps(&drafter, 20, 4);
    let tokens = |first: u32| [first, MASK, MASK];
    let formula = Formula { drafter: &drafter, taps: &taps };
    let [long, short] = [BLOCK, 3].map(|n| {
        let tokens: Vec<_> = tokens(9).into_iter().chain(std::iter::repeat(MASK)).take(n).collect();
        formula.hidden(&embeddings(&tokens, drafter.hidden))
    });
    assert!(long[..3].iter().flatten().zip(short.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-12));
}

#[test]
fn a_selector_scores_neighbors_by_its_formula() {
    let kind = Kind { selector: Some((12, 4)), ..Kind::default() };
    let drafter = RandomDrafter::new(&fixture(MODEL), &kind, 2);
    let taps = random_taps(&drafter, 15, 8);
    for device in devices() {
        let model = load(MODEL, device, &EXACT);
        let mut runner = runner(&drafter, &model);
        let hidden = block(&mut runner, &taps, 17);
        let candidates = [3, 400, 77, 3];
        for (place, before) in [(0, 17), (3, 250), (6, 511)] {
            let row: Vec<f64> =
                hidden[place * drafter.hidden..][..drafter.hidden].iter().map(|&x| f64::from(x)).collect();
            let gate = product(drafter.values("candidate_selector.hidden_projection.weight"), &row);
            let entry = |book: &str, token: u32| {
                let values = drafter.values(&format!("candidate_selector.{book}_codebook"));
                values[token as usize * 12..][..12].iter().map(|&x| f64::from(x)).collect::<Vec<_>>()
            };
            let context: Vec<_> = entry("predecessor", before).iter().zip(&gate).map(|(a, h)| a * h).collect();
            let expected = candidates
                .map(|token| entry("successor", token).iter().zip(&context).map(|(b, c)| b * c).sum::<f64>() as f32);
            let found = runner.transitions(place, before, &candidates).unwrap();
            assert_close(&format!("place {place} on {}", model.device().describe()), &found, &expected, 1e-4);
        }
        assert!(runner.transitions(BLOCK, 1, &candidates).is_err());
        // A token that no codebook has comes from nowhere.
        assert_eq!(runner.transitions(0, 600, &[1, 600]).unwrap(), [0.0; 2]);
    }
}

/// Each difference from the target is named, in one line, before anything is loaded.
#[test]
fn a_drafter_of_another_target_is_refused() {
    let device = devices().remove(0);
    let refused = |change: &dyn Fn(&mut DrafterCheckpoint)| {
        let drafter = RandomDrafter::new(&fixture(MODEL), &Kind::default(), 1);
        let model = load(MODEL, Arc::clone(&device), &EXACT);
        let mut opened = DrafterCheckpoint::open(&drafter.path()).unwrap();
        change(&mut opened);
        let checkpoint = Checkpoint::open(&fixture(MODEL)).unwrap();
        let head = checkpoint.tensors.get("embed_tokens.weight").unwrap();
        let error = DFlash::load(opened, &model, head, &EXACT).unwrap_err();
        assert!(matches!(error, ModelError::UnfitDrafter { .. }), "{error}");
        error.to_string()
    };
    let does_not = "the drafter does not fit: ";
    assert_eq!(
        refused(&|drafter| drafter.config.model.hidden_size = 96),
        format!("{does_not}hidden_size is 96, but the model has 128")
    );
    assert_eq!(
        refused(&|drafter| drafter.config.model.vocab_size = 511),
        format!("{does_not}vocab_size is 511, but the model has 512")
    );
    assert_eq!(
        refused(&|drafter| drafter.config.num_target_layers = 30),
        format!("{does_not}num_target_layers is 30, but the model has 3")
    );
    assert_eq!(
        refused(&|drafter| drafter.config.target_layer_ids = vec![0, 3]),
        format!("{does_not}target_layer_ids is 3, but the model has layers below 3")
    );
}
