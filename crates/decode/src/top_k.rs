//! The highest of many values.

/// Values that are looked at together; few of them have one that counts.
const CHUNK: usize = 16;

/// The `k` highest values with their places, in no order, of equals the first; NaN and −∞ are never among them.
pub fn top_k(values: &[f32], k: usize) -> Vec<(usize, f32)> {
    // More than are wanted are gathered before the lowest of them are dropped, so that this is seldom done.
    let spare = k.max(64);
    let mut kept: Vec<(usize, f32)> = Vec::with_capacity(k + spare + CHUNK);
    let mut least = f32::NEG_INFINITY;
    let cut = |kept: &mut Vec<(usize, f32)>| {
        if kept.len() > k {
            kept.select_nth_unstable_by(k, |a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            kept.truncate(k);
        }
    };
    for (chunk, values) in values.chunks(CHUNK).enumerate() {
        // Without a branch per value.
        if !values.iter().fold(false, |any, &value| any | (value > least)) {
            continue;
        }
        let above = values.iter().enumerate().filter(|(_, value)| **value > least);
        kept.extend(above.map(|(place, &value)| (chunk * CHUNK + place, value)));
        if kept.len() >= k + spare {
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
        for (len, k) in [(0, 5), (3, 5), (16, 1), (16, 0), (700, 1), (700, 64), (1000, 90), (90, 90)] {
            // Few distinct values, so that equals lie on the border.
            let values: Vec<f32> = (0..len).map(|i| (i * 7919 % 101) as f32 * 0.5 - 20.0).collect();
            let mut found = top_k(&values, k);
            found.sort_by_key(|&(place, _)| place);
            let mut expected: Vec<(usize, f32)> = values.into_iter().enumerate().collect();
            expected.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            expected.truncate(k);
            expected.sort_by_key(|&(place, _)| place);
            assert_eq!(found, expected, "{k} of {len}");
        }
    }

    #[test]
    fn what_no_token_can_have_is_never_among_them() {
        assert_eq!(top_k(&[f32::NAN, 1.0, f32::NEG_INFINITY], 2), [(1, 1.0)]);
        assert_eq!(top_k(&[f32::NAN; 40], 2), []);
    }
}
