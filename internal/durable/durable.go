// Package durable reads and replaces whole files: whoever reads one that is
// replaced finds the old text or the new, after a crash too, and nothing that is too
// large, or was cut, is ever taken for whole.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Left begins the names of what a crash in the middle of [Replace] leaves in the folder.
const Left = ".new-"

// Replace writes the file at path atomically; a file that exists is replaced. The folder must exist. A symbolic link is
// replaced, not followed. The umask does not change mode. After an error the old file is in place, except if the
// sync of the folder failed: then the new file is in place, but may not survive a crash.
func Replace(path string, text []byte, mode fs.FileMode) error {
	return Rewrite(path, mode, func(to io.Writer) error {
		_, err := to.Write(text)
		return err
	})
}

// Rewrite is [Replace] by what write writes, which may be more than memory should hold. With
// its error, the file is what it was.
func Rewrite(path string, mode fs.FileMode, write func(to io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), Left+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it has been renamed, as it should
	if err := errors.Join(write(f), f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder makes the names in a folder last.
func SyncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Read reads a file of at most so many bytes, whole or not at all.
func Read(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return whole(f, path, most)
}

// Plain is Read for a path at which somebody else may have put anything. It waits for
// nobody: a FIFO, a device, a socket, a folder, or a file of the kernel's like
// /proc/kmsg there is an error, and so is one that makes its reader wait. A link is
// followed.
func Plain(path string, most int64) ([]byte, error) {
	f, err := OpenPlain(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return whole(f, path, most)
}

// patience is how long Plain reads what can make its reader wait, which on Linux are the
// files of file systems in user space.
const patience = 5 * time.Second

// OpenPlain opens a regular file for reading. It checks the type before it opens the file, since opening some devices has
// effects.
func OpenPlain(path string) (*os.File, error) {
	f, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	_ = f.SetReadDeadline(time.Now().Add(patience)) // an error says that nobody who reads it waits
	return f, nil
}

func notPlain(path string) error { return fmt.Errorf("%s is no plain file", path) }

func whole(f *os.File, path string, most int64) ([]byte, error) {
	var text bytes.Buffer
	if info, err := f.Stat(); err == nil { // of which a file of the kernel's says nothing
		text.Grow(int(min(info.Size(), most)) + bytes.MinRead)
	}
	switch n, err := text.ReadFrom(io.LimitReader(f, most+1)); {
	case err != nil:
		return nil, err
	case n > most:
		return nil, fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return text.Bytes(), nil
}
