//! GGUF files, version 2 and 3: one file, or the parts of a split one.
//!
//! A file is a header (magic, version, counts), metadata (typed key and value pairs), tensor infos, and aligned tensor
//! data. Every length in it is compared with the bytes that are left before anything is read or allocated for it.

mod config;
mod cursor;
mod header;
mod metadata;
mod names;
mod split;
mod tokenizer;
mod types;
mod value;

use std::{path::Path, sync::Arc};

pub use header::{Header, TensorInfo};
pub(crate) use split::is_first_part;
pub use value::{Array, Value, ValueType};

use self::{metadata::Metadata, names::Meaning};
use crate::{
    Checkpoint, CheckpointError, Convention, ModelConfig, RopeScaling, SourceKind, TensorData, TokenizerSource,
    expected::{self, Conventions, Origin},
    experts,
    map::MappedFile,
    pool::{Element, Pool, Stored},
};

/// Opens the model that `path` is, or is a part of.
pub(crate) fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let files = split::parts(path).iter().map(|part| MappedFile::open(part)).collect::<Result<Vec<_>, _>>()?;
    let headers = files.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    split::check(&files, &headers)?;
    let metadata = Metadata::new(&headers[0], files[0].path());

    let mut model = config::read(&metadata, &headers)?;
    let mut pool = pool(&files, &headers, &model)?;
    add_shared_norm(&mut pool, &model)?;
    if let Some(factors) = pool.remove(names::ROPE_FREQS) {
        model.rope.scaling = rope_factors(&factors, &model, metadata.file())?;
    }
    experts::unfuse(&mut pool, &model, metadata.file())?;

    let tokenizer = tokenizer::read(&metadata, model.vocab_size)?;
    let generation = tokenizer::generation(&metadata, &tokenizer)?;
    let conventions = Conventions { norm: Convention::AsIs, decay: Convention::AsIs };
    let origin = Origin { weights: metadata.file(), config: metadata.file() };
    let (tensors, skipped) = expected::assemble(&model, conventions, pool, &origin)?;
    let chat_template = metadata.optional_text("tokenizer.chat_template")?.map(str::to_owned);
    Ok(Checkpoint {
        config: model,
        tensors: tensors.with_mappings(files.iter().filter_map(|file| file.mapping.clone())),
        tokenizer: TokenizerSource::Gguf(tokenizer),
        chat_template,
        generation,
        skipped,
        source: SourceKind::Gguf,
        files: files.into_iter().map(|file| file.source).collect(),
    })
}

fn parse(file: &MappedFile) -> Result<Header<'_>, CheckpointError> {
    Header::parse(&file.bytes, file.source.size_bytes, file.path())
}

/// All tensors of all parts, under canonical names.
fn pool(files: &[MappedFile], headers: &[Header<'_>], model: &ModelConfig) -> Result<Pool, CheckpointError> {
    let mut pool = Pool::default();
    for (file, header) in files.iter().zip(headers) {
        let path: Arc<Path> = file.path().into();
        for tensor in &header.tensors {
            let name = match names::meaning(tensor.name, model.num_hidden_layers) {
                Meaning::Canonical(name) => name,
                Meaning::Skip(reason) => {
                    pool.skip(tensor.name.to_owned(), reason);
                    continue;
                }
            };
            let stored = Stored {
                source_name: tensor.name.to_owned(),
                file: path.clone(),
                shape: tensor.shape.clone(),
                element: Element::Format(tensor.format),
                data: TensorData::Plain(file.bytes.slice(tensor.begin..tensor.end)),
            };
            pool.insert(name, stored)?;
        }
    }
    Ok(pool)
}

/// Converters may leave out the prediction head's own final norm; the trunk's then serves for both.
fn add_shared_norm(pool: &mut Pool, model: &ModelConfig) -> Result<(), CheckpointError> {
    const OWN: &str = "mtp.norm.weight";
    match pool.get("norm.weight").cloned() {
        Some(norm) if model.num_mtp_layers > 0 && pool.get(OWN).is_none() => pool.insert(OWN.to_owned(), norm),
        _ => Ok(()),
    }
}

/// The divisors of the rotary frequencies that `rope_freqs.weight` holds.
fn rope_factors(stored: &Stored, model: &ModelConfig, config: &Path) -> Result<RopeScaling, CheckpointError> {
    let expected = vec![model.rope.rotary_dim / 2];
    if stored.shape != expected {
        return Err(CheckpointError::Shape {
            name: stored.source_name.clone(),
            file: stored.file.to_path_buf(),
            config: config.to_owned(),
            rule: "[rope.dimension_count / 2]",
            found: stored.shape.clone(),
            expected,
        });
    }
    let format = stored.format()?;
    let (crate::TensorFormat::F32, TensorData::Plain(bytes)) = (format, &stored.data) else {
        return Err(stored.unsupported(format.to_string(), "rotary factors are F32"));
    };
    let factors: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        None => Ok(RopeScaling::Factors(factors)),
        Some(factor) => Err(CheckpointError::Malformed {
            file: stored.file.to_path_buf(),
            what: format!("an entry of `{}`", stored.source_name),
            found: factor.to_string(),
            expected: "a positive number".to_owned(),
        }),
    }
}
