//! Values of flags from their text. A failure says what is allowed; the flag and its value are named by the caller.

use std::net::IpAddr;
use std::num::NonZeroUsize;

use pleach_engine::{MAX_LOGPROBS, MAX_PASS_ROWS, MAX_THREADS};
use serde_json::Value;

const MOST_TEST_TOKENS: u64 = 1 << 24;

/// What a flag may be, to be read after "must be".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Allowed(pub(crate) String);

pub(super) fn threads(text: &str) -> Result<NonZeroUsize, Allowed> {
    let threads = whole(text, 1, MAX_THREADS as u64)? as usize;
    Ok(NonZeroUsize::new(threads).expect("the range starts at 1"))
}

/// Tokens of a test. A longer one would run for days.
pub(super) fn test_tokens(text: &str) -> Result<usize, Allowed> {
    Ok(whole(text, 1, MOST_TEST_TOKENS)? as usize)
}

pub(super) fn depth(text: &str) -> Result<usize, Allowed> {
    Ok(whole(text, 0, MOST_TEST_TOKENS)? as usize)
}

pub(super) fn rows(text: &str) -> Result<usize, Allowed> {
    Ok(whole(text, 1, MAX_PASS_ROWS as u64)? as usize)
}

pub(super) fn repetitions(text: &str) -> Result<usize, Allowed> {
    Ok(whole(text, 1, 1000)? as usize)
}

pub(crate) fn count(text: &str) -> Result<usize, Allowed> {
    Ok(whole(text, 0, u64::from(u32::MAX))? as usize)
}

pub(crate) fn max_tokens(text: &str) -> Result<usize, Allowed> {
    Ok(whole(text, 1, u64::from(u32::MAX))? as usize)
}

pub(super) fn logprobs(text: &str) -> Result<usize, Allowed> {
    Ok(whole(text, 0, MAX_LOGPROBS as u64)? as usize)
}

/// Requests that run at the same time; each has a session.
pub(super) fn parallel(text: &str) -> Result<usize, Allowed> {
    Ok(whole(text, 1, 256)? as usize)
}

/// The size of a request's body.
pub(super) fn mebibytes(text: &str) -> Result<usize, Allowed> {
    Ok(whole(text, 1, 4096)? as usize)
}

/// A size: a whole number of bytes, or of the units of 1024 that K, M, G and T stand for.
pub(super) fn bytes(text: &str) -> Result<u64, Allowed> {
    let allowed = || Allowed("a whole number of bytes, or one with K, M, G or T, such as `512M`".to_owned());
    let units = ["K", "M", "G", "T"].into_iter().zip([10, 20, 30, 40]);
    let (number, shift) = units
        .filter_map(|(unit, shift)| {
            Some((text.strip_suffix(unit).or_else(|| text.strip_suffix(&unit.to_lowercase()))?, shift))
        })
        .next()
        .unwrap_or((text, 0));
    let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<u64>().ok().filter(|_| is_plain).ok_or_else(allowed)?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes <= 1 << 50).ok_or_else(allowed)
}

pub(super) fn port(text: &str) -> Result<u16, Allowed> {
    Ok(whole(text, 0, u64::from(u16::MAX))? as u16)
}

pub(super) fn host(text: &str) -> Result<IpAddr, Allowed> {
    text.parse().map_err(|_| Allowed("an address of this machine, such as `127.0.0.1`, `::1` or `0.0.0.0`".to_owned()))
}

/// An environment variable that stands for a flag without a value.
pub(super) fn switch(text: &str) -> Result<bool, Allowed> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "" | "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err(Allowed("`1`, `true`, `yes` or `on`, or else `0`, `false`, `no`, `off` or empty".to_owned())),
    }
}

/// A share of a whole.
pub(super) fn share(text: &str) -> Result<f64, Allowed> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| Allowed("a number from 0 to 1".to_owned()))
}

pub(crate) fn seed(text: &str) -> Result<u64, Allowed> {
    whole(text, 0, u64::MAX)
}

/// Any number that f32 can spell, NaN included: the ranges are the engine's, and so are the words for them.
pub(crate) fn number(text: &str) -> Result<f32, Allowed> {
    text.parse().map_err(|_| Allowed("a number".to_owned()))
}

pub(super) fn logit_bias(text: &str) -> Result<(u32, f32), Allowed> {
    let pair = text.split_once('=').and_then(|(id, value)| Some((id.parse().ok()?, value.parse().ok()?)));
    pair.ok_or_else(|| Allowed("a token's number and a value, such as `42=-5.5`".to_owned()))
}

pub(super) fn template_arg(text: &str) -> Result<(String, Value), Allowed> {
    let pair = text.split_once('=').and_then(|(key, json)| Some((key.to_owned(), serde_json::from_str(json).ok()?)));
    pair.filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| Allowed("a name and JSON, such as `enable_thinking=false` or `style=\"short\"`".to_owned()))
}

pub(crate) fn stop(text: &str) -> Result<String, Allowed> {
    Some(text).filter(|text| !text.is_empty()).map(str::to_owned).ok_or_else(|| Allowed("a text".to_owned()))
}

fn whole(text: &str, least: u64, most: u64) -> Result<u64, Allowed> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| Allowed(format!("a whole number from {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_to_their_ranges() {
        assert_eq!(threads("8"), Ok(NonZeroUsize::new(8).unwrap()));
        for text in ["0", "-1", "1025", "two", "", "1.5"] {
            assert_eq!(threads(text), Err(Allowed("a whole number from 1 to 1024".to_owned())));
        }
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        assert!(seed("18446744073709551616").is_err());
        assert_eq!(logprobs("21"), Err(Allowed("a whole number from 0 to 20".to_owned())));
    }

    #[test]
    fn sizes_have_units() {
        for (text, expected) in
            [("0", 0), ("512", 512), ("3k", 3 << 10), ("512M", 512 << 20), ("4G", 4 << 30), ("1T", 1 << 40)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "4GB", "+4G", "9999999T", "18446744073709551615K"] {
            let allowed = "a whole number of bytes, or one with K, M, G or T, such as `512M`";
            assert_eq!(bytes(text), Err(Allowed(allowed.to_owned())), "{text}");
        }
        assert_eq!([share("0.25"), share("1")], [Ok(0.25), Ok(1.0)]);
        assert!(["-0.1", "1.01", "nan", "half", ""].iter().all(|text| share(text).is_err()));
    }

    #[test]
    fn switches_are_on_or_off() {
        assert_eq!([switch("1"), switch("ON"), switch(""), switch("no")], [Ok(true), Ok(true), Ok(false), Ok(false)]);
        assert!(["maybe", "2", " "].iter().all(|text| switch(text).is_err()));
    }

    #[test]
    fn pairs_are_split_at_the_first_equals_sign() {
        assert_eq!(logit_bias("42=-5.5"), Ok((42, -5.5)));
        assert!(["42", "=1", "a=1", "1=b", "-1=2"].iter().all(|text| logit_bias(text).is_err()));
        assert_eq!(template_arg("a=\"b=c\""), Ok(("a".to_owned(), Value::from("b=c"))));
        assert!(["a", "=1", "a=b"].iter().all(|text| template_arg(text).is_err()));
    }
}
