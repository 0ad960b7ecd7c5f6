package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/durable"
)

// A file target appends to a file with mode 0600. If somebody moves the file away, the next batch goes to
// a new file. A batch counts as received after fsync.
type file struct {
	path  string
	notes bool // entries are checkpoints, see [file.mend]
	f     *os.File
	text  []byte
	blind bool // the file can be written but not read
}

func (t *file) send(ctx context.Context, b *batch) error {
	if len(b.entries) == 0 {
		return nil
	}
	if err := t.open(); err != nil {
		return err
	}
	if t.notes {
		if err := t.lock(ctx); err != nil {
			return t.broken(err)
		}
		defer t.unlock()
		if err := t.mend(); err != nil {
			return t.broken(err)
		}
	}
	start, whole, err := t.end()
	if err != nil {
		return t.broken(err)
	}
	t.text = t.text[:0]
	if !whole { // a crash left a partial line, which stays in the file
		t.text = append(t.text, '\n')
	}
	for _, e := range b.entries {
		t.text = appendLine(t.text, e) // the newline is also the empty line after a checkpoint
	}
	if n, err := t.f.Write(t.text); err != nil {
		return t.broken(errors.Join(err, t.takeBack(start, n)))
	}
	if err := t.f.Sync(); err != nil {
		return t.broken(err)
	}
	return nil
}

// takeBack removes the n bytes of a failed write, unless another process has appended meanwhile. They
// would remain as a partial line.
func (t *file) takeBack(start int64, n int) error {
	if info, err := t.f.Stat(); err != nil || info.Size() != start+int64(n) {
		return err
	}
	return t.f.Truncate(start)
}

// open opens the file that currently has the name.
func (t *file) open() error {
	if t.f != nil {
		there, err := os.Lstat(t.path)
		held, err2 := t.f.Stat()
		if err == nil && err2 == nil && os.SameFile(there, held) {
			return nil
		}
		t.close()
	}
	const how = os.O_APPEND | os.O_CREATE | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	f, err := os.OpenFile(t.path, os.O_RDWR|how, 0o600)
	if t.blind = t.notes && errors.Is(err, os.ErrPermission); t.blind {
		f, err = os.OpenFile(t.path, os.O_WRONLY|how, 0o600)
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", t.path)
	}
	if err != nil {
		f.Close()
		return err
	}
	t.f = f
	return durable.SyncFolder(filepath.Dir(t.path))
}

// end returns the length of the file and whether it ends with a complete line.
func (t *file) end() (size int64, whole bool, err error) {
	info, err := t.f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, true, err
	}
	if t.notes {
		return info.Size(), true, nil
	}
	last := make([]byte, 1)
	_, err = t.f.ReadAt(last, info.Size()-1)
	return info.Size(), last[0] == '\n', err
}

func (t *file) broken(err error) error {
	t.close()
	return err
}

func (t *file) life() context.Context { return context.Background() }
func (t *file) unsure() int64         { return 0 }

func (t *file) close() {
	if t.f != nil {
		t.f.Close()
		t.f = nil
	}
}

// maxNote exceeds the longest checkpoint (docs/reference/audit-format.md) including its empty line.
const maxNote = 16<<10 + 64

// lock keeps other writers of checkpoints from reading a partial one. Anyone who can open the file can
// hold the lock, so lock gives up when ctx is done.
func (t *file) lock(ctx context.Context) error {
	for {
		err := syscall.Flock(int(t.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EWOULDBLOCK {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is locked by another process", t.path)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (t *file) unlock() {
	if t.f != nil { // otherwise the file is closed, which releases the lock
		_ = syscall.Flock(int(t.f.Fd()), syscall.LOCK_UN)
	}
}

// mend removes a partial checkpoint that a crash left at the end of the file, since readers would stop
// there. It returns an error if the file ends in other data. A file without read permission is not
// checked.
func (t *file) mend() error {
	info, err := t.f.Stat()
	if err != nil || t.blind || info.Size() == 0 {
		return err
	}
	tail := make([]byte, min(info.Size(), 2*maxNote))
	if _, err := t.f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil && err != io.EOF {
		return err
	}
	end := wholeNotes(tail)
	rest := tail[end:]
	switch {
	case len(rest) == 0:
		return nil
	case end == 0 && int64(len(tail)) < info.Size(), len(rest) > maxNote, !begunNote(rest):
		return fmt.Errorf("%s ends in something that is not a checkpoint", t.path)
	}
	if err := t.f.Truncate(info.Size() - int64(len(rest))); err != nil {
		return fmt.Errorf("remove the torn checkpoint at the end of %s: %w", t.path, err)
	}
	return nil
}

// wholeNotes returns the length of tail up to the end of its last complete checkpoint, which is the empty
// line after a signature.
func wholeNotes(tail []byte) int {
	for end := len(tail); ; {
		i := bytes.LastIndex(tail[:end], []byte("\n\n"))
		if i < 0 {
			return 0
		}
		line := tail[bytes.LastIndexByte(tail[:i], '\n')+1 : i]
		if bytes.HasPrefix(line, []byte("— ")) {
			return i + 2
		}
		end = i + 1
	}
}

// begunNote reports whether text may be the beginning of a checkpoint, or the zero bytes that a machine
// crash can leave instead.
func begunNote(text []byte) bool {
	const origin = "egressd/"
	text = bytes.TrimRight(text, "\x00")
	return strings.HasPrefix(string(text), origin) || strings.HasPrefix(origin, string(text))
}
