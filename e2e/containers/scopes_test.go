package containers

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/lab/engine"
)

// TestAnAnswerForThisRunEndsWithItsContainer: another container of the sandbox has it meanwhile, and is asked again once the one that asked is
// gone. What is answered for good is there for the next container, and for no other sandbox.
func TestAnAnswerForThisRunEndsWithItsContainer(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, strings.Replace(dockerPolicy, `allow: ["*.allowed.test"]`, "limits: {ask_wait: 1s, dial_timeout: 2s}\nask: [\"*.allowed.test\"]", 1))
	begins := func() (container string, gets func(url string) bool) {
		t.Helper()
		var talk strings.Builder // docker may say there that it no longer waits
		cmd := w.dockerRun(t.Context(), d, "web", "-d", engine.Shell)
		cmd.Stderr = &talk
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, &talk)
		}
		container = strings.TrimSpace(string(out))
		t.Cleanup(func() { _, _ = w.Docker(t.Context(), "rm", "-f", container) })
		w.said(t, container, "sandbox web · transparent")
		ways := w.ways(t, container)
		return container, func(url string) bool { return strings.Contains(ways("get "+url), ": 200 OK origin") }
	}
	asked := func(host string) (q egress.Question) {
		t.Helper()
		e := d.RunCommand(t, nil, "answer", "--json", "--config", d.Config)
		for line := range strings.Lines(e.Out) {
			var one egress.Question
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			if one.Host == host && one.State == "pending" {
				q = one
			}
		}
		return q
	}
	answers := func(words ...string) {
		t.Helper()
		if e := d.RunCommand(t, nil, slices.Concat([]string{"answer"}, words, []string{"--config", d.Config})...); e.Code != 0 {
			t.Fatalf("%q: exit %d, %s", words, e.Code, e.Talk)
		}
	}
	const url = "http://a.allowed.test/x"
	first, one := begins()
	second, two := begins()
	if one(url) {
		t.Fatal("it passes before anybody has answered")
	}
	q := asked("a.allowed.test")
	if q.Sandbox != "web" || q.Runs != 1 {
		t.Fatalf("asked is %+v", q)
	}
	answers(q.ID, "yes", "--for", "run")
	if !one(url) || !two(url) {
		t.Error("what is approved for the run does not pass")
	}
	w.docker(t, "rm", "-f", first)
	if !world.Eventually(world.Settling, func() bool { return !two(url) }) {
		t.Error("it passes when the run is over")
	}
	if again := asked("a.allowed.test"); again.ID == "" || again.ID == q.ID {
		t.Errorf("the other container is not asked again: %+v", again)
	}

	if out, err := w.Docker(t.Context(), "exec", second, "wget", "-q", "-O", "-", "--post-data", `{"host":"evil.test:80","method":"GET","path":"/x","reason":"the build"}`, "http://egressd.internal/requests"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	answers(asked("evil.test").ID, "yes", "--for", "good")
	w.docker(t, "rm", "-f", second)
	_, three := begins()
	if !three("http://evil.test/x") || three("http://evil.test/y") {
		t.Error("the next container has other rights than the file gives")
	}
	for sandbox, want := range map[string]int{"web": 0, "narrow": 1} {
		if e := d.RunCommand(t, nil, "check", "http://evil.test/x", "--sandbox", sandbox, "--config", d.Config); e.Code != want {
			t.Errorf("check for sandbox %s: exit %d, %s", sandbox, e.Code, e.Out)
		}
	}
}
