//! `pleach inspect`: what is in a model, and what it would take.

use pleach_engine::{Inspection, Located, inspect as look_into};
use pleach_engine::{LayerType, ModelConfig};
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::description::{drafter_object, drafting, formats, parameters, quantization};
use crate::error::{CliError, End};
use crate::footer::{self, aligned};
use crate::models::Finder;
use crate::output::{print_json, print_text};
use crate::progress::Progress;
use crate::style::Style;
use crate::table::Table;

/// Prints what the model is; its weights are not loaded.
pub(crate) fn inspect(args: &InspectArgs) -> Result<End, CliError> {
    let mut progress = Progress::new(Style::of_stderr(), false);
    let named = args.name.as_deref().or(args.model.model.as_deref());
    let finder = Finder::new(&args.model.network);
    let located = finder.find(named, &mut progress)?;
    let options = finder.engine_options(&args.model, &mut progress)?;
    let found = look_into(&located.path, &options).map_err(CliError::from_engine)?;
    if args.json { print_json(&object(&located, &found)) } else { print_text(&text(&located, &found, args.tensors)) }?;
    Ok(End::Done)
}

fn text(located: &Located, found: &Inspection, with_tensors: bool) -> String {
    let info = &found.info;
    let mut lines = vec![
        aligned("model", &located.name),
        aligned("path", &located.path.display().to_string()),
        aligned("files", &format!("{}, {}", info.file_format, files(found))),
        aligned("architecture", &format!("{}, {}", info.architecture, parameters(info.num_parameters))),
        aligned("quantization", &quantization(found)),
    ];
    lines.extend(config_lines(&found.config));
    let chat = if found.has_chat_template { "has a chat template" } else { "continues texts; it has no chat template" };
    lines.push(aligned("conversations", chat));
    lines.extend(drafting(found));
    lines.push(aligned("skipped tensors", &info.skipped.len().to_string()));
    lines.push(String::new());
    lines.push(formats(found).text());
    lines.extend(memory_lines(found));
    info.warnings.iter().for_each(|warning| lines.push(format!("warning: {warning}")));
    let mut text = lines.join("\n") + "\n";
    if with_tensors {
        text += &format!("\n{}", tensors(found).text());
        for skipped in &info.skipped {
            text += &format!("skipped {}: {:?}\n", skipped.name, skipped.reason);
        }
    }
    text
}

fn files(found: &Inspection) -> String {
    let bytes = found.files.iter().map(|file| file.size_bytes).sum();
    let count = found.files.len();
    format!("{count} file{} of {}", if count == 1 { "" } else { "s" }, footer::size(bytes))
}

fn config_lines(config: &ModelConfig) -> Vec<String> {
    let attention = config.layer_types.iter().filter(|layer| **layer == LayerType::FullAttention).count();
    let linear = config.layer_types.len() - attention;
    let layers = match linear {
        0 => format!("{attention}, all with attention"),
        linear => format!("{}: {attention} with attention, {linear} with Gated DeltaNet", attention + linear),
    };
    let heads = format!(
        "{} for queries, {} for keys and values, of {} each",
        config.num_attention_heads, config.num_key_value_heads, config.head_dim
    );
    let mut lines = vec![
        aligned("layers", &layers),
        aligned("width", &format!("{}, inside the MLP {}", config.hidden_size, config.intermediate_size)),
        aligned("heads", &heads),
        aligned("vocabulary", &format!("{} tokens", config.vocab_size)),
    ];
    if let Some(moe) = &config.moe {
        lines.push(aligned("experts", &format!("{}, {} for each token", moe.num_experts, moe.num_experts_per_tok)));
    }
    lines
}

fn tensors(found: &Inspection) -> Table {
    let mut table = Table::new(&["TENSOR", "SHAPE", "FORMAT", "SIZE"]);
    for tensor in &found.tensors {
        let shape = tensor.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × ");
        table.push(vec![tensor.name.clone(), shape, tensor.format.clone(), footer::size(tensor.size_bytes as u64)]);
    }
    table
}

/// Context lengths that the table of memory shows, as far as the model has them.
const LENGTHS: [usize; 4] = [4096, 32_768, 131_072, 262_144];

fn memory_lines(found: &Inspection) -> Vec<String> {
    let (info, memory) = (&found.info, &found.info.memory);
    let free = found.available_bytes.map_or_else(|| "not known".to_owned(), footer::size);
    let mut lines = vec![
        aligned("weights", &footer::size(memory.weights_bytes as u64)),
        aligned("per conversation", &footer::size(memory.state_bytes as u64)),
        aligned("per 1000 tokens", &footer::size(1000 * memory.token_bytes as u64)),
        aligned("free memory", &free),
        aligned("context", &format!("{} tokens unless --ctx says otherwise", info.context)),
        aligned(
            "largest that fits",
            &format!("{} tokens; the model was made for {}", info.largest_context, info.max_context),
        ),
    ];
    let lengths = LENGTHS.into_iter().filter(|&tokens| tokens < info.max_context).chain([info.max_context]);
    for tokens in lengths {
        let total = found.total_bytes(tokens) as u64;
        let fits = if tokens > info.largest_context { ", more than is free" } else { "" };
        lines.push(aligned(&format!("with {tokens} tokens"), &format!("{}{fits}", footer::size(total))));
    }
    lines
}

fn object(located: &Located, found: &Inspection) -> Value {
    let (info, config) = (&found.info, &found.config);
    let attention = config.layer_types.iter().filter(|layer| **layer == LayerType::FullAttention).count();
    json!({
        "model": located.name,
        "path": located.path.display().to_string(),
        "file_format": info.file_format,
        "files": found.files.iter().map(|file| json!({
            "path": file.path.display().to_string(), "size_bytes": file.size_bytes,
        })).collect::<Value>(),
        "architecture": info.architecture,
        "num_parameters": info.num_parameters,
        "quantization": info.quantization,
        "bits_per_weight": found.bits_per_weight(),
        "drafter": found.drafter.as_ref().map(drafter_object),
        "config": {
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_layers": attention,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_position_embeddings,
            "num_experts": config.moe.as_ref().map(|moe| moe.num_experts),
            "num_experts_per_tok": config.moe.as_ref().map(|moe| moe.num_experts_per_tok),
            "num_mtp_layers": config.num_mtp_layers,
        },
        "has_chat_template": found.has_chat_template,
        "formats": found.formats.iter().map(|share| json!({
            "format": share.format, "tensors": share.tensors, "size_bytes": share.size_bytes,
            "num_parameters": share.num_parameters, "bits_per_weight": share.bits_per_weight(),
        })).collect::<Value>(),
        "tensors": found.tensors.iter().map(|tensor| json!({
            "name": tensor.name, "source_name": tensor.source_name, "shape": tensor.shape, "format": tensor.format,
            "size_bytes": tensor.size_bytes,
        })).collect::<Value>(),
        "memory": {
            "weights_bytes": info.memory.weights_bytes,
            "state_bytes": info.memory.state_bytes,
            "token_bytes": info.memory.token_bytes,
            "available_bytes": found.available_bytes,
        },
        "context": info.context,
        "largest_context": info.largest_context,
        "max_context": info.max_context,
        "device": info.device,
        "warnings": info.warnings,
    })
}
