package policy

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func mustHosts(t testing.TB, text string) *HostList {
	t.Helper()
	l, err := ReadHostList("hosts.txt", strings.NewReader(text), false)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestARuleInAFileDecidesAsOneInTheList draws rules, and asks for the same verdict wherever each is written.
func TestARuleInAFileDecidesAsOneInTheList(t *testing.T) {
	host := rapid.SampledFrom([]string{
		"abyz.x.test", "x.test", "a*.x.test", "*z.x.test", "*yz.x.test", "*{1}.x.test", "*{1}.test", "*.x.test", "*.test", "*",
		"93.184.216.34", "93.184.216.0/24", "93.0.0.0/8", "0.0.0.0/0", "2606:2800::1", "2606:2800::/32", "::/0",
	})
	port := rapid.SampledFrom([]string{"", "", ":443", ":22", ":22-443", ":*"})
	destination := rapid.SampledFrom([]string{
		"abyz.x.test", "z.x.test", "q.abyz.x.test", "x.test", "93.184.216.34", "93.184.217.1", "94.0.0.1", "[2606:2800::1]", "[2606:2800::2]", "[2001::1]",
	})
	rapid.Check(t, func(t *rapid.T) {
		own, mixed := newIndex(), newIndex()
		texts := map[Verdict]string{}
		for i := range rapid.IntRange(1, 10).Draw(t, "rules") {
			at := host.Draw(t, "host")
			if p := port.Draw(t, "port"); strings.Contains(at, ":") && p != "" {
				at = "[" + at + "]" + p
			} else {
				at += p
			}
			p, err := ParsePattern(at)
			if err != nil {
				t.Fatal(err)
			}
			effect := rapid.SampledFrom([]Verdict{Deny, Allow}).Draw(t, "effect")
			r := Rule{Pattern: p, ID: fmt.Sprint("r", i)}
			own.add(p, r.compile(effect, false))
			if rapid.Bool().Draw(t, "in a file") {
				texts[effect] += at + "\n"
			} else {
				mixed.add(p, r.compile(effect, false))
			}
		}
		for effect, text := range texts {
			hosts, err := ReadHostList("hosts.txt", strings.NewReader(text), false)
			if err != nil {
				t.Fatal(err)
			}
			mixed.files = append(mixed.files, ListedHosts{ID: effect.String() + "_file[0]", Effect: effect, Hosts: hosts})
		}
		own.finish()
		mixed.finish()
		d, err := ParseDestination(destination.Draw(t, "to") + rapid.SampledFrom([]string{":22", ":443", ":8443"}).Draw(t, "at"))
		if err != nil {
			t.Fatal(err)
		}
		want, err1 := (&rules{own: own}).Evaluate(t.Context(), &Request{Destination: d})
		got, err2 := (&rules{own: mixed}).Evaluate(t.Context(), &Request{Destination: d})
		if err1 != nil || err2 != nil || got.Verdict != want.Verdict {
			t.Fatalf("%s: %s by %s, want %s by %s", d, got.Verdict, got.Rule, want.Verdict, want.Rule)
		}
		length := 0
		for b := mixed.find(d.Host, d.Addr, 0, ""); b != nil; b = b.next {
			length += len(b.rules)
		}
		if length > mixed.longest() {
			t.Fatalf("%d rules hold %s, and the longest chain is said to have %d", length, d, mixed.longest())
		}
	})
}

func TestALineIsNamedByItsNumber(t *testing.T) {
	var text strings.Builder
	for i := range 3000 { // of several strides
		fmt.Fprintf(&text, "# comment %d\n\n  H%d.test \t# here\r\n", i, i)
	}
	text.WriteString("last.test:8443") // without an end
	l := mustHosts(t, text.String())
	for i := range 3000 {
		lines := 0
		l.each(fmt.Appendf(nil, "h%d.test", i), func(ports portSet, line int) {
			if lines++; line != 3*i+3 || ports != (portSet{}) {
				t.Fatalf("h%d.test is in line %d, ports %s", i, line, ports)
			}
		})
		if lines != 1 {
			t.Fatalf("h%d.test is in %d lines", i, lines)
		}
	}
	l.each([]byte("last.test"), func(ports portSet, line int) {
		if line != 9001 || ports != (portSet{8443, 8443}) {
			t.Errorf("last.test: line %d, ports %s", line, ports)
		}
	})
	if l.Len() != 3001 {
		t.Errorf("%d patterns", l.Len())
	}
}

func TestAFileOfHostsIsRefusedWithItsLine(t *testing.T) {
	var ranges strings.Builder
	for i := range maxSame + 1 {
		fmt.Fprintf(&ranges, "a.test:%d\n", i+1)
	}
	for _, row := range []struct{ text, want string }{
		{"", "hosts.txt:1:1: the file has no pattern"},
		{"# nothing\n\n", "hosts.txt:1:1: the file has no pattern"},
		{"a.test\nhttps://b.test/\n", `hosts.txt:2:1: "https://b.test/" is not a pattern: `},
		{"a.test b.test\n", "hosts.txt:1:1: "},
		{"a.test#b\n", "hosts.txt:1:1: "},
		{"a.test\n\x00\n", "hosts.txt:2:1: "},
		{"a.test\nlocalhost\n", "hosts.txt:2:1: localhost is not public; write it under allow in the policy"},
		{"10.0.0.0/8\n", "hosts.txt:1:1: 10.0.0.0/8 is not public"},
		{"a.test\n" + strings.Repeat("b", bufioMost) + "\n", "hosts.txt:2:1: the line is longer than"},
		{ranges.String(), fmt.Sprintf("hosts.txt:%d:1: a.test stands there with %d other ports", maxSame+1, maxSame)},
		{strings.Repeat("!\n", 100), "hosts.txt:20:1: "},
	} {
		l, err := ReadHostList("hosts.txt", strings.NewReader(row.text), true)
		var wrong FileError
		if !errors.As(err, &wrong) || l != nil || !strings.HasPrefix(wrong[len(wrong)-1].String(), row.want) {
			t.Errorf("%.40q: %v, want %s", row.text, err, row.want)
		}
	}
	if _, err := ReadHostList("hosts.txt", strings.NewReader("localhost\n10.0.0.0/8\n"), false); err != nil {
		t.Errorf("a deny of what is not public: %v", err)
	}
	l, err := ReadHostList("hosts.txt", strings.NewReader("a.example\n*.com\n"), true)
	if err != nil || len(l.Doubts()) != 1 || l.Doubts()[0].Line != 2 {
		t.Errorf("%v, %v", l.Doubts(), err)
	}
}

const bufioMost = 64 << 10

func TestTheDigestCoversFilesOfHosts(t *testing.T) {
	digest := func(id, text string) string {
		return Assemble(Parts{Lists: Lists{HostLists: []ListedHosts{{ID: id, Effect: Deny, Hosts: mustHosts(t, text)}}}}).Digest()
	}
	first := digest("deny_file[0]", "a.test\n")
	if first != digest("deny_file[0]", "A.test # the same\n") {
		t.Error("the same patterns have another digest")
	}
	if first == digest("deny_file[0]", "b.test\n") || first == digest("deny_file[0]", "a.test:*\n") || first == digest("allow_file[0]", "a.test\n") {
		t.Error("other patterns have the same digest")
	}
}

// manyHosts returns n different names, a line each.
func manyHosts(n int) []byte {
	var text bytes.Buffer
	for i := range n {
		fmt.Fprintf(&text, "host-%d.of-%d.example\n", i, i%977)
	}
	return text.Bytes()
}

func TestAMillionNamesTakeLittleMemory(t *testing.T) {
	text := manyHosts(1_000_000)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	l, err := ReadHostList("hosts.txt", bytes.NewReader(text), false)
	if err != nil || l.Len() != 1_000_000 {
		t.Fatal(err)
	}
	took := heap() - before
	if took > 64<<20 {
		t.Errorf("%d MiB for %d MiB of names", took>>20, len(text)>>20)
	}
	t.Logf("%.1f MiB for %.1f MiB of names", float64(took)/(1<<20), float64(len(text))/(1<<20))
	runtime.KeepAlive(l)
	runtime.KeepAlive(text)
}

func BenchmarkDecideByAFileOfHosts(b *testing.B) {
	for _, n := range []int{10, 10_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ix := newIndex()
			ix.files = []ListedHosts{{ID: "deny_file[0]", Effect: Deny, Hosts: mustHosts(b, string(manyHosts(n)))}}
			ix.finish()
			rs := &rules{own: ix}
			r := &Request{Destination: Destination{Host: "host-7.of-7.example", Port: 443}}
			b.ReportAllocs()
			for b.Loop() {
				if d, err := rs.Evaluate(b.Context(), r); err != nil || d.Class != RuleDeny {
					b.Fatal(d, err)
				}
			}
		})
	}
}
