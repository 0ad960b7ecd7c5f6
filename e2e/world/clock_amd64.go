package world

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Clock is the wall clock of one egressd, which a test sets back and forward. The clock of the machine stays as it is.
//
// Go reads the time with a function that the kernel maps into each process. [Clock.Start] puts another one in its place
// before the program begins: it asks the kernel, and adds a number of seconds to the wall clock. The clock since boot and timers go on as they are.
type Clock struct {
	memory *os.File // of the process
	ahead  int64    // where that number is
}

// clockGettime is the function. The number of seconds follows it.
var clockGettime = []byte{
	0xb8, 228, 0, 0, 0, // mov eax, clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi
	0x75, 0x0a, // jne to the end, unless the clock is CLOCK_REALTIME
	0x48, 0x8b, 0x0d, 0, 0, 0, 0, // mov rcx, the seconds
	0x48, 0x01, 0x0e, // add rcx to what rsi points to
	0xc3, // ret
}

// Start runs egressd as [Daemon.Run] does, with its wall clock moved by some time.
func (c *Clock) Start(t *testing.T, d *Daemon, by time.Duration) {
	t.Helper()
	if c.memory != nil {
		c.memory.Close()
	}
	cmd := exec.Command(Egressd.Path(), "serve", "--config", d.Config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true} // it stops at its first instruction
	d.begun = func() error {
		pid := cmd.Process.Pid
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
			return fmt.Errorf("wait for egressd's first instruction: %v, %w", status, err)
		}
		if err := c.take(pid); err != nil {
			return err
		}
		if err := c.Set(by); err != nil {
			return err
		}
		return syscall.PtraceDetach(pid)
	}
	d.Run(t, cmd)
	d.begun = nil
}

// take puts clockGettime in its place.
func (c *Clock) take(pid int) error {
	var begin, end int64
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &begin, &end); err != nil {
				return err
			}
		}
	}
	if c.memory, err = os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0); err != nil {
		return err
	}
	image := make([]byte, end-begin)
	if _, err := c.memory.ReadAt(image, begin); err != nil {
		return err
	}
	object, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	symbols, err := object.DynamicSymbols()
	if err != nil {
		return err
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			at := begin + int64(s.Value)
			c.ahead = (at + int64(len(clockGettime)) + 7) &^ 7
			code := bytes.Clone(clockGettime)
			binary.LittleEndian.PutUint32(code[14:], uint32(c.ahead-at-18)) // from the next instruction
			_, err := c.memory.WriteAt(code, at)
			return err
		}
	}
	return errors.New("the kernel maps no clock")
}

// Set moves the wall clock to some time from the machine's, in whole seconds. Any goroutine may call it while egressd runs.
func (c *Clock) Set(by time.Duration) error {
	_, err := c.memory.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(by/time.Second)), c.ahead)
	return err
}
