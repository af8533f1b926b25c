//! A folder in Hugging Face's layout: `config.json`, safetensors in one file or many, tokenizer files. MLX writes the
//! same layout with other values in it.

use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Checkpoint, CheckpointError, Convention, DrafterLayout, GenerationConfig, ModelConfig, SourceFile, SourceKind,
    TensorData, TokenizerSource,
    config::{HuggingFaceConfig, parse_hugging_face},
    expected::{self, Conventions, Origin},
    experts,
    fields::{parse_json, shorten},
    map::{MappedFile, Mapping},
    mlx,
    names::{Meaning, meaning},
    pool::{Element, Pool, Stored},
    safetensors::{Header, TensorInfo},
    tokenizer,
};

/// The index beside many shards.
const INDEX: &str = "model.safetensors.index.json";

/// Opens a folder that holds `config.json` and safetensors.
pub(crate) fn open(dir: &Path) -> Result<Checkpoint, CheckpointError> {
    let config_file = dir.join("config.json");
    let config = read_optional(&config_file)?.ok_or_else(|| CheckpointError::NoConfig { dir: dir.to_owned() })?;
    if DrafterLayout::of_config(&parse_json(&config.bytes, &config_file)?).is_some() {
        return Err(CheckpointError::ADrafter { dir: dir.to_owned() });
    }
    let HuggingFaceConfig { mut model, tie_word_embeddings, quantization } =
        parse_hugging_face(&config.bytes, &config_file)?;
    let Weights { mut pool, mut files, mappings, mlx_format } = read_weights(dir)?;
    let conventions = conventions(&model, &pool, mlx_format);
    let is_mlx = mlx_format || quantization.is_some();

    mlx::join(&mut pool, quantization.as_ref(), &config_file)?;
    experts::unfuse(&mut pool, &model, &config_file)?;
    settle(&mut model, tie_word_embeddings, &pool);
    let origin = Origin { weights: dir, config: &config_file };
    let (tensors, skipped) = expected::assemble(&model, conventions, pool, &origin)?;

    let text = read_text(dir, &model)?;
    files.insert(0, config.source);
    files.extend(text.files);
    Ok(Checkpoint {
        config: model,
        tensors: tensors.with_mappings(mappings),
        tokenizer: text.tokenizer,
        chat_template: text.chat_template,
        generation: text.generation,
        skipped,
        source: if is_mlx { SourceKind::Mlx } else { SourceKind::HuggingFace },
        files,
    })
}

/// Fills in what only the tensors can tell.
fn settle(model: &mut ModelConfig, tie_word_embeddings: Option<bool>, pool: &Pool) {
    model.tie_word_embeddings = tie_word_embeddings.unwrap_or_else(|| pool.get("lm_head.weight").is_none());
    if !pool.names().any(|name| name.starts_with("mtp.")) {
        model.num_mtp_layers = 0;
    }
}

/// How norms are stored. MLX's conversion of Qwen3.5 adds 1 to them and moves the taps of `conv1d` from the last axis to
/// the middle one; the place of the taps is what tells the two apart, in MLX's own loader as well.
fn conventions(model: &ModelConfig, pool: &Pool, mlx_format: bool) -> Conventions {
    let conv1d = pool.names().find(|name| name.ends_with(".linear_attn.conv1d.weight")).and_then(|name| pool.get(name));
    let is_converted = match conv1d.map(|stored| stored.shape.as_slice()) {
        Some(&[_, taps, last]) => last == 1 && taps > 1,
        _ => mlx_format,
    };
    let norm = if model.is_qwen35() && !is_converted { Convention::ZeroCenteredNorm } else { Convention::AsIs };
    Conventions { norm, decay: Convention::NegExpLog }
}

/// The tensors of a folder.
pub(crate) struct Weights {
    pub(crate) pool: Pool,
    pub(crate) files: Vec<SourceFile>,
    pub(crate) mappings: Vec<Mapping>,
    /// Whether the files say that MLX wrote them.
    mlx_format: bool,
}

/// Maps the files of weights and reads their headers.
pub(crate) fn read_weights(dir: &Path) -> Result<Weights, CheckpointError> {
    let mut weights = Weights { pool: Pool::default(), files: Vec::new(), mappings: Vec::new(), mlx_format: false };
    for Shard { path, names } in shards(dir)? {
        let file = MappedFile::open(&path)?;
        let header = Header::parse(&file.bytes, file.source.size_bytes, &path)?;
        check_listed(&header, &names, &path)?;
        weights.mlx_format |= header.format.as_deref() == Some("mlx");
        let shared: Arc<Path> = file.path().into();
        for tensor in header.tensors {
            add(&mut weights.pool, tensor, &file, &shared)?;
        }
        weights.mappings.extend(file.mapping);
        weights.files.push(file.source);
    }
    Ok(weights)
}

fn add(pool: &mut Pool, tensor: TensorInfo, file: &MappedFile, path: &Arc<Path>) -> Result<(), CheckpointError> {
    let name = match meaning(&tensor.name) {
        Meaning::Canonical(name) => name.to_owned(),
        Meaning::Skip(reason) => {
            pool.skip(tensor.name, reason);
            return Ok(());
        }
    };
    let element = tensor.dtype.as_tensor_format().map_or(Element::Other(tensor.dtype), Element::Format);
    let data = TensorData::Plain(file.bytes.slice(tensor.begin..tensor.end));
    pool.insert(name, Stored { source_name: tensor.name, file: path.clone(), shape: tensor.shape, element, data })
}

/// One file of weights and the tensors that the index says it has.
struct Shard {
    path: PathBuf,
    names: Vec<String>,
}

/// The files of weights: those of the index, else the only safetensors file.
fn shards(dir: &Path) -> Result<Vec<Shard>, CheckpointError> {
    let index_file = dir.join(INDEX);
    if let Some(index) = read_optional(&index_file)? {
        return indexed_shards(dir, &index.bytes, &index_file);
    }
    let single = dir.join("model.safetensors");
    if single.exists() {
        return Ok(vec![Shard { path: single, names: Vec::new() }]);
    }
    let mut found = crate::checkpoint::files_with_extension(dir, "safetensors")?;
    match (found.pop(), found.is_empty()) {
        (None, _) => Err(CheckpointError::NoWeights { dir: dir.to_owned() }),
        (Some(path), true) => Ok(vec![Shard { path, names: Vec::new() }]),
        (Some(last), false) => {
            found.push(last);
            let advice = "several safetensors files need `model.safetensors.index.json` beside them";
            Err(crate::checkpoint::several(dir, &found, advice))
        }
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap,
}

/// Reads an index; the name of every shard must be a plain file name, so that an index cannot reach out of its folder.
fn indexed_shards(dir: &Path, json: &[u8], file: &Path) -> Result<Vec<Shard>, CheckpointError> {
    let Index { weight_map: UniqueMap(entries) } = parse_json(json, file)?;
    let mut seen = HashSet::new();
    let mut by_shard: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, shard) in entries {
        if !is_plain_name(&shard) {
            return Err(CheckpointError::Field {
                file: file.to_owned(),
                field: format!("weight_map.{}", shorten(&name)),
                found: format!("\"{}\"", shorten(&shard)),
                expected: "the name of a file in the same folder".to_owned(),
            });
        }
        if !seen.insert(name.clone()) {
            return Err(CheckpointError::Duplicate { file: file.to_owned(), what: "tensor", name: shorten(&name) });
        }
        by_shard.entry(shard).or_default().push(name);
    }
    if by_shard.is_empty() {
        return Err(CheckpointError::MissingField { file: file.to_owned(), field: "weight_map.*".to_owned() });
    }
    Ok(by_shard.into_iter().map(|(shard, names)| Shard { path: dir.join(shard), names }).collect())
}

fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let is_one = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    is_one && !name.contains(['/', '\\', '\0'])
}

/// Checks that a shard has what the index promises of it.
fn check_listed(header: &Header, names: &[String], shard: &Path) -> Result<(), CheckpointError> {
    let present: HashSet<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    match names.iter().find(|name| !present.contains(name.as_str())) {
        None => Ok(()),
        Some(name) => Err(CheckpointError::Malformed {
            file: shard.to_owned(),
            what: format!("tensor `{}`, which `{INDEX}` places there,", shorten(name)),
            found: "absent".to_owned(),
            expected: "present; index and shards are of different models".to_owned(),
        }),
    }
}

/// A JSON object of strings with names kept as often as they occur, so that a name given twice is seen.
struct UniqueMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for UniqueMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> serde::de::Visitor<'de> for Entries {
            type Value = UniqueMap;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of file names")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(UniqueMap(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The text side of a folder.
struct Text {
    tokenizer: TokenizerSource,
    chat_template: Option<String>,
    generation: GenerationConfig,
    files: Vec<SourceFile>,
}

fn read_text(dir: &Path, model: &ModelConfig) -> Result<Text, CheckpointError> {
    let mut files = Vec::new();
    let mut read = |name: &str| -> Result<Option<MappedFile>, CheckpointError> {
        let file = read_optional(&dir.join(name))?;
        files.extend(file.iter().map(|file| file.source.clone()));
        Ok(file)
    };
    let tokenizer_json = read("tokenizer.json")?.ok_or_else(|| CheckpointError::NoTokenizer { dir: dir.to_owned() })?;
    let tokenizer_config: Option<Value> = match read("tokenizer_config.json")? {
        Some(file) => Some(parse_json(&file.bytes, file.path())?),
        None => None,
    };
    let chat_template = match read("chat_template.jinja")? {
        Some(file) => Some(utf8(&file)?),
        None => tokenizer_config.as_ref().and_then(tokenizer::chat_template),
    };
    let mut generation = match read("generation_config.json")? {
        Some(file) => GenerationConfig::from_json(&file.bytes, file.path(), &model.eos_token_ids)?,
        None => GenerationConfig { eos_token_ids: model.eos_token_ids.clone(), ..GenerationConfig::default() },
    };
    generation.eos_token = tokenizer_config.as_ref().and_then(tokenizer::eos_token);
    let path = tokenizer_json.path().to_owned();
    let tokenizer = TokenizerSource::Json { bytes: tokenizer_json.bytes, path, tokenizer_config };
    Ok(Text { tokenizer, chat_template, generation, files })
}

fn utf8(file: &MappedFile) -> Result<String, CheckpointError> {
    let text = std::str::from_utf8(&file.bytes).map_err(|error| CheckpointError::Malformed {
        file: file.path().to_owned(),
        what: format!("the text from byte {} on", error.valid_up_to()),
        found: "no UTF-8".to_owned(),
        expected: "UTF-8".to_owned(),
    })?;
    Ok(text.to_owned())
}

/// Maps a file that may be absent.
pub(crate) fn read_optional(path: &Path) -> Result<Option<MappedFile>, CheckpointError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => MappedFile::open(path).map(Some),
    }
}
