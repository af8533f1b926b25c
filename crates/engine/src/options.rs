//! How a model is run: device, threads, context, precision. The only place where a device is chosen.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use pleach_checkpoint::ModelConfig;
use pleach_kernels::{
    Activations as KernelActivations, Ceilings, CpuDevice, CpuOptions, DType, Device, ReferenceDevice,
};
use pleach_model::{LoadOptions, MAX_ROWS, MemoryPlan};

use crate::{EngineError, Speculation, memory};

/// Choices made when a model is opened. The default suits nearly everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Where passes run.
    pub device: DeviceChoice,
    /// Threads of a pass, at most [`MAX_THREADS`]; `None` (default) for one per physical core that the process may use.
    /// They change the speed, never the text. The reference device has one.
    pub threads: Option<NonZeroUsize>,
    /// Tokens that prompt and answer may have together.
    pub context: ContextLength,
    /// Type of stored keys and values.
    pub kv_cache: KvCacheType,
    /// Precision of what quantized weights are multiplied with.
    pub activations: Activations,
    /// Tokens of a prompt that are run in one pass: 1 to [`MAX_PREFILL_CHUNK`], default 128. A cancelled request ends
    /// after at most one such pass. It changes the speed, never the text.
    pub prefill_chunk: usize,
    /// Which drafters guess ahead. They change the speed, never the text.
    pub speculation: Speculation,
    /// A folder or `.gguf` file with a small model of the same vocabulary that drafts, or the folder of a DFlash drafter
    /// that was trained for the model.
    pub draft_model: Option<PathBuf>,
}

/// Most tokens of a prompt in one pass.
pub const MAX_PREFILL_CHUNK: usize = MAX_ROWS;

/// Most threads of a pass.
pub const MAX_THREADS: usize = 1024;

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            threads: None,
            context: ContextLength::default(),
            kv_cache: KvCacheType::default(),
            activations: Activations::default(),
            prefill_chunk: 128,
            speculation: Speculation::default(),
            draft_model: None,
        }
    }
}

/// A kind of device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The processor, with the best instructions that it has.
    #[default]
    Cpu,
    /// Plain loops on one thread: slow, and the truth that every other device is tested against.
    Reference,
}

/// Tokens that prompt and answer may have together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContextLength {
    /// What the model was made for, as far as half of the free memory holds it, and at most [`AUTOMATIC_CONTEXT`].
    #[default]
    Automatic,
    /// This many; refused at opening if the model or the memory does not allow it.
    Tokens(NonZeroUsize),
}

/// Longest context that is chosen without being asked for. Longer ones work: the cost of attention grows with the
/// context, and a request that fills a quarter of a million tokens by mistake would run for hours.
pub const AUTOMATIC_CONTEXT: usize = 32_768;

/// Type of stored keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvCacheType {
    /// Exact, twice the memory.
    F32,
    /// 11 bits of precision.
    #[default]
    F16,
    /// 8 bits of precision, the range of f32: for models whose keys overflow f16.
    BF16,
    /// Integers of 8 bits with a scale per head and token: half the memory of 16 bits.
    Q8,
}

/// Precision of what quantized weights are multiplied with. Weights in float formats always meet f32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Activations {
    /// f32; weights are dequantized first. Slow.
    Exact,
    /// int8 with one scale per 32 elements, summed exactly.
    #[default]
    Int8,
}

/// What decides how long a context can be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextLimits {
    /// Tokens that the model was made for.
    pub(crate) max_position_embeddings: usize,
    /// Bytes of keys and values per token.
    pub(crate) token_bytes: usize,
    /// Bytes that a context may take; `None` where the system does not say.
    pub(crate) available_bytes: Option<u64>,
}

/// The device that models would run on, in words: its instruction set and its threads.
///
/// # Errors
/// As opening a model, as far as the device is concerned.
pub fn device_description(options: &EngineOptions) -> Result<String, EngineError> {
    options.validate()?;
    Ok(options.open_device()?.describe())
}

impl EngineOptions {
    /// Checks what the types do not.
    pub(crate) fn validate(&self) -> Result<(), EngineError> {
        check("prefill_chunk", self.prefill_chunk, MAX_PREFILL_CHUNK)?;
        check("threads", self.threads.map_or(1, NonZeroUsize::get), MAX_THREADS)
    }

    /// Starts the chosen device.
    pub(crate) fn open_device(&self) -> Result<Arc<dyn Device>, EngineError> {
        Ok(match self.device {
            DeviceChoice::Cpu => {
                let options = CpuOptions { threads: self.threads, instruction_set: None };
                Arc::new(CpuDevice::new(options).map_err(EngineError::Device)?)
            }
            DeviceChoice::Reference => Arc::new(ReferenceDevice::new()),
        })
    }

    /// Measures what the device can do at most with these options; `None` from a device that does not try to reach it.
    ///
    /// It takes less than a second, and memory of its own meanwhile.
    ///
    /// # Errors
    /// As opening a model, as far as the device is concerned.
    pub fn ceilings(&self) -> Result<Option<Ceilings>, EngineError> {
        self.validate()?;
        Ok(self.open_device()?.ceilings())
    }

    /// The part that concerns the weights.
    pub(crate) fn load_options(&self) -> LoadOptions {
        LoadOptions {
            kv_cache: match self.kv_cache {
                KvCacheType::F32 => DType::F32,
                KvCacheType::F16 => DType::F16,
                KvCacheType::BF16 => DType::BF16,
                KvCacheType::Q8 => DType::I8,
            },
            activations: match self.activations {
                Activations::Exact => KernelActivations::Float,
                Activations::Int8 => KernelActivations::Int8PerGroup,
            },
        }
    }
}

fn check(field: &'static str, found: usize, most: usize) -> Result<(), EngineError> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    Err(EngineError::InvalidField { field, found: found.to_string(), allowed: format!("from 1 to {most}") })
}

impl ContextLength {
    /// Settles the length for a model and a machine.
    pub(crate) fn resolve(self, limits: &ContextLimits) -> Result<usize, EngineError> {
        let most = limits.max_position_embeddings;
        let fits = limits.tokens_that_fit();
        match self {
            // Two tokens are the least that a prompt and an answer take: opening never fails for want of memory here.
            Self::Automatic => Ok(most.min(AUTOMATIC_CONTEXT).min(fits / 2).max(2.min(most))),
            Self::Tokens(tokens) if tokens.get() > most => {
                Err(EngineError::ContextBeyondModel { found: tokens.get(), most })
            }
            Self::Tokens(tokens) if tokens.get() > fits => Err(EngineError::ContextBeyondMemory {
                found: tokens.get(),
                needed_mib: limits.token_bytes.saturating_mul(tokens.get()) >> 20,
                available_mib: (limits.available_bytes.unwrap_or(u64::MAX) >> 20) as usize,
                fits,
            }),
            Self::Tokens(tokens) => Ok(tokens.get()),
        }
    }
}

impl ContextLimits {
    /// Those of a model on this machine as it is now. `untaken_bytes` of the weights are still among the free memory.
    pub(crate) fn of(config: &ModelConfig, plan: &MemoryPlan, untaken_bytes: usize) -> Self {
        Self {
            max_position_embeddings: config.max_position_embeddings,
            token_bytes: plan.token_bytes,
            available_bytes: memory::available_bytes()
                .map(|free| free.saturating_sub((untaken_bytes + plan.state_bytes) as u64)),
        }
    }

    /// The longest context that can be asked for.
    pub(crate) fn largest(&self) -> usize {
        self.max_position_embeddings.min(self.tokens_that_fit())
    }

    fn tokens_that_fit(&self) -> usize {
        match self.available_bytes {
            Some(bytes) if self.token_bytes > 0 => usize::try_from(bytes).unwrap_or(usize::MAX) / self.token_bytes,
            _ => usize::MAX,
        }
    }
}

impl From<usize> for ContextLength {
    /// 0 is automatic.
    fn from(tokens: usize) -> Self {
        NonZeroUsize::new(tokens).map_or(Self::Automatic, Self::Tokens)
    }
}

impl FromStr for ContextLength {
    type Err = EngineError;

    /// A whole number of tokens; 0 is automatic.
    fn from_str(text: &str) -> Result<Self, EngineError> {
        // No context has more tokens than a checkpoint may announce positions.
        const MOST: usize = 1 << 30;
        match text.parse::<usize>() {
            Ok(tokens) if tokens <= MOST => Ok(tokens.into()),
            _ => Err(EngineError::InvalidField {
                field: "context",
                found: format!("`{text}`"),
                allowed: format!("a whole number from 0 (automatic) to {MOST}"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn limits(max_position_embeddings: usize, available_bytes: Option<u64>) -> ContextLimits {
        ContextLimits { max_position_embeddings, token_bytes: 1 << 16, available_bytes }
    }

    fn tokens(tokens: usize) -> ContextLength {
        tokens.into()
    }

    #[test]
    fn automatic_takes_the_least_of_model_memory_and_cap() {
        let automatic = |limits| ContextLength::Automatic.resolve(&limits).unwrap();
        assert_eq!(automatic(limits(8192, Some(16 * GIB))), 8192);
        assert_eq!(automatic(limits(262_144, Some(16 * GIB))), AUTOMATIC_CONTEXT);
        assert_eq!(automatic(limits(262_144, Some(GIB))), 8192);
        assert_eq!(automatic(limits(262_144, None)), AUTOMATIC_CONTEXT);
        assert_eq!(automatic(limits(262_144, Some(0))), 2);
    }

    #[test]
    fn a_length_asked_for_is_given_or_refused() {
        assert_eq!(tokens(100).resolve(&limits(8192, Some(GIB))).unwrap(), 100);
        assert_eq!(
            tokens(8193).resolve(&limits(8192, None)).unwrap_err().to_string(),
            "a context of 8193 tokens was asked for, but the model was made for at most 8192"
        );
        assert_eq!(
            tokens(20_000).resolve(&limits(262_144, Some(GIB))).unwrap_err().to_string(),
            "a context of 20000 tokens takes 1250 MiB, but 1024 MiB are free: ask for at most 16384 tokens"
        );
    }

    #[test]
    fn context_lengths_are_read_from_text() {
        assert_eq!("0".parse::<ContextLength>().unwrap(), ContextLength::Automatic);
        assert_eq!("4096".parse::<ContextLength>().unwrap(), tokens(4096));
        for text in ["-1", "2147483648", "8k", "", "1e30", "1.5", "18446744073709551616"] {
            assert_eq!(
                text.parse::<ContextLength>().unwrap_err().to_string(),
                format!("`context` is `{text}`, but must be a whole number from 0 (automatic) to 1073741824")
            );
        }
    }

    #[test]
    fn a_prefill_chunk_has_bounds() {
        let options = |prefill_chunk| EngineOptions { prefill_chunk, ..EngineOptions::default() };
        assert!(options(1).validate().is_ok());
        assert!(options(MAX_PREFILL_CHUNK).validate().is_ok());
        assert_eq!(
            options(0).validate().unwrap_err().to_string(),
            format!("`prefill_chunk` is 0, but must be from 1 to {MAX_PREFILL_CHUNK}")
        );
    }

    #[test]
    fn threads_have_bounds() {
        let options = EngineOptions { threads: NonZeroUsize::new(1 << 31), ..EngineOptions::default() };
        assert_eq!(options.validate().unwrap_err().to_string(), "`threads` is 2147483648, but must be from 1 to 1024");
    }
}
