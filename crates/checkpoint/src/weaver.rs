//! Weavers, which score a block drafter's candidates given the path that leads to them: in the plain layout
//! (`weaver.json` and `weaver.safetensors`) or in Mirai's (`weaver_config` in `config.json`).

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::{
    CheckpointError, SourceFile, TensorMap,
    config::limits,
    expected::{self, Origin},
    fields::{Fields, parse_json, shorten},
    hugging_face::read_optional,
    map::MappedFile,
    pool::{Element, Pool, Stored},
    safetensors::{Header, TensorInfo},
    tensor::TensorData,
};

const PLAIN_CONFIG: &str = "weaver.json";
const PLAIN_WEIGHTS: &str = "weaver.safetensors";
const MIRAI_CONFIG: &str = "config.json";
const MIRAI_WEIGHTS: &str = "model.safetensors";

/// Before the names of a Weaver's tensors in Mirai's files.
const MIRAI_PREFIX: &str = "speculator.weaver.";

/// A Weaver beside the drafter whose guesses it scores.
///
/// Its tensors have the names of the published checkpoints (`embed_norm`, `token_in`, `blocks.0.qkv_proj`, ...), but for
/// `gate_up_proj`, which is two matrices here: `gate_proj` and `up_proj`. Source: "Trees from Marginals" (arXiv:2607.06763).
#[derive(Debug)]
pub struct WeaverCheckpoint {
    /// What the config says.
    pub config: WeaverConfig,
    /// The tensors, checked against the config.
    pub tensors: TensorMap,
    /// The files, the config first.
    pub files: Vec<SourceFile>,
}

/// Sizes of a Weaver, with the field names of the published checkpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct WeaverConfig {
    /// Width of the target's hidden states.
    pub d_model: usize,
    /// Width of the target's embedding.
    pub d_embed: usize,
    /// Its own width.
    pub d_rank: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Heads of a block's attention; each has keys and values of its own.
    pub num_heads: usize,
    /// Width of a block's feed-forward part.
    pub mlp_dim: usize,
    /// Depth below the root that it scores at most, which files call `K` or `max_depth`.
    pub max_depth: usize,
    /// The drafter's likeliest tokens that it scores at each depth.
    pub candidate_pool_size: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Added to the mean square by norms.
    pub eps: f32,
}

/// Which names the fields and tensors of a Weaver have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Plain,
    Mirai,
}

impl WeaverCheckpoint {
    /// Opens the Weaver in the folder of a drafter; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Files that are missing, damaged or not those of a Weaver; tensors that do not fit the config, or that nothing is
    /// known to do with.
    pub fn open(dir: &Path) -> Result<Option<Self>, CheckpointError> {
        let plain = dir.join(PLAIN_CONFIG);
        if let Some(file) = read_optional(&plain)? {
            let config = WeaverConfig::from_json(&file.bytes, &plain)?;
            return Self::read(config, Layout::Plain, file, &dir.join(PLAIN_WEIGHTS)).map(Some);
        }
        let mirai = dir.join(MIRAI_CONFIG);
        let Some(file) = read_optional(&mirai)? else { return Ok(None) };
        match WeaverConfig::from_mirai_json(&file.bytes, &mirai)? {
            Some(config) => Self::read(config, Layout::Mirai, file, &dir.join(MIRAI_WEIGHTS)).map(Some),
            None => Ok(None),
        }
    }

    fn read(
        config: WeaverConfig,
        layout: Layout,
        config_file: MappedFile,
        weights: &Path,
    ) -> Result<Self, CheckpointError> {
        let file = MappedFile::open(weights)?;
        let header = Header::parse(&file.bytes, file.source.size_bytes, weights)?;
        let path: Arc<Path> = weights.into();
        let mut pool = Pool::default();
        for tensor in header.tensors {
            add(&mut pool, tensor, layout, &file, &path)?;
        }
        let origin = Origin { weights, config: config_file.path() };
        let tensors = expected::assemble_weaver(&config, &mut pool, &origin)?;
        if let Some(name) = pool.names().min() {
            return Err(CheckpointError::UnsupportedFormat {
                file: weights.to_owned(),
                tensor: shorten(name),
                found: "part of a Weaver of another kind".to_owned(),
                advice: "supported are Weavers with rotary positions, gated feed-forward parts and norms with biases",
            });
        }
        Ok(Self { config, tensors: tensors.with_mappings(file.mapping), files: vec![config_file.source, file.source] })
    }
}

impl WeaverConfig {
    /// Reads a `weaver.json`. `file` is the name that errors give.
    ///
    /// # Errors
    ///
    /// A missing field, a value that no Weaver can have, or a kind of Weaver that is computed in another way.
    pub fn from_json(json: &[u8], file: &Path) -> Result<Self, CheckpointError> {
        let value: Value = parse_json(json, file)?;
        let root = Fields::of(&value, file)?;
        for (field, supported) in [("encoder_mode", 3), ("score_head", 4)] {
            root.optional_count(field, supported..=supported)?;
        }
        if let Some(found) = root.optional_text("activation")?.filter(|&found| found != "swiglu") {
            return Err(root.wrong("activation", format!("\"{}\"", shorten(found)), "\"swiglu\""));
        }
        Self {
            d_model: root.count("d_model", limits::WIDTH)?,
            d_embed: root.count("d_embed", limits::WIDTH)?,
            d_rank: root.count("d_rank", limits::WIDTH)?,
            num_layers: root.count("num_layers", limits::LAYERS)?,
            num_heads: root.count("num_heads", limits::WIDTH)?,
            mlp_dim: root.count("mlp_dim", limits::WIDTH)?,
            max_depth: root.count("K", DEPTH)?,
            candidate_pool_size: root.count("candidate_pool_size", POOL)?,
            rope_base: root.number("rope_base", limits::THETA)?,
            eps: root.optional_number("eps", limits::EPSILON)?.unwrap_or(DEFAULT_EPS),
        }
        .checked(&root, "num_heads", "d_rank")
    }

    /// Reads the Weaver's part of Mirai's `config.json`; `None` if it has none.
    fn from_mirai_json(json: &[u8], file: &Path) -> Result<Option<Self>, CheckpointError> {
        let value: Value = parse_json(json, file)?;
        let root = Fields::of(&value, file)?;
        let Some(own) = root.object("speculator_config")? else { return Ok(None) };
        let Some(own) = own.object("weaver_config")? else { return Ok(None) };
        let rope = own.object("rope_config")?.ok_or_else(|| own.missing("rope_config"))?;
        let eps = own
            .object("norm_config")?
            .map(|norm| norm.optional_number("epsilon", limits::EPSILON))
            .transpose()?
            .flatten();
        let config = Self {
            d_model: own.count("target_model_dim", limits::WIDTH)?,
            d_embed: own.count("target_embedding_dim", limits::WIDTH)?,
            d_rank: own.count("model_dim", limits::WIDTH)?,
            num_layers: own.count("num_layers", limits::LAYERS)?,
            num_heads: own.count("num_heads", limits::WIDTH)?,
            mlp_dim: own.count("hidden_dim", limits::WIDTH)?,
            max_depth: own.count("max_depth", DEPTH)?,
            candidate_pool_size: own.count("candidate_pool_size", POOL)?,
            rope_base: rope.number("base", limits::THETA)?,
            eps: eps.unwrap_or(DEFAULT_EPS),
        };
        config.checked(&own, "num_heads", "model_dim").map(Some)
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.d_rank / self.num_heads
    }

    /// The config, if its heads divide its width into pairs.
    fn checked(self, fields: &Fields<'_>, heads: &str, width: &str) -> Result<Self, CheckpointError> {
        if self.d_rank.is_multiple_of(2 * self.num_heads) {
            return Ok(self);
        }
        let expected = format!("a number that divides `{width}`, which is {}, into even parts", self.d_rank);
        Err(fields.wrong(heads, self.num_heads, expected))
    }
}

const DEPTH: std::ops::RangeInclusive<usize> = 1..=63;
const POOL: std::ops::RangeInclusive<usize> = 1..=1 << 16;

/// Of the published checkpoints, whose configs do not have it.
const DEFAULT_EPS: f32 = 1e-6;

/// Adds a stored tensor under its canonical name, or its two halves under theirs.
fn add(
    pool: &mut Pool,
    tensor: TensorInfo,
    layout: Layout,
    file: &MappedFile,
    path: &Arc<Path>,
) -> Result<(), CheckpointError> {
    let name = match layout {
        Layout::Plain => Some(tensor.name.clone()),
        Layout::Mirai => tensor.name.strip_prefix(MIRAI_PREFIX).map(plain_name),
    };
    // The drafter's tensors are in Mirai's file as well.
    let Some(name) = name else { return Ok(()) };
    let stored = Stored {
        element: tensor.dtype.as_tensor_format().map_or(Element::Other(tensor.dtype), Element::Format),
        data: TensorData::Plain(file.bytes.slice(tensor.begin..tensor.end)),
        source_name: tensor.name,
        file: path.clone(),
        shape: tensor.shape,
    };
    let Some((block, leaf)) = name.split_once("gate_up_proj.") else { return pool.insert(name, stored) };
    let halves = match layout {
        Layout::Plain => ["gate_proj", "up_proj"],
        Layout::Mirai => ["up_proj", "gate_proj"],
    };
    let Some(rows) = stored.shape.first().copied().filter(|rows| rows.is_multiple_of(2)) else {
        // An odd number of rows is nobody's: it is reported as it stands.
        return pool.insert(name, stored);
    };
    for (index, half) in halves.into_iter().enumerate() {
        let mut part = stored.clone();
        part.shape[0] = rows / 2;
        part.data = stored.data.part(index, 2);
        pool.insert(format!("{block}{half}.{leaf}"), part)?;
    }
    Ok(())
}

/// The published name of what Mirai calls `name`.
fn plain_name(name: &str) -> String {
    let name = name.replace("mlp.up_projection", "gate_up_proj").replace("mlp.down_projection", "down_proj");
    let mut parts: Vec<&str> = name.split('.').collect();
    let last = parts.len() - 1;
    for (place, part) in parts.iter_mut().enumerate() {
        *part = match *part {
            "scales" | "weights" if place == last => "weight",
            "biases" if place == last => "bias",
            "layers" if place == 0 => "blocks",
            "embedding_norm" => "embed_norm",
            "hidden_state_norm" => "output_norm",
            "embedding_projection" => "token_in",
            "hidden_state_projection" => "proposal_in",
            "pre_attention_norm" => "norm_attn",
            "qkv_projection" => "qkv_proj",
            "out_projection" => "o_proj",
            "pre_mlp_norm" => "norm_mlp",
            "output_norm" => "out_norm",
            "query_projection" => "lm_head_query_in",
            other => other,
        };
    }
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dir() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/smollm2-135m-instruct-drafter")
    }

    fn config() -> Value {
        json!({
            "d_model": 64, "d_embed": 64, "d_rank": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 48, "K": 7,
            "candidate_pool_size": 16, "rope_base": 1e4, "encoder_mode": 3, "score_head": 4, "activation": "swiglu",
        })
    }

    fn refusal(field: &str, value: Value) -> String {
        let mut config = config();
        config[field] = value;
        WeaverConfig::from_json(config.to_string().as_bytes(), Path::new("weaver.json")).unwrap_err().to_string()
    }

    #[test]
    fn the_weaver_that_comes_with_the_project_is_read() {
        let weaver = WeaverCheckpoint::open(&dir()).unwrap().unwrap();
        let WeaverConfig { d_model, d_rank, num_layers, max_depth, candidate_pool_size, .. } = weaver.config;
        assert_eq!((d_model, d_rank, num_layers, max_depth, candidate_pool_size), (576, 256, 2, 7, 64));
        assert_eq!(weaver.tensors.get("blocks.1.gate_proj.weight").unwrap().shape, [704, 256]);
        assert_eq!(weaver.tensors.get("blocks.1.up_proj.bias").unwrap().shape, [704]);
        assert_eq!(weaver.files.len(), 2);
    }

    #[test]
    fn a_folder_without_a_weaver_has_none() {
        let empty = tempfile::tempdir().unwrap();
        assert!(WeaverCheckpoint::open(empty.path()).unwrap().is_none());
        std::fs::write(empty.path().join("config.json"), r#"{"speculator_config": {"weaver_config": null}}"#).unwrap();
        assert!(WeaverCheckpoint::open(empty.path()).unwrap().is_none());
    }

    /// Each name of the published layout, from what Mirai calls it.
    #[test]
    fn mirais_names_are_translated() {
        for (mirai, plain) in [
            ("embedding_norm.scales", "embed_norm.weight"),
            ("hidden_state_norm.biases", "output_norm.bias"),
            ("embedding_projection.weights", "token_in.weight"),
            ("hidden_state_projection.biases", "proposal_in.bias"),
            ("layers.1.pre_attention_norm.scales", "blocks.1.norm_attn.weight"),
            ("layers.0.qkv_projection.weights", "blocks.0.qkv_proj.weight"),
            ("layers.0.out_projection.weights", "blocks.0.o_proj.weight"),
            ("layers.0.pre_mlp_norm.biases", "blocks.0.norm_mlp.bias"),
            ("layers.0.mlp.up_projection.weights", "blocks.0.gate_up_proj.weight"),
            ("layers.0.mlp.down_projection.biases", "blocks.0.down_proj.bias"),
            ("output_norm.scales", "out_norm.weight"),
            ("query_projection.weights", "lm_head_query_in.weight"),
        ] {
            assert_eq!(plain_name(mirai), plain);
        }
    }

    /// The same Weaver in both layouts is the same tensors, though Mirai's files have the up rows first.
    #[test]
    fn both_layouts_give_the_same_weaver() {
        let plain = WeaverCheckpoint::open(&dir()).unwrap().unwrap();
        let folder = tempfile::tempdir().unwrap();
        mirai_copy(&dir(), folder.path());
        let mirai = WeaverCheckpoint::open(folder.path()).unwrap().unwrap();
        assert_eq!(mirai.config, plain.config);
        assert_eq!(mirai.tensors.len(), plain.tensors.len());
        for tensor in plain.tensors.iter() {
            let TensorData::Plain(expected) = &tensor.data else { panic!("{}", tensor.name) };
            let other = mirai.tensors.get(&tensor.name).unwrap();
            let TensorData::Plain(found) = &other.data else { panic!("{}", tensor.name) };
            assert!(found == expected, "{} differs", tensor.name);
        }
    }

    /// Writes the Weaver of `from` to `to` as Mirai's exporter does.
    fn mirai_copy(from: &Path, to: &Path) {
        let bytes = std::fs::read(from.join(PLAIN_WEIGHTS)).unwrap();
        let header = Header::parse(&bytes, bytes.len() as u64, Path::new("plain")).unwrap();
        let (mut entries, mut data) = (serde_json::Map::new(), Vec::new());
        for tensor in &header.tensors {
            let begin = data.len();
            let values = &bytes[tensor.begin..tensor.end];
            match tensor.name.contains("gate_up_proj") {
                true => data.extend([&values[values.len() / 2..], &values[..values.len() / 2]].concat()),
                false => data.extend(values),
            }
            let place = json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, data.len()]});
            entries.insert(format!("{MIRAI_PREFIX}{}", mirai_name(&tensor.name)), place);
        }
        let header = Value::Object(entries).to_string();
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        std::fs::write(to.join(MIRAI_WEIGHTS), file).unwrap();
        let config = json!({"speculator_config": {"weaver_config": {
            "model_dim": 256, "target_model_dim": 576, "target_embedding_dim": 576, "num_layers": 2, "num_heads": 4,
            "hidden_dim": 704, "max_depth": 7, "candidate_pool_size": 64, "norm_config": {"epsilon": 1e-6},
            "rope_config": {"base": 10000.0, "head_dim": 64, "max_sequence_length": 8},
        }}});
        std::fs::write(to.join(MIRAI_CONFIG), config.to_string()).unwrap();
    }

    fn mirai_name(plain: &str) -> String {
        let leaf = if plain.contains("norm") { "scales" } else { "weights" };
        let name = plain.replace("out_norm", "output_norm_").replace("output_norm.", "hidden_state_norm.");
        let name = name.replace("output_norm_", "output_norm").replace("embed_norm", "embedding_norm");
        let name = name.replace("token_in", "embedding_projection").replace("proposal_in", "hidden_state_projection");
        let name = name.replace("blocks", "layers").replace("norm_attn", "pre_attention_norm");
        let name = name.replace("qkv_proj", "qkv_projection").replace("o_proj.", "out_projection.");
        let name = name.replace("norm_mlp", "pre_mlp_norm").replace("gate_up_proj", "mlp.up_projection");
        let name = name.replace("down_proj.", "mlp.down_projection.").replace("lm_head_query_in", "query_projection");
        name.replace(".weight", &format!(".{leaf}")).replace(".bias", ".biases")
    }

    #[test]
    fn what_would_be_computed_in_another_way_is_refused() {
        assert_eq!(
            refusal("activation", json!("gelu")),
            "`activation` in `weaver.json` is \"gelu\", expected \"swiglu\""
        );
        assert_eq!(
            refusal("encoder_mode", json!(2)),
            "`encoder_mode` in `weaver.json` is 2, expected a whole number from 3 to 3"
        );
        assert_eq!(
            refusal("num_heads", json!(5)),
            "`num_heads` in `weaver.json` is 5, expected a number that divides `d_rank`, which is 32, into even parts"
        );
        assert_eq!(refusal("K", json!(0)), "`K` in `weaver.json` is 0, expected a whole number from 1 to 63");
    }

    #[test]
    fn tensors_that_do_not_fit_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for name in [PLAIN_CONFIG, PLAIN_WEIGHTS] {
            std::fs::copy(dir().join(name), folder.path().join(name)).unwrap();
        }
        let path = folder.path().join(PLAIN_CONFIG);
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (field, value, message) in [
            ("mlp_dim", 700, "has shape [704, 256], but `[mlp_dim, d_rank]`"),
            ("num_layers", 1, "is stored as part of a Weaver of another kind"),
            ("num_layers", 3, "`blocks.2.norm_attn.weight` is missing"),
        ] {
            let before = std::mem::replace(&mut config[field], json!(value));
            std::fs::write(&path, config.to_string()).unwrap();
            let error = WeaverCheckpoint::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
            config[field] = before;
        }
    }
}
