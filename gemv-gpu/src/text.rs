//! Texts of several files as one constant.

/// Bytes of some texts, one after another. See [`source!`](crate::source).
pub const fn joined_len(texts: &[&str]) -> usize {
    let (mut len, mut i) = (0, 0);
    while i < texts.len() {
        len += texts[i].len();
        i += 1;
    }
    len
}

/// Some texts one after another, of [`joined_len`] bytes. See [`source!`](crate::source).
///
/// # Panics
/// If `N` is less than their length; at compile time, where this is used in a constant.
pub const fn joined<const N: usize>(texts: &[&str]) -> [u8; N] {
    let (mut out, mut at, mut i) = ([0; N], 0, 0);
    while i < texts.len() {
        let (text, mut k) = (texts[i].as_bytes(), 0);
        while k < text.len() {
            out[at] = text[k];
            (at, k) = (at + 1, k + 1);
        }
        i += 1;
    }
    out
}

/// Some constant texts one after another, as a constant: what `concat!` does for literals.
///
/// ```
/// use gemv_gpu::REDUCE_SOURCE;
/// const SOURCE: &str = gemv_gpu::source!["// mine\n", REDUCE_SOURCE];
/// assert!(SOURCE.starts_with("// mine") && SOURCE.ends_with(REDUCE_SOURCE));
/// ```
#[macro_export]
macro_rules! source {
    ($($text:expr),+ $(,)?) => {{
        const TEXTS: &[&str] = &[$($text),+];
        const BYTES: [u8; $crate::joined_len(TEXTS)] = $crate::joined(TEXTS);
        match ::core::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("texts are UTF-8, and so are several"),
        }
    }};
}
