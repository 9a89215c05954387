//! Gives back the memory of an embedded program once it was copied.
#![allow(unsafe_code)]

/// Lets go of the pages of `content`, which lies in the executable file; they come back from there
/// when touched again. Without this every launcher would carry the program twice.
pub(crate) fn forget(content: &'static [u8]) {
    const PAGE: usize = 4096;
    let start = content.as_ptr().addr().next_multiple_of(PAGE);
    let end = (content.as_ptr().addr() + content.len()) / PAGE * PAGE;
    if start >= end {
        return;
    }
    let first = content.as_ptr().with_addr(start);
    // SAFETY: the range lies within one static array of constant bytes: clean pages of a file, which
    // the kernel reads again when needed. A refusal changes nothing, so the answer is not needed.
    unsafe { libc::madvise(first.cast_mut().cast(), end - start, libc::MADV_DONTNEED) };
}
