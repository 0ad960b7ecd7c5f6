package run

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
)

// askingPolicy asks about every host, and holds no request for long.
var askingPolicy = strings.Replace(sharedPolicy, "allow: [\"*.allowed.test\"]\n", "ask: [{host: \"*.allowed.test\", id: asks}]\n", 1)

// asked returns what egressd answer lists.
func asked(t *testing.T, d *world.Daemon) (all []egress.Question) {
	t.Helper()
	e := d.RunCommand(t, nil, "answer", "--json", "--config", d.Config)
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
	if e := d.RunCommand(t, nil, "answer", q.ID, "yes", "--config", d.Config); e.Code != 0 {
		t.Fatal(e.Talk)
	}
	e := <-first
	if e.Code != 0 || !strings.Contains(e.Out, "GET /x") || !strings.Contains(e.Talk, "egressd answer "+q.ID+" yes --config "+d.Config+",") {
		t.Errorf("the run that asked: exit %d, %s%s", e.Code, e.Out, e.Talk)
	}
	if said := d.Output.String(); !strings.Contains(said, "egressd: question: sandbox one asks for a.allowed.test:80 (rule asks): egressd answer "+q.ID+" yes --config "+d.Config+",") {
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

// TestADayOfQuestions has two sandboxes whose runs come and go. Both ask about the same hosts. A person approves what one
// of them asks and rejects what the other asks. Each fourth run ends while its question waits, and nobody answers that.
// EGRESSD_E2E_DAY is how long it lasts, else each sandbox has four runs.
func TestADayOfQuestions(t *testing.T) {
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("EGRESSD_E2E_DAY"), "0s"))
	if err != nil {
		t.Fatal(err)
	}
	day := questionDay{d: world.Start(t, askingPolicy+"limits: {ask_wait: 2m, dial_timeout: 2s}\n"), answers: map[string]int{}}
	began := time.Now()
	var runs, people sync.WaitGroup
	for _, sandbox := range dayWords {
		runs.Go(func() {
			for n := 0; n < 4 || time.Since(began) < lasts; n++ {
				if n%4 == 3 {
					day.leave(t, sandbox, n)
				} else {
					day.ask(t, sandbox, n)
				}
				if lasts > 0 {
					time.Sleep(time.Second) // which leaves the machine to others
				}
			}
		})
	}
	over := make(chan struct{})
	people.Go(func() { day.answer(t, over) })
	runs.Wait()
	close(over)
	people.Wait()
	t.Logf("in %s: %d runs were approved, %d rejected, %d ended while they asked", time.Since(began).Round(time.Second), day.approved, day.rejected, day.left)
}

// dayWords has the sandboxes of TestADayOfQuestions, and the answers to their questions.
var dayWords = []string{"yes", "no"}

// A questionDay is what TestADayOfQuestions counts.
type questionDay struct {
	d                        *world.Daemon
	mu                       sync.Mutex
	answers                  map[string]int // of a sandbox and host
	approved, rejected, left int
}

// seen is a file that tells a run that a person has seen its question.
func (day *questionDay) seen(sandbox, host string) string {
	return filepath.Join(day.d.Dir, "seen-"+sandbox+"-"+host)
}

// ask has a run ask about a host, and expects the answer that its sandbox gets, once.
func (day *questionDay) ask(t *testing.T, sandbox string, n int) {
	host := fmt.Sprintf("n%d.allowed.test", n)
	e := runBeside(t, day.d, []string{"--name", sandbox, "--fail-on-deny"}, "curl -sS --max-time 120 http://"+host+"/x")
	passed := strings.Contains(e.Out, "GET /x")
	if want := sandbox == "yes"; passed != want || passed != (e.Code == 0) || !passed && !strings.Contains(e.Out, "ask-rejected") {
		t.Errorf("%s in %s: exit %d, %s%s", host, sandbox, e.Code, e.Out, e.Talk)
	}
	day.mu.Lock()
	defer day.mu.Unlock()
	if got := day.answers[sandbox+" "+host]; got != 1 {
		t.Errorf("%s in %s was answered %d times", host, sandbox, got)
	}
	if passed {
		day.approved++
	} else {
		day.rejected++
	}
}

// leave has a run end while it asks, and expects that its question ends with it.
func (day *questionDay) leave(t *testing.T, sandbox string, n int) {
	host := fmt.Sprintf("left%d.allowed.test", n)
	e := runBeside(t, day.d, []string{"--name", sandbox}, "curl -sS --max-time 120 http://"+host+"/x & until test -e "+day.seen(sandbox, host)+"; do sleep 0.1; done")
	if strings.Contains(e.Out, "GET /x") || e.Code != 0 {
		t.Errorf("%s in %s, which nobody answers: exit %d, %s%s", host, sandbox, e.Code, e.Out, e.Talk)
	}
	waits := func() bool {
		return slices.ContainsFunc(asked(t, day.d), func(q egress.Question) bool {
			return q.Host == host && q.Sandbox == sandbox && q.State == "pending"
		})
	}
	if !world.Eventually(world.Settling, func() bool { return !waits() }) {
		t.Errorf("the question of %s about %s is left of an ended run", sandbox, host)
	}
	day.mu.Lock()
	defer day.mu.Unlock()
	day.left++
}

// answer answers each question of a run that stays, and tells the others that theirs was seen, until over is closed.
func (day *questionDay) answer(t *testing.T, over chan struct{}) {
	for {
		for _, q := range asked(t, day.d) {
			if q.State != "pending" {
				continue
			}
			if strings.HasPrefix(q.Host, "left") {
				if err := os.WriteFile(day.seen(q.Sandbox, q.Host), nil, 0o600); err != nil {
					t.Error(err)
				}
				continue
			}
			day.mu.Lock()
			day.answers[q.Sandbox+" "+q.Host]++
			day.mu.Unlock()
			if e := day.d.RunCommand(t, nil, "answer", q.ID, q.Sandbox, "--config", day.d.Config); e.Code != 0 {
				t.Errorf("%s %s: %s", q.Sandbox, q.ID, e.Talk)
			}
		}
		select {
		case <-over:
			return
		case <-time.After(300 * time.Millisecond):
		}
	}
}
