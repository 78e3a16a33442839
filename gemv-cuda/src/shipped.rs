//! Which programs travel with the crate: all that its tables name, and what a device launches beside them.

use std::collections::{BTreeSet, HashMap, HashSet};

use gemv_core::order::SEGMENT;
use gemv_core::table::Row;
use gemv_core::{BuiltinTable, Desc, Dtype, Layout, Params, Step, Table};
use gemv_gpu::{
    Caps, ELEMENTWISE, Kernel, Language, Program, VECTOR, chain_launch, elementwise_launch,
    elementwise_params, elementwise_steps, read_params, vector_launch, vector_params,
};

use crate::backend::cluster;
use crate::bundle::{TARGETS, target_of};
use crate::candidates;
use crate::kernels::kernel;
use crate::kernels::mma::TILES;
use crate::kernels::row_block_cyclic::{self, PROCESSES};
use crate::tables;

/// A program that travels with the crate as PTX.
#[derive(Debug, Clone)]
pub struct Shipped {
    /// What it is a program of.
    pub kernel: &'static Kernel,
    /// The matrix' and the vectors' type.
    pub types: (Dtype, Dtype),
    /// The first parameters that lead to it.
    pub params: Params,
    /// The compute capability that its PTX is for, such as 80; later ones run it too.
    pub target: u32,
    /// The entry points that plans launch.
    pub entries: BTreeSet<&'static str>,
}

impl Shipped {
    /// What is compiled.
    pub fn program(&self) -> Program {
        self.kernel.mixed_program(self.types, &self.params)
    }
}

/// Every program that travels with the crate, once for each target; those of a kernel and its types follow
/// each other. The bundle has these and no others.
///
/// ```
/// let all = gemv::cuda::shipped();
/// assert!(all.iter().any(|shipped| (shipped.kernel.name, shipped.target) == ("vector", 80)));
/// ```
pub fn shipped() -> Vec<Shipped> {
    TARGETS.into_iter().flat_map(List::of).collect()
}

/// The programs for a target.
struct List {
    target: u32,
    caps: Caps,
    all: Vec<Shipped>,
    places: HashMap<Apart, usize>,
}

/// What tells programs apart: the kernel, the types, and the values of compiled arguments.
type Apart = (&'static str, (Dtype, Dtype), Vec<u32>);

impl List {
    fn of(target: u32) -> Vec<Shipped> {
        let (all, places) = Default::default();
        let mut list = List { target, caps: caps(target), all, places };
        for of in tables::ALL {
            if of.capability.is_none_or(|capability| target_of(capability) == Some(target)) {
                list.rows(&of.table);
            }
        }
        let steps = Step::PLAIN.map(|step| vector_launch(step, [1; 3], &list.caps).entry);
        let steps: Vec<_> = steps.into_iter().chain([chain_launch(1, 0).entry]).collect();
        for dtype in Dtype::ALL {
            list.add(&VECTOR, (dtype, dtype), vector_params(&list.caps), &steps);
            let steps = elementwise_steps(dtype);
            let steps: Vec<_> =
                steps.map(|step| elementwise_launch(step, [1; 3], &list.caps).entry).collect();
            let params = elementwise_params(&list.caps);
            list.add(&ELEMENTWISE, (dtype, dtype), params, &steps);
        }
        // Of the self-test, and of the bandwidth that `gemv bench` compares with.
        let read = read_params(&list.caps).into_iter().map(|params| {
            let kernel = kernel(params.kernel().as_str()).expect("a shared kernel");
            (kernel, Dtype::F32, params)
        });
        for (kernel, dtype, params) in read.chain([(&TILES, Dtype::F64, Params::new(TILES.name))]) {
            list.planned(kernel, params, Desc::of(dtype, Layout::Row, (64, 64), 64));
        }
        list.cyclic();
        list.all.sort_by_key(|shipped| (shipped.kernel.name, shipped.types));
        list.all
    }

    /// What the rows of a table name: for a matrix and vectors of one type, and for wider vectors.
    fn rows(&mut self, table: &BuiltinTable) {
        let table = Table::parse(table.name, table.text).expect("a table that a test has read");
        for row in table.rows {
            let kernel = kernel(row.params.kernel().as_str()).expect("a row's kernel");
            if row.partial {
                self.parts(kernel, &row);
                continue;
            }
            for desc in row.examples() {
                let wider = Dtype::MIXED.into_iter().filter(|types| types.0 == desc.dtype);
                for (_, vectors) in std::iter::once((desc.dtype, desc.dtype)).chain(wider) {
                    let desc = Desc { vectors, ..desc };
                    if kernel.fits(&desc, &row.params, &self.caps).is_ok() {
                        self.planned(kernel, row.params, desc);
                    }
                }
            }
        }
    }

    /// What a row that ends in `..` stands for, at every size in and around its ranges at which a kernel's candidates change.
    fn parts(&mut self, kernel: &'static Kernel, row: &Row) {
        let dtype = row.dtype.expect("rows in parts are for one type");
        let layout = row.layout.expect("and for one layout");
        let (rhs, batch) = (row.rhs.map_or(1, |c| c.0), row.batch.map_or(1, |c| c.0));
        let wider = Dtype::MIXED.into_iter().filter(|types| types.0 == dtype);
        let types: Vec<_> = std::iter::once((dtype, dtype)).chain(wider).collect();
        let mut known = HashSet::new();
        let least = dtype.bytes().ilog2().min(4) as u8;
        for (m, n) in
            sizes(around(row.m), 0).flat_map(|m| sizes(around(row.n), 64).map(move |n| (m, n)))
        {
            for align in (row.align.low.max(least)..=row.align.high.max(least)).filter(|a| *a <= 4)
            {
                for &(_, vectors) in &types {
                    let desc = Desc::of(dtype, layout, (m, n), align);
                    let desc = Desc { vectors, rhs, batch, ..desc };
                    let all = candidates::of(kernel, &desc, &self.caps);
                    if let Some(params) = row.choice(&all)
                        && known.insert((params, vectors))
                    {
                        self.planned(kernel, params, desc);
                    }
                }
            }
        }
    }

    /// Of cyclic columns, for each number of processes and of segments.
    fn cyclic(&mut self) {
        // The types of sums.
        let types = [Dtype::F32, Dtype::F64].map(|of| (of, of)).into_iter().chain(Dtype::MIXED);
        for (dtype, vectors) in types {
            // Of a process of two, whole super-segments have the most segments.
            let all = (1..=SEGMENT / 2).chain([SEGMENT]);
            let all = all.flat_map(|segments| PROCESSES.map(|processes| (processes, segments)));
            for (processes, segments) in all {
                let one = Desc::of(dtype, Layout::Row, (1 << 12, SEGMENT * segments), 6);
                let desc = Desc { vectors, ..one };
                if let Some(params) = row_block_cyclic::params(&desc, processes, &self.caps) {
                    self.planned(&row_block_cyclic::KERNEL, params, desc);
                }
            }
        }
    }

    fn planned(&mut self, kernel: &'static Kernel, params: Params, desc: Desc) {
        let launches = kernel.plan(&desc, &params, &self.caps).launches;
        let entries: Vec<_> = launches.iter().map(|launch| launch.entry).collect();
        self.add(kernel, (desc.dtype, desc.vectors), params, &entries);
    }

    fn add(
        &mut self,
        kernel: &'static Kernel,
        types: (Dtype, Dtype),
        params: Params,
        entries: &[&'static str],
    ) {
        let compiled = kernel.args.iter().filter(|arg| arg.define.is_some());
        let values = compiled.map(|arg| params.get_or(arg.name, arg.default)).collect();
        let place = *self.places.entry((kernel.name, types, values)).or_insert_with(|| {
            let (target, entries) = (self.target, BTreeSet::new());
            self.all.push(Shipped { kernel, types, params, target, entries });
            self.all.len() - 1
        });
        self.all[place].entries.extend(entries);
    }
}

/// A range, and how far beyond it a row in parts serves.
fn around((low, high): (f32, f32)) -> (f32, f32) {
    ((low - 1.0).max(0.0), high + 1.0)
}

/// The sizes of a range at which candidates may change: all up to `few`, rounds of 64 columns and their halves up to a
/// segment, powers of two, and what follows each.
fn sizes((low, high): (f32, f32), few: usize) -> impl Iterator<Item = usize> + Clone {
    let whole = |log: f32| log.min(40.0).exp2().round() as usize;
    let (low, high) = (whole(low), whole(high));
    let powers = (0..41).map(|k| 1usize << k).chain((3..8).map(|k| 32 * k));
    let both = powers.flat_map(|size| [size, size + 1]).filter(move |size| *size > few);
    let all = (1..=few).chain(both).chain([low, high]);
    all.filter(move |size| (low..=high).contains(size))
}

/// A large device of this capability.
fn caps(capability: u32) -> Caps {
    let mut caps = Caps::new(Language::Cuda);
    (caps.units, caps.max_group, caps.local_bytes) = (132, 1024, 48 << 10);
    (caps.fp64, caps.fp64_mma, caps.cluster) = (true, true, cluster(capability));
    caps.async_copies = capability >= 80;
    caps.sm_90a = capability == 90;
    caps.dynamic_bytes = if capability >= 90 { 227 << 10 } else { 163 << 10 };
    caps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a device takes for a problem, as `gemv_core::Tables` has it.
    fn chosen(tables: &[Table], desc: &Desc, caps: &Caps) -> (&'static Kernel, Params) {
        let many = |row: &&Row| row.rhs.is_some() || row.batch.is_some();
        let passes: &[bool] = if desc.rhs * desc.batch > 1 { &[true, false] } else { &[false] };
        let rows = passes.iter().flat_map(|pass| {
            let rows = tables.iter().flat_map(|table| table.nearest(desc));
            rows.filter(move |row| many(row) == *pass)
        });
        let mut rows = rows.filter_map(|row| {
            let kernel = kernel(row.params.kernel().as_str())?;
            let all = if row.partial { candidates::of(kernel, desc, caps) } else { Vec::new() };
            let params = row.choice(&all)?;
            kernel.fits(desc, &params, caps).ok().map(|()| (kernel, params))
        });
        rows.next().unwrap_or_else(|| panic!("no row for {desc}"))
    }

    /// On devices of any size, for problems between and beyond those that the rows name.
    #[test]
    fn whatever_a_device_chooses_travels_with_the_crate() {
        let shapes = [
            (1, 1),
            (3, 1000),
            (50, 77_777),
            (70, 2222),
            (1000, 3),
            (1227, 241),
            (4096, 4096),
            (5000, 60),
            (20_000, 520),
            (100_000, 2),
            (100_000, 37),
            (1_417_368, 128),
            (1, 1 << 30),
            (16, 4_194_304),
            (1 << 24, 1),
            (2, 40_000_000),
            (17, 13),
            (33, 48),
            (65, 96),
        ];
        let one = Dtype::ALL.map(|dtype| (dtype, dtype));
        let counts = [(1, 1), (2, 1), (7, 1), (16, 1), (33, 1), (1, 9), (1, 30_000), (3, 1000)];
        let lists = TARGETS.map(|target| {
            let programs = List::of(target).iter().map(Shipped::program).collect::<HashSet<_>>();
            (target, programs)
        });
        let lists = HashMap::from(lists);
        for (capability, units, name) in [
            (80, 14, ""),
            (80, 108, ""),
            (89, 66, ""),
            (90, 132, "NVIDIA H200"),
            (90, 132, "NVIDIA H100 80GB HBM3"),
            (90, 114, "NVIDIA H100 PCIe"),
            (90, 66, ""),
            (120, 170, ""),
        ] {
            let target = target_of(capability).unwrap();
            let list = &lists[&target];
            let mut caps = caps(target);
            caps.units = units;
            let mut info = gemv_core::DeviceInfo::new("cuda:0");
            (info.arch, info.name) = (format!("sm_{capability}"), name.into());
            let tables = tables::of(&info).into_iter();
            let tables: Vec<_> = tables.map(|t| Table::parse(t.name, t.text).unwrap()).collect();
            let mut known = HashSet::new();
            for (dtype, vectors) in one.into_iter().chain(Dtype::MIXED) {
                for (place, shape) in shapes.into_iter().enumerate() {
                    for (layout, (rhs, batch)) in Layout::ALL
                        .into_iter()
                        .flat_map(|layout| counts.map(|count| (layout, count)))
                    {
                        // Every alignment for some shape.
                        let align = (place % 7) as u8;
                        let desc =
                            Desc { vectors, rhs, batch, ..Desc::of(dtype, layout, shape, align) };
                        let (kernel, params) = chosen(&tables, &desc, &caps);
                        if known.insert((kernel.name, dtype, vectors, params)) {
                            let program = kernel.mixed_program((dtype, vectors), &params);
                            assert!(list.contains(&program), "sm_{capability}: {desc} : {params}");
                        }
                    }
                }
            }
        }
    }
}
