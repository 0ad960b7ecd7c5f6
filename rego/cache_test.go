package rego_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// TestTheCacheTellsRequestsApart changes one field at a time. Each policy allows
// the first request and not the second, or the other way round.
func TestTheCacheTellsRequestsApart(t *testing.T) {
	for condition, change := range map[string]func(*policy.Request){
		`input.sandbox.name == "ci"`:                        func(r *policy.Request) { r.Sandbox.Name = "web" },
		`input.sandbox.kind == "docker"`:                    func(r *policy.Request) { r.Sandbox.Kind = "docker" },
		`input.sandbox.labels.team == "a"`:                  func(r *policy.Request) { r.Sandbox.Labels = map[string]string{"team": "a"} },
		`input.via == "connect"`:                            func(r *policy.Request) { r.Via = policy.ViaSOCKS5 },
		`input.destination.host == "a.test"`:                func(r *policy.Request) { r.Destination.Host = "b.test" },
		`input.destination.port == 443`:                     func(r *policy.Request) { r.Destination.Port = 80 },
		`input.destination.registrable == "a.test"`:         func(r *policy.Request) { r.Destination.Host = "b.test" },
		`input.destination.addresses[0] == "93.184.216.34"`: func(r *policy.Request) { r.Destination.Addrs[0] = netip.MustParseAddr("8.8.8.8") },
		`count(input.destination.addresses) == 1`: func(r *policy.Request) {
			r.Destination.Addrs = append(r.Destination.Addrs, netip.MustParseAddr("8.8.8.8"))
		},
		`input.destination.address_class == "public"`: func(r *policy.Request) {
			r.Destination.Addrs = append(r.Destination.Addrs, netip.MustParseAddr("10.0.0.1"))
		},
		`input.tls.sni == "a.test"`:                           func(r *policy.Request) { r.TLS.ServerName = "b.test" },
		`input.tls.alpn[0] == "h2"`:                           func(r *policy.Request) { r.TLS.ALPN = []string{"http/1.1"} },
		`input.tls.ech`:                                       func(r *policy.Request) { r.TLS.ECH = true },
		`input.tls.ja4 == "x"`:                                func(r *policy.Request) { r.TLS.JA4 = "x" },
		`not input.tls`:                                       func(r *policy.Request) { r.TLS = nil },
		`input.http.method == "GET"`:                          func(r *policy.Request) { r.HTTP.Method = "POST" },
		`input.http.path == "/"`:                              func(r *policy.Request) { r.HTTP.Path = "/x" },
		`input.http.query == "x"`:                             func(r *policy.Request) { r.HTTP.Query = "x" },
		`input.http.body_size == 1`:                           func(r *policy.Request) { r.HTTP.BodySize = 1 },
		`input.http.headers["x-a"][0] == "1"`:                 func(r *policy.Request) { r.HTTP.Header = map[string][]string{"X-A": {"1"}} },
		`input.process.exe == "/bin/sh"`:                      func(r *policy.Request) { r.Process = &policy.Process{Exe: "/bin/sh"} },
		`input.process.pid == 1`:                              func(r *policy.Request) { r.Process = &policy.Process{PID: 1} },
		`input.process.argv[1] == "x"`:                        func(r *policy.Request) { r.Process = &policy.Process{Argv: []string{"sh", "x"}} },
		`input.time == 1795000000000000000`:                   func(r *policy.Request) { r.Time = r.Time.Add(1) },
		`time.now_ns() == 1795000000000000000`:                func(r *policy.Request) { r.Time = r.Time.Add(1) },
		`time.on(input.time, "UTC", {"Wednesday"})`:           func(r *policy.Request) { r.Time = r.Time.Add(48 * time.Hour) },
		`input["destination"]["port"] == 443`:                 func(r *policy.Request) { r.Destination.Port = 80 },
		`some part; input[part].port == 443`:                  func(r *policy.Request) { r.Destination.Port = 80 },
		`contains(json.marshal(input), "a.test")`:             func(r *policy.Request) { r.Destination.Host, r.TLS.ServerName = "b.test", "b.test" },
		`{d | d := input.destination} == {input.destination}`: func(r *policy.Request) {},
	} {
		t.Run(condition, func(t *testing.T) {
			e := load(t, "package egress\nallow contains {\"rule\": \"r\"} if {\n"+condition+"\n}")
			first := sends(t, "a.test:443", "GET", "/")
			second := sends(t, "a.test:443", "GET", "/")
			change(&second)
			a, b := evaluate(t, e, first), evaluate(t, e, second)
			if same := condition[0] == '{'; (a.Verdict == b.Verdict) != same {
				t.Errorf("%v and %v", a.Verdict, b.Verdict)
			}
			if again := evaluate(t, e, first); again.Verdict != a.Verdict {
				t.Errorf("%v, and again %v", a.Verdict, again.Verdict)
			}
		})
	}
}

// TestCachedIsEvaluated compares a policy with a small cache with one without.
func TestCachedIsEvaluated(t *testing.T) {
	source := []rego.Source{{Name: "egress.rego", Text: []byte(gitHub)}}
	cached, err := rego.Load(source, rego.Options{Cached: 8, Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := rego.Load(source, rego.Options{Cached: -1, Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		r := anyRequest(rt, t)
		a, errA := cached.Evaluate(context.Background(), &r)
		b, errB := fresh.Evaluate(context.Background(), &r)
		if diff := cmp.Diff(a, b); diff != "" || (errA == nil) != (errB == nil) {
			rt.Fatalf("%s, %v, %v", diff, errA, errB)
		}
	})
}

func anyRequest(rt *rapid.T, t *testing.T) policy.Request {
	host := rapid.SampledFrom([]string{"api.anthropic.com", "api.github.com", "x.gist.github.com", "evil.test", "10.0.0.1"}).Draw(rt, "host")
	port := rapid.SampledFrom([]int{80, 443, 8443}).Draw(rt, "port")
	r := sends(t, fmt.Sprintf("%s:%d", host, port),
		rapid.SampledFrom([]string{"GET", "POST", "get"}).Draw(rt, "method"),
		rapid.SampledFrom([]string{"/", "/repos/acme/x", "/repos/acme/../x", "*"}).Draw(rt, "path"))
	switch rapid.IntRange(0, 4).Draw(rt, "stage") {
	case 0:
		r.HTTP = nil
	case 1:
		r.HTTP, r.TLS, r.Protocol = nil, nil, policy.ProtocolUnseen
	case 2:
		r.HTTP, r.TLS, r.Protocol, r.Destination.Addrs = nil, nil, policy.ProtocolUnseen, nil
	case 3:
		r.HTTP, r.TLS, r.DNS, r.Destination.Port = nil, nil, &policy.DNSQuery{Name: host, Type: "A"}, 0
	}
	return r
}

// TestManyGoroutines looks ahead and evaluates at the same time, with two
// evaluators and without a cache. It is for the race detector.
func TestManyGoroutines(t *testing.T) {
	sources := []rego.Source{
		{Name: "egress.rego", Text: []byte(gitHub)},
		{Name: "hosts.json", Text: []byte(`{"hosts": ["a.test", "b.test", "c.test", "d.test", "*.e.test"], "paths": ["/a/**", "/b/**"], "ports": {"443": 443}}`)},
		{Name: "more.rego", Text: []byte(`package egress
allow contains {"rule": "list"} if host.any(input.destination.host, data.hosts)
allow contains {"rule": "paths"} if { host.any(input.destination.host, data.hosts); path.any(input.http.path, data.paths) }
deny contains {"rule": "port"} if { some name, port in data.ports; input.destination.port == port; input.http.method == sprintf("%s", [name]) }
`)},
	}
	var all sync.WaitGroup
	for range 2 {
		e, err := rego.Load(sources, rego.Options{Cached: -1, Deadline: patient})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			all.Go(func() {
				for j := range 15 {
					r := to(t, fmt.Sprintf("h%d.e.test:443", i+j))
					if d, err := e.Evaluate(context.Background(), &r); err != nil || d.Verdict != policy.Inspect {
						t.Errorf("ahead: %+v, %v", d, err)
					}
					r = sends(t, "a.e.test:443", "GET", "/a/b")
					if d, err := e.Evaluate(context.Background(), &r); err != nil || d.Rule != "list" {
						t.Errorf("the request: %+v, %v", d, err)
					}
				}
			})
		}
	}
	all.Wait()
}

// TestLookingAheadLeavesThePolicyAsItWas asks again after OPA has worked on the
// modules.
func TestLookingAheadLeavesThePolicyAsItWas(t *testing.T) {
	e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte(gitHub)}}, rego.Options{Cached: -1, Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"api.github.com:443", "api.anthropic.com:443", "evil.test:443", "a.gist.github.com:443"}
	var first []policy.Decision
	for round := range 20 {
		for i, host := range hosts {
			d := evaluate(t, e, to(t, host))
			if round == 0 {
				first = append(first, d)
			} else if diff := cmp.Diff(first[i], d); diff != "" {
				t.Fatalf("round %d: %s", round, diff)
			}
		}
	}
}

// TestTheCacheTellsStagesApart asks one policy about the same destination at two
// stages at which the fields that it reads are the same, and the answer is not.
func TestTheCacheTellsStagesApart(t *testing.T) {
	opaque := to(t, "a.test:22")
	opaque.Protocol = policy.ProtocolOpaque
	resolved := to(t, "a.test:443")
	resolved.Destination.Addrs = []netip.Addr{netip.MustParseAddr("8.8.8.8")}
	plain := sends(t, "a.test:80", "GET", "/")
	plain.Via, plain.TLS, plain.Protocol = policy.ViaHTTP, nil, policy.ProtocolHTTP
	unseen := plain // the same in every part, but not known to be in clear
	unseen.Via, unseen.Protocol = policy.ViaConnect, policy.ProtocolUnseen
	for _, row := range []struct {
		name, rule    string
		first, second policy.Request
		differ        func(a, b policy.Decision) bool
	}{
		{
			"a hello that may come, and one that will not",
			`{"rule": "r"} if input.tls.sni == "a.test"`, to(t, "a.test:22"), opaque,
			func(a, b policy.Decision) bool { return a.Verdict == policy.Allow && b.Verdict == policy.Abstain },
		},
		{
			"the stage itself",
			`{"rule": "r"} if input.stage == "name"`, to(t, "a.test:443"), resolved,
			func(a, b policy.Decision) bool { return a.Verdict == policy.Inspect && b.Verdict == policy.Abstain },
		},
		{
			"a credential inside TLS, and in clear",
			`{"rule": "r", "inject": "token"} if input.destination.host == "a.test"`, unseen, plain,
			func(a, b policy.Decision) bool { return a.Inject == "token" && b.Inject == "" },
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, turned := range []bool{false, true} {
				e := load(t, "package egress\nallow contains "+row.rule)
				var a, b policy.Decision
				if turned {
					b, a = evaluate(t, e, row.second), evaluate(t, e, row.first)
				} else {
					a, b = evaluate(t, e, row.first), evaluate(t, e, row.second)
				}
				if !row.differ(a, b) {
					t.Errorf("turned round %v: %+v and %+v", turned, a, b)
				}
			}
		})
	}
}
