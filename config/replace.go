package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/egressd/egressd/internal/durable"
)

// ReplaceFile puts text in the place of old, which the file at path has to hold
// still, and returns where the file is: a symbolic link is followed. It is done
// in one step, so that whoever watches the file never reads half of it, and the
// new file has the mode and the owner of the old one. Access lists and further
// hard links are not carried over.
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
	defer os.Remove(f.Name()) // fails once it has been renamed, as it should
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

// takeAfter gives f the owner and the mode of another file. The mode is last:
// a change of owner clears bits of it.
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
			return err
		}
	}
	return f.Chmod(info.Mode().Perm())
}
