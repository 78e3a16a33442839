//! NumPy's `.npz` archives: zip files whose members are stored or deflated. One member is found by
//! the directory at the file's end, and read as a stream.

use std::collections::HashSet;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use anyhow::{Context, Result, bail, ensure};
use flate2::Crc;
use flate2::read::DeflateDecoder;
use gemv_shard::npy::shown;

/// A member that is open for reading.
pub struct Member {
    /// What it holds, unpacked while it is read; an error where it is damaged or has another length.
    pub data: Box<dyn Read>,
    /// Bytes of it, as they are read.
    pub len: u64,
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

/// The most bytes of a directory: of more members than any archive of arrays has.
const MOST_OF_DIRECTORY: u64 = 64 << 20;
/// Names that an error lists.
const LISTED: usize = 20;

/// Opens a member by its name, with or without `.npy`; without a name, the only one. Of members with one name it is
/// the last, as for NumPy: an archive is changed by appending to it.
pub fn open(mut file: impl Read + Seek + 'static, name: Option<&str>) -> Result<Member> {
    let mut entries = directory(&mut file)?;
    let mut later = HashSet::new();
    entries.reverse();
    entries.retain(|entry| later.insert(entry.name.clone()));
    entries.reverse();
    let names: Vec<&str> =
        entries.iter().map(|e| e.name.strip_suffix(".npy").unwrap_or(&e.name)).collect();
    let mut list: Vec<String> = names.iter().take(LISTED).map(|name| shown(name)).collect();
    list.extend(names.len().checked_sub(LISTED + 1).map(|rest| format!("and {} more", rest + 1)));
    let list = list.join(", ");
    let at = match name {
        _ if names.is_empty() => bail!("the archive is empty"),
        Some(name) => {
            let wanted = name.strip_suffix(".npy").unwrap_or(name);
            let exact = entries.iter().position(|e| e.name == name);
            let at = exact.or_else(|| names.iter().position(|n| *n == wanted));
            at.with_context(|| format!("the archive has no {name:?}: it has {list}"))?
        }
        None if names.len() == 1 => 0,
        None => bail!(
            "the archive has {list}: write one behind the file's name, as in a.npz:{}",
            shown(names[0])
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
        other => {
            let name = shown(&name);
            bail!("the archive's {name} is compressed by method {other}, not by deflate")
        }
    };
    let data = Box::new(Checked { data, crc: Crc::new(), want: crc, left: len });
    Ok(Member { data, len })
}

/// The entries of the directory at the end of the file.
fn directory(file: &mut (impl Read + Seek)) -> Result<Vec<Entry>> {
    const NONE: &str = "the archive is truncated: it has no directory at its end";
    let all = file.seek(SeekFrom::End(0))?;
    // A comment of up to 65,535 bytes may follow, a zip64 locator of 20 stand before.
    let tail = all.min(22 + 65_535 + 20);
    file.seek(SeekFrom::End(-(tail as i64)))?;
    let mut bytes = vec![0; tail as usize];
    file.read_exact(&mut bytes)?;
    // As long as a record without a comment.
    let mut records = bytes.windows(22);
    let end = records.rposition(|w| w.starts_with(b"PK\x05\x06")).context(NONE)?;
    let mut fields = Fields(&bytes[end + 10..]);
    let (mut count, mut size, mut start) =
        (fields.number(2)?, fields.number(4)?, fields.number(4)?);
    let locator = end.checked_sub(20).map(|at| &bytes[at..]);
    let locator = locator.filter(|locator| locator.starts_with(b"PK\x06\x07"));
    // So many members may be there without zip64, too.
    if start == u64::from(u32::MAX) || count == u64::from(u16::MAX) && locator.is_some() {
        let locator = locator.context(NONE)?;
        file.seek(SeekFrom::Start(Fields(&locator[8..]).number(8)?))?;
        let mut record = [0; 56];
        file.read_exact(&mut record).context(NONE)?;
        ensure!(record.starts_with(b"PK\x06\x06"), NONE);
        let mut fields = Fields(&record[32..]);
        (count, size, start) = (fields.number(8)?, fields.number(8)?, fields.number(8)?);
    }
    ensure!(start.checked_add(size).is_some_and(|end| end <= all), NONE);
    ensure!(
        size <= MOST_OF_DIRECTORY,
        "the archive's directory has {size} bytes, more than {MOST_OF_DIRECTORY}"
    );
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
        // Up to three bytes behind them are padding, as for NumPy.
        while extra.0.len() >= 4 {
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

/// Fails at the end of a member whose checksum or length is another.
struct Checked {
    data: Box<dyn Read>,
    crc: Crc,
    want: u32,
    left: u64,
}

impl Read for Checked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.data.read(into)?;
        self.crc.update(&into[..read]);
        let left = self.left.checked_sub(read as u64);
        self.left = left.ok_or_else(|| wrong("it is longer than the archive's directory says"))?;
        if read == 0 && !into.is_empty() {
            if self.left > 0 {
                return Err(wrong("it is shorter than the archive's directory says"));
            }
            if self.crc.sum() != self.want {
                return Err(wrong("the checksum is wrong"));
            }
        }
        Ok(read)
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A zip file of stored members, with the records of zip64 on request, as `numpy.savez` writes to a pipe.
    fn archive(members: &[(&str, &[u8])], zip64: bool) -> Vec<u8> {
        let (mut file, mut directory) = (Vec::new(), Vec::new());
        let small = |n: usize| if zip64 { [0xff; 4] } else { (n as u32).to_le_bytes() };
        for (name, data) in members {
            let offset = file.len();
            let mut crc = Crc::new();
            crc.update(data);
            let sizes = [small(data.len()), small(data.len())].concat();
            let common = [&[45, 0, 0, 0, 0, 0, 0, 0, 0, 0], &crc.sum().to_le_bytes()[..], &sizes];
            let common = [&common.concat()[..], &(name.len() as u16).to_le_bytes()].concat();
            let numbers = [data.len(), data.len(), offset].map(|n| (n as u64).to_le_bytes());
            let extra = match zip64 {
                true => [&[1, 0, 24, 0][..], numbers.as_flattened()].concat(),
                false => Vec::new(),
            };
            file.extend([b"PK\x03\x04", &common[..], &[0, 0], name.as_bytes(), data].concat());
            let rest = [&[extra.len() as u8][..], &[0; 11], &small(offset)].concat();
            let entry = [b"PK\x01\x02-\0", &common[..], &rest, name.as_bytes(), &extra];
            directory.extend(entry.concat());
        }
        let (start, count) = (file.len(), members.len());
        let [counted, size, first] =
            [count, directory.len(), start].map(|n| (n as u64).to_le_bytes());
        let record = file.len() + directory.len();
        file.extend(directory.iter());
        if zip64 {
            let head = [b"PK\x06\x06", &44u64.to_le_bytes()[..], &[45, 0, 45, 0], &[0; 8]].concat();
            file.extend([&head[..], &counted, &counted, &size, &first].concat());
            let at = (record as u64).to_le_bytes();
            file.extend([b"PK\x06\x07", &[0; 4][..], &at, &[1, 0, 0, 0]].concat());
        }
        let count = if zip64 { [0xff; 2] } else { (count as u16).to_le_bytes() };
        let end = [b"PK\x05\x06", &[0; 4][..], &count, &count, &small(directory.len())];
        file.extend([&end.concat()[..], &small(start), &[0, 0]].concat());
        file
    }

    /// The bytes of a member, as many as it announces.
    fn read(file: &[u8], name: Option<&str>) -> Result<Vec<u8>> {
        let Member { data, len } = open(Cursor::new(file.to_vec()), name)?;
        let mut bytes = Vec::new();
        data.take(1 << 20).read_to_end(&mut bytes)?;
        ensure!(bytes.len() as u64 == len, "{} of {len} bytes", bytes.len());
        Ok(bytes)
    }

    #[test]
    fn the_last_member_of_a_name_is_read() {
        for zip64 in [false, true] {
            let file = archive(&[("a.npy", b"old"), ("x.npy", b"x"), ("a.npy", b"newer")], zip64);
            assert_eq!(read(&file, Some("a")).unwrap(), b"newer");
            assert_eq!(read(&file, Some("x.npy")).unwrap(), b"x");
            assert_eq!(read(&file, None).unwrap_err().to_string().matches("a,").count(), 0);
            // Appended to, it has one array still.
            let file = archive(&[("a.npy", b"old"), ("a.npy", b"newer")], zip64);
            assert_eq!(read(&file, None).unwrap(), b"newer");
            // The name as it is comes before one that it would have with the ending.
            let file = archive(&[("a", b"plain"), ("a.npy", b"array")], zip64);
            assert_eq!(read(&file, Some("a")).unwrap(), b"plain");
            assert_eq!(read(&file, Some("a.npy")).unwrap(), b"array");
        }
    }

    #[test]
    fn a_comment_is_passed_over() {
        let mut file = archive(&[("a.npy", b"data")], false);
        let at = file.len() - 2;
        file[at..].copy_from_slice(&9u16.to_le_bytes());
        file.extend(b"PK\x05\x06 text");
        assert_eq!(read(&file, None).unwrap(), b"data");
    }

    #[test]
    fn archives_as_other_programs_write_them() {
        // Padding behind the extra fields, of one to three bytes.
        for padding in 1..4u8 {
            let mut file = archive(&[("a.npy", b"data")], false);
            let entry = file.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
            file[entry + 30] = padding;
            let end = entry + 46 + 5;
            file.splice(end..end, vec![0; padding.into()]);
            let size = file.len() - 10;
            file[size] += padding;
            assert_eq!(read(&file, None).unwrap(), b"data");
        }
        // As many members as 16 bits count.
        let names: Vec<String> = (0..65_535).map(|k| k.to_string()).collect();
        let members: Vec<(&str, &[u8])> = names.iter().map(|n| (&**n, &b"x"[..])).collect();
        assert_eq!(read(&archive(&members, false), Some("65534")).unwrap(), b"x");
    }

    /// What a member's name holds, and how many there are, is the archive's choice.
    #[test]
    fn names_are_shown_on_one_line() {
        let long = "\x1b[2J\n".repeat(50);
        let names: Vec<String> = (0..1000).map(|k| format!("{k}{long}")).collect();
        let members: Vec<(&str, &[u8])> = names.iter().map(|n| (&**n, &b"x"[..])).collect();
        let mut file = archive(&members, false);
        for name in [None, Some("a")] {
            let e = read(&file, name).unwrap_err().to_string();
            assert!(e.contains(", and 980 more") && !e.contains(char::is_control), "{e:?}");
            assert!(e.len() < 40_000, "{}", e.len());
        }
        let entry = file.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
        file[entry + 10] = 99;
        let e = read(&file, Some(&names[0])).unwrap_err().to_string();
        assert!(e.contains("by method 99") && !e.contains(char::is_control), "{e:?}");
        for (file, name) in [(archive(&[], false), None), (archive(&[], true), Some("a"))] {
            assert_eq!(read(&file, name).unwrap_err().to_string(), "the archive is empty");
        }
    }

    #[test]
    fn a_member_of_another_length_is_an_error() {
        for (len, is) in [(5, "shorter"), (3, "longer")] {
            let mut file = archive(&[("a.npy", b"data")], false);
            let entry = file.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
            file[entry + 24] = len;
            let mut data = open(Cursor::new(file), None).unwrap().data;
            let e = data.read_to_end(&mut Vec::new()).unwrap_err().to_string();
            assert_eq!(e, format!("it is {is} than the archive's directory says"));
        }
    }

    /// At each length and with each field changed, the answer is the member or a sentence.
    #[test]
    fn cut_and_changed_archives() {
        for zip64 in [false, true] {
            let whole = archive(&[("x.npy", b"some data")], zip64);
            assert_eq!(read(&whole, None).unwrap(), b"some data");
            for len in 0..whole.len() {
                assert!(read(&whole[..len], None).is_err(), "{len} bytes of {}", whole.len());
            }
            let mut refused = 0;
            for width in [1, 2, 4, 8] {
                for at in 0..=whole.len() - width {
                    for value in [0, 1, 0x7f, 0x80, 0xfe, 0xff] {
                        let mut file = whole.clone();
                        file[at..at + width].fill(value);
                        match read(&file, None) {
                            Ok(data) => assert_eq!(data, b"some data", "{at}: {value}"),
                            Err(e) => refused += usize::from(!e.to_string().is_empty()),
                        }
                    }
                }
            }
            assert!(refused > whole.len() * 6, "{refused}");
        }
        for file in [&b"PK\x03\x04PK\x05\x06"[..], b"PK\x05\x06", b"PK\x06\x07PK\x05\x06", b""] {
            assert!(read(file, None).is_err(), "{file:?}");
        }
    }
}
