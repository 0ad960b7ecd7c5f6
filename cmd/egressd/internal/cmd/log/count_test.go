package log

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/clitest"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/egress/egresstest"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/ui"
)

const countedPolicy = `version: 1
allow:
  - "allowed.test:*"
  - "idle.test:*"
  - {host: looked-into.test, methods: [GET]}
ask: [asked.test]
unsafe_allow: ["127.0.0.1:*"]
`

// A counting is how many requests there were.
type counting struct{ Allowed, Refused, Names int64 }

// drive drives a gate as ways in do, and returns what its tally and its figures come to when all has ended.
func drive(t *testing.T, dir string, seed uint64) (tallied, counted counting, hosts map[string]int64) {
	hosts = map[string]int64{}
	synctest.Test(t, func(t *testing.T) {
		var tally egress.Tally
		gate := egresstest.OpenIn(t, dir, countedPolicy, egress.Config{Tally: &tally, Resolver: egresstest.Loopback{}})
		gate.Approvals.Open(true, 0)
		random, peer := rand.New(rand.NewPCG(seed, 1)), sandbox.Peer{Addr: netip.MustParseAddrPort("127.0.0.1:40000")}
		refused := func(err error) {
			if err != nil && !errors.As(err, new(*egress.Refusal)) {
				t.Fatal(err)
			}
		}
		for range 800 {
			if seed%2 == 1 && random.IntN(3) == 0 { // a person says yes to what waits
				for _, q := range gate.Approvals.Questions(t.Context(), ^uint64(0)).Questions {
					if id, _ := record.ParseID(q.ID); q.State == "pending" {
						if err := gate.Approvals.Answer(id, approvals.Answer{Yes: true, Lasts: 2 * time.Hour}); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			host := []string{"allowed.test", "denied.test", "other.test", "looked-into.test", "asked.test", "idle.test"}[random.IntN(6)]
			if random.IntN(3) > 0 {
				for _, kind := range []string{"A", "AAAA", "HTTPS", "TXT"}[:1+random.IntN(4)] {
					_, err := gate.Resolve(t.Context(), peer, policy.DNSQuery{Name: host, Type: kind})
					refused(err)
				}
			}
			if random.IntN(3) > 0 && host != "idle.test" {
				connect(t, gate, peer, host, random)
			}
			time.Sleep([]time.Duration{0, time.Millisecond, time.Second, time.Minute, time.Hour}[random.IntN(5)])
		}
		time.Sleep(2 * time.Minute)
		gate.Records.Settle()
		c := tally.Counts()
		tallied = counting{Allowed: int64(c.Requests), Names: int64(c.Names)}
		for _, d := range c.Denied {
			tallied.Refused += int64(d.Times)
			hosts[d.Host] += int64(d.Times)
		}
		for _, d := range gate.Records.Figures().Requests {
			switch {
			case d.Action != "allow":
				counted.Refused += d.Count
			case d.Via == "dns":
				counted.Names += d.Count
			default:
				counted.Allowed += d.Count
			}
		}
	})
	return tallied, counted, hosts
}

// connect opens a tunnel, and ends it in one of the ways in which tunnels end.
func connect(t *testing.T, gate *egress.Gate, peer sandbox.Peer, host string, random *rand.Rand) {
	f, err := gate.Open(t.Context(), peer, policy.Request{Via: policy.ViaConnect, Destination: policy.Destination{Host: host, Port: 443}})
	if err != nil {
		return
	}
	if host != "looked-into.test" {
		f.Close([]egress.End{{Outcome: "closed", Up: 7, Down: 9}, {Outcome: "http"}, {Outcome: "named"}, {Outcome: record.Outcome(policy.NetworkRefused)}}[random.IntN(4)])
		return
	}
	if err := f.Narrow(t.Context(), func(r *policy.Request) { r.TLS = &policy.ClientHello{ServerName: host} }); err != nil {
		t.Fatal(err)
	}
	if random.IntN(4) == 0 {
		f.Close(egress.End{Outcome: record.Outcome(policy.CertificateRefused)})
		return
	}
	for range random.IntN(4) {
		inner, err := f.Request(t.Context(), &policy.HTTPRequest{Method: []string{"GET", "POST"}[random.IntN(2)], Path: "/", BodySize: -1}, nil)
		if err == nil {
			inner.Close(egress.End{Outcome: "closed", Up: 100, Down: 200, Status: 200})
		}
	}
	f.Close(egress.End{Outcome: "closed"})
}

// TestAllReadersCountTheSame compares the tally of a run, the metrics, the commands, the API and the page on one log.
func TestAllReadersCountTheSame(t *testing.T) {
	for seed := range uint64(2) {
		dir := filepath.Join(t.TempDir(), "audit")
		want, figures, hosts := drive(t, dir, seed)
		if want.Allowed < 20 || want.Refused < 20 || want.Names < 20 {
			t.Fatalf("%+v is too little to compare", want)
		}
		same := func(who string, got counting) {
			t.Helper()
			if got != want {
				t.Errorf("seed %d, %s: %+v, and the tally has %+v", seed, who, got, want)
			}
		}
		if seed%2 == 0 {
			same("metrics", figures)
		} else if figures.Allowed != want.Allowed || figures.Names != want.Names || figures.Refused <= want.Refused { // what a person allowed later stays
			t.Errorf("seed %d, metrics: %+v, and the tally has %+v", seed, figures, want)
		}
		var summary logSummary
		command(t, &summary, "log", "--dir", dir, "--summary", "--json", "--top", "0")
		got, byHost := counting{summary.Allowed - summary.Names, summary.Denied + summary.Asked, summary.Names}, map[string]int64{}
		same("log --summary", got)

		got = counting{}
		for text := range strings.Lines(command(t, nil, "log", "by", "verdict,via,host", "--dir", dir, "--json", "--top", "0")) {
			var row byRow
			if err := json.Unmarshal([]byte(text), &row); err != nil {
				t.Fatal(err)
			}
			switch {
			case row.By["verdict"] != "allow":
				got.Refused += row.Count
				byHost[row.By["host"]] += row.Count
			case row.By["via"] == "dns":
				got.Names += row.Count
			default:
				got.Allowed += row.Count
			}
		}
		same("log by", got)
		if !maps.Equal(byHost, hosts) {
			t.Errorf("seed %d: log by has as refused %v, the tally %v", seed, byHost, hosts)
		}

		page := open(t, dir)
		got = counting{}
		for _, verdict := range []string{"allow", "deny", "ask"} {
			var api struct {
				Counts []struct {
					Value string
					Count int64
				}
			}
			page.json("/v1/counts?by=via&q=verdict:"+verdict, &api)
			for _, c := range api.Counts {
				switch {
				case verdict != "allow":
					got.Refused += c.Count
				case c.Value == "dns":
					got.Names += c.Count
				default:
					got.Allowed += c.Count
				}
			}
		}
		same("the API", got)
		var line struct {
			Timeline []struct{ Allowed, Denied, Asked int64 }
		}
		page.json("/v1/timeline?bars=1000", &line)
		got = counting{Names: want.Names}
		for _, m := range line.Timeline {
			got.Allowed, got.Refused = got.Allowed+m.Allowed, got.Refused+m.Denied+m.Asked
		}
		got.Allowed -= want.Names
		same("the timeline", got)
		got = counting{Allowed: page.figure("allow") - want.Names, Refused: page.figure("deny") + page.figure("ask"), Names: want.Names}
		same("the page", got)
	}
}

// command runs a command, and decodes what it prints into v, unless that is nil.
func command(t *testing.T, v any, words ...string) string {
	t.Helper()
	var out, errors bytes.Buffer
	if code := clitest.Run(newLog(), words, &out, &errors); code != 0 {
		t.Fatalf("%s: exit %d: %s", words, code, &errors)
	}
	if v != nil {
		if err := json.Unmarshal(out.Bytes(), v); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

// A browser has the page of a log open.
type browser struct {
	t      *testing.T
	client *http.Client
	at     *url.URL
}

func open(t *testing.T, dir string) *browser {
	t.Helper()
	s := ui.New(ui.Options{Dir: dir})
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	at, err := url.Parse(s.Link())
	if err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t, &http.Client{Jar: jar, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}}}, at}
	b.get(at.Path)
	for {
		var health struct {
			CaughtUp bool `json:"caught_up"`
		}
		if b.json("/v1/health", &health); health.CaughtUp {
			return b
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (b *browser) get(target string) []byte {
	b.t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://"+b.at.Host+target, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	answer, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		b.t.Fatalf("%s: %s, %v: %.300s", target, answer.Status, err, text)
	}
	return text
}

func (b *browser) json(target string, v any) {
	b.t.Helper()
	if err := json.Unmarshal(b.get(target), v); err != nil {
		b.t.Fatal(err)
	}
}

var figures = regexp.MustCompile(`<div class="figure (\w+)"><p>.*?</p><strong>([0-9\x{202f}]+)</strong>`)

// figure returns one of the large numbers of the view Now.
func (b *browser) figure(name string) int64 {
	b.t.Helper()
	for _, m := range figures.FindAllStringSubmatch(string(b.get("/")), -1) {
		if m[1] == name {
			n, err := strconv.ParseInt(strings.ReplaceAll(m[2], "\u202f", ""), 10, 64)
			if err != nil {
				b.t.Fatal(err)
			}
			return n
		}
	}
	b.t.Fatalf("the page has no figure %q", name)
	return 0
}
