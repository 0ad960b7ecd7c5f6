package run

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// signals are those that are meant for the program, whoever they are sent to.
type signals struct{ arrived chan os.Signal }

// catchSignals keeps signals from ending egressd before its program. One that who
// started egressd has it ignore stays ignored.
func catchSignals() *signals {
	s := &signals{arrived: make(chan os.Signal, 16)}
	for _, one := range passedOn() {
		if !signal.Ignored(one) {
			signal.Notify(s.arrived, one)
		}
	}
	return s
}

// passedOn are all signals but those that no process can catch, that the kernel sends for what a process does itself, and
// that Go's runtime or watching the program needs.
func passedOn() (all []os.Signal) {
	all = []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGTERM,
		syscall.SIGTSTP, syscall.SIGXCPU, syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGWINCH, syscall.SIGIO, syscall.SIGPWR,
	}
	for realTime := syscall.Signal(34); realTime <= 64; realTime++ {
		all = append(all, realTime)
	}
	return all
}

func (s *signals) release() { signal.Stop(s.arrived) }

// wait waits for the program's end and returns how it ended.
// egressd and the program are in one process group, so signals of the terminal reach both. wait forwards signals
// that were sent to egressd alone.
func (r *runner) wait(s *signals) (syscall.WaitStatus, error) {
	ended := make(chan struct{})
	var forwarding sync.WaitGroup
	defer forwarding.Wait()
	defer close(ended)
	forwarding.Go(func() {
		for {
			select {
			case got := <-s.arrived:
				r.forward(got.(syscall.Signal))
			case <-ended:
				return
			}
		}
	})
	return r.jail.Wait(r.stopped)
}

// forward passes a signal on, unless it came from the terminal, which has sent it
// to the program too.
func (r *runner) forward(s syscall.Signal) {
	if (s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGTSTP || s == syscall.SIGWINCH) && inForeground() {
		return
	}
	r.jail.Signal(s)
}

// stopped has egressd stop where its program was, so that the shell takes the
// terminal back. Both go on when one of them does.
//
// Ctrl-Z stops egressd and the program, and fg continues both, one after the other. Egressd
// may see the program's stop late, when it is over. So egressd looks several times, and stops
// itself only if the program stays stopped.
func (r *runner) stopped() {
	for range stoppedLooks {
		if r.asking.Load() || !r.jail.Stopped() {
			return
		}
		time.Sleep(stoppedPause)
	}
	r.jail.StopAlong()
}

const (
	stoppedLooks = 5
	stoppedPause = 10 * time.Millisecond
)

// takeTerminals gives each terminal back to this process's group. A shell inside cannot do so:
// the group has no number in its PID namespace.
func takeTerminals(terminals []uintptr) {
	signal.Ignore(syscall.SIGTTOU) // which the kernel sends who is in the background
	group := int32(syscall.Getpgrp())
	for _, fd := range terminals {
		_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCSPGRP, uintptr(unsafe.Pointer(&group)))
	}
}

// inForeground reports whether the terminal sends its signals to this process's
// group.
func inForeground() bool { return len(terminalsInForeground()) > 0 }

// terminalsInForeground are the standard streams whose terminal sends its signals to this
// process's group.
func terminalsInForeground() (all []uintptr) {
	for fd := range uintptr(3) {
		var group int32
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
		if errno == 0 && int(group) == syscall.Getpgrp() {
			all = append(all, fd)
		}
	}
	return all
}
