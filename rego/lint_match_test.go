package rego_test

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/rego"
)

// lintRules are what the conditions below call.
const lintRules = `
is_ours(h) if endswith(h, "github.com")
ends(h, suffix) if endswith(h, suffix)
the_host := input.destination.host
shouted := upper(input.destination.host)
ours := "github.com"
hosts := {"github.com:443"}
labels(h) := split(h, ".")
table := {"x": {"GET", "post"}}
named := {"a.test": 1, "b.test:443": 2}
good(h) if host.matches(h, "*.github.com")
`

// TestLintByMeaning has the same mistakes written in many ways, and what is right beside them.
func TestLintByMeaning(t *testing.T) {
	for _, row := range []struct{ condition, want string }{
		// hosts of others
		{`contains(input.destination.host, "github.com")`, "host.matches"},
		{`startswith(input.destination.host, "github")`, "host.matches"},
		{`startswith(input.destination.host, "10.")`, "net.any"},
		{`indexof(input.destination.host, "github.com") >= 0`, "host.matches"},
		{`count(indexof_n(input.destination.host, "github.com")) > 0`, "host.matches"},
		{`glob.match("*github.com", [], input.destination.host)`, "host.matches"},
		{`glob.match("**github.com", ["."], input.destination.host)`, "host.matches"},
		{`glob.match("github.*", ["."], input.destination.host)`, "host.matches"},
		{`glob.match("*.github.com", ["."], input.destination.host)`, ""},
		{`endswith(input.destination.host, data.suffix)`, "evilgithub.com"},
		{`endswith(input.destination.host, data.dotted)`, ""},
		{`strings.any_suffix_match(input.destination.host, ["github.com", ".a.test"])`, "evilgithub.com"},
		{`strings.any_suffix_match(input.destination.host, data.suffixes)`, "evilgithub.com"},
		{`strings.any_suffix_match(input.destination.host, ".github.com")`, ""},
		{`strings.any_prefix_match(input.destination.host, {"api.github"})`, "host.matches"},
		{`trim_suffix(input.destination.host, "github.com") != input.destination.host`, "evilgithub.com"},
		{`count(split(input.destination.host, "github.com")) > 1`, "host.matches"},
		{`replace(input.destination.host, "github.com", "") != input.destination.host`, "host.matches"},
		{`strings.count(input.destination.host, "github.com") > 0`, "host.matches"},
		{`count(regex.find_n("github.com", input.destination.host, -1)) > 0`, "not anchored"},
		{"regex.match(`^api.github.com$`, input.destination.host)", `"[.]"`},
		{"regex.match(`^.*github[.]com$`, input.destination.host)", "host.matches"},
		{"regex.match(`^(.*)github[.]com$`, input.destination.host)", "host.matches"},
		{"regex.match(`^[a-z]+[.]github[.]com$`, input.destination.host)", ""},
		{"regex.match(`^(.*[.])?github[.]com$`, input.destination.host)", ""},
		{`substring(input.destination.host, 4, -1) == "github.com"`, "host.matches"},
		{`startswith(strings.reverse(input.destination.host), "moc.buhtig")`, "host.matches"},
		{`contains(input.destination.host, ":")`, ""},
		{`contains(input.http.path, "github.com")`, ""},
		{`labels(input.destination.host)[0] == "api"`, ""},

		// through variables, functions, rules and data
		{`{ h := input.destination.host; g := h; endswith(g, "github.com") }`, "evilgithub.com"},
		{`{ d := input.destination; endswith(d.host, "github.com") }`, "evilgithub.com"},
		{`{ s := "github.com"; endswith(input.destination.host, s) }`, "evilgithub.com"},
		{`{ some s in ["github.com", ".a.test"]; endswith(input.destination.host, s) }`, "evilgithub.com"},
		{`{ some s in data.suffixes; endswith(input.destination.host, s) }`, "evilgithub.com"},
		{`is_ours(input.destination.host)`, "3:27: hosts that only end like it"},
		{`is_ours(input.http.path)`, ""},
		{`ends(input.destination.host, "github.com")`, "evilgithub.com"},
		{`ends(input.destination.host, ".github.com")`, ""},
		{`endswith(the_host, ours)`, "evilgithub.com"},
		{`good(the_host)`, ""},
		{`{ [h, _] := [input.destination.host, 1]; endswith(h, "github.com") }`, "evilgithub.com"},

		// constants that no field equals
		{`input.destination.host == "github.com:443"`, `write "github.com", and compare input.destination.port`},
		{`input.destination.host == "*.github.com"`, `host.matches(input.destination.host, "*.github.com")`},
		{`input.destination.host == "https://github.com"`, "URL"},
		{`input.destination.host == "github.com."`, `write "github.com"`},
		{`input.destination.host == "[2001:db8::1]"`, "2001:db8::1"},
		{`input.destination.host in hosts`, "have no port"},
		{`input.destination.host in data.suffixes`, `data.suffixes has ".a.test"`},
		{`input.destination.host == data.with_port`, "have no port"},
		{`the_host == "GitHub.com"`, `write "github.com"`},
		{`shouted == "GITHUB.COM"`, ""},
		{`input.destination.registrable == "api.github.com"`, `the registered domain is "github.com"`},
		{`input.destination.registrable == "github.com"`, ""},
		{`input.http.method == "get"`, `write "GET"`},
		{`input.http.method in {"GET", "head"}`, `write "HEAD"`},
		{`lower(input.http.method) == "get"`, ""},
		{`input.http.method in data.verbs`, `"POST"`},
		{`input.http.path == "repos"`, "slash"},
		{`input.http.path == "/repos/*"`, "path.matches"},
		{`input.http.path == "/repos?q=1"`, "no query"},
		{`input.http.path == "/repos"`, ""},
		{`input.stage == "request"`, "one of name, address"},
		{`input.via == "https"`, "one of connect"},
		{`input.dns.type == "txt"`, `write "TXT"`},

		{`table["x"][input.http.method]`, `write "POST"`},
		{`named[input.destination.host]`, "have no port"},
		{`data.by_host[input.destination.host]`, `data.by_host has "B.test"`},
		{`{ h := the_host; data.by_host[h] == 1 }`, `"B.test"`},
		{`object.get(data.by_host, input.destination.host, 0) == 1`, `"B.test"`},
		{`upper(input.http.method) == "get"`, `upper never returns this; write "GET"`},
		{`lower(input.http.path) == "/Repos"`, `write "/repos"`},

		// headers
		{`object.get(input.http, ["headers", "User-Agent"], []) == []`, `write "user-agent"`},
		{`object.get(input, ["http", "headers", "User-Agent"], []) == []`, `write "user-agent"`},
		{`{ some name, _ in input.http.headers; name == "User-Agent" }`, `write "user-agent"`},
		{`input.http.headers["User-Agent"][0] == "x"`, `write "user-agent"`},
		{`object.get(input.http.headers, "User-Agent", [""])[0] == "x"`, `write "user-agent"`},
		{`"User-Agent" in object.keys(input.http.headers)`, `write "user-agent"`},
		{`{ some name in ["X-Team"]; input.http.headers[name] }`, `write "x-team"`},
		{`input.http.headers["Authorization"]`, "a credential"},
		{`input.http.headers["user-agent"][0] == "x"`, ""},
	} {
		text := "package egress\nallow contains {\"rule\": \"r\"} if " + row.condition + lintRules
		sources := []rego.Source{
			{Name: "egress.rego", Text: []byte(text)},
			{Name: "lists.json", Text: []byte(`{"suffix": "github.com", "dotted": ".github.com", "suffixes": [".a.test", "github.com"], "with_port": "github.com:443", "verbs": ["GET", "post"], "by_host": {"a.test": 1, "B.test": 2}}`)},
		}
		if err := (rego.Options{}).CheckTests(sources); err != nil {
			t.Fatalf("%s: %v", row.condition, err)
		}
		said := ""
		for _, p := range rego.Lint(sources) {
			said += p.String() + "\n"
		}
		if (said == "") != (row.want == "") || !strings.Contains(said, row.want) || strings.Count(said, "\n") > 1 {
			t.Errorf("%s: %q, want %q", row.condition, said, row.want)
		}
	}
}

// TestLintLeavesWideDenials: a deny that begins like many hosts refuses much, and lets nothing of others pass.
func TestLintLeavesWideDenials(t *testing.T) {
	for text, want := range map[string]bool{
		`deny contains {"rule": "d"} if contains(input.destination.host, "tracker")`:                            false,
		`deny contains {"rule": "d"} if startswith(input.destination.host, "ads")`:                              false,
		`ask contains {"rule": "d"} if contains(input.destination.host, "tracker")`:                             false,
		`deny contains {"rule": "d"} if not contains(input.destination.host, "github.com")`:                     true,
		"deny contains {\"rule\": \"d\"} if not ours\nours if contains(input.destination.host, \"github.com\")": true,
		`deny contains {"rule": "d"} if input.destination.host == "Tracker.example.com"`:                        true,
		`deny contains {"rule": "d"} if input.http.method == "post"`:                                            true,
	} {
		found := rego.Lint([]rego.Source{{Name: "egress.rego", Text: []byte("package egress\n" + text + "\n")}})
		if (len(found) > 0) != want {
			t.Errorf("%s: %v", text, found)
		}
	}
}
