//! How many threads are worth starting.

use std::num::NonZeroUsize;

/// Physical cores that this process may use: by its affinity mask and its cgroup's quota, at least 1.
///
/// Two hyperthreads share the units that the kernels keep busy, so the second one only adds waiting.
pub(super) fn default_threads() -> NonZeroUsize {
    // The standard library counts the affinity mask and the quotas of cgroup v1 and v2.
    let available = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    worthwhile(available, allowed_cores())
}

/// Threads for `available` processors' worth of time on logical processors that belong to these packages and cores; none
/// if the system does not say.
fn worthwhile(available: NonZeroUsize, mut cores: Vec<(u32, u32)>) -> NonZeroUsize {
    cores.sort_unstable();
    cores.dedup();
    NonZeroUsize::new(cores.len()).map_or(available, |cores| available.min(cores))
}

/// Package and core of each logical processor of the affinity mask, as far as the system says.
#[cfg(target_os = "linux")]
fn allowed_cores() -> Vec<(u32, u32)> {
    allowed_cpus().into_iter().filter_map(core_of).collect()
}

#[cfg(not(target_os = "linux"))]
fn allowed_cores() -> Vec<(u32, u32)> {
    Vec::new()
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

    fn threads(available: usize, cores: &[(u32, u32)]) -> usize {
        worthwhile(NonZeroUsize::new(available).unwrap(), cores.to_vec()).get()
    }

    #[test]
    fn hyperthreads_of_a_core_count_once() {
        assert_eq!(threads(8, &[(0, 0), (0, 1), (0, 2), (0, 3), (0, 0), (0, 1), (0, 2), (0, 3)]), 4);
    }

    #[test]
    fn cores_of_two_packages_may_have_the_same_number() {
        assert_eq!(threads(4, &[(0, 0), (0, 1), (1, 0), (1, 1)]), 4);
    }

    #[test]
    fn a_quota_below_the_cores_decides() {
        assert_eq!(threads(2, &[(0, 0), (0, 1), (0, 2), (0, 3)]), 2);
    }

    #[test]
    fn without_a_topology_every_processor_counts() {
        assert_eq!(threads(3, &[]), 3);
    }

    #[test]
    fn the_default_is_within_what_the_process_may_use() {
        assert!(default_threads() <= std::thread::available_parallelism().unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn one_allowed_processor_makes_one_thread() {
        let first = allowed_cpus()[0];
        // The mask is that of a thread, so it ends with this one.
        let confined = std::thread::spawn(move || {
            // SAFETY: the set is plain bits, `first` came out of such a set, and the call reads the size it is given.
            let result = unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(first, &mut set);
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
            };
            (result, default_threads().get())
        });
        assert_eq!(confined.join().unwrap(), (0, 1));
    }
}
