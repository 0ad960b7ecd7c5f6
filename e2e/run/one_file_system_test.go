package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunLeavesOneFileSystem renames and links across the folders that egressd keeps where they are.
func TestRunLeavesOneFileSystem(t *testing.T) {
	for user := range world.Users {
		for _, flags := range [][]string{nil, {"--fs"}} {
			t.Run(user+strings.Join(flags, ""), func(t *testing.T) {
				d := world.NewDaemon(t, world.RunPolicy)
				for _, row := range []struct{ says, script, out string }{
					{"node renames", `node -e 'fs.renameSync(".cache/f", ".local/share/moved")'; cat .local/share/moved`, "f\n"},
					{"a folder of the run's own", `mkdir .config/own && echo o >.config/own/f && node -e 'fs.renameSync(".config/own", ".local/own")'; cat .local/own/f`, "o\n"},
					{"a hard link", `ln .local/share/l .cache/linked && stat -c %h .cache/linked`, "2\n"},
					{"out of the home's own level", `ln top .local/share/top && mv .local/share/top .config/ && cat .config/top`, "top\n"},
					{"the trash", `gio trash .cache/g; ls .local/share/Trash/files`, "g\n"},
				} {
					writeFiles(t, d, 0o600, map[string]string{"home,with: marks/.cache/f": "f\n", "home,with: marks/.cache/g": "g\n", "home,with: marks/.local/share/l": "l\n", "home,with: marks/.config/c": "c\n", "home,with: marks/top": "top\n"})
					r, home := inProject(t, d, user, "cd; "+row.script, flags...)
					if r.code != 0 || r.out != row.out {
						t.Errorf("%s: exit %d, %q, %s", row.says, r.code, r.out, r.talk)
					}
					if err := os.RemoveAll(home); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// TestRunKeepsFoldersWhereTheyAre has a program move each folder, and a link, by which a file is found that must not be
// replaced.
func TestRunKeepsFoldersWhereTheyAre(t *testing.T) {
	for user := range world.Users {
		for _, flags := range [][]string{nil, {"--hide", "home,with: marks/.local"}} {
			t.Run(user+strings.Join(flags, ""), func(t *testing.T) {
				d := world.NewDaemon(t, world.RunPolicy)
				writeFiles(t, d, 0o600, map[string]string{"home,with: marks/real/egressd/x": "", "home,with: marks/other/f": "", "home,with: marks/.local/state/x": ""})
				home := filepath.Join(d.Dir, "home,with: marks")
				if err := os.Symlink("real", filepath.Join(home, ".config")); err != nil {
					t.Fatal(err)
				}
				hidden := ""
				if len(flags) > 0 {
					hidden = " .local"
					flags[1] = filepath.Join(home, ".local")
				}
				r, _ := inProject(t, d, user, `unset XDG_STATE_HOME; cd
moved() { echo "moved $*"; }
for f in .config real real/egressd ../home*`+hidden+`; do
  mv -T "$f" away && moved $f
  rmdir "$f" && moved $f
  rm "$f" && moved $f
  python3 -c 'import ctypes,sys
l = ctypes.CDLL(None, use_errno=True)
if l.renameat2(-100, b"other", -100, sys.argv[1].encode(), 2) == 0: print("moved by exchange", sys.argv[1])
if l.rename(b"other", sys.argv[1].encode()) == 0: print("moved over", sys.argv[1])' "$f"
done 2>/dev/null
cd "$HOST_DIR"; mv home* away 2>/dev/null && moved home
(umask 0; unshare -Urm sh -c 'mv ~/.config ~/away') 2>/dev/null && moved in a namespace
echo over`, flags...)
				if r.code != 0 || r.out != "over\n" {
					t.Errorf("exit %d, %q, %s", r.code, r.out, r.talk)
				}
			})
		}
	}
}

// TestRunKeepsTheCoveredRootOutOfReach has a program look for the root that the copy covers, in which the folders are mount points:
// by .., by chroot as root or in a user namespace, by umount, and by a file handle.
func TestRunKeepsTheCoveredRootOutOfReach(t *testing.T) {
	const look = `import ctypes, os, struct
l = ctypes.CDLL(None, use_errno=True)
home = os.environ["HOME"]
top = os.open("/", os.O_PATH)
for _ in range(40): top = os.open("..", os.O_PATH, dir_fd=top)
def found(root, how):
    for f in (".config", ".config/egressd"):
        try: os.rename(root + home + "/" + f, root + home + "/moved"); print("moved", f, how)
        except OSError: pass
    try: print("empty", how) if not os.listdir(root + home + "/.config") else None
    except OSError: print("gone", how)
found("/proc/self/fd/%d" % top, "by ..")
if os.fork() == 0:
    if os.getuid() != 0: l.unshare(0x10000000)
    if l.chroot(b"sub") == 0:
        os.fchdir(top)
        for _ in range(40): os.chdir("..")
        found(".", "by chroot")
    else: print("chroot failed")
    os._exit(0)
os.wait()
for flags in (0, 2, 8):
    if l.umount2(b"/", flags) == 0: print("umount", flags)
handle, mount = ctypes.create_string_buffer(struct.pack("II", 120, 0) + bytes(120)), ctypes.c_int()
if l.name_to_handle_at(-100, home.encode(), handle, ctypes.byref(mount), 0) == 0 and l.open_by_handle_at(os.open(home, os.O_RDONLY), handle, os.O_RDONLY) >= 0: print("handle")
print("over")
`
	for user := range world.Users {
		d := world.NewDaemon(t, world.RunPolicy)
		writeFiles(t, d, 0o644, map[string]string{"home,with: marks/project/look.py": look, "home,with: marks/project/sub/x": "", "home,with: marks/.config/f": ""})
		if r, _ := inProject(t, d, user, "python3 look.py"); r.code != 0 || r.out != "over\n" {
			t.Errorf("%s: exit %d, %q, %s", user, r.code, r.out, r.talk)
		}
	}
}
