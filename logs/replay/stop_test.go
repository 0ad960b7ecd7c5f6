package replay

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// TestTheNarrowestRuleThatWouldHaveStoppedIt has a row for each kind of course.
func TestTheNarrowestRuleThatWouldHaveStoppedIt(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	request := func(program, host, method, path string, up int64) *record.Record {
		r := &record.Record{
			Kind: record.KindRequest, Time: at, Flow: "F", Sandbox: "ci", Via: "connect", Dst: &record.Destination{Host: host, Port: 443, Addrs: []string{"93.184.216.34"}},
			HTTP: &record.HTTP{Method: method, Path: path}, Process: &record.Process{Exe: "/usr/bin/" + program}, Decision: &record.Decision{Action: "allow", Rule: "r", Layer: "user"}, Bytes: &record.Bytes{Up: up},
		}
		if method == "" {
			r.Kind, r.HTTP, r.TLS = record.KindOpen, nil, &record.TLS{SNI: host}
		}
		return r
	}
	name := func(program, name string) *record.Record {
		r := request(program, name, "", "", 0)
		r.Kind, r.Via, r.Dst, r.TLS, r.Bytes, r.DNS = record.KindDNS, "dns", nil, nil, nil, &record.DNS{Name: name, Type: "TXT"}
		return r
	}
	denied := request("node", "denied.test", "POST", "/", 0)
	denied.Decision = &record.Decision{Action: "deny", Class: "default-deny"}
	log := []*record.Record{
		request("node", "api.example.com", "GET", "/a", 100), request("node", "api.example.com", "POST", "/a", 90_000), request("node", "api.example.com", "POST", "/b", 90_000),
		request("curl", "api.example.com", "GET", "/a", 100), request("curl", "api.example.com", "POST", "/a", 300),
		request("node", "api.example.org", "", "", 70_000), request("git", "api.example.org", "", "", 100), request("git", "www.example.org", "", "", 100),
		request("node", "a.example.net", "", "", 9), request("node", "b.example.net", "", "", 9), request("node", "c.example.net", "", "", 9), request("node", "d.example.net", "", "", 9), request("git", "e.example.net", "", "", 9),
		name("node", "x1.example.info"), name("node", "x2.example.info"), name("git", "www.example.info"),
		request("node", "api.github.com", "POST", "/gists", 5000), request("node", "api.github.com", "POST", "/repos/a/b", 500),
		denied,
	}
	private := request("git", "inside.example.org", "", "", 100) // another rule opened its address
	private.Dst.Addrs = []string{"10.0.0.7"}
	log = append(log, private)
	for i := range 20 {
		log = append(log, request("node", "large.test", "", "", 3000), request("git", "large.test", "", "", 4000))
		if i%2 == 0 {
			log = append(log, request("git", "daily.test", "", "", 9000))
		}
	}
	log = append(log, request("node", "large.test", "", "", 50_000_000), request("node", "shared.test", "", "", 500))
	for range 400 {
		log = append(log, request("node", "daily.test", "", "", 10_000))
	}
	another := request("node", "shared.test", "", "", 500)
	another.Sandbox = "web"
	log = append(log, another)
	read := func(do func(*record.Record)) error {
		for _, r := range log {
			do(r.Clone())
		}
		return nil
	}
	var courses []Course
	for _, destination := range []string{"example.com", "example.org", "example.net", "example.info", "api.github.com/gists", "denied.test", "", "nowhere.test", "large.test", "daily.test", "shared.test"} {
		courses = append(courses, Course{"ci", "node", destination})
	}
	found, err := Stops(t.Context(), courses, read)
	if err != nil {
		t.Fatal(err)
	}
	for destination, want := range map[string][]string{
		// Each is the part of a policy, what it stops, lets pass and denies of others, and who these are.
		"example.com": {
			`budgets: [{hosts: ["api.example.com:443"], up: 50kB, per: 24h}] 2 1 0 []`,
			`deny: [{host: "api.example.com:443", methods: [POST], paths: ["/a", "/b"]}] 2 1 1 [ci/curl]`, `deny: [{host: "api.example.com:443", methods: [POST]}] 2 1 1 [ci/curl]`,
			`deny: ["api.example.com:443"] 3 0 2 [ci/curl]`, `deny: ["example.com", "*.example.com"] 3 0 2 [ci/curl]`,
		},
		"example.org":          {`budgets: [{hosts: ["api.example.org:443"], up: 50kB, per: 24h}] 1 0 0 []`, `deny: ["api.example.org:443"] 1 0 1 [ci/git]`, `deny: ["example.org", "*.example.org"] 1 0 3 [ci/git]`},
		"example.net":          {`deny: ["example.net", "*.example.net"] 4 0 1 [ci/git]`},
		"example.info":         {`deny: ["example.info", "*.example.info"] 2 0 1 [ci/git]`},
		"api.github.com/gists": {`deny: [{host: "api.github.com:443", methods: [POST], paths: ["/gists"]}] 1 0 0 []`, `deny: ["api.github.com:443"] 1 0 1 [ci/node]`, `deny: ["api.github.com", "*.api.github.com"] 1 0 1 [ci/node]`},
		"denied.test":          nil,
		"":                     nil,
		// One request is larger by far than all others, here and of others.
		"large.test": {`allow: [{host: "large.test:443", max_bytes_up: 500kB}] 1 20 0 []`, `budgets: [{hosts: ["large.test:443"], up: 200kB, per: 24h}] 1 20 0 []`, `deny: ["large.test:443"] 21 0 20 [ci/git]`, `deny: ["large.test", "*.large.test"] 21 0 20 [ci/git]`},
		// Many small ones are more than anybody sends in a day.
		"daily.test": {`budgets: [{hosts: ["daily.test:443"], up: 200kB, per: 24h}] 389 11 0 []`, `deny: ["daily.test:443"] 400 0 10 [ci/git]`, `deny: ["daily.test", "*.daily.test"] 400 0 10 [ci/git]`},
		// Another sandbox needs the host.
		"shared.test": {
			`ci: deny: ["shared.test:443"] 1 0 0 []`, `ci: deny: ["shared.test", "*.shared.test"] 1 0 0 []`,
			`deny: ["shared.test:443"] 1 0 1 [web/node]`, `deny: ["shared.test", "*.shared.test"] 1 0 1 [web/node]`,
		},
	} {
		stop := found[Course{"ci", "node", destination}]
		var got []string
		for _, one := range append([]Tried{stop.Tried}, stop.Wider...) {
			if one.Policy == "" {
				continue
			}
			where := ""
			if one.Sandbox != "" {
				where = one.Sandbox + ": "
			}
			got = append(got, fmt.Sprint(where, one.Policy, " ", one.Stopped, " ", one.Left, " ", one.Others, " ", one.Who))
			f, err := file.Parse("proposed", []byte("version: 1\n"+one.Policy+"\n"))
			if err == nil {
				_, err = f.Compile(file.Environment{Inspection: true})
			}
			if err != nil {
				t.Errorf("%s is no part of a policy file: %v", one.Policy, err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", destination, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for _, destination := range []string{"denied.test", ""} {
		if denied := found[Course{"ci", "node", destination}]; denied.Refused != 1 || denied.Why != "default-deny" {
			t.Errorf("of what was refused: %+v", denied)
		}
	}
	if nowhere := found[Course{"ci", "node", "nowhere.test"}]; nowhere != nil {
		t.Errorf("of what nobody did: %+v", nowhere)
	}
}

// TestPathsOutliveTheirLines reads a log as the commands do: the strings of a record are gone once it is counted.
func TestPathsOutliveTheirLines(t *testing.T) {
	dir := t.TempDir()
	log := `{"v":1,"seq":0,"time":"2026-11-20T09:00:00.000000Z","kind":"start","note":"started"}` + "\n"
	for i := range 5 {
		log += fmt.Sprintf(`{"v":1,"seq":%d,"time":"2026-11-20T09:00:0%d.000000Z","kind":"request","flow":"01KB00000%d","sandbox":"ci","via":"transparent","dst":{"host":"example.com","port":80},"http":{"method":"POST","path":"/sync"},"process":{"pid":1,"exe":"/usr/bin/node"},"decision":{"action":"allow","rule":"r","layer":"user"}}
{"v":1,"seq":%d,"time":"2026-11-20T09:00:0%d.500000Z","kind":"close","flow":"01KB00000%d","sandbox":"ci","bytes":{"up":98000,"down":150},"duration_ms":9}
`, 2*i+1, i, i, 2*i+2, i, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	course := Course{"ci", "node", "example.com"}
	found, err := Stops(t.Context(), []Course{course}, func(do func(*record.Record)) error {
		lines, err := source.At(dir, 0)
		if err != nil {
			return err
		}
		defer lines.Close()
		return lines.Decisions(&logs.Filter{}, do)
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := `deny: [{host: "example.com:80", methods: [POST], paths: ["/sync"]}]`; found[course] == nil || found[course].Policy != want {
		t.Errorf("%+v, want %s", found[course], want)
	}
}
