//! Model files (Hugging Face, GGUF, MLX) as one typed description with checked, mapped tensors.
//!
//! ```
//! # let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-qwen35");
//! use pleach_checkpoint::{Checkpoint, Convention};
//!
//! let mut checkpoint = Checkpoint::open(dir.as_ref())?;
//! assert_eq!(checkpoint.config.num_hidden_layers, 8);
//!
//! let norm = checkpoint.tensors.take("layers.0.input_layernorm.weight")?;
//! assert_eq!(norm.shape, [checkpoint.config.hidden_size]);
//! assert_eq!(norm.convention, Convention::ZeroCenteredNorm);
//! # Ok::<(), pleach_checkpoint::CheckpointError>(())
//! ```
//!
//! No arithmetic and no device: a tensor is its stored bytes and a description of what they mean. Every name and shape
//! is checked against the config before [`Checkpoint::open`] returns, and no length of a file is believed before it is
//! compared with the file's size.

mod checkpoint;
mod config;
mod drafter;
mod error;
mod expected;
mod experts;
mod fields;
mod format;
pub mod gguf;
mod hugging_face;
mod map;
mod mlx;
mod names;
mod pool;
pub mod safetensors;
mod speculator;
mod tensor;
mod tokenizer;
mod weaver;

pub use checkpoint::{Checkpoint, SourceKind};
pub use config::{
    Architecture, LayerType, LinearAttentionConfig, ModelConfig, MoeConfig, RopeConfig, RopePairing, RopeScaling,
    ValueHeadOrder,
};
pub use drafter::{
    DraftAttention, DraftConv, DraftSelector, DrafterCheckpoint, DrafterConfig, DrafterLayout, drafter_beside,
};
pub use error::CheckpointError;
pub use format::{FloatFormat, TensorFormat};
pub use map::SourceFile;
pub use pool::SkippedTensor;
pub use tensor::{Convention, Tensor, TensorData, TensorMap};
pub use tokenizer::{GenerationConfig, GgufTokenizer, TokenizerSource};
pub use weaver::{WeaverCheckpoint, WeaverConfig};
