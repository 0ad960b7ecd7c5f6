package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

// A noteFile is the file of the checkpoints of one segment, open for appending.
// After an error it is never written or synced again: the next note goes into a
// fresh file that replaces it.
type noteFile struct {
	path string
	f    *os.File // or nil: to be replaced
	size int64    // of the notes that are durable
}

// create makes the file without a note. Its name may not survive a crash yet.
func (n *noteFile) create() (err error) {
	if n.f, err = os.OpenFile(n.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, format.FileRW); err != nil {
		return fmt.Errorf("create the file of checkpoints: %w", err)
	}
	return nil
}

// append makes a note durable, and calls written once it is written, where it has to
// wait then.
func (n *noteFile) append(note []byte, written func()) error {
	whole := append(slices.Clone(note), '\n')
	if n.f == nil {
		err := n.replace(whole)
		if err == nil {
			written()
		}
		return err
	}
	err := linked(n.f, n.path)
	if err == nil {
		_, err = n.f.Write(whole)
	}
	if err == nil {
		written()
		err = syncData(n.f)
	}
	if err != nil {
		n.close()
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	n.size += int64(len(whole))
	return nil
}

// reopen opens the file for more where it ends with a whole note, and makes durable
// what it holds, unless that is synced. Otherwise the next note replaces it.
func (n *noteFile) reopen(synced bool) error {
	info, err := os.Stat(n.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != n.size {
		return nil
	}
	if err != nil {
		return err
	}
	if n.f, err = os.OpenFile(n.path, os.O_WRONLY|os.O_APPEND, 0); err != nil || synced {
		return err
	}
	if err := syncData(n.f); err != nil {
		n.close()
		return err
	}
	return nil
}

// replace writes the durable notes and one more into a fresh file.
func (n *noteFile) replace(whole []byte) error {
	before := make([]byte, n.size)
	if n.size > 0 {
		f, err := os.Open(n.path)
		if err != nil {
			return fmt.Errorf("write a checkpoint: %w", err)
		}
		_, err = io.ReadFull(f, before)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("write a checkpoint: %w", err)
		}
	}
	if err := durable.Replace(n.path, append(before, whole...), format.FileRW); err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	n.size += int64(len(whole))
	f, err := os.OpenFile(n.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	n.f = f
	return nil
}

func (n *noteFile) close() {
	if n.f != nil {
		_ = n.f.Close() // what is in it was synced, or is given up
		n.f = nil
	}
}

// linked checks that a file is still the one at its path: what goes into one that
// was removed or moved is lost.
func linked(f *os.File, path string) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(mine, there) {
		return fmt.Errorf("%s was replaced by another file", path)
	}
	return nil
}
