package file

import (
	"fmt"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestALineThatNeverDecidesIsRefused reads files in which one line hides another, and says at which line and by what.
func TestALineThatNeverDecidesIsRefused(t *testing.T) {
	for lines, want := range map[string]string{
		"allow: [git.acme.test:443]\ndeny: [git.acme.test]":                                                "2:9 deny[0]",
		"allow: [git.acme.test:443]\nask: [git.acme.test]":                                                 "2:9 ask[0]",
		"allow: [git.acme.test:443]\ndeny: [{host: git.acme.test, methods: [POST]}]":                       "",
		"allow: [a.test]\ndeny: ['a.test:443']\nask: ['a.test:80']":                                        "2:9 deny[0] ask[0]",
		"ask: ['*']\ndeny: [{host: '*', id: nothing}]":                                                     "2:7 nothing",
		"unsafe_allow: ['127.0.0.1:80']\ndeny: [127.0.0.1]":                                                "2:16 deny[0]",
		"deny: [93.184.0.0/16]\nallow: ['93.184.0.0/17:*', '93.184.128.0/17:*']":                           "2:8 allow[0] allow[1]",
		"default: allow\nallow: [{host: a.test, paths: [/x/y]}]\ndeny: [{host: a.test, paths: ['/x/**']}]": "3:9 deny[0]",
		"sandboxes: [{name: ci, source: [10.9.0.0/16], allow: [a.test, b.test], deny: [a.test]}]":          "2:55 sandboxes[0].deny[0]",
		"allow: [a.test]\nsandboxes: [{name: ci, source: [10.9.0.0/16], deny: [a.test]}]":                  "",
		"presets: [npm]\ndeny: [registry.npmjs.org]":                                                       "",
		"allow: [a.test, a.test]\ndeny: ['*.test']":                                                        "",
	} {
		for _, parse := range []func(string, []byte) (*File, error){Parse, ParseProject, ParseOrganisation} {
			_, err := parse("f", []byte("version: 1\n"+lines+"\n"))
			if err != nil && strings.Contains(err.Error(), "belongs into egressd.yaml") {
				continue // of the user's file alone
			}
			place, by, _ := strings.Cut(want, " ")
			problems, _ := err.(policy.FileError)
			switch {
			case want == "" && err == nil:
			case want == "" || len(problems) != 1 || !strings.HasPrefix(problems[0].String(), "f:"+place+":"):
				t.Errorf("%s: %v", lines, err)
			default:
				for name := range strings.SplitSeq(by, " ") {
					if !strings.Contains(problems[0].Message, name+" in line ") {
						t.Errorf("%s: %s does not name %s", lines, problems[0].Message, name)
					}
				}
			}
		}
	}
}

func TestRemarksAreAboutRepetitionsAndLetterCase(t *testing.T) {
	for lines, want := range map[string]string{
		"allow: [a.test, a.test]":   "2:9 2:17",
		"allow: ['*.test', a.test]": "2:19",
		"allow: ['*.test', {host: a.test, tls: any}, {host: b.test, reason: said, id: x}]":                          "",
		"allow: [a.test]\ndeny: [{host: a.test, paths: [/repos/acme/**]}]":                                          "3:8",
		"allow: [a.test]\ndeny: [{host: a.test, paths: ['/1/**']}]":                                                 "",
		"allow: [a.test, {host: a.test, paths: [/v1/**]}]\nask: [{host: a.test, methods: [POST], paths: [/UP/**]}]": "2:17 3:7",
		"allow: [{host: a.test, paths: [/v1/**]}]":                                                                  "",
	} {
		f, err := Parse("f", []byte("version: 1\n"+lines+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		var places []string
		for _, p := range f.Remarks() {
			places = append(places, fmt.Sprintf("%d:%d", p.Line, p.Column))
		}
		if got := strings.Join(places, " "); got != want {
			t.Errorf("%s: %q, want %q", lines, got, want)
		}
	}
}

func TestLinesOfFilesThatNeverDecideAreCounted(t *testing.T) {
	list := func(id string, effect policy.Verdict, text string) policy.ListedHosts {
		hosts, err := policy.ReadHostList(id, strings.NewReader(text), false)
		if err != nil {
			t.Fatal(err)
		}
		return policy.ListedHosts{ID: id, File: id, Effect: effect, Hosts: hosts}
	}
	f, err := Parse("f", []byte("version: 1\nallow: [a.test, \"b.test:22-443\", c.test]\ndeny: [d.test]\nask: [{host: e.test, methods: [POST]}, \"f.test:443\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	lists := []policy.ListedHosts{
		list("deny_file[0]", policy.Deny, "a.test\nb.test:22-400\n*.c.test\ng.test\n"),
		list("allow_file[0]", policy.Allow, "# comment\nx.test\nd.test:443\ne.test\nf.test\ng.test\nf.test:443\n"),
	}
	var said []string
	for i, p := range f.ListDoubts(lists) {
		said = append(said, fmt.Sprintf("%s:%d %s", p.File, p.Line, strings.Join(strings.Fields(p.Message)[:1+3*i], " ")))
	}
	if got, want := strings.Join(said, ", "), "f:2 allow[0], allow_file[0]:3 allow_file[0] has 3 lines"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
