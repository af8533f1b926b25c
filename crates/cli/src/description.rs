//! What a model is, in the words of `inspect`, `info` and `list`.

use pleach_engine::{DrafterFound, Inspection};
use serde_json::{Value, json};

use crate::footer::{self, aligned};
use crate::table::Table;

/// `1.72 billion parameters`
pub(crate) fn parameters(count: u64) -> String {
    match count as f64 {
        count @ 1e9.. => format!("{} billion parameters", footer::significant(count / 1e9)),
        count @ 1e6.. => format!("{} million parameters", footer::significant(count / 1e6)),
        count => format!("{count} parameters"),
    }
}

/// `1.72 B`
pub(crate) fn short_parameters(count: u64) -> String {
    match count as f64 {
        count @ 1e9.. => format!("{} B", footer::significant(count / 1e9)),
        count @ 1e6.. => format!("{} M", footer::significant(count / 1e6)),
        count => format!("{} K", footer::significant(count / 1e3)),
    }
}

/// The number formats of the weights, with what a weight takes in each.
pub(crate) fn formats(found: &Inspection) -> Table {
    let mut table = Table::new(&["FORMAT", "TENSORS", "SIZE", "BITS PER WEIGHT"]);
    for share in &found.formats {
        table.push(vec![
            share.format.clone(),
            share.tensors.to_string(),
            footer::size(share.size_bytes as u64),
            bits(share.bits_per_weight()),
        ]);
    }
    table
}

/// `4.50`
pub(crate) fn bits(bits_per_weight: f64) -> String {
    format!("{bits_per_weight:.2}")
}

/// `Q4_1 91 %, Q6_K 9 %; 5.16 bits per weight`
pub(crate) fn quantization(found: &Inspection) -> String {
    format!("{}; {} bits per weight", found.info.quantization, bits(found.bits_per_weight()))
}

/// What guesses ahead, and whether a drafter that was found can.
pub(crate) fn drafting(found: &Inspection) -> Vec<String> {
    let head = found.config.num_mtp_layers > 0;
    let usual = if head { "by its own prediction head (mtp)" } else { "looked up in the text (ngram)" };
    let Some(drafter) = &found.drafter else { return vec![aligned("guesses ahead", usual)] };
    let weaver = if drafter.has_weaver { " with a Weaver" } else { "" };
    let what = format!("{}{weaver}, {}", parameters(drafter.num_parameters), drafter.path.display());
    match &drafter.unfit {
        None => vec![aligned("guesses ahead", "by a drafter that fits"), aligned("drafter", &what)],
        Some(reason) => {
            let place = drafter.path.display();
            vec![
                aligned("guesses ahead", usual),
                aligned("drafter", &format!("the one in {place} does not fit: {reason}")),
            ]
        }
    }
}

/// Memory with the context that is chosen, and the longest context.
pub(crate) fn memory(found: &Inspection) -> Vec<String> {
    let info = &found.info;
    let loaded =
        format!("{} with {} tokens of context", footer::size(found.total_bytes(info.context) as u64), info.context);
    let longest = format!("{} tokens; the model was made for {}", info.largest_context, info.max_context);
    vec![aligned("memory when loaded", &loaded), aligned("largest that fits", &longest)]
}

/// The drafter for programs.
pub(crate) fn drafter_object(drafter: &DrafterFound) -> Value {
    json!({
        "path": drafter.path.display().to_string(),
        "num_parameters": drafter.num_parameters,
        "has_weaver": drafter.has_weaver,
        "fits": drafter.unfit.is_none(),
        "unfit_reason": drafter.unfit,
    })
}
