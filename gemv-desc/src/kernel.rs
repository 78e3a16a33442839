//! How a backend describes its kernels: for `gemv info --kernels`, and to know whether a tuned row is stale.

use std::fmt::{self, Display};

/// The values that an argument of a kernel may have.
///
/// ```
/// use gemv::unstable::Values;
/// assert!(Values::Powers(1, 32).holds(8) && !Values::Powers(1, 32).holds(12));
/// assert_eq!(Values::Powers(1, 32).to_string(), "a power of two from 1 to 32");
/// assert_eq!(Values::OneOf(&[0, 2, 4]).to_string(), "0, 2 or 4");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Powers of two, least and greatest.
    Powers(u32, u32),
    /// Whole numbers, least and greatest.
    Range(u32, u32),
    /// Multiples of the first number, least and greatest.
    Multiples(u32, u32, u32),
    /// These.
    OneOf(&'static [u32]),
}

impl Values {
    /// Whether a value is among them.
    pub fn holds(&self, value: u32) -> bool {
        match *self {
            Values::Powers(low, high) => value.is_power_of_two() && low <= value && value <= high,
            Values::Range(low, high) => low <= value && value <= high,
            Values::Multiples(of, low, high) => {
                value.is_multiple_of(of) && low <= value && value <= high
            }
            Values::OneOf(all) => all.contains(&value),
        }
    }
}

impl Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Values::Powers(low, high) => write!(f, "a power of two from {low} to {high}"),
            Values::Range(low, high) => write!(f, "from {low} to {high}"),
            Values::Multiples(of, low, high) => {
                write!(f, "a multiple of {of} from {low} to {high}")
            }
            Values::OneOf(all) => {
                for (i, value) in all.iter().enumerate() {
                    let join = match i {
                        0 => "",
                        _ if i + 1 == all.len() => " or ",
                        _ => ", ",
                    };
                    write!(f, "{join}{value}")?;
                }
                Ok(())
            }
        }
    }
}

/// An argument that a kernel's [`Params`](crate::Params) may have, as data.
///
/// ```
/// use gemv::unstable::{Arg, Values};
/// const THREADS: Arg = Arg {
///     name: "threads",
///     about: "Threads of a block.",
///     values: Values::Powers(32, 1024),
///     default: 128,
///     define: Some("THREADS"),
/// };
/// assert_eq!(THREADS.check(256), Ok(()));
/// let why = THREADS.check(100).unwrap_err();
/// assert_eq!(why, "threads=100 is not a power of two from 32 to 1024");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arg {
    /// Its name in the text form.
    pub name: &'static str,
    /// What it is, in one sentence.
    pub about: &'static str,
    /// The values that it may have.
    pub values: Values,
    /// What it is where the text leaves it out.
    pub default: u32,
    /// The define by which a GPU program takes it. `None` where only the launch depends on it, so
    /// that one program serves every value; always so on the CPU.
    pub define: Option<&'static str>,
}

impl Arg {
    /// Whether the argument may have this value.
    ///
    /// # Errors
    /// What it may be, as the end of a sentence.
    pub fn check(&self, value: u32) -> Result<(), String> {
        if self.values.holds(value) {
            return Ok(());
        }
        Err(format!("{}={value} is not {}", self.name, self.values))
    }
}

/// A kernel as a backend describes it.
///
/// ```
/// let device = gemv::device("reference")?;
/// for kernel in device.backend().kernels() {
///     println!("{}: {} ({})", kernel.name, kernel.about, kernel.fingerprint);
/// }
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    /// Its name in [`Params`](crate::Params).
    pub name: &'static str,
    /// What it does, in one sentence.
    pub about: &'static str,
    /// The arguments that it takes.
    pub args: &'static [Arg],
    /// A number for its text without comments and its arguments: a table that was tuned for another
    /// is stale. See [`fingerprint`].
    pub fingerprint: String,
}

/// A number for a kernel: of its texts, without comments and white space, and of its arguments.
///
/// ```
/// use gemv::unstable::fingerprint;
/// let plain = fingerprint(&["y = a * x;"], &[]);
/// assert_eq!(plain, fingerprint(&["y = a * x; // a comment", "\n/* another */"], &[]));
/// assert_ne!(plain, fingerprint(&["y = a + x;"], &[]));
/// ```
pub fn fingerprint(texts: &[&str], args: &[Arg]) -> String {
    // FNV-1a: the same number on every machine and with every compiler, unlike std's hasher.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut eat = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    for text in texts {
        code(text).for_each(&mut eat);
    }
    for Arg { name, values, default, define, .. } in args {
        format!("{name}{values:?}{default}{define:?}").bytes().for_each(&mut eat);
    }
    format!("{hash:016x}")
}

/// A number for a source text, in hexadecimal: FNV-1a of its bytes that are neither white space nor line comment.
/// [`fingerprint`] takes it in place of a long text, which the program would carry.
///
/// ```
/// use gemv::unstable::source_digest;
/// const PLAIN: [u8; 16] = source_digest(b"y = a / x;");
/// assert_eq!(PLAIN, source_digest(b"// y\ny = a\n    / x; // a comment"));
/// assert_ne!(PLAIN, source_digest(b"y = a * x;"));
/// ```
pub const fn source_digest(text: &[u8]) -> [u8; 16] {
    let (mut hash, mut at, mut comment) = (0xcbf2_9ce4_8422_2325_u64, 0, false);
    while at < text.len() {
        let byte = text[at];
        comment = byte != b'\n'
            && (comment || byte == b'/' && at + 1 < text.len() && text[at + 1] == b'/');
        if !comment && !byte.is_ascii_whitespace() {
            hash = (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3);
        }
        at += 1;
    }
    let mut hex = [0; 16];
    at = 0;
    while at < 16 {
        hex[at] = b"0123456789abcdef"[(hash >> (60 - 4 * at)) as usize & 15];
        at += 1;
    }
    hex
}

/// The bytes of a text of C or Rust that are neither white space nor comment. Strings are not
/// known: a kernel has none with `//` in it.
fn code(text: &str) -> impl Iterator<Item = u8> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            if rest.starts_with("//") {
                rest = rest.find('\n').map_or("", |end| &rest[end..]);
            } else if rest.starts_with("/*") {
                rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
            } else {
                let next = rest.chars().next()?;
                let (head, tail) = rest.split_at(next.len_utf8());
                rest = tail;
                if !next.is_whitespace() {
                    return head.bytes().next();
                }
            }
        }
    })
}
