package jail

import (
	"slices"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox/capture"
)

// Stand waits until the jail is made. The error is a [*SetupError].
func (j *Jail) Stand() error {
	report, fds, err := j.awaitMade()
	if err != nil {
		return err
	}
	st := &madeJail{report, fds, capture.Sockets{Redirected: report.Redirected}}
	if i := slices.Index(report.Sockets, jailinit.Diag); i >= 0 { // NewPrograms needs the process of the jail
		err = st.sockets.Add(jailinit.Diag, fds[i], j.pid)
		st.fds[i] = -1
	}
	if err != nil {
		jailinit.CloseAll(st.fds)
		return &SetupError{Step: "sockets", Err: err}
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
