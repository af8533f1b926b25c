//! Byte builders for GGUF and safetensors files, good and bad.

use std::{fs, path::Path};

use serde_json::json;

/// A GGUF file in the making. Counts can be overridden after the fact to build files that lie.
#[derive(Clone)]
pub(crate) struct Gguf {
    pub(crate) version: u32,
    pub(crate) num_tensors: Option<u64>,
    pub(crate) num_pairs: Option<u64>,
    pub(crate) pairs: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<GgufTensor>,
}

#[derive(Clone)]
pub(crate) struct GgufTensor {
    pub(crate) name: String,
    /// In the file's order: the row length first.
    pub(crate) axes: Vec<u64>,
    pub(crate) rank: Option<u32>,
    pub(crate) type_id: u32,
    pub(crate) offset: Option<u64>,
    pub(crate) size: usize,
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

pub(crate) fn u32_value(number: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), number.to_le_bytes()].concat()
}

pub(crate) fn f32_value(number: f32) -> Vec<u8> {
    [6u32.to_le_bytes(), number.to_le_bytes()].concat()
}

pub(crate) fn string_value(text: &str) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &string(text)].concat()
}

pub(crate) fn array_value(element: u32, len: u64, bytes: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes()[..], &element.to_le_bytes(), &len.to_le_bytes(), bytes].concat()
}

impl Gguf {
    pub(crate) fn empty() -> Self {
        Self { version: 3, num_tensors: None, num_pairs: None, pairs: Vec::new(), tensors: Vec::new() }
    }

    /// A whole Llama of one layer: hidden size 32, one head, two tokens.
    pub(crate) fn llama() -> Self {
        let mut gguf = Self::empty();
        gguf.set("general.architecture", string_value("llama"));
        for (key, number) in [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", 32),
            ("feed_forward_length", 64),
            ("attention.head_count", 1),
        ] {
            gguf.set(&format!("llama.{key}"), u32_value(number));
        }
        gguf.set("llama.attention.layer_norm_rms_epsilon", f32_value(1e-5));
        gguf.set("llama.rope.freq_base", f32_value(1e4));
        gguf.set("tokenizer.ggml.model", string_value("gpt2"));
        gguf.set("tokenizer.ggml.tokens", array_value(8, 2, &[string("a"), string("b")].concat()));
        gguf.set("tokenizer.ggml.eos_token_id", u32_value(1));
        gguf.tensor("token_embd.weight", &[32, 2]);
        gguf.tensor("output_norm.weight", &[32]);
        gguf.tensor("blk.0.attn_norm.weight", &[32]);
        gguf.tensor("blk.0.ffn_norm.weight", &[32]);
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            gguf.tensor(&format!("blk.0.{name}.weight"), &[32, 32]);
        }
        gguf.tensor("blk.0.ffn_gate.weight", &[32, 64]);
        gguf.tensor("blk.0.ffn_up.weight", &[32, 64]);
        gguf.tensor("blk.0.ffn_down.weight", &[64, 32]);
        gguf
    }

    /// Sets a key, in place where it is there.
    pub(crate) fn set(&mut self, key: &str, value: Vec<u8>) {
        match self.pairs.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.pairs.push((key.to_owned(), value)),
        }
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.pairs.retain(|(name, _)| name != key);
    }

    /// Adds an f32 tensor of zeros.
    pub(crate) fn tensor(&mut self, name: &str, axes: &[u64]) {
        let size = axes.iter().product::<u64>() as usize * 4;
        let name = name.to_owned();
        self.tensors.push(GgufTensor { name, axes: axes.to_vec(), rank: None, type_id: 0, offset: None, size });
    }

    /// The tensor called `name`.
    pub(crate) fn at(&mut self, name: &str) -> &mut GgufTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    /// The file without its data.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.num_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.num_pairs.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            bytes.extend(string(key));
            bytes.extend(value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            bytes.extend(string(&tensor.name));
            bytes.extend(tensor.rank.unwrap_or(tensor.axes.len() as u32).to_le_bytes());
            tensor.axes.iter().for_each(|axis| bytes.extend(axis.to_le_bytes()));
            bytes.extend(tensor.type_id.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset += (tensor.size as u64).next_multiple_of(32);
        }
        bytes
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        for tensor in &self.tensors {
            bytes.resize(bytes.len() + tensor.size.next_multiple_of(32), 0);
        }
        bytes
    }
}

/// A safetensors file with a given header text.
pub(crate) fn safetensors_raw(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// A tensor for [`safetensors`].
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// A good safetensors file.
pub(crate) fn safetensors(entries: &[Entry]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "mlx"}));
    let mut data = Vec::new();
    for entry in entries {
        let begin = data.len();
        data.extend(&entry.bytes);
        let value = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [begin, data.len()]});
        header.insert(entry.name.clone(), value);
    }
    safetensors_raw(&serde_json::Value::Object(header).to_string(), &data)
}

/// Copies the files of a fixture but for its weights into `dir`, so that weights can be put beside them.
pub(crate) fn copy_without_weights(fixture: &Path, dir: &Path) {
    for name in
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    {
        fs::copy(fixture.join(name), dir.join(name)).unwrap();
    }
}

/// Changes a folder's `config.json`.
pub(crate) fn edit_config(dir: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = dir.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs::write(path, config.to_string()).unwrap();
}
