package rego_test

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/rego"
)

const allows = "package egress\nallow contains {\"rule\": \"a\"} if input.destination.port == 443\n"

func TestWhatNobodyAsksIsRefused(t *testing.T) {
	for _, row := range []struct{ name, more, other, want string }{
		{"a deny of a package for one sandbox", "", "package egress.ci\ndeny contains {\"rule\": \"d\"}", "b.rego:2:1: nobody asks deny of package egress.ci; write it as deny in package egress"},
		{"a deny of a misspelt package", "", "package egres\ndeny contains {\"rule\": \"d\"}", "b.rego:2:1: nobody asks deny"},
		{"a deny of a package in upper case", "", "package Egress\ndeny contains {\"rule\": \"d\"}", "b.rego:2:1"},
		{"an ask of another package", "", "package main\nask contains {\"rule\": \"d\"}", "nobody asks ask of package main"},
		{"a value for allow in another package", "", "package authz\ndefault allow := false", "nobody asks allow"},
		{"an else of another package", "", "package authz\ndeny := 1 if input.destination.port == 1 else := 2", "nobody asks deny"},
		{"a package that is named as a set", "", "package egress.deny\nuploads contains {\"rule\": \"d\"}", "b.rego:1:1: egress.deny is asked as a set"},
		{"a set below another name", "web.deny contains {\"rule\": \"d\"}", "", "egress.rego:3:1: nobody asks web.deny"},
		{"a set below deny", "deny.uploads contains {\"rule\": \"d\"}", "", "egress.rego:3:1: deny is a set of reasons"},
		{"denies", "denies contains {\"rule\": \"d\"}", "", "egress.rego:3:1: nothing reads denies; write deny"},
		{"denied", "denied contains {\"rule\": \"d\"}", "", "nothing reads denied; write deny"},
		{"dney", "dney contains {\"rule\": \"d\"}", "", "nothing reads dney; write deny"},
		{"Deny", "Deny contains {\"rule\": \"d\"}", "", "nothing reads Deny; write deny"},
		{"allowed", "allowed contains {\"rule\": \"d\"}", "", "write allow"},
		{"asks", "asks contains {\"rule\": \"d\"}", "", "write ask"},
		{"block", "block contains {\"rule\": \"d\"}", "", "write deny"},
		{"data that is in no file", "deny contains {\"rule\": \"d\"} if input.destination.host in data.blokced", "", "egress.rego:3:58: data.blokced is in no file of data"},
		{"data that is in no file, under not", "allow contains {\"rule\": \"d\"} if not input.destination.host in data.blokced", "", "data.blokced is in no file"},
		{"data below a key that is there", "deny contains {\"rule\": \"d\"} if input.destination.host in data.lists.blokced", "", "data.lists.blokced is in no file"},
		{"data by an import", "import data.blokced\ndeny contains {\"rule\": \"d\"} if input.destination.host in blokced", "", "data.blokced is in no file"},
		{"data in a branch", "x := 1 if input.via == \"a\" else := data.blokced\ndeny contains {\"rule\": \"d\"} if x == 1", "", "data.blokced is in no file"},
		{"a member of text", "deny contains {\"rule\": \"d\"} if input.destination.host in data.lists.name", "", "egress.rego:3:32: data.lists.name is no list in the data, so nothing is in it"},
		{"a member of null, under not", "allow contains {\"rule\": \"d\"} if not input.destination.host in data.lists.nothing", "", "data.lists.nothing is no list"},
		{"some of a number", "deny contains {\"rule\": \"d\"} if { some x in data.lists.number; x == input.destination.host }", "", "egress.rego:3:1: data.lists.number is no list"},
		{"some key and value of text", "deny contains {\"rule\": \"d\"} if { some i, x in data.lists.name; x == input.destination.host }", "", "data.lists.name is no list"},
		{"every of text, which holds", "allow contains {\"rule\": \"d\"} if every x in data.lists.name { x == input.destination.host }", "", "data.lists.name is no list"},
		{"a member of text by an import", "import data.lists.name\ndeny contains {\"rule\": \"d\"} if input.destination.host in name", "", "data.lists.name is no list"},
		{"an element of text", "deny contains {\"rule\": \"d\"} if data.lists.name[_] == input.destination.host", "", "data.lists.name is no list"},
		{"a key of text", "deny contains {\"rule\": \"d\"} if data.lists.name.first == input.destination.host", "", "data.lists.name.first is in no file"},
		{"a rule of another package that is none", "deny contains {\"rule\": \"d\"} if data.egres.bad", "", "data.egres.bad is in no file"},
		{"a rule of the package that is none", "deny contains {\"rule\": \"d\"} if data.egress.bda", "", "data.egress.bda is in no file"},
		{"a rule named egressd", "egressd.host_matches(_, _) := true", "", "egress.rego:3:1: the name egressd belongs"},
		{"a rule named egressd elsewhere", "", "package other\negressd := 1", "b.rego:2:1: the name egressd belongs"},
		{"an import as egressd", "import data.lists as egressd", "", "egress.rego:3:1: the name egressd belongs"},
		{"a function of net", "net.any(_, _) := false", "", "egress.rego:3:1: net is the name of functions"},
		{"a rule named host", "host := input.destination.host", "", "host is the name"},
		{"a rule named path", "path contains 1", "", "path is the name"},
		{"a rule named time", "default time := 1", "", "time is the name"},
	} {
		t.Run(row.name, func(t *testing.T) {
			sources := []rego.Source{{Name: "egress.rego", Text: []byte(allows + row.more)}, {Name: "lists.json", Text: []byte(`{"lists": {"blocked": [], "name": "a.test", "nothing": null, "number": 1}}`)}}
			if row.other != "" {
				sources = append(sources, rego.Source{Name: "b.rego", Text: []byte(row.other)})
			}
			if got := refused(t, sources, rego.Options{}); !strings.Contains(got, row.want) {
				t.Errorf("said %q, want %q", got, row.want)
			}
		})
	}
}

// TestWhatIsReadIsNotRefused has what only resembles what nobody asks.
func TestWhatIsReadIsNotRefused(t *testing.T) {
	for _, row := range []struct{ name, more, other string }{
		{"a helper package", "deny contains {\"rule\": \"d\"} if data.lib.teams.big[input.sandbox.name]", "package lib.teams\nbig contains \"web\""},
		{"a function named ask", "", "package lib\nask(x) := x"},
		{"a near name that is read", "denied contains \"a.test\"\ndeny contains {\"rule\": \"d\"} if input.destination.host in denied", ""},
		{"a near name that is no set", "allowed(x) if x == 1", ""},
		{"data by a key of the request", "deny contains {\"rule\": \"d\"} if data.lists[input.sandbox.name]", ""},
		{"an element of a list", "deny contains {\"rule\": \"d\"} if data.lists.blocked[0] == 1", ""},
		{"a whole package", "deny contains {\"rule\": \"d\"} if data.lib.x", "package lib\nx.y := 1"},
		{"an import of the library", "import data.egressd.host\ndeny contains {\"rule\": \"d\"} if host.matches(input.destination.host, \"b.test\")", ""},
		{"a rule named host elsewhere", "", "package lib\nhost := 1"},
	} {
		sources := []rego.Source{{Name: "egress.rego", Text: []byte(allows + row.more)}, {Name: "lists.json", Text: []byte(`{"lists": {"blocked": []}}`)}}
		if row.other != "" {
			sources = append(sources, rego.Source{Name: "b.rego", Text: []byte(row.other)})
		}
		if _, err := rego.Load(sources, rego.Options{}); err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}

func TestCheckTests(t *testing.T) {
	for text, want := range map[string]string{
		"test_x if data.egress.allow":                  "",
		"test_x if {":                                  "egress_test.rego:3:",
		"test_x if input.destination.hots == \"a\"":    "egress_test.rego:2:",
		"deny contains {\"rule\": \"d\"} if true":      "",
		"test_x if host.matches(\"a\", \"https://a\")": "egress_test.rego:2:",
	} {
		err := rego.Options{}.CheckTests([]rego.Source{
			{Name: "egress.rego", Text: []byte(allows)},
			{Name: "egress_test.rego", Text: []byte("package egress_test\n" + text + "\n")},
		})
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
