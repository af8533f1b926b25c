//! What several samples of one quantity say.

/// Middle and spread of one or more samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Statistics {
    /// The middle one, or the mean of the two in the middle.
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// Median distance from the median.
    pub(super) mad: f64,
}

impl Statistics {
    /// `None` of no samples.
    pub(super) fn of(samples: &[f64]) -> Option<Self> {
        let sorted = sorted(samples);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let median = middle(&sorted);
        let distances: Vec<f64> = sorted.iter().map(|sample| (sample - median).abs()).collect();
        Some(Self { median, min, max, mad: middle(&self::sorted(&distances)) })
    }
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Of one or more samples in order.
fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[half - 1], sorted[half]) } else { sorted[half] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_spread() {
        assert_eq!(Statistics::of(&[]), None);
        assert_eq!(Statistics::of(&[4.0]), Some(Statistics { median: 4.0, min: 4.0, max: 4.0, mad: 0.0 }));
        let odd = Statistics { median: 3.0, min: 1.0, max: 100.0, mad: 1.0 };
        assert_eq!(Statistics::of(&[100.0, 2.0, 3.0, 1.0, 4.0]), Some(odd));
        let even = Statistics { median: 2.5, min: 1.0, max: 8.0, mad: 1.0 };
        assert_eq!(Statistics::of(&[8.0, 2.0, 1.0, 3.0]), Some(even));
    }
}
