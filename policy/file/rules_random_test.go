package file

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"pgregory.net/rapid"
)

// anyLines draws lists over few hosts, ports, methods and paths, so that they
// meet often. Each line can decide.
func anyLines(t *rapid.T) []string {
	pattern := rapid.SampledFrom([]string{
		"a.test", "b.a.test", "c.b.a.test", `"*.test"`, `"*.a.test"`, `"*.b.a.test"`, `"*"`, "93.184.0.0/16", "93.184.216.34",
	})
	port := rapid.SampledFrom([]string{"", ":443", ":*", ":80-500"})
	condition := rapid.SampledFrom([]string{"", ", methods: [GET]", ", methods: [POST]", ", paths: [/x/**]", ", methods: [GET], paths: [/y]",
		", paths: [/X/**], paths_fold: true", ", headers: {x-a: [\"1*\"]}", ", query: {q: [\"1\"]}", ", query: {q: [\"1\"]}, query_only: true", ", query_only: true", ", git: {repos: [x/y]}", ", methods: [GET], headers: {x-a: [\"1*\"]}"})
	line := rapid.Custom(func(t *rapid.T) string {
		host := strings.Trim(pattern.Draw(t, "pattern"), `"`) + port.Draw(t, "port")
		list := rapid.SampledFrom([]string{"allow", "deny", "ask"}).Draw(t, "list")
		more := condition.Draw(t, "condition")
		if list == "allow" && rapid.Bool().Draw(t, "upgrade") {
			more += ", upgrade: websocket"
		}
		if list == "allow" && !strings.ContainsAny(strings.TrimSuffix(host, ":*"), "*/") && rapid.Bool().Draw(t, "inject") {
			more += ", inject: {header: X-Key, env: KEY}"
		}
		return fmt.Sprintf(`%s: {host: "%s"%s}`, list, host, more)
	})
	return deciding(nil, rapid.SliceOfN(line, 0, 8).Draw(t, "lines"))
}

// deciding adds those lines to some with which each can decide.
func deciding(some, more []string) []string {
	for _, line := range more {
		with := append(slices.Clip(some), line)
		if _, err := Parse("f", []byte("version: 1\n"+fileOf(with))); err == nil {
			some = with
		}
	}
	return some
}

// fileOf groups lines like "allow: {…}" into lists.
func fileOf(lines []string) string {
	lists := make(map[string][]string)
	for _, line := range lines {
		list, item, _ := strings.Cut(line, ": ")
		lists[list] = append(lists[list], item)
	}
	var text string
	for _, list := range []string{"allow", "deny", "ask"} {
		text += list + ": [" + strings.Join(lists[list], ", ") + "]\n"
	}
	return text
}

var anyAsk = rapid.SampledFrom([]string{
	"a.test", "b.a.test:80", "d.c.b.a.test", "x.test:22", "93.184.216.34", "93.184.1.1:443",
	"GET https://b.a.test/x/1", "POST https://a.test/y", "GET https://93.184.216.34/y", "POST http://c.b.a.test/y//x",
	"GET https://a.test/X/1?q=1", "GET https://b.a.test/x?q=1;", "GET https://a.test/X/y/info/refs?service=git-upload-pack", "POST http://a.test/?q=2&r=1", "b.a.test => 93.184.216.34 c.b.a.test", "GET https://a.test/y => 93.184.216.34",
})

func TestTheOrderOfLinesNeverMatters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := anyLines(t)
		r := asking(t, anyAsk.Draw(t, "ask"))
		first := compiled(t, fileOf(lines), inspecting).Decide(context.Background(), r)
		second := compiled(t, fileOf(rapid.Permutation(lines).Draw(t, "other order")), inspecting).Decide(context.Background(), r)
		if first.Verdict != second.Verdict || first.Class != second.Class || first.Needs != second.Needs {
			t.Fatalf("%s became %s", saying(first), saying(second))
		}
	})
}

func TestADenyOfThatVeryHostAndPortBeatsEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := asking(t, anyAsk.Draw(t, "ask"))
		exact := policy.Destination{Host: r.Destination.Host, Addr: r.Destination.Addr, Port: r.Destination.Port}.String()
		p := compiled(t, fileOf(deciding([]string{fmt.Sprintf(`deny: {host: "%s"}`, exact)}, anyLines(t))), inspecting)
		if d := p.Decide(context.Background(), r); d.Verdict != policy.Deny {
			t.Fatalf("%s is %s", exact, saying(d))
		}
	})
}

func TestTheFirstLookPromisesNothingThatIsKeptBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := anyLines(t)
		r := asking(t, rapid.SampledFrom([]string{"GET https://b.a.test/x/1", "POST https://a.test/y", "GET https://93.184.216.34/y", "POST http://c.b.a.test/y//x", "GET https://a.test/X/1?q=1", "GET https://b.a.test/x?q=1;", "GET https://a.test/X/y/info/refs?service=git-upload-pack"}).Draw(t, "ask"))
		r.HTTP.Header = rapid.SampledFrom([]map[string][]string{nil, {"x-a": {"12"}}, {"x-a": {"1", "1"}}}).Draw(t, "header")
		r.HTTP.Upgrade = rapid.Bool().Draw(t, "websocket")
		p := compiled(t, fileOf(lines), inspecting)
		seen := p.Decide(context.Background(), r)
		unseen := *r
		unseen.HTTP = nil
		before := p.Decide(context.Background(), &unseen)
		switch {
		case before.Verdict == policy.Allow && seen.Verdict != policy.Allow:
			t.Fatalf("allowed unseen, then %s", saying(seen))
		case before.Verdict <= policy.Ask && seen.Verdict == policy.Allow:
			t.Fatalf("%s unseen, then allowed", saying(before))
		case before.Inject != "", before.Verdict == policy.Allow && seen.Inject != "" && r.Via != policy.ViaHTTP:
			t.Fatalf("%s gives %q unseen, then %q", saying(before), before.Inject, seen.Inject)
		}
	})
}
