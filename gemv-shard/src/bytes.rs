//! Partial sums as plain bytes.

use std::ops::Range;

use gemv_core::Dtype;
use gemv_core::order::LANES;

use crate::element::SumElement;
use crate::memory::reserve;
use crate::partial::{Cut, Partial};
use crate::{Error, Result, product};

const MAGIC: [u8; 8] = *b"gemvsums";
/// Of the bytes.
const FORMAT: u16 = 1;
/// Of the order of additions.
const ORDER: u16 = 1;
/// Bytes before the runs.
const HEADER: usize = 40;
/// Bytes of a run.
const RUN: usize = 16;

const TYPES: [(u8, Dtype); 4] =
    [(1, Dtype::F32), (2, Dtype::F64), (3, Dtype::C32), (4, Dtype::C64)];

/// The type of the sums in these bytes: what a program asks that receives parts of several types.
///
/// ```
/// use gemv::{Dtype, device};
/// use gemv_shard::{Partial, dtype_of_bytes};
/// use ndarray::array;
///
/// let sums = Partial::new(&device("reference")?, &array![[2.0]], &[3.0], 0, 1)?;
/// assert_eq!(dtype_of_bytes(&sums.to_bytes()?)?, Dtype::F64);
/// assert!(dtype_of_bytes(b"PK\x03\x04").is_err());
/// # Ok::<(), gemv_shard::Error>(())
/// ```
///
/// # Errors
/// [`Error::Bytes`] if they are not of partial sums, or of another version. What follows the header is not
/// looked at.
pub fn dtype_of_bytes(bytes: &[u8]) -> Result<Dtype> {
    let refused = |reason: String| Error::Bytes { reason };
    if !bytes.starts_with(&MAGIC) {
        return Err(refused("they do not begin with \"gemvsums\"".into()));
    }
    let mut header = Reader(&bytes[MAGIC.len()..]);
    for (what, known) in [("format", FORMAT), ("order of additions", ORDER)] {
        match header.u16()? {
            version if version == known => {}
            version => {
                return Err(refused(format!(
                    "their {what} has version {version}, but only {known} is known"
                )));
            }
        }
    }
    let code = header.bytes(1)?[0];
    let found = TYPES.iter().find(|(of, _)| *of == code);
    found.map(|(_, dtype)| *dtype).ok_or_else(|| refused(format!("there is no type {code}")))
}

impl<S: SumElement> Partial<S> {
    /// The bytes to be sent or stored; [`from_bytes`](Self::from_bytes) reads them on any machine.
    ///
    /// All numbers are little-endian, without a sign unless they are sums:
    ///
    /// | at | bytes | |
    /// |---|---|---|
    /// | 0 | 8 | `gemvsums` in ASCII |
    /// | 8 | 2 | version of this format: 1 |
    /// | 10 | 2 | version of the order of additions: 1 |
    /// | 12 | 1 | type of the sums: 1 f32, 2 f64, 3 a pair of f32, 4 a pair of f64 |
    /// | 13 | 1 | 0: a unit is a segment; 1, 2, 4, .. 64: a unit is one of so many processes ([reduced](Self::reduce)) |
    /// | 14 | 2 | 0 |
    /// | 16 | 8 | m, the rows |
    /// | 24 | 8 | n, the columns of the whole matrix |
    /// | 32 | 8 | r, the number of runs of units |
    /// | 40 | 16 r | each run: its first unit, and one more than its last |
    /// | 40 + 16 r | | the sums: unit by unit; of a segment, m sums, one for each row; of a process, m sums for each 65,536 columns |
    ///
    /// Segment s has columns 256 s to 256 s + 255. Runs ascend, none is empty, and there is a unit between any
    /// two. Sums are in the format of IEEE 754, pairs the real part first. Nothing follows them. There is no
    /// checksum: what carries the bytes has one.
    ///
    /// # Errors
    /// [`Error::Product`] without memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let size = S::DTYPE.bytes();
        let mut bytes = Vec::new();
        reserve(&mut bytes, HEADER + RUN * self.held.len() + size * self.sums.len())?;
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(ORDER.to_le_bytes());
        bytes.extend(TYPES.iter().filter(|(_, dtype)| *dtype == S::DTYPE).map(|(code, _)| *code));
        bytes.push(match self.cut {
            Cut::Segments => 0,
            Cut::Lanes(processes) => processes as u8,
        });
        bytes.extend([0; 2]);
        for number in [self.rows, self.columns, self.held.len()] {
            bytes.extend((number as u64).to_le_bytes());
        }
        for unit in self.held.iter().flat_map(|run| [run.start, run.end]) {
            bytes.extend((unit as u64).to_le_bytes());
        }
        if cfg!(target_endian = "little") {
            bytes.extend_from_slice(bytemuck::cast_slice(&self.sums));
        } else {
            self.sums.iter().for_each(|sum| sum.write(&mut bytes));
        }
        Ok(bytes)
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote, in a program of any language.
    ///
    /// Everything is checked, so that bytes from anywhere give partial sums or a sentence.
    ///
    /// ```
    /// use gemv::device;
    /// use gemv_shard::Partial;
    /// use ndarray::array;
    ///
    /// let sums = Partial::new(&device("reference")?, &array![[2.0f32]], &[3.0f32], 0, 1)?;
    /// let bytes = sums.to_bytes()?;
    /// assert_eq!(bytes[56..], 6.0f32.to_le_bytes());
    /// assert_eq!(Partial::from_bytes(&bytes)?, sums);
    /// let e = Partial::<f32>::from_bytes(&bytes[..58]).unwrap_err();
    /// assert!(e.to_string().ends_with("they have 58 bytes, where their header announces 60"));
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Bytes`] if they are not such bytes, are too short or too long, or have another version, order
    /// of additions or type.
    pub fn from_bytes(bytes: &[u8]) -> Result<Partial<S>> {
        let refused = |reason: String| Err(Error::Bytes { reason });
        let dtype = dtype_of_bytes(bytes)?;
        if dtype != S::DTYPE {
            return refused(format!("they hold sums of {dtype}, where {} is asked", S::DTYPE));
        }
        let mut reader = Reader(&bytes[13..]);
        let cut = match reader.bytes(1)?[0] {
            0 => Cut::Segments,
            of if of.is_power_of_two() && usize::from(of) <= LANES => Cut::Lanes(of.into()),
            of => return refused(format!("there is no form {of}")),
        };
        if reader.u16()? != 0 {
            return refused("bytes 14 and 15 are not 0".into());
        }
        let (rows, columns, runs) = (reader.size()?, reader.size()?, reader.size()?);
        // Before memory is allocated for them.
        if runs > reader.0.len() / RUN {
            return refused(format!("they end within their {runs} runs"));
        }
        let mut partial = Partial { rows, columns, cut, held: Vec::new(), sums: Vec::new() };
        if matches!(cut, Cut::Lanes(_)) && partial.segments() < 2 {
            return refused(format!("sums of {columns} columns cannot be reduced"));
        }
        let (mut after, mut units) = (None, 0);
        reserve(&mut partial.held, runs)?;
        for _ in 0..runs {
            let run = Range { start: reader.size()?, end: reader.size()? };
            let apart = after.is_none_or(|after| run.start > after);
            if run.is_empty() || !apart || run.end > partial.units() {
                return refused(format!("{} to {} is no run of units here", run.start, run.end));
            }
            // No overflow: they are below the number of all units.
            units += run.len();
            after = Some(run.end);
            partial.held.push(run);
        }
        let count = [partial.width(), units, size_of::<S>()]
            .into_iter()
            .try_fold(rows, usize::checked_mul)
            .filter(|&needed| needed == reader.0.len());
        if count.is_none() {
            let needed = [partial.width(), units, size_of::<S>()].map(|n| n as u128);
            let needed = needed.iter().try_fold(rows as u128, |all, n| all.checked_mul(*n));
            let needed = needed.and_then(|n| n.checked_add((bytes.len() - reader.0.len()) as u128));
            let needed = needed.map_or("more than any machine has".into(), |n| n.to_string());
            let has = bytes.len();
            return refused(format!(
                "they have {has} bytes, where their header announces {needed}"
            ));
        }
        partial.sums = product::zeros(reader.0.len() / size_of::<S>(), 1)?;
        if cfg!(target_endian = "little") {
            bytemuck::cast_slice_mut(&mut partial.sums).copy_from_slice(reader.0);
        } else {
            let each = reader.0.chunks_exact(size_of::<S>());
            partial.sums.iter_mut().zip(each).for_each(|(sum, bytes)| *sum = S::read(bytes));
        }
        Ok(partial)
    }
}

/// What is left of the bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let short = || Error::Bytes { reason: "they end within their header".into() };
        let (bytes, rest) = self.0.split_at_checked(count).ok_or_else(short)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(self.bytes(2)?.iter().rev().fold(0, |number, &byte| number << 8 | u16::from(byte)))
    }

    fn size(&mut self) -> Result<usize> {
        let number =
            self.bytes(8)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        usize::try_from(number).map_err(|_| Error::Bytes {
            reason: format!("{number} is more than this machine can address"),
        })
    }
}
