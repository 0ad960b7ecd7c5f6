package policy

import (
	"errors"
	"fmt"
	"github.com/egressd/egressd/rego/bundle"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/rego"
)

// A publisher signs bundles and serves them on the gateway's loopback.
type publisher struct {
	private, public []byte
	address         string
	server          *http.Server
	answer          atomic.Pointer[http.HandlerFunc]
	asked           atomic.Int64
}

func publish(t *testing.T) *publisher {
	t.Helper()
	p := new(publisher)
	p.private, p.public = testpki.KeyPair(t)
	p.listen(t, "127.0.0.1:0")
	return p
}

func (p *publisher) listen(t *testing.T, address string) {
	t.Helper()
	l, err := world.Open(t).Gateway.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p.address = l.Addr().String()
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		(*p.answer.Load())(w, r)
	})}
	served := make(chan struct{})
	go func() {
		p.server.Serve(l)
		close(served)
	}()
	t.Cleanup(func() {
		p.server.Close()
		<-served
	})
}

func (p *publisher) says(answer http.HandlerFunc) { p.answer.Store(&answer) }

func (p *publisher) has(tarball []byte) {
	p.says(func(w http.ResponseWriter, _ *http.Request) { w.Write(tarball) })
}

// bundleOf packs one module.
func bundleOf(t *testing.T, revision, module string) []byte {
	t.Helper()
	tarball, err := bundle.Build([]rego.Source{{Name: "egress.rego", Text: []byte(module)}}, bundle.BuildOptions{Revision: revision})
	if err != nil {
		t.Fatal(err)
	}
	return tarball
}

func allowing(t *testing.T, revision, host string) []byte {
	t.Helper()
	return bundleOf(t, revision, fmt.Sprintf("package egress\n\nallow contains {\"rule\": \"listed\"} if host.matches(input.destination.host, %q)\n", host))
}

func (p *publisher) sign(t *testing.T, tarball []byte, when time.Time, valid time.Duration) []byte {
	t.Helper()
	signed, err := bundle.Sign(tarball, bundle.SignOptions{KeyPEM: p.private, Now: when, Valid: valid})
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// subscribed prepares an egressd whose policy is what the publisher has.
func subscribed(t *testing.T, p *publisher) *world.Daemon {
	t.Helper()
	d := world.NewDaemon(t, fmt.Sprintf("version: 1\nrego: [{bundle: \"http://%s/b.tar.gz\", key: key.pem, refresh: 1h}]\n", p.address))
	if err := os.WriteFile(filepath.Join(d.Dir, "key.pem"), p.public, 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

func serves(t *testing.T, d *world.Daemon) {
	t.Helper()
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
}

// policyStatus is what the command says, and its exit code.
func policyStatus(t *testing.T, d *world.Daemon) (said string, code int) {
	t.Helper()
	var out world.Output
	cmd := exec.Command(world.Egressd.Path(), "policy", "show", "--json", "--config", d.Config)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(append(os.Environ(), world.HostileEnvironment()...), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	var exit *exec.ExitError
	if err := d.World.Gateway.Run(cmd); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// told waits until the log and policy show say so, and returns the digest in
// force.
func told(t *testing.T, d *world.Daemon, what string) (digest string) {
	t.Helper()
	found := func() bool {
		records, _ := d.Log.Since(0)
		for _, r := range records {
			if r.Kind == record.KindPolicy {
				digest = r.Decision.Policy
			}
			if r.Kind == record.KindPolicy && strings.Contains(r.Note, what) {
				return true
			}
		}
		return false
	}
	if !world.Eventually(world.Settling, found) {
		t.Errorf("no record says %q; egressd said:\n%s", what, d.Output.String())
	}
	return digest
}

func hangup(t *testing.T, d *world.Daemon) {
	t.Helper()
	if err := d.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// TestABundleThatIsNotGoodChangesNothing has the server answer badly in each way.
// What was in force stays, and both the log and policy show say why.
func TestABundleThatIsNotGoodChangesNothing(t *testing.T) {
	p, other := publish(t), publish(t)
	now := time.Now()
	evil := allowing(t, "two", "evil.test")
	signed := p.sign(t, evil, now, 0)
	other.has(signed)
	p.has(p.sign(t, allowing(t, "one", "allowed.test"), now.Add(-time.Minute), 0))
	d := subscribed(t, p)
	serves(t, d)
	t.Cleanup(func() { d.Stop(t) })
	before := d.Digest(t)
	tunnel := d.MustOpenTunnel(t, "allowed.test:443")
	whole := func(b []byte) http.HandlerFunc { return func(w http.ResponseWriter, _ *http.Request) { w.Write(b) } }
	for _, row := range []struct {
		because string
		answer  http.HandlerFunc
	}{
		{"not signed with this key", whole(other.sign(t, evil, now, 0))},
		{"is not signed", whole(evil)},
		{"has expired", whole(p.sign(t, evil, now.Add(-2*time.Hour), time.Hour))},
		{"issued before the last good one", whole(p.sign(t, evil, now.Add(-time.Hour), 0))},
		{"what is no bundle", whole([]byte("<html>Sign in to the network</html>"))},
		{"unexpected EOF", whole(signed[:len(signed)/2])},
		{"ended before it was whole", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			w.Write(signed)
		}},
		{"redirects to another server", http.RedirectHandler("http://"+other.address+"/b.tar.gz", http.StatusFound).ServeHTTP},
		{"no file has a rule for allow, ask or deny", whole(p.sign(t, bundleOf(t, "two", "package egress.missing\n\nx := 1\n"), now, 0))},
		{"undefined ref", whole(p.sign(t, bundleOf(t, "two", "package egress\n\nallow contains {\"rule\": \"r\"} if input.destination.hots == \"evil.test\"\n"), now, 0))},
	} {
		p.says(row.answer)
		hangup(t, d)
		if digest := told(t, d, row.because); digest != before {
			t.Errorf("%s: the policy changed", row.because)
		}
		if said, code := policyStatus(t, d); code != 1 || !strings.Contains(said, row.because) || !strings.Contains(said, `"revision":"one"`) {
			t.Errorf("%s: policy show: exit code %d, %s", row.because, code, said)
		}
		if a, b := d.ConnectStatus(t, "allowed.test:443"), d.ConnectStatus(t, "evil.test:443"); a != http.StatusOK || b != http.StatusForbidden {
			t.Errorf("%s: allowed.test is answered %d, evil.test %d", row.because, a, b)
		}
	}
	if other.asked.Load() > 0 {
		t.Error("the other server was asked")
	}
	if tunnel.EndsWithin(100 * time.Millisecond) {
		t.Error("the open tunnel was cut")
	}
	p.server.Close()
	hangup(t, d)
	told(t, d, "connection refused")
	p.listen(t, p.address)
	p.has(p.sign(t, allowing(t, "three", "other.allowed.test"), now, 0))
	hangup(t, d)
	told(t, d, "fetched again")
	if said, code := policyStatus(t, d); code != 0 || !strings.Contains(said, `"revision":"three"`) {
		t.Errorf("policy show at the end: exit code %d, %s", code, said)
	}
	if !tunnel.EndsWithin(world.Patience) {
		t.Error("a tunnel goes on that the new bundle does not allow")
	}
}

// TestABundleThatConflictsDenies says two things at once about a host that no sample has.
func TestABundleThatConflictsDenies(t *testing.T) {
	p := publish(t)
	p.has(p.sign(t, bundleOf(t, "one", `package egress

answer := "yes" if input.destination.port == 443
answer := "no" if regex.match("^allowed[.]test$", input.destination.host)

allow contains {"rule": answer} if host.matches(input.destination.host, "*.test")
`), time.Now(), 0))
	d := subscribed(t, p)
	serves(t, d)
	t.Cleanup(func() { d.Stop(t) })
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("answered %d", status)
	}
	records, err := d.Log.Since(0)
	if last := records[len(records)-1]; err != nil || last.Decision == nil || last.Decision.Class != "policy-error" {
		t.Errorf("the record is %+v, %v", last, err)
	}
}

// TestABundleThatExpiresCuts has a tunnel open while it does.
func TestABundleThatExpiresCuts(t *testing.T) {
	p := publish(t)
	p.has(p.sign(t, allowing(t, "one", "allowed.test"), time.Now(), 10*time.Second))
	d := subscribed(t, p)
	serves(t, d)
	t.Cleanup(func() { d.Stop(t) })
	tunnel := d.MustOpenTunnel(t, "allowed.test:443")
	if !tunnel.EndsWithin(world.Patience) {
		t.Error("the tunnel was not cut")
	}
	told(t, d, "is stale, and everything is denied")
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("answered %d", status)
	}
	if said, code := policyStatus(t, d); code != 1 || !strings.Contains(said, `"stale":"it expired at `) {
		t.Errorf("policy show: exit code %d, %s", code, said)
	}
	p.has(p.sign(t, allowing(t, "two", "allowed.test"), time.Now(), 0))
	hangup(t, d)
	told(t, d, "counts again")
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusOK {
		t.Errorf("with a new one, answered %d", status)
	}
}

// TestTheStartNeedsABundle: there is none, and then there was one once.
func TestTheStartNeedsABundle(t *testing.T) {
	p := publish(t)
	p.has([]byte("<html>"))
	d := subscribed(t, p)
	if code, said := d.Fails(t); code == 0 || !strings.Contains(said, "egressd: hint: ") {
		t.Errorf("exit code %d, said %q", code, said)
	}
	p.has(p.sign(t, allowing(t, "one", "allowed.test"), time.Now(), 0))
	serves(t, d)
	d.Stop(t)
	p.server.Close()
	serves(t, d)
	t.Cleanup(func() { d.Stop(t) })
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusOK {
		t.Errorf("without its server, answered %d", status)
	}
}

// TestKillNineWhileStoring kills egressd at any moment while bundles come one after
// the other. What is on disk is good each time, and its server is not needed.
func TestKillNineWhileStoring(t *testing.T) {
	p := publish(t)
	began := time.Now().Add(-time.Hour)
	var n atomic.Int64
	p.says(func(w http.ResponseWriter, _ *http.Request) {
		i := n.Add(1)
		w.Write(p.sign(t, allowing(t, fmt.Sprint(i), "allowed.test"), began.Add(time.Duration(i)*time.Second), 0))
	})
	d := subscribed(t, p)
	for range 6 {
		serves(t, d)
		stop := time.Now().Add(time.Duration(mathrand.Int64N(int64(300 * time.Millisecond))))
		for time.Now().Before(stop) { // the moment of the blow is what is random here
			d.Cmd.Process.Signal(syscall.SIGHUP)
		}
		d.Kill()
		if said, code := policyStatus(t, d); code != 0 || strings.Contains(said, "damaged") {
			t.Errorf("policy show: exit code %d, %s", code, said)
		}
	}
	p.server.Close()
	serves(t, d)
	t.Cleanup(func() { d.Stop(t) })
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusOK {
		t.Errorf("without its server, answered %d", status)
	}
}

// TestAHalfWrittenBundle puts half of a file in the place of a bundle that is one.
func TestAHalfWrittenBundle(t *testing.T) {
	p := publish(t)
	d := world.NewDaemon(t, "version: 1\nrego: [{bundle: policy.tar.gz, key: key.pem}]\n")
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(d.Dir, "policy.tar.gz"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(p.sign(t, allowing(t, "one", "allowed.test"), time.Now(), 0))
	if err := os.WriteFile(filepath.Join(d.Dir, "key.pem"), p.public, 0o600); err != nil {
		t.Fatal(err)
	}
	serves(t, d)
	t.Cleanup(func() { d.Stop(t) })
	before := d.Digest(t)
	two := p.sign(t, allowing(t, "two", "other.allowed.test"), time.Now(), 0)
	write(two[:len(two)/2])
	if digest := told(t, d, "unexpected EOF"); digest != before {
		t.Error("the policy changed")
	}
	if said, code := policyStatus(t, d); code != 1 || !strings.Contains(said, `"rejected":{`) || !strings.Contains(said, `"current":true`) {
		t.Errorf("policy show: exit code %d, %s", code, said)
	}
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusOK {
		t.Errorf("answered %d", status)
	}
	write(two)
	d.ExpectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before })
	if said, code := policyStatus(t, d); code != 0 {
		t.Errorf("policy show: exit code %d, %s", code, said)
	}
}

// TestTheSandboxDoesNotSteerTheFetch: what it asks of the proxy reaches no place
// where bundles come from.
func TestTheSandboxDoesNotSteerTheFetch(t *testing.T) {
	p := publish(t)
	p.has(p.sign(t, allowing(t, "one", "*.test"), time.Now(), 0))
	d := subscribed(t, p)
	serves(t, d)
	t.Cleanup(func() { d.Stop(t) })
	asked := p.asked.Load()
	_, port, _ := net.SplitHostPort(p.address)
	for _, to := range []string{p.address, "localhost:" + port, "[::1]:" + port} {
		if c, status, err := d.OpenTunnel(to, ""); err == nil {
			c.Close()
			if status == http.StatusOK {
				t.Errorf("a tunnel to %s stands", to)
			}
		}
	}
	if now := p.asked.Load(); now != asked {
		t.Errorf("the server was asked %d times by the sandbox", now-asked)
	}
}
