//! How much memory this process takes and the system has.

use std::fs;

/// Physical memory of this process, in bytes. Mapped weights count as far as they were touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentMemory {
    /// Now.
    pub now_bytes: u64,
    /// The most so far.
    pub peak_bytes: u64,
}

/// Physical memory of the machine, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What can be taken without pushing others out, the limit of the control group included.
    pub available_bytes: u64,
}

/// Physical memory of the machine; `None` where the system does not say (anything but Linux).
pub fn system_memory() -> Option<SystemMemory> {
    let total_bytes = kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")?;
    Some(SystemMemory { total_bytes, available_bytes: available_bytes()? })
}

/// Physical memory of this process; `None` where the system does not say (anything but Linux).
pub fn resident_memory() -> Option<ResidentMemory> {
    parse_resident(&fs::read_to_string("/proc/self/status").ok()?)
}

/// Lets [`ResidentMemory::peak_bytes`] start again from what is resident now; whether the system did so.
pub fn forget_peak() -> bool {
    // 5 means the high-water mark alone: see `man 5 proc_pid_clear_refs`.
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Bytes that can be taken without pushing others out: free memory, or the limit of the control group if it is lower.
pub(crate) fn available_bytes() -> Option<u64> {
    let system = kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    Some(limit.map_or(system, |limit: u64| system.min(limit)))
}

fn parse_resident(status: &str) -> Option<ResidentMemory> {
    Some(ResidentMemory { now_bytes: kibibytes(status, "VmRSS")?, peak_bytes: kibibytes(status, "VmHWM")? })
}

/// The field `name:   123 kB` of a file under `/proc`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_their_full_name() {
        let status = "Name:\tpleach\nVmPeak:\t  900 kB\nVmHWM:\t  800 kB\nVmRSS:\t  700 kB\n";
        let expected = ResidentMemory { now_bytes: 700 << 10, peak_bytes: 800 << 10 };
        assert_eq!(parse_resident(status), Some(expected));
        assert_eq!(parse_resident("VmRSS: 5 kB"), None);
        assert_eq!(parse_resident("VmRSS: many kB\nVmHWM: 1 kB"), None);
        assert_eq!(kibibytes("VmRSS: 99999999999999999999 kB", "VmRSS"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_takes_some() {
        let memory = resident_memory().unwrap();
        assert!(memory.now_bytes > 0 && memory.peak_bytes >= memory.now_bytes);
        assert!(available_bytes().unwrap() > 0);
    }
}
