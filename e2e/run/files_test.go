package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// writeFiles writes files into the daemon's folder, which is HOME and the working directory too.
func writeFiles(t *testing.T, d *world.Daemon, mode os.FileMode, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(d.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
}

// injecting is a policy whose rule for a.allowed.test has a credential from source.
func injecting(source string) string {
	return `version: 1
allow: [{id: key, host: a.allowed.test, methods: [GET], inject: {header: Authorization, value: "Bearer {}", ` + source + `}}]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`
}

// replaces is a script that tries to put another file in the place of each of "$@".
const replaces = `for f in "$@"; do
  (echo 'echo ran >>ran; echo other-credential' >"$f"; echo other >other; chmod +x other; mv -f other "$f"; rm -f "$f"; ln -sf nowhere "$f"; mv "$(dirname "$f")" aside) 2>/dev/null
done
`

// TestRunKeepsWhatThePolicyNames has a program replace every file that the policy names.
func TestRunKeepsWhatThePolicyNames(t *testing.T) {
	for user := range world.Users {
		for _, flags := range [][]string{nil, {"--fs"}} {
			t.Run(user+strings.Join(flags, ""), func(t *testing.T) {
				d := world.NewDaemon(t, "")
				token := filepath.Join(d.Dir, "bin", "token")
				if err := os.WriteFile(d.Config, []byte(injecting(fmt.Sprintf("command: [%s, %s/bin/token.sh]", token, d.Dir))+`listen: {proxy: ["tls:127.0.0.1:3443"], client_ca: clients.pem}
canaries: [{name: bait, file: canary}]
sandboxes: [{name: run, token_file: ci.token}]
rego: [rules]
`), 0o600); err != nil {
					t.Fatal(err)
				}
				files := map[string]string{"clients.pem": readAll(t, filepath.Join(d.Dir, "lab.pem")), "canary": "a-text-to-be-found-0123", "shared/rule.rego": "package egress\n\ndeny contains {\"rule\": \"r\"} if input.destination.host == \"evil.test\"\n"}
				writeFiles(t, d, 0o600, files)
				scripts := map[string]string{"bin/token": "#!/bin/sh\n. \"$1\"\n", "bin/token.sh": "echo a-long-credential\n"}
				writeFiles(t, d, 0o700, scripts)
				if err := os.MkdirAll(filepath.Join(d.Dir, "rules"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("../shared/rule.rego", filepath.Join(d.Dir, "rules", "rule.rego")); err != nil {
					t.Fatal(err)
				}
				kept := []string{"clients.pem", "canary", "ci.token", "lab.pem", "shared/rule.rego", "rules/rule.rego", "bin/token", "bin/token.sh", "egressd.yaml"}
				before := map[string]string{}
				for _, name := range kept {
					before[name] = readAll(t, filepath.Join(d.Dir, name))
				}
				script := "set -- " + strings.Join(kept, " ") + "\n" + replaces + `cat canary ci.token; echo over`
				if len(flags) > 0 { // the working directory has to be another than HOME
					script = "cd ..; " + script
					if err := os.Mkdir(filepath.Join(d.Dir, "work"), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				e := d.RunCommand(t, inFolder(user, len(flags) > 0), append(append([]string{"run", "--config", d.Config, "--name", "run"}, flags...), "--", "sh", "-c", script)...)
				if e.Code != 0 || e.Out != "over\n" {
					t.Errorf("exit %d, printed %q (%s)", e.Code, e.Out, e.Talk)
				}
				for _, name := range kept {
					if after, err := os.ReadFile(filepath.Join(d.Dir, name)); err != nil || string(after) != before[name] {
						t.Errorf("%s is now %.80q (%v)", name, after, err)
					}
				}
				if _, err := os.Stat(filepath.Join(d.Dir, "ran")); err == nil {
					t.Error("what the program wrote was started")
				}
			})
		}
	}
}

// inFolder starts a command as a user, in a folder for the program alone where apart is set.
func inFolder(user string, apart bool) (before []string) {
	if before = world.Users[user]; apart {
		before = append([]string{"sh", "-c", `cd work; exec "$@"`, "sh"}, before...)
	}
	return before
}

// TestRunStartsNoCommandBesideTheProgram has a program replace what a command reads, which would
// be started again outside of the sandbox.
func TestRunStartsNoCommandBesideTheProgram(t *testing.T) {
	d := world.NewDaemon(t, "")
	own, bare := fmt.Sprintf("command: [%s/token]", d.Dir), `command: [token]`
	folder := filepath.Join(d.Dir, "apart", "key")
	for _, row := range []struct {
		says, source string
		code         int
		talk         string
	}{
		{"a command that is started again", own + ", refresh: 1s", 125, "refresh"},
		{"a command that is looked up", bare, 125, "hint: " + d.Dir + "/token in place of token in "},
		{"a command by its path", own, 0, ""},
		{"a file that is read again, in HOME", "file: api.secret, refresh: 1s", 125, "api.secret"},
		{"a file that is read again", "file: " + folder + ", refresh: 1s", 0, ""},
		{"a file that is not there", "file: " + folder + ".absent", 125, folder + ".absent"},
	} {
		t.Run(row.says, func(t *testing.T) {
			writeFiles(t, d, 0o700, map[string]string{"token": "#!/bin/sh\n. \"$HOME/.settings\"\necho a-long-credential\n", ".settings": "", "apart/key": "a-long-credential\n"})
			if err := os.WriteFile(d.Config, []byte(injecting(row.source)), 0o600); err != nil {
				t.Fatal(err)
			}
			path := "PATH=" + d.Dir + ":" + os.Getenv("PATH")
			e := d.RunCommand(t, []string{"env", path}, "run", "--config", d.Config, "--", "sh", "-c", `echo 'echo ran >"$HOME/ran"' >.settings; sleep 3`)
			if e.Code != row.code || !strings.Contains(e.Talk, row.talk) || e.Out != "" {
				t.Errorf("exit %d, printed %q (%s)", e.Code, e.Out, e.Talk)
			}
			if _, err := os.Stat(filepath.Join(d.Dir, "ran")); err == nil {
				t.Error("what the program wrote was started")
			}
		})
	}
}

// TestRunBesideADaemonThatStartsCommands has the daemon start the command each second, while a
// program writes what it reads.
func TestRunBesideADaemonThatStartsCommands(t *testing.T) {
	d := world.NewDaemon(t, "")
	writeFiles(t, d, 0o700, map[string]string{"token": "#!/bin/sh\n. \"$HOME/.settings\"\necho x >>\"$HOME/count\"\necho a-long-credential\n", ".settings": "", "work/kept": ""})
	text := strings.Replace(sharedPolicy, `"*.allowed.test"`, fmt.Sprintf(`{host: a.allowed.test, methods: [GET], inject: {header: Authorization, command: [%s/token], refresh: 1s}}`, d.Dir), 1)
	d.WriteConfig(t, text+"tls: {ca_dir: ca, extra_roots: [lab.pem]}\n")
	d.Run(t, d.Command(t.Context(), nil, "serve", "--config", d.Config))
	defer d.Stop(t)
	script := `echo 'echo ran >"$HOME/ran"' >"$HOME/.settings"; echo >"$HOME/token"; echo wrote; curl -sS -m9 https://a.allowed.test/; sleep 3`
	for flag, want := range map[string]string{"--redirect": "hint: egressd run --fs -- COMMAND", "--fs": ""} {
		e := d.RunCommand(t, inFolder("root", true), "run", "--config", d.Config, flag, "--", "sh", "-c", script)
		if refused := e.Code == 125; refused != (want != "") || !strings.Contains(e.Talk, want) || !refused && !strings.Contains(e.Out, "origin") {
			t.Errorf("%s: exit %d, printed %q (%s)", flag, e.Code, e.Out, e.Talk)
		}
		if _, err := os.Stat(filepath.Join(d.Dir, "ran")); err == nil {
			t.Errorf("%s: what the program wrote was started", flag)
		}
	}
	if count := readAll(t, filepath.Join(d.Dir, "count")); len(count) < 4 {
		t.Errorf("the command was started %d times", len(count)/2)
	}
}

// TestRunHidesWhatReplacesAFile has somebody outside put another file in the place of one that
// egressd reads again: the kernel then ends mounts over the old one.
func TestRunHidesWhatReplacesAFile(t *testing.T) {
	d := world.NewDaemon(t, "")
	writeFiles(t, d, 0o600, map[string]string{"apart/key": "first-credential", "apart/next": "second-credential"})
	if err := os.WriteFile(d.Config, []byte(injecting("file: apart/key, refresh: 1s")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := d.Command(t.Context(), nil, "run", "--config", d.Config, "--", "sh", "-c", `echo ready; read x; cat apart/key; echo third-credential >apart/key; echo over`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, said world.Output
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := d.World.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if !world.Eventually(20*time.Second, func() bool { return strings.Contains(out.String(), "ready") }) {
		t.Errorf("%q", said.String())
	}
	if err := os.Rename(filepath.Join(d.Dir, "apart", "next"), filepath.Join(d.Dir, "apart", "key")); err != nil {
		t.Fatal(err)
	}
	in.Write([]byte("go\n"))
	if err := cmd.Wait(); err != nil || strings.Contains(out.String(), "second-credential") || !strings.Contains(out.String(), "over") {
		t.Errorf("%v, printed %q (%s)", err, out.String(), said.String())
	}
	if text := readAll(t, filepath.Join(d.Dir, "apart", "key")); text != "second-credential" {
		t.Errorf("the file is now %q", text)
	}
}
