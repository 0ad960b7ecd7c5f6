package policy

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// bombs are conditions that would take forever, or all memory. What a sandbox is
// allowed does not depend on them.
var bombs = map[string]string{
	"range":      `count(numbers.range(1, 1000000000)) > 1`,
	"comprehend": `count([[a, b, c] | some a in numbers.range(1, 1000); some b in numbers.range(1, 1000); some c in numbers.range(1, 1000)]) > 1`,
	"sum":        `sum([1 | some a in numbers.range(1, 100000); some b in numbers.range(1, 100000); a == b + 1]) > 1`,
	"regex":      `regex.match(concat("", [p | some i in numbers.range(1, 400000); p := "(a|b)*c?"]), concat("", ["a" | some i in numbers.range(1, 100000)]))`,
	"walk":       `count([1 | walk(tree, [p, _]); walk(tree, [q, _]); walk(tree, [r, _]); p == array.concat(q, r)]) > 1`,
	"grow":       `count(concat(",", [s | some i in numbers.range(1, 100000); s := sprintf("%0100000d", [i])])) > 1`,
}

// bombPolicy has each bomb go off for the host of its name.
func bombPolicy() string {
	var b strings.Builder
	b.WriteString("package egress\n\ntree := {k: {l: {m: {n: numbers.range(1, 20) | some n in numbers.range(1, 8)} | some m in numbers.range(1, 8)} | some l in numbers.range(1, 8)} | some k in numbers.range(1, 8)}\n")
	for name, condition := range bombs {
		fmt.Fprintf(&b, "\ndeny contains {\"rule\": %q} if {\n\tinput.destination.host == \"%s.allowed.test\"\n\t%s\n}\n", name, name, condition)
	}
	return b.String()
}

// TestBombsInAPolicy sets off each bomb while others go on asking.
func TestBombsInAPolicy(t *testing.T) {
	world.Covers(t, "PO-08")
	d := world.StartRego(t, withRego, bombPolicy())
	passes(t, d, "PO-08", "plain.allowed.test:443", world.AllowedIPv4)
	for name := range bombs {
		began := time.Now()
		refuses(t, d, "PO-08", name+".allowed.test:443", policy.PolicyError)
		t.Logf("%s: %v through every way in; %d KiB so far", name, time.Since(began), d.Memory(t))
		if said, _ := policyStatus(t, d); !strings.Contains(said, `"where":"`+name+`.allowed.test"`) {
			t.Errorf("%s: policy show says %s", name, said)
		}
	}
	othersGoOn(t, d)
	if kib := d.Memory(t); kib > 1<<20 {
		t.Errorf("egressd held %d KiB", kib)
	}
}

// othersGoOn sets off bombs, two at a time, and asks for what has none.
func othersGoOn(t *testing.T, d *world.Daemon) {
	t.Helper()
	stop := make(chan struct{})
	var bombing sync.WaitGroup
	for range 2 {
		bombing.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					c, status, err := d.OpenTunnel([]string{"range", "comprehend", "regex"}[i%3]+".allowed.test:443", "")
					if err != nil || status != http.StatusForbidden {
						t.Errorf("a bomb is answered %d, %v", status, err)
						return
					}
					c.Close()
				}
			}
		})
	}
	slowest := time.Duration(0)
	for range 50 {
		began := time.Now()
		if status := d.ConnectStatus(t, "plain.allowed.test:443"); status != http.StatusOK {
			t.Errorf("beside the bombs, a plain request is answered %d", status)
		}
		slowest = max(slowest, time.Since(began))
	}
	close(stop)
	bombing.Wait()
	t.Logf("the slowest of 50 requests beside bombs took %v; %d KiB", slowest, d.Memory(t))
	if slowest > world.Promptly {
		t.Errorf("the slowest request beside the bombs took %v", slowest)
	}
}

// TestBombsInAShadow has the same in a policy that decides nothing: everything is let
// through, and the record says what the shadow came to.
func TestBombsInAShadow(t *testing.T) {
	d := world.StartRego(t, strings.Replace(withRego, "[policy]", "[{path: policy, mode: shadow}]", 1), bombPolicy())
	for name := range bombs {
		mark, err := d.Log.Mark()
		if err != nil {
			t.Fatal(err)
		}
		passes(t, d, "PO-08", name+".allowed.test:443", world.AllowedIPv4)
		records, err := d.Log.Since(mark)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			decides := r.Kind == record.KindOpen || r.Kind == record.KindRequest
			if decides && (r.Decision.Action != "allow" || r.Shadow == nil || r.Shadow.Class != "policy-error") {
				t.Errorf("%s: %+v, shadow %+v", name, r.Decision, r.Shadow)
			}
		}
	}
	if kib := d.Memory(t); kib > 1<<20 {
		t.Errorf("egressd held %d KiB", kib)
	}
}
