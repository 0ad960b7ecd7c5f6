package jail

import (
	"slices"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/capture"
	"golang.org/x/sys/unix"
)

// Stand waits until the jail is made. The error is a [*SetupError].
func (j *Jail) Stand() error {
	report, fds, err := j.awaitMade()
	if err != nil {
		return err
	}
	st := &madeJail{report, fds, capture.Sockets{Redirected: report.Redirected}}
	if i := slices.Index(report.Sockets, jailinit.Diag); i >= 0 { // jail init may have ended: there is no such program
		st.sockets.Programs = sandbox.ProgramsOf(fds[i], j.pid, j.network)
		st.fds[i] = -1
	}
	j.made = st
	return nil
}

// A madeJail has sent its descriptors.
type madeJail struct {
	report  jailinit.Report
	fds     []int // those that sockets have are -1
	sockets capture.Sockets
}

// Sockets returns the jail's sockets. Unless Stand was called, it waits until the jail is made. The error is a
// [*SetupError].
func (j *Jail) Sockets() (*capture.Sockets, error) {
	if j.made == nil {
		if err := j.Stand(); err != nil {
			return nil, err
		}
	}
	st := j.made
	j.made = nil
	return j.socketsOf(st)
}

func (j *Jail) socketsOf(st *madeJail) (*capture.Sockets, error) {
	for i, kind := range st.report.Sockets {
		if st.fds[i] < 0 {
			continue
		}
		if err := st.sockets.Add(kind, st.fds[i], j.pid); err != nil {
			return nil, &SetupError{Step: "sockets", Err: err}
		}
	}
	return &st.sockets, nil
}

// A Captured jail's sockets are for another process to serve.
type Captured struct {
	Redirected, IPv6 bool
	// FDs are the sockets in the order of [jailinit.CaptureSockets], and a pidfd of the jail's process.
	FDs []int
	// Rest is for this process: host ports, and dialers to servers in the jail.
	Rest *capture.Sockets
}

// Captured is [Jail.Sockets] for a jail that is attached to a daemon. The caller closes FDs, and the dialers of
// Rest.
func (j *Jail) Captured() (*Captured, error) {
	report, fds, err := j.awaitMade()
	if err != nil {
		return nil, err
	}
	c := &Captured{Redirected: report.Redirected, IPv6: slices.Contains(report.Sockets, jailinit.TCP6)}
	n := len(jailinit.CaptureSockets(c.IPv6, !c.Redirected)) // they come first
	c.FDs = slices.Clone(fds[:n])
	if c.Rest, err = j.socketsOf(&madeJail{jailinit.Report{Sockets: report.Sockets[n:]}, fds[n:], capture.Sockets{Redirected: report.Redirected}}); err != nil {
		jailinit.CloseAll(c.FDs)
		return nil, err
	}
	there, err := unix.PidfdOpen(j.pid, 0)
	if err != nil {
		jailinit.CloseAll(c.FDs)
		return nil, &SetupError{Step: "process", Err: err}
	}
	c.FDs = append(c.FDs, there)
	return c, nil
}
