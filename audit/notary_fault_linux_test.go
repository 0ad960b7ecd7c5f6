package audit

import (
	"bytes"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// breakNotes puts another file behind the descriptor of l's checkpoints.
func breakNotes(t *testing.T, l *Log, with *os.File) {
	t.Helper()
	defer with.Close()
	l.signing.Lock()
	defer l.signing.Unlock()
	if err := syscall.Dup3(int(with.Fd()), int(l.notary.file.f.Fd()), syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
}

// verified checks that a log is good, and holds so many records.
func verified(t *testing.T, dir string, records int64, given ...byte) {
	t.Helper()
	key, err := RootKey(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	r, err := verify.Log(dir, key, given)
	if err != nil || r.Code != verify.Good || r.Records != records {
		t.Fatalf("%+v, %v; want %d records that are good", r, err, records)
	}
}

// TestCheckpointsThatCannotBeWritten: the log admits nothing, never uses that
// descriptor again, and goes on in fresh files.
func TestCheckpointsThatCannotBeWritten(t *testing.T) {
	for name, with := range map[string]func(*testing.T) *os.File{"write": full, "sync": pipe} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "audit")
			l := create(t, dir, Options{})
			for round := range int64(3) {
				wait(t, l, appendTo(t, l, named("before")))
				if _, err := l.Checkpoint(); err != nil {
					t.Fatal(err)
				}
				appendTo(t, l, named("not signed yet"))
				breakNotes(t, l, with(t))
				if _, err := l.Checkpoint(); !errors.Is(err, ErrUnavailable) {
					t.Fatalf("checkpoint: %v", err)
				}
				if !errors.Is(l.Err(), ErrUnavailable) {
					t.Errorf("the log says %v", l.Err())
				}
				if err := l.Reopen(); err != nil {
					t.Fatal(err)
				}
				if seq := appendTo(t, l, named("after")); seq != 3*round+2 {
					t.Errorf("goes on with %d", seq)
				}
			}
			newest, err := l.Checkpoint()
			if err != nil {
				t.Fatal(err)
			}
			closeLog(t, l)
			verified(t, dir, 9, newest...)
			closeLog(t, open(t, dir, Options{}))
			verified(t, dir, 9, newest...)
		})
	}
}

// TestKeysThatCannotBeWritten: no epoch begins, and so nothing is admitted.
func TestKeysThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := create(t, dir, Options{SegmentBytes: 200})
	folder := keyFolder(dir, "")
	appendTo(t, l, named("first"))
	if err := os.Rename(folder, folder+"x"); err != nil {
		t.Fatal(err)
	}
	records := int64(1)
	for l.Err() == nil && records < 100_000 {
		if _, err := l.Append([]byte(named("more"))); err == nil {
			records++
		}
		l.Checkpoint()
	}
	if !errors.Is(l.Err(), ErrUnavailable) || !errors.Is(l.Err(), os.ErrNotExist) {
		t.Fatalf("after %d records: %v", records, l.Err())
	}
	if err := l.Reopen(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("reopen: %v", err)
	}
	if err := os.Rename(folder+"x", folder); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	if seq := appendTo(t, l, named("last")); seq != records {
		t.Errorf("goes on with %d, want %d", seq, records)
	}
	closeLog(t, l)
	verified(t, dir, records+1)
}

// TestFilesThatAreRemovedWhileTheyAreWritten: what goes into them is lost, so nothing
// is admitted.
func TestFilesThatAreRemovedWhileTheyAreWritten(t *testing.T) {
	for name, remove := range map[string]func(dir string) error{
		"the segment":         func(dir string) error { return os.Remove(format.SegmentPath(dir, 1)) },
		"the checkpoints":     func(dir string) error { return os.Remove(format.NotePath(dir, 1)) },
		"the folder":          os.RemoveAll,
		"the folder is moved": func(dir string) error { return os.Rename(dir, dir+"x") },
		"the segment is another": func(dir string) error {
			return errors.Join(os.Remove(format.SegmentPath(dir, 1)), os.WriteFile(format.SegmentPath(dir, 1), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "audit")
			l := create(t, dir, Options{})
			wait(t, l, appendTo(t, l, named("first")))
			if _, err := l.Checkpoint(); err != nil {
				t.Fatal(err)
			}
			if err := remove(dir); err != nil {
				t.Fatal(err)
			}
			appendTo(t, l, named("lost"))
			if _, err := l.Checkpoint(); !errors.Is(err, ErrUnavailable) {
				t.Errorf("checkpoint: %v", err)
			}
			if _, err := l.Append([]byte(named("refused"))); !errors.Is(err, ErrUnavailable) {
				t.Errorf("append: %v", err)
			}
		})
	}
}

// TestAFileSizeLimitForCheckpoints has no room for a checkpoint, but for records.
func TestAFileSizeLimitForCheckpoints(t *testing.T) {
	if !inChild(t, nil) {
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	dir := filepath.Join(t.TempDir(), "audit")
	l := create(t, dir, Options{})
	appendTo(t, l, named("first"))
	limitFileSize(t, 300)
	if _, err := l.Checkpoint(); !errors.Is(err, ErrUnavailable) || !errors.Is(err, syscall.EFBIG) {
		t.Fatalf("checkpoint: %v", err)
	}
	if err := l.Reopen(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("reopen: %v", err)
	}
	limitFileSize(t, 1<<30)
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	if seq := appendTo(t, l, named("second")); seq != 1 {
		t.Errorf("goes on with %d", seq)
	}
	closeLog(t, l)
	verified(t, dir, 2)
}

// TestRotationsAndKills kills a writer of tiny segments again and again, until there
// were thirty rotations; with EGRESSD_AUDIT_ROTATIONS so many.
func TestRotationsAndKills(t *testing.T) {
	if dir := os.Getenv("AUDIT_TEST_CHILD"); dir != "" {
		appendUntilKilled(t, dir)
	}
	want, err := strconv.Atoi(os.Getenv("EGRESSD_AUDIT_ROTATIONS"))
	if err != nil {
		want = 30
	}
	dir := filepath.Join(t.TempDir(), "audit")
	reported := make(map[int64]string)
	var kept []byte // what an auditor would have
	for kills := 0; kills < 3 || len(numbersOf(t, dir)) < want; kills++ {
		rotateAndKill(t, dir, reported)
		key, err := RootKey(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		if r, err := verify.Log(dir, key, kept); err != nil || r.Code != verify.Good && r.Code != verify.TornTail {
			t.Fatalf("after kill %d: %+v, %v", kills, r, err)
		}
		l := open(t, dir, Options{SegmentBytes: 2 << 10})
		kept = append(append(kept, l.Newest()...), '\n')
		closeLog(t, l)
		got := names(t, dir)
		for seq, name := range reported {
			if seq >= int64(len(got)) || got[seq] != name {
				t.Fatalf("record %d was reported as %q, and is not in the log of %d", seq, name, len(got))
			}
		}
		if r, err := verify.Log(dir, key, kept); err != nil || r.Code != verify.Good || r.Unsigned != 0 {
			t.Fatalf("recovered after kill %d: %+v, %v", kills, r, err)
		}
	}
}

func rotateAndKill(t *testing.T, dir string, reported map[int64]string) {
	t.Helper()
	killChild(t, "TestRotationsAndKills", 150, reported, "AUDIT_TEST_CHILD="+dir, "AUDIT_TEST_SEGMENT=2048")
}

// TestWhatATornSegmentEndsWith is in its seal, and may neither go nor change.
func TestWhatATornSegmentEndsWith(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := create(t, dir, Options{})
	appendTo(t, l, named("first"))
	breakDescriptor(t, l, full(t))
	l.Append([]byte(named("refused")))
	path := format.SegmentPath(dir, 1)
	whole := readFile(t, path)
	torn := append(append([]byte(nil), whole...), "torn"...)
	writeFile(t, path, torn)
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	appendTo(t, l, named("second"))
	closeLog(t, l)
	verified(t, dir, 2)
	s := &signedLog{dir: dir}
	s.key, _ = RootKey(dir, "")
	for _, content := range [][]byte{whole, torn[:len(torn)-1], append(torn[:len(torn)-1:len(torn)-1], 'x'), append(torn[:len(torn):len(torn)], 'x')} {
		writeFile(t, path, content)
		if r := s.verify(t); r.Code != verify.Tampered {
			t.Errorf("%d bytes instead of %d: %+v", len(content), len(torn), r)
		}
	}
}

// TestNothingIsSignedThatWasNotSynced: the checkpoint that is signed while the last records are synced
// is shown to nobody where they could not be.
func TestNothingIsSignedThatWasNotSynced(t *testing.T) {
	for name, o := range map[string]Options{"ephemeral": {Ephemeral: true}, "with keys that stay": {}} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "audit")
			o.Last = func(note []byte) { t.Errorf("it said %q", note) }
			l := create(t, dir, o)
			wait(t, l, appendTo(t, l, named("synced")))
			newest, err := l.Checkpoint()
			if err != nil {
				t.Fatal(err)
			}
			appendTo(t, l, named("not synced"))
			breakDescriptor(t, l, pipe(t))
			if err := l.Close(); !errors.Is(err, ErrUnavailable) {
				t.Errorf("closed with %v", err)
			}
			if !bytes.Equal(l.Newest(), newest) {
				t.Errorf("the newest is %q", l.Newest())
			}
			notes, err := os.ReadFile(format.NotePath(dir, 1))
			if err != nil || !bytes.HasSuffix(notes, append(newest, '\n')) {
				t.Errorf("there are %q, %v", notes, err)
			}
		})
	}
}
