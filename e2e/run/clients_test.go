package run

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// clientsVariable has TestRunClients run clients too that scripts/setup.sh does not
// install, and write what came of all to the file that it names, as a table.
const clientsVariable = "EGRESSD_E2E_CLIENTS"

// A heldClient is one set-up of a program that connects. HOST stands for the
// host, and DOMAIN for what others are under.
type heldClient struct {
	name, command string
	wants         string // of what the allowed host said
	heavy         bool   // not in CI
}

const python = `/usr/bin/env PYTHONWARNINGS=ignore /usr/bin/python3 -c `

// heldClients know nothing of a proxy.
var heldClients = []heldClient{
	{"curl", `curl -sS -m9 --cacert $LAB_CA https://HOST/x`, "GET /x", false},
	{"wget", `wget -q -T9 -t1 -O - --ca-certificate=$LAB_CA https://HOST/x`, "GET /x", false},
	{"git over https", `rm -rf c; GIT_SSL_CAINFO=$LAB_CA git clone -q https://git.DOMAIN/repository.git c && cat c/file`, "from the lab", false},
	{"git over ssh", `GIT_SSH_COMMAND="ssh -v -o ConnectTimeout=9 -o StrictHostKeyChecking=no" timeout 9 git ls-remote ssh://git@HOST:22/x 2>&1`, "remote software version lab", true},
	{"npm", `npm view demonstration version --registry https://npm.DOMAIN/registry/`, "3.2.1", false},
	{"pip", `pip download -q --no-deps --retries 0 --timeout 9 -d w --cert $LAB_CA --index-url https://pypi.DOMAIN/simple demonstration && ls w`, "demonstration-3.2.1", false},
	{"Python urllib", python + `'import urllib.request as u; print(u.urlopen("https://HOST/x", timeout=9).read())'`, "GET /x", false},
	{"Python requests", python + `'import requests; print(requests.get("https://HOST/x", timeout=9).text)'`, "GET /x", true},
	{"Python httpx", python + `'import httpx, ssl; print(httpx.get("https://HOST/x", timeout=9, verify=ssl.create_default_context()).text)'`, "GET /x", true},
	{"Python aiohttp", python + `'
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession() as s:
        async with s.get("https://HOST/x") as r: print(await r.text())
asyncio.run(main())'`, "GET /x", true},
	{"Node fetch", `node -e 'fetch("https://HOST/x").then(r => r.text()).then(console.log, e => { console.log(e.cause); process.exit(1) })'`, "GET /x", false},
	{"Node https", `node -e 'require("https").get("https://HOST/x", r => r.pipe(process.stdout)).on("error", e => { console.log(e.message); process.exit(1) })'`, "GET /x", false},
	{"Go net/http", `"$LAB_GO" ` + goClientArgument + ` https://HOST/x`, "GET /x", false},
	{"Java HttpURLConnection", `java -Djavax.net.ssl.trustStore=$PWD/trust -Djavax.net.ssl.trustStorePassword=changeit C.java old https://HOST/x`, "GET /x", true},
	{"Java HttpClient", `java -Djavax.net.ssl.trustStore=$PWD/trust -Djavax.net.ssl.trustStorePassword=changeit C.java new https://HOST/x`, "GET /x", true},
	{"psql", `PGSSLMODE=disable PGCONNECT_TIMEOUT=9 psql -w -h HOST -U u d -c 'select 1' 2>&1`, "received o", true},
	{"ssh", `timeout 9 ssh -v -o StrictHostKeyChecking=no -o BatchMode=yes u@HOST true 2>&1`, "remote software version lab", true},
	{"raw TCP", `echo marker | socat -t2 - TCP:HOST:7000`, "marker", false},
	{"raw TCP in Python", python + `'
import socket
s = socket.create_connection(("HOST", 7000), 9); s.sendall(b"marker\n"); print(s.recv(99))'`, "origin", false},
}

const javaClient = `
import java.net.*; import java.net.http.*;
public class C { public static void main(String[] a) throws Exception {
  if (a[0].equals("old")) System.out.println(new String(URI.create(a[1]).toURL().openConnection().getInputStream().readAllBytes()));
  else System.out.println(HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(a[1])).build(), HttpResponse.BodyHandlers.ofString()).body());
} }
`

// TestRunClients has each client ask a host that is allowed, and one that is not,
// as an ordinary user and without any variable for a proxy.
func TestRunClients(t *testing.T) {
	d := world.NewDaemon(t, `version: 1
allow: ["*.allowed.test", "*.allowed.test:22", "*.allowed.test:7000", "*.allowed.test:5432"]
`)
	d.World.Origin.Publish(t, d.Dir)
	for name, value := range clientVariables(d, d.World.Origin.Ca.File(t)) {
		t.Setenv(name, value)
	}
	for name := range proxyNames {
		t.Setenv(name, "")
	}
	table := os.Getenv(clientsVariable)
	if table != "" {
		prepareJava(t, d)
	}
	var rows strings.Builder
	fmt.Fprintf(&rows, "| client | allowed | denied |\n|---|---|---|\n")
	for _, c := range heldClients {
		if c.heavy && table == "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			allowed := runAs(t, d, "user", c.to("b.allowed.test", "allowed.test"))
			denied := tries(t, d, "user", escape{script: c.to("evil.test", "evil.test")})
			works := strings.Contains(allowed.out, c.wants)
			if !works {
				t.Errorf("allowed: exit %d, %q %q", allowed.code, allowed.out, allowed.talk)
			}
			held := !strings.Contains(denied.out, c.wants) && deniedUnder(denied, "evil.test")
			if !held {
				t.Errorf("denied: exit %d, %q %q %+v", denied.code, denied.out, denied.talk, denied.records)
			}
			fmt.Fprintf(&rows, "| %s | %s | %s |\n", c.name, mark(works), mark(held))
		})
	}
	if table != "" {
		if err := os.WriteFile(table, []byte(rows.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *heldClient) to(host, domain string) string {
	return strings.NewReplacer("HOST", host, "DOMAIN", domain).Replace(c.command)
}

var proxyNames = map[string]bool{"http_proxy": true, "https_proxy": true, "HTTP_PROXY": true, "HTTPS_PROXY": true, "ALL_PROXY": true, "all_proxy": true, "NO_PROXY": true, "no_proxy": true}

func mark(ok bool) string {
	if ok {
		return "✓"
	}
	return "✗"
}

// deniedUnder reports whether a record denies domain or a name under it.
func deniedUnder(r *ran, domain string) bool {
	for _, rec := range r.records {
		if rec.Dst != nil && (rec.Dst.Host == domain || strings.HasSuffix(rec.Dst.Host, "."+domain)) && rec.Decision != nil && rec.Decision.Class == string(policy.DefaultDeny) {
			return true
		}
	}
	return false
}

// clientVariables are those of [world.ClientVariables] for clients that may choose their own authorities, and a client in Go.
func clientVariables(d *world.Daemon, ca string) map[string]string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	variables := world.ClientVariables(d.Dir, ca)
	maps.Copy(variables, map[string]string{"LAB_GO": self, "SSL_CERT_FILE": ca, "REQUESTS_CA_BUNDLE": ca})
	return variables
}

func prepareJava(t *testing.T, d *world.Daemon) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.Dir, "C.java"), []byte(javaClient), 0o644); err != nil {
		t.Fatal(err)
	}
	unheld(t, d, `keytool -importcert -noprompt -alias lab -file "$LAB_CA" -keystore trust -storepass changeit 2>&1`)
}

// goClientArgument has this test binary be a client in Go.
const goClientArgument = "as-a-go-client"

func goClient(args []string) int {
	response, err := http.Get(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer response.Body.Close()
	io.Copy(os.Stdout, response.Body)
	return 0
}
