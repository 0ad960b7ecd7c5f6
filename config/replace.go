package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/egressd/egressd/internal/durable"
)

// ReplaceFile atomically replaces the file at path, which must still hold old. It follows symbolic links
// and returns the path of the file. The new file keeps mode and owner, but not access lists and further
// hard links.
func ReplaceFile(path string, old, text []byte) (target string, err error) {
	if target, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	info, err := os.Stat(target)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(filepath.Dir(target), ".egressd-*.yaml")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name()) // fails after the rename, as intended
	_, err = f.Write(text)
	if err := errors.Join(err, takeAfter(f, info), f.Sync(), f.Close()); err != nil {
		return "", err
	}
	if now, err := Read(target); err != nil || !bytes.Equal(now, old) {
		return "", errors.Join(errors.New("it has changed in the meantime"), err)
	}
	if err := os.Rename(f.Name(), target); err != nil {
		return "", err
	}
	return target, durable.SyncFolder(filepath.Dir(target))
}

// CreateFile writes a file that its owner alone may read, in one step, and makes its folder. It is an error if path
// exists.
func CreateFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".egressd-*.yaml")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil { // which replaces nothing
		return err
	}
	return durable.SyncFolder(filepath.Dir(path))
}

// takeAfter gives f the owner and mode of another file. The mode comes last, because a change of owner
// clears some of its bits.
func takeAfter(f *os.File, info os.FileInfo) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	own, ok := mine.Sys().(*syscall.Stat_t)
	theirs, ok2 := info.Sys().(*syscall.Stat_t)
	if !ok || !ok2 {
		return errors.New("the system does not tell whose file it is")
	}
	if own.Uid != theirs.Uid || own.Gid != theirs.Gid {
		if err := f.Chown(int(theirs.Uid), int(theirs.Gid)); err != nil {
			return fmt.Errorf("it belongs to user %d and group %d, which only root or, for the group, one of its members can give to the new file; "+
				"do it as such a user, or chgrp %d %s before: %w", theirs.Uid, theirs.Gid, own.Gid, info.Name(), errors.Unwrap(err))
		}
	}
	return f.Chmod(info.Mode().Perm())
}
