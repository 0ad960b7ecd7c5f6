package jail

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox/capture"
)

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
