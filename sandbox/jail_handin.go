package sandbox

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// A Captured jail is one whose sockets are yet to be handed in.
type Captured struct {
	Readied
	// Rest is what is served here all the same: what leads into the jail.
	Rest *Sockets
}

// Captured is Sockets for a jail that is handed in to a daemon. The caller closes
// what it returns, and the dialers of Rest.
func (j *Jail) Captured() (*Captured, error) {
	report, fds, err := j.stands()
	if err != nil {
		return nil, err
	}
	o := Offer{Kind: OfferRun, Mode: Transparent, IPv6: slices.Contains(report.Sockets, jailinit.TCP6)}
	if report.Redirected {
		o.Mode = Redirected
	}
	n := len(o.plans()) // they come first
	c := &Captured{Readied: Readied{o, slices.Clone(fds[:n])}}
	if c.Rest, err = j.socketsOf(&standing{jailinit.Report{Sockets: report.Sockets[n:]}, fds[n:], Sockets{Redirected: report.Redirected}}); err != nil {
		c.Close()
		return nil, err
	}
	there, err := unix.PidfdOpen(j.pid, 0)
	if err != nil {
		c.Close()
		return nil, &SetupError{Step: "process", Err: err}
	}
	c.fds = append(c.fds, there)
	return c, nil
}
