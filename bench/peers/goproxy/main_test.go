package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestOnlyListedNamesPass(t *testing.T) {
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "page")
	}))
	defer origin.Close()
	_, port, _ := strings.Cut(origin.Listener.Addr().String(), ":")
	proxy := httptest.NewServer(newProxy("bench.test", []string{"bench.test"}))
	defer proxy.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{"bench.test": 200, "n1.bench.test": 200, "xbench.test": 403, "denied.test": 403} {
		client := http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(at)}}
		answer, err := client.Get("http://" + host + ":" + port)
		if err != nil || answer.StatusCode != want {
			t.Errorf("GET of %s: %v, %v", host, answer, err)
		}
		if got := connect(t, at.Host, host+":"+port); got != want {
			t.Errorf("CONNECT to %s: status %d, want %d", host, got, want)
		}
	}
}

func connect(t *testing.T, proxy, target string) int {
	t.Helper()
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	answer, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode
}
