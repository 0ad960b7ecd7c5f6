package folder

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestServed looks at served folders as the sandbox and as the host. Three processes take part: this one; one that serves, in namespaces
// of its own; and one that looks, since a process of Go that uses what it serves may wait for itself.
func TestServed(t *testing.T) {
	again(t, "serve", t.TempDir(), &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
	})
}

func again(t *testing.T, step, dir string, how *syscall.SysProcAttr) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestInNamespaces$", "-test.v")
	cmd.Env = append(os.Environ(), "FOLDER_STEP="+step, "FOLDER_DIR="+dir)
	cmd.SysProcAttr = how
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestInNamespaces") {
		t.Errorf("%v: %s", err, out)
	}
}

// stages are what is looked at, each in a folder of its own.
var stages = map[string]func(*stage){"closed": closedStays, "free": freeChanges, "own": ownIsOwn, "host": hostChanges, "open": openFiles}

// TestInNamespaces does nothing unless TestServed starts it.
func TestInNamespaces(t *testing.T) {
	dir := os.Getenv("FOLDER_DIR")
	switch os.Getenv("FOLDER_STEP") {
	case "serve":
		unix.Umask(0o077)
		for name := range stages {
			s := &stage{t, filepath.Join(dir, name, "host"), filepath.Join(dir, name, "seen")}
			s.serve()
		}
		again(t, "look", dir, nil)
	case "look":
		unix.Umask(0o022)
		for name, look := range stages {
			t.Run(name, func(t *testing.T) {
				look(&stage{t, filepath.Join(dir, name, "host"), filepath.Join(dir, name, "seen")})
			})
		}
	}
}

// A stage has a folder of the host, with files that hold their names, and what the sandbox sees of it.
type stage struct {
	*testing.T
	host, seen string
}

func (s *stage) serve() {
	s.Helper()
	for _, name := range []string{"closed", "free", "lock", "below/closed", "below/free/file", "below/free/other", "only/free"} {
		s.write(s.host, name, name)
	}
	free, closed, own := &Area{Right: Free}, &Area{}, &Area{Right: Own}
	byName := func(name string) *Area {
		switch strings.TrimSuffix(name, ".lock") {
		case "free", "new":
			return free
		case "lock":
			return own
		}
		return closed
	}
	only, err := os.Stat(filepath.Join(s.host, "only"))
	if err != nil {
		s.Fatal(err)
	}
	below, one := &Area{Names: byName}, &Area{Names: byName, Only: only}
	area := &Area{Names: func(name string) *Area {
		switch name {
		case "below":
			return below
		case "only":
			return one
		}
		return byName(name)
	}}
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		s.Fatal(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", device, os.Getuid(), os.Getgid())
	err = errors.Join(os.Mkdir(s.seen, 0o755), unix.Mount("test", s.seen, "fuse.test", unix.MS_NOSUID|unix.MS_NODEV, options), Serve(s.host, area, device))
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) write(where, name, text string) {
	s.Helper()
	path := filepath.Join(where, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		s.Fatal(err)
	}
}

// has compares what the host has and what the sandbox sees of a file; "" stands for none.
func (s *stage) has(name, want string) {
	s.Helper()
	for _, where := range []string{s.host, s.seen} {
		if got, err := os.ReadFile(filepath.Join(where, name)); string(got) != want || (err == nil) != (want != "") {
			s.Errorf("%s has %q, want %q: %v", filepath.Join(where, name), got, want, err)
		}
	}
}

func (s *stage) is(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s: %v, want %v", what, err, want)
	}
}

func closedStays(s *stage) {
	for _, name := range []string{"closed", "below/closed"} {
		path := filepath.Join(s.seen, name)
		for _, flags := range []int{os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREATE} {
			f, err := os.OpenFile(path, flags, 0o644)
			s.is("open", err, unix.EROFS)
			f.Close()
		}
		s.is("truncate", os.Truncate(path, 0), unix.EROFS)
		s.is("chmod", os.Chmod(path, 0o600), unix.EROFS)
		s.is("times", unix.UtimesNano(path, make([]unix.Timespec, 2)), unix.EROFS)
		s.is("remove", unix.Unlink(path), unix.EROFS)
		s.is("rename away", os.Rename(path, filepath.Join(s.seen, "free")), unix.EROFS)
		s.is("rename over", os.Rename(filepath.Join(s.seen, "free"), path), unix.EROFS)
		s.is("exchange", unix.Renameat2(unix.AT_FDCWD, filepath.Join(s.seen, "free"), unix.AT_FDCWD, path, unix.RENAME_EXCHANGE), unix.EROFS)
		s.has(name, name)
	}
	s.is("make", os.WriteFile(filepath.Join(s.seen, "other"), nil, 0o644), unix.EROFS)
	s.is("make a folder", os.Mkdir(filepath.Join(s.seen, "other"), 0o755), unix.EROFS)
	s.is("remove a folder", unix.Rmdir(filepath.Join(s.seen, "below")), unix.EROFS)
	s.is("rename a folder", os.Rename(filepath.Join(s.seen, "below"), filepath.Join(s.seen, "new")), unix.EROFS)
	s.is("a symbolic link", os.Symlink("/etc", filepath.Join(s.seen, "new")), unix.EPERM)
	s.is("a hard link", os.Link(filepath.Join(s.seen, "closed"), filepath.Join(s.seen, "new")), unix.EPERM)
	s.is("a FIFO", unix.Mkfifo(filepath.Join(s.seen, "new"), 0o644), unix.EPERM)
	s.has("new", "")
}

func freeChanges(s *stage) {
	s.write(s.seen, "free.lock", "more")
	s.is("rename", os.Rename(filepath.Join(s.seen, "free.lock"), filepath.Join(s.seen, "free")), nil)
	s.has("free", "more")
	s.has("free.lock", "")
	large := bytes.Repeat([]byte("0123456789abcde\n"), 1<<17)
	s.write(s.seen, "below/new/a/b", string(large))
	s.has("below/new/a/b", string(large))
	if info, err := os.Stat(filepath.Join(s.host, "below/new/a/b")); err != nil || info.Mode() != 0o644 {
		s.Errorf("mode %v, %v", info.Mode(), err) // although the process that serves has another umask
	}
	s.is("truncate", os.Truncate(filepath.Join(s.seen, "below/new/a/b"), 3), nil)
	s.has("below/new/a/b", "012")
	s.is("chmod", os.Chmod(filepath.Join(s.seen, "below/new/a/b"), os.ModeSetuid|0o751), nil)
	if info, err := os.Stat(filepath.Join(s.host, "below/new/a/b")); err != nil || info.Mode() != 0o751 {
		s.Errorf("mode %v, %v", info.Mode(), err)
	}
	s.is("rename a folder", os.Rename(filepath.Join(s.seen, "below/new"), filepath.Join(s.seen, "new")), nil)
	s.has("new/a/b", "012")
	s.write(s.seen, "new/a/c", "c")
	s.has("new/a/c", "c")
	s.is("exchange", unix.Renameat2(unix.AT_FDCWD, filepath.Join(s.seen, "new/a/b"), unix.AT_FDCWD, filepath.Join(s.seen, "free"), unix.RENAME_EXCHANGE), nil)
	s.has("new/a/b", "more")
	s.has("free", "012")
	s.is("remove", os.RemoveAll(filepath.Join(s.seen, "new")), nil)
	s.has("new/a/c", "")
	for n := range 700 {
		s.write(s.seen, fmt.Sprintf("new/%d", n), "x")
	}
	if names, err := os.ReadDir(filepath.Join(s.seen, "new")); err != nil || len(names) != 700 {
		s.Errorf("%d names, %v", len(names), err)
	}
	s.write(s.seen, "new/run", "#!/bin/sh\necho ran\n")
	s.is("chmod", os.Chmod(filepath.Join(s.seen, "new/run"), 0o755), nil)
	if out, err := exec.Command(filepath.Join(s.seen, "new/run")).Output(); err != nil || string(out) != "ran\n" {
		s.Errorf("%q, %v", out, err)
	}
}

func ownIsOwn(s *stage) {
	lock := filepath.Join(s.seen, "lock")
	_, err := os.OpenFile(lock, os.O_WRONLY, 0)
	s.is("open the host's", err, unix.EROFS)
	s.is("remove the host's", unix.Unlink(lock), unix.EROFS)
	s.is("remove, by the host", os.Remove(filepath.Join(s.host, "lock")), nil)
	s.write(s.seen, "lock", "own")
	s.write(s.seen, "lock", "own again")
	s.has("lock", "own again")
	s.is("rename", os.Rename(lock, filepath.Join(s.seen, "free")), unix.EROFS)
	kept, err := os.OpenFile(lock, os.O_WRONLY, 0)
	s.is("open", err, nil)
	defer kept.Close()
	for range 20 { // numbers of inodes are given again
		s.is("remove, by the host", os.Remove(filepath.Join(s.host, "lock")), nil)
		s.write(s.host, "lock", "the host's")
		s.is("write", os.WriteFile(lock, []byte("evil"), 0o644), unix.EROFS)
		s.is("remove", unix.Unlink(lock), unix.EROFS)
	}
	_, _ = kept.WriteString("evil")
	s.has("lock", "the host's")
}

func hostChanges(s *stage) {
	s.has("closed", "closed")
	for n := range 20 {
		text := strings.Repeat("x", n+1)
		s.write(s.host, "closed.tmp", text)
		_, err := os.OpenFile(filepath.Join(s.seen, "closed.tmp"), os.O_WRONLY, 0)
		s.is("open what becomes the closed one", err, unix.EROFS)
		s.is("rename, by the host", os.Rename(filepath.Join(s.host, "closed.tmp"), filepath.Join(s.host, "closed")), nil)
		s.is("write", os.WriteFile(filepath.Join(s.seen, "closed"), []byte("evil"), 0o644), unix.EROFS)
		s.has("closed", text)
		s.write(s.host, "free", text)
		s.has("free", text)
	}
	s.write(s.seen, "only/free", "more")
	s.has("only/free", "more")
	inside, err := os.Open(filepath.Join(s.seen, "only"))
	s.is("open a folder", err, nil)
	defer inside.Close()
	s.is("move, by the host", os.Rename(filepath.Join(s.host, "only"), filepath.Join(s.host, "earlier")), nil)
	s.write(s.host, "only/free", "another one")
	for eventually := time.Now().Add(folderKnown * 3 / 2); time.Now().Before(eventually); time.Sleep(folderKnown / 10) { // by a path that the kernel remembers, and by others
		if os.WriteFile(filepath.Join(s.seen, "only/free"), []byte("evil"), 0o644) == nil || os.WriteFile(filepath.Join(s.seen, "only/new"), nil, 0o644) == nil {
			s.Error("what has the name of a folder is taken for it")
		}
		if fd, err := unix.Openat(int(inside.Fd()), "free", unix.O_WRONLY, 0); err == nil {
			s.Error("a folder that was moved is taken for what has its name")
			unix.Close(fd)
		}
	}
	s.has("only/free", "another one")
	secret := s.TempDir()
	s.write(secret, "file", "secret")
	s.is("a link, by the host", os.Symlink(secret, filepath.Join(s.host, "below/free/link")), nil)
	if to, err := os.Readlink(filepath.Join(s.seen, "below/free/link")); err != nil || to != secret {
		s.Errorf("it leads to %q, %v", to, err)
	}
	folder, err := os.Open(filepath.Join(s.seen, "below/free"))
	s.is("open a folder", err, nil)
	defer folder.Close()
	s.is("move, by the host", os.Rename(filepath.Join(s.host, "below/free"), filepath.Join(s.host, "gone")), nil)
	s.write(s.host, "below/free/late", "late")
	if fd, err := unix.Openat(int(folder.Fd()), "late", unix.O_RDONLY, 0); err == nil {
		s.Error("a folder that was moved shows what another one has")
		unix.Close(fd)
	}
	s.is("remove, by the host", os.RemoveAll(filepath.Join(s.host, "below/free")), nil)
	s.is("a link, by the host", os.Symlink(secret, filepath.Join(s.host, "below/free")), nil)
	if fd, err := unix.Openat(int(folder.Fd()), "file", unix.O_WRONLY|unix.O_TRUNC, 0); err == nil {
		s.Error("a folder that a link has replaced can be written to")
		unix.Close(fd)
	}
	s.has("../"+filepath.Base(s.host)+"/gone/file", "below/free/file")
}

func openFiles(s *stage) {
	f, err := os.OpenFile(filepath.Join(s.seen, "free"), os.O_RDWR|os.O_APPEND, 0)
	s.is("open", err, nil)
	defer f.Close()
	s.write(s.host, "free", "longer than before, ")
	_, err = f.WriteString("appended")
	s.is("append", err, nil)
	s.has("free", "longer than before, appended")
	s.is("remove", os.Remove(filepath.Join(s.seen, "free")), nil)
	info, err := f.Stat()
	s.is("stat what is removed", err, nil)
	if info.Size() != int64(len("longer than before, appended")) {
		s.Errorf("%d bytes", info.Size())
	}
	s.is("sync", f.Sync(), nil)
	var open []*os.File
	for {
		f, err := os.Open(filepath.Join(s.seen, "closed"))
		if err != nil {
			s.is("open one more", err, unix.ENFILE)
			break
		}
		open = append(open, f)
	}
	if len(open) < openMost/2 {
		s.Errorf("%d files were open", len(open))
	}
	for _, f := range open {
		f.Close()
	}
	for err = unix.ENFILE; errors.Is(err, unix.ENFILE); { // the kernel tells later that a file was closed
		_, err = os.ReadFile(filepath.Join(s.seen, "closed"))
	}
	s.has("closed", "closed")
}
