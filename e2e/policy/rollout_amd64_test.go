package policy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/egressd/egressd/daemon/doctor"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/testpki"
)

// A shipping is a registry on the gateway's loopback, a key, and an egressd that follows the tag "stable".
type shipping struct {
	*world.Daemon
	private     []byte
	address     string
	certificate tls.Certificate
	inside      http.Handler // keeps what was pushed while the server is away
	server      *http.Server
}

// ship starts a registry, and prepares an egressd.
func ship(t *testing.T) *shipping {
	t.Helper()
	authority := testpki.New(t)
	s := &shipping{inside: registry.New(registry.Logger(log.New(io.Discard, "", 0))), certificate: authority.Server(t, func(c *x509.Certificate) { c.IPAddresses = []net.IP{{127, 0, 0, 1}} }), address: "127.0.0.1:0"}
	s.open(t)
	s.Daemon = world.NewDaemon(t, world.WithAdmin(world.AdminSocket, fmt.Sprintf(
		"rego: [{bundle: \"oci://%s/team/policy:stable\", key: key.pem, ca: registry.pem, refresh: 1s, max_age: 24h}]\n", s.address)))
	var public []byte
	s.private, public = testpki.KeyPair(t)
	s.PutFile(t, "key.pem", string(public))
	s.PutFile(t, "registry.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate.Raw})))
	return s
}

// open lets the registry listen, at the address that it had before.
func (s *shipping) open(t *testing.T) {
	t.Helper()
	l, err := world.Open(t).Gateway.Listen("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	server := &http.Server{Handler: s.inside, TLSConfig: &tls.Config{Certificates: []tls.Certificate{s.certificate}}, ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan struct{})
	go func() {
		server.ServeTLS(l, "", "")
		close(served)
	}()
	s.server = server
	t.Cleanup(func() {
		server.Close()
		<-served
	})
}

// push signs a bundle that allows a host, as of a time, and pushes it by egressd policy push. It returns the digest.
func (s *shipping) push(t *testing.T, revision, host string, when time.Time) (digest string) {
	t.Helper()
	p := publisher{private: s.private}
	s.PutFile(t, revision+".tar.gz", string(p.sign(t, allowing(t, revision, host), when, 0)))
	done := s.RunCommand(t, nil, "policy", "push", revision+".tar.gz", "oci://"+s.address+"/team/policy:stable", "--key", "key.pem", "--ca", "registry.pem", "--json")
	var said struct{ Digest, Revision string }
	if err := json.Unmarshal([]byte(done.Out), &said); err != nil || done.Code != 0 || said.Revision != revision {
		t.Fatalf("policy push: exit code %d, %s%s", done.Code, done.Out, done.Talk)
	}
	return said.Digest
}

// setTag has the tag name a manifest that the registry has, as whoever controls it could.
func (s *shipping) setTag(t *testing.T, digest string) {
	t.Helper()
	const kind = "application/vnd.oci.image.manifest.v1+json"
	ask := func(method, name string, body []byte, want int) []byte {
		r := httptest.NewRequest(method, "/v2/team/policy/manifests/"+name, bytes.NewReader(body))
		r.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		if s.inside.ServeHTTP(w, r); w.Code != want {
			t.Fatalf("%s %s: %d %s", method, name, w.Code, w.Body)
		}
		return w.Body.Bytes()
	}
	ask(http.MethodPut, "stable", ask(http.MethodGet, digest, nil, http.StatusOK), http.StatusCreated)
}

// A shown is what egressd says of itself and its bundle.
type shown struct {
	Ready  bool
	Why    []string
	Policy struct {
		OK      bool
		Bundles []struct {
			Revision, Stale, Error string
			Heard                  time.Time
		}
	}
	code int
}

func (s *shipping) shows(t *testing.T) (v shown) {
	t.Helper()
	done := s.RunCommand(t, nil, "status", "--json", "--config", s.Config)
	if err := json.Unmarshal([]byte(done.Out), &v); err != nil || len(v.Policy.Bundles) != 1 {
		t.Fatalf("status: %v, exit code %d, %s%s", err, done.Code, done.Out, done.Talk)
	}
	v.code = done.Code
	return v
}

func (s *shipping) metric(t *testing.T, name string) float64 {
	t.Helper()
	text := s.Curl(t, s.World.Gateway, nil, "--unix-socket", filepath.Join(s.Dir, "operator", "admin.sock"), "http://egressd/metrics")
	found := regexp.MustCompile(`(?m)^` + name + `(?:\{.*\})? (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("there is no %s", name)
	}
	value, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// expect waits until egressd shows something, and then tries who gets through: 200 for those that are open, 403 for the others. It
// looks at the state in every place that shows it.
func (s *shipping) expect(t *testing.T, says string, revision, refused string, stale bool, open ...string) {
	t.Helper()
	good := refused == "" && !stale
	var v shown
	come := world.Eventually(time.Minute, func() bool {
		v = s.shows(t)
		b := v.Policy.Bundles[0]
		return b.Revision == revision && (b.Stale != "") == stale && strings.Contains(b.Error, refused) && (b.Error == "") == (refused == "") &&
			v.Ready != stale && (len(v.Why) > 0) == stale && v.Policy.OK == good && (v.code == 0) == good
	})
	if !come {
		t.Fatalf("%s: it shows %+v; egressd said:\n%s", says, v, s.Output.String())
	}
	if failing, old := s.metric(t, "egressd_bundle_failing") == 1, s.metric(t, "egressd_bundle_stale") == 1; failing != (refused != "") || old != stale {
		t.Errorf("%s: metrics: failing %v, stale %v", says, failing, old)
	}
	var found []doctor.Finding
	if !world.Eventually(time.Minute, func() bool { // it reads what egressd keeps on disk
		found = s.Findings(t, 0, "bundles")
		return len(found) == 1 && (found[0].Fix == "") == good
	}) {
		t.Errorf("%s: doctor: %+v", says, found)
	}
	for _, host := range []string{"allowed.test", "other.allowed.test"} {
		want := http.StatusForbidden
		for _, one := range open {
			if one == host {
				want = http.StatusOK
			}
		}
		if got := s.ConnectStatus(t, host+":443"); got != want {
			t.Errorf("%s: %s is answered %d, not %d", says, host, got, want)
		}
	}
}

// TestARollOutAndWhatGoesWrongWithOne rolls a policy out by a registry that others wrote. Then the tag is set back, a bundle is signed with another key,
// two are signed in one second, and the registry is away for a day. After each, who gets through is what it was, and status, readyz, doctor
// and metrics say what happened.
func TestARollOutAndWhatGoesWrongWithOne(t *testing.T) {
	s := ship(t)
	began := time.Now().Add(-time.Hour).Truncate(time.Second)
	at := func(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }
	one := s.push(t, "one", "allowed.test", at(0))
	var clock world.Clock
	clock.Start(t, s.Daemon, 0)
	t.Cleanup(func() { s.Stop(t) })
	s.expect(t, "at the start", "one", "", false, "allowed.test")

	two := s.push(t, "two", "other.allowed.test", at(1))
	s.expect(t, "rolled out", "two", "", false, "other.allowed.test")

	back := s.RunCommand(t, nil, "policy", "push", "one.tar.gz", "oci://"+s.address+"/team/policy:stable", "--key", "key.pem", "--ca", "registry.pem")
	if back.Code != 1 {
		t.Errorf("an older bundle was pushed: exit code %d, %s", back.Code, back.Talk)
	}
	s.setTag(t, one)
	s.expect(t, "set back", "two", "issued before the last good one", false, "other.allowed.test")
	since := s.shows(t).Policy.Bundles[0].Heard
	if !world.Eventually(time.Minute, func() bool { return s.shows(t).Policy.Bundles[0].Heard.After(since.Add(2 * time.Second)) }) {
		t.Error("a registry whose tag was set back is not heard any more")
	}
	s.setTag(t, two)
	s.expect(t, "and forth", "two", "", false, "other.allowed.test")

	private, public := testpki.KeyPair(t)
	s.PutFile(t, "foreign.pem", string(public))
	s.PutFile(t, "foreign.tar.gz", string((&publisher{private: private}).sign(t, allowing(t, "foreign", "allowed.test"), at(2), 0)))
	if done := s.RunCommand(t, nil, "policy", "push", "foreign.tar.gz", "oci://"+s.address+"/team/policy:stable", "--key", "key.pem", "--ca", "registry.pem"); done.Code != 1 {
		t.Errorf("a bundle of another key was pushed: exit code %d, %s", done.Code, done.Talk)
	}
	if done := s.RunCommand(t, nil, "policy", "push", "foreign.tar.gz", "oci://"+s.address+"/team/policy:stable", "--key", "foreign.pem", "--ca", "registry.pem"); done.Code != 0 {
		t.Fatalf("exit code %d, %s", done.Code, done.Talk)
	}
	s.expect(t, "of another key", "two", "not signed with this key", false, "other.allowed.test")

	three := s.push(t, "three", "allowed.test", at(3))
	s.expect(t, "with its own key again", "three", "", false, "allowed.test")
	s.push(t, "four", "other.allowed.test", at(3))
	s.expect(t, "another one of the same second", "four", "", false, "other.allowed.test")
	s.setTag(t, three)
	s.expect(t, "the first one of that second", "three", "", false, "allowed.test")

	s.server.Close()
	s.expect(t, "without the registry", "three", "connection refused", false, "allowed.test")
	world.Must(t, clock.Set(23*time.Hour))
	s.expect(t, "for less than a day", "three", "connection refused", false, "allowed.test")
	world.Must(t, clock.Set(25*time.Hour))
	s.expect(t, "for more than a day", "three", "connection refused", true)
	world.Must(t, clock.Set(0))
	s.expect(t, "with its clock set back", "three", "connection refused", true)
	if !world.Eventually(time.Minute, func() bool { // it is kept with the next attempt
		said, _ := policyStatus(t, s.Daemon)
		return strings.Contains(said, `"stale":"`)
	}) {
		t.Error("what time it was is not on disk")
	}
	s.Stop(t)
	clock.Start(t, s.Daemon, 0)
	s.expect(t, "started again", "three", "connection refused", true)
	s.open(t)
	s.expect(t, "with the registry again", "three", "", false, "allowed.test")
}
