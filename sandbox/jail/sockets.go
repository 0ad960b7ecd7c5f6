package jail

import (
	"slices"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox/capture"
)

// Stand waits until the jail stands. The error is a [*SetupError].
func (j *Jail) Stand() error {
	report, fds, err := j.stands()
	if err != nil {
		return err
	}
	st := &standing{report, fds, capture.Sockets{Redirected: report.Redirected}}
	if i := slices.Index(report.Sockets, jailinit.Diag); i >= 0 { // for which the inside has to be there
		err = st.sockets.Add(jailinit.Diag, fds[i], j.pid)
		st.fds[i] = -1
	}
	if err != nil {
		jailinit.CloseAll(st.fds)
		return &SetupError{Step: "sockets", Err: err}
	}
	j.stood = st
	return nil
}

// A standing jail has handed out descriptors.
type standing struct {
	report  jailinit.Report
	fds     []int // those that sockets have are -1
	sockets capture.Sockets
}

// Sockets waits until the jail stands, if Stand did not, and returns what it hands out. The error is
// a [*SetupError].
func (j *Jail) Sockets() (*capture.Sockets, error) {
	if j.stood == nil {
		if err := j.Stand(); err != nil {
			return nil, err
		}
	}
	st := j.stood
	j.stood = nil
	return j.socketsOf(st)
}

func (j *Jail) socketsOf(st *standing) (*capture.Sockets, error) {
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
