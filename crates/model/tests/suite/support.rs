//! What the tests of this crate share: devices, golden values, comparison.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pleach_checkpoint::Checkpoint;
use pleach_kernels::{Activations, CpuDevice, CpuOptions, DType, Device, InstructionSet, ReferenceDevice};
use pleach_model::{LoadOptions, Model};
use safetensors::{Dtype, SafeTensors};

/// Every device of this machine, with each instruction set of the CPU forced in turn.
pub(crate) fn devices() -> Vec<Arc<dyn Device>> {
    let sets = InstructionSet::ALL.into_iter().filter(|set| set.is_available());
    let cpu = sets.map(|set| {
        let options = CpuOptions { threads: NonZeroUsize::new(2), instruction_set: Some(set) };
        Arc::new(CpuDevice::new(options).unwrap()) as Arc<dyn Device>
    });
    std::iter::once(Arc::new(ReferenceDevice::new()) as Arc<dyn Device>).chain(cpu).collect()
}

pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

/// Exact settings: f32 caches and f32 activations.
pub(crate) const EXACT: LoadOptions = LoadOptions { kv_cache: DType::F32, activations: Activations::Float };

pub(crate) fn load(path: &str, device: Arc<dyn Device>, options: &LoadOptions) -> Arc<Model> {
    let checkpoint = Checkpoint::open(&fixture(path)).unwrap();
    Arc::new(Model::load(checkpoint.config, checkpoint.tensors, device, options).unwrap())
}

/// The golden values of one file: f32 tensors, and the integer ones beside them.
pub(crate) struct Golden {
    floats: HashMap<String, Vec<f32>>,
    ints: HashMap<String, Vec<i32>>,
}

impl Golden {
    pub(crate) fn open(path: &str) -> Self {
        let bytes = std::fs::read(fixture(path)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut golden = Self { floats: HashMap::new(), ints: HashMap::new() };
        for (name, view) in file.tensors() {
            let words = view.data().chunks_exact(4).map(|word| <[u8; 4]>::try_from(word).unwrap());
            match view.dtype() {
                Dtype::F32 => drop(golden.floats.insert(name, words.map(f32::from_le_bytes).collect())),
                Dtype::I32 => drop(golden.ints.insert(name, words.map(i32::from_le_bytes).collect())),
                other => panic!("{name} is {other:?}"),
            }
        }
        golden
    }

    pub(crate) fn floats(&self, name: &str) -> &[f32] {
        self.floats.get(name).unwrap_or_else(|| panic!("no golden tensor {name}"))
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.ints[name].iter().map(|&id| u32::try_from(id).unwrap()).collect()
    }

    pub(crate) fn parents(&self, name: &str) -> Vec<Option<usize>> {
        self.ints[name].iter().map(|&parent| usize::try_from(parent).ok()).collect()
    }
}

/// Largest absolute difference is at most `tolerance`; NaN never passes.
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance, "{what}[{i}]: {f} against {e}, tolerance {tolerance}");
    }
}

/// Index of the largest value, the lowest of several.
pub(crate) fn argmax(row: &[f32]) -> u32 {
    let best = row.iter().enumerate().fold(0, |best, (i, value)| if *value > row[best] { i } else { best });
    u32::try_from(best).unwrap()
}
