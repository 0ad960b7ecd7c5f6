//go:build linux

package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"strconv"
)

// The roles in which bench starts itself as a floor, by which the peers are known too.
const (
	floorHTTP  = "floor-http"
	floorEpoll = "floor-epoll"
)

// serveHTTPFloor serves the floor of net/http: a goroutine a connection, CONNECT by Hijack, requests by a Transport. A floor
// is a proxy that only carries bytes. It refuses deniedName, decides and records nothing else, and takes every name for
// 127.0.0.1. No proxy that is built in the same way can cost less.
func serveHTTPFloor(port string) error {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	forward := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Host = onLoopback(r.In.URL.Host)
	}}
	return http.ListenAndServe("127.0.0.1:"+port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Hostname() == deniedName:
			http.Error(w, "denied", http.StatusForbidden)
		case r.Method == http.MethodConnect:
			tunnel(w, onLoopback(r.Host))
		default:
			forward.ServeHTTP(w, r)
		}
	}))
}

// onLoopback returns 127.0.0.1 with the port of hostport.
func onLoopback(hostport string) string {
	_, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return ""
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// tunnel carries bytes between a client and addr, until either ends.
func tunnel(w http.ResponseWriter, addr string) {
	up, err := net.Dial("tcp4", addr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer up.Close()
	down, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	if _, err := io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() {
		defer down.Close()
		defer up.Close()
		_, _ = io.Copy(up, down) // how a side ended is of no interest
	}()
	_, _ = io.Copy(down, up)
}

// floorCommand starts bench itself as a floor.
func floorCommand(role string) commandFunc {
	return func(_ string, port int, _ origins) (*exec.Cmd, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(self, strconv.Itoa(port))
		cmd.Env = []string{roleVariable + "=" + role}
		return cmd, nil
	}
}
