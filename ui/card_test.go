package ui

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestACardShowsTheProgramsThatSentMost, and how many it leaves out.
func TestACardShowsTheProgramsThatSentMost(t *testing.T) {
	var c sandboxCard
	for i, program := range []string{"chrome", "claude", "git", "go", "npm", "pip"} {
		c.sent(program, int64(i))
	}
	c.sent("rclone", 1000)
	c.rank()
	if want := []string{"rclone", "pip", "npm", "go", "git", "claude"}; !slices.Equal(c.Programs, want) || c.MorePrograms != 1 {
		t.Errorf("%v and %d more, want %v", c.Programs, c.MorePrograms, want)
	}
}

// TestTheEndOfARequestIsOfItsLevel, whose record has the request and the server name of its tunnel.
func TestTheEndOfARequestIsOfItsLevel(t *testing.T) {
	r := &record.Record{
		Kind: record.KindClose, Decision: &record.Decision{Action: "allow", Rule: "allow[0]", Layer: string(policy.User)},
		Dst: &record.Destination{Host: "a.test", Port: 443}, TLS: &record.TLS{SNI: "a.test", Inspected: true}, HTTP: &record.HTTP{Method: "GET", Path: "/"},
	}
	if got := levelOf(r); got != contentSeen {
		t.Errorf("%s", got.Name())
	}
	if r.HTTP = nil; levelOf(r) != hostOnly {
		t.Error("a tunnel")
	}
}

// TestARequestSaysWhatGitWasAsked looks at the page of a push, and goes there from the number of a record.
func TestARequestSaysWhatGitWasAsked(t *testing.T) {
	dir := t.TempDir()
	log := `{"v":1,"seq":0,"time":"2026-11-20T09:00:00.000000Z","kind":"start","note":"started"}
{"v":1,"seq":1,"time":"2026-11-20T09:00:01.000000Z","kind":"request","flow":"01KB000001","sandbox":"ci","via":"connect","dst":{"host":"github.com","port":443},"http":{"method":"POST","path":"/acme/web.git/git-receive-pack"},"git":{"repo":"acme/web","op":"push","refs":["0000000000000000000000000000000000000000 1111111111111111111111111111111111111111 refs/heads/wip"]},"decision":{"action":"allow","rule":"r","layer":"user"}}
{"v":1,"seq":2,"time":"2026-11-20T09:00:02.000000Z","kind":"close","flow":"01KB000001","sandbox":"ci","bytes":{"up":9,"down":1},"duration_ms":9}
{"v":1,"seq":3,"time":"2026-11-20T09:00:03.000000Z","kind":"dns","flow":"01KB000003","sandbox":"ci","via":"dns","dns":{"name":"github.com","type":"A"},"decision":{"action":"allow","rule":"r","layer":"user"}}
{"v":1,"seq":4,"time":"2026-11-20T09:00:03.100000Z","kind":"request","flow":"01KB000004","sandbox":"ci","via":"connect","dst":{"host":"github.com","port":443},"http":{"method":"GET","path":"/"},"decision":{"action":"allow","rule":"r","layer":"user"}}
`
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	p := opened(t, Options{Dir: dir})
	_, text := p.ask("GET", "/request/01KB000001", nil)
	for _, want := range []string{"<dt>git</dt><dd>push, acme/web</dd>", "<dt>ref</dt><dd>create refs/heads/wip at 1111", `href="/requests?q=seq%3A2"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not hold %s", want)
		}
	}
	if _, text := p.ask("GET", "/requests?q=seq:3", nil); !strings.Contains(text, `href="/request/01KB000003"`) {
		t.Errorf("record 3, a name whose connection counts, leads nowhere: %s", text)
	}
	// The number of its end leads to it.
	if _, text := p.ask("GET", "/requests?q=seq:2", nil); !strings.Contains(text, `href="/request/01KB000001"`) {
		t.Errorf("record 2 does not lead to its request: %s", text)
	}
}
