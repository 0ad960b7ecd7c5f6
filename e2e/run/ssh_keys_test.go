package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// agentWithKeys is OpenSSH's agent outside, at a path, with keys one and two that lie in the daemon's folder.
func agentWithKeys(t *testing.T, d *world.Daemon, socket string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	agent := exec.Command("ssh-agent", "-D", "-a", socket)
	if err := d.World.Gateway.Start(agent); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Process.Kill(); agent.Wait() })
	world.WaitFor(t, "the agent", func() bool { _, err := os.Stat(socket); return err == nil })
	t.Setenv("SSH_AUTH_SOCK", socket)
	for _, name := range []string{"one", "two"} {
		key := filepath.Join(d.Dir, name)
		runOutside(t, d, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key)
		runOutside(t, d, "ssh-add", "-q", key)
	}
}

// TestRunLetsAProgramSign has git sign a commit with one key of an agent outside, and a program try for the rest of the agent.
func TestRunLetsAProgramSign(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	agentWithKeys(t, d, filepath.Join(d.Dir, "home,with: marks", "agent")) // where inProject has it
	public := fileText(t, filepath.Join(d.Dir, "one.pub"))
	const script = `ssh-add -l | cut -d' ' -f3; git init -q r; cd r; git config user.name a; git config user.email a@a.test; git config gpg.format ssh; git config user.signingkey "key::$KEY"
git commit -qS --allow-empty -m signed; echo "a@a.test $KEY" >s; git -c gpg.ssh.allowedSignersFile=s verify-commit HEAD 2>&1 | grep -c Good; cd; rm -rf r project/r
try() { "$@" >/dev/null 2>&1 && echo "worked: $*"; }
try ssh-add -T "$HOST_DIR/two.pub"; try ssh-add -D; try ssh-add -d "$HOST_DIR/one"; try ssh-add -q "$HOST_DIR/two"; try ssh-add -s /usr/lib/none.so
try mv "$SSH_AUTH_SOCK" away; try rm "$SSH_AUTH_SOCK"; ls "$XDG_STATE_HOME"/runs/agent-* 2>/dev/null; echo over`
	print := strings.Fields(outside(t, d.World.Gateway, "ssh-keygen -lf "+d.Dir+"/one"))[1]
	for user := range world.Users {
		for _, flags := range [][]string{{"--ssh-key", "one"}, {"--ssh-key", print, "--fs"}, {"--ssh-key", "one", "--redirect"}} {
			t.Setenv("KEY", strings.TrimSpace(public))
			r, _ := inProject(t, d, user, script, flags...)
			if r.code != 0 || r.out != "one\n1\nover\n" || !strings.Contains(r.talk, "may sign with the ssh key "+print) {
				t.Errorf("%s %v: exit %d, %q, %s", user, flags, r.code, r.out, r.talk)
			}
			noted := 0
			for _, rec := range r.records {
				if strings.Contains(rec.Note, "signed with the ssh key "+print) {
					noted++
				}
			}
			if noted != 1 {
				t.Errorf("%s %v: %d records of the signatures", user, flags, noted)
			}
			if all := outside(t, d.World.Gateway, "ssh-add -l"); strings.Count(all, "\n") != 2 {
				t.Errorf("%s %v: the agent has %q", user, flags, all)
			}
		}
		for _, flags := range [][]string{{"--ssh-key", "three"}, {"--ssh-key", ""}} {
			if r, _ := inProject(t, d, user, "echo began", flags...); r.code != 125 || r.out != "" || !strings.Contains(r.talk, "hint: ssh-add -l") {
				t.Errorf("%s %v: exit %d, %q, %s", user, flags, r.code, r.out, r.talk)
			}
		}
	}
}

// TestRunFindsTheAgentInTheSettingsOfSSH has an agent that only IdentityAgent names, as password managers say to set it.
func TestRunFindsTheAgentInTheSettingsOfSSH(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	socket := filepath.Join(d.Dir, "manager s", "agent.sock")
	agentWithKeys(t, d, socket)
	t.Setenv("SSH_AUTH_SOCK", "/nowhere/agent")
	writeFiles(t, d, 0o644, map[string]string{".ssh/config": "Host *\n\tIdentityAgent \"~/manager s/agent.sock\"\n"})
	for user := range world.Users {
		if r := runAs(t, d, user, `SSH_AUTH_SOCK="$HOME/manager s/agent.sock" ssh-add -l | cut -d' ' -f3; ssh-add -l | cut -d' ' -f3`, "--ssh-key", "two"); r.code != 0 || r.out != "two\ntwo\n" {
			t.Errorf("%s: exit %d, %q, %s", user, r.code, r.out, r.talk)
		}
		if r := runAs(t, d, user, `SSH_AUTH_SOCK="$HOME/manager s/agent.sock" ssh-add -l; exit 0`); r.out != "" {
			t.Errorf("%s: without --ssh-key: %q, %s", user, r.out, r.talk)
		}
	}
}

// TestRunLetsAProgramSignFromAHiddenFolder has the agent in a folder of services, in whose place the program sees one of its own.
func TestRunLetsAProgramSignFromAHiddenFolder(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for user, uid := range map[string]string{"root": "0", "user": "1000"} {
		prepare := `mount -t tmpfs none /run; export SSH_AUTH_SOCK=/run/user/` + uid + `/keyring/ssh; mkdir -p /run/user/` + uid + `/keyring; ssh-agent -D -a $SSH_AUTH_SOCK >/dev/null 2>&1 &
trap "kill $!" EXIT; ssh-keygen -q -t ed25519 -N "" -C one -f /run/k; until ssh-add -q /run/k 2>/dev/null; do sleep 0.05; done; chown -R --reference="$HOME" /run; "$@"; exit; true`
		for _, flags := range [][]string{{"--ssh-key", "one"}, {"--ssh-key", "one", "--fs"}} {
			if err := os.MkdirAll(filepath.Join(d.Dir, "work"), 0o777); err != nil {
				t.Fatal(err)
			}
			out, talk, code := beside(t, d, user, "cd work; "+prepare, `ssh-add -l | cut -d' ' -f3`, flags...)
			if code != 0 || out != "one\n" {
				t.Errorf("%s %v: exit %d, %q, %s", user, flags, code, out, talk)
			}
		}
	}
}
