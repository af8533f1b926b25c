//! How many threads are worth starting.

use std::num::NonZeroUsize;

/// Physical cores that this process may use: by its affinity mask and its cgroup's quota, at least 1.
///
/// Two hyperthreads share the units that the kernels keep busy, so the second one only adds waiting.
pub(super) fn default_threads() -> NonZeroUsize {
    // The standard library counts the affinity mask and the quotas of cgroup v1 and v2.
    let available = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    match NonZeroUsize::new(physical_cores()) {
        Some(cores) => available.min(cores),
        None => available,
    }
}

/// Physical cores of the affinity mask; 0 if the system does not say.
#[cfg(target_os = "linux")]
fn physical_cores() -> usize {
    let mut cores: Vec<_> = allowed_cpus().into_iter().filter_map(core_of).collect();
    cores.sort_unstable();
    cores.dedup();
    cores.len()
}

#[cfg(not(target_os = "linux"))]
fn physical_cores() -> usize {
    0
}

#[cfg(target_os = "linux")]
fn allowed_cpus() -> Vec<usize> {
    // SAFETY: the set is plain bits, for which zero is a value; the call writes at most the size it is given.
    let (set, result) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let result = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        (set, result)
    };
    if result != 0 {
        return Vec::new();
    }
    // SAFETY: the index is below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Package and core of a logical CPU.
#[cfg(target_os = "linux")]
fn core_of(cpu: usize) -> Option<(u32, u32)> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}")).ok()?;
        text.trim().parse().ok()
    };
    Some((read("physical_package_id")?, read("core_id")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_within_what_the_process_may_use() {
        assert!(default_threads() <= std::thread::available_parallelism().unwrap());
    }
}
