package ahead

import "syscall"

// mapCode has the kernel map all of the program's code at once (Linux 5.14). To initialise
// what is linked into it touches so much of that, here and there, that page by page takes
// a tenth of a start. Where it cannot be done, nothing is lost.
func mapCode() {
	fd, err := syscall.Open("/proc/self/exe", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var head [1024]byte
	n, err := syscall.Pread(fd, head[:], 0)
	syscall.Close(fd)
	if err != nil {
		return
	}
	if at, size := codeOf(head[:n]); size > 0 {
		const populateRead = 22 // MADV_POPULATE_READ
		_, _, _ = syscall.RawSyscall(syscall.SYS_MADVISE, uintptr(at), uintptr(size), populateRead)
	}
}

// codeOf returns where the code of a program is mapped that begins with head: an ELF file
// of 64 bits, little endian, whose addresses are fixed (elf(5)). For others size is 0.
func codeOf(head []byte) (at, size uint64) {
	const (
		headerSize = 64
		entrySize  = 56 // of the table of segments
		fixed      = 2  // ET_EXEC
		load       = 1  // PT_LOAD
		executable = 1  // PF_X
	)
	if len(head) < headerSize || string(head[:6]) != "\x7fELF\x02\x01" || number(head[16:18]) != fixed || number(head[54:56]) != entrySize {
		return 0, 0
	}
	table, count := number(head[32:40]), number(head[56:58])
	if table > uint64(len(head)) || count*entrySize > uint64(len(head))-table {
		return 0, 0
	}
	for ; count > 0; count, table = count-1, table+entrySize {
		entry := head[table:][:entrySize]
		if number(entry[:4]) == load && number(entry[4:8])&executable != 0 {
			return number(entry[16:24]), number(entry[40:48])
		}
	}
	return 0, 0
}

// number is little endian.
func number(text []byte) (n uint64) {
	for i, b := range text {
		n |= uint64(b) << (8 * i)
	}
	return n
}
