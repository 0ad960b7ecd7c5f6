package operator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/record"
)

// questions are what egressd answer lists.
func questions(t *testing.T, d *world.Daemon) (all []egress.Question) {
	t.Helper()
	e := d.RunCommand(t, nil, "answer", "--json", "--config", d.Config)
	if e.Code != 0 {
		t.Fatalf("egressd answer: exit %d, %s", e.Code, e.Talk)
	}
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

// isAsked waits for a question that nobody has answered.
func isAsked(t *testing.T, d *world.Daemon, waiting int, host, path string) egress.Question {
	t.Helper()
	var found egress.Question
	there := func() bool {
		return slices.ContainsFunc(questions(t, d), func(q egress.Question) bool {
			found = q
			return q.State == "pending" && q.Host == host && q.Path == path && q.Waiting >= waiting
		})
	}
	if !world.Eventually(world.Settling, there) {
		t.Fatalf("nobody is asked about %s%s: %+v", host, path, questions(t, d))
	}
	return found
}

func answers(t *testing.T, d *world.Daemon, words ...string) *world.Result {
	t.Helper()
	e := d.RunCommand(t, nil, append(words, "--config", d.Config)...)
	if e.Code != 0 {
		t.Fatalf("egressd %s: exit %d, %s", words, e.Code, e.Talk)
	}
	return e
}

// beside runs a program in the sandbox beside the test, and says what it printed.
func beside(t *testing.T, d *world.Daemon, line string) <-chan string {
	printed := make(chan string, 1)
	dir, ca := t.TempDir(), d.AuthorityFile()
	go func() {
		out, _ := d.Shell(dir, ca, line)
		printed <- out
	}()
	return printed
}

const askCurl = "curl -sS -i --max-time 60 "

// TestAPersonIsAsked: what comes by each way in is held, and passes or not by the answer.
func TestAPersonIsAsked(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, `ask:
  - {host: a.allowed.test, id: place}
  - {host: curl.allowed.test, methods: [POST], id: posts}
allow: [curl.allowed.test, allowed.test]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`))
	mark := d.LogMark(t)
	for says, line := range map[string]string{
		"plain HTTP": askCurl + "http://a.allowed.test/x",
		"CONNECT":    askCurl + "--cacert " + d.World.Origin.Ca.File(t) + " https://a.allowed.test/x",
		"SOCKS5":     askCurl + "--cacert " + d.World.Origin.Ca.File(t) + " -x socks5h://$LAB_PROXY https://a.allowed.test/x",
	} {
		p := beside(t, d, line)
		q := isAsked(t, d, 1, "a.allowed.test", "")
		answers(t, d, "answer", q.ID, "yes", "--once")
		if out := <-p; !strings.Contains(out, "GET /x") {
			t.Errorf("%s: approved, it printed %q", says, out)
		}
	}
	for _, version := range []string{"--http1.1", "--http2"} {
		line := askCurl + version + " --cacert $LAB_CA -d x https://curl.allowed.test" + "/" + version[2:]
		p := beside(t, d, line)
		q := isAsked(t, d, 1, "curl.allowed.test", "/"+version[2:])
		if e := answers(t, d, "answer", q.ID, "yes"); !strings.Contains(e.Talk, "POST /"+version[2:]) || !strings.Contains(e.Talk, "curl.allowed.test:443") {
			t.Errorf("it says %q", e.Talk)
		}
		if out := <-p; !strings.Contains(out, "POST /"+version[2:]) {
			t.Errorf("%s: approved, it printed %q", version, out)
		}
		p = beside(t, d, line+"/other")
		q = isAsked(t, d, 1, "curl.allowed.test", "/"+version[2:]+"/other")
		answers(t, d, "answer", q.ID, "no")
		if out := <-p; !strings.Contains(out, " 403") || !strings.Contains(out, `"class":"ask-rejected"`) {
			t.Errorf("%s: rejected, it printed %q", version, out)
		}
	}
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	var asked, answered, passed int
	for _, r := range records {
		switch {
		case r.Kind == record.KindAdmin && strings.Contains(r.Note, " question ") && strings.Contains(r.Note, "asked by uid 0"):
			answered++
		case r.Decision != nil && r.Decision.Class == "ask-pending":
			asked++
		case r.Decision != nil && r.Decision.Action == "allow" && len(r.Decision.Question) == 1 && r.Kind != record.KindClose && r.Kind != record.KindDNS:
			passed++
		}
	}
	if asked != 7 || answered != 7 || passed != 5 {
		t.Errorf("%d questions, %d answers, %d decisions that stand on one", asked, answered, passed)
	}
}

// TestNobodyAnswersInTime: the client is told to come again, and a late answer counts then.
func TestNobodyAnswersInTime(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "ask: [allowed.test]\nlimits: {ask_wait: 1s}\n"))
	out := <-beside(t, d, askCurl+"http://allowed.test/late")
	q := isAsked(t, d, 0, "allowed.test", "")
	for _, want := range []string{" 403", "Retry-After: 15", `"class":"ask-timeout"`, `"retryable":true`, "Waiting for a person to approve", "egressd answer " + q.ID + " yes"} {
		if !strings.Contains(out, want) {
			t.Errorf("it printed %q, without %q", out, want)
		}
	}
	if e := d.RunCommand(t, nil, "answer", q.ID, "yes", "--once", "--config", d.Config); e.Code != 1 || !strings.Contains(e.Talk, "nobody waits") {
		t.Errorf("approved once for nobody: exit %d, %s", e.Code, e.Talk)
	}
	answers(t, d, "answer", q.ID, "yes", "--for", "2h")
	if out := <-beside(t, d, askCurl+"http://allowed.test/late"); !strings.Contains(out, "GET /late") {
		t.Errorf("it printed %q", out)
	}
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("another port is answered %d", status)
	}
	q = isAsked(t, d, 0, "allowed.test", "")
	answers(t, d, "answer", q.ID, "yes")
	tunnel := d.MustOpenTunnel(t, "allowed.test:443")
	if e := d.RunCommand(t, nil, "answer", q.ID, "no", "--config", d.Config); e.Code != 1 || !strings.Contains(e.Talk, "approved until") || !strings.Contains(e.Talk, "answer "+q.ID+" no instead") {
		t.Errorf("the second answer: exit %d, %s", e.Code, e.Talk)
	}
	answers(t, d, "answer", q.ID, "no", "instead")
	if !tunnel.EndsWithin(world.Patience) {
		t.Error("the approval was taken back, and the tunnel is open")
	}
	if e := d.RunCommand(t, nil, "why", q.ID, "--config", d.Config); e.Code != 0 || !strings.Contains(e.Out, "ask-pending") {
		t.Errorf("egressd why: exit %d, %s%s", e.Code, e.Out, e.Talk)
	}
	if e := d.RunCommand(t, nil, "answer", "0000000000", "yes", "--config", d.Config); e.Code != 1 {
		t.Errorf("what nobody asks is approved: exit %d, %s", e.Code, e.Talk)
	}
}

// TestNobodyIsAskedWithoutAListener: then all is as it was, at once.
func TestNobodyIsAskedWithoutAListener(t *testing.T) {
	d := world.Start(t, world.WithAdmin("none", "ask: [allowed.test]\nlimits: {ask_wait: 10m}\n"))
	out := <-beside(t, d, askCurl+"http://allowed.test/")
	if !strings.Contains(out, " 403") || !strings.Contains(out, `"class":"ask-rejected"`) || strings.Contains(out, "Retry-After") {
		t.Errorf("it printed %q", out)
	}
}

// floodOfQuestions is how many things one sandbox asks: more where the variable says so.
func floodOfQuestions(t *testing.T) int {
	text := os.Getenv("EGRESSD_E2E_QUESTIONS")
	if text == "" {
		return 1600
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAFloodOfQuestionsHidesNone: one sandbox asks thousands of things, and what another asks is
// listed and answered all the same.
func TestAFloodOfQuestionsHidesNone(t *testing.T) {
	text := world.WithAdmin(world.AdminSocket, "ask: [\"*.allowed.test\"]\nsandboxes:\n  - {name: near, source: [10.99.0.0/24, \"fd99::/64\"]}\n  - {name: next, source: [10.97.0.0/24]}\n")
	d := world.Start(t, text)
	other, err := world.Neighbour()
	if err != nil {
		t.Fatal(err)
	}
	many := floodOfQuestions(t)
	var flood sync.WaitGroup
	for i := range 8 {
		flood.Go(func() {
			for n := range many / 8 {
				c, err := d.Dial()
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(c, "CONNECT h%d-%d.allowed.test:443 HTTP/1.1\r\nHost: x\r\n\r\n", i, n)
				c.SetReadDeadline(time.Now().Add(time.Second)) // a few are held
				c.Read(make([]byte, 12))
				c.Close()
			}
		})
	}
	answer := make(chan int, 1)
	go func() {
		c, err := other.Dial("tcp", d.Address())
		if err != nil {
			answer <- 0
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "CONNECT a.allowed.test:443 HTTP/1.1\r\nHost: x\r\n\r\n")
		b := make([]byte, 12)
		n, _ := c.Read(b)
		status := 0
		fmt.Sscanf(string(b[:n]), "HTTP/1.1 %d", &status)
		answer <- status
	}()
	q := isAsked(t, d, 1, "a.allowed.test", "")
	if q.Sandbox != "next" {
		t.Errorf("it is asked for sandbox %s", q.Sandbox)
	}
	flood.Wait()
	of := map[string]int{}
	for _, q := range questions(t, d) {
		of[q.Sandbox]++
	}
	if of["near"] != 16 || of["next"] != 1 {
		t.Errorf("questions listed: %v", of)
	}
	answers(t, d, "answer", q.ID, "yes")
	if status := <-answer; status != http.StatusOK {
		t.Errorf("the other is answered %d", status)
	}
	if e := answers(t, d, "answer", "--json"); !strings.Contains(e.Out, `{"turned_away":{"sandbox":"near"`) {
		t.Errorf("it does not say how many were turned away: %s", e.Out)
	}
}
