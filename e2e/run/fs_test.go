package run

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// apart runs a script under egressd run --fs, in a project in a home.
func apart(t *testing.T, d *world.Daemon, user, script string, flags ...string) (r *ran, home string) {
	t.Helper()
	return inProject(t, d, user, script, append([]string{"--fs"}, flags...)...)
}

// inProject runs a script under egressd run, in a project in a home.
func inProject(t *testing.T, d *world.Daemon, user, script string, flags ...string) (r *ran, home string) {
	t.Helper()
	home = filepath.Join(d.Dir, "home,with: marks")
	project := filepath.Join(home, "project")
	if err := os.MkdirAll(project, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "notes"), []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := jailed(t.Context(), d, user, flags, "sh", "-c", script)
	cmd.Dir = project
	cmd.Env = append(cmd.Env, "HOME="+home, "PWD="+project, "XDG_RUNTIME_DIR="+filepath.Join(d.Dir, "runtime"), "SSH_AUTH_SOCK="+filepath.Join(home, "agent"), "HOST_DIR="+d.Dir)
	folder, err := os.Open(d.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	cmd.ExtraFiles = []*os.File{folder} // as a careless caller leaves one open
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	_ = d.World.Gateway.Run(cmd) // the code says it
	r = &ran{out: out.String(), talk: talk.String(), code: codeOf(cmd.ProcessState)}
	r.records = lastRun(t, d)
	return r, home
}

// TestRunFSKeepsTheHost has the program write, read and connect where it can.
func TestRunFSKeepsTheHost(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	if err := os.Mkdir(filepath.Join(d.Dir, "runtime"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"home,with: marks/agent", "runtime/bus"} {
		path := filepath.Join(d.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := d.World.Gateway.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	for user := range world.Users {
		for _, row := range []struct{ says, script, out string }{
			{"the project is the host's", `echo built > result; pwd; cat result`, "project\nbuilt\n"},
			{"the home can be read", `cat ~/notes`, "of the host\n"},
			{"and written, for the program", `echo mine >> ~/notes; mkdir ~/.cache; mv ~/notes ~/.cache/; cat ~/.cache/notes; rm -r ~/.cache; ls ~/notes 2>&1`, "of the host\nmine\nls: cannot access"},
			{"the system cannot", `for f in /etc /usr /opt /var /; do touch $f/egressd-e2e 2>&1 && echo written; done; echo done`, "Read-only file system\ndone\n"},
			{"temporary files are its own", `for f in /tmp /var/tmp /dev/shm /run $XDG_RUNTIME_DIR; do ls $f; echo x > $f/x && cat $f/x; done; ls -d $HOST_DIR/audit $HOST_DIR/egressd.yaml 2>&1`, "x\nls: cannot access"},
			{"a socket in the home", `cd; echo x | socat -t1 - UNIX-CONNECT:agent 2>&1; echo ${SSH_AUTH_SOCK-unset}`, "Connection refused\nunset\n"},
			{"a socket in the runtime folder", `echo x | socat -t1 - UNIX-CONNECT:$XDG_RUNTIME_DIR/bus 2>&1`, "No such file or directory"},
			{"a folder that was left open", `ls /proc/self/fd/3/ 2>&1; touch /proc/self/fd/3/escaped 2>&1`, "cannot access"},
			{"another mount", `unshare -Urm sh -c 'mount -o remount,rw / 2>&1; mount -o remount,bind,rw / 2>&1; umount /tmp 2>&1; touch /etc/egressd-e2e' 2>&1; echo done`, "done"},
			{"the host's root", `ls -d /proc/[0-9]*/root/tmp/. 2>/dev/null | while read d; do ls $d/.. >/dev/null 2>&1 && test -e $d/$(basename $HOST_DIR) && echo found; done; touch $HOST_DIR/escaped 2>&1; echo done`, "done"},
			{"names", `cat /etc/resolv.conf; curl -sS -m9 http://a.allowed.test/; curl -sS -m9 http://evil.test/`, "origin"},
			{"job control and codes", `sh -c 'kill -STOP $$' & sleep 0.2; kill -CONT $!; wait $!; kill -TERM $$`, ""},
			{"a sandbox in it", `test $(id -u) = 0 || unshare -Ur true && echo made`, "made\n"},
		} {
			t.Run(user+"/"+row.says, func(t *testing.T) {
				r, home := apart(t, d, user, row.script)
				if !strings.Contains(r.out, row.out) || strings.Contains(r.out, "found") || strings.Contains(r.out, "written") || r.code == 125 {
					t.Errorf("exit %d, printed %q (%s), want %q", r.code, r.out, r.talk, row.out)
				}
				if row.says == "job control and codes" && r.code != 128+15 {
					t.Errorf("exit %d", r.code)
				}
				if b, err := os.ReadFile(filepath.Join(home, "notes")); err != nil || string(b) != "of the host\n" {
					t.Errorf("the notes of the host are %q, %v", b, err)
				}
				for _, path := range []string{"/etc/egressd-e2e", "/tmp/x", "/dev/shm/x", "/run/x", filepath.Join(d.Dir, "runtime", "x"), filepath.Join(d.Dir, "escaped"), filepath.Join(home, ".cache")} {
					if _, err := os.Lstat(path); err == nil {
						t.Errorf("%s was written", path)
					}
				}
			})
		}
	}
	if b, err := os.ReadFile(filepath.Join(d.Dir, "home,with: marks", "project", "result")); err != nil || string(b) != "built\n" {
		t.Errorf("the project has %q, %v", b, err)
	}
}

// TestRunFSInspects covers the system's bundle in a file system that is apart.
func TestRunFSInspects(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [{host: a.allowed.test, paths: [\"/public/**\"]}]\ntls: {ca_dir: ca, extra_roots: [lab.pem]}\n")
	r, _ := apart(t, d, "user", `curl -sS -m9 https://a.allowed.test/public/x; curl -sS -m9 https://a.allowed.test/private`)
	if !strings.Contains(r.out, "origin") || !strings.Contains(r.out, "path-denied") {
		t.Errorf("printed %q, %q", r.out, r.talk)
	}
}

// TestRunFSRefusesFoldersThatAreTooMuch begins it where all would be shared, and with a program that lies in /tmp.
func TestRunFSRefusesFoldersThatAreTooMuch(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	const tooMuch = "egressd: hint: cd to the folder of a project"
	project, tools := t.TempDir(), t.TempDir()
	tool := filepath.Join(tools, "tool")
	if err := os.WriteFile(tool, []byte("exit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		dir, program, shared string
		code                 int
		hint                 string
	}{
		{d.Dir, "true", "", 125, tooMuch}, // HOME
		{filepath.Dir(d.Dir), "true", "", 125, tooMuch},
		{"/", "true", "", 125, tooMuch}, {"/etc", "true", "", 125, tooMuch}, {"/tmp", "true", "", 125, tooMuch},
		{project, tool, "", 127, "egressd: hint: egressd run --fs --share " + tools + " -- COMMAND"},
		{project, "tool", "", 127, "egressd: hint: egressd run --fs --share " + tools + " -- COMMAND"},
		{project, tool, tools, 0, ""},
	} {
		flags := []string{"--fs"}
		if row.shared != "" {
			flags = append(flags, "--share", row.shared)
		}
		cmd := jailed(t.Context(), d, "user", flags, row.program)
		cmd.Dir, cmd.Env = row.dir, append(cmd.Env, "PATH="+tools+":"+os.Getenv("PATH"))
		var talk bytes.Buffer
		cmd.Stderr = &talk
		_ = d.World.Gateway.Run(cmd)
		if code := cmd.ProcessState.ExitCode(); code != row.code || !strings.Contains(talk.String(), row.hint) {
			t.Errorf("%+v: exit %d, %q", row, code, talk.String())
		}
	}
}

// TestRunHidesWhatIsNamed has the program look for keys that --hide keeps from it.
func TestRunHidesWhatIsNamed(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for user := range world.Users {
		for _, flags := range [][]string{nil, {"--fs"}} {
			home := filepath.Join(d.Dir, "home,with: marks")
			keys, token := filepath.Join(home, "keys"), filepath.Join(home, "token")
			if err := os.MkdirAll(keys, 0o777); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{filepath.Join(keys, "id"), token} {
				if err := os.WriteFile(path, []byte("secret\n"), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			r, _ := inProject(t, d, user, `cd ..; cat keys/id token ../*/keys/id /proc/[0-9]*/cwd/../token /proc/self/root"$HOME"/token 2>&1 | grep secret
				mv keys elsewhere; rm -rf keys; ln token linked; cat linked; rm -f token; echo mine >keys/id; unshare -Urm sh -c 'umount keys; umount token; cat keys/id token'; ls keys/id; echo done`, append(flags, "--hide", keys, "--hide", token)...)
			if r.code != 0 || r.out != "done\n" {
				t.Errorf("%s, %q: exit %d, printed %q (%s)", user, flags, r.code, r.out, r.talk)
			}
			for _, path := range []string{filepath.Join(keys, "id"), token} {
				if text, err := os.ReadFile(path); err != nil || string(text) != "secret\n" {
					t.Errorf("%s, %q: %s is %q, %v", user, flags, path, text, err)
				}
			}
			for _, path := range []string{filepath.Join(home, "missing"), home} {
				if r, _ := inProject(t, d, user, "echo began", append(flags, "--hide", path)...); r.code != 125 || r.out != "" || !strings.Contains(r.talk, "egressd: hint: ") {
					t.Errorf("%s, %q, --hide %s: exit %d, %q, %q", user, flags, path, r.code, r.out, r.talk)
				}
			}
		}
	}
}
