package sink

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/durable"
)

// A State is where a sink is, and how it goes. It is kept in a file, which anybody
// who may read the log can read while the sink runs; that is up to a second behind.
type State struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	To     string    `json:"to"`
	Format string    `json:"format"`
	Next   int64     `json:"next"` // the seq of the first record that the receiver may not have
	Sent   int64     `json:"sent"` // events, those that were sent again among them
	SentAt time.Time `json:"sent_at,omitzero"`

	// Error is why it last failed; it stands there until the next one.
	Error   string    `json:"error,omitempty"`
	ErrorAt time.Time `json:"error_at,omitzero"`

	Refused int64 `json:"refused,omitempty"` // records that the receiver would not take, and never will
	Missed  int64 `json:"missed,omitempty"`  // records that were removed from the log before they were sent

	// Marks are records that were sent, by which the log is known to be the same:
	// the last one, and one that is some seconds older, which a crash of the machine
	// leaves in the log.
	Marks []Mark `json:"marks,omitempty"`

	// LagRecords and LagSeconds are how far the sink is behind. They are not in the
	// file, but worked out by [States].
	LagRecords int64   `json:"lag_records"`
	LagSeconds float64 `json:"lag_seconds"`
}

// Failing reports whether the sink has failed since it last sent something.
func (s *State) Failing() bool { return s.Error != "" && s.ErrorAt.After(s.SentAt) }

// Lag is LagSeconds as a duration, to the second.
func (s *State) Lag() time.Duration {
	return (time.Duration(s.LagSeconds * float64(time.Second))).Round(time.Second)
}

// A Mark is a record and the hash of its line.
type Mark struct {
	Seq    int64     `json:"seq"`
	SHA256 string    `json:"sha256"`
	At     time.Time `json:"at"`
}

// markAge is how old the second mark is at least. The log syncs what it has at
// least every second.
const markAge = 5 * time.Second

func (s *State) at(seq int64, sum [sha256.Size]byte) {
	mark := Mark{seq, hex.EncodeToString(sum[:]), now()}
	switch {
	case len(s.Marks) == 0:
		s.Marks = []Mark{mark}
	case len(s.Marks) == 1:
		s.Marks = []Mark{mark, s.Marks[0]}
	case s.Marks[0].At.Sub(s.Marks[1].At) >= markAge:
		s.Marks = []Mark{mark, s.Marks[0]}
	default:
		s.Marks = []Mark{mark, s.Marks[1]}
	}
}

// folder is where the states of the sinks of a log are.
func folder(dir string) string { return filepath.Join(dir, "sinks") }

func statePath(dir, name string) string { return filepath.Join(folder(dir), name+".json") }

const maxState = 64 << 10

func readState(path string) (*State, error) {
	text, err := durable.Read(path, maxState)
	if err != nil {
		return nil, err
	}
	s := new(State)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// load finds out where to go on: behind the newest mark that is in the log. A log in
// which none is, is another one, and so is sent from its beginning: that
// something comes twice is better than that it never comes.
func (s *runner) load() error {
	if err := os.MkdirAll(folder(s.dir), 0o700); err != nil {
		return err
	}
	begun := s.loaded()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = begun
	return nil
}

func (s *runner) loaded() State {
	begun := State{Name: s.config.Name, Type: s.config.Type, To: s.config.place(), Format: s.config.Format}
	old, err := readState(statePath(s.dir, s.config.Name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return begun
	case err != nil:
		s.complain(fmt.Errorf("sink %s: %w; it begins with the oldest record", s.config.Name, err))
		return begun
	}
	begun.Sent, begun.SentAt, begun.Refused, begun.Missed = old.Sent, old.SentAt, old.Refused, old.Missed
	for _, mark := range old.Marks {
		if mark.holds(s.dir) {
			begun.Next = min(old.Next, mark.Seq+1)
			begun.Marks = []Mark{mark}
			return begun
		}
	}
	if len(old.Marks) > 0 {
		s.complain(fmt.Errorf("sink %s: what it sent last is not in the log; it begins with the oldest record", s.config.Name))
	}
	return begun
}

// holds reports whether the record is in the log in dir. One that was removed with
// the oldest records is taken for there.
func (m Mark) holds(dir string) bool {
	lines, err := audit.NewReader(dir, m.Seq)
	if err != nil {
		return false
	}
	defer lines.Close()
	line, err := lines.Next()
	if err != nil {
		return false
	}
	if !strings.HasPrefix(string(line), fmt.Sprintf(`{"v":1,"seq":%d,`, m.Seq)) {
		return true
	}
	sum := sha256.Sum256(line)
	return m.SHA256 == hex.EncodeToString(sum[:])
}

// saveDue returns how long to wait until the state may be saved: 0 for now, less
// where there is nothing to save.
func (s *runner) saveDue() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dirty {
		return -1
	}
	return max(0, saveEvery-time.Since(s.saved))
}

// save writes the state. That it cannot is no reason to stop: it sends more again
// after a restart then.
func (s *runner) save() {
	s.mu.Lock()
	text, err := json.Marshal(s.state)
	s.dirty, s.saved = false, time.Now()
	s.mu.Unlock()
	if err == nil {
		err = durable.Replace(statePath(s.dir, s.config.Name), append(text, '\n'), 0o600)
	}
	if err != nil {
		s.complain(fmt.Errorf("sink %s: where it is cannot be kept: %w", s.config.Name, err))
	}
}

// States returns the states of the sinks that the log in dir has or had, with how
// far each is behind now.
func States(dir string) ([]State, error) {
	paths, err := filepath.Glob(filepath.Join(folder(dir), "*.json"))
	if err != nil {
		return nil, err
	}
	var all []State
	for _, path := range paths {
		s, err := readState(path)
		if err != nil {
			return nil, err
		}
		behind, age := lag(dir, s.Next, time.Now())
		s.LagRecords, s.LagSeconds = behind, age.Round(time.Millisecond).Seconds()
		all = append(all, *s)
	}
	return all, nil
}
