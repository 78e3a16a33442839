//! NumPy's `.npz` archives: zip files whose members are stored or deflated. One member is found by
//! the directory at the file's end, and read as a stream.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use anyhow::{Context, Result, bail, ensure};
use flate2::Crc;
use flate2::read::DeflateDecoder;

/// A member that is open for reading.
pub(crate) struct Member {
    pub(crate) data: Box<dyn Read>,
    /// Bytes of it, as they are read.
    pub(crate) len: u64,
}

/// Where a member lies.
struct Entry {
    name: String,
    method: u16,
    crc: u32,
    packed: u64,
    len: u64,
    /// Of its own header.
    offset: u64,
}

/// Little-endian numbers of a header.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count).context("its directory is truncated")?;
        self.0 = tail;
        Ok(head)
    }

    fn number(&mut self, bytes: usize) -> Result<u64> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)))
    }
}

/// Opens a member by its name, with or without `.npy`; without a name, the only one.
pub(crate) fn open(mut file: File, name: Option<&str>) -> Result<Member> {
    let mut entries = directory(&mut file)?;
    let names: Vec<&str> =
        entries.iter().map(|e| e.name.strip_suffix(".npy").unwrap_or(&e.name)).collect();
    let list = names.join(", ");
    let at = match name {
        Some(name) => {
            let wanted = name.strip_suffix(".npy").unwrap_or(name);
            let at = names.iter().position(|n| *n == wanted);
            at.with_context(|| format!("the archive has no {name:?}: it has {list}"))?
        }
        None if names.len() == 1 => 0,
        None if names.is_empty() => bail!("the archive is empty"),
        None => bail!(
            "the archive has {list}: write one behind the file's name, as in a.npz:{}",
            names[0]
        ),
    };
    let Entry { method, crc, packed, len, offset, name } = entries.swap_remove(at);
    // The member's own header may have other extra fields than the directory.
    let mut header = [0; 30];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut header).context("the archive is truncated")?;
    ensure!(header.starts_with(b"PK\x03\x04"), "the archive's directory is wrong");
    let mut rest = Fields(&header[26..]);
    let skip = rest.number(2)? + rest.number(2)?;
    file.seek(SeekFrom::Current(skip as i64))?;
    let packed = BufReader::new(file).take(packed);
    let data: Box<dyn Read> = match method {
        0 => Box::new(packed),
        8 => Box::new(DeflateDecoder::new(packed)),
        other => bail!("the archive's {name} is compressed by method {other}, not by deflate"),
    };
    let data = Box::new(Checked { data, crc: Crc::new(), want: crc });
    Ok(Member { data, len })
}

/// The entries of the directory at the end of the file.
fn directory(file: &mut File) -> Result<Vec<Entry>> {
    const NONE: &str = "the archive is truncated: it has no directory at its end";
    let all = file.seek(SeekFrom::End(0))?;
    // A comment of up to 65,535 bytes may follow, a zip64 locator of 20 stand before.
    let tail = all.min(22 + 65_535 + 20);
    file.seek(SeekFrom::End(-(tail as i64)))?;
    let mut bytes = vec![0; tail as usize];
    file.read_exact(&mut bytes)?;
    let end = bytes.windows(4).rposition(|w| w == b"PK\x05\x06").context(NONE)?;
    let mut fields = Fields(&bytes[end + 10..]);
    let (mut count, mut size, mut start) =
        (fields.number(2)?, fields.number(4)?, fields.number(4)?);
    if start == u64::from(u32::MAX) || count == u64::from(u16::MAX) {
        let locator = end.checked_sub(20).map(|at| &bytes[at..]).context(NONE)?;
        ensure!(locator.starts_with(b"PK\x06\x07"), NONE);
        file.seek(SeekFrom::Start(Fields(&locator[8..]).number(8)?))?;
        let mut record = [0; 56];
        file.read_exact(&mut record).context(NONE)?;
        ensure!(record.starts_with(b"PK\x06\x06"), NONE);
        let mut fields = Fields(&record[32..]);
        (count, size, start) = (fields.number(8)?, fields.number(8)?, fields.number(8)?);
    }
    ensure!(start.checked_add(size).is_some_and(|end| end <= all), NONE);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = vec![0; usize::try_from(size)?];
    file.read_exact(&mut bytes)?;
    let mut fields = Fields(&bytes);
    let mut entries = Vec::new();
    for _ in 0..count {
        ensure!(fields.take(4)? == b"PK\x01\x02", "the archive's directory is wrong");
        fields.take(6)?;
        let method = fields.number(2)? as u16;
        fields.take(4)?;
        let crc = fields.number(4)? as u32;
        let (mut packed, mut len) = (fields.number(4)?, fields.number(4)?);
        let lengths = [fields.number(2)?, fields.number(2)?, fields.number(2)?];
        fields.take(8)?;
        let mut offset = fields.number(4)?;
        let name = String::from_utf8_lossy(fields.take(lengths[0] as usize)?).into_owned();
        let mut extra = Fields(fields.take(lengths[1] as usize)?);
        fields.take(lengths[2] as usize)?;
        while !extra.0.is_empty() {
            let (id, size) = (extra.number(2)?, extra.number(2)?);
            let mut large = Fields(extra.take(size as usize)?);
            // Zip64: those that do not fit 32 bits, in this order.
            for value in [&mut len, &mut packed, &mut offset] {
                if id == 1 && *value == u64::from(u32::MAX) {
                    *value = large.number(8)?;
                }
            }
        }
        entries.push(Entry { name, method, crc, packed, len, offset });
    }
    Ok(entries)
}

/// Fails at the end of a member whose checksum is another.
struct Checked {
    data: Box<dyn Read>,
    crc: Crc,
    want: u32,
}

impl Read for Checked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.data.read(into)?;
        self.crc.update(&into[..read]);
        if read == 0 && !into.is_empty() && self.crc.sum() != self.want {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum is wrong"));
        }
        Ok(read)
    }
}
