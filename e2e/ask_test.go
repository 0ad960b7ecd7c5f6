package e2e

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

	"github.com/egressd/egressd/egress"

	"github.com/egressd/egressd/record"
)

// questions are what egressd questions lists.
func (d *daemon) questions(t *testing.T) (all []egress.Question) {
	t.Helper()
	e := d.tell(t, nil, "questions", "--json", "--config", d.config)
	if e.code != 0 {
		t.Fatalf("egressd questions: exit %d, %s", e.code, e.talk)
	}
	for line := range strings.Lines(e.out) {
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
func (d *daemon) isAsked(t *testing.T, waiting int, host, path string) egress.Question {
	t.Helper()
	var found egress.Question
	there := func() bool {
		return slices.ContainsFunc(d.questions(t), func(q egress.Question) bool {
			found = q
			return q.State == "pending" && q.Host == host && q.Path == path && q.Waiting >= waiting
		})
	}
	if !eventually(settling, there) {
		t.Fatalf("nobody is asked about %s%s: %+v", host, path, d.questions(t))
	}
	return found
}

func (d *daemon) answers(t *testing.T, words ...string) *entered {
	t.Helper()
	e := d.tell(t, nil, append(words, "--config", d.config)...)
	if e.code != 0 {
		t.Fatalf("egressd %s: exit %d, %s", words, e.code, e.talk)
	}
	return e
}

// beside runs a program in the sandbox beside the test, and says what it printed.
func (d *daemon) beside(t *testing.T, line string) <-chan string {
	printed := make(chan string, 1)
	dir, ca := t.TempDir(), d.authorityFile()
	go func() {
		out, _ := d.shell(dir, ca, line)
		printed <- out
	}()
	return printed
}

const askCurl = "curl -sS -i --max-time 60 "

// TestAPersonIsAsked: what comes by each way in is held, and passes or not by the answer.
func TestAPersonIsAsked(t *testing.T) {
	d := start(t, withAdmin(socketOfOperator, `ask:
  - {host: a.allowed.test, id: place}
  - {host: curl.allowed.test, methods: [POST], id: posts}
allow: [curl.allowed.test, allowed.test]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`))
	mark := d.marked(t)
	for says, line := range map[string]string{
		"plain HTTP": askCurl + "http://a.allowed.test/x",
		"CONNECT":    askCurl + "--cacert " + d.world.origin.ca.file(t) + " https://a.allowed.test/x",
		"SOCKS5":     askCurl + "--cacert " + d.world.origin.ca.file(t) + " -x socks5h://$LAB_PROXY https://a.allowed.test/x",
	} {
		p := d.beside(t, line)
		q := d.isAsked(t, 1, "a.allowed.test", "")
		d.answers(t, "approve", q.ID, "--once")
		if out := <-p; !strings.Contains(out, "GET /x") {
			t.Errorf("%s: approved, it printed %q", says, out)
		}
	}
	for _, version := range []string{"--http1.1", "--http2"} {
		line := askCurl + version + " --cacert $LAB_CA -d x https://curl.allowed.test" + "/" + version[2:]
		p := d.beside(t, line)
		q := d.isAsked(t, 1, "curl.allowed.test", "/"+version[2:])
		if e := d.answers(t, "approve", q.ID); !strings.Contains(e.talk, "POST /"+version[2:]+" at curl.allowed.test:443, for sandbox default") {
			t.Errorf("it says %q", e.talk)
		}
		if out := <-p; !strings.Contains(out, "POST /"+version[2:]) {
			t.Errorf("%s: approved, it printed %q", version, out)
		}
		p = d.beside(t, line+"/other")
		q = d.isAsked(t, 1, "curl.allowed.test", "/"+version[2:]+"/other")
		d.answers(t, "reject", q.ID)
		if out := <-p; !strings.Contains(out, " 403") || !strings.Contains(out, `"class":"ask-rejected"`) {
			t.Errorf("%s: rejected, it printed %q", version, out)
		}
	}
	records, err := d.log.since(mark)
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
	d := start(t, withAdmin(socketOfOperator, "ask: [allowed.test]\nlimits: {ask_wait: 1s}\n"))
	out := <-d.beside(t, askCurl+"http://allowed.test/late")
	q := d.isAsked(t, 0, "allowed.test", "")
	for _, want := range []string{" 403", "Retry-After: 15", `"class":"ask-timeout"`, `"retryable":true`, "Waiting for a person to approve", "egressd approve " + q.ID} {
		if !strings.Contains(out, want) {
			t.Errorf("it printed %q, without %q", out, want)
		}
	}
	if e := d.tell(t, nil, "approve", q.ID, "--once", "--config", d.config); e.code != 1 || !strings.Contains(e.talk, "nobody waits") {
		t.Errorf("approved once for nobody: exit %d, %s", e.code, e.talk)
	}
	d.answers(t, "approve", q.ID, "--for", "2h")
	if out := <-d.beside(t, askCurl+"http://allowed.test/late"); !strings.Contains(out, "GET /late") {
		t.Errorf("it printed %q", out)
	}
	if status := d.status(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("another port is answered %d", status)
	}
	q = d.isAsked(t, 0, "allowed.test", "")
	d.answers(t, "approve", q.ID)
	tunnel := d.mustOpen(t, "allowed.test:443")
	d.answers(t, "reject", q.ID)
	if !tunnel.endsWithin(patience) {
		t.Error("the approval was taken back, and the tunnel is open")
	}
	if e := d.tell(t, nil, "why", q.ID, "--config", d.config); e.code != 0 || !strings.Contains(e.out, "ask-pending") {
		t.Errorf("egressd why: exit %d, %s%s", e.code, e.out, e.talk)
	}
	if e := d.tell(t, nil, "approve", "0000000000", "--config", d.config); e.code != 1 || !strings.Contains(e.talk, "no question with that id") {
		t.Errorf("what nobody asks is approved: exit %d, %s", e.code, e.talk)
	}
}

// TestNobodyIsAskedWithoutAListener: then all is as it was, at once.
func TestNobodyIsAskedWithoutAListener(t *testing.T) {
	d := start(t, "version: 1\nask: [allowed.test]\nlimits: {ask_wait: 10m}\n")
	out := <-d.beside(t, askCurl+"http://allowed.test/")
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
	text := withAdmin(socketOfOperator, "ask: [\"*.allowed.test\"]\nsandboxes:\n  - {name: near, source: [10.99.0.0/24, \"fd99::/64\"]}\n  - {name: next, source: [10.97.0.0/24]}\n")
	d := start(t, text)
	other, err := neighbour()
	if err != nil {
		t.Fatal(err)
	}
	many := floodOfQuestions(t)
	var flood sync.WaitGroup
	for i := range 8 {
		flood.Go(func() {
			for n := range many / 8 {
				c, err := d.dial()
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
		c, err := other.Dial("tcp", d.address())
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
	q := d.isAsked(t, 1, "a.allowed.test", "")
	if q.Sandbox != "next" {
		t.Errorf("it is asked for sandbox %s", q.Sandbox)
	}
	flood.Wait()
	of := map[string]int{}
	for _, q := range d.questions(t) {
		of[q.Sandbox]++
	}
	if of["near"] != 16 || of["next"] != 1 {
		t.Errorf("questions listed: %v", of)
	}
	d.answers(t, "approve", q.ID)
	if status := <-answer; status != http.StatusOK {
		t.Errorf("the other is answered %d", status)
	}
	if e := d.answers(t, "questions"); !strings.Contains(e.talk, "of sandbox near found no room") {
		t.Errorf("it does not say how many were turned away: %s", e.talk)
	}
}
