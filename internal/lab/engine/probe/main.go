// Command probe tries ways out of a sandbox, one for each argument, and prints one line with the result of each. It needs
// no other file of its image.
//
//	get URL               a GET through the proxy that the environment names, if any
//	post URL              a POST without a body, the same way
//	direct URL            a GET past it
//	tcp HOST:PORT         a connection
//	udp HOST:PORT         a datagram, and what comes back
//	dns SERVER:PORT NAME  a question for an address, and its answer
//	via PROXY URL         a GET through a proxy, whose URL may have a user
//	id                    user, hostname and interfaces
//	wait                  until the program is told to end; it says so when it can be
//
// A way out is an argument of its own: probe "get http://a.test/" "udp 1.2.3.4:53".
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// patience bounds each attempt. Targets are on this machine, and most refusals come at once.
const patience = 3 * time.Second

func main() {
	for _, way := range os.Args[1:] {
		f := strings.Fields(way)
		if len(f) == 1 && f[0] == "wait" {
			wait()
			continue
		}
		out, err := try(f)
		if err != nil {
			out = "error: " + err.Error()
		}
		fmt.Printf("%s: %s\n", way, strings.Join(strings.Fields(out), " "))
	}
}

// wait handles signals explicitly, since the kernel gives process 1 no default action.
func wait() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	fmt.Println("waiting")
	if s := <-told; s == syscall.SIGINT {
		os.Exit(130)
	}
}

func try(f []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch {
	case len(f) == 2 && f[0] == "get":
		return send(ctx, http.MethodGet, http.ProxyFromEnvironment, f[1])
	case len(f) == 2 && f[0] == "post":
		return send(ctx, http.MethodPost, http.ProxyFromEnvironment, f[1])
	case len(f) == 2 && f[0] == "direct":
		return send(ctx, http.MethodGet, nil, f[1])
	case len(f) == 3 && f[0] == "via":
		proxy, err := url.Parse(f[1])
		if err != nil {
			return "", err
		}
		return send(ctx, http.MethodGet, http.ProxyURL(proxy), f[2])
	case len(f) == 2 && (f[0] == "tcp" || f[0] == "udp"):
		return converse(ctx, f[0], f[1])
	case len(f) == 3 && f[0] == "dns":
		return lookUp(ctx, f[1], f[2])
	case len(f) == 1 && f[0] == "id":
		return identity()
	}
	return "", fmt.Errorf("%q is no way out that this program knows", f)
}

// send prints the status and the first of the body.
func send(ctx context.Context, method string, proxy func(*http.Request) (*url.URL, error), address string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{Proxy: proxy, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	return answer.Status + " " + string(body), err
}

func converse(ctx context.Context, network, address string) (string, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if network == "tcp" {
		return "connected to " + c.RemoteAddr().String(), nil
	}
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	if _, err := c.Write([]byte("probe")); err != nil {
		return "", err
	}
	answer := make([]byte, 512)
	n, err := c.Read(answer)
	return fmt.Sprintf("answered %q", answer[:n]), err
}

func lookUp(ctx context.Context, server, name string) (string, error) {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server)
	}}
	found, err := r.LookupNetIP(ctx, "ip4", strings.TrimSuffix(name, ".")+".")
	return fmt.Sprintf("answered %v", found), err
}

func identity() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", err
	}
	all, err := net.Interfaces()
	said := fmt.Sprintf("uid %d host %s", os.Getuid(), name)
	for _, i := range all {
		addresses, _ := i.Addrs()
		said += fmt.Sprintf(" %s %v", i.Name, addresses)
	}
	return said, err
}
