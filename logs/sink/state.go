package sink

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/durable"
)

// A State is the position and condition of a sink. Its file is readable by anyone who may read the log,
// and lags behind by up to a second.
type State struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	To     string    `json:"to"`
	Format string    `json:"format"`
	Origin string    `json:"origin,omitempty"` // of the log; empty before it is known
	Next   int64     `json:"next"`             // sequence number of the first record that the receiver may lack
	Sent   int64     `json:"sent"`             // events, including repeated ones
	SentAt time.Time `json:"sent_at,omitzero"`

	// Error is the last error and stays set.
	Error   string    `json:"error,omitempty"`
	ErrorAt time.Time `json:"error_at,omitzero"`

	Aside    []int64 `json:"aside,omitempty"`    // sequence numbers of records that the receiver refused; they are sent again
	Rejected int64   `json:"rejected,omitempty"` // records that the receiver threw away after it had accepted their batch
	Missed   int64   `json:"missed,omitempty"`   // records that were removed from the log before they were sent

	// Lossy says that the transport does not tell whether anybody receives the records.
	Lossy bool `json:"lossy,omitempty"`

	// Marks identify the log by records that were sent: the last one, and one that is some seconds older.
	// A machine crash can remove the last record but not the older one.
	Marks []Mark `json:"marks,omitempty"`

	// LagRecords and LagSeconds tell how far the sink is behind. They are not stored; [States] computes
	// them.
	LagRecords int64   `json:"lag_records"`
	LagSeconds float64 `json:"lag_seconds"`
}

// Failing reports whether the last attempt failed.
func (s *State) Failing() bool { return s.Error != "" && s.ErrorAt.After(s.SentAt) }

// Lacking returns how many records the receiver lacks, beside those that are still to be sent.
func (s *State) Lacking() int64 { return int64(len(s.Aside)) + s.Rejected + s.Missed }

// takeBack removes a record from those that were refused.
func (s *State) takeBack(seq int64) {
	s.Aside = slices.DeleteFunc(s.Aside, func(one int64) bool { return one == seq })
}

// Lag returns LagSeconds as a duration, rounded to seconds.
func (s *State) Lag() time.Duration {
	return (time.Duration(s.LagSeconds * float64(time.Second))).Round(time.Second)
}

// A Mark is a record and the hash of its line.
type Mark struct {
	Seq    int64     `json:"seq"`
	SHA256 string    `json:"sha256"`
	At     time.Time `json:"at"`
}

// markAge is the minimum age of the older mark. The log syncs at least every second.
const markAge = 5 * time.Second

func (s *State) mark(seq int64, sum [sha256.Size]byte) {
	newest := Mark{seq, hex.EncodeToString(sum[:]), now()}
	switch {
	case len(s.Marks) == 0:
		s.Marks = []Mark{newest}
	case len(s.Marks) == 1:
		s.Marks = []Mark{newest, s.Marks[0]}
	case s.Marks[0].At.Sub(s.Marks[1].At) >= markAge:
		s.Marks = []Mark{newest, s.Marks[0]}
	default:
		s.Marks = []Mark{newest, s.Marks[1]}
	}
}

// Folder returns the folder of the state files of the log in dir.
func Folder(dir string) string { return filepath.Join(dir, "sinks") }

// Sends reports whether the log in dir has state files of sinks.
func Sends(dir string) bool {
	info, err := os.Lstat(Folder(dir))
	return err == nil && info.IsDir()
}

func statePath(dir, name string) string { return filepath.Join(Folder(dir), name+".json") }

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

// holds reports whether the log in dir has the marked record. A record removed by retention counts as
// present.
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

// States returns the states of all present and past sinks of the log in dir, with their current lag.
func States(dir string) ([]State, error) {
	paths, err := filepath.Glob(filepath.Join(Folder(dir), "*.json"))
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
