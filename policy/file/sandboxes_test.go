package file

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIdentityKeys(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
listen: {proxy: ["127.0.0.1:3128", "tls:[::1]:3443", "unix:/run/p"], client_ca: "${HOME}/clients.pem", server_names: [Egressd.Internal]}
sandboxes:
  - {name: a, uid: [0, 1000, 4294967294]}
  - {name: b, source: [172.18.0.0/16, "fd00::/8", 172.18.0.5, "::1"], token_file: b}
  - {name: c, certificate: ci.example.com, source: [10.0.0.0/8]}
  - {name: d, certificate: "spiffe://example.org/ns/ci", listen: "tls:127.0.0.1:3444"}
`))
	if err != nil {
		t.Fatal(err)
	}
	s := f.Sandboxes
	if diff := cmp.Diff([]uint32{0, 1000, 4294967294}, s[0].UIDs); diff != "" {
		t.Error(diff)
	}
	var prefixes []string
	for _, p := range s[1].Sources {
		prefixes = append(prefixes, p.String())
	}
	if diff := cmp.Diff([]string{"172.18.0.0/16", "fd00::/8", "172.18.0.5/32", "::1/128"}, prefixes); diff != "" {
		t.Error(diff)
	}
	if s[2].Certificate != "ci.example.com" || s[2].Sources[0] != netip.MustParsePrefix("10.0.0.0/8") || s[3].Certificate != "spiffe://example.org/ns/ci" {
		t.Errorf("%+v", s[2:])
	}
	out, err := f.Expand(func(string) (string, bool) { return "/home", true })
	if err != nil || out.Listen.ClientCA != "/home/clients.pem" || out.Listen.ServerNames[0] != "egressd.internal" {
		t.Errorf("%v, %+v", err, out)
	}
}

func TestBadIdentities(t *testing.T) {
	const listeners = `version: 1
listen: {proxy: ["127.0.0.1:3128", "tls:127.0.0.1:3443", "unix:/run/p"], client_ca: ca.pem}
sandboxes: `
	for _, row := range []struct{ says, text, want string }{
		{"no uid", `[{name: a, uid: []}]`, `f:3:28: sandboxes[0].uid is empty, so nobody could be the sandbox`},
		{"a uid that is no list", `[{name: a, uid: 1000}]`, `sandboxes[0].uid is a number; write a list`},
		{"a uid below zero", `[{name: a, uid: [-1]}]`, `sandboxes[0].uid[0] cannot be -1`},
		{"the uid that is none", `[{name: a, uid: [4294967295]}]`, `sandboxes[0].uid[0] cannot be 4294967295`},
		{"a uid in octal", `[{name: a, uid: [01000]}]`, `sandboxes[0].uid[0] cannot be 01000`},
		{"a user by name", `[{name: a, uid: [ci]}]`, `sandboxes[0].uid[0] is text`},
		{"a uid of two", `[{name: a, uid: [1]}, {name: b, uid: [2, 1]}]`, `f:3:49: sandboxes[1].uid: 1 is said of the sandbox "a" already`},
		{"a uid twice", `[{name: a, uid: [1, 1]}]`, `sandboxes[0].uid: 1 is said of the sandbox "a" already`},
		{"no source", `[{name: a, source: []}]`, `sandboxes[0].source is empty`},
		{"a name for a source", `[{name: a, source: [localhost]}]`, `"localhost" is not an address prefix`},
		{"host bits", `[{name: a, source: [172.18.0.1/16]}]`, `172.18.0.1/16 has host bits; write 172.18.0.0/16`},
		{"a mapped source", `[{name: a, source: ["::ffff:10.0.0.0/104"]}]`, `IPv4 prefix in IPv6 clothes`},
		{"a mapped address", `[{name: a, source: ["::ffff:10.0.0.1"]}]`, `IPv4 prefix in IPv6 clothes`},
		{"a zone", `[{name: a, source: ["fd00::1%eth0"]}]`, `is not an address prefix`},
		{"a link-local source", `[{name: a, source: ["fe80::/64"]}]`, `fe80::/64 is link-local`},
		{"a source of two", `[{name: a, source: [10.0.0.0/8]}, {name: b, source: [10.0.0.0/8]}]`, `10.0.0.0/8 is said of the sandbox "a" already`},
		{"a certificate of two", `[{name: a, certificate: x.test}, {name: b, certificate: x.test}]`, `x.test is said of the sandbox "a" already`},
		{"a wildcard", `[{name: a, certificate: "*.test"}]`, `sandboxes[0].certificate cannot be "*.test"`},
		{"a certificate in upper case", `[{name: a, certificate: X.test}]`, `sandboxes[0].certificate cannot be "X.test"`},
		{"a common name", `[{name: a, certificate: "CN=ci"}]`, `cannot be "CN=ci"`},
		{"a URI of another kind", `[{name: a, certificate: "https://a.test/"}]`, `cannot be "https://a.test/"`},
		{"a SPIFFE ID with a port", `[{name: a, certificate: "spiffe://a.test:1/b"}]`, `cannot be`},
		{"a SPIFFE ID with a user", `[{name: a, certificate: "spiffe://u@a.test/b"}]`, `cannot be`},
		{"a SPIFFE ID with a query", `[{name: a, certificate: "spiffe://a.test/b?c"}]`, `cannot be`},
		{"a SPIFFE ID with dots", `[{name: a, certificate: "spiffe://a.test/../b"}]`, `cannot be`},
		{"a SPIFFE ID that ends in a slash", `[{name: a, certificate: "spiffe://a.test/b/"}]`, `cannot be`},
		{"a SPIFFE ID in upper case", `[{name: a, certificate: "SPIFFE://a.test/b"}]`, `cannot be`},
		{"a SPIFFE ID that is escaped", `[{name: a, certificate: "spiffe://a.test/%62"}]`, `cannot be`},
		{"a user and an address", `[{name: a, uid: [1], source: [10.0.0.0/8]}]`, `no connection is all of it`},
		{"a user and a certificate", `[{name: a, uid: [1], certificate: x.test}]`, `no connection is all of it`},
		{"a user of a TCP listener", `[{name: a, uid: [1], listen: "127.0.0.1:1"}]`, `sandboxes[0].uid needs a unix socket`},
		{"an address of a unix listener", `[{name: a, source: [10.0.0.0/8], listen: "unix:/p"}]`, `sandboxes[0].source needs a TCP listener`},
		{"a certificate of a TCP listener", `[{name: a, certificate: x.test, listen: "127.0.0.1:1"}]`, `sandboxes[0].certificate needs a TLS listener`},
		{"a TLS listener where there is one", `[{name: a, listen: "tls:127.0.0.1:3128"}]`, `sandboxes[0].listen is 127.0.0.1:3128, and so is listen.proxy[0]`},
	} {
		t.Run(row.says, func(t *testing.T) {
			_, err := Parse("f", []byte(listeners+row.text))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}

func TestTemplatesOfSandboxes(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
sandboxes:
  - {name: "e2b-{id}", user: "sbx-{id}", token_file: t, allow: [a.test]}
  - {name: "{id}.daytona", token_file: t}
  - {name: build, user: builder, token_file: t}
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"sbx-{id}", "{id}.daytona", "builder"} {
		if got := f.Sandboxes[i].ProxyUser(); got != want {
			t.Errorf("the user is %q, want %q", got, want)
		}
	}
	const one = `{name: "e2b-{id}", token_file: t}`
	for _, row := range []struct{ says, text, want string }{
		{"no id in the user", `[{name: "e2b-{id}", user: sbx, token_file: t}]`, `f:2:13: sandboxes[0]: {id} stands in only one of name and user; write it in both, or in neither`},
		{"no id in the name", `[{name: e2b, user: "sbx-{id}", token_file: t}]`, `{id} stands in only one of name and user`},
		{"two ids", `[{name: "{id}-{id}", token_file: t}]`, `sandboxes[0].name cannot be "{id}-{id}"; write {id} once`},
		{"two ids of the user", `[{name: "e2b-{id}", user: "{id}{id}", token_file: t}]`, `sandboxes[0].user cannot be "{id}{id}"; write {id} once`},
		{"another word", `[{name: "e2b-{uuid}", token_file: t}]`, `write {id} once`},
		{"a colon", `[{name: "e2b-{id}", user: "a:{id}", token_file: t}]`, `sandboxes[0].user cannot be "a:{id}"`},
		{"nothing beside", `[{name: "{id}", token_file: t}]`, `write something beside {id}`},
		{"too much beside", `[{name: "abcdefghijklmnopqrstuvwxy{id}", token_file: t}]`, `write up to 24 characters beside {id}`},
		{"no token", `[{name: "e2b-{id}", source: [10.0.0.0/8]}]`, `sandboxes[0] is a template, whose sandboxes are told by the proxy user; add token_file`},
		{"a user without a token", `[{name: a, user: b, source: [10.0.0.0/8]}]`, `sandboxes[0].user is the user of a proxy that asks for a password; add token_file`},
		{"a socket to enter by", `[{name: "e2b-{id}", token_file: t, enter: "unix:/e"}]`, `is a template, and enter is of one sandbox alone`},
		{"a container", `[{name: "e2b-{id}", token_file: t, docker: {name: web}}]`, `is a template, and docker is of one sandbox alone`},
		{"a project", `[{name: "e2b-{id}", token_file: t, project: p}]`, `is a template, and project is of one sandbox alone`},
		{"a sandbox of that name", `[` + one + `, {name: e2b-7, source: [10.0.0.0/8]}]`, `f:2:48: sandboxes[1]: e2b-7 could also be a sandbox of e2b-{id}; write another word beside {id}`},
		{"a sandbox of that name before", `[{name: e2b-7, source: [10.0.0.0/8]}, ` + one + `]`, `sandboxes[1]: e2b-{id} could also be a sandbox of e2b-7`},
		{"a template with such names", `[` + one + `, {name: "e2b-x-{id}", user: "u-{id}", token_file: t}]`, `sandboxes[1]: e2b-x-{id} could also be a sandbox of e2b-{id}`},
		{"a user of that name", `[{name: "e2b-{id}", user: "sbx-{id}", token_file: t}, {name: sbx-1, token_file: t}]`, `sandboxes[1]: the proxy user sbx-1 could also mean the sandbox e2b-{id}, whose user is sbx-{id}; give one of them another user`},
		{"every user", `[{name: "e2b-{id}", user: "{id}", token_file: t}, {name: ci, token_file: t}]`, `the proxy user ci could also mean`},
		{"users of two", `[{name: "a-{id}", user: "u-{id}", token_file: t}, {name: "b-{id}", user: "u-{id}", token_file: s}]`, `the proxy user u-{id} could also mean the sandbox a-{id}`},
		{"one user of two", `[{name: a, user: u, token_file: t}, {name: b, user: u, token_file: s}]`, `the proxy user u could also mean the sandbox a`},
		{"a user that is a name", `[{name: a, token_file: t}, {name: b, user: a, token_file: s}]`, `the proxy user a could also mean the sandbox a, whose user is a`},
	} {
		_, err := Parse("f", []byte("version: 1\nsandboxes: "+row.text))
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %s", row.says, err, row.want)
		}
	}
	if _, err := Parse("f", []byte(`{version: 1, sandboxes: [{name: "e2b-{id}", user: "{id}", token_file: t}, {name: ci, source: [10.0.0.0/8]}]}`)); err != nil {
		t.Errorf("a sandbox without a token has no user: %v", err)
	}
}

func TestBadTLSListeners(t *testing.T) {
	for _, row := range []struct{ says, text, want string }{
		{"certificates that nobody signs", `listen: {proxy: ["tls:127.0.0.1:1"]}` + "\nsandboxes: [{name: a, certificate: x.test}]", `name their file under listen.client_ca`},
		{"authorities that nobody asks", `listen: {client_ca: ca.pem}`, `f:2:21: listen.client_ca is asked for by TLS listeners, and there is none`},
		{"the operator's over TLS", `listen: {admin: "tls:127.0.0.1:1"}`, `"tls:127.0.0.1:1" is not an address and a port`},
		{"a socket over TLS", `listen: {proxy: ["tls:unix:/p"]}`, `is not an address and a port`},
		{"a name over TLS", `listen: {proxy: ["tls:localhost:1"]}`, `is not an address and a port`},
		{"an address as a name", `listen: {server_names: [127.0.0.1]}`, `listen.server_names[0]`},
		{"a wildcard as a name", `listen: {server_names: ["*.test"]}`, `listen.server_names[0]`},
	} {
		_, err := Parse("f", []byte("version: 1\n"+row.text))
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %s", row.says, err, row.want)
		}
	}
}

func TestSocketsToEnterBy(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
listen: {proxy: [], enter: ["unix:${DIR}/enter.sock"]}
sandboxes:
  - {name: web, enter: "unix:${DIR}/web/enter.sock"}
  - {name: user, uid: [1000]}
`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Expand(func(string) (string, bool) { return "/run/egressd", true })
	if err != nil || out.Listen.Enter[0] != "unix:/run/egressd/enter.sock" || out.Sandboxes[0].Enter != "unix:/run/egressd/web/enter.sock" {
		t.Errorf("%v, %+v", err, out)
	}
	for says, row := range map[string][2]string{
		"an address":              {`listen: {enter: ["127.0.0.1:3128"]}`, `"127.0.0.1:3128" is not a Unix socket, by which alone descriptors can be handed over; write unix:/path`},
		"a relative path":         {`listen: {enter: ["unix:enter.sock"]}`, "is not an absolute path"},
		"an address of a sandbox": {`sandboxes: [{name: a, enter: "tls:127.0.0.1:1"}]`, "is not a Unix socket"},
		"a socket twice":          {`listen: {proxy: ["unix:/a"], enter: ["unix:/a"]}`, "give each its own"},
		"two sandboxes at one":    {`sandboxes: [{name: a, enter: "unix:/a"}, {name: b, enter: "unix:/a"}]`, "give each its own"},
		"a misspelt key":          {`listen: {entr: []}`, "enter"},
		"a user without a socket": {"listen: {proxy: []}\nsandboxes: [{name: a, uid: [1]}]", "needs a unix socket"},
	} {
		if _, err := Parse("f", []byte("version: 1\n"+row[0])); err == nil || !strings.Contains(err.Error(), row[1]) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
