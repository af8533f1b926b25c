//! The memory of one sequence in main memory.

use std::any::Any;

use super::KvCache;
use crate::{DeltaLayout, DeltaValues, KernelError, KvValues, State, StateLayout, StatePart, StateValues};

/// What a sequence remembers, in main memory.
#[derive(Clone)]
pub(crate) struct HostState {
    pub(super) len: usize,
    pub(super) attention: Vec<KvCache>,
    pub(super) delta: Vec<DeltaState>,
}

/// State of one DeltaNet layer.
#[derive(Clone)]
pub(crate) struct DeltaState {
    pub(super) layout: DeltaLayout,
    /// `[value_heads, key_dim, value_dim]`.
    pub(crate) recurrent: Vec<f32>,
    /// Last inputs of the convolution, oldest first: `[kernel − 1, channels]`.
    pub(crate) window: Vec<f32>,
}

pub(super) fn check_size(argument: &'static str, found: usize, expected: usize) -> Result<(), KernelError> {
    if found == expected { Ok(()) } else { Err(KernelError::Shape { op: "restore", argument, found, expected }) }
}

impl DeltaState {
    /// The window is stored token by token and given out channel by channel.
    fn values(&self) -> DeltaValues {
        let channels = self.layout.conv_channels();
        let taps = self.window.len() / channels.max(1);
        let by_channel = (0..channels).flat_map(|c| (0..taps).map(move |tap| (c, tap)));
        let window = by_channel.map(|(c, tap)| self.window[tap * channels + c]).collect();
        DeltaValues { recurrent: self.recurrent.clone(), window }
    }

    fn check(&self, values: &DeltaValues) -> Result<(), KernelError> {
        check_size("recurrent", values.recurrent.len(), self.recurrent.len())?;
        check_size("window", values.window.len(), self.window.len())
    }

    fn restore(&mut self, values: &DeltaValues) {
        self.recurrent.copy_from_slice(&values.recurrent);
        let channels = self.layout.conv_channels();
        let taps = self.window.len() / channels.max(1);
        for (i, &value) in values.window.iter().enumerate() {
            self.window[i % taps * channels + i / taps] = value;
        }
    }

    /// Moves the window over `inputs` of one more token: `[channels]`.
    pub(super) fn push_window(&mut self, inputs: &[f32]) {
        let keep = self.window.len().saturating_sub(inputs.len());
        if keep < self.window.len() {
            self.window.copy_within(inputs.len().., 0);
            self.window[keep..].copy_from_slice(inputs);
        }
    }
}

impl HostState {
    pub(crate) fn new(layout: &StateLayout) -> Self {
        let attention = layout.attention.iter().map(|&layout| KvCache::new(layout)).collect();
        let delta = layout.delta.iter().map(|&layout| DeltaState {
            layout,
            recurrent: vec![0.0; layout.state_elements()],
            window: vec![0.0; layout.conv_kernel_dim.saturating_sub(1) * layout.conv_channels()],
        });
        Self { len: 0, attention, delta: delta.collect() }
    }

    /// Cache of attention layer `slot`.
    pub(crate) fn attention(&self, slot: usize) -> &KvCache {
        &self.attention[slot]
    }

    /// State of DeltaNet layer `slot`.
    pub(crate) fn delta(&self, slot: usize) -> &DeltaState {
        &self.delta[slot]
    }
}

impl State for HostState {
    fn len(&self) -> usize {
        self.len
    }

    fn size_bytes(&self) -> usize {
        let delta = self.delta.iter().map(|delta| 4 * (delta.recurrent.len() + delta.window.len()));
        self.attention.iter().map(KvCache::size_bytes).chain(delta).sum()
    }

    fn parts(&self) -> Vec<StatePart> {
        let part = |values: &Vec<f32>| StatePart { id: values.as_ptr().addr(), bytes: 4 * values.len() };
        let delta = self.delta.iter().flat_map(|delta| [part(&delta.recurrent), part(&delta.window)]);
        let parts = self.attention.iter().flat_map(KvCache::parts).chain(delta);
        // What is empty has no place of its own.
        parts.filter(|part| part.bytes > 0).collect()
    }

    fn snapshot(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn values(&self) -> StateValues {
        StateValues {
            len: self.len,
            attention: self.attention.iter().map(|cache| cache.values(self.len)).collect(),
            delta: self.delta.iter().map(DeltaState::values).collect(),
        }
    }

    fn restore(&mut self, values: &StateValues) -> Result<(), KernelError> {
        for (kind, found, expected) in [
            ("attention", values.attention.len(), self.attention.len()),
            ("DeltaNet", values.delta.len(), self.delta.len()),
        ] {
            if found != expected {
                return Err(KernelError::Layers { kind, found, expected });
            }
        }
        for (cache, values_of_layer) in self.attention.iter().zip(&values.attention) {
            cache.check(values.len, values_of_layer)?;
        }
        for (state, values_of_layer) in self.delta.iter().zip(&values.delta) {
            state.check(values_of_layer)?;
        }
        self.len = values.len;
        for (cache, values) in self.attention.iter_mut().zip(&values.attention) {
            cache.restore(values);
        }
        for (state, values) in self.delta.iter_mut().zip(&values.delta) {
            state.restore(values);
        }
        Ok(())
    }

    fn read_kv(&self, slot: usize) -> Result<(Vec<f32>, Vec<f32>), KernelError> {
        let available = self.attention.len();
        let missing = KernelError::Missing { what: "attention layer", found: slot, available };
        let cache = self.attention.get(slot).ok_or(missing)?;
        let KvValues { keys, values } = cache.values(self.len);
        Ok((keys, values))
    }

    fn read_delta(&self, slot: usize) -> Result<(Vec<f32>, Vec<f32>), KernelError> {
        let available = self.delta.len();
        let missing = KernelError::Missing { what: "DeltaNet layer", found: slot, available };
        let DeltaValues { recurrent, window } = self.delta.get(slot).ok_or(missing)?.values();
        Ok((recurrent, window))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
