//! What a machine can do at most, to read measured speeds against.

/// The two ceilings of a pass, measured on a device's own threads.
///
/// A pass over few rows cannot read its weights faster than memory gives them, and one over many rows cannot multiply
/// faster than the integer units do. Both are measured, not looked up: a virtual machine's share of its host changes
/// from minute to minute, so a ceiling belongs to the moment in which it was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes that all threads together read per second from memory that no cache holds.
    pub read_bytes_per_s: Rate,
    /// Multiply-adds of 8-bit activations and codes of 8 or 4 bits, whichever are faster, per second, operands in registers
    /// and first-level cache, with the instructions that the device's products use.
    pub int8_macs_per_s: Rate,
}

/// A rate that was measured several times within a fraction of a second, in units per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The middle one.
    pub median: f64,
    /// The highest one.
    pub best: f64,
}

impl Rate {
    /// Of one or more rates.
    pub(crate) fn of(mut rates: Vec<f64>) -> Self {
        rates.sort_by(f64::total_cmp);
        Self { median: rates[rates.len() / 2], best: rates[rates.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_middle_and_the_best_of_its_samples() {
        assert_eq!(Rate::of(vec![3.0, 9.0, 1.0]), Rate { median: 3.0, best: 9.0 });
        assert_eq!(Rate::of(vec![2.0]), Rate { median: 2.0, best: 2.0 });
    }
}
