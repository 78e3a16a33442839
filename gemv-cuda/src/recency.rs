//! PTX written for a compressor: registers and labels by how many others were named since.
//!
//! NVRTC numbers registers through a whole function, so no two turns of an unrolled loop read the same.
//! By recency they do: what was named last is 0, what was named before it 1.
//!
//! A name that was there before is a sign, its class and that number, such as `#f3` or `` `L__BB0_2 ``; a
//! new one is sign and class alone. Registers are those that the function declares (`.reg .f32 %f<9>`),
//! so `%clock64` stays as it is. Each function counts anew.

use std::collections::{HashMap, HashSet};

/// The sign of a register in PTX and here; that of a label.
const REGISTER: (char, char) = ('%', '#');
const LABEL: (char, char) = ('$', '`');

/// The names of each class, the last one at the end; and the numbers that names have in the result.
type Names<'a> = HashMap<&'a str, Vec<(&'a str, usize)>>;

/// Rewrites PTX without comments, needless white space and variables that nothing names.
///
/// # Errors
/// Where a text has a sign of this form, or a register of number 0.
pub(crate) fn pack(ptx: &str) -> Result<String, String> {
    let plain = plain(ptx);
    if let Some(sign) = plain.chars().find(|c| [REGISTER.1, LABEL.1].contains(c)) {
        return Err(format!("the PTX has a {sign:?}"));
    }
    let mut packed = String::with_capacity(plain.len());
    let (mut names, mut declared) = (Names::new(), HashSet::new());
    for line in plain.lines() {
        if begins_function(line) {
            names.clear();
            declared.clear();
        }
        let mut rest = line;
        while let Some((before, sign, class, number, after)) = next_name(rest, REGISTER.0, LABEL.0)
        {
            packed.push_str(before);
            if sign == REGISTER.0 && number.is_empty() && after.starts_with('<') {
                declared.insert(class);
            }
            let is_register = sign == REGISTER.0 && declared.contains(class);
            if number.is_empty() || !(is_register || sign == LABEL.0) {
                packed.extend([&*sign.to_string(), class, number]);
            } else {
                if is_register && number == "0" {
                    // They come back as 1 and up, of which the function then declares too few.
                    return Err(format!("the PTX has a register {sign}{class}0"));
                }
                packed.push(if is_register { REGISTER.1 } else { LABEL.1 });
                packed.push_str(class);
                let all = names.entry(class).or_default();
                match all.iter().rposition(|(name, _)| *name == number) {
                    Some(place) => {
                        packed.push_str(&(all.len() - 1 - place).to_string());
                        all[place..].rotate_left(1);
                    }
                    None => all.push((number, 0)),
                }
            }
            rest = after;
        }
        packed.push_str(rest);
        packed.push('\n');
    }
    Ok(packed)
}

/// The PTX of a text that [`pack`] has made. Names are numbered in the order in which they appear.
///
/// # Errors
/// Where a number is of no name.
pub(crate) fn unpack(packed: &str) -> Result<String, String> {
    let mut ptx = String::with_capacity(packed.len() + packed.len() / 8);
    let mut names = Names::new();
    for line in packed.lines() {
        if begins_function(line) {
            names.clear();
        }
        let mut rest = line;
        while let Some((before, sign, class, number, after)) = next_name(rest, REGISTER.1, LABEL.1)
        {
            ptx.push_str(before);
            ptx.push(if sign == REGISTER.1 { REGISTER.0 } else { LABEL.0 });
            ptx.push_str(class);
            let all = names.entry(class).or_default();
            if number.is_empty() {
                all.push(("", all.len() + 1));
            } else {
                let since: Option<usize> = number.parse().ok().filter(|since| *since < all.len());
                let since = since.ok_or_else(|| format!("{sign}{class}{number} is no name"))?;
                let place = all.len() - 1 - since;
                all[place..].rotate_left(1);
            }
            ptx.push_str(&all.last().expect("just named").1.to_string());
            rest = after;
        }
        ptx.push_str(rest);
        ptx.push('\n');
    }
    Ok(ptx)
}

/// What PTX means, and no more.
fn plain(ptx: &str) -> String {
    let lines = ptx.lines().map(|line| line.split("//").next().unwrap_or_default());
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    // Of the compiler's own headers, such as the list of targets.
    let unused = |line: &str| {
        let variable =
            line.strip_prefix(".global ").and_then(|rest| rest.split(['=', '[', ';']).next());
        let name = variable.and_then(|variable| variable.split_whitespace().last());
        name.is_some_and(|name| ptx.matches(name).count() == 1)
    };
    let kept = lines.filter(|line| !line.is_empty() && !unused(line));
    kept.flat_map(|line| [line, "\n".into()]).collect()
}

fn begins_function(line: &str) -> bool {
    // Most lines are instructions, and no search begins in them.
    line.starts_with('.') && (line.contains(".entry ") || line.contains(".func "))
}

/// The first name behind one of two signs: what is before it, its sign, its class, the digits at its end,
/// and what is behind it.
fn next_name(text: &str, register: char, label: char) -> Option<(&str, char, &str, &str, &str)> {
    // By bytes: the signs are ASCII, and there are a hundred million characters.
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|b| *b == register as u8 || *b == label as u8)?;
    let of_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let end = bytes[at + 1..].iter().position(|b| !of_name(b));
    let end = end.map_or(bytes.len(), |end| at + 1 + end);
    let digits = bytes[at + 1..end].iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let (class, number) = text[at + 1..end].split_at(end - at - 1 - digits);
    Some((&text[..at], bytes[at] as char, class, number, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "\
//
// Generated by a compiler
//
.version 8.0
.target sm_80
.global .align 8 .u64 of_a_header = 1;
.global .align 4 .u32 counter;

	// .globl	f
.visible .entry f(
	.param .u64 f_param_0
)
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<9>;

	mov.u32 	%r5, %tid.x; // a comment
	mov.u64 	%rd1, %clock64;
	add.s32 	%r6, %r5, %r5;
	add.s32 	%r7, %r6, %r5;
	st.global.u32 	[counter+4], %r7;
	@%p1 bra 	$L__BB0_3;
$L__BB0_3:
	ret;
}
.visible .entry g()
{
	.reg .b32 	%r<3>;
	mov.u32 	%r2, %r2;
	bra 	$L__BB1_2;
}
";

    #[test]
    fn names_are_by_recency_and_come_back_in_order() {
        let packed = pack(PTX).unwrap();
        for line in [
            "mov.u32 #r, %tid.x;",
            "mov.u64 %rd1, %clock64;", // of no class that the function declares
            "add.s32 #r, #r1, #r0;",
            "add.s32 #r, #r2, #r2;",
            "@#p bra `L__BB0_;",
            "`L__BB0_0:",
            "mov.u32 #r, #r0;",
            ".reg .b32 %r<9>;",
        ] {
            assert!(packed.lines().any(|l| l == line), "{line} is not in\n{packed}");
        }
        assert!(!packed.contains("of_a_header") && packed.contains("counter;"), "{packed}");
        let ptx = unpack(&packed).unwrap();
        for line in [
            "add.s32 %r3, %r2, %r1;",
            "st.global.u32 [counter+4], %r3;",
            "@%p1 bra $L__BB0_1;",
            "mov.u32 %r1, %r1;",
            "bra $L__BB1_1;",
        ] {
            assert!(ptx.lines().any(|l| l == line), "{line} is not in\n{ptx}");
        }
        assert_eq!(pack(&ptx).unwrap(), packed);
    }

    #[test]
    fn what_is_no_such_text_is_refused() {
        assert_eq!(pack("#f").unwrap_err(), "the PTX has a '#'");
        let zero = pack(".reg .f32 %f<2>;\nmov.f32 %f0, %f1;").unwrap_err();
        assert_eq!(zero, "the PTX has a register %f0");
        for (packed, why) in [
            ("#f0", "#f0 is no name"),
            ("#f #f1", "#f1 is no name"),
            ("#f99999999999999999999", "#f99999999999999999999 is no name"),
            // Each function has its own.
            ("#f\n.entry f(\n#f0", "#f0 is no name"),
        ] {
            assert_eq!(unpack(packed).unwrap_err(), why);
        }
    }
}
