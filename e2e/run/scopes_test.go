package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/record"
)

// TestAnAnswerForThisRunEndsWithIt: what a rule asks and what the program asks for itself pass until the run ends, and the next run of the
// sandbox is asked again.
func TestAnAnswerForThisRunEndsWithIt(t *testing.T) {
	d := world.Start(t, askingPolicy)
	const script = `curl -sS --max-time 40 http://a.allowed.test/1; echo; curl -sS --max-time 40 http://a.allowed.test/2; echo
curl -sS http://egressd.internal/requests -d '{"host":"evil.test:80","method":"GET","path":"/x","reason":"y"}'; curl -sS "http://egressd.internal/requests?wait=1"
until curl -sSf -o /dev/null --max-time 9 http://evil.test/x; do sleep 0.2; done; echo granted; curl -sS -o /dev/null -w 'other %{http_code}\n' http://evil.test/y`
	first := make(chan *world.Result, 1)
	go func() { first <- runBeside(t, d, []string{"--name", "one"}, script) }()
	for _, host := range []string{"a.allowed.test", "evil.test"} {
		var q egress.Question
		if !world.Eventually(world.Settling, func() bool { q = pending(t, d, "one"); return q.Host == host }) {
			t.Fatalf("nobody is asked about %s: %s", host, d.Output.String())
		}
		if q.Runs != 1 {
			t.Errorf("%s: %d runs ask", host, q.Runs)
		}
		if e := d.RunCommand(t, nil, "answer", q.ID, "yes", "--for", "run", "--config", d.Config); e.Code != 0 || !strings.Contains(e.Talk, "this run") {
			t.Fatalf("exit %d, %s", e.Code, e.Talk)
		}
	}
	e := <-first
	if !strings.Contains(e.Out, "GET /1") || !strings.Contains(e.Out, "GET /2") || !strings.Contains(e.Out, "granted") || !strings.Contains(e.Out, "other 403") {
		t.Errorf("the run that asked got %s%s", e.Out, e.Talk)
	}
	if left := asked(t, d); len(left) != 0 {
		t.Errorf("after the run, %+v", left)
	}
	e = runBeside(t, d, []string{"--name", "one"}, `curl -sS -o /dev/null -w '%{http_code} ' --max-time 2 http://a.allowed.test/1; curl -sS -o /dev/null -w '%{http_code}' http://evil.test/x; true`)
	if strings.Contains(e.Out, "200") || !strings.HasSuffix(e.Out, "403") {
		t.Errorf("the next run got %s%s", e.Out, e.Talk)
	}
	if e := d.RunCommand(t, nil, "allow", "--list", "--json", "--config", d.Config); strings.Contains(e.Out, "evil.test") {
		t.Errorf("the grant is listed: %s", e.Out)
	}
	said := 0
	all, err := d.Log.Since(0)
	world.Must(t, err)
	for _, r := range all {
		if r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, "approve question ") && strings.Contains(r.Note, "until the run ends") {
			said++
		}
	}
	if said != 2 {
		t.Errorf("%d records say for how long", said)
	}
}

// TestATerminalApprovesForGood shows the change first, and writes it for the next run when the person agrees. This run has it, too.
func TestATerminalApprovesForGood(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nask: [\"*.allowed.test\"]\nlimits: {ask_wait: 20s, dial_timeout: 2s}\n")
	before, err := os.ReadFile(d.Config)
	world.Must(t, err)
	c := outerShell(t, d)
	const prompt = "ask no more "
	c.types("$RUN sh -c 'curl -sS -m30 http://a.allowed.test/1; echo; curl -sS -m30 http://a.allowed.test/2; echo'\n")
	c.until(prompt)
	waitQuiet()
	c.types("g")
	if shown := c.until("any other key: no answer "); !strings.Contains(shown, "+") || !strings.Contains(shown, "a.allowed.test:80") || !strings.Contains(shown, "every sandbox") {
		t.Errorf("shown is %q", shown)
	}
	waitQuiet()
	c.types("x") // is no answer
	c.until(prompt)
	if text, _ := os.ReadFile(d.Config); string(text) != string(before) {
		t.Fatalf("the file is %s", text)
	}
	waitQuiet()
	c.types("g")
	c.until("any other key: no answer ")
	waitQuiet()
	c.types("y")
	if rest := c.until("outer> "); !strings.Contains(rest, "GET /1") || !strings.Contains(rest, "GET /2") || strings.Contains(rest, "egressd: question") {
		t.Errorf("after for good: %q", rest)
	}
	if text, _ := os.ReadFile(d.Config); !strings.Contains(string(text), "a.allowed.test:80") {
		t.Errorf("the file is %s", text)
	}
	c.types("$RUN sh -c 'curl -sS -m30 http://a.allowed.test/3; curl -sS -m1 http://b.allowed.test/; true'\n")
	if next := c.until(prompt); !strings.Contains(next, "GET /3") || !strings.Contains(next, "b.allowed.test") {
		t.Errorf("the next run: %q", next)
	}
	waitQuiet()
	c.types("n")
	c.until("outer> ")
	if left, _ := filepath.Glob(d.Config + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
