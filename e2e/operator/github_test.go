package operator

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"go.yaml.in/yaml/v3"
)

// An action is one of GitHub's that is made of shell steps.
type action struct {
	Name        string                    `yaml:"name"`
	Description string                    `yaml:"description"`
	Inputs      map[string]map[string]any `yaml:"inputs"`
	Runs        struct {
		Using string `yaml:"using"`
		Steps []struct {
			Name  string            `yaml:"name"`
			If    string            `yaml:"if"`
			Shell string            `yaml:"shell"`
			Run   string            `yaml:"run"`
			Env   map[string]string `yaml:"env"`
		} `yaml:"steps"`
	} `yaml:"runs"`
}

// A runner is what GitHub's runner gives a job: files by which steps speak to it.
type runner struct {
	temp, work string
	env        []string // for the next step
}

func newRunner(t *testing.T) *runner {
	t.Helper()
	r := &runner{temp: t.TempDir(), work: t.TempDir()}
	r.env = append(os.Environ(), "HOME="+r.temp, "RUNNER_TEMP="+r.temp, "CI=true")
	for _, name := range []string{"GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"} {
		path := filepath.Join(r.temp, name)
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		r.env = append(r.env, name+"="+path)
	}
	return r
}

func (r *runner) file(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.temp, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// step runs a script as a step with shell: bash, and takes in the variables it sets.
func (r *runner) step(t *testing.T, script string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = r.work, append(append([]string(nil), r.env...), env...)
	out, err := os.CreateTemp(r.temp, "out") // which a daemon may keep open
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	failed := world.Open(t).Gateway.Run(cmd)
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	r.env = append(r.env, strings.Fields(r.file(t, "GITHUB_ENV"))...)
	for path := range strings.Lines(r.file(t, "GITHUB_PATH")) {
		r.env = append(r.env, "PATH="+strings.TrimSpace(path)+":"+os.Getenv("PATH"))
	}
	return string(text), failed
}

// use runs the steps of an action.
func (r *runner) use(t *testing.T, folder string, with map[string]string) (string, error) {
	t.Helper()
	dir := world.Source("integrations", "github", folder)
	text, err := os.ReadFile(filepath.Join(dir, "action.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var a action
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	d.KnownFields(true)
	if err := d.Decode(&a); err != nil || a.Runs.Using != "composite" {
		t.Fatalf("%s: %v", dir, err)
	}
	var said strings.Builder
	var failed error
	for _, s := range a.Runs.Steps {
		if !wanted(t, s.If, with, failed) {
			continue
		}
		env := []string{"GITHUB_ACTION_PATH=" + dir}
		for name, value := range s.Env {
			env = append(env, name+"="+inputIn(t, value, a, with))
		}
		out, err := r.step(t, s.Run, env...)
		said.WriteString(out)
		if err != nil && failed == nil {
			failed = err
		}
	}
	return said.String(), failed
}

// wanted is what an if of the actions comes to.
func wanted(t *testing.T, condition string, with map[string]string, failed error) bool {
	t.Helper()
	switch condition {
	case "":
		return failed == nil
	case "${{ inputs.run == '' }}":
		return failed == nil && with["run"] == ""
	case "${{ inputs.run != '' }}":
		return failed == nil && with["run"] != ""
	case "${{ always() && inputs.run != '' }}":
		return with["run"] != ""
	}
	t.Fatalf("the test does not know %s", condition)
	return false
}

var inputExpression = regexp.MustCompile(`^\$\{\{ inputs\.([a-z-]+) \}\}$`)

func inputIn(t *testing.T, value string, a action, with map[string]string) string {
	t.Helper()
	m := inputExpression.FindStringSubmatch(value)
	if m == nil {
		return value
	}
	input, known := a.Inputs[m[1]]
	if !known {
		t.Fatalf("there is no input %s", m[1])
	}
	if given, ok := with[m[1]]; ok {
		return given
	}
	text, _ := input["default"].(string)
	return text
}

// actionPolicy is a policy in the working tree.
func (r *runner) actionPolicy(t *testing.T) string {
	t.Helper()
	path := filepath.Join(r.work, "egressd.yaml")
	text := "version: 1\nlisten: {proxy: [\"127.0.0.1:3128\"]}\nupstream: {dns: [\"" + world.Resolver + "\"]}\nallow: [\"allowed.test:80\"]\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestActionHoldsAScript uses the action as its workflow does.
func TestActionHoldsAScript(t *testing.T) {
	r := newRunner(t)
	with := map[string]string{"binary": world.Egressd.Path(), "policy": r.actionPolicy(t), "run": `
curl -sS -m9 http://allowed.test/
curl -sS -m9 http://evil.test/ | grep -o default-deny
[ $((0x$(awk '/^SigIgn/ {print $2}' /proc/self/status) & 2)) = 0 ] || echo it ignores SIGINT
for f in ` + filepath.Join(r.temp, "GITHUB_ENV") + ` ` + filepath.Join(r.temp, "GITHUB_PATH") + `; do (echo LD_PRELOAD=/x >> $f) 2>/dev/null || true; done
echo ::add-mask::deny; printf '##[stop-commands]x\n'; echo "::$(env | tr '\n' ' ')::"
echo done > made-here; printf unfinished`}
	out, err := r.use(t, "", with)
	if got := runnerCommands(out); len(got) != 2 || !strings.HasPrefix(got[0], "stop-commands::") || got[1] != strings.TrimPrefix(got[0], "stop-commands::")+"::" {
		t.Errorf("the runner was told %q", got)
	}
	if err != nil || !strings.Contains(out, "origin ") || !strings.Contains(out, "default-deny") {
		t.Errorf("%v:\n%s", err, out)
	}
	if strings.Contains(out, "it ignores SIGINT") {
		t.Error("the script ignores SIGINT")
	}
	if got := r.file(t, "GITHUB_ENV"); got != "" {
		t.Errorf("the script has set variables of later steps: %s", got)
	}
	if got := r.file(t, "GITHUB_PATH"); strings.Contains(got, "LD_PRELOAD") {
		t.Errorf("the script has set the path of later steps: %s", got)
	}
	if _, err := os.Stat(filepath.Join(r.work, "made-here")); err != nil {
		t.Error(err)
	}
	if got := r.file(t, "GITHUB_STEP_SUMMARY"); !strings.Contains(got, "evil.test") || !strings.Contains(got, "allowed.test") {
		t.Errorf("the summary is:\n%s", got)
	}
	with["run"], with["fail-on-deny"] = "curl -sS -m9 http://evil.test/ > page", "true"
	if out, err := r.use(t, "", with); err == nil {
		t.Errorf("with fail-on-deny it is green:\n%s", out)
	}
	if got := r.file(t, "GITHUB_STEP_SUMMARY"); strings.Count(got, "evil.test") < 2 {
		t.Errorf("of a failed script there is no summary:\n%s", got)
	}
}

// runnerCommands are what GitHub's runner takes for a command in what a step printed.
func runnerCommands(out string) (all []string) {
	token := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		name, message, found := strings.Cut(strings.TrimPrefix(line, "::"), "::")
		if at := strings.Index(line, "##["); at >= 0 {
			name, message, found = strings.Cut(line[at+3:], "]")
		} else if !strings.HasPrefix(line, "::") {
			continue
		}
		if !found || token != "" && name != token {
			continue
		}
		all, token = append(all, name+"::"+message), ""
		if name == "stop-commands" {
			token = message
		}
	}
	return all
}

// TestActionServes has a later step go through it, and the summary end it.
func TestActionServes(t *testing.T) {
	r := newRunner(t)
	policy := r.actionPolicy(t)
	if out, err := r.use(t, "", map[string]string{"binary": world.Egressd.Path(), "policy": policy}); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	out, err := r.step(t, "egressd version && curl -sS -m9 http://allowed.test/ && curl -sS -m9 http://evil.test/")
	if err != nil || !strings.Contains(out, "origin ") || !strings.Contains(out, "default-deny") {
		t.Errorf("a later step: %v:\n%s", err, out)
	}
	if out, err := r.use(t, "summary", map[string]string{"policy": policy}); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	if got := r.file(t, "GITHUB_STEP_SUMMARY"); !strings.Contains(got, "evil.test") {
		t.Errorf("the summary is:\n%s", got)
	}
	if c, err := world.Open(t).Gateway.Dial("tcp", "127.0.0.1:3128"); err == nil {
		c.Close()
		t.Error("it serves still")
	}
}
