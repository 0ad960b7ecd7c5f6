package audit

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// TestABriefOpenFindsTheEnd of logs of any length, as the list of the folder says.
func TestABriefOpenFindsTheEnd(t *testing.T) {
	dir := t.TempDir()
	for number := 1; number <= 70; number++ {
		writeFile(t, segmentPath(dir, number), nil)
		if err := errors.Join(briefAsListed(dir), os.WriteFile(notePath(dir, number), nil, 0o600), briefAsListed(dir)); err != nil {
			t.Fatal(err)
		}
	}
	for number := 70; number > 1; number-- { // as if the end were cut off
		if err := errors.Join(os.Remove(segmentPath(dir, number)), briefAsListed(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(segmentPath(dir, 1)); err != nil {
		t.Fatal(err)
	}
	if found, err := endsOfFiles(dir); err != nil || found != nil {
		t.Errorf("without the first segment: %v, %v", found, err)
	}
}

func briefAsListed(dir string) error {
	brief, err := endsOfFiles(dir)
	all, listErr := listFiles(dir)
	if err := errors.Join(err, listErr); err != nil {
		return err
	}
	if lastNumber(brief.logs) != lastNumber(all.logs) || lastNumber(brief.notes) != lastNumber(all.notes) {
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
		for _, path := range []string{segmentPath(s.dir, number), notePath(s.dir, number)} {
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
			if err == nil && path != notePath(s.dir, n) && number > n-1 {
				t.Errorf("without %s it is opened", filepath.Base(path))
			}
			writeFile(t, path, content)
			if r := s.verify(t); r.Code != Good {
				t.Fatalf("without %s (%v) and with it again: %+v", filepath.Base(path), err, r)
			}
		}
	}
}
