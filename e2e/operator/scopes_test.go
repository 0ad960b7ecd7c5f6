package operator

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

const (
	formType = "application/x-www-form-urlencoded"

	// twoSandboxes are known by their addresses.
	twoSandboxes = `sandboxes:
  - {name: near, source: [10.99.0.0/24, "fd99::/64"]}
  - {name: next, source: [10.97.0.0/24]}
`
)

// askFor has the program in the sandbox ask for requests to a host.
func askFor(t *testing.T, d *world.Daemon, host, path string) {
	t.Helper()
	if out, err := d.Shell(t.TempDir(), "", `curl -sS http://egressd.internal/requests -d '{"host":"`+host+`:80","method":"GET","path":"`+path+`","reason":"x"}'`); err != nil {
		t.Fatal(out, err)
	}
}

func statusOf(t *testing.T, d *world.Daemon, url string) string {
	t.Helper()
	out, _ := d.Shell(t.TempDir(), "", "curl -sS -m 10 -o /dev/null -w '%{http_code}' "+url)
	return out
}

func fileOf(t *testing.T, d *world.Daemon) string {
	t.Helper()
	text, err := os.ReadFile(d.Config)
	world.Must(t, err)
	return string(text)
}

// atTerminal types a key when a command asks, after meanwhile, and returns what it said.
func atTerminal(t *testing.T, d *world.Daemon, key string, meanwhile func(), argv ...string) string {
	t.Helper()
	cmd := d.Command(t.Context(), nil, append(argv, "--config", d.Config)...)
	on := exec.Command("script", "-qec", strings.Join(cmd.Args, " "), "/dev/null")
	on.Env, on.Dir = cmd.Env, cmd.Dir
	var said world.Output
	on.Stdout = &said
	keys, err := on.StdinPipe()
	world.Must(t, err)
	world.Must(t, d.World.Gateway.Start(on))
	if !world.Eventually(world.Settling, func() bool { return strings.Contains(said.String(), "[y/N]") }) {
		t.Errorf("it says %s", said.String())
	}
	if meanwhile != nil {
		meanwhile()
	}
	keys.Write([]byte(key + "\n"))
	_ = on.Wait()
	return said.String()
}

// TestASandboxHasItForGood by a line of its own, which opens nothing to another sandbox, in the terms of the question.
func TestASandboxHasItForGood(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [tool.test]\nask: [\"*.allowed.test\"]\nlimits: {ask_wait: 1s}\n"+twoSandboxes))
	before := fileOf(t, d)
	askFor(t, d, "evil.test", "/x")
	q := isAsked(t, d, 0, "evil.test", "/x")
	if said := atTerminal(t, d, "n", nil, "answer", q.ID, "yes", "--for", "good"); !strings.Contains(said, "also_allow") || fileOf(t, d) != before {
		t.Errorf("a person who looks and says no: %s", said)
	}
	if q := isAsked(t, d, 0, "evil.test", "/x"); q.State != "pending" {
		t.Errorf("after a look it is %s", q.State)
	}
	e := answers(t, d, "answer", q.ID, "yes", "--for", "good", "--json")
	var done admin.Answer
	if err := json.Unmarshal([]byte(e.Out), &done); err != nil || done.Saved == nil || done.Saved.Sandbox != "near" || !done.Question.Saved || done.Question.State != "approved" {
		t.Fatalf("%v %+v %s", err, done, e.Talk)
	}
	for url, want := range map[string]string{"http://evil.test/x": "200", "http://evil.test/y": "403"} {
		if got := statusOf(t, d, url); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
	if e := d.RunCommand(t, nil, "check", "http://evil.test/x", "--sandbox", "next", "--config", d.Config); e.Code == 0 {
		t.Errorf("the other sandbox: exit %d, %s", e.Code, e.Out)
	}
	if e := d.RunCommand(t, nil, "answer", q.ID, "no", "--config", d.Config); e.Code != 1 || statusOf(t, d, "http://evil.test/x") != "200" {
		t.Errorf("a no to what the file has: exit %d, %s", e.Code, e.Talk)
	}
	if e := d.RunCommand(t, nil, "allow", "--list", "--config", d.Config); strings.Contains(e.Out, "evil.test") {
		t.Errorf("it is granted for a while, too: %s", e.Out)
	}
	// A line for this host would stand above the rule for every sandbox.
	after := fileOf(t, d)
	statusOf(t, d, "http://a.allowed.test/")
	q = isAsked(t, d, 0, "a.allowed.test", "")
	if e := d.RunCommand(t, nil, "answer", q.ID, "yes", "--for", "good", "--config", d.Config); e.Code == 0 || fileOf(t, d) != after {
		t.Errorf("what opens another sandbox: exit %d, %s", e.Code, e.Talk)
	}
	if q := isAsked(t, d, 0, "a.allowed.test", ""); q.State != "pending" {
		t.Errorf("it is %s", q.State)
	}
	all, err := d.Log.Since(0)
	world.Must(t, err)
	good := 0
	for _, r := range all {
		if r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, "approve question ") && strings.Contains(r.Note, ", for good: GET /x of evil.test:80 in "+d.Config) {
			good++
		}
	}
	if good != 1 {
		t.Errorf("%d records say what was written", good)
	}
}

// TestWhatWaitsPassesByTheFile: no rule asks any more, also in a file without sandboxes.
func TestWhatWaitsPassesByTheFile(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "ask: [\"*.allowed.test\"]\n"))
	waits := beside(t, d, askCurl+"http://a.allowed.test/x")
	q := isAsked(t, d, 1, "a.allowed.test", "")
	if e := answers(t, d, "answer", q.ID, "yes", "--for", "good"); !strings.Contains(e.Talk, "every sandbox") {
		t.Errorf("it says %s", e.Talk)
	}
	if out := <-waits; !strings.Contains(out, "GET /x") {
		t.Errorf("what waited got %s", out)
	}
	if left := questions(t, d); len(left) != 0 {
		t.Errorf("left are %+v", left)
	}
	// A file that egressd may not write: nothing passes by that, and the question waits on.
	waits = beside(t, d, askCurl+"http://b.allowed.test/x")
	q = isAsked(t, d, 1, "b.allowed.test", "")
	world.Must(t, exec.Command("mount", "--bind", d.Config, d.Config).Run())
	world.Must(t, exec.Command("mount", "-o", "remount,ro,bind", d.Config).Run())
	e := d.RunCommand(t, nil, "answer", q.ID, "yes", "--for", "good", "--config", d.Config)
	world.Must(t, exec.Command("umount", d.Config).Run())
	if e.Code != 1 || !strings.Contains(e.Talk, "egressd allow ") || isAsked(t, d, 1, "b.allowed.test", "").State != "pending" {
		t.Fatalf("exit %d, %s", e.Code, e.Talk)
	}
	fix := e.Talk[strings.Index(e.Talk, "egressd allow "):]
	fix, _, _ = strings.Cut(fix, "\n")
	if e := d.RunCommand(t, nil, strings.Fields(fix)[1:]...); e.Code != 0 {
		t.Fatalf("the printed fix %q: exit %d, %s", fix, e.Code, e.Talk)
	}
	if out := <-waits; !strings.Contains(out, "GET /x") {
		t.Errorf("what waited got %s", out)
	}
}

// TestALinkApprovesForGoodWhereTheFileLetsIt: the change is shown first, and the answer is to that change alone.
func TestALinkApprovesForGoodWhereTheFileLetsIt(t *testing.T) {
	r := newChatRoom(t, "slack", "allow: [allowed.test]\n"+twoSandboxes)
	d := r.d
	askFor(t, d, "a.allowed.test", "/x")
	link := linkIn(t, r.message(t, "a.allowed.test"))
	if status, text := r.post(t, link, formType, "answer=yes&save=look"); status == 200 {
		t.Errorf("without notify.for_good: %d %s", status, text)
	}
	with := strings.Replace(chatPolicy("slack", "allow: [allowed.test]\n"+twoSandboxes), "notify: {", "notify: {for_good: true, ", 1)
	d.Edit(t, with)
	d.ExpectPolicy(t, func(p record.Record) bool { return strings.HasPrefix(p.Note, "reloaded") })
	before := fileOf(t, d)
	_, text := r.post(t, link, formType, "answer=yes&save=look")
	_, digest, _ := strings.Cut(text, `name="save" value="`)
	digest, _, _ = strings.Cut(digest, `"`)
	if len(digest) != 64 || !strings.Contains(text, "also_allow") || fileOf(t, d) != before {
		t.Fatalf("it shows %s", text)
	}
	d.Edit(t, with+"# another line\n")
	d.ExpectPolicy(t, func(p record.Record) bool { return strings.HasPrefix(p.Note, "reloaded") })
	if status, text := r.post(t, link, formType, "answer=yes&save="+digest); status == 200 || statusOf(t, d, "http://a.allowed.test/x") != "403" {
		t.Errorf("after another edit: %d %s", status, text)
	}
	_, text = r.post(t, link, formType, "answer=yes&save=look")
	_, digest, _ = strings.Cut(text, `name="save" value="`)
	digest, _, _ = strings.Cut(digest, `"`)
	if status, text := r.post(t, link, formType, "answer=yes&save="+digest); status != http.StatusOK || !strings.Contains(text, "sandbox near alone") {
		t.Errorf("%d %s", status, text)
	}
	if got := statusOf(t, d, "http://a.allowed.test/x") + statusOf(t, d, "http://a.allowed.test/y"); got != "200403" {
		t.Errorf("it gets %s", got)
	}
	if status, _ := r.post(t, link, formType, "answer=no"); status == 200 || statusOf(t, d, "http://a.allowed.test/x") != "200" {
		t.Errorf("the link answers again: %d", status)
	}
}

// TestOneListIsAnsweredAtOnce, and just what was on it. Without a person at a terminal, only a no is an answer.
func TestOneListIsAnsweredAtOnce(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "ask: [\"*.allowed.test\"]\nlimits: {ask_wait: 1s}\n"))
	hosts := []string{"a.allowed.test", "b.allowed.test", "curl.allowed.test"}
	for _, host := range hosts {
		statusOf(t, d, "http://"+host+"/")
		isAsked(t, d, 0, host, "")
	}
	typed := []string{"sh", "-c", `yes | "$@"`, "sh"} // by nobody who has looked
	if e := d.RunCommand(t, typed, "answer", "--all", "yes", "--config", d.Config); e.Code != 1 || len(questions(t, d)) != 3 || !strings.Contains(e.Talk, "egressd answer "+questions(t, d)[0].ID) {
		t.Errorf("nobody has looked: exit %d, %s", e.Code, e.Talk)
	}
	// On a terminal, another question comes while the person looks, and somebody else answers one of the list.
	said := atTerminal(t, d, "y", func() {
		statusOf(t, d, "http://h.allowed.test/")
		isAsked(t, d, 0, "h.allowed.test", "")
		answers(t, d, "answer", isAsked(t, d, 0, "b.allowed.test", "").ID, "no", "--for", "1h")
	}, "answer", "--all", "yes", "--for", "2h")
	want := map[string]string{"a.allowed.test": "approved", "b.allowed.test": "rejected", "curl.allowed.test": "approved", "h.allowed.test": "pending"}
	for _, q := range questions(t, d) {
		if q.State != want[q.Host] {
			t.Errorf("%s is %s, want %s: %s", q.Host, q.State, want[q.Host], said)
		}
	}
	if e := d.RunCommand(t, nil, "answer", "--all", "no", "--config", d.Config); e.Code != 0 || !strings.Contains(e.Talk, "h.allowed.test") {
		t.Errorf("no to all: exit %d, %s", e.Code, e.Talk)
	}
	if e := d.RunCommand(t, nil, "answer", "--all", "no", "--config", d.Config); e.Code != 0 {
		t.Errorf("with nothing to answer: exit %d, %s", e.Code, e.Talk)
	}
}

// TestWhatWasAnsweredElsewhereDisappears from a terminal that follows the questions, and from its desktop.
func TestWhatWasAnsweredElsewhereDisappears(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "ask: [\"*.allowed.test\"]\nlimits: {ask_wait: 1s}\n"+twoSandboxes))
	bin := t.TempDir()
	world.Must(t, os.WriteFile(filepath.Join(bin, "notify-send"), []byte("#!/bin/sh\necho \"$@\" >>"+bin+"/said\necho 7\n"), 0o755))
	cmd := d.Command(t.Context(), nil, "answer", "-f", "--notify", "--config", d.Config)
	cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"))
	var out world.Output
	cmd.Stdout = &out
	world.Must(t, d.World.Gateway.Start(cmd))
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	notes := func() string {
		text, _ := os.ReadFile(filepath.Join(bin, "said"))
		return string(text)
	}
	for n, answer := range []func(id string){
		func(id string) { answers(t, d, "answer", id, "no") },
		func(string) { // no rule asks any more
			d.Edit(t, world.WithAdmin(world.AdminSocket, "allow: [tool.test]\n"+twoSandboxes))
		},
	} {
		host := []string{"a.allowed.test", "b.allowed.test"}[n]
		statusOf(t, d, "http://"+host+"/")
		q := isAsked(t, d, 0, host, "")
		if !world.Eventually(world.Settling, func() bool { return strings.Contains(notes(), host) }) {
			t.Fatalf("it shows %s, %s", out.String(), notes())
		}
		answer(q.ID)
		if !world.Eventually(world.Settling, func() bool { return strings.Count(notes(), "--replace-id=7") == n+1 }) {
			t.Errorf("%s: the desktop is told %s", host, notes())
		}
		state := []string{"rejected", "gone"}[n]
		if !world.Eventually(world.Settling, func() bool {
			for line := range strings.Lines(out.String()) {
				if f := strings.Fields(line); len(f) > 1 && f[0] == q.ID && f[1] == state {
					return true
				}
			}
			return false
		}) {
			t.Errorf("%s: it shows %s", host, out.String())
		}
	}
}

// TestNoCanaryBecomesAPattern: a canary is masked by stars where questions are shown, and a path with stars is a pattern.
func TestNoCanaryBecomesAPattern(t *testing.T) {
	d := world.NewDaemon(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\ncanaries: [{name: key, file: canary}]\n"))
	d.PutFile(t, "canary", "AKIAQ3EGCANARY77xZ9kLm\n")
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	out, _ := d.Shell(t.TempDir(), "", `curl -sS -H 'Accept: application/json' http://egressd.internal/requests -d '{"host":"a.allowed.test:80","method":"GET","path":"/AKIAQ3EGCANARY77xZ9kLm/x","reason":"x"}'`)
	if !strings.Contains(out, `"state":"refused"`) || len(questions(t, d)) != 0 {
		t.Errorf("it is told %s, asked is %+v", out, questions(t, d))
	}
}
