package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// TestProverBetweenAllCheckpoints: from each checkpoint to each later one the proof
// holds, over segments that are there and such as were removed, by one prover that
// goes on and by new ones.
func TestProverBetweenAllCheckpoints(t *testing.T) {
	for name, o := range map[string]Options{
		"one segment":  {},
		"segments":     {SegmentBytes: 2000},
		"removed ones": {SegmentBytes: 2000, Retain: Retain{Segments: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, notes := loggedWith(t, o, 70)
			goesOn := &verify.Prover{Dir: dir}
			for i, from := range notes {
				for _, to := range notes[i:] {
					checkProof(t, &verify.Prover{Dir: dir}, from, to)
				}
				checkProof(t, goesOn, notes[max(i-1, 0)], from)
			}
			checkProof(t, goesOn, notes[1], notes[len(notes)-2]) // back again
		})
	}
}

// loggedWith makes a log and returns all checkpoints that it ever had.
func loggedWith(t *testing.T, o Options, records int) (dir string, notes [][]byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "audit")
	o.Anchor = func(n []byte) { notes = append(notes, append([]byte{}, n...)) }
	l := create(t, dir, o)
	for i := range records {
		appendTo(t, l, named(fmt.Sprint("record", i)))
		if i%3 == 0 || i%7 == 0 {
			if _, err := l.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
		if i == records/2 {
			closeLog(t, l)
			l = open(t, dir, o)
		}
	}
	closeLog(t, l)
	return dir, notes
}

func checkProof(t *testing.T, p *verify.Prover, from, to []byte) {
	t.Helper()
	a, err := format.ReadNote(from)
	if err != nil {
		t.Fatal(err)
	}
	b, err := format.ReadNote(to)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := p.Prove(a.Size, to)
	if err != nil {
		t.Fatalf("from %d to %d: %v", a.Size, b.Size, err)
	}
	if a.Size == 0 || a.Size == b.Size {
		if len(lines) > 0 {
			t.Errorf("from %d to %d: %q", a.Size, b.Size, lines)
		}
		return
	}
	var proof tlog.TreeProof
	for _, line := range lines {
		h, err := tlog.ParseHash(line)
		if err != nil {
			t.Fatal(err)
		}
		proof = append(proof, h)
	}
	if err := tlog.CheckTree(proof, b.Size, b.Root, a.Size, a.Root); err != nil {
		t.Errorf("from %d to %d: %v", a.Size, b.Size, err)
	}
}

// TestProverRefusesAnotherLog: what was not signed is not proved.
func TestProverRefusesAnotherLog(t *testing.T) {
	dir, notes := loggedWith(t, Options{}, 20)
	newest := notes[len(notes)-1]
	for name, from := range map[string]int64{"back": 21, "below": -1} {
		if lines, err := (&verify.Prover{Dir: dir}).Prove(from, newest); err == nil {
			t.Errorf("%s: %q", name, lines)
		}
	}
	path := filepath.Join(dir, "00000001.log")
	text := strings.Replace(string(readFile(t, path)), "record3", "record4", 1)
	writeFile(t, path, []byte(text))
	if lines, err := (&verify.Prover{Dir: dir}).Prove(2, newest); err == nil {
		t.Errorf("a changed record: %q", lines)
	}
	if err := os.Truncate(path, int64(len(text)/2)); err != nil {
		t.Fatal(err)
	}
	if lines, err := (&verify.Prover{Dir: dir}).Prove(2, newest); err == nil {
		t.Errorf("a log that was cut: %q", lines)
	}
}

// TestIdentityIsMadeOnce: whoever asks first makes the key, and all get the same.
func TestIdentityIsMadeOnce(t *testing.T) {
	dir, notes := loggedWith(t, Options{}, 3)
	origin, _, err := verify.CheckpointSize(notes[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := IdentityOf(dir, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it was made: %v", err)
	}
	var mu sync.Mutex
	keys, makers := map[string]bool{}, 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			i, made, err := OpenIdentity(dir, "", origin)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			keys[i.Public()] = true
			if made {
				makers++
			}
		})
	}
	all.Wait()
	public, err := IdentityOf(dir, "")
	if err != nil || len(keys) != 1 || makers != 1 || !keys[public] {
		t.Errorf("%v, made %d times, then %q, %v", keys, makers, public, err)
	}
	path := keyPath(keyFolder(dir, ""), origin, identityExtension)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	identityRefusals(t, dir, origin, path)
}

func identityRefusals(t *testing.T, dir, origin, path string) {
	t.Helper()
	var refusal *Refusal
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := OpenIdentity(dir, "", origin); !errors.As(err, &refusal) {
		t.Errorf("a key that others can read: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	text := readFile(t, path)
	writeFile(t, path, text[:len(text)-5])
	if _, _, err := OpenIdentity(dir, "", origin); !errors.As(err, &refusal) {
		t.Errorf("a key that is cut: %v", err)
	}
	writeFile(t, path, text)
	if _, err := SetAside(dir, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key of a log that was set aside: %v", err)
	}
}

// TestIdentitySignsBeside: the log's own signature stays the first.
func TestIdentitySignsBeside(t *testing.T) {
	dir, notes := loggedWith(t, Options{}, 3)
	origin, _, _ := verify.CheckpointSize(notes[0])
	i, _, err := OpenIdentity(dir, "", origin)
	if err != nil {
		t.Fatal(err)
	}
	root, err := RootKey(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	signed, err := i.Sign(notes[0])
	if err != nil || !strings.HasPrefix(string(signed), string(notes[0])) {
		t.Fatalf("%q, %v", signed, err)
	}
	for _, key := range []string{root, i.Public()} {
		if err := format.VerifyNote(signed, key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}
