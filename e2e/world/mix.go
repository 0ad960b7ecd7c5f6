package world

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/miekg/dns"
)

// A Mix is what one worker asks with.
type Mix struct {
	*Daemon
	H2    *http.Client
	names net.Conn
	plain struct {
		net.Conn
		r *bufio.Reader
	}
}

// Close closes the connections that the clients keep.
func (m *Mix) Close() {
	m.H2.CloseIdleConnections()
	for _, c := range []net.Conn{m.names, m.plain.Conn} {
		if c != nil {
			c.Close()
		}
	}
}

func mixHost(key string, deny bool) string {
	if deny {
		return key + ".evil.test"
	}
	return key + ".allowed.test"
}

// Abandon ends a connection with a reset, so that its port is free at once.
func Abandon(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}

// Connect opens a tunnel by CONNECT to a host whose name has the key in it, and reports whether egressd let it pass.
func (m *Mix) Connect(key string, deny bool) (bool, error) {
	c, status, err := m.OpenTunnel(mixHost(key, deny)+":443", "")
	if err != nil {
		return false, err
	}
	Abandon(c.Conn)
	if status != http.StatusOK && status != http.StatusForbidden {
		return false, fmt.Errorf("status %d", status)
	}
	return status == http.StatusOK, nil
}

// Socks does as [Mix.Connect] by SOCKS5.
func (m *Mix) Socks(key string, deny bool) (bool, error) {
	c, err := m.Dial()
	if err != nil {
		return false, err
	}
	defer Abandon(c)
	c.SetDeadline(time.Now().Add(Patience))
	request, _ := SocksRequest(WaySOCKS, mixHost(key, deny)+":443")
	if _, err := c.Write(append([]byte{5, 1, 0}, request...)); err != nil {
		return false, err
	}
	var answer [12]byte
	_, err = io.ReadFull(c, answer[:])
	return answer[3] == 0, err
}

// plainRequest asks in one connection as long as that is kept.
func (m *Mix) plainRequest(host string) (status int, err error) {
	if m.plain.Conn == nil {
		if m.plain.Conn, err = m.Dial(); err != nil {
			return 0, err
		}
		m.plain.r = bufio.NewReader(m.plain.Conn)
	}
	m.plain.SetDeadline(time.Now().Add(Patience))
	if _, err := fmt.Fprintf(m.plain, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", host, host); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(m.plain.r, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	if response.Close || response.StatusCode != http.StatusOK {
		Abandon(m.plain.Conn)
		m.plain.Conn = nil
	}
	return response.StatusCode, err
}

// Clear does as [Mix.Connect] by a request in clear.
func (m *Mix) Clear(key string, deny bool) (bool, error) {
	status, err := m.plainRequest(mixHost(key, deny))
	if status != http.StatusOK && status != http.StatusForbidden && err == nil {
		err = fmt.Errorf("status %d", status)
	}
	return status == http.StatusOK, err
}

// Question does as [Mix.Connect] by a question to the name server.
func (m *Mix) Question(key string, deny bool) (bool, error) {
	if m.names == nil {
		var err error
		if m.names, err = m.World.Sandbox.Dial("udp", net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(NamesPort))); err != nil {
			return false, err
		}
	}
	q := new(dns.Msg).SetQuestion(dns.Fqdn(mixHost(key, deny)), dns.TypeA)
	wire, err := q.Pack()
	if err != nil {
		return false, err
	}
	m.names.SetDeadline(time.Now().Add(Patience))
	if _, err := m.names.Write(wire); err != nil {
		return false, err
	}
	b := make([]byte, 512)
	n, err := m.names.Read(b)
	if err != nil {
		return false, err
	}
	answer := new(dns.Msg)
	if err := answer.Unpack(b[:n]); err != nil || answer.Id != q.Id {
		return false, fmt.Errorf("answered %x: %v", b[:n], err)
	}
	return len(answer.Answer) > 0, nil
}

// Inside makes a request of HTTP/2 in an inspected tunnel, which is kept.
func (m *Mix) Inside(key string, deny bool) (bool, error) {
	method := http.MethodGet
	if deny {
		method = http.MethodDelete
	}
	request, err := http.NewRequest(method, "https://allowed.test/"+key, nil)
	if err != nil {
		return false, err
	}
	response, err := m.H2.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return false, err
	}
	if response.ProtoMajor != 2 || response.StatusCode != http.StatusOK && response.StatusCode != http.StatusForbidden {
		return false, fmt.Errorf("%s %s", response.Proto, response.Status)
	}
	return response.StatusCode == http.StatusOK, nil
}
