package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

// heads bounds what a proxy may answer to a CONNECT, interim responses included.
var heads = http1.Limits{Bytes: 16 << 10, Fields: 100}

func (p *Proxy) openHTTP(conn net.Conn, d policy.Destination) error {
	to := d.String()
	fields := http1.Fields{{Name: "Host", Value: to}}
	if a := p.Authorization(); a != "" {
		fields = append(fields, http1.Field{Name: "Proxy-Authorization", Value: a})
	}
	if _, err := conn.Write(http1.AppendRequest(nil, "CONNECT", to, fields)); err != nil {
		return err
	}
	left := heads
	for {
		head, err := readHead(conn, left)
		if err != nil {
			return err
		}
		left.Bytes -= len(head)
		resp, err := http1.ReadResponse(bufio.NewReaderSize(bytes.NewReader(head), len(head)), heads)
		switch {
		case err != nil:
			return ErrNotProtocol
		case resp.Status == 101:
			return ErrNotProtocol
		case resp.Status < 200:
			continue
		case resp.Status < 300: // a body that it announces is none (RFC 9110 section 9.3.6)
			return nil
		}
		return Refused(resp.Status, resp.Reason)
	}
}

// readHead reads the head of one response byte by byte: what follows belongs to the tunnel.
func readHead(conn net.Conn, lim http1.Limits) ([]byte, error) {
	var head []byte
	var one [1]byte
	var s http1.Scanner
	for {
		if _, err := io.ReadFull(conn, one[:]); err != nil {
			return nil, err
		}
		head = append(head, one[0])
		if one[0] != '\n' && len(head) < lim.Bytes {
			continue
		}
		switch _, err := s.Scan(head, lim); {
		case err == nil:
			return head, nil
		case !errors.Is(err, http1.ErrShort):
			return nil, ErrNotProtocol
		}
	}
}

// Refused returns the error for an HTTP status that is no success. A status below 500 is final: the proxy does not
// want the request.
func Refused(status int, reason string) *RefusedError {
	return &RefusedError{Answer: shown(fmt.Sprintf("%d %s", status, reason)), Final: status < 500}
}

// shown makes text of a proxy printable ASCII, without quotes and angle brackets, and cuts it short.
func shown(text string) string {
	const most = 100
	clean := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || strings.ContainsRune("\"`<>\\", c) {
			return '?'
		}
		return c
	}, text)
	return strings.TrimSpace(clean[:min(len(clean), most)])
}
