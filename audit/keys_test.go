package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

func keyFile(t *testing.T, s *signedLog) string {
	t.Helper()
	return keyPath(keyFolder(s.dir, ""), s.verify(t).Origin, ".key")
}

// refused checks that a log is not opened, and says what to do.
func refused(t *testing.T, dir, want string) {
	t.Helper()
	l, err := Open(dir, Options{})
	if err == nil {
		l.Close()
	}
	var refusal *Refusal
	if !errors.As(err, &refusal) || !strings.Contains(refusal.Problem, want) || refusal.Fix == "" {
		t.Errorf("open: %v; want a refusal that says %q", err, want)
	}
}

func TestAKeyIsForItsOwnerAlone(t *testing.T) {
	s := signed(t, Options{})
	path := keyFile(t, s)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		refused(t, s.dir, "can be read by others")
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Chmod(filepath.Dir(path), 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(filepath.Join(filepath.Dir(s.dir), "other"), Options{}); err == nil {
		t.Error("a key is made in a folder that others can read")
	}
	if err := os.Chmod(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 65534, -1); err != nil {
			t.Fatal(err)
		}
		refused(t, s.dir, "belongs to user 65534")
		if err := os.Chown(path, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Rename(path, path+"x"), os.Symlink(path+"x", path)); err != nil {
		t.Fatal(err)
	}
	if l, err := Open(s.dir, Options{}); err == nil {
		l.Close()
		t.Error("a key behind a link is used")
	}
}

func TestALogWithoutItsKeyOrItsCheckpoints(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 1 << 20})
	path := keyFile(t, s)
	key, notes := readFile(t, path), readFile(t, format.NotePath(s.dir, 1))
	lines := readFile(t, format.SegmentPath(s.dir, 1))

	move := func(from string) {
		if err := os.Rename(from, from+".away"); err != nil {
			t.Fatal(err)
		}
	}
	move(path)
	refused(t, s.dir, "the key of this log is not there")
	writeFile(t, path, key[:len(key)-10])
	refused(t, s.dir, "not a key file")
	writeFile(t, path, key)
	move(format.NotePath(s.dir, 1))
	refused(t, s.dir, "no checkpoint")
	move(format.SegmentPath(s.dir, 1))
	writeFile(t, format.NotePath(s.dir, 1), notes)
	refused(t, s.dir, "its records are gone")
	writeFile(t, format.SegmentPath(s.dir, 1), lines[:bytes.LastIndexByte(lines[:len(lines)-1], '\n')+1])
	refused(t, s.dir, "has 29 records, and a checkpoint says that there were 30")

	// Of the epoch before: the log as it was when it was opened last.
	handover := strings.LastIndex(string(notes), "\nnext ")
	early := bytes.LastIndex(notes[:handover], []byte("\n\n")) + 2
	writeFile(t, format.SegmentPath(s.dir, 1), lines)
	writeFile(t, format.NotePath(s.dir, 1), notes[:early])
	refused(t, s.dir, "older than its key")

	writeFile(t, format.NotePath(s.dir, 1), notes)
	l := open(t, s.dir, Options{})
	if seq := appendTo(t, l, named("next")); seq != 30 {
		t.Errorf("put back, it goes on with %d", seq)
	}
	closeLog(t, l)
	if r := s.verify(t, s.anchors...); r.Code != verify.Good {
		t.Errorf("put back: %+v", r)
	}
}

// TestACrashWithinAChangeOfEpochs stops at every step of one.
func TestACrashWithinAChangeOfEpochs(t *testing.T) {
	steps := map[string]func(k *keys, hand func()){
		"the next key is written":       func(k *keys, _ func()) {},
		"it was handed over":            func(k *keys, hand func()) { hand() },
		"the old key was overwritten":   func(k *keys, hand func()) { hand(); overwrite(keyPath(k.folder, k.origin, ".key")) },
		"the next key is in its place":  func(k *keys, hand func()) { hand(); k.adopt() },
		"the next key is a part of one": func(k *keys, _ func()) { os.Truncate(keyPath(k.folder, k.origin, ".next"), 100) },
	}
	for name, stop := range steps {
		t.Run(name, func(t *testing.T) {
			s := signed(t, Options{SegmentBytes: 1 << 20})
			k, err := readKeys(keyFile(t, s))
			if err != nil {
				t.Fatal(err)
			}
			old := bytes.Clone(k.now.key)
			next, err := k.propose()
			if err != nil {
				t.Fatal(err)
			}
			stop(k, func() {
				c, err := format.ReadNote([]byte(s.verify(t).Newest))
				if err != nil {
					t.Fatal(err)
				}
				c.Next = next
				n, err := k.now.signNote(c)
				if err != nil {
					t.Fatal(err)
				}
				writeFile(t, format.NotePath(s.dir, 1), append(append(readFile(t, format.NotePath(s.dir, 1)), n...), '\n'))
			})
			for range 2 {
				l := open(t, s.dir, Options{})
				appendTo(t, l, named("after"))
				closeLog(t, l)
			}
			if r := s.verify(t, s.anchors...); r.Code != verify.Good || r.Records != 32 {
				t.Errorf("%+v", r)
			}
			if left, _ := filepath.Glob(filepath.Join(k.folder, "*.next")); left != nil {
				t.Errorf("%v is left", left)
			}
			now, err := readKeys(keyFile(t, s))
			if err != nil || bytes.Equal(now.now.key, old) {
				t.Errorf("the key is still the one of the epoch before: %v", err)
			}
		})
	}
}

func TestEpochsEndByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "audit")
		l := create(t, dir, Options{Epoch: 10 * time.Minute})
		_, root := l.Origin()
		for range 6 {
			appendTo(t, l, named("x"))
			time.Sleep(5 * time.Minute)
			synctest.Wait()
		}
		closeLog(t, l)
		r, err := verify.Log(dir, root, nil)
		if err != nil || r.Code != verify.Good || r.Epochs != 4 {
			t.Errorf("%+v, %v; want four epochs", r, err)
		}
	})
}

// TestCheckpointsComeBySecond: one a second while there is something new, and none else.
func TestCheckpointsComeBySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sizes []int64
		l := create(t, filepath.Join(t.TempDir(), "audit"), Options{Anchor: func(n []byte) {
			c, err := format.ReadNote(n)
			if err != nil {
				t.Error(err)
			}
			sizes = append(sizes, c.Size)
		}})
		time.Sleep(time.Hour)
		for range 100 {
			appendTo(t, l, named("x"))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(sizes); n < 10 || n > 14 || sizes[n-1] != 100 {
			t.Errorf("checkpoints of %v records", sizes)
		}
		closeLog(t, l)
	})
}

func TestKeysInMemoryEndWithTheLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	var origin, root string
	fails := errors.New("not yet")
	l := create(t, dir, Options{Ephemeral: true, Vouch: func(o, r string) error {
		origin, root = o, r
		return fails
	}})
	for l.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if _, err := l.Append([]byte(named("x"))); !errors.Is(err, ErrUnavailable) || !errors.Is(err, fails) {
		t.Errorf("append to a log that nobody vouches for: %v", err)
	}
	fails = nil
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	appendTo(t, l, named("x"))
	closeLog(t, l)
	if r, err := verify.Log(dir, root, l.Newest()); err != nil || r.Code != verify.Good || r.Origin != origin || r.Unvouched != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) != 1 {
		t.Errorf("beside the log are %v, %v", entries, err)
	}
	refused(t, dir, "the key of this log is not there")
}

// TestAShortLogInMemory has a log whose records are older than its first checkpoint,
// which nobody vouches for before they are to be in one.
func TestAShortLogInMemory(t *testing.T) {
	for _, records := range []int{0, 1, 3} {
		synctest.Test(t, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "audit")
			var root string
			l := create(t, dir, Options{Ephemeral: true, Vouch: func(_, r string) error {
				root = r
				if len(readFile(t, format.NotePath(dir, 1))) > 0 {
					t.Error("there was a checkpoint before the key was vouched for")
				}
				return nil
			}})
			for range records {
				if err := l.Wait(t.Context(), appendTo(t, l, named("x"))); err != nil {
					t.Fatal(err)
				}
			}
			if root != "" {
				t.Error("somebody had to vouch at once")
			}
			closeLog(t, l)
			if r, err := verify.Log(dir, root, l.Newest()); err != nil || r.Code != verify.Good || r.Records != int64(records) || r.Unsigned+r.Unvouched != 0 {
				t.Errorf("%d records: %+v, %v", records, r, err)
			}
		})
	}
}

// TestInMemoryIsVouchedForSoon has a log live on, whose first checkpoint does not wait
// for its end.
func TestInMemoryIsVouchedForSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		vouched := false
		l := create(t, filepath.Join(t.TempDir(), "audit"), Options{Ephemeral: true, Vouch: func(_, _ string) error {
			vouched = true
			return nil
		}})
		time.Sleep(vouchAfter + time.Millisecond)
		synctest.Wait()
		if !vouched || l.Newest() == nil {
			t.Error("nobody vouched, and there is no checkpoint")
		}
		closeLog(t, l)
	})
}

func TestSetAside(t *testing.T) {
	s := signed(t, Options{})
	before := s.files(t)
	key := keyFile(t, s)
	where, err := SetAside(s.dir, "")
	if err != nil {
		t.Fatal(err)
	}
	aside := &signedLog{dir: where, key: s.key}
	for name, content := range aside.files(t) {
		if !bytes.Equal(content, before[name]) {
			t.Errorf("%s was changed", name)
		}
	}
	if r := aside.verify(t, s.anchors...); r.Code != verify.Good || len(aside.files(t)) != len(before) {
		t.Errorf("what was set aside: %+v", r)
	}
	if _, err := os.Lstat(key); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its key is still there: %v", err)
	}
	l := create(t, s.dir, Options{})
	if seq := appendTo(t, l, named("first")); seq != 0 {
		t.Errorf("the new log begins with %d", seq)
	}
}

// TestTheOldKeyIsOverwritten has another name for the file of a key, and looks what is
// in it when the epoch has ended.
func TestTheOldKeyIsOverwritten(t *testing.T) {
	s := signed(t, Options{})
	path := keyFile(t, s)
	size := len(readFile(t, path))
	if err := os.Link(path, path+".other"); err != nil {
		t.Fatal(err)
	}
	l := open(t, s.dir, Options{})
	appendTo(t, l, named("one"))
	closeLog(t, l)
	if got := readFile(t, path+".other"); !bytes.Equal(got, make([]byte, size)) {
		t.Errorf("the old key is still there: %q", got)
	}
}
