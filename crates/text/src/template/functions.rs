//! Functions and printing that chat templates expect beside plain Jinja.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind, Output, State, Value, value::ValueKind};

/// The text a template gave to `raise_exception`; the source of the error it caused.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

/// `raise_exception(message)`: the template refuses the conversation.
pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(message)))
}

/// `strftime_now(format)`: the date and time in UTC, so that a prompt does not depend on the machine's zone.
pub(super) fn strftime_now(format: &str) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    strftime(format, seconds)
}

/// Prints a value into the prompt as Python would.
pub(super) fn print(out: &mut Output, _state: &mut State, value: &Value) -> Result<(), Error> {
    match float_of(value) {
        Some(number) => out.write_str(&python_float(number))?,
        None => write!(out, "{value}")?,
    }
    Ok(())
}

/// The `string` filter, which prints floats as Python would.
pub(super) fn string(value: &Value) -> Value {
    match float_of(value) {
        Some(number) => Value::from(python_float(number)),
        None if value.kind() == ValueKind::String => value.clone(),
        None => Value::from(value.to_string()),
    }
}

pub(super) fn float_of(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// A float as Python's `repr` writes it: shortest digits, an exponent below 1e-4 and from 1e16 on.
pub(super) fn python_float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() { "nan".to_owned() } else { format!("{number}") };
    }
    let magnitude = number.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{number:?}");
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Removes `{% generation %}` and `{% endgeneration %}`: they mark the assistant's text for training and print nothing.
///
/// They become tags that do nothing either, so that white space around them is trimmed as before.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        // The end is looked for past the start: in `{%}` the two share a sign.
        let Some(end) = tag[2..].find("%}").map(|inside| 2 + inside) else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        match tag[2..end].trim_matches(['-', '+']).trim() {
            "generation" => result.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => result.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats seconds since 1970 in UTC; directives that templates do not use are printed as they are.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[((days + 4) % 7) as usize];
    let mut text = String::with_capacity(format.len());
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => text += &year.to_string(),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('B') => text += month_name,
            Some('b') => text += &month_name[..3],
            Some('A') => text += weekday,
            Some('a') => text += &weekday[..3],
            Some('H') => text += &format!("{hour:02}"),
            Some('I') => text += &format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => text += if hour < 12 { "AM" } else { "PM" },
            Some('M') => text += &format!("{minute:02}"),
            Some('S') => text += &format!("{second:02}"),
            Some('F') => text += &format!("{year}-{month:02}-{day:02}"),
            Some('T') => text += &format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') | None => text.push('%'),
            Some(other) => text.extend(['%', other]),
        }
    }
    text
}

/// Year, month and day of the Gregorian calendar, from days since 1970-01-01.
fn civil_date(days: u64) -> (u64, u64, u64) {
    // Counts from March 0000, so that the leap day is the last of its year and eras of 400 years repeat.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (400 * era + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        let cases = [
            (0.5, "0.5"),
            (7.0, "7.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (-2.5e100, "-2.5e+100"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ];
        for (number, expected) in cases {
            assert_eq!(python_float(number), expected);
        }
    }

    #[test]
    fn dates_are_right_at_leap_days_and_year_ends() {
        assert_eq!(strftime("%Y-%m-%d %H:%M:%S %a", 0), "1970-01-01 00:00:00 Thu");
        assert_eq!(strftime("%d %b %Y", 951_782_400), "29 Feb 2000");
        assert_eq!(strftime("%A, %d %B %y %I%p", 4_107_542_399), "Sunday, 28 February 00 11PM");
        assert_eq!(strftime("%F %T 100%% %Q", 1_735_689_599), "2024-12-31 23:59:59 100% %Q");
    }

    #[test]
    fn generation_tags_do_nothing() {
        assert_eq!(
            without_generation_tags("a{%- generation -%}b{% endgeneration %}{% if x %}"),
            "a{%- if true -%}b{% endif %}{% if x %}"
        );
        assert_eq!(without_generation_tags("{{ '{%' }} %} {%"), "{{ '{%' }} %} {%");
    }

    #[test]
    fn a_tag_whose_start_and_end_share_a_sign_is_no_tag() {
        for source in ["{%}", "a{%}b", "{%}{% x %}", "{%%}"] {
            assert_eq!(without_generation_tags(source), source);
        }
        assert_eq!(without_generation_tags("{%}{%generation%}"), "{%}{%generation%}");
        assert_eq!(without_generation_tags("{%}%}{%generation%}"), "{%}%}{%if true%}");
    }
}
