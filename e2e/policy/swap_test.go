package policy

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// swapVariable says for how long policies are swapped under load: "60s". Without it
// they are for five seconds, and a hundred times.
const swapVariable = "EGRESSD_E2E_SWAP"

// TestPoliciesAreSwappedUnderLoad has a policy in Rego allow and deny a host in turn,
// while many ask for it. Each text has a digest of its own, so that each record
// tells by which text it was decided.
func TestPoliciesAreSwappedUnderLoad(t *testing.T) {
	world.Covers(t, "PO-10")
	length, least := 5*time.Second, 100
	if text := os.Getenv(swapVariable); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	d := world.StartRego(t, "version: 1\nrego: [policy]\n", swapModule(0))
	texts := map[string]int{d.Digest(t): 0} // the swap that put a digest in force
	stop := askAllTheTime(d)
	t.Cleanup(func() { stop() })
	began, mark := time.Now(), 0
	for i := 1; i <= least || time.Since(began) < length; i++ {
		d.PutFile(t, "policy/egress.rego", swapModule(i))
		d.Cmd.Process.Signal(syscall.SIGHUP)
		digest := ""
		if !world.Eventually(10*world.Settling, func() bool { mark, digest = newDigest(t, d, mark, texts); return digest != "" }) {
			t.Fatalf("swap %d was not taken; egressd said:\n%s", i, d.Output.String())
		}
		texts[digest] = i
	}
	answers := stop()
	t.Logf("%d swaps and %d requests in %v", len(texts)-1, len(answers), time.Since(began))
	judgeSwaps(t, d, texts, answers)
}

// swapModule allows with even numbers and denies with odd ones.
func swapModule(i int) string {
	return fmt.Sprintf("package egress\n\n%s contains {\"rule\": \"swap-%d\"} if input.destination.host == \"allowed.test\"\n", []string{"allow", "deny"}[i%2], i)
}

// newDigest looks in the records after mark for a policy that was put in force and is
// none of those that are known.
func newDigest(t *testing.T, d *world.Daemon, mark int, known map[string]int) (int, string) {
	t.Helper()
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range records {
		if r.Kind != record.KindPolicy {
			continue
		}
		if _, old := known[r.Decision.Policy]; !old {
			return mark + i + 1, r.Decision.Policy
		}
	}
	return mark + len(records), ""
}

// An asking is one request and its answer.
type asking struct {
	src    string
	status int
	err    error
}

// askAllTheTime has sandboxes ask until what it returns is called, which waits for
// them.
func askAllTheTime(d *world.Daemon) (stop func() []asking) {
	const clients = 8
	var wg sync.WaitGroup
	var running atomic.Bool
	running.Store(true)
	all := make([][]asking, clients)
	for i := range all {
		wg.Go(func() {
			for running.Load() {
				all[i] = append(all[i], askForTunnel(d))
			}
		})
	}
	return func() (flat []asking) {
		running.Store(false)
		wg.Wait()
		for _, some := range all {
			flat = append(flat, some...)
		}
		return flat
	}
}

func askForTunnel(d *world.Daemon) asking {
	c, status, err := d.OpenTunnel("allowed.test:443", "")
	if c == nil {
		return asking{err: err}
	}
	src := c.LocalAddr().(*net.TCPAddr).String()
	c.Close()
	return asking{src, status, err}
}

// judgeSwaps compares answers and records: each request has one decision, which is
// that of the text whose digest it carries, and that text was in force.
func judgeSwaps(t *testing.T, d *world.Daemon, texts map[string]int, answers []asking) {
	t.Helper()
	seen := map[int]int{} // what was answered
	for _, a := range answers {
		if a.err != nil {
			t.Fatalf("a request had no answer: %v", a.err)
		}
		seen[a.status]++
	}
	if len(seen) != 2 || seen[http.StatusOK] < 20 || seen[http.StatusForbidden] < 20 {
		t.Errorf("the answers are %v", seen)
	}
	settled := func() bool {
		records, _ := d.Log.Since(0)
		return len(openFlows(records)) == 0 && decisionsIn(records) >= len(answers)
	}
	if !world.Eventually(world.Settling, settled) {
		t.Error("flows have no end in the log, or denials are not in it")
	}
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	inForce, late := 0, 0
	for _, r := range records {
		switch r.Kind {
		case record.KindPolicy:
			inForce = texts[r.Decision.Policy]
		case record.KindOpen:
			late += judgeSwap(t, d, texts, &r, inForce)
		}
	}
	if late > len(records)/500 {
		t.Errorf("%d of %d records were decided by a text that was not in force, nor was right before", late, len(records))
	}
	if decided := decisionsIn(records); decided != len(answers) {
		t.Errorf("%d requests have %d decisions", len(answers), decided)
	}
}

// decisionsIn is how many tunnels were decided: a record may stand for several denials.
func decisionsIn(records []record.Record) (n int) {
	for _, r := range records {
		if r.Kind == record.KindOpen {
			n += int(r.Times())
		}
	}
	return n
}

// judgeSwap judges one decision. It may be older than the policy in force by one: a
// flow is decided, then recorded, and decided again where the policy was swapped in
// between. On a busy machine that takes as long as two swaps or three, but seldom: such
// a one counts as late. A sum of denials is older than the second that it is about.
func judgeSwap(t *testing.T, d *world.Daemon, texts map[string]int, r *record.Record, inForce int) (late int) {
	t.Helper()
	by, known := texts[r.Decision.Policy]
	want := []string{"allow", "deny"}[by%2]
	switch {
	case !known:
		t.Errorf("record %d: nobody put %s in force", r.Seq, r.Decision.Policy)
	case r.Decision.Action != want || r.Decision.Rule != fmt.Sprintf("swap-%d", by):
		t.Errorf("record %d: %s by %s, and text %d says %s", r.Seq, r.Decision.Action, r.Decision.Rule, by, want)
	case r.Count == 0 && by < inForce-1 && by >= inForce-3:
		return 1
	case r.Count == 0 && by != inForce && by != inForce-1:
		t.Errorf("record %d was decided by text %d when %d was in force", r.Seq, by, inForce)
	case !strings.HasPrefix(r.Decision.Policy, "sha256:"):
		t.Errorf("record %d: the digest is %q", r.Seq, r.Decision.Policy)
	}
	return 0
}

// openFlows are the flows that were let through and have no end.
func openFlows(records []record.Record) map[string]bool {
	open := map[string]bool{}
	for _, r := range records {
		switch {
		case r.Kind == record.KindOpen && r.Decision.Action == "allow":
			open[r.Flow] = true
		case r.Kind == record.KindClose:
			delete(open, r.Flow)
		}
	}
	return open
}
