//! What is chosen: a kernel's name and a few small integers.

use std::fmt::{self, Debug, Display};
use std::str::FromStr;

/// A kernel's name: up to 16 ASCII characters, stored in place so that [`Params`] stays `Copy`.
///
/// ```
/// use gemv::unstable::{Name, Params};
/// const ROW: Name = Name::new("row");
/// assert_eq!(ROW.as_str(), "row");
/// assert_eq!("row threads=128".parse::<Params>().map(|p| p.kernel()), Ok(ROW));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name([u8; 16]);

impl Name {
    /// The name, in a constant.
    ///
    /// ```should_panic
    /// gemv::unstable::Name::new("a name of many words");
    /// ```
    ///
    /// # Panics
    /// If it is longer than 16 bytes or has a character other than `a-z0-9-_`; at compile time,
    /// when used in a constant.
    #[track_caller]
    pub const fn new(name: &str) -> Name {
        match Name::try_new(name) {
            Some(n) => n,
            None => panic!("a name has 1 to 16 characters of a-z, 0-9, - and _"),
        }
    }

    const fn try_new(name: &str) -> Option<Name> {
        let (b, mut out, mut i) = (name.as_bytes(), [0; 16], 0);
        if b.is_empty() || b.len() > 16 {
            return None;
        }
        while i < b.len() {
            if !matches!(b[i], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') {
                return None;
            }
            out[i] = b[i];
            i += 1;
        }
        Some(Name(out))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(16);
        std::str::from_utf8(&self.0[..len]).unwrap_or_default()
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// How many integers a [`Params`] can hold.
///
/// ```
/// use gemv::unstable::{MAX_ARGS, Params};
/// assert_eq!(MAX_ARGS, 12);
/// let e = "row a=1 b=2 c=3 d=4 e=5 f=6 g=7 h=8 i=9 j=10 k=11 l=12 m=13".parse::<Params>().unwrap_err();
/// assert_eq!(e, "more than 12 arguments");
/// ```
pub const MAX_ARGS: usize = 12;

/// The name that every backend gives to its pass that only reads; see
/// `Backend::read_params`.
///
/// ```
/// use gemv::unstable::{Params, READ};
/// assert!(!Params::new(READ).keeps_order()); // it does not multiply
/// ```
pub const READ: &str = "read";

/// What is chosen: a kernel's name and a few small integers, such as
/// `row threads=128 rows=4 vec=4 split=1`. The same text form stands in tables, logs, tests and
/// reports.
///
/// ```
/// use gemv::unstable::Params;
/// let p: Params = "row threads=128 rows=4".parse().unwrap();
/// assert_eq!(p.kernel().as_str(), "row");
/// assert_eq!(p.get("rows"), Some(4));
/// assert_eq!(p.to_string(), "row threads=128 rows=4");
/// assert_eq!(p, Params::new("row").with("threads", 128).with("rows", 4));
/// assert_eq!(p.without("threads"), Params::new("row").with("rows", 4));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Params {
    kernel: Name,
    // Two arrays: pairs would take a third more, and this is copied with each choice.
    keys: [Key; MAX_ARGS],
    values: [u32; MAX_ARGS],
}

/// An argument's name: up to 16 ASCII characters in one word, so that a look-up is a comparison
/// of integers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Key(u128);

impl Key {
    const fn try_new(name: &str) -> Option<Key> {
        let (b, mut out, mut i) = (name.as_bytes(), 0u128, 0);
        if b.is_empty() || b.len() > 16 {
            return None;
        }
        while i < b.len() {
            if !matches!(b[i], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') {
                return None;
            }
            out |= (b[i] as u128) << (8 * i);
            i += 1;
        }
        Some(Key(out))
    }
}

impl Params {
    /// The kernel, without arguments.
    ///
    /// # Panics
    /// As [`Name::new`].
    #[track_caller]
    pub const fn new(kernel: &str) -> Params {
        Params { kernel: Name::new(kernel), keys: [Key(0); MAX_ARGS], values: [0; MAX_ARGS] }
    }

    /// With one more argument.
    ///
    /// An argument that is there already is replaced.
    ///
    /// ```
    /// use gemv::unstable::Params;
    /// const FOUR: Params = Params::new("row").with("threads", 128).with("rows", 4);
    /// assert_eq!(FOUR.with("rows", 2).to_string(), "row threads=128 rows=2");
    /// ```
    ///
    /// # Panics
    /// If the name is not 1 to 16 characters of `a-z0-9-_`, or there are [`MAX_ARGS`] already.
    #[must_use]
    #[track_caller]
    pub const fn with(mut self, name: &str, value: u32) -> Params {
        let Some(key) = Key::try_new(name) else {
            panic!("an argument's name has 1 to 16 characters of a-z, 0-9, - and _")
        };
        let mut i = 0;
        while i < MAX_ARGS {
            if self.keys[i].0 == 0 || self.keys[i].0 == key.0 {
                (self.keys[i], self.values[i]) = (key, value);
                return self;
            }
            i += 1;
        }
        panic!("too many arguments")
    }

    /// Without the argument of this name.
    ///
    /// ```
    /// use gemv::unstable::Params;
    /// let params: Params = "row threads=128 split=4 rows=2".parse().unwrap();
    /// assert_eq!(params.without("split").to_string(), "row threads=128 rows=2");
    /// assert_eq!(params.without("vec"), params);
    /// ```
    #[must_use]
    pub fn without(mut self, name: &str) -> Params {
        let key = Key::try_new(name);
        if let Some(at) = self.keys.iter().position(|k| Some(*k) == key) {
            self.keys[at..].rotate_left(1);
            self.values[at..].rotate_left(1);
            (self.keys[MAX_ARGS - 1], self.values[MAX_ARGS - 1]) = (Key(0), 0);
        }
        self
    }

    /// The kernel's name.
    pub fn kernel(&self) -> Name {
        self.kernel
    }

    /// Whether the kernel follows the order of additions: all do but the named baselines, whose
    /// names begin with `classic-` or `vendor-`, and `read`, which does not multiply.
    ///
    /// ```
    /// use gemv::unstable::Params;
    /// let keeps = |text: &str| text.parse::<Params>().unwrap().keeps_order();
    /// assert!(keeps("row threads=128") && keeps("reference"));
    /// assert!(!keeps("classic-rows m=2") && !keeps("vendor-cublas") && !keeps("read"));
    /// ```
    pub fn keeps_order(&self) -> bool {
        let name = self.kernel.as_str();
        !(name.starts_with("classic-") || name.starts_with("vendor-") || name == READ)
    }

    /// The argument of this name.
    #[inline]
    pub fn get(&self, name: &str) -> Option<u32> {
        let key = Key::try_new(name)?;
        self.keys.iter().position(|k| *k == key).map(|at| self.values[at])
    }

    /// The argument of this name, or a default where the text leaves it out.
    ///
    /// ```
    /// use gemv::unstable::Params;
    /// let params = Params::new("row").with("rows", 4);
    /// assert_eq!((params.get("split"), params.get_or("split", 1)), (None, 1));
    /// ```
    #[inline]
    pub fn get_or(&self, name: &str, default: u32) -> u32 {
        self.get(name).unwrap_or(default)
    }

    /// Names and values, in the order in which they were given.
    ///
    /// ```
    /// use gemv::unstable::Params;
    /// let params: Params = "row threads=128 rows=4".parse().unwrap();
    /// let args: Vec<(String, u32)> = params.args().collect();
    /// assert_eq!(args, [("threads".into(), 128), ("rows".into(), 4)]);
    /// ```
    pub fn args(&self) -> impl Iterator<Item = (String, u32)> + '_ {
        let set = self.keys.iter().zip(&self.values).take_while(|(k, _)| k.0 != 0);
        set.map(|(k, v)| {
            let bytes = k.0.to_le_bytes();
            (bytes.iter().take_while(|&&b| b != 0).map(|&b| b as char).collect(), *v)
        })
    }
}

impl Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kernel)?;
        self.args().try_for_each(|(k, v)| write!(f, " {k}={v}"))
    }
}

impl Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Params {
    type Err = String;

    fn from_str(text: &str) -> Result<Params, String> {
        let mut words = text.split_whitespace();
        let kernel = words.next().ok_or("a kernel's name is missing")?;
        let kernel = Name::try_new(kernel).ok_or(format!("{kernel:?} is no kernel's name"))?;
        let mut out = Params { kernel, keys: Default::default(), values: Default::default() };
        for (i, word) in words.enumerate() {
            let (k, v) = word.split_once('=').ok_or(format!("{word:?} is not name=value"))?;
            let key = Key::try_new(k).ok_or(format!("{k:?} is no argument's name"))?;
            let v = v
                .parse()
                .map_err(|_| format!("{v:?} in {word:?} is no whole number below 2^32"))?;
            if i >= MAX_ARGS {
                return Err(format!("more than {MAX_ARGS} arguments"));
            }
            if out.keys[..i].contains(&key) {
                return Err(format!("{k} is given twice"));
            }
            (out.keys[i], out.values[i]) = (key, v);
        }
        Ok(out)
    }
}
