package story

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
)

// TestTheStoryTellsOfOtherTries has a program be refused, and try what a program
// may try then.
func TestTheStoryTellsOfOtherTries(t *testing.T) {
	asked := opened("S", "www.evil.example", "deny")
	asked.Seq, asked.Dst.Addrs = 100, []string{"192.0.2.7"}
	asked.Process = &record.Process{Exe: "/usr/bin/curl"}
	other := func(change func(*record.Record)) *record.Record {
		r := opened("X", "www.evil.example", "deny")
		r.Seq, r.Process = 101, asked.Process
		r.Dst.Addrs = nil
		change(r)
		return r
	}
	host := func(name string) func(*record.Record) { return func(r *record.Record) { r.Dst.Host = name } }
	s := &Story{Flow: "S", Decision: asked.Decision, Decisive: asked, Records: []*record.Record{asked}}
	for want, change := range map[string]func(*record.Record){
		"the same again":                        func(*record.Record) {},
		"the same again, by socks5":             func(r *record.Record) { r.Via = "socks5" },
		"the same host, another port":           func(r *record.Record) { r.Dst.Port = 8443 },
		"an address of it, without its name":    host("192.0.2.7"),
		"an address instead of a name":          host("192.0.2.8"),
		"another name of the same domain":       host("cdn.evil.example"),
		"another destination":                   host("pastebin.example"),
		"another destination, by transparent":   func(r *record.Record) { r.Dst.Host, r.Via = "pastebin.example", "transparent" },
		"":                                      func(r *record.Record) { r.Dst = nil },
		"the same name, by dns":                 func(r *record.Record) { r.Dst, r.Via, r.DNS = nil, "dns", &record.DNS{Name: "www.evil.example"} },
		"another name of the same domain, by x": func(r *record.Record) { r.Dst.Host, r.Via = "x.evil.example", "x" },
	} {
		if got := s.relation(other(change), true); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	allowed := opened("S", "www.evil.example", "allow")
	s.Decisive, s.Decision = allowed, allowed.Decision
	if got := s.relation(other(host("pastebin.example")), true); got != "" {
		t.Errorf("after what was allowed: %q", got)
	}
	if got := s.relation(other(host("pastebin.example")), false); got != "another destination" {
		t.Errorf("a refusal before what was allowed: %q", got)
	}
}

// TestTheStoryKeepsWhatIsNear has a program try without end.
func TestTheStoryKeepsWhatIsNear(t *testing.T) {
	var all []*record.Record
	at := func(seconds int, flow string) {
		r := opened(flow, "a.test", "deny")
		r.Time = r.Time.Add(time.Duration(seconds) * time.Second)
		all = append(all, r)
	}
	at(-61, "TOOEARLY")
	for i := range 15 {
		at(i-30, fmt.Sprintf("B%02d", i))
	}
	at(0, "S")
	all = append(all, other("ELSE"))
	for i := range 15 {
		at(i+1, fmt.Sprintf("C%02d", i))
	}
	at(61, "TOOLATE")
	dir := timedLog(t, all)
	log, err := (&source.Source{Dir: dir}).Open()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s, err := Find(log, "S")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Link(log); err != nil {
		t.Fatal(err)
	}
	var flows []string
	for _, l := range s.Linked {
		flows = append(flows, l.Flow)
	}
	want := "B05 B06 B07 B08 B09 B10 B11 B12 B13 B14 C00 C01 C02 C03 C04 C05 C06 C07 C08 C09"
	if strings.Join(flows, " ") != want || s.Further != 10 {
		t.Errorf("%d further, linked are %s", s.Further, flows)
	}
}

// other is a refusal of another sandbox.
func other(flow string) *record.Record {
	r := opened(flow, "a.test", "deny")
	r.Sandbox = "web"
	return r
}
