// Package authority opens the certificate authority of this user, as the commands do that
// need it.
package authority

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
)

// Open opens the authority in dir. Where there is none it makes one, and says so to talk.
func Open(dir string, talk io.Writer) (*certs.Authority, error) {
	a, err := certs.Open(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, Explain(err)
	}
	a, err = certs.Create(dir)
	if errors.Is(err, fs.ErrExist) { // another process was faster
		a, err = certs.Open(dir)
		return a, Explain(err)
	}
	if err == nil {
		fmt.Fprintf(talk, "egressd: made a certificate authority in %s\n", printable.Text(dir))
	}
	return a, Explain(err)
}

// Explain gives an error of certs the line that says what to do.
func Explain(err error) error {
	var refusal *certs.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return hint.Failed(errors.New(refusal.Problem), refusal.Fix)
	case errors.Is(err, fs.ErrNotExist):
		return hint.Failed(err, "egressd ca, which makes one")
	case errors.Is(err, fs.ErrPermission):
		return hint.Failed(err, "the same as the user that egressd serve runs as, or with a tls.ca_dir that this one may write")
	default:
		return hint.Failed(err, "set tls.ca_dir in the policy to a folder that egressd may write")
	}
}

// Bundle appends ours to the bundle of the system, both in PEM, unless the system trusts it
// already.
func Bundle(system, ours []byte) []byte {
	if bytes.Contains(system, ours) {
		return system
	}
	return slices.Concat(bytes.TrimRight(system, "\n"), []byte("\n\n# egressd\n"), ours)
}
