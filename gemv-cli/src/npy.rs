//! NumPy's `.npy` files, formats 1.0 to 3.0: the header, and the data read once into memory of
//! its own type.
//!
//! Written here because no crate reads all the element types: `f2`, `f4`, `f8`, `c8`, `c16` of
//! either byte order, and bfloat16, which NumPy does not know. `numpy.save` of an `ml_dtypes`
//! array writes that as `<V2` (two bytes without a meaning), so every `V2` is taken for one, and
//! is written so.
//!
//! The header is the text of a Python dictionary. Only what NumPy writes there is understood: no
//! nesting, so no depth that a hostile file could choose.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bytemuck::Pod;
use gemv::{Dtype, Element};
use half::{bf16, f16};
use num_complex::Complex;

use crate::npz;

const MAGIC: &[u8] = b"\x93NUMPY";
/// NumPy's own limit for an untrusted header is 10,000.
const MAX_HEADER: usize = 1 << 16;
/// Elements are zeroed and read in pieces of this many bytes, which stay in the cache between
/// the two.
const PIECE: usize = 1 << 18;

/// An element type of a file.
pub(crate) trait Number: Element + Pod {
    /// The element with the bytes of each of its parts reversed.
    fn swapped(self) -> Self;
    /// The element as text that reads back to the same bits, unless it is NaN. A comma
    /// separates the parts of a complex number.
    fn text(self) -> String;
}

macro_rules! real {
    ($($t:ty, $show:expr;)*) => { $(
        impl Number for $t {
            fn swapped(self) -> Self {
                <$t>::from_bits(self.to_bits().swap_bytes())
            }
            fn text(self) -> String {
                format!("{:?}", $show(self))
            }
        }
    )* };
}
real! {
    f32, |v: f32| v;
    f64, |v: f64| v;
    f16, f16::to_f32;
    bf16, bf16::to_f32;
}

macro_rules! complex {
    ($($t:ty)*) => { $(
        impl Number for Complex<$t> {
            fn swapped(self) -> Self {
                Complex::new(self.re.swapped(), self.im.swapped())
            }
            fn text(self) -> String {
                format!("{:?},{:?}", self.re, self.im)
            }
        }
    )* };
}
complex!(f32 f64);

/// The content of a header.
#[derive(Debug, Clone, PartialEq)]
struct Header {
    dtype: Dtype,
    big_endian: bool,
    fortran: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Elements and bytes; `None` where they overflow. As in NumPy and ndarray, an axis of
    /// 0 entries makes the array empty, but does not make the other lengths legal.
    fn size(&self) -> Option<(usize, usize)> {
        let axes = self.shape.iter().filter(|&&d| d != 0);
        let filled = axes.copied().try_fold(self.dtype.bytes(), usize::checked_mul)?;
        isize::try_from(filled).ok()?;
        let bytes = if self.shape.contains(&0) { 0 } else { filled };
        Some((bytes / self.dtype.bytes(), bytes))
    }
}

/// A file whose header has been read and whose data follows. Its errors name it.
pub(crate) struct Npy {
    path: PathBuf,
    data: Box<dyn Read>,
    header: Header,
    len: usize,
}

impl Npy {
    /// Opens a file and reads its header: `-` is standard input, `a.npz:x` the member x of an
    /// archive. A file (not a pipe) must have the length that the header announces.
    pub(crate) fn open(path: &Path) -> Result<Npy> {
        Npy::open_unnamed(path).with_context(|| path.display().to_string())
    }

    fn open_unnamed(path: &Path) -> Result<Npy> {
        let (mut data, known) = source(path)?;
        let (header, header_bytes) = read_header(&mut data)?;
        let Some((len, bytes)) = header.size() else {
            bail!("its header announces a shape of {:?}, more than can be addressed", header.shape)
        };
        if let Some(all) = known {
            check_length(bytes as u64, all.saturating_sub(header_bytes as u64))?;
        }
        Ok(Npy { path: path.into(), data, header, len })
    }

    /// The element type.
    pub(crate) fn dtype(&self) -> Dtype {
        self.header.dtype
    }

    /// Whether the first index runs fastest.
    pub(crate) fn fortran(&self) -> bool {
        self.header.fortran
    }

    /// The file's name, as it was given.
    pub(crate) fn name(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// The number of entries along each axis.
    pub(crate) fn dim(&self) -> &[usize] {
        &self.header.shape
    }

    /// The elements, in the order of the file, in the byte order of this machine.
    ///
    /// # Panics
    /// If the type is not the file's.
    pub(crate) fn read<T: Number>(mut self) -> Result<Vec<T>> {
        assert_eq!(self.header.dtype, T::DTYPE, "the caller asks for the file's own type");
        self.read_unnamed().with_context(|| self.path.display().to_string())
    }

    fn read_unnamed<T: Number>(&mut self) -> Result<Vec<T>> {
        let mut data: Vec<T> = Vec::new();
        let bytes = self.len * size_of::<T>();
        data.try_reserve_exact(self.len)
            .with_context(|| format!("there is no memory for its {bytes} bytes"))?;
        let mut read = 0;
        while data.len() < self.len {
            let start = data.len();
            data.resize((start + PIECE / size_of::<T>()).min(self.len), T::zeroed());
            let mut piece: &mut [u8] = bytemuck::cast_slice_mut(&mut data[start..]);
            while !piece.is_empty() {
                match self.data.read(piece) {
                    Ok(0) => check_length(bytes as u64, read)?,
                    Ok(n) => {
                        piece = &mut piece[n..];
                        read += n as u64;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e.into()),
                }
            }
            if self.header.big_endian != cfg!(target_endian = "big") {
                data[start..].iter_mut().for_each(|v| *v = v.swapped());
            }
        }
        if self.data.read(&mut [0])? != 0 {
            bail!(
                "the file is too long: its header announces {bytes} bytes of data, but more follow"
            );
        }
        Ok(data)
    }
}

/// Opens what a name stands for. The number of bytes, where it is known before they are read.
fn source(path: &Path) -> Result<(Box<dyn Read>, Option<u64>)> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin()), None));
    }
    // A file of exactly this name comes first.
    let named = path.to_str().filter(|_| !path.exists()).and_then(|text| {
        let at = text.rfind(".npz:")? + ".npz".len();
        Some((&text[..at], &text[at + 1..]))
    });
    let mut file = File::open(named.map_or(path, |named| Path::new(named.0)))?;
    let meta = file.metadata()?;
    if meta.is_file() {
        let mut start = Vec::new();
        (&file).take(4).read_to_end(&mut start)?;
        file.rewind()?;
        if named.is_some() || start == b"PK\x03\x04" {
            let member = npz::open(file, named.map(|named| named.1))?;
            return Ok((member.data, Some(member.len)));
        }
    }
    Ok((Box::new(file), meta.is_file().then_some(meta.len())))
}

fn check_length(announced: u64, there: u64) -> Result<()> {
    ensure!(
        there >= announced,
        "the file is truncated: its header announces {announced} bytes of data, but {there} follow"
    );
    ensure!(
        there == announced,
        "the file is too long: its header announces {announced} bytes of data, but {there} follow"
    );
    Ok(())
}

/// The header, and its length in bytes.
fn read_header(file: &mut impl Read) -> Result<(Header, usize)> {
    let mut start = Vec::new();
    file.take(8).read_to_end(&mut start)?;
    ensure!(!start.is_empty(), "the file is empty");
    ensure!(!start.starts_with(b"PK\x03\x04"), "this is an archive (.npz): it has to be a file");
    ensure!(
        start.starts_with(MAGIC),
        "this is not a NumPy file: it does not begin with \\x93NUMPY"
    );
    const SHORT: &str = "the file is truncated: it ends within its header";
    let &[.., major, minor] = &start[..] else { bail!(SHORT) };
    ensure!(start.len() == 8, SHORT);
    let width = match (major, minor) {
        (1, 0) => 2,
        (2 | 3, 0) => 4,
        _ => bail!("the file has format {major}.{minor}, but only 1.0, 2.0 and 3.0 are known"),
    };
    let mut length = [0; 4];
    file.read_exact(&mut length[..width]).context(SHORT)?;
    let length = u32::from_le_bytes(length) as usize;
    ensure!(
        length <= MAX_HEADER,
        "its header of {length} bytes is longer than that of any array of numbers"
    );
    let mut text = vec![0; length];
    file.read_exact(&mut text).context(SHORT)?;
    // Only the field names of a record can be outside ASCII, and records are refused.
    let header = parse_header(&String::from_utf8_lossy(&text))?;
    Ok((header, 8 + width + length))
}

fn parse_header(text: &str) -> Result<Header> {
    let bad = || format!("its header is not understood: {}", text.trim_end());
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    let mut scan = Scan(text);
    scan.expect('{').with_context(bad)?;
    while scan.expect('}').is_none() {
        let key = scan.string().with_context(bad)?;
        scan.expect(':').with_context(bad)?;
        match key {
            "descr" if scan.next_is('[') => bail!("the array holds records, not numbers"),
            "descr" => descr = Some(scan.string().with_context(bad)?),
            "fortran_order" => fortran = Some(scan.boolean().with_context(bad)?),
            "shape" => shape = Some(scan.shape().with_context(bad)?),
            _ => bail!(bad()),
        }
        if scan.expect(',').is_none() {
            scan.expect('}').with_context(bad)?;
            break;
        }
    }
    ensure!(scan.0.trim().is_empty(), bad());
    let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else { bail!(bad()) };
    let (dtype, big_endian) = parse_descr(descr).with_context(|| {
        format!(
            "the array's type is {descr}, but only f2, f4, f8, c8, c16 and bfloat16 (V2) are \
             multiplied"
        )
    })?;
    Ok(Header { dtype, big_endian, fortran, shape })
}

/// A type as NumPy writes it: a byte order and a kind with its bytes.
fn parse_descr(descr: &str) -> Option<(Dtype, bool)> {
    if descr == "bfloat16" {
        return Some((Dtype::Bf16, cfg!(target_endian = "big")));
    }
    let mut kind = descr.chars();
    let big_endian = match kind.next()? {
        '<' | '|' => false,
        '>' => true,
        '=' => cfg!(target_endian = "big"),
        _ => return None,
    };
    let dtype = match kind.as_str() {
        "f2" => Dtype::F16,
        "f4" => Dtype::F32,
        "f8" => Dtype::F64,
        "c8" => Dtype::C32,
        "c16" => Dtype::C64,
        "V2" => Dtype::Bf16,
        _ => return None,
    };
    Some((dtype, big_endian))
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

/// Writes an array, whose last index runs fastest, as `numpy.save` does, in the byte order of this
/// machine; `-` is standard output.
pub(crate) fn write<T: Number>(path: &Path, shape: &[usize], y: &[T]) -> Result<()> {
    write_to(path, shape, y).with_context(|| path.display().to_string())
}

fn write_to<T: Number>(path: &Path, shape: &[usize], y: &[T]) -> io::Result<()> {
    let kind = match T::DTYPE {
        Dtype::F16 => "f2",
        Dtype::F32 => "f4",
        Dtype::F64 => "f8",
        Dtype::C32 => "c8",
        Dtype::C64 => "c16",
        Dtype::Bf16 => "V2",
    };
    let order = if cfg!(target_endian = "big") { '>' } else { '<' };
    let shape = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    // A tuple of one has a comma.
    let shape = if shape.contains(',') { shape } else { shape + "," };
    let mut header =
        format!("{{'descr': '{order}{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The data starts on 64 bytes; the line end belongs to the header.
    let (start, line_end) = (MAGIC.len() + 4, 1);
    let padded = (start + header.len() + line_end).next_multiple_of(64) - start;
    header.extend(std::iter::repeat_n(' ', padded - line_end - header.len()));
    header.push('\n');
    let mut file: Box<dyn Write> = match path == Path::new("-") {
        true => Box::new(io::stdout().lock()),
        false => Box::new(File::create(path)?),
    };
    let mut text = [MAGIC, &[1, 0], &(padded as u16).to_le_bytes()].concat();
    text.extend(header.as_bytes());
    file.write_all(&text)?;
    file.write_all(bytemuck::cast_slice(y))?;
    file.flush()
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
    }

    /// Whatever a byte of a header becomes, the answer is a header or a sentence.
    #[test]
    fn one_wrong_byte() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/npy/be_c16_a_fortran.npy");
        let file = std::fs::read(path).unwrap();
        let (header, bytes) = read_header(&mut &file[..]).unwrap();
        assert_eq!((header.size(), bytes), (Some((12, 192)), 128));
        let mut refused = 0;
        for at in 0..bytes {
            for value in 0..=255 {
                let mut file = file.clone();
                file[at] = value;
                match read_header(&mut &file[..]) {
                    Ok((header, _)) => drop(header.size()),
                    Err(e) => refused += usize::from(!format!("{e:#}").is_empty()),
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
            ("{'descr': '', 'fortran_order': False, 'shape': (1,)}", "only f2"),
            ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "|O"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "records"),
        ] {
            let e = format!("{:#}", parse_header(text).unwrap_err());
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}
