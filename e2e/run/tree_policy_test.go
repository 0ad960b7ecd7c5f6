package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunLeavesAPolicyInTheWorkingTreeAlone has git replace the policy file that the run was started with. The next run
// reads no version that a program could have written.
func TestRunLeavesAPolicyInTheWorkingTreeAlone(t *testing.T) {
	for _, flags := range [][]string{nil, {"--fs"}} {
		d := world.NewDaemon(t, world.RunPolicy)
		tree := filepath.Join(d.Dir, "tree")
		writeFiles(t, d, 0o644, map[string]string{"tree/f": "f\n", "tree/egressd.yaml": world.RunPolicy, ".gitconfig": "[user]\n\tname = a\n\temail = a@a.test\n"})
		git := func(args ...string) {
			t.Helper()
			cmd := exec.Command("git", args...)
			cmd.Dir, cmd.Env = tree, append(os.Environ(), "HOME="+d.Dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("git %q: %v: %s", args, err, out)
			}
		}
		git("init", "-q", "-b", "main")
		git("add", ".")
		git("commit", "-qm", "one")
		git("checkout", "-qb", "other")
		writeFiles(t, d, 0o644, map[string]string{"tree/egressd.yaml": world.RunPolicy + "  - evil.test\n", "tree/f": "g\n"})
		git("commit", "-qam", "two")
		git("checkout", "-q", "main")
		policy := filepath.Join(tree, "egressd.yaml")
		run := func(script string) *world.Result {
			t.Helper()
			return d.RunCommand(t, []string{"sh", "-c", `cd tree; exec "$@"`, "sh"}, append(append([]string{"run", "--config", policy}, flags...), "--", "sh", "-c", script)...)
		}
		const denied = `curl -sS -m9 http://evil.test/ | grep -c default-deny`
		if e := run(`git checkout -q other && cat f && ` + denied + `; git checkout -q main && echo x >>f && git stash -q && git stash pop -q && cat f; git checkout -q f`); e.Code != 0 || e.Out != "g\n1\nf\nx\n" || strings.Contains(e.Talk, "was changed") {
			t.Errorf("%v: git: exit %d, %q, %s", flags, e.Code, e.Out, e.Talk)
		}
		if e := run(`git checkout -q other; ` + denied); e.Code != 0 || e.Out != "1\n" || !strings.Contains(e.Talk, "was changed while the program ran") {
			t.Errorf("%v: a change: exit %d, %q, %s", flags, e.Code, e.Out, e.Talk)
		}
		if e := run(`echo started`); e.Code != 125 || e.Out != "" || !strings.Contains(e.Talk, "hint: look at it, then egressd policy trust --yes ") {
			t.Errorf("%v: the next run: exit %d, %q, %s", flags, e.Code, e.Out, e.Talk)
		}
		alias := filepath.Join(d.Dir, "alias")
		if err := os.Symlink(tree, alias); err != nil {
			t.Fatal(err)
		}
		if e := d.RunCommand(t, nil, "run", "--config", filepath.Join(alias, "egressd.yaml"), "--", "echo", "started"); e.Code != 125 || e.Out != "" {
			t.Errorf("%v: by another path: exit %d, %q, %s", flags, e.Code, e.Out, e.Talk)
		}
		git("checkout", "-q", "main")
		if e := run(`mv egressd.yaml real.yaml; echo '  - evil.test' >>real.yaml; ln -s real.yaml egressd.yaml; ls ~/tree-policies ~/.local/state/egressd/tree-policies ../tree-policies 2>/dev/null; echo over`); e.Code != 0 || e.Out != "over\n" {
			t.Errorf("%v: as it was: exit %d, %q, %s", flags, e.Code, e.Out, e.Talk)
		}
		if e := run(`echo started`); e.Code != 125 || e.Out != "" {
			t.Errorf("%v: a link in its place: exit %d, %q, %s", flags, e.Code, e.Out, e.Talk)
		}
		if e := d.RunCommand(t, nil, "policy", "trust", "--yes", policy); e.Code != 0 {
			t.Errorf("%v: trust: exit %d, %s", flags, e.Code, e.Talk)
		}
		if e := run(`curl -sS -m9 http://evil.test/`); e.Code != 0 || !strings.Contains(e.Out, `"class":"network-`) { // it is allowed, and there is no such name
			t.Errorf("%v: accepted: exit %d, %q, %s", flags, e.Code, e.Out, e.Talk)
		}
	}
}

// TestRunLooksAtAPolicyWhenNothingRuns leaves a process behind that ignores SIGTERM and changes the policy once egressd
// has looked at it: egressd says at the end what the run came to.
func TestRunLooksAtAPolicyWhenNothingRuns(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	const late = `import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
while b" requests to " not in open("talk", "rb").read(): pass
open("egressd.yaml", "a").write("  - evil.test\n")
`
	writeFiles(t, d, 0o644, map[string]string{"tree/egressd.yaml": world.RunPolicy, "tree/late.py": late, "tree/.git/HEAD": "ref: refs/heads/main\n"})
	tree := filepath.Join(d.Dir, "tree")
	policy := filepath.Join(tree, "egressd.yaml")
	talk, err := os.Create(filepath.Join(tree, "talk"))
	if err != nil {
		t.Fatal(err)
	}
	defer talk.Close()
	cmd := exec.Command(world.Egressd.Path(), "run", "--config", policy, "--", "python3", "late.py")
	cmd.Dir, cmd.Stderr = tree, talk
	cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	if err := d.World.Gateway.Run(cmd); err != nil {
		t.Fatalf("%v: %s", err, fileText(t, talk.Name()))
	}
	if text := fileText(t, policy); text != world.RunPolicy {
		t.Errorf("the policy is %q; %s", text, fileText(t, talk.Name()))
	}
}

// TestRunKeepsWhatALeftoverCouldChange has no PID namespace, as in a container: what the program leaves behind goes on after the run.
func TestRunKeepsWhatALeftoverCouldChange(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	writeFiles(t, d, 0o644, map[string]string{"main/egressd.yaml": world.RunPolicy, ".gitconfig": "[user]\n\tname = a\n\temail = a@a.test\n"})
	if said := outside(t, d.World.Gateway, "export HOME="+d.Dir+"; cd "+d.Dir+"/main && git init -q && git add . && git commit -qm one && git worktree add -q ../tree -b b && chmod 644 ../tree/egressd.yaml"); said != "" {
		t.Fatal(said)
	}
	tree := filepath.Join(d.Dir, "tree")
	for _, row := range []struct {
		before string
		keeps  bool
	}{{`"$@"`, false}, {`mount -t tmpfs none /proc/sys && "$@"`, true}} {
		cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", row.before, "sh",
			world.Egressd.Path(), "run", "--fs", "--config", filepath.Join(tree, "egressd.yaml"), "--", "sh", "-c", "echo x >f; git add f; git commit -q --allow-empty -m f; echo >>egressd.yaml && echo changed; git checkout -q egressd.yaml")
		cmd.Dir, cmd.Env = tree, append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
		var out, talk strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &talk
		_ = d.World.Gateway.Run(cmd)
		if changed := out.String() == "changed\n"; changed == row.keeps {
			t.Errorf("%s: %q, %s", row.before, out.String(), talk.String())
		}
	}
}
