package jailinit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/lab"
)

// TestMountsThatComeAfterTheTableWasRead has one come, in a namespace of this test's own.
func TestMountsThatComeAfterTheTableWasRead(t *testing.T) {
	if !lab.AsRoot(t) {
		return
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	type table struct {
		text          []byte
		before, after []mounted
		err           error
	}
	came := make(chan table)
	go func() {
		runtime.LockOSThread() // and it ends with the thread
		var is table
		defer func() { came <- is }()
		if is.err = unix.Unshare(unix.CLONE_NEWNS); is.err != nil {
			return
		}
		if is.err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); is.err != nil {
			return
		}
		if is.text, is.err = os.ReadFile("/proc/thread-self/mountinfo"); is.err != nil {
			return
		}
		read := openMounts()
		is.before = slices.Clone(read.all)
		if is.err = unix.Mount("tmpfs", dir, "tmpfs", 0, ""); is.err == nil {
			is.after, is.err = read.read()
		}
	}()
	is := <-came
	if is.err != nil {
		t.Fatal(is.err)
	}
	here := func(m mounted) bool { return m.point == dir }
	if all := readMounts(string(is.text)); len(is.before) != len(all) || slices.ContainsFunc(is.before, here) {
		t.Errorf("before there were %d mounts, want %d: %v", len(is.before), len(all), is.before)
	}
	if len(is.after) != len(is.before)+1 || !slices.ContainsFunc(is.after, here) {
		t.Errorf("then there are %d mounts, want %d with %s", len(is.after), len(is.before)+1, dir)
	}
}

// TestFoldersOfAnAutomounterAreKnown reads lines as Linux 6.18 has them: of the map -hosts, of a mount in it, of a unit of systemd, and
// of a folder with an odd name.
func TestFoldersOfAnAutomounterAreKnown(t *testing.T) {
	const table = `224 69 0:55 / /mnt/net rw,relatime - autofs -hosts rw,fd=4,pgrp=27330,timeout=0,minproto=5,maxproto=5,indirect,pipe_ino=2868104
225 224 0:56 / /mnt/net/there rw,relatime - tmpfs none rw,mode=777
38 26 0:34 / /proc/sys/fs/binfmt_misc rw,relatime shared:14 - autofs systemd-1 rw,fd=32,pgrp=1,timeout=0,minproto=5,maxproto=5,direct,pipe_ino=2243
39 26 0:35 / /indirect rw,relatime shared:15 - autofs indirect rw,fd=33,pgrp=1,timeout=0,minproto=5,maxproto=5,direct
`
	for i, want := range []bool{true, false, false, false} {
		if m := readMounts(table)[i]; m.asks != want {
			t.Errorf("%+v, want %v", m, want)
		}
	}
}

// TestOfAnAutomountersFolderMountsAreLeft has folders of memory in the place of an automounter's, in a namespace of this test's own.
func TestOfAnAutomountersFolderMountsAreLeft(t *testing.T) {
	if !lab.AsRoot(t) {
		return
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and it ends with the thread
		done <- func() error {
			if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
				return err
			}
			for _, name := range []string{"net", "net/host/share", "net/host/share/deep", "net/other"} {
				if err := errors.Join(os.MkdirAll(at(name), 0o700), unix.Mount("tmpfs", at(name), "tmpfs", 0, "")); err != nil {
					return err
				}
				if err := os.WriteFile(at(name+"/file"), nil, 0o600); err != nil {
					return err
				}
			}
			mounts, err := openMounts().read()
			if err != nil {
				return err
			}
			for i := range mounts {
				mounts[i].asks = mounts[i].point == at("net")
			}
			if err := closeAutomounts(mounts); err != nil {
				return err
			}
			var seen []string
			err = filepath.WalkDir(at("net"), func(path string, e os.DirEntry, err error) error {
				if !e.IsDir() {
					seen = append(seen, path)
				}
				return err
			})
			if want := []string{at("net/host/share/deep/file"), at("net/host/share/file"), at("net/other/file")}; err != nil || !slices.Equal(seen, want) {
				return fmt.Errorf("there are %q, want %q: %w", seen, want, err)
			}
			if err := os.WriteFile(at("net/host/share/deep/new"), nil, 0o600); err != nil {
				return err
			}
			if err := os.Mkdir(at("net/new"), 0o700); !errors.Is(err, unix.EROFS) {
				return fmt.Errorf("in the folder itself: %w", err)
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
