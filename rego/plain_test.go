package rego_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	oparego "github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/tester"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// plainFolder writes what other tools need beside a policy.
func plainFolder(t *testing.T, sources []rego.Source) string {
	t.Helper()
	files, err := rego.Plain(sources)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// sourcesIn reads a folder of a policy.
func sourcesIn(t *testing.T, dir string) (sources []rego.Source) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.*"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s holds %d files, %v", dir, len(names), err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, rego.Source{Name: name, Text: text})
	}
	return sources
}

// TestExamplesUnderPlainOPA runs the tests of the example policies with OPA's own
// runner, which knows nothing of egressd, and wants the same tests to be green.
func TestExamplesUnderPlainOPA(t *testing.T) {
	folders, err := filepath.Glob("../examples/policies/*/policy")
	if err != nil || len(folders) < 3 {
		t.Fatalf("%d examples, %v", len(folders), err)
	}
	for _, folder := range folders {
		t.Run(filepath.Base(filepath.Dir(folder)), func(t *testing.T) {
			sources := sourcesIn(t, folder)
			here, err := rego.Options{}.Test(context.Background(), sources)
			if err != nil {
				t.Fatal(err)
			}
			results, err := tester.Run(context.Background(), folder, plainFolder(t, sources))
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				if !r.Pass() {
					t.Errorf("%s.%s: %v", r.Package, r.Name, r.Error)
				}
			}
			if len(results) == 0 || len(results) != len(here.Results) {
				t.Errorf("OPA runs %d tests, egressd %d", len(results), len(here.Results))
			}
		})
	}
}

// plainVerdict asks as "opa eval data.egress" does.
func plainVerdict(t *testing.T, folders []string, input map[string]any) policy.Verdict {
	t.Helper()
	results, err := oparego.New(oparego.Query("data.egress"), oparego.Load(folders, nil), oparego.Input(input)).Eval(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	sets, _ := results[0].Expressions[0].Value.(map[string]any)
	for name, verdict := range map[string]policy.Verdict{"deny": policy.Deny, "ask": policy.Ask, "allow": policy.Allow} {
		if members, _ := sets[name].([]any); len(members) > 0 && (name == "deny" || name == "ask" && empty(sets["deny"]) || empty(sets["deny"]) && empty(sets["ask"])) {
			return verdict
		}
	}
	return policy.Abstain
}

func empty(set any) bool {
	members, _ := set.([]any)
	return len(members) == 0
}

// TestPlainOPASaysTheSame asks both about the same requests, with a policy that calls
// the library by its short names, and built-ins that these hide.
func TestPlainOPASaysTheSame(t *testing.T) {
	const text = `package egress
allow contains {"rule": "hosts"} if host.any(input.destination.host, ["*.a.test", "b.test", "93.184.216.0/24"])
allow contains {"rule": "paths"} if { host.matches(input.destination.host, "api.test"); path.matches(input.http.path, "/v1/**"); input.http.method == "GET" }
allow contains {"rule": "net"} if { some address in input.destination.addresses; net.contains("151.101.0.0/16", address); net.cidr_is_valid("10.0.0.0/8") }
deny contains {"rule": "night"} if { input.destination.host == "day.test"; not time.between(input.time, "UTC", "06:00", "22:00") }
allow contains {"rule": "day"} if { input.destination.host == "day.test"; time.weekday(input.time) == "Friday" }
ask contains {"rule": "big"} if { input.http.body_size > 1000; path.any(input.http.path, ["/v1/up/*", "/put/**"]) }
deny contains {"rule": "canonical"} if host.canonical(input.destination.host) == "never.test"
`
	sources := []rego.Source{{Name: filepath.Join(t.TempDir(), "egress.rego"), Text: []byte(text)}}
	if err := os.WriteFile(sources[0].Name, sources[0].Text, 0o600); err != nil {
		t.Fatal(err)
	}
	folders := []string{sources[0].Name, plainFolder(t, sources)}
	e := load(t, text)
	const noon, night = 1795176000000000000, 1795129200000000000 // on Friday, 2026-11-20
	for _, row := range []struct {
		hostport, path string
		body           int64
		time           int64
		want           policy.Verdict
	}{
		{"x.a.test:443", "/", 0, noon, policy.Allow},
		{"a.test:443", "/", 0, noon, policy.Abstain},
		{"eviltest:443", "/", 0, noon, policy.Abstain},
		{"93.184.216.34:443", "/", 0, noon, policy.Allow},
		{"93.184.217.34:443", "/", 0, noon, policy.Abstain},
		{"api.test:443", "/v1/items", 0, noon, policy.Allow},
		{"api.test:443", "/v2/items", 0, noon, policy.Abstain},
		{"api.test:443", "/v1/up/1", 5000, noon, policy.Ask},
		{"151.101.1.69:443", "/", 0, noon, policy.Allow},
		{"day.test:443", "/", 0, noon, policy.Allow},
		{"day.test:443", "/", 0, night, policy.Deny},
		{"never.test:443", "/v1/up/1", 5000, noon, policy.Deny},
	} {
		r := sends(t, row.hostport, "GET", row.path)
		r.HTTP.BodySize, r.Time = row.body, time.Unix(0, row.time)
		r.Destination.Addrs = nil
		destination := map[string]any{"host": r.Destination.Host, "port": 443}
		if r.Destination.Addr.IsValid() {
			destination["addresses"] = []string{r.Destination.Host}
		} else {
			r.Destination.Addrs = []netip.Addr{netip.MustParseAddr("1.1.1.1")}
			destination["addresses"] = []string{"1.1.1.1"}
		}
		input := map[string]any{"destination": destination, "time": row.time, "http": map[string]any{"method": "GET", "path": row.path, "body_size": row.body}}
		here, there := evaluate(t, e, r).Verdict, plainVerdict(t, folders, input)
		if here != row.want || there != row.want {
			t.Errorf("%s%s: egressd says %v, OPA %v, want %v", row.hostport, row.path, here, there, row.want)
		}
	}
}

// TestPlainNamesAreThoseThatAreUsed has packages with and without imports.
func TestPlainNamesAreThoseThatAreUsed(t *testing.T) {
	files, err := rego.Plain([]rego.Source{
		{Name: "a.rego", Text: []byte("package egress\nallow contains {\"rule\": \"a\"} if net.any([\"10.0.0.0/8\"], input.destination.addresses)")},
		{Name: "b.rego", Text: []byte("package egress[\"my team\"]\nimport data.egressd.host\nallow contains {\"rule\": \"a\"} if { host.matches(input.destination.host, \"a.test\"); path.matches(input.http.path, \"/\") }")},
		{Name: "c.rego", Text: []byte("package other\nimport data.egressd.host\nx if host.matches(\"a.test\", \"a.test\")")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(files["short_egress.rego"]); !strings.Contains(text, "net.any(") || !strings.Contains(text, "net.cidr_contains(") || strings.Contains(text, "host") {
		t.Errorf("package egress gets\n%s", text)
	}
	if text := string(files["short_egress__my_team__.rego"]); !strings.Contains(text, "package egress[\"my team\"]") || !strings.Contains(text, "path.matches(") || strings.Contains(text, "host.matches(") {
		t.Errorf("package egress[\"my team\"] gets\n%s", text)
	}
	if _, there := files["short_other.rego"]; there {
		t.Error("package other gets names that it does not use")
	}
	_, err = rego.Plain([]rego.Source{{Name: "a.rego", Text: []byte("package egress\nx if time.between(time.now_ns(), \"UTC\", \"06:00\", \"22:00\")")}})
	if err == nil || !strings.Contains(err.Error(), "import data.egressd.time") {
		t.Errorf("a clock beside the library's time: %v", err)
	}
}
