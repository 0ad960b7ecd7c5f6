package sink

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/durable"
)

// An AnchorState is what a receiver of checkpoints has, and how it goes. It is kept
// in a file, which is up to some seconds behind.
type AnchorState struct {
	Place  string    `json:"place"`
	Size   int64     `json:"size"` // records that the newest checkpoint which was sent is for
	SentAt time.Time `json:"sent_at,omitzero"`

	// Failing says that what was sent last did not arrive; Error is why it last
	// failed, and stays.
	Failing bool      `json:"failing,omitempty"`
	Error   string    `json:"error,omitempty"`
	ErrorAt time.Time `json:"error_at,omitzero"`
}

// saveAnchorEvery is how often a state is saved at most in which nothing has changed
// but the checkpoint.
const saveAnchorEvery = 5 * time.Second

// An anchorRecord is a state and its file.
type anchorRecord struct {
	AnchorState
	path     string
	complain func(error)
	saved    time.Time
}

func anchorPath(dir, place string) string {
	sum := sha256.Sum256([]byte(place))
	return filepath.Join(dir, "anchors", fmt.Sprintf("%x.json", sum[:8]))
}

// loadAnchor goes on with what is known of a receiver. It never fails: the state is
// for people alone.
func loadAnchor(dir, place string, complain func(error)) anchorRecord {
	r := anchorRecord{AnchorState: AnchorState{Place: place}, path: anchorPath(dir, place), complain: complain}
	if old, err := AnchorStateOf(dir, place); err == nil {
		r.AnchorState = *old
		r.Failing = false
	}
	return r
}

// AnchorStateOf returns what is known of a receiver of the checkpoints of the log in
// dir. The error wraps [fs.ErrNotExist] where nothing was ever sent to it.
func AnchorStateOf(dir, place string) (*AnchorState, error) {
	text, err := durable.Read(anchorPath(dir, place), maxState)
	if err != nil {
		return nil, err
	}
	s := new(AnchorState)
	if err := json.Unmarshal(text, s); err != nil || s.Place != place {
		return nil, fmt.Errorf("%s: it is not the state of an anchor", anchorPath(dir, place))
	}
	return s, nil
}

func (r *anchorRecord) sent(note []byte) {
	lines := strings.SplitN(string(note), "\n", 3)
	if len(lines) == 3 {
		r.Size, _ = strconv.ParseInt(lines[1], 10, 64) // the log's own
	}
	r.SentAt = now()
	if time.Since(r.saved) >= saveAnchorEvery {
		r.save()
	}
}

func (r *anchorRecord) failed(err error) {
	changed := !r.Failing || r.Error != clean(err.Error())
	r.Failing, r.Error, r.ErrorAt = true, clean(err.Error()), now()
	if changed {
		r.save()
	}
}

func (r *anchorRecord) works() {
	r.Failing = false
	r.save()
}

// save writes the state. Where it cannot, checkpoints are sent all the same.
func (r *anchorRecord) save() {
	r.saved = time.Now()
	err := os.Mkdir(filepath.Dir(r.path), 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return // the folder of the log is gone, which others say
	}
	text, err := json.Marshal(&r.AnchorState)
	if err == nil {
		err = durable.Replace(r.path, append(text, '\n'), 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.complain(fmt.Errorf("anchor %s: how it goes cannot be kept: %w", r.Place, err))
	}
}
