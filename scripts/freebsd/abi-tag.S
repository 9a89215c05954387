/*
 * The note with the FreeBSD release that an executable was built for. Without it the kernel enables compatibility for very
 * old executables. On FreeBSD the start-up code contains it. zig has it too, but in a section group that the linker discards
 * as unused. So scripts/check-freebsd links this one.
 */
	.section .note.tag, "a", %note
	.p2align 2
	.4byte	8		/* the length of the name */
	.4byte	4		/* the length of the value */
	.4byte	1		/* NT_FREEBSD_ABI_TAG */
	.asciz	"FreeBSD"
	.4byte	1400097		/* __FreeBSD_version of 14.0-RELEASE, the oldest supported release */

	.section .note.GNU-stack, "", %progbits
