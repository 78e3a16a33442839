//! What a run of the tuner does by kind of device: its mesh, its classes, and how it measures.

use std::ops::RangeInclusive;

use super::class::ProblemClass;
use super::mesh::Mesh;
use super::search::SearchSettings;
use super::settings::RunnerSettings;
use gemv_core::{Align, DeviceInfo, Dtype, Layout};

/// Columns of short rows between the sizes of the mesh. Kernels have capacities of 16, 32 and 64 columns,
/// or a vector's width less one beyond them; a segment has 256.
const SHORT_ROWS: [usize; 21] =
    [6, 10, 12, 14, 16, 20, 28, 30, 32, 40, 48, 60, 62, 64, 80, 128, 160, 192, 256, 272, 520];

/// Columns of long rows. Kernels take a power of two of segments at a time, and the mesh has a point only
/// in the lower half of each octave.
const LONG_ROWS: [usize; 6] = [1872, 3744, 7488, 14_992, 30_000, 60_000];

/// Rows of matrices with short columns, for the capacities of kernels for few rows.
const FEW_ROWS: [usize; 8] = [6, 10, 12, 14, 16, 20, 32, 64];

/// Lengths of lines for the CPU's direct paths, of both layouts.
const SHORT_LINES_CPU: [usize; 5] = [3, 4, 16, 64, 256];
/// Columns, of which the CPU's kernels take four, eight or sixteen at a time.
const FEW_COLUMNS_CPU: [usize; 4] = [3, 4, 8, 16];

/// Full waves of 32-row blocks, one block a multiprocessor. A partly filled last wave costs as much as a
/// full one, so the mesh has a point just below and just above each.
const WAVES: [usize; 5] = [2, 3, 4, 6, 8];
const WAVE_ROWS: usize = 32;
/// Columns of such matrices. Blocks have more rows for fewer columns; for more there are many waves.
const WAVE_COLUMNS: RangeInclusive<usize> = 33..=4096;

/// Rows at which every cluster has a row, in halves of the number of multiprocessors: one row more
/// starts another wave of clusters.
const CLUSTER_WAVES: [usize; 2] = [1, 2];
/// Columns of rows that take a cluster each.
const CLUSTER_COLUMNS: RangeInclusive<usize> = 2049..=65_536;

/// Columns of column-major matrices whose K is split over blocks: whole segments, and a few columns more,
/// whose segment costs as much as a whole one.
const SPLIT_COLUMNS: [usize; 4] = [272, 512, 528, 1024];
const SPLIT_ROWS: RangeInclusive<usize> = 256..=32_768;

fn is_cpu(info: &DeviceInfo) -> bool {
    info.id == "cpu"
}

impl Mesh {
    /// How many sizes a device's mesh has unless asked otherwise.
    ///
    /// ```
    /// use gemv_core::DeviceInfo;
    /// use gemv_lab::tuner::Mesh;
    /// assert!(Mesh::count(&DeviceInfo::new("cuda:0")) > Mesh::count(&DeviceInfo::new("cpu")));
    /// ```
    pub fn count(info: &DeviceInfo) -> usize {
        match info {
            info if is_cpu(info) => 20,
            info if info.host => 12,
            _ => 24,
        }
    }

    /// The same mesh with points on both sides of the edges that kernels of such a device have: capacities,
    /// and full waves of blocks or clusters.
    ///
    /// ```
    /// use gemv_core::DeviceInfo;
    /// use gemv_lab::tuner::Mesh;
    /// let mut info = DeviceInfo::new("cuda:0");
    /// info.units = 132;
    /// let mesh = Mesh::new(24, 1, 1 << 22, 1 << 30).with_edges(&info);
    /// assert!(mesh.sizes().contains(&(2 * 132 * 32 + 16))); // just above two waves
    /// ```
    #[must_use]
    pub fn with_edges(self, info: &DeviceInfo) -> Mesh {
        let any = 1..=usize::MAX;
        if is_cpu(info) {
            let mesh = self.with_lengths(Layout::Row, &SHORT_LINES_CPU, any.clone());
            let mesh = mesh.with_lengths(Layout::Col, &SHORT_LINES_CPU, any.clone());
            return mesh.with_lines(Layout::Col, &FEW_COLUMNS_CPU, any);
        }
        let rows = [&SHORT_ROWS[..], &LONG_ROWS].concat();
        let mesh = self.with_lengths(Layout::Row, &rows, any.clone());
        let mesh = mesh.with_lengths(Layout::Col, &FEW_ROWS, any);
        if info.host || info.units == 0 {
            return mesh;
        }
        let (units, half) = (info.units, WAVE_ROWS / 2);
        let waves = WAVES.iter().map(|k| WAVE_ROWS * k * units);
        let sides: Vec<usize> = waves.flat_map(|edge| [edge - half, edge + half]).collect();
        let mesh = mesh.with_lengths(Layout::Col, &sides, WAVE_COLUMNS);
        let mesh = mesh.with_lines(Layout::Col, &SPLIT_COLUMNS, SPLIT_ROWS);
        // A twelfth on either side: not every multiprocessor can be part of a cluster.
        let waves = CLUSTER_WAVES.iter().map(|k| k * units / 2);
        let aside = |edge: usize| (edge / 12).max(1);
        let sides: Vec<usize> =
            waves.flat_map(|edge| [edge - aside(edge).min(edge), edge + aside(edge)]).collect();
        mesh.with_lines(Layout::Row, &sides, CLUSTER_COLUMNS)
    }
}

impl ProblemClass {
    /// The classes of a type and layout that are tuned on a device: one where alignment makes no
    /// difference, as on a CPU, else [all](ProblemClass::all).
    ///
    /// ```
    /// use gemv_core::{DeviceInfo, Dtype, Layout};
    /// use gemv_lab::tuner::ProblemClass;
    /// let count = |id: &str| {
    ///     ProblemClass::of_device(&DeviceInfo::new(id), Dtype::F32, Layout::Row).len()
    /// };
    /// assert_eq!((count("cpu"), count("cuda:0")), (1, 3));
    /// ```
    pub fn of_device(info: &DeviceInfo, dtype: Dtype, layout: Layout) -> Vec<ProblemClass> {
        match is_cpu(info) {
            true => vec![ProblemClass { dtype, layout, align: Align::ANY, rhs: 1 }],
            false => ProblemClass::all(dtype, layout),
        }
    }
}

impl RunnerSettings {
    /// How the tuner measures on a device: longer batches where other programs share the processor; on
    /// a CPU, host arrays, with warm caches where they fit its second-level cache.
    ///
    /// ```
    /// use gemv_core::DeviceInfo;
    /// use gemv_lab::tuner::RunnerSettings;
    /// let (cpu, gpu) = (DeviceInfo::new("cpu"), DeviceInfo::new("cuda:0"));
    /// assert!(RunnerSettings::for_device(&cpu).arrays);
    /// assert_eq!(RunnerSettings::for_device(&gpu).warm_to, 0);
    /// ```
    pub fn for_device(info: &DeviceInfo) -> RunnerSettings {
        let mut settings = RunnerSettings { batch: 100e-6, ..RunnerSettings::default() };
        if info.host {
            // A lost slice of time must not be most of a batch.
            (settings.batch, settings.products) = (1e-3, 1024);
        }
        if is_cpu(info) {
            // A quarter stays in the cache whatever else the caller does.
            let cache = second_cache();
            (settings.warm_to, settings.both_to, settings.arrays) = (cache / 4, cache, true);
        }
        settings
    }
}

impl SearchSettings {
    /// How the tuner searches the mesh of a device. Many points are fitted together, so no single one
    /// has to be exact. A CPU's bandwidth changes from one problem to the next, so there the ceiling ends
    /// nothing, and the winners nearby are measured to the end.
    ///
    /// ```
    /// use gemv_core::DeviceInfo;
    /// use gemv_lab::tuner::SearchSettings;
    /// let of = |id: &str| SearchSettings::for_device(&DeviceInfo::new(id));
    /// assert!(of("cpu").rounds > of("cuda:0").rounds);
    /// ```
    pub fn for_device(info: &DeviceInfo) -> SearchSettings {
        let mut settings = SearchSettings { tie: 0.05, ..SearchSettings::default() };
        (settings.rounds, settings.finalists, settings.hopeless) = (3, 3, 1.25);
        if is_cpu(info) {
            (settings.rounds, settings.finalists, settings.hopeless) = (7, 6, 1.4);
            (settings.ceiling_from, settings.neighbours) = (u64::MAX, 4);
        }
        settings
    }
}

/// Bytes of a core's second-level cache, where Linux says; else a usual size.
fn second_cache() -> u64 {
    let of = |cache: usize, what: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{cache}/{what}");
        Some(std::fs::read_to_string(path).ok()?.trim().to_string())
    };
    let second = (0..8).find(|&cache| of(cache, "level").as_deref() == Some("2"));
    let bytes = |text: String| match text.strip_suffix('K') {
        Some(kib) => kib.parse::<u64>().ok()?.checked_shl(10),
        None => text.strip_suffix('M')?.parse::<u64>().ok()?.checked_shl(20),
    };
    second.and_then(|cache| bytes(of(cache, "size")?)).filter(|&b| b > 0).unwrap_or(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpus_mesh_has_a_point_on_either_side_of_a_wave() {
        let mut info = DeviceInfo::new("cuda:0");
        info.units = 132;
        let class =
            |layout| ProblemClass { dtype: Dtype::F64, layout, align: Align::WHOLE, rhs: 1 };
        let shapes = |info: &DeviceInfo, layout| -> Vec<(usize, usize)> {
            let mesh = Mesh::new(24, 1, 1 << 22, 1 << 30).with_edges(info);
            mesh.problems(class(layout)).into_iter().map(|d| (d.m, d.n)).collect()
        };
        let col = shapes(&info, Layout::Col);
        // Three waves of 32-row blocks are 12,672 rows.
        assert!(col.contains(&(12_656, 208)) && col.contains(&(12_688, 208)));
        assert!(col.contains(&(12_656, 2848)));
        assert!(!col.contains(&(12_656, 28)) && !col.contains(&(12_656, 5536)));
        // Two segments and a few columns.
        assert!(col.contains(&(2848, 528)) && !col.contains(&(208, 528)));
        let row = shapes(&info, Layout::Row);
        assert!(
            row.contains(&(208, 30_000)) && !row.iter().any(|s| s.0 == 12_656 || s.1 == 12_656)
        );
        // Half as many rows as multiprocessors, and as many.
        assert!(
            row.contains(&(61, 5536)) && row.contains(&(71, 2848)) && row.contains(&(143, 5536))
        );
        assert!(!row.contains(&(61, 1472)) && !row.contains(&(528, 2848)));
        // A host's processor has no such waves.
        info.host = true;
        let col = shapes(&info, Layout::Col);
        assert!(!col.contains(&(12_656, 208)) && !col.contains(&(2848, 528)));
    }
}
