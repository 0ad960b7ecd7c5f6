package run

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunRemovesALiveSocketOfTheProject has a program clear away a folder in which a process of the host listens, and make a
// socket of its own there.
func TestRunRemovesALiveSocketOfTheProject(t *testing.T) {
	const (
		connect = `socat -t1 - UNIX-CONNECT:build/sock </dev/null 2>&1 | grep -o outside; `
		serve   = `socat UNIX-LISTEN:build/sock SYSTEM:'echo inside' & for i in $(seq 100); do socat -t1 - UNIX-CONNECT:build/sock </dev/null 2>/dev/null && break; sleep 0.05; done; `
	)
	for _, row := range []struct{ says, script, out string }{
		{"rm -rf", `rm -rf build && mkdir build; ` + connect + serve, "inside\n"},
		{"unlink by node", `node -e 'fs.rmSync("build", {recursive: true}); fs.mkdirSync("build")'; ` + serve, "inside\n"},
		{"by a whole path", `rm -f "$PWD/build/sock"; ls build; ` + serve, "inside\n"},
		{"by a link to the folder", `ln -s build other; rm -f other/../build/./sock; ls build; ` + serve, "inside\n"},
		{"from within", `cd build; rm -f sock; ls; cd ..; ` + serve, "inside\n"},
		{"another file in its place", `echo mine >build/new; mv build/new build/sock; cat build/sock`, "mine\n"},
		{"another file in its place, by rename(2)", `echo mine >build/new; python3 -c 'import os; os.rename("build/new", "build/sock")'; cat build/sock`, "mine\n"},
		{"under another name", `mv build/sock away 2>/dev/null && echo moved; ln build/sock away 2>/dev/null && echo linked; ` + connect + `echo kept`, "kept\n"},
		{"in another's place", `echo mine >m; python3 -c 'import ctypes; print(ctypes.CDLL(None).renameat2(-100, b"m", -100, b"build/sock", 2))'; ` + connect + `cat m`, "-1\nmine\n"},
		{"in a namespace of its own", `unshare -Ur rm -f build/sock 2>/dev/null; ` + connect + `ls build`, "sock\n"},
		{"a folder above", `mv build b2 && ls b2; socat -t1 - UNIX-CONNECT:b2/sock </dev/null 2>&1 | grep -o outside; rm -rf b2 && echo gone`, "sock\ngone\n"},
	} {
		for user := range world.Users {
			for _, flags := range [][]string{nil, {"--fs"}} {
				d := world.NewDaemon(t, world.RunPolicy)
				build := filepath.Join(d.Dir, "home,with: marks", "project", "build")
				if err := os.MkdirAll(build, 0o700); err != nil {
					t.Fatal(err)
				}
				l, err := d.World.Gateway.Listen("unix", filepath.Join(build, "sock"))
				if err != nil {
					t.Fatal(err)
				}
				world.Serve(t, l, func(c net.Conn) { fmt.Fprintln(c, "outside") })
				if r, _ := inProject(t, d, user, row.script, flags...); r.out != row.out || r.code == 125 {
					t.Errorf("%s %s%v: exit %d, %q, %s", row.says, user, flags, r.code, r.out, r.talk)
				}
			}
		}
	}
}

// TestRunFollowsNoLinkOutOfTheSandbox has a program name the folder of such a socket by links that lead there outside alone.
func TestRunFollowsNoLinkOutOfTheSandbox(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	build := filepath.Join(d.Dir, "home,with: marks", "project", "build")
	outside := filepath.Join(d.Dir, "outside")
	if err := errors.Join(os.MkdirAll(build, 0o700), os.Symlink(build, outside), os.Chmod(d.Dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	l, err := d.World.Gateway.Listen("unix", filepath.Join(build, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	world.Serve(t, l, func(c net.Conn) { fmt.Fprintln(c, "outside") })
	for user := range world.Users {
		script := fmt.Sprintf(`ls %[1]s/ 2>/dev/null; ln -sfn %[1]s l; ln -sfn /proc/self/cwd m; for p in l/sock %[1]s/sock m/../../../../..%[1]s/sock ../../../../../../../..%[1]s/sock; do python3 -c 'import os, sys
try: os.unlink(sys.argv[1]); print("removed", sys.argv[1])
except OSError: pass' $p; done; ls build`, outside)
		if r, _ := inProject(t, d, user, script, "--fs"); r.out != "sock\n" {
			t.Errorf("%s: exit %d, %q, %s", user, r.code, r.out, r.talk)
		}
	}
}

// TestRunFindsSocketsInClosedFolders has a service outside whose socket was renamed, in a folder that the program opens again.
func TestRunFindsSocketsInClosedFolders(t *testing.T) {
	for user := range world.Users {
		for _, flags := range [][]string{nil, {"--fs"}} {
			d := world.NewDaemon(t, world.RunPolicy)
			build := filepath.Join(d.Dir, "home,with: marks", "project", "build")
			if err := os.MkdirAll(filepath.Join(build, "inner"), 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := d.World.Gateway.Listen("unix", filepath.Join(build, "inner", "sock"))
			if err != nil {
				t.Fatal(err)
			}
			world.Serve(t, l, func(c net.Conn) { fmt.Fprintln(c, "outside") })
			if err := errors.Join(os.Rename(filepath.Join(build, "inner", "sock"), filepath.Join(build, "inner", "away")), os.Chmod(filepath.Join(build, "inner"), 0), os.Chmod(build, 0)); err != nil {
				t.Fatal(err)
			}
			script := `chmod 700 build; chmod 700 build/inner; socat -t1 - UNIX-CONNECT:build/inner/away </dev/null 2>&1 | grep -o outside; ls build/inner`
			if r, _ := inProject(t, d, user, script, flags...); r.out != "away\n" {
				t.Errorf("%s %v: exit %d, %q, %s", user, flags, r.code, r.out, r.talk)
			}
		}
	}
}
