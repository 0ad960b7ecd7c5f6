package operator

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/logs/story"
	"github.com/egressd/egressd/record"
)

// refusedTunnel asks for a tunnel that is denied, and returns the id that the program is shown.
func refusedTunnel(t *testing.T, d *world.Daemon, to string) (id string) {
	t.Helper()
	c, err := d.Dial()
	if err != nil {
		t.Error(err)
		return ""
	}
	defer world.Abandon(c)
	_ = c.SetDeadline(time.Now().Add(world.Patience))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	a, err := world.ReadAnswer(bufio.NewReader(c), http.MethodConnect)
	var body struct{ ID string }
	if err != nil || a.Status != http.StatusForbidden || json.Unmarshal([]byte(a.Body), &body) != nil {
		t.Errorf("%s: %d, %v, %q", to, a.Status, err, a.Body)
	}
	return body.ID
}

// TestTheTargetBehindAFlood has a sandbox be denied 2,600 junk names, and then twenty names of the domain that it means. The commands
// find the twenty, and why of each id is about that domain, or says that requests share the id and names no fix.
func TestTheTargetBehindAFlood(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\n"))
	began := time.Now()
	var flood sync.WaitGroup
	for part := range 4 {
		flood.Go(func() {
			for i := range 650 {
				refusedTunnel(t, d, fmt.Sprintf("n%d.junk-%d.test:443", i, part*650+i))
			}
		})
	}
	flood.Wait()
	t.Logf("2,600 names in %v", time.Since(began).Round(time.Millisecond))
	var ids []string
	for i := range 20 {
		ids = append(ids, refusedTunnel(t, d, fmt.Sprintf("part%d.meant.test:443", i)))
	}
	typed := func(words ...string) string {
		t.Helper()
		r := d.RunCommand(t, nil, append(words, "--config", d.Config)...)
		return r.Out
	}
	listed := func() (times int64) {
		for line := range strings.Lines(typed("log", "--json", "host:*.meant.test")) {
			if r, err := record.Decode([]byte(line)); err == nil && r.Kind == record.KindOpen {
				times += r.Times()
			}
		}
		return times
	}
	// What is summed is written when its second is over.
	if !world.Eventually(world.Patience, func() bool { return listed() == 20 }) {
		t.Errorf("log has %d of the twenty", listed())
	}
	shared := 0
	for _, id := range ids {
		var s story.Story
		if err := json.NewDecoder(bytes.NewReader([]byte(typed("why", "--json", id)))).Decode(&s); err != nil {
			t.Errorf("why %s: %v", id, err)
			continue
		}
		first, err := record.Decode(s.Lines[0])
		if err != nil {
			t.Fatal(err)
		}
		ofDomain := first.Dst != nil && strings.HasSuffix(first.Dst.Host, ".meant.test")
		if s.Shared {
			shared++
		}
		if !ofDomain && !s.Shared || s.Shared && s.Fix != "" {
			t.Errorf("why %s: shared %t, fix %q, %s", id, s.Shared, s.Fix, s.Lines[0])
		}
	}
	t.Logf("%d of 20 ids are shared", shared)
	if found := typed("log", "signals", "--json"); shared > 1 && !strings.Contains(found, "meant.test") { // a slow machine records each
		t.Errorf("log signals does not name the domain: %s", found)
	}
}

// TestATemplateTakesNobodysPlace has one token invent 4,096 ids, and then hold as many connections as it gets. A sandbox of another
// template, and one of none, connect for the first time.
func TestATemplateTakesNobodysPlace(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, `
allow: [allowed.test]
sandboxes:
  - {name: "greedy-{id}", user: "greedy-{id}", token_file: web.token}
  - {name: "other-{id}", user: "other-{id}", token_file: ci.token}
  - {name: plain, token_file: api.secret}
`))
	const greedy, other = "another-secret", "open-sesame"
	refused := 0
	for i := range 4096 {
		c, status, err := d.OpenTunnel("denied.test:443", world.Authorization(fmt.Sprintf("greedy-%d", i), greedy))
		if err != nil {
			t.Fatal(err)
		}
		if status == http.StatusTooManyRequests {
			refused++
		}
		world.Abandon(c.Conn)
	}
	held := 0
	for i := range 300 {
		c, status, err := d.OpenTunnel("allowed.test:443", world.Authorization(fmt.Sprintf("greedy-%d", i), greedy))
		if err != nil || status != http.StatusOK {
			continue // it has its share
		}
		held++
		defer world.Abandon(c.Conn)
	}
	for who, credentials := range map[string]string{
		"another template": world.Authorization("other-1", other), "a second one of it": world.Authorization("other-2", other), "a plain sandbox": world.Authorization("plain", world.RealSecret),
	} {
		c, status, err := d.OpenTunnel("allowed.test:443", credentials)
		if err != nil || status != http.StatusOK {
			t.Errorf("%s: %d, %v", who, status, err)
			continue
		}
		world.Abandon(c.Conn)
	}
	if held < 10 {
		t.Errorf("the template holds %d connections, so this test tells nothing", held)
	}
	t.Logf("%d of 4,096 ids were answered 429; %d of 300 connections are held", refused, held)
}
