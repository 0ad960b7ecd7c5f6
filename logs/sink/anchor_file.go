package sink

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"
)

// mostNote is more than the longest checkpoint (docs/audit-format.md) with its empty
// line.
const mostNote = 16<<10 + 64

// lock keeps others that append checkpoints to the same file from seeing half of one.
// Somebody who may open the file can hold the lock, so it is not waited for beyond
// ctx.
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
	if t.f != nil { // else it is closed, and the lock gone
		_ = syscall.Flock(int(t.f.Fd()), syscall.LOCK_UN)
	}
}

// mend removes what a crash has left of a checkpoint at the end of the file, behind
// which no other one could be read. A file that ends in anything else is not ours to
// write to. One that may not be read is taken as it is.
func (t *file) mend() error {
	info, err := t.f.Stat()
	if err != nil || t.blind || info.Size() == 0 {
		return err
	}
	tail := make([]byte, min(info.Size(), 2*mostNote))
	if _, err := t.f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil && err != io.EOF {
		return err
	}
	end := wholeNotes(tail)
	rest := tail[end:]
	switch {
	case len(rest) == 0:
		return nil
	case end == 0 && int64(len(tail)) < info.Size(), len(rest) > mostNote, !begunNote(rest):
		return fmt.Errorf("%s ends in something that is not a checkpoint", t.path)
	}
	if err := t.f.Truncate(info.Size() - int64(len(rest))); err != nil {
		return fmt.Errorf("remove the torn checkpoint at the end of %s: %w", t.path, err)
	}
	return nil
}

// wholeNotes returns how many bytes of the end of a file go up to the end of its last
// whole checkpoint: behind the empty line after a signature.
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

// begunNote reports whether text can be the beginning of a checkpoint, or what a
// crash of the machine makes of one: zeros.
func begunNote(text []byte) bool {
	const origin = "egressd/"
	text = bytes.TrimRight(text, "\x00")
	return strings.HasPrefix(string(text), origin) || strings.HasPrefix(origin, string(text))
}
