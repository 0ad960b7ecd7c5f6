package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// TestNoKeyThatSignedARecordStays: who takes over a log in which nothing happens, or
// that is closed, finds no key that could sign its last records anew.
func TestNoKeyThatSignedARecordStays(t *testing.T) {
	for what, end := range map[string]func(*Log){
		"idle":             func(*Log) { time.Sleep(3 * time.Hour) },
		"closed":           func(l *Log) { closeLog(t, l) },
		"closed with more": func(l *Log) { closeLog(t, l) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "audit")
				l := create(t, dir, Options{})
				origin, key := l.Origin()
				appendTo(t, l, named("one"))
				if _, err := l.Checkpoint(); err != nil {
					t.Fatal(err)
				}
				if what == "closed with more" {
					appendTo(t, l, named("two"))
				}
				end(l)
				stays, err := readKeys(keyPath(keyFolder(dir, ""), origin, ".key"))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := format.ReadNotes(format.NotePath(dir, 1), func(n []byte, c *format.Checkpoint) error {
					if format.SignedBy(n, stays.now.public()) {
						t.Errorf("the key that is left signed the checkpoint of %d records", c.Size)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if what == "idle" {
					closeLog(t, l)
				}
				r, err := verify.Log(dir, key, nil)
				if err != nil || r.Code != verify.Good || r.Epochs != 2 {
					t.Errorf("%+v, %v; want two epochs", r, err)
				}
				closeLog(t, open(t, dir, Options{}))
				if r, err = verify.Log(dir, key, nil); err != nil || r.Code != verify.Good || r.Epochs != 2 {
					t.Errorf("opened again: %+v, %v; want two epochs", r, err)
				}
			})
		})
	}
}

// TestTheLastCheckpointEndsTheEpoch: a log that is opened for one record, as that of runs
// is all the time, gets one checkpoint, with which its key is done.
func TestTheLastCheckpointEndsTheEpoch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	closeLog(t, create(t, dir, Options{}))
	const times = 5
	for range times {
		l := open(t, dir, Options{Brief: true})
		appendTo(t, l, named("x"))
		closeLog(t, l)
	}
	ends, notes := 0, 0
	if _, err := format.ReadNotes(format.NotePath(dir, 1), func(_ []byte, c *format.Checkpoint) error {
		notes++
		if c.Next != "" {
			ends++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if notes != 1+1+times || ends != 1+times { // the first one is no end
		t.Errorf("%d checkpoints, of which %d end an epoch", notes, ends)
	}
}

// TestBriefLeavesSealedSegmentsToVerify has a line of an old segment changed: who opens
// the log to go on looks at it, and who opens it for a moment leaves that to Verify.
func TestBriefLeavesSealedSegmentsToVerify(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := create(t, dir, Options{SegmentBytes: 300})
	_, key := l.Origin()
	for range 10 {
		appendTo(t, l, named("x"))
	}
	closeLog(t, l)
	path := format.SegmentPath(dir, 1)
	text := readFile(t, path)
	text[len(`{"v":1,"seq":`)] = '7'
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var damage *format.DamageError
	if _, err := Open(dir, Options{}); !errors.As(err, &damage) {
		t.Errorf("it was opened: %v", err)
	}
	l = open(t, dir, Options{Brief: true})
	appendTo(t, l, named("y"))
	closeLog(t, l)
	if r, err := verify.Log(dir, key, nil); err != nil || r.Code != verify.Tampered {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestBriefLooksAtWhatItGoesOnWith has the last segment cut behind its checkpoint.
func TestBriefLooksAtWhatItGoesOnWith(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := create(t, dir, Options{})
	appendTo(t, l, named("x"))
	closeLog(t, l)
	if err := os.Truncate(format.SegmentPath(dir, 1), 0); err != nil {
		t.Fatal(err)
	}
	var refusal *Refusal
	if _, err := Open(dir, Options{Brief: true}); !errors.As(err, &refusal) {
		t.Errorf("it was opened: %v", err)
	}
}

// TestTheLastCheckpointIsSaid: to who needs it elsewhere, once what it is of is durable, and not where there
// is nothing new to say.
func TestTheLastCheckpointIsSaid(t *testing.T) {
	for name, o := range map[string]Options{"ephemeral": {Ephemeral: true}, "with keys that stay": {}} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "audit")
			var said [][]byte
			o.Last = func(note []byte) { said = append(said, bytes.Clone(note)) }
			l := create(t, dir, o)
			appendTo(t, l, named("x"))
			if _, err := l.Checkpoint(); err != nil {
				t.Fatal(err)
			}
			appendTo(t, l, named("y"))
			closeLog(t, l)
			if len(said) != 1 || !bytes.Equal(said[0], l.Newest()) {
				t.Fatalf("it said %q, and the last one is %q", said, l.Newest())
			}
			if c, err := format.ReadNote(said[0]); err != nil || c.Size != 2 {
				t.Errorf("it is of %+v, %v", c, err)
			}
		})
	}
	dir := filepath.Join(t.TempDir(), "audit")
	l := create(t, dir, Options{Ephemeral: true, Last: func(note []byte) { t.Errorf("it said %q", note) }})
	appendTo(t, l, named("x"))
	if _, err := l.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	closeLog(t, l)
}
