//! The highest of many values.

/// Values that are looked at together; few of them have one that counts.
const CHUNK: usize = 16;

/// The `count` highest values with their places, in no order, of equals the first; NaN is never among them.
pub fn highest(values: &[f32], count: usize) -> Vec<(usize, f32)> {
    // More than are wanted are gathered before the lowest of them are dropped, so that this is seldom done.
    let spare = count.max(64);
    let mut kept: Vec<(usize, f32)> = Vec::with_capacity(count + spare + CHUNK);
    let mut least = f32::NEG_INFINITY;
    let cut = |kept: &mut Vec<(usize, f32)>| {
        if kept.len() > count {
            kept.select_nth_unstable_by(count, |a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            kept.truncate(count);
        }
    };
    for (chunk, values) in values.chunks(CHUNK).enumerate() {
        // Without a branch per value.
        if !values.iter().fold(false, |any, &value| any | (value > least)) {
            continue;
        }
        let above = values.iter().enumerate().filter(|(_, value)| **value > least);
        kept.extend(above.map(|(place, &value)| (chunk * CHUNK + place, value)));
        if kept.len() >= count + spare {
            cut(&mut kept);
            least = kept.iter().map(|&(_, value)| value).fold(f32::INFINITY, f32::min);
        }
    }
    cut(&mut kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_are_those_that_sorting_finds() {
        for (len, count) in [(0, 5), (3, 5), (16, 1), (16, 0), (700, 1), (700, 64), (1000, 90), (90, 90)] {
            // Few distinct values, so that equals lie on the border.
            let values: Vec<f32> = (0..len).map(|i| (i * 7919 % 101) as f32 * 0.5 - 20.0).collect();
            let mut found = highest(&values, count);
            found.sort_by_key(|&(place, _)| place);
            let mut expected: Vec<(usize, f32)> = values.into_iter().enumerate().collect();
            expected.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            expected.truncate(count);
            expected.sort_by_key(|&(place, _)| place);
            assert_eq!(found, expected, "{count} of {len}");
        }
    }

    #[test]
    fn what_is_no_number_is_never_among_them() {
        assert_eq!(highest(&[f32::NAN, 1.0, f32::NAN], 2), [(1, 1.0)]);
        assert_eq!(highest(&[f32::NAN; 40], 2), []);
    }
}
