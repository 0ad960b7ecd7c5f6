package run

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
)

// TestRunAnswersDeniedTLS has programs be told why their TLS was denied by a policy that inspects nothing, unless
// somebody switched that off.
func TestRunAnswersDeniedTLS(t *testing.T) {
	const ask = `curl -sS -m9 -w ' %{http_code} %header{x-egressd-id}\n' https://evil.test/ 2>&1`
	d := world.NewDaemon(t, "version: 1\nallow: [\"*.allowed.test\"]\ntls: {never: [never.test]}\n")
	r := runAs(t, d, "user", ask)
	if !strings.Contains(r.out, `"class":"default-deny"`) || !strings.Contains(r.out, " 403 C") || r.denied("evil.test", policy.DefaultDeny) != 1 {
		t.Errorf("%q %q %+v", r.out, r.talk, r.records)
	}
	for _, version := range []string{"--http1.1", "--http2"} {
		r = runAs(t, d, "user", `curl -sS -m9 `+version+` -d '{"jsonrpc":"2.0","id":1,"method":"initialize"}' -H 'Accept: application/json, text/event-stream' -o said -w '%{http_code}' https://evil.test/mcp 2>&1`)
		if r.out != "451" {
			t.Errorf("an MCP client, %s: %q", version, r.out)
		}
	}
	r = runAs(t, d, "user", ask, "--no-ca")
	if !strings.Contains(r.out, "alert access denied") || r.denied("evil.test", policy.DefaultDeny) != 1 {
		t.Errorf("--no-ca: %q", r.out)
	}
	if r = runAs(t, d, "user", `curl -sS -m9 https://never.test/ 2>&1`); !strings.Contains(r.out, "alert access denied") {
		t.Errorf("a name of tls.never: %q", r.out)
	}
	r = runAs(t, d, "user", `for i in 1 2; do curl -sS -m9 --cacert lab.pem https://evil.test/ >said 2>&1; echo $?; done; cat said`)
	if !strings.HasPrefix(r.out, "60\n35\n") || !strings.Contains(r.out, "alert access denied") {
		t.Errorf("a client that does not trust the authority: %q", r.out)
	}
	if r = runAs(t, d, "user", `echo "$SSL_CERT_FILE,$GIT_SSL_CAINFO"; cat "$GIT_SSL_CAINFO" | grep -c "egressd"`); strings.Contains(r.out, ",,") || strings.HasSuffix(r.out, "\n0\n") {
		t.Errorf("the variables: %q", r.out)
	}
	t.Setenv("SSL_CERT_FILE", "/own/roots.pem")
	if r = runAs(t, d, "user", `echo "$SSL_CERT_FILE"`); r.out != "/own/roots.pem\n" {
		t.Errorf("a variable that was set: %q", r.out)
	}
	own := filepath.Join(d.Dir, "own.pem") // as those of a company
	text, err := os.ReadFile(filepath.Join(d.Dir, "lab.pem"))
	if err == nil {
		err = os.WriteFile(own, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CURL_CA_BUNDLE", own)
	if r = runAs(t, d, "user", `curl -sS -m9 https://a.allowed.test/ok 2>&1; `+ask); !strings.Contains(r.out, "origin") || !strings.Contains(r.out, " 403 C") {
		t.Errorf("with authorities of the user's own: %q", r.out)
	}
}

// TestJavaTrustsTheAuthorityOfRun has Java, which reads a key store of its own, and no variable that names another.
func TestJavaTrustsTheAuthorityOfRun(t *testing.T) {
	const source = `public class Ask { public static void main(String[] urls) throws Exception { for (var url : urls) {
		var c = (java.net.HttpURLConnection) java.net.URI.create(url).toURL().openConnection();
		var body = c.getResponseCode() < 400 ? c.getInputStream() : c.getErrorStream();
		System.out.println(c.getResponseCode() + " " + new String(body.readAllBytes())); } } }`
	for _, row := range []struct {
		says, policy, urls string
		flags, want        []string
	}{
		{"a denial", "allow: [\"*.allowed.test\"]\n", "https://evil.test/", nil, []string{"403 ", "Class default-deny"}},
		{"without the authority", "allow: [\"*.allowed.test\"]\n", "https://evil.test/", []string{"--no-ca"}, []string{"access_denied"}},
		{"an inspected host", "allow: [{host: a.allowed.test, paths: [\"/public/**\"]}]\ntls: {ca_dir: ca, extra_roots: [lab.pem]}\n",
			"https://a.allowed.test/public/x https://a.allowed.test/private", nil, []string{"200 origin ", "403 ", "Class path-denied"}},
	} {
		t.Run(row.says, func(t *testing.T) {
			d := world.NewDaemon(t, "version: 1\n"+row.policy)
			if err := os.WriteFile(filepath.Join(d.Dir, "Ask.java"), []byte(source), 0o644); err != nil {
				t.Fatal(err)
			}
			r := runAs(t, d, "user", "java Ask.java "+row.urls+" 2>&1", row.flags...)
			for _, want := range row.want {
				if !strings.Contains(r.out, want) {
					t.Errorf("no %q in %s%s", want, r.out, r.talk)
				}
			}
		})
	}
}

// TestRunSaysWhatNestedSandboxesNeed starts a program whose sandbox the filter of system calls refuses.
func TestRunSaysWhatNestedSandboxesNeed(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [\"*.allowed.test\"]\n")
	for _, row := range []struct {
		flags []string
		said  bool
	}{{nil, true}, {[]string{"--nested"}, false}} {
		var talk bytes.Buffer
		cmd := jailed(t.Context(), d, "user", row.flags, "bwrap", "--ro-bind", "/", "/", "true")
		cmd.Stderr = &talk
		err := d.World.Gateway.Run(cmd)
		if said := strings.Contains(talk.String(), "egressd: hint: egressd run --fs"); said != row.said || (err != nil) != row.said {
			t.Errorf("with %q: %v\n%s", row.flags, err, talk.String())
		}
	}
}

// TestRunInspectsNothingForDenials has an allowed tunnel keep the certificate of its server.
func TestRunInspectsNothingForDenials(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [\"*.allowed.test\"]\n")
	r := runAs(t, d, "user", `curl -sS -m9 --cacert lab.pem https://b.allowed.test/; curl -sS -m9 https://b.allowed.test/ >said 2>&1; echo $?`)
	if !strings.Contains(r.out, "origin") || !strings.HasSuffix(r.out, "60\n") {
		t.Errorf("%q %q", r.out, r.talk)
	}
}

// TestRunTellsOfADenialAsItHappens has a program go on until egressd has said on standard error what was denied to it.
func TestRunTellsOfADenialAsItHappens(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [\"*.allowed.test\"]\n")
	said, err := os.Create(filepath.Join(d.Dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	ctx, cancel := context.WithTimeout(t.Context(), world.Patience)
	defer cancel()
	cmd := jailed(ctx, d, "root", nil, "sh", "-c", `for i in 1 2 3; do curl -s -m9 http://evil.test/; done; until grep -q 'denied: evil.test:80 (default-deny' said; do sleep 0.1; done; grep -c . said`)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, said
	if err := d.World.Gateway.Run(cmd); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "}\n2\n") { // the first line of egressd, and that one
		t.Errorf("%q", out.String())
	}
}

// TestRunTellsOfADenialAsItHappensBesideADaemon is the same where egressd serve decides.
func TestRunTellsOfADenialAsItHappensBesideADaemon(t *testing.T) {
	d := world.Start(t, sharedPolicy)
	runBeside(t, d, nil, "curl -s -m9 http://before.test/") // which is no denial of the next run
	said, err := os.Create(filepath.Join(d.Dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	ctx, cancel := context.WithTimeout(t.Context(), world.Patience)
	defer cancel()
	cmd := d.Command(ctx, nil, "run", "--config", d.Config, "--", "sh", "-c", `for i in 1 2 3; do curl -s -m9 http://evil.test/; done; until grep -q 'denied: evil.test:80 (default-deny' said; do sleep 0.1; done; grep -c . said`)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, said
	if err := d.World.Gateway.Run(cmd); err != nil {
		text, _ := os.ReadFile(filepath.Join(d.Dir, "said"))
		t.Fatal(err, string(text))
	}
	if !strings.HasSuffix(out.String(), "}\n2\n") { // the first line of egressd, and that one
		t.Errorf("%q", out.String())
	}
}

// TestAnAttachedNetworkAnswersDeniedTLS: a sandbox that entered, or a run beside a daemon, reads why its HTTPS is denied, although
// no rule looks into TLS. A client that does not trust the authority gets the alert from its second request on.
func TestAnAttachedNetworkAnswersDeniedTLS(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [\"*.allowed.test\"]\ntls: {never: [never.test]}\nlisten: {open_to_network: true, proxy: [\""+lab.GatewayIPv4+":3128\", \"["+lab.GatewayIPv6+"]:3128\"], enter: [\"unix:${XDG_RUNTIME_DIR}/run/enter.sock\"]}\n")
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	script := `curl -sS -m9 -w ' %{http_code} %header{x-egressd-id}\n' https://evil.test/ 2>&1
curl -sS -m9 https://never.test/ 2>&1
for i in 1 2; do curl -sS -m9 --cacert ` + filepath.Join(d.Dir, "lab.pem") + ` https://distrust.test/ >/dev/null 2>&1; echo code $?; done
curl -sS -m9 --cacert ` + filepath.Join(d.Dir, "lab.pem") + ` https://a.allowed.test/ok 2>&1`
	path, before, err := certs.SystemRoots()
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]*world.Result{
		"enter": enter(t, d, waysIn[0], "run", script), "beside": runBeside(t, d, nil, script), "attach": attachedWithFiles(t, d, script),
	} {
		for _, want := range []string{`"class":"default-deny"`, " 403 C", "alert access denied", "code 60\ncode 35\n", "origin"} {
			if !strings.Contains(e.Out, want) {
				t.Errorf("%s: no %q in %s%s", name, want, e.Out, e.Talk)
			}
		}
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the bundle of the host was changed: %v", err)
	}
	c := contain(t, d) // a process that sees the host's bundle
	if e := d.Attach(t, "run", c.pid()); e.Code != 0 {
		t.Fatalf("attach: exit %d, %s", e.Code, e.Talk)
	}
	if out := c.inside(t, `curl -sS -m9 https://other.test/ 2>&1`); !strings.Contains(out, "alert access denied") {
		t.Errorf("a client that trusts no authority of egressd: %s", out)
	}
}

// attachedWithFiles attaches a process with files of its own, and runs a script beside it, as docker exec does.
func attachedWithFiles(t *testing.T, d *world.Daemon, script string) *world.Result {
	t.Helper()
	c := containAs(t, d, "-n", "-m")
	e := d.Attach(t, "run", c.pid())
	if e.Code != 0 {
		t.Fatalf("attach: exit %d, %s", e.Code, e.Talk)
	}
	e.Out = c.inside(t, "nsenter -t "+c.pid()+" -m sh -c '"+strings.ReplaceAll(script, "'", `'\''`)+"'")
	return e
}
