//! Which kernels a table was tuned with: a header line for each, with its fingerprint.

use gemv_core::KernelInfo;
use gemv_core::table::Row;

/// The key of a kernel's line in a table's header.
///
/// ```
/// assert_eq!(gemv_lab::tuner::kernel_key("row"), "kernel row"); // `# kernel row: 0123456789abcdef`
/// ```
pub fn kernel_key(kernel: &str) -> String {
    format!("kernel {kernel}")
}

/// Header lines for the kernels that these rows name, by name: [key](kernel_key) and fingerprint.
/// A kernel that the backend does not describe has none.
///
/// ```
/// use gemv_core::{KernelInfo, Table};
/// use gemv_lab::tuner::kernel_lines;
/// let (about, fingerprint) = ("Adds.", "0123456789abcdef".to_string());
/// let kernels = [KernelInfo { name: "row", about, args: &[], fingerprint }];
/// let rows = Table::parse("t", "* row : row\n* col : col")?.rows;
/// assert_eq!(kernel_lines(&kernels, &rows), [("kernel row".into(), "0123456789abcdef".into())]);
/// # Ok::<(), gemv_core::Error>(())
/// ```
pub fn kernel_lines(kernels: &[KernelInfo], rows: &[Row]) -> Vec<(String, String)> {
    let named =
        |kernel: &&KernelInfo| rows.iter().any(|row| row.params.kernel().as_str() == kernel.name);
    let mut lines: Vec<(String, String)> = kernels
        .iter()
        .filter(named)
        .map(|kernel| (kernel_key(kernel.name), kernel.fingerprint.clone()))
        .collect();
    lines.sort();
    lines
}

/// The text of a table with these lines in its header in place of those that it has; all else stays
/// as it is.
///
/// ```
/// let text = "# device: A card\n# kernel old: 1\n* * : row\n";
/// let lines = [("kernel row".to_string(), "2".to_string())];
/// let stamped = gemv_lab::tuner::stamped(text, &lines);
/// assert_eq!(stamped, "# device: A card\n# kernel row: 2\n* * : row\n");
/// ```
pub fn stamped(text: &str, lines: &[(String, String)]) -> String {
    let old = |line: &&str| line.starts_with("# kernel ") || line.starts_with("# kernels: ");
    let kept: Vec<&str> = text.lines().filter(|line| !old(line)).collect();
    let header = kept.iter().take_while(|line| line.starts_with('#')).count();
    let mut out = String::new();
    let mut add = |line: &str| out.extend([line, "\n"]);
    kept[..header].iter().for_each(|line| add(line));
    lines.iter().for_each(|(key, value)| add(&format!("# {key}: {value}")));
    kept[header..].iter().for_each(|line| add(line));
    out
}
