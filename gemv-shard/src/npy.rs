//! NumPy's `.npy` files, formats 1.0 to 3.0: their header, and their elements one after the other.
//!
//! Written here because no crate knows all the element types: `f2`, `f4`, `f8`, `c8`, `c16` of either byte
//! order, under every name that NumPy reads, and bfloat16, which NumPy does not know. `numpy.save` of an `ml_dtypes` array writes that as `<V2`
//! (two bytes without a meaning), so every `V2` is taken for one.
//!
//! The header is the text of a Python dictionary. Only what NumPy writes there is understood: no nesting, so
//! no depth that a hostile file could choose.

use std::io::{self, Read, Write};

use bytemuck::Pod;
use gemv_core::{Dtype, Element};

use crate::{Error, Result};

/// What a file begins with.
pub const MAGIC: &[u8] = b"\x93NUMPY";
/// NumPy's own limit for an untrusted header is 10,000.
const MAX_HEADER: usize = 1 << 16;
/// As many axes as an array of NumPy can have.
const MAX_AXES: usize = 64;
/// Elements are zeroed and read in pieces of this many bytes, which stay in the cache between
/// the two.
const PIECE: usize = 1 << 18;
/// Characters of a file that an error shows.
const SHOWN: usize = 200;

/// The content of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The element type.
    pub dtype: Dtype,
    /// Whether the most significant byte of a number comes first.
    pub big_endian: bool,
    /// Whether the first index runs fastest.
    pub fortran: bool,
    /// Number of entries along each axis.
    pub shape: Vec<usize>,
}

impl Header {
    /// Reads a header, and says how many bytes it has; the data follows.
    ///
    /// ```
    /// use gemv_shard::npy::Header;
    ///
    /// let dict = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4)}");
    /// let file = [b"\x93NUMPY\x01\x00\x76\x00", dict.as_bytes()].concat();
    /// let (header, bytes) = Header::read(&mut &file[..])?;
    /// assert_eq!((header.shape.as_slice(), header.fortran, bytes), (&[3, 4][..], true, 128));
    /// assert_eq!(header.size(), Some((12, 48)));
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::File`] if it is none, or what reading reports.
    pub fn read(file: &mut impl Read) -> Result<(Header, usize)> {
        const SHORT: &str = "the file is truncated: it ends within its header";
        let told = |e: io::Error| match e.kind() {
            io::ErrorKind::UnexpectedEof => refused(SHORT),
            _ => refused(e.to_string()),
        };
        let mut start = Vec::new();
        file.take(8).read_to_end(&mut start).map_err(told)?;
        if start.is_empty() {
            return Err(refused("the file is empty"));
        }
        if [&b"PK\x03\x04"[..], b"PK\x05\x06"].iter().any(|zip| start.starts_with(zip)) {
            return Err(refused("this is an archive (.npz): it has to be a file"));
        }
        if !start.starts_with(MAGIC) {
            return Err(refused("this is not a NumPy file: it does not begin with \\x93NUMPY"));
        }
        let &[_, _, _, _, _, _, major, minor] = &start[..] else { return Err(refused(SHORT)) };
        let width = match (major, minor) {
            (1, 0) => 2,
            (2 | 3, 0) => 4,
            _ => {
                return Err(refused(format!(
                    "the file has format {major}.{minor}, but only 1.0, 2.0 and 3.0 are known"
                )));
            }
        };
        let mut length = [0; 4];
        file.read_exact(&mut length[..width]).map_err(told)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_HEADER {
            return Err(refused(format!(
                "its header of {length} bytes is longer than that of any array of numbers"
            )));
        }
        let mut text = vec![0; length];
        file.read_exact(&mut text).map_err(told)?;
        // Only the field names of a record can be outside ASCII, and records are refused.
        let header = parse_header(&String::from_utf8_lossy(&text))?;
        Ok((header, 8 + width + length))
    }

    /// Elements and bytes of the data; `None` where they overflow. As in NumPy and ndarray, an axis of
    /// 0 entries makes the array empty, but does not make the other lengths legal.
    pub fn size(&self) -> Option<(usize, usize)> {
        let axes = self.shape.iter().filter(|&&d| d != 0);
        let filled = axes.copied().try_fold(self.dtype.bytes(), usize::checked_mul)?;
        isize::try_from(filled).ok()?;
        let bytes = if self.shape.contains(&0) { 0 } else { filled };
        Some((bytes / self.dtype.bytes(), bytes))
    }
}

/// Reads the elements that follow a header, in the order of the file, in the byte order of this machine. Only of a file
/// whose length was compared is room made for all at once (`known`): a pipe or an archive may announce more than it has.
///
/// # Errors
/// [`Error::File`] if there are fewer elements or more, no memory for them, or what reading reports.
///
/// # Panics
/// If the header is of another type.
#[track_caller]
pub fn read<T: Element + Pod>(
    header: &Header,
    data: &mut impl Read,
    known: bool,
) -> Result<Vec<T>> {
    assert_eq!(header.dtype, T::DTYPE, "the caller asks for the file's own type");
    let huge = || refused("its header announces more than can be addressed");
    let (len, bytes) = header.size().ok_or_else(huge)?;
    let full = |_| refused(format!("there is no memory for its {bytes} bytes"));
    let told = |e: io::Error| refused(e.to_string());
    let mut elements: Vec<T> = Vec::new();
    if known {
        elements.try_reserve_exact(len).map_err(full)?;
    }
    let mut read = 0;
    while elements.len() < len {
        let start = elements.len();
        let end = (start + PIECE / size_of::<T>()).min(len);
        elements.try_reserve(end - start).map_err(full)?;
        elements.resize(end, T::zeroed());
        let mut piece: &mut [u8] = bytemuck::cast_slice_mut(&mut elements[start..]);
        while !piece.is_empty() {
            match data.read(piece) {
                Ok(0) => check_length(bytes as u64, read)?,
                Ok(n) => (piece, read) = (&mut piece[n..], read + n as u64),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(told(e)),
            }
        }
        let piece = bytemuck::cast_slice_mut(&mut elements[start..]);
        native(piece, header.dtype, header.big_endian);
    }
    if data.read(&mut [0]).map_err(told)? != 0 {
        return Err(refused(format!(
            "the file is too long: its header announces {bytes} bytes of data, but more follow"
        )));
    }
    Ok(elements)
}

/// Turns elements of a file into those of this machine's byte order.
pub(crate) fn native(elements: &mut [u8], dtype: Dtype, big_endian: bool) {
    if big_endian != cfg!(target_endian = "big") {
        let parts = if dtype.is_complex() { 2 } else { 1 };
        elements.chunks_exact_mut(dtype.bytes() / parts).for_each(<[u8]>::reverse);
    }
}

/// Writes an array, whose last index runs fastest, as `numpy.save` does, in the byte order of this machine.
///
/// ```
/// use gemv_shard::npy::{Header, read, write};
///
/// let mut file = Vec::new();
/// write(&mut file, &[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
/// let mut rest = &file[..];
/// let (header, bytes) = Header::read(&mut rest)?;
/// assert_eq!((header.shape.as_slice(), bytes, file.len()), (&[2, 3][..], 128, 128 + 24));
/// assert_eq!(read::<f32>(&header, &mut rest, true)?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// # Ok::<(), gemv_shard::Error>(())
/// ```
///
/// # Errors
/// Those of the system.
pub fn write<T: Element + Pod>(
    file: &mut impl Write,
    shape: &[usize],
    elements: &[T],
) -> io::Result<()> {
    let kind = T::DTYPE.numpy_code();
    let order = if cfg!(target_endian = "big") { '>' } else { '<' };
    let axes = shape.iter().map(|len| format!("{len}, ")).collect::<String>();
    // A tuple of one has a comma, and one of more needs none at its end.
    let axes = axes.trim_end_matches(if shape.len() == 1 { " " } else { ", " });
    let mut header =
        format!("{{'descr': '{order}{kind}', 'fortran_order': False, 'shape': ({axes}), }}");
    // The data starts on 64 bytes; the line end belongs to the header.
    let (start, line_end) = (MAGIC.len() + 4, 1);
    let padded = (start + header.len() + line_end).next_multiple_of(64) - start;
    header.extend(std::iter::repeat_n(' ', padded - line_end - header.len()));
    header.push('\n');
    let mut text = [MAGIC, &[1, 0], &(padded as u16).to_le_bytes()].concat();
    text.extend(header.as_bytes());
    file.write_all(&text)?;
    file.write_all(bytemuck::cast_slice(elements))
}

/// Why an array of other axes is refused.
pub(crate) fn other_axes(header: &Header, asked: usize) -> String {
    let name = |axes: usize| match axes {
        1 => "a vector has 1".into(),
        2 => "a matrix has 2".into(),
        3 => "a batch of matrices has 3".into(),
        axes => format!("{axes} are asked"),
    };
    let count = header.shape.len();
    let axes = if count == 1 { "axis" } else { "axes" };
    format!("the array has {count} {axes}, but {}", name(asked))
}

/// Compares the bytes of data that a header announces with those that follow it.
///
/// # Errors
/// [`Error::File`] if they are not as many.
pub fn check_length(announced: u64, there: u64) -> Result<()> {
    let what = match there.cmp(&announced) {
        std::cmp::Ordering::Less => "truncated",
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Greater => "too long",
    };
    Err(refused(format!(
        "the file is {what}: its header announces {announced} bytes of data, but {there} follow"
    )))
}

/// The text of a file as an error shows it: its beginning, on one line, without what a terminal would obey.
///
/// ```
/// use gemv_shard::npy::shown;
/// assert_eq!(shown("'a'\n\x1b[2J"), "'a'\\n\\u{1b}[2J");
/// assert_eq!(shown(&"b".repeat(1000)).chars().count(), 201);
/// ```
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(SHOWN) {
        match c {
            '\'' | '"' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

pub(crate) fn refused(reason: impl Into<String>) -> Error {
    Error::File { reason: reason.into() }
}

fn parse_header(text: &str) -> Result<Header> {
    let bad = || refused(format!("its header is not understood: {}", shown(text.trim_end())));
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    let mut scan = Scan(text);
    scan.expect('{').ok_or_else(bad)?;
    while scan.expect('}').is_none() {
        let key = scan.string().ok_or_else(bad)?;
        scan.expect(':').ok_or_else(bad)?;
        match key {
            "descr" if scan.next_is('[') => {
                return Err(refused("the array holds records, not numbers"));
            }
            "descr" => descr = Some(scan.string().ok_or_else(bad)?),
            "fortran_order" => fortran = Some(scan.boolean().ok_or_else(bad)?),
            "shape" => shape = Some(scan.shape().ok_or_else(bad)?),
            _ => return Err(bad()),
        }
        if scan.expect(',').is_none() {
            scan.expect('}').ok_or_else(bad)?;
            break;
        }
    }
    let (Some(descr), Some(fortran), Some(shape), "") = (descr, fortran, shape, scan.0.trim())
    else {
        return Err(bad());
    };
    let (dtype, big_endian) = parse_descr(descr).ok_or_else(|| refused(not_multiplied(descr)))?;
    Ok(Header { dtype, big_endian, fortran, shape })
}

/// A type as NumPy reads it: a code, alone or behind a byte order, or a name (`numpy.dtype` of a text).
fn parse_descr(descr: &str) -> Option<(Dtype, bool)> {
    const NATIVE: bool = cfg!(target_endian = "big");
    let name = match descr {
        "half" => "float16",
        "single" => "float32",
        "double" | "float" => "float64",
        "csingle" => "complex64",
        "cdouble" | "complex" => "complex128",
        name => name,
    };
    if let Some(dtype) = Dtype::ALL.into_iter().find(|dtype| dtype.numpy_name() == name) {
        return Some((dtype, NATIVE));
    }
    let (code, big_endian) = match descr.split_at_checked(1)? {
        ("<", code) => (code, false),
        (">", code) => (code, true),
        ("=" | "|", code) => (code, NATIVE),
        _ => (descr, NATIVE),
    };
    let code = match code {
        "e" => "f2",
        "f" => "f4",
        "d" => "f8",
        "F" => "c8",
        "D" => "c16",
        code => code,
    };
    Some((Dtype::ALL.into_iter().find(|dtype| dtype.numpy_code() == code)?, big_endian))
}

/// Why an array of another type is refused, and what to do.
fn not_multiplied(descr: &str) -> String {
    let code = descr.trim_start_matches(['<', '>', '=', '|']);
    let multiplied = Dtype::ALL.map(Dtype::numpy_name).join(", ");
    // As in `uint8`.
    let unsigned = code.strip_prefix('u').unwrap_or(code);
    let holds = match (code, unsigned) {
        (
            "f16" | "g" | "longdouble" | "float128" | "c32" | "G" | "clongdouble" | "complex256",
            _,
        ) => "numbers of extended precision",
        ("b1" | "?" | "bool", _) => "truth values",
        ("O" | "object", _) => "Python objects",
        ("i1" | "i2" | "i4" | "i8" | "u1" | "u2" | "u4" | "u8", _) => "integers",
        ("b" | "B" | "h" | "H" | "i" | "I" | "l" | "L" | "q" | "Q" | "p" | "P", _) => "integers",
        (_, "byte" | "short" | "intc" | "long" | "longlong" | "intp") => "integers",
        (_, "int" | "int8" | "int16" | "int32" | "int64") => "integers",
        _ => {
            return format!(
                "the array's type is \"{}\", but {multiplied} are multiplied",
                shown(descr)
            );
        }
    };
    format!(
        "the array holds {holds} (type {descr:?}), but {multiplied} are multiplied: save a.astype(\"float64\")"
    )
}

/// The rest of a header's text.
struct Scan<'a>(&'a str);

impl<'a> Scan<'a> {
    fn next_is(&mut self, c: char) -> bool {
        self.0 = self.0.trim_start();
        self.0.starts_with(c)
    }

    /// Steps over this character, if it is the next.
    fn expect(&mut self, c: char) -> Option<()> {
        self.0 = self.0.trim_start().strip_prefix(c)?;
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        // Python 2 wrote u'..' for some texts.
        self.0 = self.0.trim_start();
        self.0 = self.0.strip_prefix(['u', 'U', 'r', 'R']).unwrap_or(self.0);
        let quote = if self.next_is('"') { '"' } else { '\'' };
        self.expect(quote)?;
        let (text, rest) = self.0.split_once(quote)?;
        self.0 = rest;
        Some(text)
    }

    fn boolean(&mut self) -> Option<bool> {
        self.0 = self.0.trim_start();
        for (name, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.0.strip_prefix(name) {
                self.0 = rest;
                return Some(value);
            }
        }
        None
    }

    fn shape(&mut self) -> Option<Vec<usize>> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while self.expect(')').is_none() {
            if shape.len() == MAX_AXES {
                return None;
            }
            self.0 = self.0.trim_start();
            let digits = self.0.find(|c: char| !c.is_ascii_digit())?;
            shape.push(self.0[..digits].parse().ok()?);
            self.0 = &self.0[digits..];
            // Python 2 wrote long integers so.
            self.0 = self.0.strip_prefix('L').unwrap_or(self.0);
            if self.expect(',').is_none() {
                self.expect(')')?;
                break;
            }
        }
        Some(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_as_they_are_written() {
        let h = |text| parse_header(text).unwrap();
        let f32 =
            Header { dtype: Dtype::F32, big_endian: false, fortran: false, shape: vec![3, 4] };
        assert_eq!(h("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n"), f32);
        assert_eq!(h("{'shape':(3L,4L),'fortran_order':False,\"descr\":\"<f4\"}\n"), f32);
        let c64 = Header { dtype: Dtype::C64, big_endian: true, fortran: true, shape: vec![] };
        assert_eq!(h("{'descr': '>c16', 'fortran_order': True, 'shape': (), }"), c64);
        assert_eq!(h("{'descr': '<V2', 'fortran_order': True, 'shape': (7,)}").dtype, Dtype::Bf16);
        let f32 = Header { shape: vec![1], ..f32 };
        assert_eq!(h("{u'descr': u'<f4', u'fortran_order': False, u'shape': (1L,), }"), f32);
    }

    /// What `numpy.dtype` makes of these texts (NumPy 2.4), on a little-endian machine.
    #[test]
    fn types_as_numpy_reads_them() {
        let native = cfg!(target_endian = "big");
        for (dtype, codes, names) in [
            (Dtype::F16, &["f2", "e"][..], &["half", "float16"][..]),
            (Dtype::F32, &["f4", "f"], &["single", "float32"]),
            (Dtype::F64, &["f8", "d"], &["double", "float", "float64"]),
            (Dtype::C32, &["c8", "F"], &["csingle", "complex64"]),
            (Dtype::C64, &["c16", "D"], &["cdouble", "complex", "complex128"]),
            (Dtype::Bf16, &["V2"], &["bfloat16"]),
        ] {
            for code in codes {
                for (order, big) in
                    [("", native), ("=", native), ("|", native), ("<", false), (">", true)]
                {
                    assert_eq!(
                        parse_descr(&format!("{order}{code}")),
                        Some((dtype, big)),
                        "{order}{code}"
                    );
                }
            }
            for name in names {
                assert_eq!(parse_descr(name), Some((dtype, native)), "{name}");
                assert_eq!(parse_descr(&format!("<{name}")), None, "NumPy refuses <{name}");
            }
        }
        for (descr, holds) in [
            ("<i8", "integers"),
            ("int64", "integers"),
            ("|u1", "integers"),
            ("|b1", "truth values"),
            ("bool", "truth values"),
            ("|O", "objects"),
            ("<f16", "extended"),
            ("longdouble", "extended"),
        ] {
            assert_eq!(parse_descr(descr), None, "{descr}");
            let why = not_multiplied(descr);
            assert!(why.contains(holds) && why.contains(descr) && why.contains("astype"), "{why}");
        }
        for descr in
            ["", "<", "<U3", "hello", "u3", "F4", " f4", "f4 ", "1f4", "Float32", "!f4", "\u{e9}f4"]
        {
            assert_eq!(parse_descr(descr), None, "{descr:?}");
            assert!(not_multiplied(descr).contains(&format!("type is \"{descr}\"")), "{descr:?}");
        }
    }

    /// As much of a file as a line of a terminal can show.
    #[test]
    fn errors_show_no_more_of_a_file_than_a_line() {
        let long = "\x1b[2J\n".repeat(8000);
        let of = |descr: &str, shape: &str| {
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape})}}")
        };
        for text in
            [long.clone(), of(&long, "1,"), of("<f4", &"0, ".repeat(9000)), of("<f4", &long)]
        {
            let e = parse_header(&text).unwrap_err().to_string();
            assert!(e.len() < 1500 && !e.contains(char::is_control), "{} bytes: {e:?}", e.len());
        }
        let axes = |count: usize| parse_header(&of("<f4", &"1, ".repeat(count)));
        assert!(axes(64).is_ok() && axes(65).is_err());
    }

    /// Whatever a byte of a header becomes, the answer is a header or a sentence.
    #[test]
    fn one_wrong_byte() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../gemv-cli/tests/npy/be_c16_a_fortran.npy");
        let file = std::fs::read(path).unwrap();
        let (header, bytes) = Header::read(&mut &file[..]).unwrap();
        assert_eq!((header.size(), bytes), (Some((12, 192)), 128));
        let mut refused = 0;
        for at in 0..bytes {
            for value in 0..=255 {
                let mut file = file.clone();
                file[at] = value;
                match Header::read(&mut &file[..]) {
                    Ok((header, _)) => drop(header.size()),
                    Err(e) => refused += usize::from(!e.to_string().is_empty()),
                }
            }
        }
        assert!(refused > bytes * 200, "{refused}");
    }

    #[test]
    fn headers_that_are_none() {
        let deep = "(".repeat(60_000);
        for (text, part) in [
            ("", "not understood"),
            ("{}", "not understood"),
            ("{'descr': '<f4', 'fortran_order': False}", "not understood"),
            ("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "not understood"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "not understood"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}", "not understood"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,", "not understood"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "not understood"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", "not understood"),
            (&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {deep}"), "not underst"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "not u"),
            ("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", "<i4"),
            ("{'descr': '', 'fortran_order': False, 'shape': (1,)}", "are multiplied"),
            ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "|O"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "records"),
        ] {
            let e = parse_header(text).unwrap_err().to_string();
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}
