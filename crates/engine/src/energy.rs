//! Energy of the processor, read from its own counters: never an estimate.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Counts the energy of all processor packages since it was opened.
///
/// The counters are RAPL's, as Linux shows them under `/sys/class/powercap`. They cover whole packages, so everything
/// that runs on the machine meanwhile is included. A counter wraps around after tens of minutes under load: a meter must
/// be read at least that often.
#[derive(Debug)]
pub struct EnergyMeter {
    packages: Vec<Package>,
}

/// Why no energy can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnergyUnavailable {
    /// The system has no energy counters at all, as on a virtual machine.
    #[error("no energy counters: `{root}` is missing, as on virtual machines and systems other than Linux")]
    NoPowercap {
        /// The folder looked for.
        root: PathBuf,
    },
    /// There are power zones, but none of a processor package.
    #[error("no energy counter of a processor package in `{root}`, as on virtual machines")]
    NoPackage {
        /// The folder searched.
        root: PathBuf,
    },
    /// The counters may only be read by the superuser.
    #[error("`{path}` may only be read by root: allow it with `sudo chmod o+r {path}`")]
    Denied {
        /// The counter.
        path: PathBuf,
    },
    /// A counter cannot be read.
    #[error("cannot read the energy counter `{path}`")]
    Read {
        /// The counter.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A counter holds something else than a number.
    #[error("the energy counter `{path}` is `{found}`, expected a number of microjoules")]
    Malformed {
        /// The counter.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
}

#[derive(Debug)]
struct Package {
    counter: PathBuf,
    /// The counter starts again from 0 after this, in µJ.
    max_energy_range: u64,
    last: u64,
    /// Since the meter was opened, in µJ.
    total: u64,
}

impl EnergyMeter {
    /// Starts counting.
    ///
    /// # Errors
    /// Why there is nothing to read, in words for the user.
    pub fn open() -> Result<Self, EnergyUnavailable> {
        Self::open_at(Path::new("/sys/class/powercap"))
    }

    /// Starts counting with the power zones of another folder: for tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_at(root: &Path) -> Result<Self, EnergyUnavailable> {
        let no_powercap = |_| EnergyUnavailable::NoPowercap { root: root.to_owned() };
        let mut zones: Vec<PathBuf> =
            fs::read_dir(root).map_err(no_powercap)?.flatten().map(|zone| zone.path()).collect();
        zones.retain(|zone| is_package(zone));
        zones.sort();
        if zones.is_empty() {
            return Err(EnergyUnavailable::NoPackage { root: root.to_owned() });
        }
        Ok(Self { packages: zones.iter().map(|zone| Package::open(zone)).collect::<Result<_, _>>()? })
    }

    /// Joules of all packages since the meter was opened.
    ///
    /// # Errors
    /// A counter that can no longer be read.
    pub fn joules(&mut self) -> Result<f64, EnergyUnavailable> {
        let mut microjoules = 0;
        for package in &mut self.packages {
            microjoules += package.read()?;
        }
        Ok(microjoules as f64 / 1e6)
    }
}

/// Whether a zone is a processor package seen through the processor's own registers.
///
/// Its parts (`intel-rapl:0:0`) are contained in it, `psys` contains it, and `intel-rapl-mmio` shows the same counter a
/// second time: each would count energy twice.
fn is_package(zone: &Path) -> bool {
    let name = zone.file_name().unwrap_or_default().to_string_lossy();
    let Some(index) = name.strip_prefix("intel-rapl:") else { return false };
    let is_top = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    is_top && fs::read_to_string(zone.join("name")).is_ok_and(|name| name.starts_with("package"))
}

impl Package {
    fn open(zone: &Path) -> Result<Self, EnergyUnavailable> {
        let counter = zone.join("energy_uj");
        let max_energy_range = read_microjoules(&zone.join("max_energy_range_uj"))?;
        let last = read_microjoules(&counter)?;
        Ok(Self { counter, max_energy_range, last, total: 0 })
    }

    /// Microjoules since opening.
    fn read(&mut self) -> Result<u64, EnergyUnavailable> {
        let now = read_microjoules(&self.counter)?;
        let spent = match now.checked_sub(self.last) {
            Some(spent) => spent,
            None => self.max_energy_range.saturating_sub(self.last).saturating_add(now),
        };
        self.last = now;
        self.total = self.total.saturating_add(spent);
        Ok(self.total)
    }
}

fn read_microjoules(path: &Path) -> Result<u64, EnergyUnavailable> {
    let text = fs::read_to_string(path).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => EnergyUnavailable::Denied { path: path.to_owned() },
        _ => EnergyUnavailable::Read { path: path.to_owned(), source },
    })?;
    let text = text.trim();
    text.parse().map_err(|_| EnergyUnavailable::Malformed { path: path.to_owned(), found: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn zone(root: &TempDir, folder: &str, name: &str, energy: &str) {
        let zone = root.path().join(folder);
        fs::create_dir_all(&zone).unwrap();
        fs::write(zone.join("name"), format!("{name}\n")).unwrap();
        fs::write(zone.join("max_energy_range_uj"), "10000000\n").unwrap();
        fs::write(zone.join("energy_uj"), format!("{energy}\n")).unwrap();
    }

    #[test]
    fn packages_are_added_and_nothing_is_counted_twice() {
        let root = TempDir::new().unwrap();
        let set = |first: &str, second: &str, others: &str| {
            zone(&root, "intel-rapl:0", "package-0", first);
            zone(&root, "intel-rapl:1", "package-1", second);
            zone(&root, "intel-rapl:0:0", "core", others);
            zone(&root, "intel-rapl:2", "psys", others);
            zone(&root, "intel-rapl-mmio:0", "package-0", others);
        };
        set("1000000", "500000", "0");
        let mut meter = EnergyMeter::open_at(root.path()).unwrap();
        assert_eq!(meter.joules().unwrap(), 0.0);
        set("3000000", "1000000", "9000000");
        assert_eq!(meter.joules().unwrap(), 2.5);
    }

    #[test]
    fn a_counter_that_wrapped_around_goes_on() {
        let root = TempDir::new().unwrap();
        zone(&root, "intel-rapl:0", "package-0", "9000000");
        let mut meter = EnergyMeter::open_at(root.path()).unwrap();
        zone(&root, "intel-rapl:0", "package-0", "500000");
        assert_eq!(meter.joules().unwrap(), 1.5);
        zone(&root, "intel-rapl:0", "package-0", "600000");
        assert_eq!(meter.joules().unwrap(), 1.6);
    }

    #[test]
    fn the_reason_is_given_in_words() {
        let root = TempDir::new().unwrap();
        let missing = root.path().join("powercap");
        assert_eq!(
            EnergyMeter::open_at(&missing).unwrap_err().to_string(),
            format!(
                "no energy counters: `{}` is missing, as on virtual machines and systems other than Linux",
                missing.display()
            )
        );
        let error = EnergyMeter::open_at(root.path()).unwrap_err();
        assert!(matches!(error, EnergyUnavailable::NoPackage { .. }));

        zone(&root, "intel-rapl:0", "package-0", "soon");
        let error = EnergyMeter::open_at(root.path()).unwrap_err();
        assert!(error.to_string().ends_with("is `soon`, expected a number of microjoules"), "{error}");

        fs::remove_file(root.path().join("intel-rapl:0/energy_uj")).unwrap();
        assert!(matches!(EnergyMeter::open_at(root.path()).unwrap_err(), EnergyUnavailable::Read { .. }));
    }

    #[test]
    fn a_denied_counter_says_how_to_allow_it() {
        let error = EnergyUnavailable::Denied { path: "/sys/class/powercap/intel-rapl:0/energy_uj".into() };
        assert_eq!(
            error.to_string(),
            "`/sys/class/powercap/intel-rapl:0/energy_uj` may only be read by root: \
             allow it with `sudo chmod o+r /sys/class/powercap/intel-rapl:0/energy_uj`"
        );
    }
}
