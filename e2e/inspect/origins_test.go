package inspect

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// originsPolicy decides each request by its method. It says nothing of paths, so that all paths go up.
const originsPolicy = `version: 1
allow: [{host: "servers.allowed.test:*", methods: [GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE]}]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`

// Ports of the servers. The last one speaks HTTP/2 alone.
const (
	nginxPlain, nginxTLS       = 8080, 8443
	nodePlain, nodeTLS, nodeH2 = 8081, 8444, 8445
)

// An understood request is what a server that others wrote reports of one.
type understood struct {
	Method, Target, Host string
	Path                 string // as the server itself normalises it
	Body                 string
	Length               int
	Status               string // with which the server itself refused; nginx alone reports such requests
}

// servers are nginx and Node, in the internet.
type servers struct {
	mu      sync.Mutex
	reports bytes.Buffer // of Node
	log     string       // of nginx
}

func (s *servers) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reports.Write(b)
}

// of returns what one of the two has understood so far.
func (s *servers) of(t *testing.T, server string) (all []understood) {
	t.Helper()
	text, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	if server == "Node" {
		s.mu.Lock()
		text = bytes.Clone(s.reports.Bytes())
		s.mu.Unlock()
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var u understood
		if err := json.Unmarshal(line, &u); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		u.Length += len(u.Body)
		u.Host, _, _ = strings.Cut(u.Host, ":")
		all = append(all, u)
	}
	return all
}

const nginxConfig = `daemon off;
pid %[1]s/pid;
master_process off;
error_log %[1]s/error.log;
events {}
http {
	log_format understood escape=json '{"Method":"$request_method","Target":"$request_uri","Host":"$host","Path":"$uri","Body":"$request_body","Status":"$refused"}';
	map $status $refused { 200 ""; default $status; }
	access_log %[1]s/understood understood;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	server {
		listen 127.0.0.1:%[2]d;
		listen 127.0.0.1:%[3]d ssl http2;
		ssl_certificate %[4]s;
		ssl_certificate_key %[5]s;
		location / { proxy_pass http://unix:%[1]s/behind; }
	}
	server {
		listen unix:%[1]s/behind;
		access_log off;
		location / { return 200 "fine\n"; }
	}
}
`

const nodeServers = `
const http = require("http"), https = require("https"), http2 = require("http2"), fs = require("fs");
const [certificate, key, plain, secure, h2] = process.argv.slice(1);
const tls = {cert: fs.readFileSync(certificate), key: fs.readFileSync(key)};
const serve = (req, res) => {
  let Length = 0, Path = "";
  try { Path = new URL(req.url, "http://servers").pathname } catch (e) { Path = e.code }
  req.on("data", d => Length += d.length).on("end", () => {
    console.log(JSON.stringify({Method: req.method, Target: req.url, Host: req.headers[":authority"] || req.headers.host, Path, Length}));
    res.end("fine\n");
  });
};
http.createServer(serve).listen(+plain, "127.0.0.1");
https.createServer(tls, serve).listen(+secure, "127.0.0.1");
http2.createSecureServer(tls, serve).listen(+h2, "127.0.0.1");
`

// startServers runs nginx and Node in the internet, behind the ports of every address there.
func startServers(t *testing.T, d *world.Daemon) *servers {
	t.Helper()
	dir := t.TempDir()
	certificate, key := d.World.Origin.Ca.KeyPair(t, "servers.allowed.test")
	s := &servers{log: filepath.Join(dir, "understood")}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConfig, dir, nginxPlain, nginxTLS, certificate, key), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	var said bytes.Buffer
	nginx := exec.CommandContext(ctx, "nginx", "-c", conf, "-e", filepath.Join(dir, "error.log"))
	nginx.Stderr = &said
	node := exec.CommandContext(ctx, "node", "-e", nodeServers, certificate, key, fmt.Sprint(nodePlain), fmt.Sprint(nodeTLS), fmt.Sprint(nodeH2))
	node.Stdout, node.Stderr = s, os.Stderr
	for _, cmd := range []*exec.Cmd{nginx, node} {
		if err := d.World.Internet.Start(cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); cmd.Wait() })
	}
	for _, port := range []uint16{nginxPlain, nginxTLS, nodePlain, nodeTLS, nodeH2} {
		at := fmt.Sprintf("127.0.0.1:%d", port)
		up := world.Eventually(20*time.Second, func() bool {
			c, err := d.World.Internet.Dial("tcp", at)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		if !up {
			t.Fatalf("nobody listens at %s: %s", at, said.String())
		}
		d.World.Origin.Ports.Store(port, func(c net.Conn) { passOn(d, c, at) })
		t.Cleanup(func() { d.World.Origin.Ports.Delete(port) })
	}
	return s
}

// passOn passes on what comes, both ways.
func passOn(d *world.Daemon, c net.Conn, at string) {
	behind, err := d.World.Internet.Dial("tcp", at)
	if err != nil {
		return
	}
	defer behind.Close()
	var up sync.WaitGroup
	defer up.Wait()
	up.Go(func() {
		if _, err := io.Copy(behind, c); err != nil {
			behind.Close()
		}
		behind.(*net.TCPConn).CloseWrite()
	})
	io.Copy(c, behind)
	c.Close()
}

// A hostile request is what a client sends. Each is sent by all ways.
type hostile struct {
	says, method, target string
	fields               []string // beside Host
	body                 string   // as HTTP/1 frames it; of HTTP/2, its data
	passes               int      // as so many requests
	length               int      // of the body of the first one
	judged               string   // path, if it is not that of target
	nginx, node          string   // the path as the server reads it, if that is another; a status: the server refuses it
	h1                   bool     // HTTP/2 has no such request
	bare                 bool     // without a Host field of its own
}

var hostiles = []hostile{
	{says: "nothing hostile", method: "GET", target: "/x?y=1", passes: 1},
	{says: "an empty query", method: "GET", target: "/x?", passes: 1},
	{says: "a query of odd bytes", method: "GET", target: "/x?%zz&a=b?c/../&<>\"", passes: 1},
	{says: "escapes of slashes and letters", method: "GET", target: "/%41%2f%2Fb", passes: 1, nginx: "/A/b"},
	{says: "dot segments", method: "GET", target: "/a/../b/./c", passes: 1, nginx: "/b/c", node: "/b/c"},
	{says: "escaped dot segments", method: "GET", target: "/a/%2e%2e/b", passes: 1, nginx: "/b", node: "/b"},
	{says: "dot segments above the root", method: "GET", target: "/../b", passes: 1, nginx: "400", node: "/b"},
	{says: "overlong UTF-8", method: "GET", target: "/%c0%ae%c0%ae/b", passes: 1, nginx: "/\ufffd\ufffd\ufffd\ufffd/b"},
	{says: "two slashes", method: "GET", target: "/a//b", passes: 1, nginx: "/a/b"},
	{says: "two slashes to begin with", method: "GET", target: "//evil.test/a"},
	{says: "a backslash", method: "GET", target: "/a\\..\\b", passes: 1, node: "/b"},
	{says: "path parameters", method: "GET", target: "/a;b=c/..;/d", passes: 1},
	{says: "an escaped NUL", method: "GET", target: "/a%00b", passes: 1, nginx: "400"},
	{says: "an escape that is none", method: "GET", target: "/%zz"},
	{says: "a path that is not ASCII", method: "GET", target: "/日本", passes: 1, judged: "/%E6%97%A5%E6%9C%AC", nginx: "/日本", node: "/%E6%97%A5%E6%9C%AC"},
	{says: "a path that is not UTF-8", method: "GET", target: "/\xff"},
	{says: "a fragment", method: "GET", target: "/a#b"},
	{says: "a fragment behind a query", method: "GET", target: "/a?b#/../c"},
	{says: "a URL as a path", method: "GET", target: "/http://evil.test/", passes: 1, nginx: "/http:/evil.test/"},
	{says: "the server itself", method: "OPTIONS", target: "*", passes: 1, nginx: "400", node: "/*", h1: true},
	{says: "a method in lower case", method: "get", target: "/x"},
	{says: "a method to be replaced", method: "GET", target: "/x", fields: []string{"X-HTTP-Method-Override: DELETE"}},
	{says: "TRACE", method: "TRACE", target: "/x"},
	{says: "a body of known length", method: "PUT", target: "/x", fields: []string{"Content-Length: 3"}, body: "abc", passes: 1, length: 3},
	{says: "a GET with a body", method: "GET", target: "/x", fields: []string{"Content-Length: 3"}, body: "abc", passes: 1, length: 3},
	{says: "a HEAD with a body", method: "HEAD", target: "/x", fields: []string{"Content-Length: 3"}, body: "abc", passes: 1, length: 3, h1: true},
	{says: "a body of another length", method: "POST", target: "/x", fields: []string{"Content-Length: 03"}, body: "abc", h1: true},
	{says: "a length with a sign", method: "POST", target: "/x", fields: []string{"Content-Length: +3"}, body: "abc"},
	{says: "two lengths", method: "POST", target: "/x", fields: []string{"Content-Length: 3", "Content-Length: 30"}, body: "abc"},
	{says: "a list of lengths", method: "POST", target: "/x", fields: []string{"Content-Length: 3, 3"}, body: "abc"},
	{says: "a length with an underscore", method: "POST", target: "/x", fields: []string{"Content-Length: 3", "Content_Length: 30"}, body: "abc", passes: 1, length: 3},
	{says: "chunks", method: "POST", target: "/x", fields: []string{"Transfer-Encoding: chunked"}, body: "3\r\nabc\r\n0\r\n\r\n", passes: 1, length: 3, h1: true},
	{says: "chunks in capitals", method: "POST", target: "/x", fields: []string{"Transfer-Encoding: CHUNKED"}, body: "3\r\nabc\r\n0\r\n\r\n", passes: 1, length: 3, h1: true},
	{says: "chunks with extensions and trailers", method: "POST", target: "/x", fields: []string{"Transfer-Encoding: chunked", "Trailer: Host"}, body: "3;a=\"b\"\r\nabc\r\n0\r\nHost: evil.test\r\nContent-Length: 9\r\n\r\n", passes: 1, length: 3, h1: true},
	{says: "chunks and a length", method: "POST", target: "/x", fields: []string{"Transfer-Encoding: chunked", "Content-Length: 3"}, body: "3\r\nabc\r\n0\r\n\r\n", h1: true},
	{says: "a coding before chunks", method: "POST", target: "/x", fields: []string{"Transfer-Encoding: gzip, chunked"}, body: "3\r\nabc\r\n0\r\n\r\n", h1: true},
	{says: "a coding with a control character", method: "POST", target: "/x", fields: []string{"Transfer-Encoding: \x0bchunked"}, body: "3\r\nabc\r\n0\r\n\r\n", h1: true},
	{says: "a coding with an underscore", method: "POST", target: "/x", fields: []string{"Transfer_Encoding: chunked", "Content-Length: 13"}, body: "3\r\nabc\r\n0\r\n\r\n", passes: 1, length: 13, h1: true},
	{says: "a blank before the colon", method: "POST", target: "/x", fields: []string{"Content-Length : 3"}, body: "abc", h1: true},
	{says: "a request in a body", method: "POST", target: "/x", fields: []string{"Content-Length: 48"}, body: "DELETE /y HTTP/1.1\r\nHost: servers.allowed.test\r\n", passes: 1, length: 48},
	{says: "a request behind chunks", method: "POST", target: "/x", fields: []string{"Transfer-Encoding: chunked"}, body: "0\r\n\r\nGET PREFIX/y HTTP/1.1\r\nHost: HOST\r\n\r\n", passes: 2, h1: true},
	{says: "a request behind no body", method: "GET", target: "/x", body: "GET PREFIX/y HTTP/1.1\r\nHost: HOST\r\n\r\n", passes: 2, h1: true},
	{says: "a folded field", method: "GET", target: "/x", fields: []string{"X-A: 1", " Host: evil.test"}, h1: true},
	{says: "a field with a bare line feed", method: "GET", target: "/x", fields: []string{"X-A: 1\nHost: evil.test"}},
	{says: "a field with a NUL", method: "GET", target: "/x", fields: []string{"X-A: \x00"}},
	{says: "a field that concerns the connection", method: "GET", target: "/x", fields: []string{"X-A: 1", "Connection: X-A"}, passes: 1},
	{says: "a connection that nominates the length", method: "POST", target: "/x", fields: []string{"Content-Length: 3", "Connection: Content-Length"}, body: "abc", h1: true},
	{says: "an expectation", method: "POST", target: "/x", fields: []string{"Content-Length: 3", "Expect: 100-continue"}, body: "abc", passes: 1, length: 3},
	{says: "a change of protocol", method: "GET", target: "/x", fields: []string{"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ"}, passes: 1, h1: true},
	{says: "another host beside it", method: "GET", target: "/x", fields: []string{"Host: evil.test"}, h1: true},
	{says: "another host alone", method: "GET", target: "/x", fields: []string{"Host: evil.test"}, bare: true},
	{says: "a host in capitals", method: "GET", target: "/x", fields: []string{"Host: SERVERS.allowed.TEST.:PORT"}, bare: true, passes: 1},
	{says: "a host of another server in X-Forwarded-Host", method: "GET", target: "/x", fields: []string{"X-Forwarded-Host: evil.test", "X_Original_URL: /y"}, passes: 1},
}

// text is the request for a port, with a target that begins with prefix.
func (h *hostile) text(prefix string, port int) string {
	host := fmt.Sprintf("servers.allowed.test:%d", port)
	fields := h.fields
	if !h.bare {
		fields = append([]string{"Host: " + host}, fields...)
	}
	text := h.method + " " + prefix + h.target + " HTTP/1.1\r\n" + strings.Join(fields, "\r\n") + "\r\n\r\n" + h.body
	return strings.NewReplacer("HOST", host, "PREFIX", prefix, "PORT", fmt.Sprint(port)).Replace(text)
}

// send sends a hostile request to a port, and reads all that is answered.
func (h *hostile) send(t *testing.T, d *world.Daemon, way string, port int) string {
	t.Helper()
	at := fmt.Sprintf("servers.allowed.test:%d", port)
	if way == "to the proxy" {
		c, err := d.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return converse(c, h.text("http://"+at, port))
	}
	c, status, err := d.OpenTunnel(at, "")
	if err != nil || status != 200 {
		t.Fatalf("CONNECT: %d, %v", status, err)
	}
	defer c.Close()
	if way == "in a tunnel" {
		return converse(c.Conn, h.text("", port))
	}
	config := &tls.Config{ServerName: "servers.allowed.test", RootCAs: d.Trusts(t), NextProtos: []string{"http/1.1"}}
	if way == "over HTTP/2" {
		config.NextProtos[0] = "h2"
	}
	inner := tls.Client(c.Conn, config)
	if err := inner.Handshake(); err != nil {
		t.Fatal(err)
	}
	if way == "over HTTP/2" {
		a, err := world.AskH2(inner, h.text("", port))
		return fmt.Sprint(a.Status, err, a.Body)
	}
	return converse(inner, h.text("", port))
}

func converse(c net.Conn, text string) string {
	io.WriteString(c, text)
	c.(interface{ CloseWrite() error }).CloseWrite()
	answer, _ := io.ReadAll(bufio.NewReader(c))
	return string(answer)
}

// allowedSince returns the requests that were allowed since a mark.
func allowedSince(t *testing.T, d *world.Daemon, mark int) (all []record.Record) {
	t.Helper()
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if (r.Kind == record.KindOpen || r.Kind == record.KindRequest) && r.HTTP != nil && r.Decision.Action == "allow" {
			all = append(all, r)
		}
	}
	return all
}

// TestServersUnderstandWhatWasJudged sends hostile requests to nginx and to Node's three servers. What they report is what
// the log says was allowed: as many requests, with the same method, target, host and length. Some read a path in their own
// way, behind that: the table says which, and a rule of paths refuses such paths.
func TestServersUnderstandWhatWasJudged(t *testing.T) {
	d := world.Start(t, originsPolicy)
	s := startServers(t, d)
	for _, way := range []struct {
		says        string
		nginx, node int
	}{
		{"to the proxy", nginxPlain, nodePlain}, {"in a tunnel", nginxPlain, nodePlain}, {"over TLS", nginxTLS, nodeTLS}, {"over HTTP/2", nginxTLS, nodeH2},
	} {
		for _, row := range hostiles {
			if row.h1 && way.says == "over HTTP/2" || row.target == "*" && way.says == "to the proxy" {
				continue
			}
			for server, port := range map[string]int{"nginx": way.nginx, "Node": way.node} {
				t.Run(way.says+"/"+server+"/"+row.says, func(t *testing.T) { row.check(t, d, s, way.says, server, port) })
			}
		}
	}
}

func (h *hostile) check(t *testing.T, d *world.Daemon, s *servers, way, server string, port int) {
	mark, before := d.LogMark(t), len(s.of(t, server))
	passes := h.passes
	if way == "to the proxy" && h.bare {
		passes = 1 // a proxy goes by the target (RFC 9112 section 3.2.2)
	}
	answer := h.send(t, d, way, port)
	var got []understood
	var judged []record.Record
	agree := world.Eventually(2*time.Second, func() bool {
		got, judged = s.of(t, server)[before:], allowedSince(t, d, mark)
		return len(got) == len(judged) && len(judged) == passes
	})
	if !agree {
		t.Fatalf("%d should pass, %d were allowed, %s understood %+v\nanswered %.300q", passes, len(judged), server, got, answer)
	}
	own := map[string]string{"nginx": h.nginx, "Node": h.node}[server]
	for i, u := range got {
		path, _, _ := strings.Cut(u.Target, "?")
		if u.Target == "" && u.Status != "" && u.Status == own { // refused unread
			continue
		}
		if r := &judged[i]; u.Method != r.HTTP.Method || path != r.HTTP.Path || u.Host != r.Dst.Host {
			t.Errorf("judged was %s %s of %s, %s understood %+v", r.HTTP.Method, r.HTTP.Path, r.Dst.Host, server, u)
		}
		if i > 0 {
			continue
		}
		if u.Target != cmp.Or(h.judged, h.target) || u.Length != h.length && u.Status == "" {
			t.Errorf("sent were %s and %d bytes, %s understood %+v", h.target, h.length, server, u)
		}
		if u.Status != "" && u.Status != own || u.Status == "" && u.Path != cmp.Or(own, path) {
			t.Errorf("%s read the path %q, status %q; expected %q", server, u.Path, u.Status, cmp.Or(own, path))
		}
	}
}
