package file

import (
	"strings"
	"testing"
)

const issued = `oidc: {issuer: "https://issuer.test/acme", keys: "keys.json", audience: "https://egress.test", claims: {team_id: t}`

func TestSandboxesWithAnIssuer(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
listen: {forwarded: ["127.0.0.1:3180", "tls:[::1]:3181", "unix:${DIR}/f.sock"]}
sandboxes:
  - {name: "vercel-{id}", source: [10.0.0.0/8], `+strings.Replace(issued, "keys.json", "${DIR}/keys.json", 1)+`, id: sandbox_id}}
  - {name: one, `+strings.Replace(strings.Replace(issued, "keys.json", "https://issuer.test/keys?x=1", 1), "team_id: t", "team_id: u, project_id: p", 1)+`}}
`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Expand(func(string) (string, bool) { return "/run", true })
	if err != nil {
		t.Fatal(err)
	}
	first, second := out.Sandboxes[0].OIDC, out.Sandboxes[1].OIDC
	if first.ID != "sandbox_id" || first.Keys != "/run/keys.json" || first.Fetched() || !second.Fetched() || second.Claims["project_id"] != "p" {
		t.Errorf("%+v, %+v", first, second)
	}
	if out.Listen.Forwarded[2] != "unix:/run/f.sock" || f.Sandboxes[0].OIDC.Keys != "${DIR}/keys.json" {
		t.Errorf("%+v, %+v", out.Listen, f.Sandboxes[0].OIDC)
	}
}

func TestBadIssuers(t *testing.T) {
	const one = `{name: a, ` + issued + `}}`
	for _, row := range []struct{ says, text, want string }{
		{"no listener", `sandboxes: [` + one + `]`, `f:2:29: sandboxes[0].oidc needs a listener whose requests have tokens; add one, such as listen: {forwarded: ["127.0.0.1:3180"]}`},
		{"nobody with an issuer", `listen: {forwarded: ["127.0.0.1:1"]}`, `f:2:22: listen.forwarded takes requests with tokens, and no sandbox has an issuer of such; add oidc to a sandbox, or leave the key out`},
		{"nothing in it", `sandboxes: [{name: a, oidc: {}}]`, `sandboxes[0].oidc has no issuer; add the claim iss of its tokens`},
		{"no keys", `sandboxes: [{name: a, oidc: {}}]`, `sandboxes[0].oidc has no keys; add the URL or the file`},
		{"no audience", `sandboxes: [{name: a, oidc: {}}]`, `sandboxes[0].oidc has no audience; add the claim aud`},
		{"no claims", `sandboxes: [{name: a, oidc: {}}]`, `sandboxes[0].oidc has no claims; add a claim that other customers of the issuer do not get`},
		{"empty claims", `sandboxes: [{name: a, oidc: {claims: {}}}]`, `sandboxes[0].oidc.claims is empty, so that tokens of every customer of the issuer would count`},
		{"a claim that is a number", `sandboxes: [{name: a, oidc: {claims: {team_id: 1}}}]`, `sandboxes[0].oidc.claims.team_id is a number`},
		{"a claim twice", `sandboxes: [{name: a, oidc: {claims: {team_id: a, team_id: b}}}]`, `"team_id" stands a second time`},
		{"a list of claims", `sandboxes: [{name: a, oidc: {claims: [team_id]}}]`, `sandboxes[0].oidc.claims is a list; write a mapping`},
		{"an issuer in clear", `sandboxes: [{name: a, oidc: {issuer: "http://issuer.test"}}]`, `sandboxes[0].oidc.issuer is no URL of https`},
		{"a word for an issuer", `sandboxes: [{name: a, oidc: {issuer: vercel}}]`, `sandboxes[0].oidc.issuer is no URL of https`},
		{"an issuer with a query", `sandboxes: [{name: a, oidc: {issuer: "https://issuer.test?a=b"}}]`, `sandboxes[0].oidc.issuer has a query`},
		{"keys in clear", `sandboxes: [{name: a, oidc: {keys: "http://issuer.test/keys"}}]`, `sandboxes[0].oidc.keys is no URL of https`},
		{"keys with a password", `sandboxes: [{name: a, oidc: {keys: "https://u:p@issuer.test/keys"}}]`, `sandboxes[0].oidc.keys has a password in its URL; leave it out`},
		{"a fragment", `sandboxes: [{name: a, oidc: {keys: "https://issuer.test/keys#x"}}]`, `sandboxes[0].oidc.keys has a # in its URL`},
		{"a template without a claim", `sandboxes: [{name: "v-{id}", ` + issued + `}}]`, `sandboxes[0] is a template, whose sandboxes are told by a claim; add the name of that claim, such as id: sandbox_id, to oidc`},
		{"a claim without a template", `sandboxes: [{name: a, ` + issued + `, id: sandbox_id}}]`, `sandboxes[0].oidc.id is the id of a template's sandboxes; write {id} into the name, or leave the key out`},
		{"a token beside", `sandboxes: [{name: a, token_file: t, ` + issued + `}}]`, `sandboxes[0] has oidc, and its requests come by listen.forwarded without token_file; leave one of the two out`},
		{"a uid beside", `sandboxes: [{name: a, uid: [1], ` + issued + `}}]`, `without uid; leave one`},
		{"a listener beside", `sandboxes: [{name: a, listen: "127.0.0.1:1", ` + issued + `}}]`, `without listen; leave one`},
		{"tokens of two", `sandboxes: [` + one + `, {name: b, ` + issued + `}}]`, `sandboxes[1].oidc: a token could be of the sandbox "a", too; give the two another audience, or different values of one claim`},
		{"more of a token", `sandboxes: [` + one + `, {name: b, ` + strings.Replace(issued, "team_id: t", "team_id: t, project_id: p", 1) + `}}]`, `a token could be of the sandbox "a", too`},
		{"a source that no listener knows", `listen: {forwarded: ["unix:/f"]}` + "\n" + `sandboxes: [{name: a, source: [10.0.0.0/8], ` + issued + `}}]`, `sandboxes[0].source needs a TCP listener`},
		{"a listener twice", `listen: {proxy: ["127.0.0.1:1"], forwarded: ["tls:127.0.0.1:1"]}`, `listen.forwarded[0] is 127.0.0.1:1, and so is listen.proxy[0]`},
	} {
		_, err := Parse("f", []byte("version: 1\n"+row.text))
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %s", row.says, err, row.want)
		}
	}
	other := strings.Replace(issued, "team_id: t", "team_id: u", 1)
	if _, err := Parse("f", []byte("version: 1\nlisten: {forwarded: [\"127.0.0.1:1\"]}\nsandboxes: ["+one+", {name: b, "+other+"}}]")); err != nil {
		t.Errorf("two teams: %v", err)
	}
}
