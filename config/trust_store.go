package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/durable"
)

// A Pin is the trusted copy of a working tree.
type Pin struct {
	Dir     string    `json:"dir"`
	Digest  string    `json:"digest"`
	Trusted time.Time `json:"trusted"`
	Files   Tree      `json:"files"`
}

// A TrustStore is the folder of all pins. Only its owner may read and write it.
type TrustStore string

// OpenTrustStore returns the trust store in the user's state folder, or in the system's for root. The
// folder may be missing.
func OpenTrustStore() (TrustStore, error) {
	dir, err := stateFolder("trust")
	return TrustStore(dir), err
}

func (s TrustStore) path(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(string(s), hex.EncodeToString(sum[:16])+".json")
}

// Find returns the pin of a working tree, or nil if there is none.
func (s TrustStore) Find(dir string) (*Pin, error) {
	p, err := s.read(s.path(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && p.Dir != dir:
		err = fmt.Errorf("%s is about %s", s.path(dir), p.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("what was trusted: %w", err)
	}
	return p, nil
}

// read refuses a pin that another user could have written.
func (s TrustStore) read(path string) (*Pin, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() || info.Mode() != 0o600 {
		return nil, fmt.Errorf("%s is not a file that only its owner, who runs this, can read and write", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, 4*maxTreeBytes))
	if err != nil {
		return nil, err
	}
	var p Pin
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if p.Files.Digest() != p.Digest {
		return nil, fmt.Errorf("%s is damaged", path)
	}
	return &p, nil
}

// Put stores a pin atomically.
func (s TrustStore) Put(p *Pin) error {
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return durable.Replace(s.path(p.Dir), text, 0o600)
}

// Remove removes the pin of a working tree and reports whether there was one.
func (s TrustStore) Remove(dir string) (bool, error) {
	err := os.Remove(s.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// All returns all readable pins sorted by file name, and the errors of the others.
func (s TrustStore) All() (pins []*Pin, err error) {
	entries, err := os.ReadDir(string(s))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		p, problem := s.read(filepath.Join(string(s), e.Name()))
		if problem != nil {
			err = errors.Join(err, problem)
			continue
		}
		pins = append(pins, p)
	}
	return pins, err
}
