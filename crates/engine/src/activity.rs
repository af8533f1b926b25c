//! What else ran on the machine while something was measured.

use std::collections::HashMap;
use std::fs;

/// Counts the processor time of the whole machine, of this process and of all others, from Linux's `/proc`.
#[derive(Debug)]
pub struct ActivityMeter {
    start: Snapshot,
}

/// Where the machine's processor time went meanwhile. Shares are of the time that all processors had together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Activity {
    /// Share of this process.
    pub own: f64,
    /// Share of everything else on this machine.
    pub others: f64,
    /// Share that the host of a virtual machine gave to somebody else.
    pub stolen: f64,
    /// The other programs that had at least a hundredth, busiest first. Processes that came and went meanwhile are in
    /// `others` but not here.
    pub programs: Vec<ProgramShare>,
}

/// All processes of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramShare {
    /// The name that the system shows.
    pub name: String,
    /// Their share of the machine's processor time.
    pub share: f64,
}

/// Name of the processor as it gives it itself; `None` where the system does not say.
pub fn processor_name() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?.1.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Runnable processes, averaged over the last 1, 5 and 15 minutes; `None` where the system does not say.
pub fn load_average() -> Option<[f64; 3]> {
    parse_load(&fs::read_to_string("/proc/loadavg").ok()?)
}

impl ActivityMeter {
    /// Starts counting; `None` where the system does not say.
    pub fn start() -> Option<Self> {
        Snapshot::take().map(|start| Self { start })
    }

    /// What ran since the start.
    pub fn activity(&self) -> Option<Activity> {
        Some(Snapshot::take()?.since(&self.start))
    }
}

/// Programs with less are not named.
const LEAST_SHARE: f64 = 0.01;

/// Processor time so far, in the unit of `/proc`.
#[derive(Debug, Default)]
struct Snapshot {
    machine: MachineTime,
    own_id: u32,
    processes: HashMap<ProcessKey, ProcessTime>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct MachineTime {
    total: u64,
    idle: u64,
    stolen: u64,
}

/// Ids are used again, so a process is its id and when it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ProcessKey {
    id: u32,
    started: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ProcessTime {
    name: String,
    time: u64,
}

impl Snapshot {
    fn take() -> Option<Self> {
        let machine = parse_machine(&fs::read_to_string("/proc/stat").ok()?)?;
        let ids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let read = |id: u32| parse_process(id, &fs::read_to_string(format!("/proc/{id}/stat")).ok()?);
        Some(Self { machine, own_id: std::process::id(), processes: ids.filter_map(read).collect() })
    }

    fn since(&self, start: &Self) -> Activity {
        let passed = |now: u64, then: u64| now.saturating_sub(then);
        let total = passed(self.machine.total, start.machine.total).max(1);
        let (idle, stolen) =
            (passed(self.machine.idle, start.machine.idle), passed(self.machine.stolen, start.machine.stolen));
        let mut own = 0;
        let mut by_name = HashMap::<&str, u64>::new();
        for (key, process) in &self.processes {
            let time = passed(process.time, start.processes.get(key).map_or(0, |before| before.time));
            if key.id == self.own_id {
                own += time;
            } else {
                *by_name.entry(&process.name).or_default() += time;
            }
        }
        let share = |time: u64| time as f64 / total as f64;
        let programs =
            by_name.into_iter().map(|(name, time)| ProgramShare { name: name.to_owned(), share: share(time) });
        let mut programs: Vec<_> = programs.filter(|program| program.share >= LEAST_SHARE).collect();
        programs.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.name.cmp(&b.name)));
        let others = total.saturating_sub(idle + stolen + own);
        Activity { own: share(own), others: share(others), stolen: share(stolen), programs }
    }
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal, and guests, whose time is
/// part of the first two.
fn parse_machine(stat: &str) -> Option<MachineTime> {
    let times = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = times.split_whitespace().take(8).map(|time| time.parse().ok()).collect::<Option<_>>()?;
    let at = |field: usize| times.get(field).copied().unwrap_or(0);
    (times.len() >= 4).then(|| MachineTime { total: times.iter().sum(), idle: at(3) + at(4), stolen: at(7) })
}

/// `/proc/ID/stat`; the name stands in parentheses and may hold anything, parentheses included.
fn parse_process(id: u32, stat: &str) -> Option<(ProcessKey, ProcessTime)> {
    let (name, fields) = stat.split_once('(')?.1.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // Counted from the state, which is field 3 of the manual page.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let time = field(14)?.checked_add(field(15)?)?;
    Some((ProcessKey { id, started: field(22)? }, ProcessTime { name: name.to_owned(), time }))
}

fn parse_load(text: &str) -> Option<[f64; 3]> {
    let mut averages = text.split_whitespace().map(|average| average.parse().ok());
    Some([averages.next()??, averages.next()??, averages.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(total: u64, idle: u64, processes: &[(u32, u64, &str, u64)]) -> Snapshot {
        let process = |&(id, started, name, time): &(u32, u64, &str, u64)| {
            (ProcessKey { id, started }, ProcessTime { name: name.to_owned(), time })
        };
        let machine = MachineTime { total, idle, stolen: total / 100 };
        Snapshot { machine, own_id: 7, processes: processes.iter().map(process).collect() }
    }

    #[test]
    fn time_is_shared_out_between_us_and_the_others() {
        let start = snapshot(1000, 500, &[(7, 1, "pleach", 100), (8, 1, "cc", 50), (9, 1, "gone", 40)]);
        let end = snapshot(
            2000,
            800,
            &[(7, 1, "pleach", 500), (8, 1, "cc", 150), (9, 2, "cc", 60), (10, 3, "a", 2), (11, 3, "b", 30)],
        );
        let activity = end.since(&start);
        assert_eq!((activity.own, activity.stolen), (0.4, 0.01));
        assert!((activity.others - 0.29).abs() < 1e-12, "{activity:?}");
        // A new process with a used id counts from its start; what had less than a hundredth is not named.
        let programs: Vec<_> = activity.programs.iter().map(|program| (program.name.as_str(), program.share)).collect();
        assert_eq!(programs, [("cc", 0.16), ("b", 0.03)]);
    }

    #[test]
    fn files_of_the_system_are_read() {
        let stat = "cpu  10 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3 4\n";
        assert_eq!(parse_machine(stat), Some(MachineTime { total: 531, idle: 450, stolen: 8 }));
        assert_eq!(parse_machine("cpu  1 2\n"), None);
        assert_eq!(parse_machine("intr 1 2 3 4\n"), None);

        let fields = (4..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        let (key, process) = parse_process(5, &format!("5 (a) (b c) S {fields}\n")).unwrap();
        assert_eq!(key, ProcessKey { id: 5, started: 22 });
        assert_eq!(process, ProcessTime { name: "a) (b c".to_owned(), time: 29 });
        assert_eq!(parse_process(5, "5 (a) S 1 2 3"), None);

        assert_eq!(parse_load("0.50 1.25 2.00 1/99 1234\n"), Some([0.5, 1.25, 2.0]));
        assert_eq!(parse_load("0.50 x 2.00"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_found_among_the_others() {
        let (meter, started) = (ActivityMeter::start().unwrap(), std::time::Instant::now());
        // On a busy machine it may take a while until this process has had one tick of the system's clock.
        let mut activity = meter.activity().unwrap();
        while activity.own == 0.0 && started.elapsed() < std::time::Duration::from_secs(30) {
            activity = meter.activity().unwrap();
        }
        assert!(activity.own > 0.0 && activity.own <= 1.0, "{activity:?}");
        assert!(load_average().is_some());
    }
}
