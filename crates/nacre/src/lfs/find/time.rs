//! Times on the command line and in the output of `lfs find`.

use std::ffi::CString;

/// Days of a year in `lfs find`.
const DAYS_PER_YEAR: i64 = 365;
const DAY: i64 = 24 * 3600;

/// An age: `[+-]N[smhdwy]...`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Age {
    /// Age in seconds.
    pub seconds: i64,
    /// Seconds of the smallest unit that was given: the tolerance of "equal".
    pub margin: i64,
}

/// Parses an age without its sign. A bare number counts days; units add up (`8h20m`).
pub fn parse_age(text: &str) -> Option<Age> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = text.parse::<i64>().ok()?.checked_mul(DAY)?;
        return Some(Age { seconds, margin: DAY });
    }
    let mut age = Age { seconds: 0, margin: i64::MAX };
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|&at| at > 0)?;
        let (number, tail) = rest.split_at(digits);
        let unit = match tail.as_bytes().first()? {
            b's' => 1,
            b'm' => 60,
            b'h' => 3600,
            b'd' => DAY,
            b'w' => 7 * DAY,
            b'y' => DAYS_PER_YEAR * DAY,
            _ => return None,
        };
        let seconds = number.parse::<i64>().ok()?.checked_mul(unit)?;
        age = Age { seconds: age.seconds.checked_add(seconds)?, margin: age.margin.min(unit) };
        rest = &tail[1..];
    }
    (age.margin != i64::MAX).then_some(age)
}

/// Parses a time, given as a date or as seconds since 1970 (`@N` or `N`). Omitted parts of a date default to
/// the start of the minute or day, or to today. Returns seconds since 1970; dates are in the local time zone.
pub fn parse_date(text: &str, now: i64) -> Option<i64> {
    let number = text.strip_prefix('@').unwrap_or(text);
    if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
        return number.parse().ok();
    }
    let mut tm = local(now)?;
    (tm.tm_sec, tm.tm_min, tm.tm_hour) = (0, 0, 0);
    let (date, time) = match text.split_once(' ') {
        Some((date, time)) => (Some(date), Some(time)),
        None if text.contains(':') => (None, Some(text)),
        None => (Some(text), None),
    };
    if let Some(date) = date {
        let [year, month, day] = fields(date, '-')?;
        tm.tm_year = year? - 1900;
        tm.tm_mon = month? - 1;
        tm.tm_mday = day?;
        if !(0..12).contains(&tm.tm_mon) || !(1..=31).contains(&tm.tm_mday) {
            return None;
        }
    }
    if let Some(time) = time {
        let [hour, minute, second] = fields(time, ':')?;
        (tm.tm_hour, tm.tm_min, tm.tm_sec) = (hour?, minute?, second.unwrap_or(0));
        if !(0..24).contains(&tm.tm_hour) || !(0..60).contains(&tm.tm_min) || !(0..=60).contains(&tm.tm_sec) {
            return None;
        }
    }
    tm.tm_isdst = -1;
    // SAFETY: `tm` is a valid, initialised structure; the function reads and normalises it.
    let seconds = unsafe { libc::mktime(&raw mut tm) };
    (seconds != -1).then_some(seconds)
}

/// Parses two or three numbers; the third may be missing.
fn fields(text: &str, separator: char) -> Option<[Option<i32>; 3]> {
    let parts: Vec<&str> = text.split(separator).collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let mut numbers = [None; 3];
    for (number, part) in numbers.iter_mut().zip(&parts) {
        *number = Some(part.parse().ok().filter(|n| *n >= 0)?);
    }
    Some(numbers)
}

fn local(seconds: i64) -> Option<libc::tm> {
    // SAFETY: zero bytes are a valid `tm` (numbers and a null pointer that is never followed).
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live, initialised variables of the right types.
    let found = unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) };
    (!found.is_null()).then_some(tm)
}

/// Formats `Sat Nov 21 18:30:54 2026`, in the local time zone, as ctime(3) without the end of line.
pub fn ctime(seconds: i64) -> String {
    let format = CString::new("%a %b %e %H:%M:%S %Y").expect("no NUL in it");
    let Some(tm) = local(seconds) else { return seconds.to_string() };
    let mut buffer = [0u8; 64];
    // SAFETY: the buffer has the given length, the format is a NUL-terminated string, `tm` is initialised.
    let len =
        unsafe { libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &raw const tm) };
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_count_days_or_named_units_and_the_smallest_is_the_margin() {
        let age = |seconds, margin| Some(Age { seconds, margin });
        assert_eq!(parse_age("3"), age(3 * DAY, DAY));
        assert_eq!(parse_age("3d"), age(3 * DAY, DAY));
        assert_eq!(parse_age("72h"), age(3 * DAY, 3600));
        assert_eq!(parse_age("8h20m"), age(500 * 60, 60));
        assert_eq!(parse_age("1y1w1s"), age(372 * DAY + 1, 1));
        for bad in ["", "d", "1x", "1d2", "-1", "+1", "1 d", "99999999999999999999", "9999999999999999y"] {
            assert_eq!(parse_age(bad), None, "{bad}");
        }
    }

    #[test]
    fn dates_are_local_and_complete_themselves() {
        let now = 1_795_286_000;
        assert_eq!(parse_date("@77", now), Some(77));
        assert_eq!(parse_date("77", now), Some(77));
        let day = parse_date("2026-01-02", now).expect("a date");
        assert_eq!(parse_date("2026-01-02 03:04", now), Some(day + 3 * 3600 + 4 * 60));
        assert_eq!(parse_date("2026-01-02 03:04:05", now), Some(day + 3 * 3600 + 4 * 60 + 5));
        let today = parse_date("00:00", now).expect("a time of today");
        assert!((0..=DAY + 3600).contains(&(now - today)), "{today}");
        assert_eq!(parse_date("01:02:03", now).map(|at| at - today), Some(3723));
        for bad in
            ["", "yesterday", "2026-13-01", "2026-01", "25:00", "2026-01-02 x", "1:2:3:4", "@x", "12:-3"]
        {
            assert_eq!(parse_date(bad, now), None, "{bad}");
        }
    }

    #[test]
    fn moments_read_as_ctime_writes_them() {
        let text = ctime(parse_date("2026-01-02 03:04:05", 0).expect("a date"));
        assert_eq!(text, "Fri Jan  2 03:04:05 2026");
    }
}
