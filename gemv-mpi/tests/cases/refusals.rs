//! An error of one rank is an error of all, y is as it was, and the ranks go on with the next product.

use std::fs;

use gemv_core::ndarray::{Array1, Array2};
use gemv_core::{Checked, Desc, Error as CoreError, Job, Prepared};
use gemv_mpi::mpi::traits::*;
use gemv_mpi::{Distributed, Error, Grid, Result, Split};
use gemv_testkit::{Host, npy};

use super::{folder, rank_and_size};

pub fn all(world: &impl Communicator) {
    let (rank, size) = rank_and_size(world);
    let too_many = Grid::new(world, Split::Grid { p: size + 1, q: 2 }).unwrap_err();
    let needs = 2 * size + 2;
    assert_eq!(
        too_many.to_string(),
        format!("a grid of {} × 2 needs {needs} ranks, but the communicator has {size}", size + 1)
    );
    let none = Grid::new(world, Split::Grid { p: 0, q: 0 }).unwrap_err();
    assert!(none.to_string().contains("needs 0 ranks"), "{none}");
    if size > 1 {
        let split = if rank + 1 == size { Split::Columns } else { Split::Rows };
        let e = Grid::new(world, split).unwrap_err().to_string();
        let last = size - 1;
        assert_eq!(
            e,
            format!(
                "the ranks do not agree on how the matrix is split: by rows on rank 0, by columns on rank {last}"
            )
        );
    }
    for split in [Split::Rows, Split::Columns, Split::Grid { p: 1, q: size }] {
        let grid = Grid::new(world, split).unwrap();
        let ranks = Ranks { grid: &grid, last: size - 1, odd: rank + 1 == size };
        ranks.devices();
        ranks.matrices();
        ranks.files();
        ranks.products();
        ranks.vectors();
    }
}

/// The ranks, the last of which does something else than the others.
struct Ranks<'g> {
    grid: &'g Grid,
    last: usize,
    /// Whether this is the last.
    odd: bool,
}

impl Ranks<'_> {
    /// The last rank has failed so, and all know.
    #[track_caller]
    fn failed<R>(&self, result: Result<R>, text: &str) -> Error {
        let e = result.err().expect("an error");
        let said = e.to_string();
        assert!(said.contains(text) && !said.contains('\n'), "{said:?} does not say {text:?}");
        match &e {
            Error::Rank { rank, .. } => assert!(!self.odd && *rank == self.last, "{said}"),
            _ => assert!(self.odd, "{said}"),
        }
        e
    }

    /// The last rank has other arguments, if it is not the only one; what it does then is not looked at.
    #[track_caller]
    fn differs<R>(&self, result: Result<R>, text: &str) {
        if self.last == 0 {
            return;
        }
        match result.err() {
            Some(e @ Error::Disagree { .. }) => {
                let said = e.to_string();
                assert!(
                    said.contains(text) && said.contains(&format!("on rank {}", self.last)),
                    "{said}"
                );
            }
            other => panic!("{other:?}"),
        }
    }

    /// The ranks are in step: a product is right.
    fn go_on(&self) {
        let device = self.grid.device("reference").unwrap();
        let a = Distributed::from_fn(self.grid, &device, (3, 600), |i, _| i as f64).unwrap();
        let mut y = [7.0; 3];
        a.gemv(1.0, &Array1::ones(600), 0.0, &mut y).unwrap();
        assert_eq!(y, [0.0, 600.0, 1200.0]);
    }

    fn devices(&self) {
        let name = if self.odd { "abacus" } else { "reference" };
        self.failed(self.grid.device(name), "no such device: \"abacus\"");
        let own = if self.odd { Err("the disk is full") } else { Ok(()) };
        let e = self.grid.agree(own).unwrap_err();
        assert_eq!(e.to_string(), format!("rank {} failed: the disk is full", self.last));
        self.go_on();
    }

    fn matrices(&self) {
        let (grid, odd) = (self.grid, self.odd);
        let device = grid.device("reference").unwrap();
        // A part of a wrong shape on one rank.
        let (m, n) = grid.part_dim((50, 900));
        let part = Array2::<f32>::zeros((m + usize::from(odd), n));
        let made = Distributed::from_part(grid, &device, (50, 900), part);
        let text = format!(
            "holds {} × {n} of the 50 × 900 matrix, where the split gives it {m} × {n}",
            m + 1
        );
        let e = made.expect_err("an error");
        assert!(!odd || e.to_string().contains(&text), "{e}");
        assert!(odd || matches!(e, Error::Rank { rank, .. } if rank == self.last), "{e}");
        // Another matrix, and another type.
        let columns = 900 + usize::from(odd);
        let made = Distributed::from_fn(grid, &device, (4, columns), |_, _| 0.0f32);
        self.differs(made, "the columns of the matrix: 900 on rank 0, 901");
        let text = "the matrix's element type: f32 on rank 0, f64";
        if odd {
            self.differs(Distributed::from_fn(grid, &device, (4, 900), |_, _| 0.0f64), text);
        } else {
            self.differs(Distributed::from_fn(grid, &device, (4, 900), |_, _| 0.0f32), text);
        }
        self.go_on();
        // More than there is: on one rank, and on all.
        let columns = if odd { 1 << 60 } else { 900 };
        let made = Distributed::from_fn(grid, &device, (4096, columns), |_, _| 0.0f32);
        self.failed(made, "the host is out of memory");
        let made = Distributed::from_fn(grid, &device, (1 << 50, 1 << 50), |_, _| 0.0f32);
        assert!(made.unwrap_err().to_string().contains("asked for more than can be addressed"));
        self.go_on();
    }

    fn files(&self) {
        let (grid, odd) = (self.grid, self.odd);
        let device = grid.device("reference").unwrap();
        let folder = folder();
        let whole = npy("<f4", false, "(300, 600)", &[0; 4 * 300 * 600]);
        let written = match grid.rank() {
            0 => fs::write(folder.join("whole.npy"), &whole)
                .and_then(|()| fs::write(folder.join("short.npy"), &whole[..500_000])),
            _ => Ok(()),
        };
        grid.agree(written).unwrap();
        let name = if odd { "short.npy" } else { "whole.npy" };
        let made = Distributed::<f32>::from_npy(grid, &device, folder.join(name));
        self.failed(made, "short.npy: the file is truncated");
        let name = if odd { "nothing.npy" } else { "whole.npy" };
        let made = Distributed::<f32>::from_npy(grid, &device, folder.join(name));
        self.failed(made, "nothing.npy: ");
        let made = Distributed::<f64>::from_npy(grid, &device, folder.join("whole.npy"));
        let text = made.unwrap_err().to_string();
        assert!(text.ends_with("the array holds f32, where f64 is asked"), "{text}");
        self.go_on();
    }

    fn products(&self) {
        let (grid, odd) = (self.grid, self.odd);
        let reference = grid.device("reference").unwrap();
        let matrix = |device| Distributed::from_fn(grid, device, (6, 900), |i, j| (i * j) as f32);
        let a = matrix(&reference).unwrap();
        let (x, mut y) = (Array1::<f32>::ones(900), Array1::from_elem(6, 7.0f32));
        let was = y.clone();

        let short = Array1::ones(if odd { 899 } else { 900 });
        let e = a.gemv(1.0, &short, 0.0, &mut y);
        self.failed(e, "the matrix is 6 × 900, so x must have 900 entries, but it has 899");
        let mut other = Array1::from_elem(if odd { 5 } else { 6 }, 7.0f32);
        let e = a.gemv(1.0, &x, 0.0, &mut other);
        self.failed(e, "y must have 6 entries, but it has 5");
        let alpha = if odd { 2.0 } else { 1.0 };
        self.differs(a.gemv(alpha, &x, 1.0, &mut y.clone()), "alpha: 1 on rank 0, 2");
        // Another function.
        if odd {
            self.differs(
                a.scatter_x(0, Some(x.view())),
                "the function that is called: gemv on rank 0",
            );
        } else {
            self.differs(a.gemv(1.0, &x, 0.0, &mut y.clone()), "scatter_x on rank");
        }

        // A device that fails, in the product or when the sums are added up.
        let refused = |call| CoreError::Device {
            device: "fake:0".into(),
            call,
            reason: "it has gone".into(),
        };
        let device = match odd {
            true => {
                let late = refused("launch");
                Host { compute: Box::new(move |_, _| Err(late.clone())), ..Host::new("fake:0") }
                    .device()
            }
            false => reference.clone(),
        };
        let a = matrix(&device).unwrap();
        self.failed(a.gemv(1.0, &x, 0.5, &mut y), "fake:0: launch failed: it has gone");
        assert_eq!(y, was);
        // One that adds up the sums of segments, but not more.
        let device = match odd {
            true => {
                let late = refused("finish");
                let compute = move |job: &mut Checked<Job<'_>>, _: &Prepared| match job.desc() {
                    Desc { rhs: 1, batch: 1, .. } => Err(late.clone()),
                    _ => {
                        gemv_testkit::compute(job);
                        Ok(())
                    }
                };
                Host { compute: Box::new(compute), ..Host::new("fake:0") }.device()
            }
            false => reference.clone(),
        };
        // Of two segments or more on each rank: a batch.
        let a = Distributed::from_fn(grid, &device, (6, 2048), |i, j| (i * j) as f32).unwrap();
        let failed = a.gemv(1.0, &Array1::ones(2048), 0.5, &mut y);
        self.failed(failed, "fake:0: finish failed: it has gone");
        assert_eq!(y, was);
        self.go_on();
    }

    fn vectors(&self) {
        let (grid, odd, last) = (self.grid, self.odd, self.last);
        let device = grid.device("reference").unwrap();
        let a = Distributed::from_fn(grid, &device, (6, 900), |i, j| (i * j) as f32).unwrap();
        let count: usize = a.entries().map(|run| run.len()).sum();
        let (x, part) = (Array1::<f32>::ones(900), Array1::<f32>::ones(count));
        let e = a.scatter_x(last + 1, Some(x.view())).unwrap_err().to_string();
        assert_eq!(e, format!("rank {} is to be the root: there are {} ranks", last + 1, last + 1));
        self.failed(a.scatter_x::<f32>(last, None), "it gives no vector");
        let short = Array1::<f32>::ones(899);
        let text = "this rank's part of x must have 900 entries, but it has 899";
        self.failed(a.scatter_x(last, Some(short.view())), text);
        if last > 0 {
            let root = if odd { last } else { 0 };
            self.differs(a.scatter_x(root, Some(x.view())), "the root: 0 on rank 0");
        }

        let own = a.scatter_x(0, (grid.rank() == 0).then(|| x.view())).unwrap();
        let long = Array1::<f32>::ones(own.len() + usize::from(odd));
        let e = a.gemv_local(1.0, &long, 0.0, &mut part.clone());
        self.failed(e, "part of x must have ");
        let long = Array1::<f32>::ones(count + usize::from(odd));
        self.failed(
            a.gather_y(0, long.view(), Some(Array1::zeros(6).view_mut())),
            "part of y must",
        );
        let mut y = Array1::from_elem(5, 7.0f32);
        self.failed(
            a.gather_y(last, part.view(), Some(y.view_mut())),
            "part of y must have 6 entries",
        );
        assert_eq!(y, Array1::from_elem(5, 7.0));
        self.failed(a.gather_y(last, part.view(), None), "it gives no vector");
        self.go_on();
    }
}
