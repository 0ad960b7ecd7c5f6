package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestAProgramAsksEgressd has a program find egressd from within its jail, by the name that a denial gives it.
func TestAProgramAsksEgressd(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [allowed.test]\nask: [b.allowed.test]\n")
	mark := d.World.Mark(t)
	r := runAs(t, d, "", `
getent ahosts b.allowed.test >/dev/null # a name alone, which nobody is asked about
curl -sS -m 10 http://a.allowed.test/x | grep -o '"ask":"[^"]*"'
curl -sS -m 10 http://egressd.internal/allowed
curl -sS -m 10 http://egressd.internal/denied
curl -sS -m 10 -k https://egressd.internal/
curl -sS -m 10 http://egressd.internal/requests -d '{"host":"a.allowed.test","reason":"x"}'
`)
	for _, want := range []string{`"ask":"http://egressd.internal/"`, "allowed.test (allow, rule allow[0])", "default-deny GET /x a.allowed.test:80", "http://egressd.internal/", "refused; nobody is asked"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is missing in %s%s", want, r.out, r.talk)
		}
	}
	if strings.Contains(r.out, "ask-rejected") {
		t.Errorf("a name is called denied: %s", r.out)
	}
	if n := r.denied(policy.InquiryHost, policy.AddressDenied); n != 1 { // the one over TLS
		t.Errorf("%d denials of egressd itself", n)
	}
	d.World.Silent(t, mark)
}

// TestAProgramAsksThePersonAtTheTerminal has no request wait: the program asks, and a person gives it a while.
func TestAProgramAsksThePersonAtTheTerminal(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [b.allowed.test]\n")
	c := outerShell(t, d)
	d.PutFile(t, "agent.sh", `r=http://egressd.internal/requests
id=$(curl -sS -m10 -H 'Accept: application/json' $r -d '{"host":"a.allowed.test:80","reason":"for the \u001b[31mbuild"}' | sed 's/.*"id":"\([^"]*\)".*/\1/')
curl -sS -m70 "$r/$id?wait=60"
curl -sS -m10 http://a.allowed.test/x; echo
curl -sS -m10 http://a.allowed.test:8080/x | grep -o default-deny
`)
	c.types("$RUN sh agent.sh\n")
	first := c.until("ask no more ")
	if !strings.Contains(first, "asks for a.allowed.test:80 (rule access-request)") || !strings.Contains(first, `for the \x1b[31mbuild`) || strings.Contains(first, "o: once") {
		t.Errorf("asked %q", first)
	}
	waitQuiet()
	c.types("h")
	if rest := c.until("outer> "); !strings.Contains(rest, ": approved until") || !strings.Contains(rest, "GET /x") || !strings.Contains(rest, "default-deny") {
		t.Errorf("after the answer: %q", rest)
	}
	passed := 0
	for _, r := range lastRun(t, d) {
		if r.Kind == record.KindRequest && r.Decision.Action == "allow" && strings.HasPrefix(r.Decision.Rule, "grant:") {
			passed++
		}
	}
	if passed != 1 {
		t.Errorf("%d requests passed by the grant", passed)
	}
}

// TestABoundaryAnswersARunThatNobodyWatches: within the boundary at once, beyond it no, and neither waits for a person. The program
// can change neither the boundary nor what notifies people.
func TestABoundaryAnswersARunThatNobodyWatches(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [b.allowed.test]\nask: [\"asked.allowed.test\"]\napprove_within: boundary.yaml\nnotify: {to: [{name: team, type: slack, url_file: team.url}]}\n")
	d.PutFile(t, "boundary.yaml", "version: 1\nallow: [\"a.allowed.test:80\"]\n")
	d.PutFile(t, "team.url", "https://hooks.example.com/services/s3cret\n")
	world.Must(t, os.Chmod(filepath.Join(d.Dir, "boundary.yaml"), 0o600))
	r := runAs(t, d, "", `
ask() { curl -sS -m 20 -H 'Accept: application/json' http://egressd.internal/requests -d "$1"; }
wait() { curl -sS -m 30 -H 'Accept: application/json' "http://egressd.internal/requests/$(echo "$1" | sed -n 's/.*"id":"\([^"]*\)".*/\1/p')?wait=20" | sed -n 's/.*"state":"\([^"]*\)".*/\1/p'; }
echo within $(wait "$(ask '{"host":"a.allowed.test:80","reason":"the build needs it"}')")
echo beyond $(wait "$(ask '{"host":"c.allowed.test:80","reason":"the boundary allows it, says the program"}')")
echo port $(wait "$(ask '{"host":"a.allowed.test:8080","reason":"x"}')")
ask '{"host":"asked.allowed.test:443","reason":"x"}' | grep -o '"state":"[a-z]*"'
for host in a.allowed.test c.allowed.test a.allowed.test:8080; do curl -sS -m 10 -o /dev/null -w "$host %{http_code}\n" http://$host/; done
echo 'allow: ["*:*"]' 2>&1 >> `+d.Dir+`/boundary.yaml || echo fixed
cat `+d.Dir+`/team.url 2>&1 | grep -c s3cret
`)
	const want = "within approved\nbeyond rejected\nport rejected\n\"state\":\"refused\"\na.allowed.test 200\nc.allowed.test 403\na.allowed.test:8080 403\n"
	if !strings.HasPrefix(r.out, want) || !strings.Contains(r.out, "fixed\n0\n") {
		t.Errorf("got %s%s", r.out, r.talk)
	}
	proofs := 0
	for _, one := range r.records {
		if one.Kind == record.KindAdmin && strings.Contains(one.Note, "proof: ") {
			proofs++
		}
	}
	if proofs != 1 {
		t.Errorf("%d proofs are recorded", proofs)
	}
}
