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

// A State is what is known of a bundle, as it is kept on disk.
type State struct {
	// Source is where the bundle comes from, as [Source.Label] has it.
	Source string `json:"source"`

	// Content is the SHA-256 of the last good bundle, which is in the file of that
	// name; empty before there was one. ETag is how the server knows it.
	Content string `json:"content,omitempty"`
	ETag    string `json:"etag,omitempty"`

	// Revision, Issued and Expires are what the last good bundle says of itself.
	Revision string    `json:"revision,omitempty"`
	Issued   time.Time `json:"issued,omitzero"`
	Expires  time.Time `json:"expires,omitzero"`

	// Fetched is when the last good bundle came, Heard when the server was last heard
	// to have nothing newer, Tried when it was last asked.
	Fetched time.Time `json:"fetched,omitzero"`
	Heard   time.Time `json:"heard,omitzero"`
	Tried   time.Time `json:"tried,omitzero"`

	// Seen is the latest that it was known to be. A clock that is set back makes
	// nothing younger.
	Seen time.Time `json:"seen,omitzero"`

	// Error is why the last attempt brought nothing good; empty where it did.
	Error string `json:"error,omitempty"`
}

// A store keeps one source's state and last good bundle in a folder of its own.
type store struct{ folder string }

const (
	stateName     = "state.json"
	contentSuffix = ".tar.gz"
	maxStateBytes = 64 << 10
)

// check refuses a folder, or one around it, in which others may have put an older
// state: what is there counts before any server was asked.
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

// read returns what is kept; a zero state where nothing is. A bundle that is not
// what was stored is an error, and comes with the state all the same.
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

// write keeps a state and, where it is not nil, the content that the state names.
// That is written first, and what it replaces removed last: whenever this ends, the
// state on disk names a bundle that is whole.
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

// sweep removes the bundles but the one of that name, and what an end in the
// middle of a write has left.
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
