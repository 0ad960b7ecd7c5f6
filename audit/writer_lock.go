package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/egressd/egressd/internal/durable"
)

// Writer returns the pid of the process that has the log in dir open for writing, or 0
// where that is not known: the kernel's list of locks is not readable, numbers the device
// otherwise, or does not show processes of another pid namespace.
func Writer(dir string) (pid int) {
	var lock syscall.Stat_t
	if syscall.Stat(filepath.Join(dir, "lock"), &lock) != nil {
		return 0
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		// "3: FLOCK  ADVISORY  WRITE 4711 08:01:1837 0 EOF" (proc_locks(5))
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[3] != "WRITE" {
			continue
		}
		if f[5] == fmt.Sprintf("%02x:%02x:%d", major(uint64(lock.Dev)), minor(uint64(lock.Dev)), lock.Ino) {
			pid, _ = strconv.Atoi(f[4])
			return max(pid, 0)
		}
	}
	return 0
}

// nameWriter writes into the lock who holds it. [WriterElsewhere] reads that; a lock without it locks as well.
func nameWriter(lock *os.File) {
	host, err := os.Hostname()
	if err != nil {
		return
	}
	text := fmt.Sprintf("%d %s\n", os.Getpid(), host)
	if _, err := lock.WriteAt([]byte(text), 0); err == nil {
		_ = lock.Truncate(int64(len(text)))
	}
}

// WriterElsewhere returns the process that has the log in dir open for writing by its own words: its pid and its host. In a
// container both are the container's; Docker names the host after the container's id. Both are zero if it left no words.
func WriterElsewhere(dir string) (pid int, host string) {
	text, err := durable.Plain(filepath.Join(dir, "lock"), writerMost)
	if err != nil {
		return 0, ""
	}
	number, host, ok := strings.Cut(strings.TrimSuffix(string(text), "\n"), " ")
	if pid, err = strconv.Atoi(number); err != nil || !ok || pid <= 0 {
		return 0, ""
	}
	return pid, host
}

const writerMost = 512 // bytes of a lock that are read

// major and minor are as in makedev(3).
func major(dev uint64) uint64 { return dev>>8&0xfff | dev>>32&^0xfff }
func minor(dev uint64) uint64 { return dev&0xff | dev>>12&^0xff }
