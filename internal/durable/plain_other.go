//go:build !linux

package durable

import (
	"errors"
	"os"
	"syscall"
)

// openPlain opens a plain file, and looks at it before and afterwards.
func openPlain(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, notPlain(path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(notPlain(path), err, f.Close())
	}
	return f, nil
}
