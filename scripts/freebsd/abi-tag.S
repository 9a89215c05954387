/*
 * The note that tells FreeBSD's kernel the release an executable was made for. Without it the kernel takes the
 * executable for an ancient one and treats it so. On FreeBSD it comes with the system's start-up code; zig has it too,
 * but in a section group, which the linker throws away as unused. So scripts/check-freebsd links this one in.
 */
	.section .note.tag, "a", %note
	.p2align 2
	.4byte	8		/* the length of the name */
	.4byte	4		/* the length of the value */
	.4byte	1		/* NT_FREEBSD_ABI_TAG */
	.asciz	"FreeBSD"
	.4byte	1400097		/* __FreeBSD_version of 14.0-RELEASE, the oldest that is supported */

	.section .note.GNU-stack, "", %progbits
