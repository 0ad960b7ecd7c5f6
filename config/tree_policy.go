package config

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
)

// TreePolicies is a folder with a note for each policy file that a program under egressd run could write: it lies in the working tree
// of that program. The note has the digest of the file as the run read it. Until the run ends with the file as it was, no other
// run believes another version. Only its owner may read and write the folder, and no program sees it.
type TreePolicies string

// OpenTreePolicies makes the folder, in the user's state folder. If that cannot be done, the error is a [*NoTreePoliciesError]:
// there is no note. With another error a program may have changed a mode, so that no note is found.
func OpenTreePolicies() (TreePolicies, error) {
	dir, err := stateFolder("tree-policies")
	if err != nil {
		return "", &NoTreePoliciesError{err}
	}
	if err = os.MkdirAll(dir, 0o700); err == nil {
		_, err = os.ReadDir(dir)
	}
	if err != nil && !isClosedByOwn(dir) {
		err = &NoTreePoliciesError{err}
	}
	return TreePolicies(dir), err
}

// isClosedByOwn reports whether this user may not look at path because of the mode of a folder of this user's.
func isClosedByOwn(path string) bool {
	_, err := os.Lstat(path)
	for ; errors.Is(err, fs.ErrPermission) && path != filepath.Dir(path); _, err = os.Lstat(path) {
		path = filepath.Dir(path)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(owner.Uid) == os.Geteuid()
}

// CheckTreePolicy returns a [*ChangedPolicyError] if a note of [TreePolicies] has another digest than text, and any other error if the
// notes cannot be read.
func CheckTreePolicy(path string, text []byte) error {
	notes, err := OpenTreePolicies()
	var none *NoTreePoliciesError
	switch {
	case errors.As(err, &none):
		return nil
	case err != nil:
		return hint.Failed(fmt.Errorf("find out whether a program has changed %s: %w", path, err), "chmod u+rwx "+shell.Word(filepath.Dir(string(notes)))+", and look at that policy")
	}
	return notes.Check(path, text)
}

// A NoTreePoliciesError says why the folder of [TreePolicies] is not there.
type NoTreePoliciesError struct{ Err error }

func (e *NoTreePoliciesError) Error() string { return e.Err.Error() }
func (e *NoTreePoliciesError) Unwrap() error { return e.Err }

// A ChangedPolicyError says that a policy file was changed while a program could write it.
type ChangedPolicyError struct{ Path string }

func (e *ChangedPolicyError) Error() string {
	return e.Path + " was changed while a program under egressd run could write it"
}

// Check returns a [*ChangedPolicyError] if a note has another digest than text.
func (t TreePolicies) Check(path string, text []byte) error {
	for _, note := range t.notes(path) {
		was, err := os.ReadFile(note)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || string(was) != digestOf(text) {
			return hint.Misused(&ChangedPolicyError{path}, "look at it, then egressd policy trust --yes "+shell.Word(path))
		}
	}
	return nil
}

// Begin makes the notes of a run that read text from path. end removes them if path has what they say, and reports whether it has.
func (t TreePolicies) Begin(path string, text []byte) (end func() (same bool), err error) {
	id := rand.Text()
	var notes []string
	for _, key := range keysOf(path) {
		note := filepath.Join(string(t), key+"."+id)
		if err := durable.Replace(note, []byte(digestOf(text)), 0o600); err != nil {
			return nil, err
		}
		notes = append(notes, note)
	}
	return func() bool {
		now, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		for _, note := range notes {
			if was, err := os.ReadFile(note); err == nil && string(was) != digestOf(now) {
				return false
			}
		}
		for _, note := range notes {
			_ = os.Remove(note) // one that stays has the digest of the file
		}
		return true
	}, nil
}

// Replaced has the notes that say before say after: a person had egressd write the file.
func (t TreePolicies) Replaced(path string, before, after []byte) {
	for _, note := range t.notes(path) {
		if was, err := os.ReadFile(note); err == nil && string(was) == digestOf(before) {
			_ = durable.Replace(note, []byte(digestOf(after)), 0o600) // else the next run asks
		}
	}
}

// Accept removes all notes of a file.
func (t TreePolicies) Accept(path string) error {
	for _, note := range t.notes(path) {
		if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("accept %s: %w", path, err)
		}
	}
	return nil
}

func (t TreePolicies) notes(path string) (all []string) {
	entries, _ := os.ReadDir(string(t))
	for _, e := range entries {
		for _, key := range keysOf(path) {
			if strings.HasPrefix(e.Name(), key+".") {
				all = append(all, filepath.Join(string(t), e.Name()))
			}
		}
	}
	return all
}

// keysOf returns the keys of a path as written, and of the path with symbolic links resolved. A program could make such links.
func keysOf(path string) (keys []string) {
	if all, err := filepath.Abs(path); err == nil {
		path = all
	}
	keys = []string{digestOf([]byte(path))}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		keys = append(keys, digestOf([]byte(real)))
	}
	return keys
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
