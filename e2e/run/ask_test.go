package run

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
)

// askingPolicy asks about every host, and holds no request for long.
var askingPolicy = strings.Replace(sharedPolicy, "allow: [\"*.allowed.test\"]\n", "ask: [{host: \"*.allowed.test\", id: asks}]\n", 1)

// asked returns what egressd questions lists.
func asked(t *testing.T, d *world.Daemon) (all []egress.Question) {
	t.Helper()
	e := d.RunCommand(t, nil, "questions", "--json", "--config", d.Config)
	for line := range strings.Lines(e.Out) {
		var q egress.Question
		if err := json.Unmarshal([]byte(line), &q); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if q.ID != "" {
			all = append(all, q)
		}
	}
	return all
}

// pending returns the question of a sandbox that waits for an answer, or one without an ID.
func pending(t *testing.T, d *world.Daemon, sandbox string) (found egress.Question) {
	t.Helper()
	for _, q := range asked(t, d) {
		if q.Sandbox == sandbox && q.State == "pending" {
			found = q
		}
	}
	return found
}

// TestTheNextRunHasTheAnswer approves what one run asks, and starts the sandbox again, and another sandbox.
func TestTheNextRunHasTheAnswer(t *testing.T) {
	d := world.Start(t, askingPolicy)
	const fetch = "curl -sS --max-time 40 http://a.allowed.test/x"
	first := make(chan *world.Result, 1)
	go func() { first <- runBeside(t, d, []string{"--name", "one", "--fail-on-deny"}, fetch) }()
	var q egress.Question
	if !world.Eventually(world.Settling, func() bool { q = pending(t, d, "one"); return q.ID != "" }) {
		t.Fatalf("nobody is asked: %s", d.Output.String())
	}
	if e := d.RunCommand(t, nil, "status", "--config", d.Config); e.Code != 0 || !strings.Contains(e.Out, "1 question") {
		t.Errorf("status: exit %d, %s%s", e.Code, e.Out, e.Talk)
	}
	if e := d.RunCommand(t, nil, "approve", q.ID, "--config", d.Config); e.Code != 0 {
		t.Fatal(e.Talk)
	}
	e := <-first
	if e.Code != 0 || !strings.Contains(e.Out, "GET /x") || !strings.Contains(e.Talk, "egressd approve "+q.ID+" --config "+d.Config+",") {
		t.Errorf("the run that asked: exit %d, %s%s", e.Code, e.Out, e.Talk)
	}
	if said := d.Output.String(); !strings.Contains(said, "egressd: question: sandbox one asks for a.allowed.test:80 (rule asks): egressd approve "+q.ID+" --config "+d.Config+",") {
		t.Errorf("serve said %s", said)
	}
	if e := runBeside(t, d, []string{"--name", "one", "--fail-on-deny"}, fetch); e.Code != 0 || !strings.Contains(e.Out, "GET /x") {
		t.Errorf("the next run: exit %d, %s%s", e.Code, e.Out, e.Talk)
	}
	e = runBeside(t, d, []string{"--name", "two", "--fail-on-deny"}, "curl -sS --max-time 3 http://a.allowed.test/x; true")
	if e.Code != 86 || strings.Contains(e.Out, "GET /x") {
		t.Errorf("another sandbox: exit %d, %s%s", e.Code, e.Out, e.Talk)
	}
	if !world.Eventually(world.Settling, func() bool { return pending(t, d, "two").ID == "" }) {
		t.Errorf("the question of the ended run is still there: %+v", asked(t, d))
	}
}

// TestADayOfQuestions has two sandboxes whose runs come and go. Each run asks about a host of its own. A person approves
// for one sandbox and rejects for the other. EGRESSD_E2E_DAY is how long it lasts, else each sandbox has four runs.
func TestADayOfQuestions(t *testing.T) {
	d := world.Start(t, askingPolicy)
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("EGRESSD_E2E_DAY"), "0s"))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	more := func(n int) bool { return n < 4 || time.Since(began) < lasts }
	var runs, people sync.WaitGroup
	var mu sync.Mutex
	answered := map[string]string{} // the sandbox and host of each question that was answered
	over := make(chan struct{})
	count := map[string]int{}
	for _, sandbox := range []string{"yes", "no"} {
		runs.Go(func() {
			for n := 0; more(n); n++ {
				host := fmt.Sprintf("%s%d.allowed.test", sandbox, n)
				e := runBeside(t, d, []string{"--name", sandbox, "--fail-on-deny"}, "curl -sS --max-time 45 http://"+host+"/x")
				passed := strings.Contains(e.Out, "GET /x")
				if want := sandbox == "yes"; passed != want || passed != (e.Code == 0) || !passed && !strings.Contains(e.Out, "ask-rejected") {
					t.Errorf("%s: exit %d, %s%s", host, e.Code, e.Out, e.Talk)
				}
				mu.Lock()
				if answered[host] != sandbox {
					t.Errorf("%s was answered for sandbox %q", host, answered[host])
				}
				count[sandbox]++
				mu.Unlock()
				if lasts > 0 {
					time.Sleep(time.Second) // which leaves the machine to others
				}
			}
		})
	}
	people.Go(func() {
		for {
			for _, q := range asked(t, d) {
				if q.State != "pending" {
					continue
				}
				word := map[string]string{"yes": "approve", "no": "reject"}[q.Sandbox]
				mu.Lock()
				answered[q.Host] = q.Sandbox
				mu.Unlock()
				if e := d.RunCommand(t, nil, word, q.ID, "--config", d.Config); e.Code != 0 {
					t.Errorf("%s %s: %s", word, q.ID, e.Talk)
				}
			}
			select {
			case <-over:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	runs.Wait()
	close(over)
	people.Wait()
	for _, q := range asked(t, d) {
		if q.State == "pending" {
			t.Errorf("a question is left of an ended run: %+v", q)
		}
	}
	t.Logf("%v runs in %s", count, time.Since(began).Round(time.Second))
}
