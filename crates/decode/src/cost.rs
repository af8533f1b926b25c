//! What a pass costs by its number of rows, on the machine that runs it.

/// Rows at which the curve has its corners; between them it is a straight line.
///
/// Few rows need many: with AVX2, three rows of 8 bits cost little more than two, and the fourth costs more than both.
const KNOTS: [usize; 9] = [1, 2, 3, 4, 6, 8, 16, 32, 64];

/// What a knot costs as a multiple of the one before, until it is measured: 4-bit weights on two AVX-512 cores
/// (`docs/benchmarks.md`), 3 and 6 rows on the line between their neighbors. Where rows are cheaper, measured knots lift the ones
/// after them step by step.
const RATIOS: [f64; KNOTS.len()] = [1.0, 1.12, 1.2, 1.17, 1.23, 1.18, 1.75, 1.8, 1.9];

/// A measurement counts this much at least, so that the curve follows the machine.
const LEAST_WEIGHT: f64 = 0.1;

/// How far one measurement may be from the curve, as a factor; what lies beyond is some other program's doing.
pub(crate) const OUTLIER: f64 = 2.0;

/// Seconds of a pass by its number of rows, learned from the passes that are made anyway.
///
/// A pass grows slower with its context, whatever its rows, so each measurement moves the whole curve a little and the
/// corners beside it much.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CostCurve {
    knots: [Knot; KNOTS.len()],
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Knot {
    seconds: f64,
    /// Sum of the weights of its measurements; 0 if there was none.
    weight: f64,
}

impl CostCurve {
    /// Whether a pass of one row was measured, without which there is little to compare with.
    pub fn is_known(&self) -> bool {
        self.knots[0].weight >= 1.0
    }

    /// Seconds of a pass; `None` before any was measured. More rows never cost less.
    pub fn seconds(&self, rows: usize) -> Option<f64> {
        (self.knots[0].weight > 0.0).then(|| {
            let values = self.values();
            let (left, share) = place(rows);
            match values.get(left + 1) {
                Some(right) => values[left] + share * (right - values[left]),
                // Beyond the last knot the last piece goes on.
                None => values[left] * rows as f64 / KNOTS[left] as f64,
            }
        })
    }

    /// Notes what a pass took. Times that are no positive numbers are ignored.
    pub fn record(&mut self, rows: usize, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) || rows == 0 {
            return;
        }
        match self.seconds(rows) {
            Some(expected) => self.correct(rows, expected, seconds),
            // Until a pass of one row is measured, the first of several stands in for it.
            None => self.knots[0] = Knot { seconds: seconds / ratio(rows), weight: if rows == 1 { 1.0 } else { 0.5 } },
        }
    }

    fn correct(&mut self, rows: usize, expected: f64, seconds: f64) {
        let values = self.values();
        let (left, share) = place(rows);
        let parts = [(left, 1.0 - share), (left + 1, share)];
        // The first pass of a kind may prepare its buffers, so a second one that is faster is believed at once.
        let nearest = self.knots[(left + usize::from(share > 0.5)).min(KNOTS.len() - 1)];
        let is_young = nearest.weight < 2.0 && seconds < expected;
        let least = if is_young { 0.0 } else { expected / OUTLIER };
        let seconds = seconds.clamp(least, expected * OUTLIER);
        let drift = (seconds / expected).max(1.0 / OUTLIER).powf(LEAST_WEIGHT);
        let measured = self.knots.iter_mut().filter(|knot| knot.weight > 0.0);
        measured.for_each(|knot| knot.seconds *= drift);

        let error = (seconds - expected * drift) / parts.iter().map(|(_, part)| part * part).sum::<f64>();
        for (index, part) in parts {
            let Some(knot) = self.knots.get_mut(index).filter(|_| part > 0.0) else { continue };
            if knot.weight == 0.0 {
                knot.seconds = values[index] * drift;
            }
            knot.weight += part;
            let rate = if is_young { 1.0 } else { (1.0 / knot.weight).clamp(LEAST_WEIGHT, 1.0) };
            knot.seconds = (knot.seconds + rate * part * error).max(f64::MIN_POSITIVE);
        }
    }

    /// Seconds at each knot, never falling.
    fn values(&self) -> [f64; KNOTS.len()] {
        let mut values = [self.knots[0].seconds; KNOTS.len()];
        for index in 1..values.len() {
            let Knot { seconds, weight } = self.knots[index];
            let before = values[index - 1];
            values[index] = if weight > 0.0 { seconds.max(before) } else { before * RATIOS[index] };
        }
        values
    }
}

/// What so many rows cost as a multiple of one, as long as nothing is measured.
fn ratio(rows: usize) -> f64 {
    let mut curve = CostCurve::default();
    curve.knots[0] = Knot { seconds: 1.0, weight: 1.0 };
    curve.seconds(rows).unwrap_or(1.0)
}

/// The knot at or before `rows`, and how far towards the next one it lies: 0 to below 1.
fn place(rows: usize) -> (usize, f64) {
    let left = KNOTS.iter().rposition(|&knot| knot <= rows).unwrap_or(0);
    let share = KNOTS
        .get(left + 1)
        .map_or(0.0, |&right| rows.saturating_sub(KNOTS[left]) as f64 / (right - KNOTS[left]) as f64);
    (left, share)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn learned(cost: impl Fn(usize) -> f64) -> CostCurve {
        let mut curve = CostCurve::default();
        for round in 0..400 {
            let rows = 1 + round * 7 % 32;
            curve.record(1, cost(1));
            curve.record(rows, cost(rows));
        }
        curve
    }

    #[test]
    fn a_pass_of_several_rows_stands_in_for_one_of_a_single_row() {
        let mut curve = CostCurve::default();
        assert_eq!((curve.seconds(1), curve.is_known()), (None, false));
        curve.record(4, 1.12 * 1.2 * 1.17);
        assert_eq!((curve.seconds(1), curve.is_known()), (Some(1.0), false));
        curve.record(1, 0.8);
        assert!(curve.is_known());
        assert!((curve.seconds(1).unwrap() - 0.8).abs() < 1e-9);
    }

    #[test]
    fn what_was_not_measured_is_what_such_machines_take() {
        let mut curve = CostCurve::default();
        curve.record(1, 2.0);
        assert_eq!(curve.seconds(1), Some(2.0));
        assert_eq!(curve.seconds(2), Some(2.0 * 1.12));
        assert_eq!(curve.seconds(3), Some(2.0 * 1.12 * 1.2));
        let (four, six) = (2.0 * 1.12 * 1.2 * 1.17, 2.0 * 1.12 * 1.2 * 1.17 * 1.23);
        assert_eq!(curve.seconds(5), Some(four + 0.5 * (six - four)));
    }

    #[test]
    fn curves_of_any_slope_are_learned() {
        for slope in [0.0, 0.01, 0.2, 1.0] {
            let cost = |rows: usize| 0.004 * (1.0 + slope * (rows - 1) as f64);
            let curve = learned(cost);
            for rows in [1, 2, 3, 5, 8, 13, 16, 25, 32] {
                let ratio = curve.seconds(rows).unwrap() / cost(rows);
                assert!((ratio - 1.0).abs() < 0.1, "slope {slope}, {rows} rows: {ratio}");
            }
        }
    }

    /// Eight rows as an AVX2 machine ran them with weights of 8 bits, in passes of one row.
    #[test]
    fn a_step_between_three_and_four_rows_is_learned() {
        let cost = |rows: usize| [1.0, 1.05, 1.15, 1.44, 1.7, 1.97, 2.16, 2.35][(rows - 1).min(7)];
        let curve = learned(cost);
        for rows in [2, 3, 4, 6] {
            let ratio = curve.seconds(rows).unwrap() / cost(rows);
            assert!((ratio - 1.0).abs() < 0.04, "{rows} rows: {ratio}");
        }
    }

    #[test]
    fn one_disturbed_pass_moves_little() {
        let cost = |rows: usize| 0.004 * (1.0 + 0.2 * (rows - 1) as f64);
        let mut curve = learned(cost);
        let before = curve.seconds(8).unwrap();
        curve.record(8, 5.0);
        assert!(curve.seconds(8).unwrap() < 1.25 * before);
    }

    #[test]
    fn passes_that_grow_slower_lift_the_plain_pass_too() {
        let cost = |rows: usize| 0.004 * (1.0 + 0.2 * (rows - 1) as f64);
        let mut curve = learned(cost);
        (0..60).for_each(|_| curve.record(8, 1.5 * cost(8)));
        assert!(curve.seconds(1).unwrap() > 1.2 * cost(1));
    }

    proptest! {
        #[test]
        fn more_rows_never_cost_less(measured in prop::collection::vec((1usize..70, 1e-6f64..10.0), 0..60)) {
            let mut curve = CostCurve::default();
            curve.record(1, 0.01);
            measured.iter().for_each(|&(rows, seconds)| curve.record(rows, seconds));
            for rows in 1..100 {
                let (less, more) = (curve.seconds(rows).unwrap(), curve.seconds(rows + 1).unwrap());
                prop_assert!(less > 0.0 && less <= more && more.is_finite(), "{rows} rows: {less}, then {more}");
            }
        }
    }
}
