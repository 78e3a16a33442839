//! The arguments of `gemv tune`.

use std::path::PathBuf;

use gemv::Dtype;
use gemv::unstable::Layout;

use crate::parse::{parse_bytes, parse_dtype, parse_layout, parse_minutes};

/// Measure which parameters are best on a device, and write a table of them.
///
/// A time counts only if the result has the right bits. Ctrl-C keeps what was measured; --resume
/// goes on from there. Nothing changes on this machine without --install.
#[derive(clap::Args)]
pub struct Args {
    /// The device, such as cpu or cuda:0 [default: the one that products of host arrays go to].
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Element types by NumPy's names, such as bfloat16 and complex128, or short: f32, f64, f16, bf16, c32, c64.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "float32,float64",
          value_parser = parse_dtype)]
    pub(crate) dtype: Vec<Dtype>,
    /// Layouts.
    #[arg(long, value_name = "LAYOUTS", value_delimiter = ',', default_value = "row,col",
          value_parser = parse_layout)]
    pub(crate) layout: Vec<Layout>,
    /// Numbers of right-hand sides, such as 2,4,8,16,32, one of each class: 2, 3 to 4, 5 to 8, 9 to 16,
    /// 17 and more. What is measured of one is the table's row for its class (rhs=5..8 batch=1). Several
    /// right-hand sides have a mesh of half as many sizes. 1 is for products with one vector; an
    /// installed table keeps its rows for them where 1 is not asked for.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    pub(crate) rhs: Vec<usize>,
    /// Sizes of the mesh, for rows and for columns, evenly spaced on a logarithmic scale [default:
    /// 24; 20 for cpu; 12 for OpenCL on the host's own processor].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(2..=256))]
    pub(crate) mesh: Option<u16>,
    /// The smallest size of the mesh.
    #[arg(long, value_name = "ROWS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) from: u32,
    /// The largest size of the mesh.
    #[arg(long, value_name = "ROWS", default_value_t = 1 << 22)]
    pub(crate) to: u32,
    /// The largest matrix, also of right-hand sides or of results, in bytes; k, M and G stand for powers
    /// of 1024.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_bytes)]
    pub(crate) max_bytes: u64,
    /// Bytes to read before an operand comes again: several times the last cache.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_bytes)]
    pub(crate) cold_bytes: u64,
    /// Measure with operands in the caches, where they fit.
    #[arg(long)]
    pub(crate) warm: bool,
    /// Stop measuring after this long. The mesh is visited coarse to fine, and the table is
    /// made of what was measured.
    #[arg(long, value_name = "MINUTES", value_parser = parse_minutes)]
    pub(crate) minutes: Option<f64>,
    /// Held-out shapes for each type, layout, class of alignment and of right-hand sides. They are not on the
    /// mesh; the table's choices are compared there with all candidates.
    #[arg(long, value_name = "COUNT", default_value_t = 24)]
    pub(crate) holdout: usize,
    /// What the table starts from: the present rows, which are changed only where the
    /// measurements differ by more than noise, or nothing. Rows that end in .. are made anew.
    #[arg(long, value_enum, default_value_t = Start::Present)]
    pub(crate) start: Start,
    /// Most rows of the table for a type and a layout, over all classes of alignment and of right-hand
    /// sides.
    #[arg(long, value_name = "COUNT", default_value = "200",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rows: usize,
    /// The directory for the table and the raw data [default: gemv-tune-DEVICE].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Go on from the raw data in the directory.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Put the table into this user's directory of tables. Rows of an installed table for
    /// other types, layouts and numbers of right-hand sides are kept, as are the present rows of a class in which no
    /// held-out shape was measured. A table that is worse than the present one by more than
    /// 2 % is refused.
    #[arg(long)]
    pub(crate) install: bool,
    /// Measure nothing. Write the fingerprints of the device's kernels into this table, for
    /// the kernels that its rows name: that it was tuned with them.
    #[arg(long, value_name = "TABLE", conflicts_with_all = ["install", "resume"])]
    pub(crate) stamp: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Start {
    Present,
    Nothing,
}
