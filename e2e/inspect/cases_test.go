package inspect

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/miekg/dns"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const casesPolicy = `version: 1
presets:
  - github: {repos: [acme/app], push: ["refs/heads/agent/*"], pulls: write, issues: write, releases: write, graphql: write}
allow:
  - {host: api.anthropic.com, id: claude}
  - {host: platform.claude.com, id: login}
  - {host: generativelanguage.googleapis.com, id: gemini}
  - {host: npm.allowed.test, id: npm}
  - {host: gone.allowed.test, id: gone}
  - {host: registry.allowed.test, id: registry}
  - {host: acme-build.s3.eu-west-1.amazonaws.com, id: bucket}
  - {host: evil.s3.eu-west-1.amazonaws.com, id: evil}
  - {host: s3.eu-west-1.amazonaws.com, id: s3}
  - {host: sts.eu-west-1.amazonaws.com, id: sts}
  - {host: other.allowed.test, id: other, methods: [GET, POST]}
  - {host: set.allowed.test, id: set, set: {OpenAI-Organization: org-acme}}
  - {host: git.allowed.test, id: git, git: {repos: [acme/app], push: ["refs/heads/agent/*"], options: ["ci.*"], lfs: true}}
  - {host: store.allowed.test, id: store, lfs: {server: git.allowed.test, repos: [acme/app]}}
  - {host: hub.allowed.test, id: graph, paths: [/graphql], graphql: {query: [viewer, repository], mutation: [createPullRequest, addComment], repos: [acme/app]}}
  - {host: mcp.allowed.test, id: mcp, paths: [/mcp], mcp: {tools: [search, "größe"]}}
  - {host: model.allowed.test, id: model, model: {hosted_tools: deny, urls: deny, files: deny}}
  - {host: json.allowed.test, id: json, methods: [POST], json: {/kind: [test]}}
  - {host: up.allowed.test, id: up, methods: [POST], max_bytes_up: 2000}
%s
credentials:
  - {for: github, from: {file: github.token}}
  - {for: anthropic, from: {file: anthropic.key}}
  - {for: gemini, from: {file: gemini.key}}
  - {for: npm, hosts: [npm.allowed.test], from: {file: npm.token}}
  - {for: {host: gone.allowed.test, header: X-Api-Key}, name: gone, env: [GONE_KEY], from: {command: [/bin/false]}}
  - {for: docker, hosts: [registry.allowed.test], user: acme, realm: "https://auth.allowed.test/token", service: registry, from: {file: registry.password}}
  - {for: aws, from: {file: aws.profiles, profile: agent}, regions: [eu-west-1], services: [s3, sts], buckets: [acme-build], account: "123456789012"}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`

// caseSecrets are the real secrets, by file. Each holds REAL.
var caseSecrets = map[string]string{
	"github.token": "ghp_REALsecretREALsecretREALsecret0001", "anthropic.key": "sk-ant-api03-REALsecretREALsecretREAL", "gemini.key": "AIzaREALsecretREALsecretREALsecret",
	"npm.token": "npm_REALsecretREALsecretREAL+/secret", "registry.password": "REALpasswordREALpassword",
	"aws.profiles": fmt.Sprintf("[agent]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n", realAWSKey.ID, realAWSKey.Secret, realAWSKey.Token),
}

// An insideCase is a request of a sandbox, and what becomes of it by every way in.
type insideCase struct {
	id   string // the number of a published case, or "own"
	says string
	ask  string // see parseRequest
	// before are requests that come first, and pass.
	before []string
	want   policy.Class // of the refusal; "" it passes

	up    string       // text that the server gets of a request that passes
	down  string       // text that the client gets of it
	noted string       // text that the log has of it
	h1    bool         // HTTP/2 has no such request
	clear policy.Class // what becomes of it without TLS, if that is something else: its class, or anyClass
}

// anyClass stands for every refusal.
const anyClass policy.Class = "any"

// A caseLab is every server of the cases. It does what it is asked for, and keeps it.
type caseLab struct {
	mu      sync.Mutex
	arrived []string // heads and bodies, of all but egressd's own questions
	own     []string // hosts and targets of these
}

func (l *caseLab) took() (arrived, own []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	arrived, own = l.arrived, l.own
	l.arrived, l.own = nil, nil
	return arrived, own
}

func (l *caseLab) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var text strings.Builder
	fmt.Fprintf(&text, "%s https://%s%s\n", r.Method, r.Host, r.RequestURI)
	r.Header.Write(&text)
	fmt.Fprintf(&text, "\n%s", body)
	question := strings.Contains(string(body), "nodes(ids:$ids)")
	l.mu.Lock()
	if question || r.Host == "auth.allowed.test" {
		l.own = append(l.own, r.Host+r.RequestURI)
	} else {
		l.arrived = append(l.arrived, text.String())
	}
	l.mu.Unlock()
	switch sent := cmp.Or(r.Header.Get("Authorization"), r.Header.Get("X-Api-Key")); {
	case question:
		io.WriteString(w, answerNodes(string(body)))
	case r.Host == "auth.allowed.test":
		io.WriteString(w, `{"token":"REALtokenOfTheRegistryREAL","expires_in":300}`)
	case r.Host == "registry.allowed.test":
		w.Header().Set("WWW-Authenticate", `Bearer realm="https://realm.allowed.test/token",service="evil"`)
		w.WriteHeader(http.StatusUnauthorized)
	case strings.HasSuffix(r.URL.Path, "/objects/batch"):
		fmt.Fprintf(w, `{"transfer":"basic","objects":[{"oid":%q,"size":4,"actions":{"upload":{"href":"https://store.allowed.test/o/1?sig=%%2Fx","expires_in":60}}}]}`, largeOID)
	case r.URL.Path == "/away":
		http.Redirect(w, r, "https://other.allowed.test/away", http.StatusTemporaryRedirect)
	case r.URL.Path == "/gzip":
		w.Header().Set("Content-Encoding", "gzip")
		io.WriteString(w, gzipped("compressed although nobody asked"))
	case r.URL.Path == "/echo":
		_, token, _ := strings.Cut(sent, " ")
		w.Header().Set("X-Echo", sent)
		w.Header().Set("X-Echo-Q", "=?utf-8?q?"+quotedPrintable(token, "")+"?=")
		w.Header().Set("X-Echo-Folded", token[:9]+" "+token[9:])
		fmt.Fprintf(w, "you sent %s, %s, %s, %s, %s, %s, %s, %s", sent, url.QueryEscape(token), base64.StdEncoding.EncodeToString([]byte("x"+token)), hex.EncodeToString([]byte(token)),
			strings.ReplaceAll(token, "/", `\/`), token[:4]+`\u0052`+token[5:], quotedPrintable(token, "=\r\n"), token[:9]+"\r\n  "+token[9:])
	default:
		io.WriteString(w, "the server answers")
	}
}

// answerNodes tells for each id of a question the repository that its last part names.
func answerNodes(question string) string {
	var nodes []string
	_, list, _ := strings.Cut(question, `"ids":[`)
	list, _, _ = strings.Cut(list, "]")
	for id := range strings.SplitSeq(list, ",") {
		kind, of, _ := strings.Cut(strings.Trim(id, `"`), "_")
		switch {
		case repos[of] == "":
			nodes = append(nodes, "null")
		case kind == "R":
			nodes = append(nodes, fmt.Sprintf(`{"__typename":"Repository","self":%q}`, repos[of]))
		default:
			nodes = append(nodes, fmt.Sprintf(`{"__typename":"Issue","of":{"nameWithOwner":%q}}`, repos[of]))
		}
	}
	return `{"data":{"nodes":[` + strings.Join(nodes, ",") + `]}}`
}

// quotedPrintable writes every second byte as in RFC 2045, section 6.7, with a break in the middle.
func quotedPrintable(text, wrap string) string {
	var b strings.Builder
	for i := range len(text) {
		if i == len(text)/2 {
			b.WriteString(wrap)
		}
		if i%2 == 0 {
			fmt.Fprintf(&b, "=%02X", text[i])
		} else {
			b.WriteByte(text[i])
		}
	}
	return b.String()
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

const (
	largeOID  = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" // of "test"
	emptyPack = "PACK\x00\x00\x00\x02\x00\x00\x00\x00\x02\x9d\x08\x82\x3b\xd8\xa8\xea\xb5\x10\xad\x6a\xc7\x5c\x82\x3c\xfd\x3e\xd3\x1e"
)

func packet(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }

// signed returns a request for AWS that the placeholder has signed. payload is X-Amz-Content-Sha256; "" for the hash of the body.
func signed(t *testing.T, v map[string]string, method, target, service, region, payload, body string, fields ...string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	sum := sha256.Sum256([]byte(body))
	payload = cmp.Or(payload, hex.EncodeToString(sum[:]))
	if service == "s3" {
		r.Header.Set("X-Amz-Content-Sha256", payload)
	}
	key := aws.Credentials{AccessKeyID: v["AWS_ACCESS_KEY_ID"], SecretAccessKey: v["AWS_SECRET_ACCESS_KEY"], SessionToken: v["AWS_SESSION_TOKEN"]}
	if err := v4.NewSigner().SignHTTP(context.Background(), key, r, payload, service, region, time.Now()); err != nil {
		t.Fatal(err)
	}
	text := method + " " + target
	for name, values := range r.Header {
		text += "\n" + name + ": " + values[0]
	}
	return text + "\n\n" + body
}

// TestCasesByEveryWayIn sends the published attacks on credentials, git, GraphQL, MCP, model APIs and bodies, and some more, by
// every way in.
func TestCasesByEveryWayIn(t *testing.T) {
	d, l, v := startCases(t)
	answered := map[string]policy.Class{} // by the id of the refusal
	names := map[string]string{}
	noted := map[string]string{} // what the log has to say
	tried, published := 0, map[string]bool{}
	for _, row := range casesOf(t, v) {
		published[row.id] = true
		for _, way := range waysIn {
			c := row
			if c.h1 && way.within == "HTTP/2" {
				continue
			}
			if way.within == "clear" && c.clear != "" {
				c.want, c.noted = c.clear, ""
			}
			tried++
			name := fmt.Sprintf("%s %s by %s", c.id, c.says, way)
			for _, text := range c.before {
				r := parseRequest(t, text)
				a, _, err := way.send(t, d, &r)
				if refused := a.Header.Get("X-Egressd-Id") != ""; err != nil || refused && way.within != "clear" {
					t.Errorf("%s: before it: %d %v %s", name, a.Status, err, a.Body)
				}
			}
			l.took()
			r := parseRequest(t, c.ask)
			a, interim, err := way.send(t, d, &r)
			arrived, own := l.took()
			said := fmt.Sprint(a.Status, a.Header, a.Body)
			id := a.Header.Get("X-Egressd-Id")
			switch {
			case c.want != "" && errors.Is(err, errRefused) && len(arrived) == 0: // before there was a request
			case err != nil:
				t.Errorf("%s: %v", name, err)
			case strings.Contains(said, "REAL"):
				t.Errorf("%s: the sandbox is shown a secret: %s", name, said)
			case c.want == policy.ResponseRefused && id != "": // the request went up
				answered[id], names[id] = c.want, name
			case c.want != "" && (id == "" || len(arrived) > 0 || interim):
				t.Errorf("%s: it should be refused: %s, arrived %q, interim %v", name, said, arrived, interim)
			case c.want != "":
				answered[id], names[id] = c.want, name
			case id != "" || len(arrived) != 1 || !strings.Contains(arrived[0], c.up) || !strings.Contains(said, c.down):
				t.Errorf("%s: it should pass with %q: %s, arrived %q, asked %q", name, c.up, said, arrived, own)
			}
			if c.noted != "" {
				noted[name] = c.noted
			}
		}
	}
	t.Logf("%d cases of %d numbers", tried, len(published))
	for i := 1; i <= 83; i++ {
		if id := fmt.Sprint(i); !published[id] && id != "83" { // which has a test of its own
			t.Errorf("case %d is missing", i)
		}
	}
	logged := func() (missing []string) {
		records, _ := d.Log.Since(0)
		classes := map[string][]string{}
		for _, r := range records {
			classes[r.Flow] = append(classes[r.Flow], string(r.Outcome))
			if r.Decision != nil {
				classes[r.Flow] = append(classes[r.Flow], r.Decision.Class)
			}
		}
		for id, class := range answered {
			if len(classes[id]) == 0 || class != anyClass && !slices.Contains(classes[id], string(class)) {
				missing = append(missing, fmt.Sprintf("%s: the log has %q, want %s", names[id], classes[id], class))
			}
		}
		for name, text := range noted {
			if !slices.ContainsFunc(records, func(r record.Record) bool { return strings.Contains(r.Note, text) }) {
				missing = append(missing, fmt.Sprintf("%s: the log does not note %q", name, text))
			}
		}
		return missing
	}
	world.Eventually(world.Settling, func() bool { return len(logged()) == 0 })
	for _, text := range logged() {
		t.Error(text)
	}
	if d.Log.Holds("REAL") || strings.Contains(d.Output.String(), "REAL") {
		t.Error("the log or what egressd says holds a secret")
	}
	t.Run("83 many small requests over a ceiling, by their heads", func(t *testing.T) { manySmall(t, d, l) })
}

// startCases starts egressd with all listeners before the servers of the cases. The variables are those of the sandbox.
func startCases(t *testing.T) (*world.Daemon, *caseLab, map[string]string) {
	t.Helper()
	w := world.Open(t)
	w.Capture(t, world.WayRedirect)
	var hosts, budgets string
	for i := range waysIn {
		hosts += fmt.Sprintf("  - {host: b%d.allowed.test, id: b%d, methods: [GET]}\n", i, i)
		budgets += fmt.Sprintf(", {hosts: [b%d.allowed.test], up: 20KiB, per: 24h}", i)
	}
	text := fmt.Sprintf(casesPolicy, strings.TrimSuffix(hosts, "\n")) + "budgets: [" + strings.TrimPrefix(budgets, ", ") + "]\n"
	d := world.NewDaemonIn(t, w, world.WithCapture(text, world.WayRedirect))
	for name, secret := range caseSecrets {
		d.PutFile(t, name, secret+"\n")
	}
	w.Zone.Delegate("com", func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(world.AllowedIPv4)}}
		}
		return m
	})
	t.Cleanup(func() { w.Zone.Delegate("com", nil) })
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	l := &caseLab{}
	v := map[string]string{}
	for line := range strings.Lines(text) {
		if _, rest, ok := strings.Cut(line, "host: "); ok {
			host, _, _ := strings.Cut(rest, ",")
			w.Origin.Sites.Store(host, l)
			t.Cleanup(func() { w.Origin.Sites.Delete(host) })
		}
	}
	for _, host := range []string{"api.github.com", "github.com", "uploads.github.com", "auth.allowed.test", "realm.allowed.test"} {
		w.Origin.Sites.Store(host, l)
		t.Cleanup(func() { w.Origin.Sites.Delete(host) })
	}
	exported, err := exec.Command(world.Egressd.Path(), "env", "--config", d.Config).Output()
	if err != nil || strings.Contains(string(exported), "REAL") {
		t.Fatalf("%v: %s", err, exported)
	}
	for line := range strings.Lines(string(exported)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		v[name] = strings.Trim(value, "'\n")
	}
	for _, name := range []string{"GH_TOKEN", "NPM_TOKEN", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_ACCESS_KEY_ID"} {
		if !strings.Contains(v[name], "EGRESSD") {
			t.Fatalf("%s is %q: %s", name, v[name], exported)
		}
	}
	return d, l, v
}

// manySmall sends requests until a budget is used up.
func manySmall(t *testing.T, d *world.Daemon, l *caseLab) {
	for i, way := range waysIn {
		l.took()
		refused := 0
		for range 200 {
			r := parseRequest(t, fmt.Sprintf("GET https://b%d.allowed.test/\nX-Pad: %s", i, strings.Repeat("x", 200)))
			a, _, err := way.send(t, d, &r)
			if err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			if a.Header.Get("X-Egressd-Id") != "" {
				refused++
				if a.Status != http.StatusTooManyRequests {
					t.Errorf("%s: refused with %d", way, a.Status)
				}
			}
		}
		arrived, _ := l.took()
		if n := len(arrived); n < 20 || n > 100 || n+refused != 200 {
			t.Errorf("%s: %d arrived, %d were refused", way, n, refused)
		}
	}
}
