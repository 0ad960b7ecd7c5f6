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

// An AnchorState describes a receiver of checkpoints. Its file lags behind by up to saveAnchorEvery.
type AnchorState struct {
	Place  string    `json:"place"`
	Size   int64     `json:"size"` // number of records of the newest checkpoint sent
	SentAt time.Time `json:"sent_at,omitzero"`

	// Failing is set if the last attempt failed. Error is the last error and stays set.
	Failing bool      `json:"failing,omitempty"`
	Error   string    `json:"error,omitempty"`
	ErrorAt time.Time `json:"error_at,omitzero"`
}

// saveAnchorEvery is the minimum time between two saves if only the checkpoint changed.
const saveAnchorEvery = 5 * time.Second

// An anchorRecord is a state and its file.
type anchorRecord struct {
	AnchorState
	path    string
	onError func(error)
	saved   time.Time
}

func anchorPath(dir, address string) string {
	sum := sha256.Sum256([]byte(address))
	return filepath.Join(dir, "anchors", fmt.Sprintf("%x.json", sum[:8]))
}

// loadAnchor loads the state of a receiver. Errors are ignored because only people read the state.
func loadAnchor(dir, address string, onError func(error)) anchorRecord {
	r := anchorRecord{AnchorState: AnchorState{Place: address}, path: anchorPath(dir, address), onError: onError}
	if old, err := AnchorStateOf(dir, address); err == nil {
		r.AnchorState = *old
		r.Failing = false
	}
	return r
}

// AnchorStateOf returns the state of a receiver of the log in dir. The error wraps [fs.ErrNotExist] if
// nothing was ever sent to it.
func AnchorStateOf(dir, address string) (*AnchorState, error) {
	text, err := durable.Read(anchorPath(dir, address), maxState)
	if err != nil {
		return nil, err
	}
	s := new(AnchorState)
	if err := json.Unmarshal(text, s); err != nil || s.Place != address {
		return nil, fmt.Errorf("%s: it is not the state of an anchor", anchorPath(dir, address))
	}
	return s, nil
}

func (r *anchorRecord) sent(note []byte) {
	lines := strings.SplitN(string(note), "\n", 3)
	if len(lines) == 3 {
		r.Size, _ = strconv.ParseInt(lines[1], 10, 64) // egressd wrote this number
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

// save writes the state. On failure checkpoints are still sent.
func (r *anchorRecord) save() {
	r.saved = time.Now()
	err := os.Mkdir(filepath.Dir(r.path), 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return // other components report a missing log folder
	}
	text, err := json.Marshal(&r.AnchorState)
	if err == nil {
		err = durable.Replace(r.path, append(text, '\n'), 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.onError(fmt.Errorf("anchor %s: how it goes cannot be kept: %w", r.Place, err))
	}
}
