package waysin

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// nodeClient opens a tunnel and speaks TLS in it, as Node programs do that
// know of a proxy.
const nodeClient = `
const http = require("http"), tls = require("tls"), fs = require("fs");
const [proxy, host] = process.argv.slice(1);
const [name, port] = proxy.split(":");
http.request({host: name, port, method: "CONNECT", path: host + ":443"}).on("connect", (res, socket) => {
  if (res.statusCode !== 200) { console.log(res.statusCode, res.statusMessage); process.exit(1); }
  const s = tls.connect({socket, servername: host, ca: fs.readFileSync(process.env.LAB_CA)}, () =>
    s.write("GET /node HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"));
  s.pipe(process.stdout);
}).end();
`

// TestClients runs what people run in sandboxes, against hosts with a
// certificate of the lab's own authority. What is allowed works, and what is
// denied fails with words that say who denied it.
func TestClients(t *testing.T) {
	runClients(t, world.Start(t, world.PolicyText(t, "P0")), "")
}

// runClients runs the clients whose names begin so, and those of Go.
func runClients(t *testing.T, d *world.Daemon, prefix string) {
	t.Helper()
	dir := t.TempDir()
	ca := d.World.Origin.Ca.File(t)
	d.World.Origin.Publish(t, dir)
	const blocked = "Blocked by egressd: evil.test"
	for _, row := range []struct {
		says, command, wants string
		works                bool
	}{
		{"curl", "curl -sS --cacert $LAB_CA https://a.allowed.test/curl", "GET /curl", true},
		{"curl over SOCKS", "curl -sS --cacert $LAB_CA -x socks5h://$LAB_PROXY https://a.allowed.test/curl", "GET /curl", true},
		{"curl in clear", "curl -sS http://a.allowed.test/curl", "GET /curl", true},
		{"curl denied", "curl -sS -v https://evil.test/", blocked + ":443 default-deny", false},
		{"curl denied in clear", "curl -sS -i http://evil.test/", blocked + ":80 default-deny", true},
		{"wget", "wget -q -O - --ca-certificate=$LAB_CA https://a.allowed.test/wget", "GET /wget", true},
		{"wget denied", "wget -O - https://evil.test/", blocked, false},
		{"git clone", "GIT_SSL_CAINFO=$LAB_CA git clone -q https://git.allowed.test/repository.git clone && cat clone/file", "from the lab", true},
		{"git clone denied", "GIT_SSL_CAINFO=$LAB_CA git clone https://evil.test/repository.git denied", "403", false},
		{"git clone denied in clear", "git clone http://evil.test/repository.git denied", "remote: " + blocked, false},
		{"npm view", "npm view demonstration version --registry https://npm.allowed.test/registry/", "3.2.1", true},
		{"npm view denied", "npm view demonstration version --registry https://evil.test/registry/", blocked, false},
		{"pip download", "pip download -q --no-deps -d wheels --cert $LAB_CA --index-url https://pypi.allowed.test/simple demonstration && ls wheels", "demonstration-3.2.1", true},
		{"pip download denied", "pip download --no-deps --retries 1 --cert $LAB_CA --index-url https://evil.test/simple demonstration", blocked, false},
		{"ssh to the port of TLS", "ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o 'ProxyCommand=socat - PROXY:${LAB_PROXY%%:*}:%h:%p,proxyport=${LAB_PROXY##*:}' -p 443 git@a.allowed.test", "Blocked by egressd: a.allowed.test:443 not-tls", false},
		{"Node", "node -e '" + nodeClient + "' $LAB_PROXY a.allowed.test", "GET /node", true},
		{"Node denied", "node -e '" + nodeClient + "' $LAB_PROXY evil.test", "403 " + blocked, false},
	} {
		if !strings.HasPrefix(row.says, prefix) {
			continue
		}
		t.Run(row.says, func(t *testing.T) {
			out, err := d.Shell(dir, ca, row.command)
			if (err == nil) != row.works || !strings.Contains(out, row.wants) {
				t.Errorf("%v, printed %q, want %q", err, out, row.wants)
			}
		})
	}
	t.Run("Go", func(t *testing.T) {
		d.ExpectBody(t, d.HTTPClient(nil), "GET", "https://a.allowed.test/go", nil, "GET /go")
	})
	t.Run("Go denied", func(t *testing.T) {
		_, err := d.HTTPClient(nil).Get("https://evil.test/")
		if err == nil || !strings.Contains(err.Error(), blocked) {
			t.Errorf("got %v", err)
		}
	})
}
