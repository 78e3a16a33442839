//! The first use of a program: it is compiled or loaded, tested, and kept on disk. The device's lock is held for the
//! launches of the test alone: others compute meanwhile, and compile.
//!
//! Each program is tested before its first result is given out, rather than a few of them when the device
//! is opened: those would have to be compiled first, which takes longer than all else that a first
//! product does, and would say nothing of the others.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use gemv_core::{Desc, Element, Error, Result, Table, Times};
use gemv_gpu::{SELF_TEST_ENV, Signature, self_test_wanted};

use crate::discover::Found;
use crate::memory::{State, lock};
use crate::programs::Programs;
use crate::run::{self, Choice};
use crate::selftest::{Case, Sizes};
use crate::tables::tables;

/// Columns and rows of a test, the best first: more than one segment, one segment, few rows, whose columns are
/// split, fewer columns for kernels of narrow matrices, more than 256 segments, and one row, for launches that
/// no other has. Where no rows are given, there are more than compute units, so that rows are whole unless
/// parameters split them.
const SIZES: [(usize, Option<usize>); 11] = [
    (643, None),
    (256, None),
    (643, Some(2)),
    (64, None),
    (16, None),
    (8, None),
    (4, None),
    (2, None),
    (1, None),
    (66_000, Some(2)),
    (643, Some(1)),
];
/// How many tests a program has to pass at least, of those that suit it.
const TESTS: usize = 2;

/// What a first use needs of a device.
#[derive(Clone, Copy)]
pub(crate) struct Of<'d> {
    pub(crate) found: &'d Found,
    pub(crate) programs: &'d Programs,
    pub(crate) shared: &'d Mutex<State>,
}

/// Compiles what a choice launches, tests it, and keeps it on disk; all of it once. A choice that a table made, whose program
/// is not there while another product waits for one, does not wait: where a program that is there computes the problem, it
/// returns that. The bits are the same.
///
/// # Errors
/// [`Error::Build`]; [`Error::Refused`] where the device breaks the order by what its own tables
/// choose, [`Error::Params`] where it does so by other parameters.
pub(crate) fn prepare<T: Element + Times<V>, V: Element>(
    of: Of<'_>,
    choice: &Choice,
    chosen: bool,
) -> Result<Option<Choice>> {
    if choice.ready.get().is_some() {
        return Ok(None);
    }
    let Of { found, programs, .. } = of;
    programs.usable()?;
    let (_waits, others) = programs.first_use();
    if others && chosen && !is_there(programs, choice) {
        let ready = programs.ready(choice.kernel, choice.types());
        let mut ready = ready.into_iter().filter_map(|(kernel, params, _)| {
            kernel.fits(&choice.desc, &params, &found.caps).ok()?;
            let other = choice.with(kernel, params, found);
            is_there(programs, &other).then_some(other)
        });
        if let Some(other) = ready.next() {
            other.entries(programs)?;
            return Ok(Some(other));
        }
    }
    let entries = choice.entries(programs)?;
    let asked = (choice.params, choice.types());
    if wants_test(programs, choice) {
        // Whoever comes meanwhile waits for the test, and has no need of its own.
        let _testing = entries[0].testing.lock().unwrap_or_else(PoisonError::into_inner);
        if wants_test(programs, choice) {
            let begin = Instant::now();
            let launched = match fault::<T, V>(of, choice)? {
                Ok(launched) => launched,
                Err(fault) => return Err(refused(of, choice, fault)),
            };
            let millis = begin.elapsed().as_millis();
            log::debug!("opencl: tested {launched:?} of {} in {millis} ms", choice.params);
            let all = entries.iter().cloned();
            let (tested, untested): (Vec<_>, Vec<_>) =
                all.partition(|entry| launched.contains(entry.name));
            programs.passed(&tested);
            programs.untestable(asked, &untested);
        }
    }
    programs.keep(&entries);
    // In the place of another, only what gives the same bits: no published kernel, and none that only reads.
    if choice.kernel.ordered {
        programs.is_ready((choice.kernel, choice.params, choice.types()));
    }
    choice.ready.get_or_init(|| ());
    Ok(None)
}

/// Whether a choice is still to be compared with the reference. Its programs are known.
fn wants_test(programs: &Programs, choice: &Choice) -> bool {
    choice.kernel.ordered && self_test_wanted() && !are_tested(programs, choice)
}

fn are_tested(programs: &Programs, choice: &Choice) -> bool {
    let names = choice.plan.launches.iter().map(|launch| launch.entry);
    let asked = (choice.params, choice.types());
    let known = programs.known(asked, names);
    known.is_some_and(|known| programs.are_tested(asked, &known))
}

/// Whether a choice is compiled, and tested if it is to be.
fn is_there(programs: &Programs, choice: &Choice) -> bool {
    let names = choice.plan.launches.iter().map(|launch| launch.entry);
    programs.known((choice.params, choice.types()), names).is_some()
        && !wants_test(programs, choice)
}

/// What the launches of a choice compute with other bits than the reference; or the entry points that compute
/// the same.
fn fault<T: Element + Times<V>, V: Element>(
    Of { found, programs, shared }: Of<'_>,
    choice: &Choice,
) -> Result<Result<BTreeSet<&'static str>, String>> {
    let names = |choice: &Choice| -> BTreeSet<_> {
        choice.plan.launches.iter().map(|launch| launch.entry).collect()
    };
    let (wanted, mut launched) = (names(choice), BTreeSet::new());
    // Other entry points of the program are compiled only where no test is without them.
    for any_entry in [false, true] {
        let mut done = 0;
        for (columns, rows) in SIZES {
            if done >= TESTS && wanted.is_subset(&launched) {
                return Ok(Ok(launched));
            }
            for &[batch, rhs] in counts(choice) {
                let rows = rows.unwrap_or((found.caps.units as usize).clamp(19, 131));
                let sizes: Sizes = [batch, rows, columns, rhs];
                let suited = |desc: Desc| {
                    choice.kernel.fits(&desc, &choice.params, &found.caps).ok()?;
                    let test = choice.of(desc, found);
                    let of_it = names(&test);
                    // After enough of them, those alone that launch something else.
                    let fresh = done < TESTS || !of_it.is_subset(&launched);
                    let of_choice = any_entry || of_it.is_subset(&wanted);
                    (of_choice && fresh).then_some((test, of_it))
                };
                // First without its numbers, which take longer to make than the rest.
                let layout = choice.desc.layout;
                let desc = Desc::of(T::DTYPE, layout, (rows, columns), choice.desc.align);
                if suited(Desc { vectors: V::DTYPE, rhs, batch, ..desc }).is_none() {
                    continue;
                }
                let mut case = Case::<T, V>::new(layout, sizes, done % 2 == 1);
                let desc = case.job().desc();
                let Some((test, of_it)) = suited(desc) else { continue };
                let expected = case.expected();
                test.entries(programs)?;
                run::product(found, &mut lock(shared), &test, &mut case.job().check()?)?;
                if let Some(fault) = case.fault(&expected) {
                    return Ok(Err(format!("{desc}: {fault}")));
                }
                done += 1;
                launched.extend(of_it);
                break;
            }
        }
        if done > 0 {
            break;
        }
    }
    let untested: Vec<_> = wanted.difference(&launched).copied().collect();
    if !untested.is_empty() {
        log::info!("opencl: {}: no small product launches {untested:?}", choice.params);
    }
    Ok(Ok(launched))
}

/// Matrices and right-hand sides of a test.
fn counts(choice: &Choice) -> &'static [[usize; 2]] {
    match choice.kernel.signature {
        Signature::Gemv => &[[1, 1]],
        Signature::Gemm => &[[2, 3], [1, 3], [2, 1]],
    }
}

/// The error for a fault. The device is refused, now and by later processes, if its own tables choose
/// this program for the problem; of any other only these parameters are.
fn refused(Of { found, programs, .. }: Of<'_>, choice: &Choice, fault: String) -> Error {
    let Choice { desc, params, .. } = choice;
    let device = found.info.id.clone();
    let reason = format!(
        "{params} gives other bits than the order of additions has ({fault}); \
         {SELF_TEST_ENV}=off uses it all the same"
    );
    if !is_chosen(found, choice) {
        return Error::Params { device, desc: *desc, params: params.to_string(), reason };
    }
    let reason = format!("{}, {}: {reason}", found.info.name, found.info.driver);
    log::warn!("{device} is refused: {reason}");
    programs.refuse(&reason);
    Error::Refused { device, reason }
}

/// Whether the built-in tables choose the program of this choice for its problem.
fn is_chosen(found: &Found, choice: &Choice) -> bool {
    let Choice { desc, kernel, params, .. } = choice;
    let types = (desc.dtype, desc.vectors);
    tables(found).into_iter().any(|table| {
        let table = Table::parse(table.name, table.text);
        table.is_ok_and(|table| {
            let fits = |of: &_| kernel.fits(desc, of, &found.caps).is_ok();
            let legal = table
                .nearest(desc)
                .into_iter()
                .filter(|row| !row.partial)
                .map(|row| row.params)
                .find(fits);
            legal.is_some_and(|of| {
                kernel.mixed_program(types, &of) == kernel.mixed_program(types, params)
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::sync::Arc;

    use gemv_core::ndarray::{Array1, Array2};
    use gemv_core::{Desc, Dtype, Engine, Layout, Params};
    use gemv_gpu::Kernel;

    use super::*;
    use crate::backend::OpenCl;
    use crate::bugs::{LAZY, LIFT};
    use crate::discover::found;
    use crate::kernels;

    /// Says to [`child`] what it is to do.
    const CHILD: &str = "GEMV_OPENCL_TEST_CHILD";

    /// A kernel whose fma rounds twice.
    fn broken(kernel: &Kernel) -> &'static Kernel {
        const TWICE: &str = "#undef FMA_\n#define FMA_(a, b, c) ((a) * (b) + (c))\n";
        let source = kernel.source.replace("return fma(a, b, c);", "return a * b + c;");
        Box::leak(Box::new(Kernel { source: (TWICE.to_owned() + &source).leak(), ..*kernel }))
    }

    /// What the tables choose on a device for this problem.
    fn chosen(device: &OpenCl, desc: Desc) -> Choice {
        let table = tables(device.found())[0];
        let table = Table::parse(table.name, table.text).unwrap();
        let params = table.nearest(&desc)[0].params;
        let kernel = kernels::find(params.kernel().as_str()).unwrap();
        let plan = kernel.plan(&desc, &params, &device.found().caps);
        let state = Arc::downgrade(device.state());
        let (entries, ready) = Default::default();
        Choice { desc, kernel, params, plan, state, entries, ready }
    }

    /// The child's part of the tests below: a process of its own, with a cache of its own.
    #[test]
    #[ignore = "run by the tests beside it"]
    fn child() {
        let engine = Engine::new(None);
        if std::env::var(CHILD).unwrap() == "product" {
            match engine.device("opencl:0") {
                Ok(device) => {
                    let y = device.try_gpu_dot(&Array2::<f32>::eye(9), &Array1::ones(9)).unwrap();
                    println!("product: {}", y.sum());
                }
                Err(why) => println!("device: {why}"),
            }
            let listed = engine.devices().into_iter().find(|line| line.id == "opencl:0").unwrap();
            return println!("listed: {:?}", listed.found.map(|info| info.id));
        }
        let device = OpenCl::open(0).unwrap();
        if std::env::var(CHILD).unwrap() == "one row" {
            let desc = Desc::of(Dtype::F32, Layout::Row, (1, 300), 4);
            // Two rows are whole there, and one is not.
            if !device.found().caps.cpu || device.found().caps.units != 2 {
                return println!("not for this device");
            }
            let kernel = kernels::find("row-cpu").unwrap();
            let params = Params::new("row-cpu");
            let choice = Choice { kernel, params, ..chosen(&device, desc) };
            let choice = choice.of(desc, device.found());
            let programs = device.programs();
            let entries = choice.entries(programs).unwrap();
            let of = |params| (params, (Dtype::F32, Dtype::F32));
            let (this, other) = (of(choice.params), of(choice.params.with("rows", 2)));
            assert!(!programs.are_tested(this, &entries));
            programs.untestable(this, &entries[..1]);
            assert!(programs.are_tested(this, &entries[..1]));
            assert!(!programs.are_tested(other, &entries[..1]));
            prepare::<f32, f32>(device.of(), &choice, false).unwrap();
            let tested = |entry: &&_| programs.are_tested(other, std::slice::from_ref(*entry));
            let count = entries.iter().filter(tested);
            let programs = entries.iter().map(|entry| entry.program()).collect::<BTreeSet<_>>();
            println!("programs {}", programs.len());
            return println!("tested {}", count.count());
        }
        if std::env::var(CHILD).unwrap() == "meanwhile" {
            return meanwhile(&device);
        }
        let desc = Desc::of(Dtype::F32, Layout::Row, (64, 300), 4);
        let right = chosen(&device, desc);
        let mut wrong = Choice { kernel: broken(right.kernel), ..chosen(&device, desc) };
        if std::env::var(CHILD).unwrap() == "beside" {
            // Parameters that no table names.
            wrong.params = wrong.params.with("rows", 2);
        }
        let prepared = |choice| prepare::<f32, f32>(device.of(), choice, false).map(|_| ());
        println!("wrong: {}", prepared(&wrong).unwrap_err());
        println!("right: {:?}", prepared(&right));
    }

    /// What is chosen while another product waits for its program.
    fn meanwhile(device: &OpenCl) {
        let Of { found, programs, .. } = device.of();
        let desc = Desc::of(Dtype::F32, Layout::Row, (64, 300), 4);
        let first = chosen(device, desc);
        let prepared = |choice: &Choice, chosen| {
            let other = prepare::<f32, f32>(device.of(), choice, chosen).unwrap();
            other.map_or("itself".into(), |other| {
                assert!(other.entries.get().is_some());
                assert_eq!(other.desc, choice.desc);
                other.params.to_string()
            })
        };
        let second = chosen(device, desc).with(first.kernel, first.params.with("rows", 2), found);
        let another = programs.first_use();
        let reads = Params::new("read");
        let reads = chosen(device, desc).with(kernels::find("read").unwrap(), reads, found);
        prepare::<f32, f32>(device.of(), &reads, false).unwrap();
        println!("nothing is ready: {}", prepared(&first, true));
        println!("asked for: {}", prepared(&second, false));
        let third = first.params.with("rows", 4);
        let third = chosen(device, desc).with(first.kernel, third, found);
        println!("chosen: {}", prepared(&third, true));
        assert!(third.ready.get().is_none() && !is_there(programs, &third));
        drop(another);
        println!("alone: {}", prepared(&third, true));
    }

    fn child_says(what: &str, cache: &Path, self_test: &str) -> String {
        child_with(what, cache, self_test, "")
    }

    fn child_with(what: &str, cache: &Path, self_test: &str, lifted: &str) -> String {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["first_use::tests::child", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, what)
            .env("GEMV_CACHE_DIR", cache)
            .env("GEMV_CACHE", "on")
            .env(SELF_TEST_ENV, self_test)
            .env(LIFT, lifted)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
        text
    }

    fn has_device() -> bool {
        let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
        match found() {
            Ok(_) => true,
            Err(why) if required.split(',').any(|r| r.trim() == "opencl") => panic!("{why}"),
            Err(why) => {
                eprintln!("not tested: {why}");
                false
            }
        }
    }

    #[test]
    fn a_device_that_breaks_the_order_is_refused_until_it_is_asked_for() {
        if !has_device() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(
            child_says("product", dir.path(), "").contains("product: 9\nlisted: Ok(\"opencl:0\")")
        );
        let first = child_says("break", dir.path(), "");
        let begin = "wrong: opencl:0 is refused: ";
        assert!(first.contains(begin) && first.contains("ordinary numbers"), "{first}");
        assert!(first.contains("GEMV_SELF_TEST=off"), "{first}");
        // Nothing is computed any more: not by the right kernel, and not by the next process.
        assert!(first.contains("right: Err(opencl:0 is refused: "), "{first}");
        let later = child_says("product", dir.path(), "");
        assert!(later.contains("device: opencl:0 is refused: "), "{later}");
        assert!(later.contains("listed: Err(opencl:0 is refused: "), "{later}");
        let asked = child_says("product", dir.path(), "off");
        assert!(asked.contains("product: 9\nlisted: Ok(\"opencl:0\")"), "{asked}");
    }

    /// Each entry point that it launches has been compared, so that a second choice of them is not tested again.
    #[test]
    fn a_row_in_parts_is_tested_whole() {
        if !has_device() {
            return;
        }
        // In one program, and in two as on a GPU.
        for lifted in ["", LAZY.name] {
            let dir = tempfile::tempdir().unwrap();
            let out = child_with("one row", dir.path(), "", lifted);
            if out.contains("not for this device") {
                return eprintln!("not tested: the device is no CPU with two compute units");
            }
            assert!(out.contains("tested 2"), "{out}");
            let programs = if lifted.is_empty() { 1 } else { 2 };
            assert!(out.contains(&format!("programs {programs}\n")), "{out}");
        }
    }

    /// A product that a table chose for does not wait for a program while another product does, where one is ready.
    #[test]
    fn what_is_ready_computes_while_others_compile() {
        if !has_device() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let out = child_says("meanwhile", dir.path(), "");
        let line = |begin: &str| {
            let line = out.lines().find_map(|line| line.strip_prefix(begin));
            line.unwrap_or_else(|| panic!("{out}")).to_owned()
        };
        assert_eq!(line("nothing is ready: "), "itself");
        assert_eq!(line("asked for: "), "itself");
        assert!(line("chosen: ").contains(" rows=2"), "{out}");
        assert_eq!(line("alone: "), "itself");
    }

    #[test]
    fn parameters_that_no_table_chooses_are_refused_alone() {
        if !has_device() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let out = child_says("beside", dir.path(), "");
        assert!(
            out.contains("rows=2") && out.contains(" does not fit f32 row 64x300 on "),
            "{out}"
        );
        assert!(out.contains("right: Ok(())"), "{out}");
    }
}
