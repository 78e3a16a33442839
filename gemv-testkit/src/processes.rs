//! Processes that tests start: the program itself again, children that `fork` makes, and limits.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Set in a process that [`again`] started.
const AGAIN: &str = "GEMV_TEST_AGAIN";

/// How long a process may take before it counts as one that waits for ever.
const LONGEST: Duration = Duration::from_secs(60);

/// Whether this process was started by [`again`].
pub fn is_again() -> bool {
    std::env::var_os(AGAIN).is_some()
}

/// Runs this program once more with these arguments and variables, and returns what it prints.
///
/// # Panics
/// If it fails, or takes more than a minute.
pub fn again(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(arguments)
        .env(AGAIN, "1")
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (mut out, mut err) =
        (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let errors = scope.spawn(move || {
            let mut text = Vec::new();
            let _ = err.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let text = scope.spawn(move || {
            let mut text = Vec::new();
            let _ = out.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let status = loop {
            if let Some(status) = child.try_wait().expect("it is a child") {
                break Some(status);
            }
            if start.elapsed() > LONGEST {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (text, errors) = (text.join().expect("read"), errors.join().expect("read"));
        let status = status.map_or("it waits for ever".into(), |status| match status.success() {
            true => String::new(),
            false => status.to_string(),
        });
        assert!(status.is_empty(), "{arguments:?}: {status}\n{text}\n{errors}");
        text
    })
}

/// Runs the test of this name, which calls this, in a process of its own, and says whether it is that process.
///
/// # Panics
/// As [`again`].
pub fn in_a_process(test: &str, variables: &[(&str, &str)]) -> bool {
    if !is_again() {
        again(&[test, "--exact", "--nocapture", "--test-threads=1"], variables);
    }
    is_again()
}

/// Runs `work` in a child that `fork` makes, which then ends at once: of this process' other threads it has none.
///
/// # Errors
/// What it says, if it fails, panics, ends by a signal, or takes longer than it may.
pub fn in_a_child(
    longest: Duration,
    work: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    // SAFETY: the child runs `work` and ends by `_exit`. It may not wait for what another thread of this process holds, which is
    // what is tested.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().to_string()),
        0 => {
            let done = catch_unwind(AssertUnwindSafe(work));
            let code = match done {
                Ok(Ok(())) => 0,
                Ok(Err(why)) => {
                    eprintln!("in the child: {why}");
                    1
                }
                Err(_) => 2,
            };
            // SAFETY: it ends the process, without destructors.
            unsafe { libc::_exit(code) }
        }
        child => wait_for(child, longest),
    }
}

fn wait_for(child: libc::pid_t, longest: Duration) -> Result<(), String> {
    let (start, mut status) = (Instant::now(), 0);
    loop {
        // SAFETY: `status` is a local.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if start.elapsed() > longest => {
                // SAFETY: it was not waited for, so the number is still the child's.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, &mut status, 0);
                }
                return Err("the child waits for ever".into());
            }
            0 => std::thread::sleep(Duration::from_millis(2)),
            pid if pid == child && status == 0 => return Ok(()),
            pid if pid == child => return Err(format!("the child ended with status {status:#x}")),
            _ => return Err(std::io::Error::last_os_error().to_string()),
        }
    }
}

/// Lets this process have so many more bytes of addresses than it has, or as many as it likes.
///
/// With `RUST_MIN_STACK` of more, no thread can be made.
pub fn limit_addresses(more: Option<u64>) {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("a system with /proc");
    let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both read or write a local.
    let done = unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as u64;
        let got = libc::getrlimit(libc::RLIMIT_AS, &mut limit);
        limit.rlim_cur = more.map_or(limit.rlim_max, |more| pages * page + more);
        (got, libc::setrlimit(libc::RLIMIT_AS, &limit))
    };
    assert_eq!(done, (0, 0));
}
