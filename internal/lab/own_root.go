//go:build linux

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// asRoot runs this program again for an ordinary user: as root over the users that /etc/subuid gives to that user, in a root
// folder of its own. Many tests need a second user. ran is false for root, and where no such users can be had; asRoot says
// that.
func asRoot() (code int, ran bool) {
	if os.Getuid() == 0 {
		return 0, false
	}
	if err := secondUser(); err != nil {
		fmt.Fprintf(os.Stderr, "lab: some tests will fail: %v\n", err)
		return 0, false
	}
	err := inOwnRoot(func(cmd *exec.Cmd) error {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd.Run()
	}, os.Args[1:]...)
	return exitStatus(err), true
}

// AsRoot returns true if t runs as root. For an ordinary user it runs t again, alone and as root as [Enter] does, passes on
// what came of it, and returns false. It is for packages whose other tests need no lab.
func AsRoot(t *testing.T) bool {
	t.Helper()
	if os.Getenv(stageVariable) == stageRoot {
		if err := ownRoot(os.Getenv(rootVariable)); err != nil {
			t.Fatal(err)
		}
		return true
	}
	if os.Getuid() == 0 {
		return true
	}
	if err := secondUser(); err != nil {
		t.Fatal(err)
	}
	var out []byte
	err := inOwnRoot(func(cmd *exec.Cmd) (err error) {
		out, err = cmd.CombinedOutput()
		return err
	}, "-test.run=^"+t.Name()+"$", "-test.v")
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as root: %v\n%s", err, out)
	}
	return false
}

// secondUser returns why an ordinary user has no second user.
func secondUser() error {
	out, err := unshared("true").CombinedOutput()
	if err != nil {
		return fmt.Errorf("no second user: %w: %s\nhint: as root, usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER", err, out)
	}
	return nil
}

// inOwnRoot hands the command that runs this program again, at stageRoot and with an empty folder to make a root of, to run.
func inOwnRoot(run func(*exec.Cmd) error, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "lab-root-")
	if err != nil {
		return err
	}
	cmd := unshared(append([]string{self}, args...)...)
	cmd.Env = append(os.Environ(), stageVariable+"="+stageRoot, rootVariable+"="+root)
	err = run(cmd)
	if out, err := unshared("rm", "-rf", root).CombinedOutput(); err != nil { // files of the second user, too
		fmt.Fprintf(os.Stderr, "lab: remove %s: %v: %s\n", root, err, out)
	}
	return err
}

func unshared(argv ...string) *exec.Cmd {
	cmd := exec.Command("unshare", append([]string{"--user", "--map-root-user", "--map-auto", "--mount", "--"}, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// rootVariable names the folder that becomes the root of stageRoot. It is no tmpfs, which cannot be the upper folder of an
// overlay in a user namespace.
const rootVariable = "EGRESSD_LAB_ROOT"

// copyOfEtc is a script that copies what the user can read. Nobody has a password, but sshd takes users without an entry
// for locked.
const copyOfEtc = `cp -r --preserve=mode,links /etc "$0" 2>/dev/null || true
sed 's/:.*/:*:20000::::::/' /etc/passwd >"$0/etc/shadow"`

// ownFolders are the folders in which egressd and its tests make or check files, and their parents.
var ownFolders = []string{"/", "/home", "/run", "/tmp", "/var", "/var/lib"}

// ofEgressd are folders of an egressd of the machine.
var ofEgressd = []string{"/run/egressd", "/var/lib/egressd"}

// ownRoot makes root the root folder. Root, ownFolders and a copy of /etc belong to this process, and the machine's files are
// mounted in them. The machine's folders belong to a user that has no number here, whom neither egressd nor ssh trusts.
func ownRoot(root string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := syscall.Mount(root, root, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount a root: %w", err)
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	for _, folder := range ownFolders {
		if err := showIn(root, folder); err != nil {
			return err
		}
	}
	if out, err := exec.Command("sh", "-c", copyOfEtc, root).CombinedOutput(); err != nil {
		return fmt.Errorf("copy /etc: %w: %s", err, out)
	}
	old := filepath.Join(root, ".old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := syscall.PivotRoot(root, old); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	return errors.Join(os.Chdir(dir), syscall.Unmount("/.old", syscall.MNT_DETACH), os.Remove("/.old"))
}

// showIn fills a folder of root with what the machine has there. In /tmp that is what belongs to the user; an egressd of
// the machine is left out.
func showIn(root, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from := filepath.Join(folder, e.Name())
		info, err := e.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist) || from == root || from == "/etc" || slices.Contains(ofEgressd, from):
			continue
		case err == nil && folder == "/tmp" && info.Sys().(*syscall.Stat_t).Uid != 0:
			continue
		case err == nil:
			err = show(from, root+from, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// show mounts a file or a folder elsewhere, or makes an empty folder there if that is one of ownFolders.
func show(from, to string, info fs.FileInfo) error {
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case info.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if slices.Contains(ownFolders, from) {
			return os.Chmod(to, info.Mode()) // with the bit of /tmp that Mkdir leaves out
		}
	default:
		if err := os.WriteFile(to, nil, 0o644); err != nil {
			return err
		}
	}
	if err := syscall.Mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", from, err)
	}
	return nil
}
