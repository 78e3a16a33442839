//! Texts that people bring: the words of this crate's kernels for those that ask for them.

use crate::PRELUDE;

/// The line that stands for the words.
const INCLUDE: &str = "#include \"gemv.h\"";

/// The words for blocks of any size and for dynamic shared memory, and names of types that every
/// compiler reports as they are.
const WORDS: &str = include_str!("kernels/gemv.h");

/// The text of a person's kernel as it is compiled: the line `#include "gemv.h"` becomes the
/// [prelude](PRELUDE) and what people's kernels need beside it. Lines keep their numbers in the
/// compiler's log. A text without this line is compiled as it is.
///
/// ```
/// use gemv_gpu::{PRELUDE, with_words};
///
/// let text = "#define DTYPE 1\n#include \"gemv.h\"\nENTRY f(GLOBAL ELEM *y) { y[0] = 1; }\n";
/// let whole = with_words(text);
/// assert!(whole.starts_with("#define DTYPE 1\n") && whole.contains(PRELUDE));
/// assert!(whole.ends_with("\n#line 3\nENTRY f(GLOBAL ELEM *y) { y[0] = 1; }\n"));
/// assert_eq!(with_words("__kernel void f() {}"), "__kernel void f() {}");
/// ```
pub fn with_words(text: &str) -> String {
    let mut whole = String::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if line.trim() == INCLUDE {
            whole.push_str(PRELUDE);
            whole.push_str(WORDS);
            whole.push_str(&format!("\n#line {}\n", index + 2));
        } else {
            whole.push_str(line);
        }
    }
    whole
}
