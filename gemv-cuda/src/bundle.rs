//! The programs that travel with the crate, as compressed PTX: for machines without NVRTC.
//!
//! One file, which `cargo xtask ptx` writes. A program is found by the hash of its text, its defines and the
//! options of the compiler, so a kernel that has changed since finds nothing.
//!
//! Numbers are little-endian and of 32 bits, but for keys, which have 128:
//!
//! ```text
//! "gemv ptx" | version of NVRTC: major, minor | number of groups | number of programs
//! a group:   target (80 for sm_80) | bytes
//! a program: key | group | where its text begins and ends in the group; by key, then by group
//! the groups, one behind the other: each an lzip file of the packed texts (see recency.rs)
//! ```
//!
//! Texts of one group are alike, and are compressed together. A group is small enough to be unpacked for
//! one of its programs.

use std::io::Read;
use std::ops::Range;
use std::sync::OnceLock;

use gemv_gpu::{Program, digest};
use lzma_rust2::LzipReader;

use crate::driver::Image;
use crate::options::OPTIONS;
use crate::recency::{pack, unpack};

/// The compute capabilities that programs are compiled for, ascending. Each serves those up to the next.
pub(crate) const TARGETS: [u32; 2] = [80, 90];

/// The target that serves GPUs of this compute capability; `None` for those that are too old.
pub(crate) fn target_of(capability: u32) -> Option<u32> {
    TARGETS.into_iter().rfind(|target| *target <= capability)
}

const MAGIC: &[u8] = b"gemv ptx";

/// Bytes of packed texts from which a group is full.
const FULL: usize = 1 << 20;

/// Bytes of a group's texts that are read: more are in none that is not damaged.
const MOST: u64 = 16 << 20;

/// Compiled programs, by what they were compiled from.
///
/// ```
/// use gemv::{Dtype, unstable::Params};
/// use gemv::cuda::Bundle;
///
/// let bundle = Bundle::shipped().unwrap();
/// let row = gemv_gpu::kernel("row").unwrap();
/// let program = row.program(Dtype::F32, &"row threads=128 subwarp=16 rows=1 vec=1".parse().unwrap());
/// let ptx = bundle.find(&program, 86).unwrap().unwrap();
/// assert!(ptx.bytes().starts_with(b".version ") && ptx.bytes().ends_with(b"\0"));
/// assert!(bundle.find(&program, 75).is_none()); // too old a GPU
/// ```
#[derive(Debug)]
pub struct Bundle<'a> {
    compiler: (i32, i32),
    groups: Vec<Group<'a>>,
    /// By key, then by group.
    programs: Vec<Entry>,
}

#[derive(Debug)]
struct Group<'a> {
    target: u32,
    compressed: &'a [u8],
}

#[derive(Debug)]
struct Entry {
    key: u128,
    group: usize,
    text: Range<usize>,
}

/// What a bundle finds a program by: its text, its defines and the options of the compiler. Comments and white
/// space at the ends of lines do not count.
///
/// ```
/// use gemv::{Dtype, unstable::Params};
/// let row = gemv_gpu::kernel("row").unwrap();
/// let key = |dtype| gemv::cuda::bundle_key(&row.program(dtype, &Params::new("row")));
/// assert_ne!(key(Dtype::F32), key(Dtype::F64));
/// ```
pub fn bundle_key(program: &Program) -> u128 {
    let lines =
        program.source.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    let code: String =
        lines.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect();
    let mut texts = vec![&*code];
    for (name, value) in &program.defines {
        texts.extend([&**name, &**value]);
    }
    texts.push("options");
    texts.extend(OPTIONS);
    u128::from_str_radix(&digest(&texts)[..32], 16).expect("hexadecimal digits")
}

impl<'a> Bundle<'a> {
    /// The one that travels with the crate.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn shipped() -> Result<&'static Bundle<'static>, String> {
        static SHIPPED: OnceLock<Result<Bundle<'static>, String>> = OnceLock::new();
        let read = || Bundle::read(include_bytes!("../ptx/programs.bin"));
        SHIPPED.get_or_init(read).as_ref().map_err(Clone::clone)
    }

    /// Reads a bundle's list of programs; the programs are unpacked when they are asked for.
    ///
    /// ```
    /// use gemv::cuda::Bundle;
    /// assert_eq!(Bundle::read(b"anything").unwrap_err(), "the PTX that travels with gemv is damaged");
    /// ```
    ///
    /// # Errors
    /// A sentence, where it is none.
    pub fn read(bytes: &'a [u8]) -> Result<Bundle<'a>, String> {
        Bundle::parse(bytes).ok_or_else(damaged)
    }

    fn parse(bytes: &'a [u8]) -> Option<Bundle<'a>> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let compiler = (number(&mut rest)? as i32, number(&mut rest)? as i32);
        let (groups, programs) = (number(&mut rest)?, number(&mut rest)?);
        let mut sizes = Vec::new();
        for _ in 0..groups {
            sizes.push((number(&mut rest)? as u32, number(&mut rest)?));
        }
        let mut list: Vec<Entry> = Vec::new();
        for _ in 0..programs {
            let (key, behind) = rest.split_first_chunk()?;
            rest = behind;
            let (key, group) = (u128::from_le_bytes(*key), number(&mut rest)?);
            let text = number(&mut rest)?..number(&mut rest)?;
            let sorted = list.last().is_none_or(|last| (last.key, last.group) < (key, group));
            if !sorted || group >= sizes.len() {
                return None;
            }
            list.push(Entry { key, group, text });
        }
        let mut all = Vec::new();
        for (target, size) in sizes {
            let (compressed, behind) = rest.split_at_checked(size)?;
            rest = behind;
            all.push(Group { target, compressed });
        }
        rest.is_empty().then_some(Bundle { compiler, groups: all, programs: list })
    }

    /// The version of the NVRTC that has compiled the programs, such as (12, 0). A driver of this version of
    /// CUDA or a later one reads their PTX.
    pub fn compiler(&self) -> (i32, i32) {
        self.compiler
    }

    /// How many programs it has, each counted once for each target.
    pub fn len(&self) -> usize {
        self.programs.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Whether it has this program for this very target.
    pub fn holds(&self, program: &Program, target: u32) -> bool {
        self.of(bundle_key(program)).iter().any(|entry| self.groups[entry.group].target == target)
    }

    /// A program for a GPU of this compute capability (90 for 9.0): its PTX, with its final NUL. `None` where
    /// it does not have it.
    ///
    /// # Errors
    /// A sentence, where the bundle is damaged.
    pub fn find(&self, program: &Program, capability: u32) -> Option<Result<Image, String>> {
        let target = target_of(capability)?;
        let mut of_it = self.of(bundle_key(program)).iter();
        let entry = of_it.find(|entry| self.groups[entry.group].target == target)?;
        let text = || ptx(&self.groups[entry.group].unpacked()?, entry);
        Some(text().ok_or_else(damaged).map(|ptx| Image::new(ptx.into_bytes())))
    }

    /// Every program's PTX, with its final NUL, by its key and target. Each group is unpacked once.
    pub fn texts(&self) -> impl Iterator<Item = Result<((u128, u32), String), String>> {
        self.groups.iter().enumerate().flat_map(|(number, group)| {
            let texts = group.unpacked();
            let of_it = self.programs.iter().filter(move |entry| entry.group == number);
            of_it.map(move |entry| {
                let ptx = texts.as_ref().and_then(|texts| ptx(texts, entry)).ok_or_else(damaged)?;
                Ok(((entry.key, group.target), ptx))
            })
        })
    }

    /// The bundle of these programs, compiled by this version of NVRTC: targets, and programs that are alike
    /// with their PTX. `compress` makes an lzip file.
    ///
    /// # Errors
    /// Where a PTX cannot be packed.
    pub fn write(
        compiler: (i32, i32),
        alike: &[(u32, Vec<(&Program, String)>)],
        compress: impl Fn(&[u8]) -> Vec<u8>,
    ) -> Result<Vec<u8>, String> {
        let (mut programs, mut texts) = (Vec::new(), Vec::<(u32, String)>::new());
        for (target, of_it) in alike {
            texts.push((*target, String::new()));
            for (program, ptx) in of_it {
                if texts.last().is_some_and(|(_, text)| text.len() >= FULL) {
                    texts.push((*target, String::new()));
                }
                let group = texts.len() - 1;
                let text = &mut texts[group].1;
                let begin = text.len();
                text.push_str(&pack(ptx.trim_end_matches('\0'))?);
                programs.push(Entry { key: bundle_key(program), group, text: begin..text.len() });
            }
        }
        programs.sort_by_key(|entry| (entry.key, entry.group));
        let compressed: Vec<_> = texts.iter().map(|(_, text)| compress(text.as_bytes())).collect();

        let mut bytes = MAGIC.to_vec();
        let mut put = |number: usize| bytes.extend((number as u32).to_le_bytes());
        put(compiler.0 as usize);
        put(compiler.1 as usize);
        put(texts.len());
        put(programs.len());
        for ((target, _), group) in texts.iter().zip(&compressed) {
            put(*target as usize);
            put(group.len());
        }
        for Entry { key, group, text } in programs {
            bytes.extend(key.to_le_bytes());
            let numbers = [group, text.start, text.end];
            bytes.extend(numbers.into_iter().flat_map(|number| (number as u32).to_le_bytes()));
        }
        Ok([bytes, compressed.concat()].concat())
    }

    /// The entries of this key.
    fn of(&self, key: u128) -> &[Entry] {
        let first = self.programs.partition_point(|entry| entry.key < key);
        let len = self.programs[first..].partition_point(|entry| entry.key == key);
        &self.programs[first..first + len]
    }
}

impl Group<'_> {
    /// The packed texts; `None` where it is no such file.
    fn unpacked(&self) -> Option<String> {
        let mut text = String::new();
        LzipReader::new(self.compressed).take(MOST).read_to_string(&mut text).ok()?;
        Some(text)
    }
}

/// The PTX of one of a group's texts, with a NUL.
fn ptx(texts: &str, entry: &Entry) -> Option<String> {
    let mut ptx = unpack(texts.get(entry.text.clone())?).ok()?;
    ptx.push('\0');
    Some(ptx)
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    let (number, behind) = rest.split_first_chunk()?;
    *rest = behind;
    usize::try_from(u32::from_le_bytes(*number)).ok()
}

fn damaged() -> String {
    "the PTX that travels with gemv is damaged".into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PTX: [&str; 2] = [
        ".version 8.0\n.target sm_80\n.visible .entry f(\n)\n{\n.reg .b32 %r<2>;\nmov.u32 %r1, 1;\n}\n",
        ".version 8.0\n.target sm_90\n.visible .entry f(\n)\n{\nret;\n}\n",
    ];

    fn program(source: &str) -> Program {
        Program { source: source.into(), defines: vec![("T".into(), "float".into())] }
    }

    /// Of "both" for two targets, and of "old" for one.
    fn bundle() -> Vec<u8> {
        let (both, old) = (program("both"), program("old"));
        let [of_80, of_90] = PTX.map(String::from);
        let alike = [(80, vec![(&both, of_80.clone()), (&old, of_80)]), (90, vec![(&both, of_90)])];
        Bundle::write((12, 0), &alike, lzip).unwrap()
    }

    fn lzip(text: &[u8]) -> Vec<u8> {
        let mut writer = lzma_rust2::LzipWriter::new(Vec::new(), Default::default());
        std::io::Write::write_all(&mut writer, text).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn a_program_is_found_for_each_capability() {
        let bytes = bundle();
        let bundle = Bundle::read(&bytes).unwrap();
        assert_eq!((bundle.compiler(), bundle.len()), ((12, 0), 3));
        let found = |source: &str, capability| {
            let image = bundle.find(&program(source), capability)?.unwrap();
            Some(String::from_utf8(image.bytes().into()).unwrap())
        };
        for (capability, place) in [(80, 0), (86, 0), (87, 0), (89, 0), (90, 1), (100, 1), (120, 1)]
        {
            assert_eq!(
                found("both", capability),
                Some([PTX[place], "\0"].concat()),
                "{capability}"
            );
        }
        for (source, capability) in [("both", 75), ("both", 70), ("old", 90), ("other", 80)] {
            assert_eq!(found(source, capability), None, "{source} {capability}");
        }
        let texts: Vec<_> = bundle.texts().map(|text| text.unwrap().0).collect();
        let [both, old] = ["both", "old"].map(|source| bundle_key(&program(source)));
        assert_eq!(BTreeSet::from_iter(texts), BTreeSet::from([(both, 80), (old, 80), (both, 90)]));
        assert!(bundle.holds(&program("old"), 80) && !bundle.holds(&program("old"), 90));
    }

    #[test]
    fn another_text_is_another_program_and_a_comment_is_not() {
        let of = |source: &str| bundle_key(&program(source));
        assert_eq!(of("a = b;\nc"), of("a = b; // of b\n\n  c\n"));
        assert_ne!(of("a = b;"), of("a = c;"));
        assert_ne!(of("a b"), of("ab"));
        let defined = |name: &str, value: &str| {
            bundle_key(&Program { source: "a".into(), defines: vec![(name.into(), value.into())] })
        };
        assert_eq!(defined("T", "float"), of("a"));
        assert_ne!(defined("T", "double"), of("a"));
        assert_ne!(defined("Tf", "loat"), of("a"));
    }

    /// Cut anywhere, or with any one byte of another value, it is an error or tells of it when read.
    #[test]
    fn damage_is_an_error() {
        let whole = bundle();
        let outcome = |bytes: &[u8]| -> Result<BTreeSet<String>, String> {
            Bundle::read(bytes)?.texts().map(|text| Ok(text?.1)).collect()
        };
        let texts = outcome(&whole).unwrap();
        for len in 0..whole.len() {
            assert_eq!(outcome(&whole[..len]).unwrap_err(), damaged(), "{len} bytes");
        }
        assert_eq!(outcome(&[&*whole, b"x"].concat()).unwrap_err(), damaged());
        let list = MAGIC.len() + 16 + 2 * 8 + 3 * 28;
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x55;
            match outcome(&bytes) {
                Err(why) => assert_eq!(why, damaged()),
                // Keys, versions and targets may have any value. The texts are under a checksum.
                Ok(other) => assert!(at < list || other == texts, "byte {at}"),
            }
        }
    }
}
