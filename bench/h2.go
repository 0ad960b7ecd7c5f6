//go:build linux

package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"

	"golang.org/x/net/http2"
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
	conn, err := speakH2(socket, config)
	if err != nil {
		socket.Close()
		return operation{}, err
	}
	request, err := http.NewRequest(http.MethodGet, "https://"+net.JoinHostPort(originName, strconv.Itoa(j.Origins.H2))+"/", nil)
	return operation{func() error { return fetchPage(conn, request) }, func() { socket.Close() }}, err
}

// speakH2 begins HTTP/2 inside TLS.
func speakH2(socket net.Conn, config *tls.Config) (*http2.ClientConn, error) {
	t := tls.Client(socket, config)
	if err := t.Handshake(); err != nil {
		return nil, err
	}
	if t.ConnectionState().NegotiatedProtocol != "h2" {
		return nil, errors.New("no HTTP/2 inside")
	}
	return new(http2.Transport).NewClientConn(t)
}

// fetchPage sends the request and checks the answer.
func fetchPage(conn *http2.ClientConn, request *http.Request) error {
	answer, err := conn.RoundTrip(request)
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
