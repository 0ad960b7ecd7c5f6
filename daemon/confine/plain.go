//go:build !linux

package confine

import "io"

// Privileges does nothing: only Linux lets a process give them up this way.
func Privileges(io.Writer) error { return nil }

// Daemon says that egressd keeps what it has.
func Daemon(talk io.Writer) error {
	_, err := io.WriteString(talk, "egressd: warning: on this system egressd drops no privileges and filters no system calls; use it to try policies, not to confine programs\n")
	return err
}

// Memory does nothing.
func Memory() error { return nil }
