// Command goproxy is elazarl/goproxy as a forward proxy with an allow-list,
// for comparison: its own CONNECT path, plain HTTP by its own transport.
//
//	goproxy PORT ORIGIN NAME…
//
// It listens on 127.0.0.1, knows ORIGIN as 127.0.0.1 without asking a name
// server, and refuses every name but those given.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/elazarl/goproxy"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: goproxy PORT ORIGIN NAME…")
		os.Exit(2)
	}
	handler := newProxy(os.Args[2], os.Args[2:])
	log.Fatal(http.ListenAndServe(net.JoinHostPort("127.0.0.1", os.Args[1]), handler))
}

func newProxy(origin string, names []string) http.Handler {
	allowed := make(map[string]bool)
	for _, name := range names {
		allowed[name] = true
	}
	refused := goproxy.ReqConditionFunc(func(r *http.Request, _ *goproxy.ProxyCtx) bool {
		return !allowed[r.URL.Hostname()]
	})
	p := goproxy.NewProxyHttpServer()
	p.Logger = log.New(io.Discard, "", 0)
	p.Tr = &http.Transport{DialContext: dialer(origin), MaxIdleConnsPerHost: 64}
	p.ConnectDial = nil
	p.OnRequest(refused).HandleConnectFunc(func(host string, ctx *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		ctx.Resp = forbidden(ctx.Req)
		return goproxy.RejectConnect, host
	})
	p.OnRequest(refused).DoFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		return r, forbidden(r)
	})
	return p
}

func forbidden(r *http.Request) *http.Response {
	return goproxy.NewResponse(r, goproxy.ContentTypeText, http.StatusForbidden, "not on the list\n")
}

// dialer dials 127.0.0.1 for origin.
func dialer(origin string) func(context.Context, string, string) (net.Conn, error) {
	var d net.Dialer
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if port, ok := strings.CutPrefix(addr, origin+":"); ok {
			addr = net.JoinHostPort("127.0.0.1", port)
		}
		return d.DialContext(ctx, network, addr)
	}
}
