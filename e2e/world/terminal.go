package world

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// NewTerminal makes a pseudo-terminal of 24 rows and 80 columns. The caller closes both ends. The master
// has deadlines.
func NewTerminal() (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	var number, unlock int32
	size := [4]uint16{24, 80}
	for _, c := range []struct {
		request uintptr
		with    unsafe.Pointer
	}{
		{syscall.TIOCSPTLCK, unsafe.Pointer(&unlock)},
		{syscall.TIOCGPTN, unsafe.Pointer(&number)},
		{syscall.TIOCSWINSZ, unsafe.Pointer(&size)},
	} {
		if err = Control(master, c.request, c.with); err != nil {
			break
		}
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// Control is ioctl(2). Unlike [os.File.Fd], it leaves the file its deadlines.
func Control(f *os.File, request uintptr, with unsafe.Pointer) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) { _, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(with)) }); err != nil {
		return err
	}
	if errno != 0 {
		return errno
	}
	return nil
}
