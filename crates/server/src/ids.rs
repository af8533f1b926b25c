//! Names of answers and calls, and the time that they carry.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name that no other answer of this process has, and hardly one of another: `prefix` and 24 letters and digits.
///
/// It identifies and protects nothing, so the random keys of the standard library's hash tables are enough.
pub(crate) fn fresh(prefix: &str) -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut id = String::from(prefix);
    for half in 0..2_u64 {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(number);
        hasher.write_u64(half);
        let mut bits = hasher.finish();
        for _ in 0..12 {
            id.push(char::from(ALPHABET[(bits % 36) as usize]));
            bits /= 36;
        }
    }
    id
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_differ() {
        let names: HashSet<String> = (0..1000).map(|_| fresh("call_")).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == 29));
    }
}
