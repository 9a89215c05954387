//! Releases the memory of an embedded program after it was copied.
#![allow(unsafe_code)]

/// Releases the pages of `content` with `MADV_DONTNEED`. They are mapped from the executable file, so
/// the kernel reads them again on access. Otherwise every launcher would hold the program twice.
pub(crate) fn release(content: &'static [u8]) {
    const PAGE: usize = 4096;
    let start = content.as_ptr().addr().next_multiple_of(PAGE);
    let end = (content.as_ptr().addr() + content.len()) / PAGE * PAGE;
    if start >= end {
        return;
    }
    let first = content.as_ptr().with_addr(start);
    // SAFETY: the range lies within one static array of constant bytes: clean pages of a file, which
    // the kernel reads again when needed. A failure changes nothing, so the result is ignored.
    unsafe { libc::madvise(first.cast_mut().cast(), end - start, libc::MADV_DONTNEED) };
}
