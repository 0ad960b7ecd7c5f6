package e2e

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/cgi"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/websocket"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
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

// An asked is a request that a program makes, as the log has to tell it.
type asked struct {
	method, path string
	status       int          // of the response, 0 where it was denied
	class        policy.Class // of the denial
}

// TestClientsInside runs what people run in sandboxes against hosts whose
// requests are looked at. The programs trust egressd's authority alone.
func TestClientsInside(t *testing.T) {
	d := start(t, clientsPolicy)
	dir := t.TempDir()
	d.world.origin.publish(t, dir)
	d.world.origin.publishRepository(t, filepath.Join(dir, "served"))
	ca := d.authorityFile()
	const denied = policy.PathDenied
	for _, row := range []struct {
		says, command, wants string
		works                bool
		asked                asked
	}{
		{"curl, HTTP/1.1", "curl -sS --http1.1 --cacert $LAB_CA -w ' %{http_version}' https://curl.allowed.test/public/1", "GET /public/1 1.1", true, asked{method: "GET", path: "/public/1", status: 200}},
		{"curl, HTTP/2", "curl -sS --http2 --cacert $LAB_CA -w ' %{http_version}' https://curl.allowed.test/public/2", "GET /public/2 2", true, asked{method: "GET", path: "/public/2", status: 200}},
		{"curl over SOCKS", "curl -sS --cacert $LAB_CA -x socks5h://$LAB_PROXY https://curl.allowed.test/public/3", "GET /public/3", true, asked{method: "GET", path: "/public/3", status: 200}},
		{"curl uploads", "head -c 300000 /dev/zero | curl -sS --cacert $LAB_CA --data-binary @- https://curl.allowed.test/public/count", "origin received 300000 bytes", true, asked{method: "POST", path: "/public/count", status: 200}},
		{"curl, path denied", "curl -sS --cacert $LAB_CA https://curl.allowed.test/private", `"class":"path-denied"`, true, asked{method: "GET", path: "/private", class: denied}},
		{"curl, path denied, HTTP/1.1", "curl -sS -i --http1.1 --cacert $LAB_CA https://curl.allowed.test/private1", "Blocked by egressd: curl.allowed.test:443 path-denied", true, asked{method: "GET", path: "/private1", class: denied}},
		{"curl, method denied", "curl -sS --cacert $LAB_CA -X DELETE https://curl.allowed.test/public/5", `"class":"method-denied"`, true, asked{method: "DELETE", path: "/public/5", class: policy.MethodDenied}},
		{"git clone", "GIT_SSL_CAINFO=$LAB_CA git clone -q https://repo.allowed.test/repo.git clone && cat clone/file", "from the lab", true, asked{method: "POST", path: "/repo.git/git-upload-pack", status: 200}},
		{"git push denied", "cd clone && echo more >file && git -c user.name=lab -c user.email=lab@allowed.test commit -qam second && GIT_SSL_CAINFO=$LAB_CA git push origin HEAD", "403", false, asked{method: "POST", path: "/repo.git/git-receive-pack", class: denied}},
		{"git clone of another repository denied", "GIT_SSL_CAINFO=$LAB_CA git clone https://repo.allowed.test/other.git other", "remote: Blocked by egressd: repo.allowed.test:443 path-denied", false, asked{method: "GET", path: "/other.git/info/refs", class: denied}},
		{"npm view", "npm view demonstration version --registry https://npm.allowed.test/registry/", "3.2.1", true, asked{method: "GET", path: "/registry/demonstration", status: 200}},
		{"npm pack", "npm pack demonstration --silent --registry https://npm.allowed.test/registry/ && tar tzf demonstration-3.2.1.tgz", "package/package.json", true, asked{method: "GET", path: "/x.tgz", status: 200}},
		{"npm view denied", "npm view demonstration version --registry https://npm.allowed.test/elsewhere/", "403", false, asked{method: "GET", path: "/elsewhere/demonstration", class: denied}},
		{"pip download", "pip download -q --no-deps -d wheels --cert $LAB_CA --index-url https://pypi.allowed.test/simple demonstration && ls wheels", "demonstration-3.2.1", true, asked{method: "GET", path: "/demonstration-3.2.1-py3-none-any.whl", status: 200}},
		{"pip download denied", "pip download --no-deps --retries 0 --cert $LAB_CA --index-url https://pypi.allowed.test/simple another", "No matching distribution found for another", false, asked{method: "GET", path: "/simple/another/", class: denied}},
		{"Node, https", "node -e '" + nodeInside + "' $LAB_PROXY http/1.1 curl.allowed.test /public/node1", "200 http/1.1", true, asked{method: "GET", path: "/public/node1", status: 200}},
		{"Node, http2", "node -e '" + nodeInside + "' $LAB_PROXY h2 curl.allowed.test /public/node2", "200 h2", true, asked{method: "GET", path: "/public/node2", status: 200}},
		{"Node, http2, denied", "node -e '" + nodeInside + "' $LAB_PROXY h2 curl.allowed.test /node3", `"class":"path-denied"`, true, asked{method: "GET", path: "/node3", class: denied}},
		{"Python urllib", "SSL_CERT_FILE=$LAB_CA python3 -c \"import urllib.request as u; print(u.urlopen('https://curl.allowed.test/public/urllib').read())\"", "GET /public/urllib", true, asked{method: "GET", path: "/public/urllib", status: 200}},
		{"Python urllib denied", "SSL_CERT_FILE=$LAB_CA python3 -c \"import urllib.request as u; print(u.urlopen('https://curl.allowed.test/urllib').read())\"", "HTTP Error 403: Blocked by egressd: curl.allowed.test:443 path-denied", false, asked{method: "GET", path: "/urllib", class: denied}},
		{"Python requests", "REQUESTS_CA_BUNDLE=$LAB_CA python3 -c \"from pip._vendor import requests as r; print(r.post('https://curl.allowed.test/public/requests', data='x' * 100000).text)\"", "POST /public/requests", true, asked{method: "POST", path: "/public/requests", status: 200}},
	} {
		t.Run(row.says, func(t *testing.T) {
			mark := d.marked(t)
			out, err := d.shell(dir, ca, row.command)
			if (err == nil) != row.works || !strings.Contains(out, row.wants) {
				t.Errorf("%v, printed %q, want %q", err, out, row.wants)
			}
			d.tells(t, mark, row.asked)
		})
	}
	t.Run("Go", func(t *testing.T) { d.goInside(t) })
	t.Run("WebSocket", func(t *testing.T) { d.webSocketInside(t) })
	t.Run("gRPC", func(t *testing.T) { d.grpcInside(t) })
	t.Run("curl that does not trust egressd", func(t *testing.T) { d.distrusted(t, dir) })
}

// publishRepository serves a repository by git itself, for reading and writing.
func (o *origin) publishRepository(t *testing.T, dir string) {
	t.Helper()
	makeRepository(t, filepath.Join(dir, "repo.git"))
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	o.sites.Store("repo.allowed.test", &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Root: "/", Stderr: io.Discard,
		Env: []string{
			"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
			"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true", "GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
		},
	})
}

func (d *daemon) marked(t *testing.T) int {
	t.Helper()
	mark, err := d.log.mark()
	if err != nil {
		t.Fatal(err)
	}
	return mark
}

// tells checks what the log says of a request that was made after the mark.
func (d *daemon) tells(t *testing.T, mark int, a asked) {
	t.Helper()
	var records []record.Record
	var request, end *record.Record
	found := func() bool {
		records, _ = d.log.since(mark)
		request, end = requestOf(records, a)
		return request != nil && (end != nil || a.status == 0)
	}
	if !eventually(settling, found) {
		t.Errorf("the log does not tell of %s %s: %+v", a.method, a.path, records)
		return
	}
	if request.TLS == nil || !request.TLS.Inspected {
		t.Errorf("the request's record does not say that it was inspected: %+v", request.TLS)
	}
	if a.status == 0 {
		if request.Decision.Action != "deny" || request.Decision.Class != string(a.class) {
			t.Errorf("%s %s was decided %+v", a.method, a.path, request.Decision)
		}
		return
	}
	if request.Decision.Action != "allow" || end.HTTP == nil || end.HTTP.Status != a.status || end.Outcome != "closed" {
		t.Errorf("%s %s was decided %+v and ended %+v %+v", a.method, a.path, request.Decision, end, end.HTTP)
	}
	if b := end.Bytes; b == nil || b.Down == 0 || a.method == "POST" && b.Up == 0 {
		t.Errorf("%s %s carried %+v", a.method, a.path, b)
	}
}

// requestOf finds the records of a request's decision and of its end.
func requestOf(records []record.Record, a asked) (request, end *record.Record) {
	of := func(r record.Record) bool {
		return r.Kind == record.KindRequest && r.HTTP != nil && r.HTTP.Method == a.method && r.HTTP.Path == a.path
	}
	i := slices.IndexFunc(records, of)
	if i < 0 {
		return nil, nil
	}
	request = &records[i]
	j := slices.IndexFunc(records, func(r record.Record) bool { return r.Kind == record.KindClose && r.Flow == request.Flow })
	if j < 0 {
		return request, nil
	}
	return request, &records[j]
}

func (d *daemon) goInside(t *testing.T) {
	for version, h2 := range map[int]bool{1: false, 2: true} {
		mark := d.marked(t)
		c := d.insider(t, h2)
		response, body := look(t, c, "GET", "https://curl.allowed.test/public/go")
		if response.StatusCode != 200 || response.ProtoMajor != version || !strings.Contains(body, "GET /public/go") {
			t.Errorf("HTTP/%d: %s %s %q", version, response.Proto, response.Status, body)
		}
		d.tells(t, mark, asked{method: "GET", path: "/public/go", status: 200})
		if response, body := look(t, c, "GET", "https://curl.allowed.test/go"); response.StatusCode != 403 || !strings.Contains(body, "path-denied") {
			t.Errorf("HTTP/%d, denied: %s %q", version, response.Status, body)
		}
		d.tells(t, mark, asked{method: "GET", path: "/go", class: policy.PathDenied})
	}
}

// webSocketInside exchanges messages over a WebSocket.
func (d *daemon) webSocketInside(t *testing.T) {
	d.world.origin.sites.Store("ws.allowed.test", websocket.Handler(echoMessages))
	mark := d.marked(t)
	tunnel, status, err := d.open("ws.allowed.test:443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	defer tunnel.Close()
	config, err := websocket.NewConfig("wss://ws.allowed.test/ws", "https://ws.allowed.test")
	if err != nil {
		t.Fatal(err)
	}
	c, err := websocket.NewClient(config, tls.Client(tunnel, &tls.Config{ServerName: "ws.allowed.test", RootCAs: d.trusts(t)}))
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
	d.tells(t, mark, asked{method: "GET", path: "/ws", status: 101})
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
func (d *daemon) grpcInside(t *testing.T) {
	d.world.origin.sites.Store("grpc.allowed.test", http.HandlerFunc(serveHealth))
	mark := d.marked(t)
	c := d.insider(t, true)
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
	d.tells(t, mark, asked{method: "POST", path: method, status: 200})
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
func (d *daemon) distrusted(t *testing.T, dir string) {
	mark := d.marked(t)
	out, err := d.shell(dir, d.world.origin.ca.file(t), "curl -sS --cacert $LAB_CA https://curl.allowed.test/public/x")
	if err == nil || !strings.Contains(out, "certificate") {
		t.Errorf("%v, printed %q", err, out)
	}
	refused := func(r record.Record) bool {
		return r.Kind == record.KindClose && r.Outcome == string(policy.CertificateRefused) && strings.Contains(r.Note, "tls.never")
	}
	if !eventually(settling, func() bool {
		records, _ := d.log.since(mark)
		return slices.ContainsFunc(records, refused)
	}) {
		t.Error("no record says that the certificate was refused")
	}
}
