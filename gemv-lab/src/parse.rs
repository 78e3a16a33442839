//! Arguments that several subcommands have.

use gemv::Dtype;
use gemv::unstable::Layout;

/// A type by its name in NumPy, or by the short one of tables and problems.
///
/// # Errors
/// The names that there are, and the one that may have been meant.
pub fn parse_dtype(text: &str) -> Result<Dtype, String> {
    let named = |dtype: &Dtype| [dtype.numpy_name(), dtype.name()].contains(&text);
    Dtype::ALL.into_iter().find(named).ok_or_else(|| {
        let names = Dtype::ALL.map(Dtype::numpy_name);
        let mean = did_you_mean(text, names.into_iter().chain(Dtype::ALL.map(Dtype::name)));
        format!("{text:?} is no element type; there are {}{mean}", names.join(", "))
    })
}

pub(crate) fn parse_layout(text: &str) -> Result<Layout, String> {
    match Layout::parse(text) {
        Some(layout) if layout != Layout::Strided => Ok(layout),
        _ => Err(format!("there are row and col{}", did_you_mean(text, ["row", "col"]))),
    }
}

/// Of these names the one that is most like what was written, if it is like it.
pub fn nearest<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_lowercase();
    let far = |name: &&str| strsim::damerau_levenshtein(&text, name);
    let near = names.into_iter().min_by_key(far)?;
    // Of a long name more letters may be wrong, but of none more than a third.
    (far(&near) <= near.chars().count().div_ceil(3)).then_some(near)
}

/// The end of a sentence that refuses a name.
pub(crate) fn did_you_mean<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(text, names).map_or(String::new(), |name| format!("; did you mean {name}?"))
}

pub(crate) fn parse_minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes| (0.0..=1e6).contains(minutes));
    minutes.ok_or_else(|| "not a number of minutes from 0 to 1000000".into())
}

/// A number of bytes, such as `256M`: `k`, `M` and `G` stand for powers of 1024.
///
/// # Errors
/// What it is not.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "not a number with k, M, G or nothing behind it")?;
    number.checked_mul(1 << shift).filter(|&b| b > 0).ok_or("out of range".into())
}

/// `1 argument`, `2 arguments`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A time that nobody measures by the second.
pub(crate) fn about(seconds: f64) -> String {
    let (number, unit) = match seconds {
        0.0..10.0 => return "a few seconds".into(),
        0.0..100.0 => ((seconds / 10.0).round() * 10.0, "second"),
        0.0..5400.0 => ((seconds / 60.0).round(), "minute"),
        _ => ((seconds / 3600.0).round().max(2.0), "hour"),
    };
    format!("about {}", count(number as usize, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_two_names() {
        for dtype in Dtype::ALL {
            assert_eq!(parse_dtype(dtype.numpy_name()), Ok(dtype));
            assert_eq!(parse_dtype(dtype.name()), Ok(dtype));
        }
        let why = parse_dtype("flaot32").unwrap_err();
        let names = "float32, float64, float16, bfloat16, complex64, complex128";
        let all = "\"flaot32\" is no element type; there are ";
        assert_eq!(why, format!("{all}{names}; did you mean float32?"));
        assert!(!parse_dtype("int8").unwrap_err().contains("did you mean"));
    }

    #[test]
    fn only_what_is_like_a_name_is_meant() {
        let names = ["cpu", "cuda", "opencl:0"];
        for (text, near) in [
            ("cud", Some("cuda")),
            ("CPU", Some("cpu")),
            ("opencl0", Some("opencl:0")),
            ("abacus", None),
            ("", None),
        ] {
            assert_eq!(nearest(text, names), near, "{text:?}");
        }
        assert_eq!(nearest("cpu", []), None);
    }

    #[test]
    fn times_in_words() {
        for (seconds, words) in [
            (0.0, "a few seconds"),
            (42.0, "about 40 seconds"),
            (100.0, "about 2 minutes"),
            (60.0 * 46.0, "about 46 minutes"),
            (5400.0, "about 2 hours"),
        ] {
            assert_eq!(about(seconds), words);
        }
    }
}
