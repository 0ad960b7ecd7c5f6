package sink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/egressd/egressd/internal/durable"
)

// A file target appends to a file that only its owner can read, and that somebody may
// move away: the next batch goes to a new one then. A batch was taken when it is
// synced.
type file struct {
	path  string
	notes bool // entries are checkpoints, see [file.mend]
	f     *os.File
	text  []byte
	blind bool // it may be written and not read
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
	if !whole { // a crash has left something; it stays
		t.text = append(t.text, '\n')
	}
	for _, e := range b.entries {
		t.text = appendLine(t.text, e) // which is the empty line behind a checkpoint, too
	}
	if n, err := t.f.Write(t.text); err != nil {
		return t.broken(errors.Join(err, t.takeBack(start, n)))
	}
	if err := t.f.Sync(); err != nil {
		return t.broken(err)
	}
	return nil
}

// takeBack cuts off the n bytes of a write that failed, where nobody else has
// written behind them: they would be a line that is not whole.
func (t *file) takeBack(start int64, n int) error {
	if info, err := t.f.Stat(); err != nil || info.Size() != start+int64(n) {
		return err
	}
	return t.f.Truncate(start)
}

// open opens the file that has the name now.
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

// end returns the length of the file, and whether it ends with a whole line.
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
