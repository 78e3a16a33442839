//! The order of work over several GPUs: which of it waits for what on other GPUs. Host logic alone.
//!
//! The work of one GPU keeps its order. Work of two GPUs is ordered where both touch a block of memory, one of them from
//! afar, and nothing has ordered them before. The pieces that one exchange writes are apart, and not ordered.

use std::collections::HashMap;
use std::ops::Range;

/// A block of memory: another number for each.
pub(super) type Block = usize;

/// Work as a program has started it.
#[derive(Debug, Clone)]
pub(super) enum Started {
    Launch(Launched),
    /// No two write the same place.
    Copies(Vec<Copy>),
}

/// A launch on a GPU.
#[derive(Debug, Clone)]
pub(super) struct Launched {
    pub(super) gpu: usize,
    /// What it reads or writes.
    pub(super) touches: Vec<Block>,
    /// The addresses that it writes, of a launch that can write the same at several places at once.
    pub(super) writes: Option<Range<u64>>,
}

/// A copy, done by the GPU that it reads.
#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub(super) gpu: usize,
    pub(super) from: (Block, Range<u64>),
    pub(super) to: (Block, u64),
}

/// One step of a GPU.
#[derive(Debug, PartialEq)]
pub(super) struct Step {
    pub(super) gpu: usize,
    pub(super) does: Does,
    /// Steps of other GPUs that have to be done before.
    pub(super) waits: Vec<usize>,
    /// Whether a later step waits for it.
    pub(super) awaited: bool,
}

/// What a step does, by the places in what was started.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Does {
    /// A launch, and how far from what it writes there are places that it writes as well.
    Launch(usize, Vec<i64>),
    /// A copy of copies.
    Copy(usize, usize),
}

/// A step's touch of a block.
#[derive(Debug, Clone, Copy)]
struct Touch {
    step: usize,
    /// The exchange by which it is written.
    by: Option<usize>,
}

/// Of a GPU the last touch, and the last one that is not of the same exchange.
type Touches = (Option<Touch>, Option<Touch>);

/// The steps of so many GPUs. `most` places can a launch write beside its own; `can` says whether one (by its place in
/// what was started) has a function that does so, and is asked for those that are to.
pub(super) fn schedule(
    gpus: usize,
    started: &[Started],
    most: usize,
    mut can: impl FnMut(usize) -> bool,
) -> Vec<Step> {
    // For each launch the exchange whose pieces it writes, and where to.
    let mut fused: HashMap<usize, (usize, Vec<(Block, i64)>)> = HashMap::new();
    let mut copies: Vec<Vec<bool>> = Vec::new();
    for (at, work) in started.iter().enumerate() {
        let Started::Copies(all) = work else {
            copies.push(Vec::new());
            continue;
        };
        let mut left = vec![true; all.len()];
        for (place, copy) in all.iter().enumerate() {
            let of = |other: &Copy| (other.gpu, other.from.0) == (copy.gpu, copy.from.0);
            if all[..place].iter().any(of) {
                continue;
            }
            let group: Vec<usize> = (place..all.len()).filter(|&k| of(&all[k])).collect();
            let Some(launch) = writer(started, at, all, &group) else { continue };
            if group.len() <= most && !fused.contains_key(&launch) && can(launch) {
                let places = group.iter().map(|&k| {
                    let Copy { from, to, .. } = &all[k];
                    (to.0, to.1.wrapping_sub(from.1.start) as i64)
                });
                fused.insert(launch, (at, places.collect()));
                group.into_iter().for_each(|k| left[k] = false);
            }
        }
        copies.push(left);
    }

    let mut order = Order::new(gpus);
    for (at, work) in started.iter().enumerate() {
        match work {
            Started::Launch(launch) => {
                let (by, places) = fused.remove(&at).unzip();
                let places = places.unwrap_or_default();
                let own = launch.touches.iter().map(|block| (*block, None));
                let touches: Vec<_> =
                    own.chain(places.iter().map(|(block, _)| (*block, by))).collect();
                let distances = places.iter().map(|(_, distance)| *distance).collect();
                order.add(launch.gpu, Does::Launch(at, distances), &touches);
            }
            Started::Copies(all) => {
                let left = all.iter().enumerate().filter(|(place, _)| copies[at][*place]);
                for (place, copy) in left {
                    let touches = [(copy.from.0, None), (copy.to.0, Some(at))];
                    order.add(copy.gpu, Does::Copy(at, place), &touches);
                }
            }
        }
    }
    order.steps
}

/// The launch that may write what these copies of an exchange write: it has written what they read, all of it, and
/// nothing has touched the places since.
fn writer(started: &[Started], at: usize, all: &[Copy], group: &[usize]) -> Option<usize> {
    let copy = &all[group[0]];
    let (block, range) = &copy.from;
    let touches = |work: &Started, block: Block| match work {
        Started::Launch(launch) => launch.touches.contains(&block),
        Started::Copies(all) => all.iter().any(|copy| [copy.from.0, copy.to.0].contains(&block)),
    };
    let launch = started[..at].iter().rposition(|work| touches(work, *block))?;
    let Started::Launch(Launched { gpu, writes: Some(writes), .. }) = &started[launch] else {
        return None;
    };
    let all_of_it = group.iter().all(|&k| all[k].from.1 == *writes);
    let since = |to: Block| started[launch..at].iter().any(|work| touches(work, to));
    let fits = *gpu == copy.gpu && range == writes && all_of_it;
    (fits && !group.iter().any(|&k| since(all[k].to.0))).then_some(launch)
}

/// Steps so far, and what is known of them.
struct Order {
    steps: Vec<Step>,
    /// For each step and GPU, how many of all steps were before that of this GPU are known to be done after it.
    known: Vec<Vec<usize>>,
    /// The last step of each GPU.
    last: Vec<Option<usize>>,
    touched: HashMap<Block, Vec<Touches>>,
}

impl Order {
    fn new(gpus: usize) -> Order {
        let (steps, known, touched) = Default::default();
        Order { steps, known, last: vec![None; gpus], touched }
    }

    /// Adds a step that touches these blocks, each by an exchange or not.
    fn add(&mut self, gpu: usize, does: Does, touches: &[(Block, Option<usize>)]) {
        let gpus = self.last.len();
        let mut known = match self.last[gpu] {
            Some(last) => self.known[last].clone(),
            None => vec![0; gpus],
        };
        let mut needs: Vec<usize> = Vec::new();
        for (block, by) in touches {
            let Some(of) = self.touched.get(block) else { continue };
            for (other, (newest, before)) in of.iter().enumerate().filter(|(o, _)| *o != gpu) {
                let same = |touch: &Touch| by.is_some() && touch.by == *by;
                let touch = if newest.as_ref().is_some_and(same) { before } else { newest };
                needs.extend(touch.map(|touch| touch.step).filter(|step| *step >= known[other]));
            }
        }
        // The latest first: what it has waited for is known with it.
        needs.sort_unstable();
        let mut waits = Vec::new();
        for step in needs.into_iter().rev() {
            if step < known[self.steps[step].gpu] {
                continue;
            }
            known
                .iter_mut()
                .zip(&self.known[step])
                .for_each(|(mine, its)| *mine = (*mine).max(*its));
            self.steps[step].awaited = true;
            waits.push(step);
        }
        let step = self.steps.len();
        known[gpu] = step + 1;
        for (block, by) in touches {
            let of = self.touched.entry(*block).or_insert_with(|| vec![(None, None); gpus]);
            let (newest, before) = &mut of[gpu];
            if newest.is_some_and(|touch| touch.by != *by) {
                *before = *newest;
            }
            *newest = Some(Touch { step, by: *by });
        }
        self.last[gpu] = Some(step);
        self.known.push(known);
        self.steps.push(Step { gpu, does, waits, awaited: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of a GPU, with an address each.
    fn block(gpu: usize, which: usize) -> Block {
        100 * (gpu + 1) + which
    }

    fn address(block: Block) -> u64 {
        (block as u64) << 20
    }

    const X: usize = 0;
    const Y: usize = 1;
    const RESULT: usize = 2;

    /// A program over GPUs whose vectors are whole on each.
    struct Program {
        gpus: usize,
        started: Vec<Started>,
    }

    impl Program {
        fn launch(&mut self, gpu: usize, of: &[usize]) {
            let touches = of.iter().map(|which| block(gpu, *which)).collect();
            self.started.push(Started::Launch(Launched { gpu, touches, writes: None }));
        }

        /// y = A x: each GPU computes 64 bytes, which all get.
        fn product(&mut self, x: usize, y: usize) {
            for gpu in 0..self.gpus {
                let result = address(block(gpu, RESULT));
                self.started.push(Started::Launch(Launched {
                    gpu,
                    touches: vec![block(gpu, x), block(gpu, RESULT)],
                    writes: Some(result..result + 64),
                }));
            }
            let copies = (0..self.gpus).flat_map(|to| (0..self.gpus).map(move |gpu| (to, gpu)));
            let copies = copies.map(|(to, gpu)| {
                let result = address(block(gpu, RESULT));
                let from = (block(gpu, RESULT), result..result + 64);
                Copy { gpu, from, to: (block(to, y), address(block(to, y)) + 64 * gpu as u64) }
            });
            self.started.push(Started::Copies(copies.collect()));
        }

        fn steps(&self, can: bool) -> Vec<Step> {
            let steps = schedule(self.gpus, &self.started, 15, |_| can);
            self.check(&steps);
            steps
        }

        /// Whatever is started later and touches a block that was touched, one of both from afar, is ordered.
        fn check(&self, steps: &[Step]) {
            let mut before: Vec<Vec<bool>> = Vec::new();
            for (at, step) in steps.iter().enumerate() {
                let mut done = vec![false; at];
                let last = (0..at).rev().find(|&k| steps[k].gpu == step.gpu);
                for &k in step.waits.iter().chain(&last) {
                    assert!(k < at && (steps[k].awaited || Some(k) == last));
                    done[k] = true;
                    (0..k).for_each(|j| done[j] |= before[k][j]);
                }
                before.push(done);
            }
            let touches = |step: &Step| -> Vec<(Block, Option<usize>)> {
                match &step.does {
                    Does::Copy(at, place) => {
                        let Started::Copies(all) = &self.started[*at] else { panic!() };
                        vec![(all[*place].from.0, None), (all[*place].to.0, Some(*at))]
                    }
                    Does::Launch(at, distances) => {
                        let Started::Launch(launch) = &self.started[*at] else { panic!() };
                        let by = self.started[*at..]
                            .iter()
                            .position(|w| matches!(w, Started::Copies(_)));
                        let own = launch.touches.iter().map(|block| (*block, None));
                        let places = distances.iter().map(|distance| {
                            let start = launch.writes.as_ref().unwrap().start;
                            let to = start.wrapping_add_signed(*distance) >> 20;
                            (to as usize, by.map(|k| k + at))
                        });
                        own.chain(places).collect()
                    }
                }
            };
            for (later, step) in steps.iter().enumerate() {
                for earlier in 0..later {
                    let shared = touches(step).into_iter().any(|(block, by)| {
                        let same = |of: &(Block, Option<usize>)| {
                            of.0 == block && (by.is_none() || of.1 != by)
                        };
                        touches(&steps[earlier]).iter().any(same)
                    });
                    let apart = steps[earlier].gpu == step.gpu;
                    assert!(!shared || apart || before[later][earlier], "{later} after {earlier}");
                }
            }
        }
    }

    fn iterations(gpus: usize, alternate: bool, can: bool) -> (Program, Vec<Step>) {
        let mut program = Program { gpus, started: Vec::new() };
        for k in 0..6 {
            let (x, y) = if alternate && k % 2 == 1 { (Y, X) } else { (X, Y) };
            program.product(x, y);
            for gpu in 0..gpus {
                match alternate {
                    true => program.launch(gpu, &[y]),     // y /= |y|
                    false => program.launch(gpu, &[x, y]), // x = y / |y|
                }
            }
        }
        let steps = program.steps(can);
        (program, steps)
    }

    #[test]
    fn products_that_alternate_wait_once_an_iteration_for_each_other_gpu() {
        for gpus in [1, 2, 3, 4, 8] {
            let (_, steps) = iterations(gpus, true, true);
            assert_eq!(steps.len(), 6 * 2 * gpus);
            for step in &steps {
                let Does::Launch(at, distances) = &step.does else { panic!("a copy") };
                let product = at % (2 * gpus + 1) < gpus;
                assert_eq!(distances.len(), if product { gpus } else { 0 });
                assert_eq!(step.waits.len(), if product { 0 } else { gpus - 1 }, "{steps:?}");
            }
        }
    }

    #[test]
    fn a_vector_that_others_still_read_is_waited_for() {
        let (_, steps) = iterations(2, false, true);
        let waits: Vec<usize> = steps.iter().map(|step| step.waits.len()).collect();
        // From the second iteration on, products wait as well.
        assert_eq!(waits[..4], [0, 0, 1, 1]);
        assert!(waits[4..].iter().all(|count| *count == 1), "{waits:?}");
    }

    #[test]
    fn without_a_function_for_several_places_there_are_copies() {
        for alternate in [true, false] {
            let (_, steps) = iterations(3, alternate, false);
            let copies = steps.iter().filter(|step| matches!(step.does, Does::Copy(..)));
            assert_eq!(copies.count(), 6 * 9);
        }
    }

    #[test]
    fn a_product_does_not_write_what_is_read_before_the_exchange() {
        // y = A y: other products read y when the first one ends.
        let mut program = Program { gpus: 2, started: Vec::new() };
        program.product(Y, Y);
        let steps = program.steps(true);
        assert_eq!(steps.iter().filter(|s| matches!(s.does, Does::Copy(..))).count(), 4);
        // Of the result a part is exchanged.
        let mut program = Program { gpus: 2, started: Vec::new() };
        program.product(X, Y);
        let Some(Started::Copies(all)) = program.started.last_mut() else { panic!() };
        all[3].from.1.end -= 8;
        let steps = program.steps(true);
        assert_eq!(steps.iter().filter(|s| matches!(s.does, Does::Copy(..))).count(), 2);
        // More places than a launch can write.
        let steps = schedule(2, &program.started, 1, |_| true);
        assert_eq!(steps.iter().filter(|s| matches!(s.does, Does::Copy(..))).count(), 4);
    }
}
