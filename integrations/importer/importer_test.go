package importer

import (
	"slices"
	"strings"
	"testing"
)

func TestWhatIsImported(t *testing.T) {
	for name, row := range map[string]struct{ from, text, allow, deny string }{
		"nothing":                   {"srt", `{}`, "", ""},
		"a denied wildcard":         {"srt", `{"network": {"allowedDomains": ["a.x.test", "y.test"], "deniedDomains": ["*.x.test"]}}`, "y.test:*", "*.x.test:* a.x.test:*"},
		"a denied name":             {"srt", `{"network": {"allowedDomains": ["*.x.test"], "deniedDomains": ["a.x.test"]}}`, "*.x.test:*", "a.x.test:*"},
		"a port of what is allowed": {"srt", `{"network": {"allowedDomains": ["x.test"], "deniedDomains": ["X.test:22"]}}`, "x.test:*", "x.test:22"},
		"a port that is allowed, of what is denied": {"srt", `{"network": {"allowedDomains": ["x.test:443"], "deniedDomains": ["x.test"]}}`, "", "x.test:* x.test:443"},
		"another port":         {"srt", `{"network": {"allowedDomains": ["x.test:443"], "deniedDomains": ["x.test:22"]}}`, "x.test:443", "x.test:22"},
		"a port of all":        {"srt", `{"network": {"allowedDomains": ["*.x.test", "[::1:2]"], "deniedDomains": ["*:22"]}}`, "*.x.test:* [::1:2]:*", "*:22 *.x.test:22 [::1:2]:22"},
		"no part of a label":   {"srt", `{"network": {"allowedDomains": ["ax.test"], "deniedDomains": ["*.x.test"]}}`, "ax.test:*", "*.x.test:*"},
		"rules of WebFetch":    {"claude", `{"permissions": {"allow": ["WebFetch(domain:a.test)", "Bash(ls)"], "deny": ["WebFetch(domain:b.test)"]}, "sandbox": {"network": {"allowedDomains": ["b.test"]}} /* x */}`, "a.test:*", "b.test:*"},
		"keys in another case": {"claude", `{"permissions": {"Allow": ["WebFetch(domain:a.test)"], "allow": ["WebFetch(domain:*.b.test)"], "deny": ["WebFetch(domain:x.b.test)"], "DENY": []}}`, "*.b.test:*", "x.b.test:*"},
		"names of E2B":         {"e2b", `{"allow_out": ["x.test", "1.1.1.0/24"], "deny_out": ["0.0.0.0/0", "9.9.9.9"]}`, "x.test 1.1.1.0/24:*", ""},
		"E2B, open":            {"e2b", `{"allowOut": ["9.9.0.0/16"], "denyOut": ["9.9.9.0/24", "8.8.8.8"]}`, "9.9.0.0/16:* default", "8.8.8.8:*"},
		"E2B, closed":          {"e2b", `{"allowInternetAccess": false, "denyOut": ["8.8.8.8"]}`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := Read(row.from, []byte(row.text))
			if err != nil {
				t.Fatal(err)
			}
			allow := slices.Clone(in.Allow)
			if in.AllowDefault {
				allow = append(allow, "default")
			}
			if got := strings.Join(allow, " "); got != row.allow {
				t.Errorf("allowed %q, want %q", got, row.allow)
			}
			if got := strings.Join(in.Deny, " "); got != row.deny {
				t.Errorf("denied %q, want %q", got, row.deny)
			}
		})
	}
}

func TestWhatIsNotKnownIsNotImported(t *testing.T) {
	for text, want := range map[string]string{
		`{"network": {"deniedResolvedAddresses": ["10.0.0.0/8"]}}`: "srt network.deniedResolvedAddresses is not known",
		`{"network": {"deniedDomains": "x.test"}}`:                 "srt deniedDomains: ",
		`{"network": {"deniedDomains": ["x.test:0"]}}`:             `srt "x.test:0" is no host`,
		`{"network": {"deniedDomains": ["::1"]}}`:                  `srt "::1" is no host`,
		`{"network": {"deniedDomains": ["https://x.test"]}}`:       `srt "https://x.test" is no host`,
		`{"denyOut": ["x.test"]}`:                                  `e2b denyOut: "x.test" is no address`,
		`{"denyOut": ["::/0"]}`:                                    `e2b denyOut: "::/0" is no address`,
		`{"allowOut": ["x.test:443"]}`:                             `e2b allowOut: "x.test:443" is neither`,
		`{"allowOut": [], "allow_out": []}`:                        "e2b allowOut and allow_out are the same",
		`{"network": {}}`:                                          "e2b network is not known",
		`[]`:                                                       "claude it is no JSON object",
		`null`:                                                     "claude it is no JSON object",
		`{`:                                                        "claude it is not JSON",
		`{"permissions": {"deny": "x"}}`:                           "claude permissions.deny: ",
		`{"a": ` + strings.Repeat(`[ "]", // ]
 {"\"}": /*]*/ `, 1<<15): "srt it is not JSON: values in it are nested more than 1000 deep",
		strings.Repeat("[", 1<<20): "claude it is not JSON: values in it are nested",
		`"` + strings.Repeat(`[`, 2000) + `\"{" // ` + strings.Repeat(`[`, 2000) + "\n /*" + strings.Repeat(`{`, 2000) + "*/": "srt it is no JSON object",
		`{"sandbox": []}`: "claude sandbox: ",
		`{"a": 1}`:        `docker "docker" is none of claude, e2b, srt`,
	} {
		from, want, _ := strings.Cut(want, " ")
		if in, err := Read(from, []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v, want %s", text, in, err, want)
		}
	}
}
