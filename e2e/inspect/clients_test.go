package inspect

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"golang.org/x/net/websocket"
)

// clientsPolicy has a rule about methods and paths for every program.
const clientsPolicy = `version: 1
allow:
  - {host: curl.allowed.test, methods: [GET, POST], paths: ["/public/**"]}
  - {host: repo.allowed.test, methods: [GET, POST], paths: ["/repo.git/info/refs", "/repo.git/git-upload-pack"]}
  - {host: npm.allowed.test, methods: [GET], paths: ["/registry/**", "/x.tgz"]}
  - {host: pypi.allowed.test, methods: [GET], paths: ["/simple/demonstration/", "/*.whl"]}
  - {host: grpc.allowed.test, methods: [POST], paths: ["/grpc.health.v1.Health/*"]}
  - {host: ws.allowed.test, methods: [GET], paths: ["/ws"], upgrade: websocket}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`

// nodeInside opens a tunnel and lets Node's own libraries speak in it: https,
// or http2 where the upstream does.
const nodeInside = `
const http = require("http"), https = require("https"), http2 = require("http2"), tls = require("tls");
const [proxy, version, host, path] = process.argv.slice(1);
const [name, port] = proxy.split(":");
http.request({host: name, port, method: "CONNECT", path: host + ":443"}).on("connect", (res, socket) => {
  const ALPNProtocols = [version];
  const s = tls.connect({socket, servername: host, ALPNProtocols}, () => {
    if (version === "h2") {
      const session = http2.connect("https://" + host, {createConnection: () => s});
      const r = session.request({":path": path});
      r.on("response", (h) => console.log(h[":status"], s.alpnProtocol));
      r.on("data", (d) => process.stdout.write(d)).on("end", () => session.close());
      return;
    }
    const agent = new https.Agent();
    agent.createConnection = () => s;
    https.get({host, path, agent}, (r) => {
      console.log(r.statusCode, s.alpnProtocol);
      r.pipe(process.stdout);
      r.on("end", () => s.end());
    });
  });
}).end();
`

// TestClientsInside runs what people run in sandboxes against hosts whose
// requests are looked at. The programs trust egressd's authority alone.
func TestClientsInside(t *testing.T) {
	d := world.Start(t, clientsPolicy)
	dir := t.TempDir()
	d.World.Origin.Publish(t, dir)
	publishRepository(t, d.World.Origin, filepath.Join(dir, "served"))
	ca := d.AuthorityFile()
	const denied = policy.PathDenied
	for _, row := range []struct {
		says, command, wants string
		works                bool
		asked                world.LoggedRequest
	}{
		{"curl, HTTP/1.1", "curl -sS --http1.1 --cacert $LAB_CA -w ' %{http_version}' https://curl.allowed.test/public/1", "GET /public/1 1.1", true, world.LoggedRequest{Method: "GET", Path: "/public/1", Status: 200}},
		{"curl, HTTP/2", "curl -sS --http2 --cacert $LAB_CA -w ' %{http_version}' https://curl.allowed.test/public/2", "GET /public/2 2", true, world.LoggedRequest{Method: "GET", Path: "/public/2", Status: 200}},
		{"curl over SOCKS", "curl -sS --cacert $LAB_CA -x socks5h://$LAB_PROXY https://curl.allowed.test/public/3", "GET /public/3", true, world.LoggedRequest{Method: "GET", Path: "/public/3", Status: 200}},
		{"curl uploads", "head -c 300000 /dev/zero | curl -sS --cacert $LAB_CA --data-binary @- https://curl.allowed.test/public/count", "origin received 300000 bytes", true, world.LoggedRequest{Method: "POST", Path: "/public/count", Status: 200}},
		{"curl, path denied", "curl -sS --cacert $LAB_CA https://curl.allowed.test/private", `"class":"path-denied"`, true, world.LoggedRequest{Method: "GET", Path: "/private", Class: denied}},
		{"curl, path denied, HTTP/1.1", "curl -sS -i --http1.1 --cacert $LAB_CA https://curl.allowed.test/private1", "Blocked by egressd: curl.allowed.test:443 path-denied", true, world.LoggedRequest{Method: "GET", Path: "/private1", Class: denied}},
		{"curl, method denied", "curl -sS --cacert $LAB_CA -X DELETE https://curl.allowed.test/public/5", `"class":"method-denied"`, true, world.LoggedRequest{Method: "DELETE", Path: "/public/5", Class: policy.MethodDenied}},
		{"git clone", "GIT_SSL_CAINFO=$LAB_CA git clone -q https://repo.allowed.test/repo.git clone && cat clone/file", "from the lab", true, world.LoggedRequest{Method: "POST", Path: "/repo.git/git-upload-pack", Status: 200}},
		{"git push denied", "cd clone && echo more >file && git -c user.name=lab -c user.email=lab@allowed.test commit -qam second && GIT_SSL_CAINFO=$LAB_CA git push origin HEAD", "403", false, world.LoggedRequest{Method: "POST", Path: "/repo.git/git-receive-pack", Class: denied}},
		{"git clone of another repository denied", "GIT_SSL_CAINFO=$LAB_CA git clone https://repo.allowed.test/other.git other", "remote: Blocked by egressd: repo.allowed.test:443 path-denied", false, world.LoggedRequest{Method: "GET", Path: "/other.git/info/refs", Class: denied}},
		{"npm view", "npm view demonstration version --registry https://npm.allowed.test/registry/", "3.2.1", true, world.LoggedRequest{Method: "GET", Path: "/registry/demonstration", Status: 200}},
		{"npm pack", "npm pack demonstration --silent --registry https://npm.allowed.test/registry/ && tar tzf demonstration-3.2.1.tgz", "package/package.json", true, world.LoggedRequest{Method: "GET", Path: "/x.tgz", Status: 200}},
		{"npm view denied", "npm view demonstration version --registry https://npm.allowed.test/elsewhere/", "403", false, world.LoggedRequest{Method: "GET", Path: "/elsewhere/demonstration", Class: denied}},
		{"pip download", "pip download -q --no-deps -d wheels --cert $LAB_CA --index-url https://pypi.allowed.test/simple demonstration && ls wheels", "demonstration-3.2.1", true, world.LoggedRequest{Method: "GET", Path: "/demonstration-3.2.1-py3-none-any.whl", Status: 200}},
		{"pip download denied", "pip download --no-deps --retries 0 --cert $LAB_CA --index-url https://pypi.allowed.test/simple another", "No matching distribution found for another", false, world.LoggedRequest{Method: "GET", Path: "/simple/another/", Class: denied}},
		{"Node, https", "node -e '" + nodeInside + "' $LAB_PROXY http/1.1 curl.allowed.test /public/node1", "200 http/1.1", true, world.LoggedRequest{Method: "GET", Path: "/public/node1", Status: 200}},
		{"Node, http2", "node -e '" + nodeInside + "' $LAB_PROXY h2 curl.allowed.test /public/node2", "200 h2", true, world.LoggedRequest{Method: "GET", Path: "/public/node2", Status: 200}},
		{"Node, http2, denied", "node -e '" + nodeInside + "' $LAB_PROXY h2 curl.allowed.test /node3", `"class":"path-denied"`, true, world.LoggedRequest{Method: "GET", Path: "/node3", Class: denied}},
		{"Python urllib", "SSL_CERT_FILE=$LAB_CA python3 -c \"import urllib.request as u; print(u.urlopen('https://curl.allowed.test/public/urllib').read())\"", "GET /public/urllib", true, world.LoggedRequest{Method: "GET", Path: "/public/urllib", Status: 200}},
		{"Python urllib denied", "SSL_CERT_FILE=$LAB_CA python3 -c \"import urllib.request as u; print(u.urlopen('https://curl.allowed.test/urllib').read())\"", "HTTP Error 403: Blocked by egressd: curl.allowed.test:443 path-denied", false, world.LoggedRequest{Method: "GET", Path: "/urllib", Class: denied}},
		{"Python requests", "REQUESTS_CA_BUNDLE=$LAB_CA python3 -c \"from pip._vendor import requests as r; print(r.post('https://curl.allowed.test/public/requests', data='x' * 100000).text)\"", "POST /public/requests", true, world.LoggedRequest{Method: "POST", Path: "/public/requests", Status: 200}},
	} {
		t.Run(row.says, func(t *testing.T) {
			mark := d.LogMark(t)
			out, err := d.Shell(dir, ca, row.command)
			if (err == nil) != row.works || !strings.Contains(out, row.wants) {
				t.Errorf("%v, printed %q, want %q", err, out, row.wants)
			}
			d.ExpectRequest(t, mark, row.asked)
		})
	}
	t.Run("Go", func(t *testing.T) { goInside(t, d) })
	t.Run("WebSocket", func(t *testing.T) { webSocketInside(t, d) })
	t.Run("gRPC", func(t *testing.T) { grpcInside(t, d) })
	t.Run("curl that does not trust egressd", func(t *testing.T) { distrusted(t, d, dir) })
}

// publishRepository serves a repository by git itself, for reading and writing.
func publishRepository(t *testing.T, o *world.Origin, dir string) {
	t.Helper()
	world.MakeRepository(t, filepath.Join(dir, "repo.git"))
	o.ServeRepositories(t, "repo.allowed.test", dir)
}

func goInside(t *testing.T, d *world.Daemon) {
	for version, h2 := range map[int]bool{1: false, 2: true} {
		mark := d.LogMark(t)
		c := insider(t, d, h2)
		response, body := look(t, c, "GET", "https://curl.allowed.test/public/go")
		if response.StatusCode != 200 || response.ProtoMajor != version || !strings.Contains(body, "GET /public/go") {
			t.Errorf("HTTP/%d: %s %s %q", version, response.Proto, response.Status, body)
		}
		d.ExpectRequest(t, mark, world.LoggedRequest{Method: "GET", Path: "/public/go", Status: 200})
		if response, body := look(t, c, "GET", "https://curl.allowed.test/go"); response.StatusCode != 403 || !strings.Contains(body, "path-denied") {
			t.Errorf("HTTP/%d, denied: %s %q", version, response.Status, body)
		}
		d.ExpectRequest(t, mark, world.LoggedRequest{Method: "GET", Path: "/go", Class: policy.PathDenied})
	}
}

// webSocketInside exchanges messages over a WebSocket.
func webSocketInside(t *testing.T, d *world.Daemon) {
	d.World.Origin.Sites.Store("ws.allowed.test", websocket.Handler(echoMessages))
	mark := d.LogMark(t)
	tunnel, status, err := d.OpenTunnel("ws.allowed.test:443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	defer tunnel.Close()
	config, err := websocket.NewConfig("wss://ws.allowed.test/ws", "https://ws.allowed.test")
	if err != nil {
		t.Fatal(err)
	}
	c, err := websocket.NewClient(config, tls.Client(tunnel, &tls.Config{ServerName: "ws.allowed.test", RootCAs: d.Trusts(t)}))
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range []string{"hello", strings.Repeat("long ", 20_000), ""} {
		var echo string
		if err := websocket.Message.Send(c, message); err != nil {
			t.Fatal(err)
		}
		if err := websocket.Message.Receive(c, &echo); err != nil || echo != message {
			t.Fatalf("%d bytes came back of %d: %v", len(echo), len(message), err)
		}
	}
	c.Close()
	d.ExpectRequest(t, mark, world.LoggedRequest{Method: "GET", Path: "/ws", Status: 101})
}

func echoMessages(c *websocket.Conn) {
	for {
		var message string
		if websocket.Message.Receive(c, &message) != nil || websocket.Message.Send(c, message) != nil {
			return
		}
	}
}

// grpcInside asks a host for its health as gRPC does: a request and a response
// that are each a message behind five bytes, and a status in the trailer.
func grpcInside(t *testing.T, d *world.Daemon) {
	d.World.Origin.Sites.Store("grpc.allowed.test", http.HandlerFunc(serveHealth))
	mark := d.LogMark(t)
	c := insider(t, d, true)
	const method = "/grpc.health.v1.Health/Check"
	request, err := http.NewRequestWithContext(t.Context(), "POST", "https://grpc.allowed.test"+method, bytes.NewReader([]byte{0, 0, 0, 0, 0}))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	message, err := io.ReadAll(response.Body)
	if err != nil || !bytes.Equal(message, serving) || response.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%s %q, trailer %v, %v", response.Proto, message, response.Trailer, err)
	}
	d.ExpectRequest(t, mark, world.LoggedRequest{Method: "POST", Path: method, Status: 200})
}

// serving is the message HealthCheckResponse{status: SERVING}.
var serving = []byte{0, 0, 0, 0, 2, 8, 1}

func serveHealth(w http.ResponseWriter, r *http.Request) {
	asked, err := io.ReadAll(r.Body)
	if err != nil || r.ProtoMajor != 2 || r.Header.Get("Te") != "trailers" || len(asked) != 5 {
		http.Error(w, "not gRPC", http.StatusUnsupportedMediaType)
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	w.Write(serving)
	w.Header().Set("Grpc-Status", "0")
}

// distrusted has a program refuse egressd's certificate: the log says so, and
// what can be done.
func distrusted(t *testing.T, d *world.Daemon, dir string) {
	mark := d.LogMark(t)
	out, err := d.Shell(dir, d.World.Origin.Ca.File(t), "curl -sS --cacert $LAB_CA https://curl.allowed.test/public/x")
	if err == nil || !strings.Contains(out, "certificate") {
		t.Errorf("%v, printed %q", err, out)
	}
	refused := func(r record.Record) bool {
		return r.Kind == record.KindClose && r.Outcome == record.Outcome(policy.CertificateRefused) && strings.Contains(r.Note, "tls.never")
	}
	if !world.Eventually(world.Settling, func() bool {
		records, _ := d.Log.Since(mark)
		return slices.ContainsFunc(records, refused)
	}) {
		t.Error("no record says that the certificate was refused")
	}
}
