package bundle

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
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/durable"
)

// A State is the stored state of a feed.
type State struct {
	// Source is the label of the source, see [Source.Label].
	Source string `json:"source"`

	// Content is the SHA-256 of the last good bundle, which is stored in the file of that name. It is
	// empty if there is none. ETag is the server's tag of that bundle.
	Content string `json:"content,omitempty"`
	ETag    string `json:"etag,omitempty"`

	// Revision, Issued and Expires come from the last good bundle.
	Revision string    `json:"revision,omitempty"`
	Issued   time.Time `json:"issued,omitzero"`
	Expires  time.Time `json:"expires,omitzero"`

	// Fetched is when the last good bundle was fetched, Heard the last successful contact with the server,
	// and Tried the last attempt.
	Fetched time.Time `json:"fetched,omitzero"`
	Heard   time.Time `json:"heard,omitzero"`
	Tried   time.Time `json:"tried,omitzero"`

	// Seen is the latest known time. It prevents a clock that is set back from making a bundle younger.
	Seen time.Time `json:"seen,omitzero"`

	// Error is the error of the last attempt, or "".
	Error string `json:"error,omitempty"`
}

// A store keeps the state and last good bundle of one source in its own folder.
type store struct{ folder string }

const (
	stateName     = "state.json"
	contentSuffix = ".tar.gz"
	maxStateBytes = 64 << 10
)

// check refuses a folder that other users may have written to, or whose parent is such a folder. They
// could have stored an older bundle, which is used before any server is contacted.
func (s store) check() error {
	for _, folder := range []string{filepath.Dir(s.folder), s.folder} {
		info, err := os.Stat(folder)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok || owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to another user; remove it, or give it to the user that egressd runs as", folder)
		}
		if info.Mode().Perm()&0o022 != 0 {
			return fmt.Errorf("others can write in %s; chmod go-w %s, and remove what is in it if somebody may have been there", folder, folder)
		}
	}
	return nil
}

// read returns the stored state, or a zero state if there is none. If the stored bundle is damaged, read
// returns the state with an error.
func (s store) read() (state State, content []byte, err error) {
	text, err := durable.Read(filepath.Join(s.folder, stateName), maxStateBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		return State{}, nil, fmt.Errorf("%s: %w", filepath.Join(s.folder, stateName), err)
	}
	if state.Content == "" {
		return state, nil, nil
	}
	path := filepath.Join(s.folder, filepath.Base(state.Content)+contentSuffix)
	content, err = durable.Read(path, maxBundleBytes)
	if err == nil && sumOf(content) != state.Content {
		err = fmt.Errorf("%s is damaged", path)
	}
	if err != nil {
		return state, nil, err
	}
	return state, content, nil
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// write stores a state and, unless it is nil, the bundle that the state names. It writes the bundle first
// and removes the old one last, so the state always names a complete bundle.
func (s store) write(state *State, content []byte) error {
	text, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	if len(text) >= maxStateBytes {
		return fmt.Errorf("%s would be larger than %d KiB, and not be read again", stateName, maxStateBytes>>10)
	}
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return err
	}
	if content != nil {
		if err := durable.Replace(filepath.Join(s.folder, state.Content+contentSuffix), content, 0o600); err != nil {
			return err
		}
	}
	if err := durable.Replace(filepath.Join(s.folder, stateName), append(text, '\n'), 0o600); err != nil || content == nil {
		return err
	}
	return s.sweep(state.Content + contentSuffix)
}

// sweep removes all bundles except kept, and temporary files left from a crash.
func (s store) sweep(kept string) error {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if name != kept && (strings.HasSuffix(name, contentSuffix) || strings.HasPrefix(name, durable.Left)) {
			err = errors.Join(err, os.Remove(filepath.Join(s.folder, name)))
		}
	}
	return err
}
