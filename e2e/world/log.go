package world

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/record"
)

// An AuditLog reads a log while it is written. It remembers what it has read:
// lines are only ever added.
type AuditLog struct {
	Dir string

	mu      sync.Mutex
	read    map[string]int64 // bytes of each segment
	Lines   [][]byte
	records []record.Record
}

// catchUp reads every complete line that was added, over all segments, in
// order.
func (l *AuditLog) catchUp() error {
	segments, err := filepath.Glob(filepath.Join(l.Dir, "*.log"))
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

func (l *AuditLog) readOn(path string) error {
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
		l.Lines, l.records = append(l.Lines, line), append(l.records, r)
	}
	return nil
}

// Mark returns how many records there are.
func (l *AuditLog) Mark() (int, error) {
	all, err := l.Since(0)
	return len(all), err
}

// Since returns the records that were written after the mark.
func (l *AuditLog) Since(mark int) ([]record.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.catchUp()
	return slices.Clone(l.records[mark:]), err
}

// Of returns the records of one client connection after the mark. A port may
// be used again by a later one.
func (l *AuditLog) Of(src string, mark int) ([]record.Record, error) {
	records, err := l.Since(mark)
	return slices.DeleteFunc(records, func(r record.Record) bool { return r.Src != src }), err
}

// Flawed returns what is wrong with the log as a whole.
func (l *AuditLog) Flawed() []string {
	if _, err := l.Mark(); err != nil {
		return []string{err.Error()}
	}
	var problems []string
	for i, line := range l.Lines {
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

// Holds reports whether a text stands anywhere in the log.
func (l *AuditLog) Holds(text string) bool {
	l.Mark()
	return slices.ContainsFunc(l.Lines, func(b []byte) bool { return bytes.Contains(b, []byte(text)) })
}

// SetAudit gives the configuration other settings of the log than its folder.
func (d *Daemon) SetAudit(t *testing.T, settings string) {
	t.Helper()
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "dir: audit, durability: process", "dir: audit, "+settings, 1)
	if changed == string(text) {
		t.Fatal("the configuration has no audit settings")
	}
	if err := os.WriteFile(d.Config, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ActionOf is the action of the records of a sandbox about a host.
func ActionOf(records []record.Record, sandbox, host string) (action string) {
	for _, r := range records {
		if r.Dst != nil && r.Dst.Host == host && r.Decision != nil {
			if r.Sandbox != sandbox {
				return "another sandbox's: " + r.Sandbox
			}
			action = r.Decision.Action
		}
	}
	return action
}
