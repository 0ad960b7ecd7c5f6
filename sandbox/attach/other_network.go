//go:build linux

package attach

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"github.com/egressd/egressd/internal/pidfd"
	"golang.org/x/sys/unix"
)

// ErrHostNetwork is for a process in the network of the host.
var ErrHostNetwork = errors.New("this is no boundary: the process is in the network of the host")

// PrepareProcess is [Prepare] for the network of another process. No process of egressd stays in that network.
func PrepareProcess(p *pidfd.Process, own Addresses) (r *Network, err error) {
	network, err := networkNamespace(p)
	if err != nil {
		return nil, err
	}
	defer network.Close()
	onThread(func() {
		if err = unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter the network of process %d: %w", p.PID, err)
			return
		}
		r, err = Prepare(own)
	})
	switch {
	case err != nil:
		return nil, err
	case r.Request.Mode == ByProxy:
		r.Close()
		return nil, fmt.Errorf("set the network of process %d up: %w", p.PID, unix.EPERM)
	}
	there, err := p.Duplicate()
	if err != nil {
		r.Close()
		return nil, err
	}
	r.Request.Kind, r.fds = KindAttach, append(r.fds, there)
	return r, nil
}

// onThread runs f on a thread that ends afterwards. It avoids the program's first thread, which cannot end:
// that thread would stay in the other network, and /proc/self shows that thread.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked after f: the thread ends with its goroutine
		if unix.Gettid() == unix.Getpid() {
			onThread(f) // on another one, since this is taken
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// networkNamespace opens the network namespace of a process. It refuses the namespace of this process and of
// PID 1.
func networkNamespace(p *pidfd.Process) (*os.File, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(p.PID) + "/ns/net")
	if err == nil && p.Ended() { // else it still has that number
		err = unix.ESRCH
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, fmt.Errorf("open the network of process %d: %w", p.PID, err)
	}
	if err := notOfHost(f, "net", ErrHostNetwork); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// notOfHost returns refused if a namespace of a kind is that of this process or of PID 1.
func notOfHost(f *os.File, kind string, refused error) error {
	its, err := f.Stat()
	for _, other := range []string{"self", "1"} {
		of, statErr := os.Stat("/proc/" + other + "/ns/" + kind)
		if err == nil && statErr == nil && os.SameFile(its, of) {
			err = refused
		}
	}
	return err
}
