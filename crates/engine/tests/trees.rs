//! Trees of every shape over real layers: the loop of generation on models from the fixtures, with drafters that are
//! right, wrong, or both.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::sync::Arc;

use pleach_checkpoint::Checkpoint;
use pleach_decode::{
    DraftContext, Drafter, Generation, GenerationOptions, NoDraft, SamplingParams, Target, TokenId, TreeBuilder,
    TreeRows, Unconstrained,
};
use pleach_kernels::{CpuDevice, CpuOptions, Device, ReferenceDevice, Rows, SequenceRows};
use pleach_model::{LoadOptions, Model, ModelError, Runner, Sequence};

use support::{fixture, prompt};

/// One sequence of a model.
struct ModelTarget {
    runner: Runner,
    sequence: Sequence,
}

impl ModelTarget {
    /// A sequence that has read all of a prompt but its last token.
    fn after(model: &Arc<Model>, prompt: &[u32]) -> Self {
        let mut target = Self { runner: Runner::new(Arc::clone(model)), sequence: model.new_sequence().unwrap() };
        let read = &prompt[..prompt.len() - 1];
        let rows = Rows::new(&[SequenceRows::chain(0, read)]).unwrap();
        target.runner.forward(&rows, &[], &[&target.sequence]).unwrap();
        target.runner.commit(&(0..read.len()).collect::<Vec<_>>(), &mut target.sequence).unwrap();
        target
    }
}

impl Target for ModelTarget {
    type Error = ModelError;

    fn verify(&mut self, tree: TreeRows<'_>) -> Result<(), ModelError> {
        let parents: Vec<_> = tree.parents.iter().map(|&parent| usize::try_from(parent).ok()).collect();
        let rows = Rows::new(&[SequenceRows::tree(tree.start, tree.tokens, &parents)])?;
        self.runner.forward(&rows, &(0..rows.len()).collect::<Vec<_>>(), &[&self.sequence])
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.runner.logits().unwrap()[row * 512..][..512]
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), ModelError> {
        self.runner.commit(rows, &mut self.sequence)
    }
}

/// Knows the text, with mistakes, and adds branches of garbage everywhere.
struct Leafy {
    /// What plain decoding wrote; empty for garbage alone.
    text: Vec<TokenId>,
    state: u64,
}

impl Leafy {
    fn next(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % below
    }
}

impl<T: Target> Drafter<T> for Leafy {
    fn draft(&mut self, _: &mut T, context: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), T::Error> {
        let mut last = TreeBuilder::ROOT;
        let known = context.history.tokens().len();
        for place in known..(known + 1 + self.next(9) as usize).min(self.text.len()) {
            let token = if self.next(6) == 0 { self.next(512) as u32 } else { self.text[place] };
            let Some(node) = tree.add(last, token, -0.2) else { break };
            last = node;
        }
        while tree.num_nodes() < context.budget {
            let parent = self.next(tree.num_nodes() as u64) as usize;
            if tree.add(parent, self.next(600) as u32, -1.0).is_none() {
                tree.add(TreeBuilder::ROOT, self.next(512) as u32, -1.0);
            }
        }
        Ok(())
    }
}

fn load(name: &str, device: Arc<dyn Device>) -> Arc<Model> {
    let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    Arc::new(Model::load(checkpoint.config, checkpoint.tensors, device, &LoadOptions::default()).unwrap())
}

fn cpu(threads: usize) -> Arc<dyn Device> {
    let options = CpuOptions { threads: threads.try_into().ok(), instruction_set: None };
    Arc::new(CpuDevice::new(options).unwrap())
}

fn options(temperature: f32, seed: u64, budget: usize, max_tokens: usize) -> GenerationOptions {
    let sampling = SamplingParams {
        temperature,
        seed,
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        top_p: 0.98,
        ..SamplingParams::default()
    };
    GenerationOptions { sampling, budget, max_tokens: Some(max_tokens), ..GenerationOptions::new(512, 1024) }
}

/// Writes a text; returns it, whole, with the target that wrote it and its passes.
fn write<D: Drafter<ModelTarget>>(
    model: &Arc<Model>,
    drafter: &mut D,
    options: GenerationOptions,
) -> (Vec<TokenId>, ModelTarget, u64) {
    let prompt = prompt(25);
    let mut target = ModelTarget::after(model, &prompt);
    let mut generation = Generation::new(options, &prompt).unwrap();
    while generation.stopped().is_none() {
        generation.step(&mut target, drafter, &mut Unconstrained).unwrap();
    }
    (generation.history().tokens().to_vec(), target, generation.stats().passes)
}

/// Text and state, bit for bit: keys, values, recurrent states and windows.
#[test]
fn two_hundred_drafted_rounds_leave_text_and_state_of_plain_decoding() {
    for name in ["tiny-llama", "tiny-qwen3", "tiny-qwen35", "tiny-qwen35-moe"] {
        let model = load(name, cpu(2));
        for temperature in [0.0, 0.9] {
            let (text, plain, _) = write(&model, &mut NoDraft, options(temperature, 5, 1, 420));
            let mut drafter = Leafy { text: text.clone(), state: 11 };
            let (drafted, target, passes) = write(&model, &mut drafter, options(temperature, 5, 12, 420));
            assert_eq!(drafted, text, "{name}, temperature {temperature}");
            assert!(passes < 210, "{passes} passes: hardly anything was accepted");
            assert_eq!(target.sequence.state().values(), plain.sequence.state().values(), "{name}");
        }
    }
}

#[test]
fn every_budget_and_number_of_threads_gives_one_text() {
    for name in ["tiny-qwen35", "tiny-llama"] {
        let devices: [Arc<dyn Device>; 3] = [cpu(1), cpu(2), cpu(3)];
        for temperature in [0.0, 1.0] {
            let (text, ..) = write(&load(name, cpu(1)), &mut NoDraft, options(temperature, 2, 1, 40));
            for device in &devices {
                let model = load(name, Arc::clone(device));
                for budget in [2, 3, 7, 16, 33, 64] {
                    for known in [text.clone(), Vec::new()] {
                        let mut drafter = Leafy { text: known, state: budget as u64 };
                        let (drafted, ..) = write(&model, &mut drafter, options(temperature, 2, budget, 40));
                        assert_eq!(drafted, text, "{name}, {} , {budget} rows", device.describe());
                    }
                }
            }
        }
    }
}

#[test]
fn the_reference_keeps_the_promise_too() {
    let model = load("tiny-qwen35", Arc::new(ReferenceDevice::new()));
    let (text, plain, _) = write(&model, &mut NoDraft, options(0.8, 3, 1, 30));
    let (drafted, target, _) = write(&model, &mut Leafy { text: text.clone(), state: 1 }, options(0.8, 3, 10, 30));
    assert_eq!(drafted, text);
    assert_eq!(target.sequence.state().values(), plain.sequence.state().values());
}
