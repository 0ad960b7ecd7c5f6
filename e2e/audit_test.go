package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/record"
)

// An auditLog reads a log while it is written. It remembers what it has read:
// lines are only ever added.
type auditLog struct {
	dir string

	mu      sync.Mutex
	read    map[string]int64 // bytes of each segment
	lines   [][]byte
	records []record.Record
}

// catchUp reads every complete line that was added, over all segments, in
// order.
func (l *auditLog) catchUp() error {
	segments, err := filepath.Glob(filepath.Join(l.dir, "*.log"))
	if err != nil {
		return err
	}
	if l.read == nil {
		l.read = map[string]int64{}
	}
	slices.Sort(segments)
	for _, path := range segments {
		if err := l.readOn(path); err != nil {
			return err
		}
	}
	return nil
}

func (l *auditLog) readOn(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(l.read[path], io.SeekStart); err != nil {
		return err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	l.read[path] += int64(len(text))
	for line := range bytes.Lines(text) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		var r record.Record
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("record %d: %w: %q", len(l.records), err, line)
		}
		l.lines, l.records = append(l.lines, line), append(l.records, r)
	}
	return nil
}

// mark returns how many records there are.
func (l *auditLog) mark() (int, error) {
	all, err := l.since(0)
	return len(all), err
}

// since returns the records that were written after the mark.
func (l *auditLog) since(mark int) ([]record.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.catchUp()
	return slices.Clone(l.records[mark:]), err
}

// of returns the records of one client connection after the mark. A port may
// be used again by a later one.
func (l *auditLog) of(src string, mark int) ([]record.Record, error) {
	records, err := l.since(mark)
	return slices.DeleteFunc(records, func(r record.Record) bool { return r.Src != src }), err
}

// flawed returns what is wrong with the log as a whole.
func (l *auditLog) flawed() []string {
	if _, err := l.mark(); err != nil {
		return []string{err.Error()}
	}
	var problems []string
	for i, line := range l.lines {
		var r record.Record
		strict := json.NewDecoder(bytes.NewReader(line))
		strict.DisallowUnknownFields()
		switch err := strict.Decode(&r); {
		case err != nil:
			problems = append(problems, fmt.Sprintf("line %d: %v: %q", i, err, line))
		case r.Seq != int64(i):
			problems = append(problems, fmt.Sprintf("line %d has seq %d", i, r.Seq))
		case len(line) > 8<<10:
			problems = append(problems, fmt.Sprintf("line %d has %d bytes", i, len(line)))
		case bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' || c > '~' }):
			problems = append(problems, fmt.Sprintf("line %d is not printable ASCII: %q", i, line))
		case r.V != 1 || r.Time.IsZero() || r.Kind == "":
			problems = append(problems, fmt.Sprintf("line %d lacks v, time or kind: %q", i, line))
		}
	}
	return problems
}

// holds reports whether a text stands anywhere in the log.
func (l *auditLog) holds(text string) bool {
	l.mark()
	return slices.ContainsFunc(l.lines, func(b []byte) bool { return bytes.Contains(b, []byte(text)) })
}

// setAudit gives the configuration other settings of the log than its folder.
func (d *daemon) setAudit(t *testing.T, settings string) {
	t.Helper()
	text, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "dir: audit, durability: process", "dir: audit, "+settings, 1)
	if changed == string(text) {
		t.Fatal("the configuration has no audit settings")
	}
	if err := os.WriteFile(d.config, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

// verifies runs egressd log verify, with the key that this machine has.
func (d *daemon) verifies(t *testing.T) (code int, said string) {
	t.Helper()
	cmd := exec.Command(Egressd.Path(), "log", "verify", d.log.dir)
	cmd.Env = append(os.Environ(), "HOME="+d.dir, "XDG_STATE_HOME="+d.dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
