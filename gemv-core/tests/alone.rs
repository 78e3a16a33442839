//! gemv-core without any backend: the reference answers, and an engine of entries of one's own
//! shows when backends are looked for, opened and refused.
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use gemv_core::{
    Backend, BackendEntry, Desc, DeviceInfo, Dtype, Engine, Error, GpuDot, Layout, Params, Result,
    Tables,
};
use gemv_testkit::{Host, compute};
use ndarray::{Array1, Array2, array};

#[test]
fn the_reference_answers_by_name_alone() {
    assert!(gemv_core::BACKENDS.is_empty(), "no backend is linked here");
    let engine = Engine::new(None);
    let lines: Vec<String> = engine.devices().iter().map(|line| line.to_string()).collect();
    let absent = |name| format!("no {name} (built without the feature {name:?} of gemv)");
    assert_eq!(lines, ["cpu", "opencl", "cuda"].map(absent));
    let e = engine.default_device().unwrap_err();
    assert_eq!(
        e.to_string(),
        "no device for products of host arrays: no backend is linked into this program; depend on \
         gemv with features = [\"cpu\"] (and `use gemv as _;` where nothing else names it), or ask \
         for the slow reference by GEMV_BACKEND=reference"
    );
    let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, 1.0]);
    assert_eq!(engine.device("reference").unwrap().try_gpu_dot(&a, &x).unwrap(), array![3.0, 7.0]);
    for name in ["cuda", "cuda:1"] {
        let e = Engine::new(Some(name.into())).default_device().unwrap_err();
        assert_eq!(e, Error::NotBuilt { feature: "cuda" });
        let text = "no cuda: this program was built without the feature \"cuda\" of gemv";
        assert_eq!(e.to_string(), text);
    }
}

/// A device of f32 whose kernels all do what the reference does.
fn fake(id: &str, table: &'static str) -> Host {
    let mut host = Host::new(id);
    host.info.name = "A fake; device/1".into();
    host.accepts = |desc| match desc.dtype.needs_f64() {
        true => Err("it has no double precision".into()),
        false => Ok(()),
    };
    host.candidates =
        |_| vec![Params::new("row").with("rows", 1), Params::new("row").with("rows", 2)];
    host.fits = |_, params| match (params.kernel().as_str(), params.get("rows")) {
        ("row", Some(1..=8)) => Ok(()),
        // Legal, on request.
        ("read" | "classic-row" | "vendor-blas", None) => Ok(()),
        ("row", _) => Err("rows is 1 to 8".into()),
        _ => Err("no such kernel".into()),
    };
    host.table = table;
    host
}

const TABLE: &str = "* * : row rows=3\nf32 row m=16 n=16 : row rows=4";

/// Entries are plain functions, so each test counts in statics of its own.
macro_rules! entry {
    ($name:literal, rank $rank:literal, $devices:expr) => {{
        static FOUND: AtomicUsize = AtomicUsize::new(0);
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        fn discover() -> Result<Vec<DeviceInfo>> {
            FOUND.fetch_add(1, SeqCst);
            $devices
        }
        fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
            OPENED.fetch_add(1, SeqCst);
            Ok(Arc::new(fake(&format!("{}:{ordinal}", $name), TABLE)))
        }
        (BackendEntry { name: $name, rank: $rank, discover, open }, &FOUND, &OPENED)
    }};
}

fn infos(ids: &[&str]) -> Result<Vec<DeviceInfo>> {
    Ok(ids.iter().map(|&id| DeviceInfo::new(id)).collect())
}

fn missing() -> Result<Vec<DeviceInfo>> {
    Err(Error::DriverMissing { backend: "lost", reason: "looked for liblost.so, not found".into() })
}

#[test]
fn nothing_is_looked_for_or_opened_before_it_is_needed() {
    let (entry, found, opened) = entry!("fake", rank 1, infos(&["fake:0", "fake:1"]));
    let counts = || (found.load(SeqCst), opened.load(SeqCst));
    let engine = Engine::with_entries([entry], None);
    assert_eq!(counts(), (0, 0));
    let ids: Vec<String> = engine.devices().into_iter().map(|l| l.id).collect();
    assert_eq!((ids, counts()), (vec!["fake:0".into(), "fake:1".into()], (1, 0)));
    let first = engine.device("fake:1").unwrap();
    assert_eq!((first.info().id.as_str(), counts()), ("fake:1", (1, 1)));
    // Opened once, and the same device by every way to it.
    assert!(engine.device("fake:1").unwrap().is(&first));
    let default = engine.default_device().unwrap();
    assert_eq!((default.info().id.as_str(), counts()), ("fake:0", (1, 2)));
    assert!(engine.device("fake").unwrap().is(&default) && default != first);
    engine.devices();
    assert_eq!(counts(), (1, 2));
}

#[test]
fn a_program_chooses_its_default_once() {
    let (entry, ..) = entry!("fake", rank 1, infos(&["fake:0", "fake:1"]));
    let engine = Engine::with_entries([entry], None);
    assert!(matches!(engine.set_default("abacus"), Err(Error::NoDevice { .. })));
    engine.set_default("fake:1").unwrap();
    engine.set_default("fake:1").unwrap();
    assert_eq!(engine.default_device(), engine.device("fake:1"));
    let e = engine.set_default("fake:0").unwrap_err();
    assert_eq!(e, Error::DefaultInUse { device: Some("fake:1".into()) });
    // A device that products have gone to is the default as well.
    let engine = Engine::with_entries([entry], None);
    assert_eq!(engine.default_device(), engine.device("fake:0"));
    assert!(engine.set_default("fake:1").is_err() && engine.set_default("fake:0").is_ok());
    // After a product that found none, it is too late.
    let engine = Engine::with_entries([], None);
    assert!(matches!(engine.default_device(), Err(Error::NoBackend { .. })));
    let e = engine.set_default("reference").unwrap_err();
    assert!(e.to_string().contains("found none: choose before the first"), "{e}");
}

#[test]
fn concurrent_first_uses_open_once() {
    let (entry, found, opened) = entry!("fake", rank 1, infos(&["fake:0"]));
    let engine = Engine::with_entries([entry], None);
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| assert!(engine.default_device().is_ok()));
        }
    });
    assert_eq!((found.load(SeqCst), opened.load(SeqCst)), (1, 1));
}

#[test]
fn rank_decides_and_a_name_beats_it() {
    let (slow, slow_found, _) = entry!("slow", rank 9, infos(&["slow:0"]));
    let (fast, ..) = entry!("fast", rank 1, infos(&["fast:0"]));
    let (none, ..) = entry!("none", rank 0, infos(&[]));
    let (lost, ..) = entry!("lost", rank 0, missing());
    let id = |engine: &Engine| engine.default_device().unwrap().info().id.clone();
    let engine = Engine::with_entries([slow, fast, none, lost], None);
    // Backends without a device are passed over, and one that is not needed is not asked.
    assert_eq!((id(&engine), slow_found.load(SeqCst)), ("fast:0".into(), 0));
    assert_eq!(id(&Engine::with_entries([slow, fast], Some("slow".into()))), "slow:0");
    assert_eq!(id(&Engine::with_entries([slow, fast], Some(" slow:0 ".into()))), "slow:0");
    assert_eq!(id(&Engine::with_entries([slow, fast], Some("".into()))), "fast:0");
    assert_eq!(id(&Engine::with_entries([slow, fast], Some("reference".into()))), "reference");
    // No device at all: said in one sentence, and never computed by the reference unasked.
    let e = Engine::with_entries([none, lost], None).default_device().unwrap_err().to_string();
    let part = "arrays: no lost (looked for liblost.so, not found); depend on gemv with features";
    assert!(e.contains(part), "{e}");
}

/// Such as an instruction set that the processor has not: to compute elsewhere would hide it.
#[test]
fn a_wrong_request_of_the_first_backend_is_not_passed_over() {
    fn refused() -> Result<Vec<DeviceInfo>> {
        Err(Error::NoDevice { asked: "odd".into(), found: "even".into() })
    }
    let (first, ..) = entry!("first", rank 0, refused());
    let (second, ..) = entry!("second", rank 1, infos(&["second:0"]));
    let engine = Engine::with_entries([first, second], None);
    let e = engine.default_device().unwrap_err().to_string();
    assert_eq!(e, "no such device: \"odd\"; there is even");
    assert!(engine.device("second").is_ok());
}

#[test]
fn what_is_not_there_says_why_in_one_sentence() {
    let (fake, ..) = entry!("fake", rank 1, infos(&["fake:0"]));
    let (lost, found, _) = entry!("lost", rank 2, missing());
    let engine = Engine::with_entries([fake, lost], None);
    let sentence = "lost is not available: looked for liblost.so, not found";
    let lines = engine.devices();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1].found.as_ref().unwrap_err().to_string(), sentence);
    assert_eq!(engine.device("lost").unwrap_err().to_string(), sentence);
    assert_eq!(engine.device("lost:3").unwrap_err().to_string(), sentence);
    assert_eq!(found.load(SeqCst), 1, "a failure is remembered");
    for asked in ["fake:1", "fake:", "fake:-1", "fakes", "Fake", "FAKE:0", "opencl:0"] {
        assert_eq!(
            engine.device(asked).unwrap_err().to_string(),
            format!(
                "no such device: {asked:?}; there is fake:0, no lost (looked for liblost.so, not found)"
            )
        );
    }
    let forced = Engine::with_entries([fake, lost], Some("lost".into()));
    // A forced device that is missing is an error each time, never another device.
    for _ in 0..2 {
        assert_eq!(forced.default_device().unwrap_err().to_string(), sentence);
    }
    // Of all its entries, what is there can still be had by name.
    assert!(forced.device("fake").is_ok());
}

#[test]
fn a_device_that_does_not_open_is_an_error_each_time() {
    fn open(_: usize) -> Result<Arc<dyn Backend>> {
        Err(Error::Device { device: "shy:0".into(), call: "open", reason: "not today".into() })
    }
    let entry = BackendEntry { name: "shy", rank: 0, discover: || infos(&["shy:0"]), open };
    let engine = Engine::with_entries([entry], None);
    for _ in 0..2 {
        let e = engine.default_device().unwrap_err();
        assert_eq!(e.to_string(), "shy:0: open failed: not today");
    }
}

#[test]
fn choices_come_from_the_table_and_only_legal_rows() {
    let desc = |m, n| Desc::new(Dtype::F32, m, n, (n as isize, 1), 0);
    let choose = |tables: &'static str, m, n| {
        fake("fake:0", tables).device().choose(&desc(m, n)).unwrap().to_string()
    };
    assert_eq!(choose(TABLE, 16, 16), "row rows=4");
    assert_eq!(choose("* * : row rows=3\nf32 col : row rows=2", 16, 16), "row rows=3");
    // A row that is not legal, or of a kernel that is gone, is passed over.
    assert_eq!(choose("f32 row : row rows=9\nf32 * : gone\n* * : row rows=5", 4, 4), "row rows=5");
    // So is one of a kernel that does not multiply or keeps another order: no table changes bits.
    for name in ["read", "classic-row", "vendor-blas"] {
        let text = format!("f32 row : {name}\n* * : row rows=5").leak();
        assert_eq!(choose(text, 4, 4), "row rows=5");
    }
    // No legal row, no table that can be read: the backend's first candidate.
    assert_eq!(choose("* * : gone", 4, 4), "row rows=1");
    assert_eq!(choose("not a table", 4, 4), "row rows=1");
    let device = fake("fake:0", TABLE).device();
    // What a thread remembers is of one device and one problem.
    let other = fake("fake:0", "* * : row rows=8").device();
    for _ in 0..2 {
        assert_eq!(device.choose(&desc(16, 16)).unwrap().to_string(), "row rows=4");
        assert_eq!(other.choose(&desc(16, 16)).unwrap().to_string(), "row rows=8");
        assert_eq!(device.choose(&desc(1600, 16)).unwrap().to_string(), "row rows=4");
    }
    let col = Desc { layout: Layout::Col, ..desc(16, 16) };
    let tables = Tables::load(device.backend());
    let (params, from) = tables.explain(device.backend(), &col);
    let (table, row) = from.unwrap();
    assert_eq!(
        (params.to_string(), table.origin.as_str(), row.to_string()),
        ("row rows=3".into(), "fake", "* * : row rows=3".into())
    );
}

/// Keeps what the thread's own code warns of.
struct Listener;

thread_local! {
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

impl log::Log for Listener {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }
    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            SAID.with_borrow_mut(|said| said.push(record.args().to_string()));
        }
    }
    fn flush(&self) {}
}

#[test]
fn a_row_warns_where_it_no_longer_fits_what_it_is_for() {
    // Another test of this process may have been first: it is the same listener.
    let _ = log::set_logger(&Listener);
    log::set_max_level(log::LevelFilter::Warn);
    let text = "f32 row m=8..64 n=8..64 : row rows=9\n* * : row rows=5";
    let device = fake("fake:0", text).device();
    let tables = Tables::load(device.backend());
    let said = |m, n| {
        SAID.take();
        let desc = Desc::new(Dtype::F32, m, n, (n as isize, 1), 0);
        assert_eq!(tables.explain(device.backend(), &desc).0.to_string(), "row rows=5");
        SAID.take()
    };
    let here = said(16, 16);
    assert_eq!(here.len(), 1, "{here:?}");
    assert!(here[0].contains("m=8..64 n=8..64 : row rows=9 is passed over"), "{here:?}");
    // Nearest to this problem, but made for others.
    assert_eq!(said(128, 16), [""; 0]);
}

#[test]
fn what_no_memory_holds_is_an_error() {
    let device = Engine::with_entries([], None).device("reference").unwrap();
    let full = |e: Error| assert!(matches!(e, Error::OutOfMemory { .. }), "{e}");
    for len in [usize::MAX, 1 << 61, 1 << 60] {
        full(device.zeros::<f64, _>(len).unwrap_err());
    }
    let empty = Array2::<f32>::zeros((1 << 61, 0));
    full(device.try_gpu_dot(&empty, &Array1::zeros(0)).unwrap_err());
    let row = array![[1.0f32, 2.0]];
    let rows = row.broadcast((1 << 60, 2)).unwrap();
    full(device.try_gpu_dot(&rows, &array![1.0, 1.0]).unwrap_err());
    assert_eq!(Desc::new(Dtype::C64, usize::MAX, 7, (0, 1), 0).bytes(), u64::MAX);
}

#[test]
fn a_vector_that_had_to_be_replaced_is_there_again_when_the_backend_fails() {
    // It fails after it has written to y.
    let failing = Host {
        compute: Box::new(|job, _| {
            compute(job);
            Err(Error::Device { device: "failing".into(), call: "launch", reason: "late".into() })
        }),
        ..Host::new("failing")
    };
    let device = failing.device();
    let (a, x) = (array![[1.0f64, 0.0], [0.0, 1.0]], array![5.0, 6.0]);
    for beta in [0.0, 1.0] {
        // Shared memory.
        let mut y = device.vector(&array![1.0, 2.0]).unwrap();
        let clone = y.clone();
        assert!(device.gemv(1.0, &a, &x, beta, &mut y).is_err());
        assert_eq!(y.download().unwrap(), array![1.0, 2.0]);
        assert_eq!(clone.download().unwrap(), array![1.0, 2.0]);
        assert!(y.window_mut().is_none(), "shared as before");
        // Entries that lie apart.
        let whole = device.vector(&array![1.0, 2.0, 3.0, 4.0]).unwrap();
        let mut y = whole.step(.., -2);
        assert!(device.gemv(1.0, &a, &x, beta, &mut y).is_err());
        assert_eq!((y.stride(), y.download().unwrap()), (-2, array![4.0, 2.0]));
        assert_eq!(whole.download().unwrap(), array![1.0, 2.0, 3.0, 4.0]);
    }
}

#[test]
fn what_a_device_cannot_do_is_never_cast() {
    let device = fake("fake:0", TABLE).device();
    let mut y = array![7.0f64];
    let e = device.gemv(1.0, &array![[1.0f64]], &array![1.0], 0.0, &mut y).unwrap_err();
    assert_eq!(e.to_string(), "fake:0 cannot compute f64: it has no double precision");
    assert_eq!(y, array![7.0]);
    // A resident y whose memory is shared would have been replaced: it stays as well.
    let mut y = device.vector(&array![7.0f64]).unwrap();
    let clone = y.clone();
    let e = device.gemv(1.0, &array![[1.0f64]], &array![1.0], 0.0, &mut y).unwrap_err();
    assert!(matches!(e, Error::Unsupported { .. }));
    assert_eq!((y.download().unwrap(), clone.download().unwrap()), (array![7.0], array![7.0]));
    let params = Params::new("row").with("rows", 9);
    let a = array![[1.0f32, 2.0], [3.0, 4.0]];
    let mut y = array![7.0f32, 7.0];
    let e = device.product(&a, &array![1.0, 1.0]).with(&params).to(&mut y).unwrap_err();
    assert_eq!(e.to_string(), "row rows=9 does not fit f32 row 2x2 on fake:0: rows is 1 to 8");
    assert_eq!(y, array![7.0, 7.0]);
}

/// Not a test of its own: what a child of the tests below runs, with an environment of its own.
#[test]
#[ignore = "run by other tests, in a child process"]
fn child() {
    let device = fake("fake:0", TABLE).device();
    let desc = Desc::new(Dtype::F32, 16, 16, (16, 1), 0);
    let tables = device.tables();
    let origin = tables.explain(device.backend(), &desc).1.map(|r| r.0.origin.clone());
    println!("\nchosen: {} from {}", device.choose(&desc).unwrap(), origin.unwrap_or_default());
    match Engine::global().default_device() {
        Ok(device) => println!("default: {}", device.info().id),
        Err(e) => println!("default: {e}"),
    }
    match array![[2.0]].try_gpu_dot(&array![3.0]) {
        Ok(y) => println!("dot: {y}"),
        Err(e) => println!("dot: {e}"),
    }
    log::set_logger(&Listener).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    fn discover() -> Result<Vec<DeviceInfo>> {
        Ok(vec![fake("fake:0", TABLE).info])
    }
    let open = |_| -> Result<Arc<dyn Backend>> { Ok(Arc::new(fake("fake:0", TABLE))) };
    let entry = BackendEntry { name: "fake", rank: 0, discover, open };
    Engine::with_entries([entry], None).device("fake").unwrap();
    println!("warned: {}", SAID.take().join("; "));
}

/// The lines that the child prints, by their first word.
fn child_says(env: &[(&str, &str)]) -> impl Fn(&str) -> String + use<> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--ignored", "--nocapture"]);
    for name in ["GEMV_TABLES", "GEMV_BACKEND", "XDG_CONFIG_HOME", "HOME"] {
        command.env_remove(name);
    }
    // No table of the user who runs the tests.
    command.env("XDG_CONFIG_HOME", "no-such-directory");
    command.envs(env.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    move |key| {
        let line = text.lines().find_map(|l| l.strip_prefix(&format!("{key}: ")));
        line.unwrap_or_else(|| panic!("no {key} in {text}")).to_owned()
    }
}

#[test]
fn the_environment_names_the_device() {
    let says = child_says(&[]);
    assert!(says("default").starts_with("no device for products"), "{}", says("default"));
    assert_eq!(says("dot"), says("default"));
    let says = child_says(&[("GEMV_BACKEND", "reference")]);
    assert_eq!((says("default"), says("dot")), ("reference".into(), "[6]".into()));
    // The variable is named.
    let says = child_says(&[("GEMV_BACKEND", "cuda:1")]);
    let built = "this program was built without the feature \"cuda\" of gemv";
    assert_eq!(says("default"), format!("GEMV_BACKEND=cuda:1: no cuda: {built}"));
    assert_eq!(says("dot"), says("default"));
    let says = child_says(&[("GEMV_BACKEND", "abacus")]);
    let start = "GEMV_BACKEND=abacus: no such device: \"abacus\"; there is no cpu (built";
    assert!(says("default").starts_with(start), "{}", says("default"));
}

#[test]
fn tables_of_the_users_come_first() {
    // Not under the directory of the sources: a test binary may run on another machine.
    let dir = std::env::temp_dir().join(format!("gemv-alone-{}", std::process::id()));
    let (one, two) = (dir.join("one"), dir.join("two"));
    let (user, name) = (two.join("gemv").join("tables"), "fake-a-fake-device-1.txt");
    std::fs::create_dir_all(&one).unwrap();
    std::fs::create_dir_all(&user).unwrap();
    let fake = fake("fake:0", TABLE);
    assert_eq!(gemv_core::table::file_name(&fake), name);
    let (one_s, two_s) = (one.to_str().unwrap(), two.to_str().unwrap());

    assert_eq!(child_says(&[])("chosen"), "row rows=4 from fake");
    // The user's configuration directory, then GEMV_TABLES before it.
    let in_user = user.join(name);
    std::fs::write(&in_user, "f32 row : row rows=6").unwrap();
    let says = child_says(&[("XDG_CONFIG_HOME", two_s)]);
    assert_eq!(says("chosen"), format!("row rows=6 from {}", in_user.display()));
    let in_env = one.join(name);
    std::fs::write(&in_env, "# mine\nf32 row m=2^10 n=2^10 : row rows=7").unwrap();
    let says = child_says(&[("XDG_CONFIG_HOME", two_s), ("GEMV_TABLES", one_s)]);
    assert_eq!(says("warned"), "");
    // A table of no device here is not passed over in silence.
    let stray = one.join("fake-a-fake-device-2.txt");
    std::fs::write(&stray, "* * : row rows=1").unwrap();
    let says = child_says(&[("XDG_CONFIG_HOME", two_s), ("GEMV_TABLES", one_s)]);
    let warned = format!("GEMV_TABLES: {} is of no device here", stray.display());
    assert_eq!(says("warned"), warned);
    assert_eq!(says("chosen"), format!("row rows=7 from {}", in_env.display()));
    // One that says nothing of this problem, or nothing legal, leaves it to the next.
    std::fs::write(&in_env, "f32 col : row rows=7\nf32 row : row rows=99").unwrap();
    let says = child_says(&[("XDG_CONFIG_HOME", two_s), ("GEMV_TABLES", one_s)]);
    assert_eq!(says("chosen"), format!("row rows=6 from {}", in_user.display()));
    // One that is not well formed is left out as a whole.
    std::fs::write(&in_env, "f32 row : row rows=7\nnonsense").unwrap();
    let says = child_says(&[("XDG_CONFIG_HOME", two_s), ("GEMV_TABLES", one_s)]);
    assert_eq!(says("chosen"), format!("row rows=6 from {}", in_user.display()));
    let says = child_says(&[("GEMV_TABLES", one_s)]);
    assert_eq!(says("chosen"), "row rows=4 from fake");
    std::fs::remove_dir_all(&dir).unwrap();
}
