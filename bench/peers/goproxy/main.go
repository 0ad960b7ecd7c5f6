// Command goproxy is elazarl/goproxy as a forward proxy with an allow-list,
// for comparison: its own CONNECT path, plain HTTP by its own transport, and
// its own MITM for one port.
//
//	goproxy [-inspect PORT -roots FILE -authority FILE] PORT ORIGIN NAME…
//
// It listens on 127.0.0.1, knows ORIGIN and the names below it as 127.0.0.1
// without asking a name server, and refuses every other name but those given.
package main

import (
	"context"
	"flag"
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
	port := flag.String("inspect", "", "look into the tunnels to this `port`")
	roots := flag.String("roots", "", "PEM `file` of what vouches for the origins that are inspected")
	certificate := flag.String("authority", "", "`file` to write the certificate to with which leaves are signed")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: goproxy [-inspect PORT -roots FILE -authority FILE] PORT ORIGIN NAME…")
		os.Exit(2)
	}
	handler := newProxy(flag.Arg(1), flag.Args()[2:])
	if *port != "" {
		if err := inspect(handler, *port, *roots, *certificate); err != nil {
			log.Fatal(err)
		}
	}
	log.Fatal(http.ListenAndServe(net.JoinHostPort("127.0.0.1", flag.Arg(0)), handler))
}

func newProxy(origin string, names []string) *goproxy.ProxyHttpServer {
	allowed := make(map[string]bool)
	for _, name := range names {
		allowed[name] = true
	}
	refused := goproxy.ReqConditionFunc(func(r *http.Request, _ *goproxy.ProxyCtx) bool {
		name := r.URL.Hostname()
		return !allowed[name] && !within(name, origin)
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

// within says whether name is origin or below it.
func within(name, origin string) bool {
	return name == origin || strings.HasSuffix(name, "."+origin)
}

// dialer dials 127.0.0.1 for origin and the names below it.
func dialer(origin string) func(context.Context, string, string) (net.Conn, error) {
	var d net.Dialer
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if name, port, err := net.SplitHostPort(addr); err == nil && within(name, origin) {
			addr = net.JoinHostPort("127.0.0.1", port)
		}
		return d.DialContext(ctx, network, addr)
	}
}
