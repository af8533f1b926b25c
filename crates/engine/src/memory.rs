//! How much memory this process takes and the system has.

use std::fs;
use std::path::Path;

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

/// Bytes that can be taken without pushing others out: what the system has free, or what the control groups of this process
/// leave of their limits if that is less. `None` where the system does not say (anything but Linux).
pub(crate) fn available_bytes() -> Option<u64> {
    let system = kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(left_in_groups(&groups, Path::new("/sys/fs/cgroup")).map_or(system, |left| system.min(left)))
}

/// What the control groups listed in `/proc/self/cgroup` and all groups around them leave, in bytes; `None` without a limit.
///
/// Files and lines are those of `man 7 cgroups`: version 2 has the line `0::/path`, version 1 a line with the controller
/// `memory`. In a container the path may be one of the host that does not exist here; then the root holds the limits.
fn left_in_groups(groups: &str, root: &Path) -> Option<u64> {
    let lines = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        match controllers {
            "" => Some((root.to_owned(), path, ["memory.max", "memory.current"])),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                Some((root.join("memory"), path, ["memory.limit_in_bytes", "memory.usage_in_bytes"]))
            }
            _ => None,
        }
    });
    let left = lines.flat_map(|(root, path, files)| {
        let folder = root.join(path.trim_start_matches('/'));
        let folders: Vec<_> = folder.ancestors().take_while(|folder| folder.starts_with(&root)).collect();
        folders.into_iter().filter_map(|folder| left_in_group(folder, files)).min()
    });
    left.min()
}

/// What one group leaves. Pages of files that it could give up count as free, as they do for the system.
fn left_in_group(folder: &Path, [limit, usage]: [&str; 2]) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number(limit)?;
    let files = fs::read_to_string(folder.join("memory.stat")).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("inactive_file "))?;
        line.trim().parse::<u64>().ok()
    });
    Some(limit.saturating_sub(number(usage)?.saturating_sub(files.unwrap_or(0))))
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
    fn groups_leave_the_least_of_all_around_them() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        let write = |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        assert_eq!(left_in_groups("0::/a/b\n", root.path()), None);
        write(&group, "memory.max", "max\n");
        write(&group, "memory.current", "100\n");
        assert_eq!(left_in_groups("0::/a/b\n", root.path()), None);
        write(&root.path().join("a"), "memory.max", "1000\n");
        write(&root.path().join("a"), "memory.current", "700\n");
        write(&root.path().join("a"), "memory.stat", "anon 500\ninactive_file 150\n");
        assert_eq!(left_in_groups("1:cpu:/x\n0::/a/b\n", root.path()), Some(450));
        assert_eq!(left_in_groups("0::/gone/away\n", root.path()), None);
        write(&group, "memory.max", "50\n");
        assert_eq!(left_in_groups("0::/a/b\n", root.path()), Some(0));
    }

    #[test]
    fn the_first_version_of_groups_has_a_tree_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory/c");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "500\n").unwrap();
        fs::write(group.join("memory.usage_in_bytes"), "200\n").unwrap();
        assert_eq!(left_in_groups("5:blkio,memory:/c\n", root.path()), Some(300));
        assert_eq!(left_in_groups("garbage\n:\n", root.path()), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_takes_some() {
        let memory = resident_memory().unwrap();
        assert!(memory.now_bytes > 0 && memory.peak_bytes >= memory.now_bytes);
        assert!(available_bytes().unwrap() > 0);
    }
}
