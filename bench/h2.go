//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
)

// startH2 serves the page over HTTP/2.
func startH2(port *int, cert tls.Certificate, failed chan<- error) error {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	*port = l.Addr().(*net.TCPAddr).Port
	s := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(pageBody)))
			_, _ = io.WriteString(w, pageBody) // the client counts what does not arrive
		}),
	}
	go func() { failed <- s.ServeTLS(l, "", "") }()
	return nil
}

// startInspectedH2: requests inside one HTTP/2 connection, one at a time.
func startInspectedH2(j *job, _ *tally) (operation, error) {
	config, err := j.clientTLS()
	if err != nil {
		return operation{}, err
	}
	config.NextProtos = []string{"h2"}
	c, err := j.tunnel(j.Origins.H2).open(make([]byte, 1<<14))
	if err != nil {
		return operation{}, err
	}
	// An HTTP/2 client reads on a goroutine of its own, which a bare descriptor could not end.
	file := os.NewFile(uintptr(c.fd), "")
	socket, err := net.FileConn(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return operation{}, err
	}
	t := tls.Client(socket, config)
	err = t.Handshake()
	if err == nil && t.ConnectionState().NegotiatedProtocol != "h2" {
		err = errors.New("no HTTP/2 inside")
	}
	if err != nil {
		socket.Close()
		return operation{}, err
	}
	once := make(chan net.Conn, 1)
	once <- t
	transport := &http.Transport{ForceAttemptHTTP2: true, DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		select {
		case c := <-once:
			return c, nil
		default:
			return nil, errors.New("the connection has ended")
		}
	}}
	request, err := http.NewRequest(http.MethodGet, "https://"+net.JoinHostPort(originName, strconv.Itoa(j.Origins.H2))+"/", nil)
	return operation{func() error { return fetchPage(transport, request) }, func() { socket.Close() }}, err
}

// fetchPage sends the request and checks the answer.
func fetchPage(transport *http.Transport, request *http.Request) error {
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || string(body) != pageBody) {
		err = fmt.Errorf("wrong answer: status %d, %.60q", answer.StatusCode, body)
	}
	return err
}
