//! `pleach doctor`: what this machine has, and what will be used of it.

use std::env;
use std::fs;
use std::path::Path;

use pleach_engine::{
    EnergyMeter, EngineOptions, Environment, Rate, device_description, load_average, local_models, processor_name,
    system_memory,
};
use pleach_hub::Hub;
use serde_json::{Value, json};

use crate::args::{DoctorArgs, NetworkFlags, settings_path};
use crate::error::{CliError, End};
use crate::footer::{self, aligned};
use crate::models::Finder;
use crate::output::{print_json, print_text};
use crate::progress::Progress;
use crate::style::Style;

/// A line of the report: its name for people and programs, and what was found.
#[derive(Clone)]
struct Finding {
    label: &'static str,
    field: &'static str,
    text: String,
    value: Value,
}

/// Looks around and prints what was found.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<End, CliError> {
    let findings = [machine()?, models_and_hub(), settings()].concat();
    if args.json {
        let object: serde_json::Map<String, Value> =
            findings.into_iter().map(|finding| (finding.field.to_owned(), finding.value)).collect();
        print_json(&object)?;
    } else {
        let lines: Vec<String> = findings.iter().map(|finding| aligned(finding.label, &finding.text)).collect();
        print_text(&(lines.join("\n") + "\n"))?;
    }
    Ok(End::Done)
}

impl Finding {
    fn new(label: &'static str, field: &'static str, text: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { label, field, text: text.into(), value: value.into() }
    }
}

fn machine() -> Result<Vec<Finding>, CliError> {
    let options = EngineOptions::default();
    let mut progress = Progress::new(Style::of_stderr(), false);
    progress.show("measuring memory and processor");
    let ceilings = options.ceilings();
    progress.clear();
    let ceilings = ceilings.map_err(CliError::from_engine)?;
    let device = device_description(&options).map_err(CliError::from_engine)?;
    let processor = processor_name().unwrap_or_else(|| "not known".to_owned());
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    let load = load_average().map(|[minute, ..]| minute);
    let (reads, int8) = (ceilings.map(|found| found.read_bytes_per_s), ceilings.map(|found| found.int8_macs_per_s));
    let rate = |rate: Option<Rate>, unit| match rate {
        Some(rate) => format!("{} {unit}", footer::significant(rate.best / 1e9)),
        None => "not measured".to_owned(),
    };
    let version = env!("CARGO_PKG_VERSION");
    let system = format!("{} on {}", env::consts::OS, env::consts::ARCH);
    Ok(vec![
        Finding::new("version", "version", version, version),
        Finding::new("system", "system", system.clone(), system),
        Finding::new("processor", "processor", processor.clone(), processor),
        Finding::new("logical processors", "logical_processors", logical.to_string(), logical),
        Finding::new("will be used", "device", device.clone(), device),
        memory(),
        Finding::new("memory is read at", "read_bytes_per_s", rate(reads, "GB/s"), reads.map(|rate| rate.best)),
        Finding::new("8-bit products", "int8_macs_per_s", rate(int8, "GMAC/s"), int8.map(|rate| rate.best)),
        Finding::new(
            "load average",
            "load_average",
            load.map_or_else(|| "not known".to_owned(), |load| format!("{load:.2}{}", busy(load, logical))),
            load,
        ),
        energy(),
        gpus(),
    ])
}

/// Other work makes every measurement lower.
fn busy(load: f64, logical: usize) -> &'static str {
    if load > logical as f64 / 2.0 { "; the speeds above are those of a busy machine" } else { "" }
}

fn memory() -> Finding {
    let memory = system_memory();
    let text = memory.map_or_else(
        || "not known".to_owned(),
        |memory| format!("{}, {} free", footer::size(memory.total_bytes), footer::size(memory.available_bytes)),
    );
    let value =
        memory.map(|memory| json!({ "total_bytes": memory.total_bytes, "available_bytes": memory.available_bytes }));
    Finding::new("memory", "memory", text, value)
}

fn energy() -> Finding {
    let reason = EnergyMeter::open().err().map(|error| error.to_string());
    let text = reason.as_ref().map_or_else(
        || "read from the processor's RAPL counters".to_owned(),
        |reason| format!("not available: {reason}"),
    );
    Finding::new("energy", "energy_unavailable", text, reason)
}

fn gpus() -> Finding {
    let found = graphics(Path::new("/proc/driver/nvidia/gpus"), Path::new("/sys/class/drm"));
    let text = match found.as_slice() {
        [] => "none found".to_owned(),
        names => format!("{}; not used, this version computes on the processor", names.join(", ")),
    };
    Finding::new("graphics", "gpus", text, found)
}

/// Names of NVIDIA's driver; makers of the others.
fn graphics(nvidia: &Path, drm: &Path) -> Vec<String> {
    let folders = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = folders(nvidia).filter_map(|gpu| {
        let text = fs::read_to_string(gpu.join("information")).ok()?;
        Some(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned())
    });
    let mut found: Vec<String> = named.collect();
    let others = folders(drm).filter_map(|card| {
        let name = card.file_name()?.to_str()?.to_owned();
        let is_card = name.strip_prefix("card").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        let vendor = fs::read_to_string(card.join("device/vendor")).ok().filter(|_| is_card)?;
        match vendor.trim() {
            "0x1002" => Some("AMD"),
            "0x8086" => Some("Intel"),
            "0x106b" => Some("Apple"),
            _ => None,
        }
    });
    found.extend(others.map(|maker| format!("one of {maker}")));
    found.sort();
    found
}

fn models_and_hub() -> Vec<Finding> {
    let environment = Environment::of_process();
    let default = local_models(&environment).into_iter().next();
    let default_text = match &default {
        Some(model) => model.path.display().to_string(),
        None => "none: `scripts/fetch-model.sh` or `pleach pull` brings one".to_owned(),
    };
    let default = default.map(|model| model.path.display().to_string());
    let default = Finding::new("default model", "default_model", default_text, default);
    match Finder::new(&NetworkFlags::default()).hub() {
        Err(error) => vec![default, Finding::new("hub", "hub", format!("cannot be used: {error}"), Value::Null)],
        Ok(found) => vec![default, hub(&found), cache(&found)],
    }
}

fn hub(hub: &Hub) -> Finding {
    let (options, proxy) = (hub.options(), hub.proxy());
    let token = if options.token.is_some() { "with a token" } else { "without a token" };
    let offline = if options.offline { ", offline" } else { "" };
    let through = proxy.as_ref().map_or_else(String::new, |proxy| format!(", through the proxy {proxy}"));
    let value = json!({
        "endpoint": options.endpoint, "token": options.token.is_some(), "offline": options.offline, "proxy": proxy,
    });
    Finding::new("hub", "hub", format!("{}, {token}{through}{offline}", options.endpoint), value)
}

fn cache(hub: &Hub) -> Finding {
    let options = hub.options();
    let models = hub.cache().list();
    let bytes = models.iter().map(|model| model.size_bytes).sum();
    // A folder that is not there yet will be on the disk of the nearest one that is.
    let existing = options.cache.ancestors().find(|folder| folder.exists());
    let free = existing.and_then(|folder| (options.free_space)(folder).ok());
    let room = free.map_or_else(String::new, |free| format!(", {} free on its disk", footer::size(free)));
    let path = options.cache.display().to_string();
    let text = format!("{path}: {} models, {}{room}", models.len(), footer::size(bytes));
    let value = json!({ "path": path, "models": models.len(), "size_bytes": bytes, "free_bytes": free });
    Finding::new("cache", "cache", text, value)
}

/// Files and variables that change what commands do.
fn settings() -> Vec<Finding> {
    let mut names: Vec<String> = env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    names.retain(|name| name.starts_with("PLEACH_") || name.starts_with("HF_"));
    names.sort();
    // A token is nobody's business.
    let shown = |name: &String| match env::var(name) {
        Ok(value) if !name.contains("TOKEN") => format!("{name}={value}"),
        _ => format!("{name} is set"),
    };
    let set: Vec<String> = names.iter().map(shown).collect();
    let text = if set.is_empty() { "none".to_owned() } else { set.join(" ") };
    let file = settings_path().filter(|path| path.is_file()).map(|path| path.display().to_string());
    let file_text = file.clone().unwrap_or_else(|| "none".to_owned());
    vec![
        Finding::new("settings file", "settings_file", file_text, file),
        Finding::new("variables", "variables", text, set),
    ]
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn graphics_are_found_by_driver_and_maker() {
        let root = TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("nvidia/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n");
        write("drm/card0/device/vendor", "0x1002\n");
        write("drm/card0-HDMI-A-1/device/vendor", "0x1002\n");
        write("drm/card1/device/vendor", "0x10de\n");
        let found = graphics(&root.path().join("nvidia"), &root.path().join("drm"));
        assert_eq!(found, ["NVIDIA H200", "one of AMD"]);
        assert!(graphics(Path::new("/no"), Path::new("/no")).is_empty());
    }
}
