package audit

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// TestABriefOpenFindsTheEnd of logs of any length, as the list of the folder says.
func TestABriefOpenFindsTheEnd(t *testing.T) {
	dir := t.TempDir()
	for number := 1; number <= 70; number++ {
		writeFile(t, format.SegmentPath(dir, number), nil)
		if err := errors.Join(briefAsListed(dir), os.WriteFile(format.NotePath(dir, number), nil, 0o600), briefAsListed(dir)); err != nil {
			t.Fatal(err)
		}
	}
	for number := 70; number > 1; number-- { // as if the end were cut off
		if err := errors.Join(os.Remove(format.SegmentPath(dir, number)), briefAsListed(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(format.SegmentPath(dir, 1)); err != nil {
		t.Fatal(err)
	}
	if found, err := format.EndsOfFiles(dir); err != nil || found != nil {
		t.Errorf("without the first segment: %v, %v", found, err)
	}
}

func briefAsListed(dir string) error {
	brief, err := format.EndsOfFiles(dir)
	all, listErr := format.ListFiles(dir)
	if err := errors.Join(err, listErr); err != nil {
		return err
	}
	if format.LastNumber(brief.Logs) != format.LastNumber(all.Logs) || format.LastNumber(brief.Notes) != format.LastNumber(all.Notes) {
		return fmt.Errorf("%v, and the folder has %v", brief, all)
	}
	return nil
}

// TestABriefOpenOfALogWithGaps does not list the folder. What is missing where it looks
// is refused, and nothing else is written.
func TestABriefOpenOfALogWithGaps(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 200})
	n := last(numbersOf(t, s.dir))
	for number := 1; number <= n; number++ {
		for _, path := range []string{format.SegmentPath(s.dir, number), format.NotePath(s.dir, number)} {
			content := readFile(t, path)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			before := s.files(t)
			l, err := Open(s.dir, Options{Brief: true})
			if err == nil {
				closeLog(t, l)
			} else if now := s.files(t); !maps.EqualFunc(before, now, bytes.Equal) {
				t.Errorf("without %s it is refused, and changed: %v", filepath.Base(path), err)
			}
			if err == nil && path != format.NotePath(s.dir, n) && number > n-1 {
				t.Errorf("without %s it is opened", filepath.Base(path))
			}
			writeFile(t, path, content)
			if r := s.verify(t); r.Code != verify.Good {
				t.Fatalf("without %s (%v) and with it again: %+v", filepath.Base(path), err, r)
			}
		}
	}
}
