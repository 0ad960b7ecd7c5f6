// Command embed-goproxy is a goproxy server of which every request and every CONNECT goes through an egress.Gate:
// the policy decides, the gate dials, and the audit log says what left.
//
// The gate decides destinations and requests. It does not read a tunnel: that the ClientHello names the host of the
// CONNECT is checked by package proxy, which egressd itself uses.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
	"github.com/elazarl/goproxy"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: embed-goproxy POLICY.yaml AUDITDIR NAMESERVER:PORT")
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server, err := netip.ParseAddrPort(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	gate, stop, err := newGate(text, os.Args[2], &dns.Forwarder{Upstreams: []netip.AddrPort{server}})
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	log.Print(http.ListenAndServe("127.0.0.1:3128", newProxy(gate)))
}

// newGate makes a gate for the rules in text, with a new audit log in dir. Call stop to end the log.
func newGate(text []byte, dir string, names egress.Resolver) (gate *egress.Gate, stop func(), err error) {
	parsed, err := file.Parse("policy", text)
	if err != nil {
		return nil, nil, err
	}
	rules, err := parsed.Compile(file.Environment{})
	if err != nil {
		return nil, nil, err
	}
	everyone, err := sandbox.NewDirectory(nil)
	if err != nil {
		return nil, nil, err
	}
	records, err := audit.Create(dir, audit.Options{})
	if err != nil {
		return nil, nil, err
	}
	gate = egress.New(egress.Config{Log: records, Sandboxes: everyone, Resolver: names})
	if err := gate.SetPolicy(context.Background(), rules, "loaded"); err != nil {
		return nil, nil, errors.Join(err, records.Close())
	}
	return gate, func() { gate.Shut(); gate.Records.Settle(); _ = records.Close() }, nil
}

func newProxy(gate *egress.Gate) *goproxy.ProxyHttpServer {
	p := goproxy.NewProxyHttpServer()
	p.OnRequest().HandleConnectFunc(func(host string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		return &goproxy.ConnectAction{Action: goproxy.ConnectHijack, Hijack: func(r *http.Request, client net.Conn, _ *goproxy.ProxyCtx) {
			defer client.Close()
			connect(gate, r, client)
		}}, host
	})
	p.OnRequest().DoFunc(func(r *http.Request, ctx *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		flow, err := open(gate, r, policy.ViaHTTP, net.JoinHostPort(r.URL.Hostname(), or(r.URL.Port(), "80")), &policy.HTTPRequest{Method: r.Method, Path: r.URL.Path})
		if err != nil {
			return r, goproxy.NewResponse(r, goproxy.ContentTypeText, http.StatusForbidden, err.Error()+"\n")
		}
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return flow.Dial(ctx) }
		ctx.RoundTripper = goproxy.RoundTripperFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Response, error) {
			answer, err := (&http.Transport{DialContext: dial, DisableKeepAlives: true}).RoundTrip(r)
			if err != nil {
				flow.Close(egress.End{Outcome: "failed"})
				return nil, err
			}
			answer.Body = &counted{ReadCloser: answer.Body, flow: flow, status: answer.StatusCode}
			return answer, nil
		})
		return r, nil
	})
	return p
}

// connect serves one CONNECT: a tunnel to the address that the gate decided.
func connect(gate *egress.Gate, r *http.Request, client net.Conn) {
	flow, err := open(gate, r, policy.ViaConnect, r.Host, nil)
	if err != nil {
		fmt.Fprintf(client, "HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n", len(err.Error())+1, err)
		return
	}
	upstream, err := flow.Dial(r.Context())
	if err != nil {
		flow.Close(egress.End{Outcome: "failed"})
		fmt.Fprint(client, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		return
	}
	fmt.Fprint(client, "HTTP/1.1 200 OK\r\n\r\n")
	up := make(chan int64)
	go func() {
		n, _ := io.Copy(upstream, client)
		_ = upstream.(*net.TCPConn).CloseWrite()
		up <- n
	}()
	down, _ := io.Copy(client, upstream)
	client.Close()
	upstream.Close()
	flow.Close(egress.End{Up: <-up, Down: down, Outcome: "closed"})
}

// open has the gate decide. The error is an [*egress.Refusal], which is recorded already.
func open(gate *egress.Gate, r *http.Request, via policy.Via, target string, h *policy.HTTPRequest) (*egress.Flow, error) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return nil, err
	}
	peer := sandbox.Peer{Addr: from, Listener: "goproxy"}
	to, err := policy.ParseDestination(target)
	if err != nil {
		return nil, gate.Refuse(peer, via, []byte(target), policy.MalformedHost, err.Error())
	}
	return gate.Open(r.Context(), peer, policy.Request{Via: via, Destination: to, HTTP: h})
}

// counted closes the flow with the bytes of a response body.
type counted struct {
	io.ReadCloser
	flow   *egress.Flow
	status int
	down   int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.down += int64(n)
	return n, err
}

func (c *counted) Close() error {
	c.flow.Close(egress.End{Down: c.down, Status: c.status, Outcome: "closed"})
	return c.ReadCloser.Close()
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
