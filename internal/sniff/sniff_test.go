package sniff

import (
	"strings"
	"testing"
)

func TestDetect(t *testing.T) {
	for _, row := range []struct {
		name  string
		first string
		want  Protocol
	}{
		{"nothing yet", "", Undecided},
		{"a handshake record", "\x16\x03\x01\x02\x00\x01", TLS},
		{"two bytes of a handshake record", "\x16\x03", TLS},
		{"one byte of a handshake record", "\x16", Undecided},
		{"a record of another major version", "\x16\x04\x01", Undecided},
		{"a hello in one", "\x16\x04\x01\x00\x40\x01", TLS},
		{"another message in one", "\x16\x04\x01\x00\x40\x02", Other},
		{"a record of a version that nobody takes", "\x16\x10", Other},
		{"an alert record", "\x15\x03\x01\x00\x02\x02\x28", TLS},
		{"a record that is too long for an alert", "\x15\x03\x01\x00\x03\x02\x28", Other},
		{"a length in the order of MongoDB", "\x16\x01\x00\x00\x01\x00\x00\x00", Other},
		{"an SSLv2 hello", "\x80\x2e\x01\x00\x02", TLS},
		{"a hello of TLS 1.2 in the format of SSLv2", "\x80\x2e\x01\x03", TLS},
		{"the longest of those", "\xc8\x00\x01\x03", TLS},
		{"half of one", "\x80\x2e\x01", Undecided},
		{"another message of SSLv2", "\x80\x2e\x04", Other},
		{"an SSLv2 hello of no version", "\x80\x2e\x01\x02", Other},
		{"an SSLv2 hello of version 0.3", "\x80\x2e\x01\x00\x03", Other},
		{"an SSLv2 hello without room for one", "\x80\x08", Other},
		{"an SSLv2 hello that is longer than any record", "\xc8\x01", Other},
		{"a call of ONC RPC", "\x80\x00", Other},
		{"a frame of Thrift", "\x80\x01", Other},
		{"a set of memcached", "\x80\x01\x00\x03", Other},
		{"a request of MessagePack", "\x94\x00\x01\xa4ping", Other},
		{"an answer of Telnet", "\xff", Other},
		{"a change of ciphers", "\x14\x03\x01\x00\x01", TLS},
		{"half of one", "\x14\x03\x09\x00", Undecided},
		{"a change of ciphers of another major version", "\x14\x02", Other},
		{"a long change of ciphers", "\x14\x03\x01\x01", Other},
		{"an empty change of ciphers", "\x14\x03\x01\x00\x00", Other},
		{"a SOCKS5 greeting", "\x05\x01\x00", SOCKS5},
		{"a SOCKS4 request", "\x04\x01\x00\x50", Other},
		{"an SSH banner", "SSH-2.0-OpenSSH_9.9\r\n", SSH},
		{"half of an SSH banner", "SSH", Undecided},
		{"a method that begins like SSH", "SSHOW / HTTP/1.1", HTTP1},
		{"the HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTP2},
		{"half of the HTTP/2 preface", "PRI * HT", Undecided},
		{"PRI as HTTP/1.1", "PRI * HTTP/1.1\r\n", HTTP1},
		{"GET", "GET / HTTP/1.1\r\n", HTTP1},
		{"GET without a target yet", "GET ", HTTP1},
		{"half of a method", "DELE", Undecided},
		{"lower-case get", "get / HTTP/1.1\r\n", HTTP1},
		{"mixed-case Connect", "CoNNect a:1 HTTP/1.1\r\n", HTTP1},
		{"a known method with two spaces", "GET  / HTTP/1.1\r\n", HTTP1},
		{"a known method and a host without scheme", "GET evil.test/ HTTP/1.1\r\n", HTTP1},
		{"a new method and a path", "QUERY /x HTTP/1.1", HTTP1},
		{"a new method and an asterisk", "QUERY *", HTTP1},
		{"a new method and a URI", "PROPFIND http://a.test/ HTTP/1.1", HTTP1},
		{"a new method and half of a URI", "PROPFIND http:/", Undecided},
		{"a new method before its target", "PROPFIND ", Undecided},
		{"SMTP", "EHLO client.test\r\n", Other},
		{"SMTP before its end", "EHLO client.test", Undecided},
		{"FTP", "USER anonymous\r\n", Other},
		{"POP3", "STAT\r\n", Other},
		{"IMAP", "a1 STARTTLS\r\n", Other},
		{"IRC", "NICK x\r\n", Other},
		{"a method that goes on and on", strings.Repeat("M", DetectBytes), Other},
		{"a method that is too long, whole", strings.Repeat("M", 40) + " / HTTP/1.1\r\n", Other},
		{"a scheme that is too long, whole", "X " + strings.Repeat("a", 40) + "://b/ HTTP/1.1\r\n", Other},
		{"a target of 31 bytes without end", "X " + strings.Repeat("a", DetectBytes-2), Other},
		{"an empty line first", "\r\nGET / HTTP/1.1\r\n", Other},
		{"a bare LF first", "\nGET / HTTP/1.1\r\n", Other},
		{"a space first", " GET / HTTP/1.1\r\n", Other},
		{"a tab for a space", "GET\t/ HTTP/1.1\r\n", Other},
		{"a response", "HTTP/1.1 200 OK\r\n", Other},
		{"an OpenVPN reset", "\x00\x0e\x38\x01\x02", Other},
		{"a NUL", "\x00", Other},
		{"MySQL and friends that wait for the server", "\xff", Other},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := Detect([]byte(row.first)); got != row.want {
				t.Errorf("Detect(%q) = %s, want %s", row.first, got, row.want)
			}
		})
	}
}

func TestProtocolNames(t *testing.T) {
	if got := TLS.String() + " " + Protocol(99).String(); got != "tls other" {
		t.Errorf("got %q", got)
	}
}

// FuzzDetect: once decided, an answer stays, and DetectBytes always decide.
func FuzzDetect(f *testing.F) {
	for _, s := range []string{"GET / HTTP/1.1\r\n", "PRI * HTTP/2.0", "SSH-2.0", "\x16\x03\x01", "\x05\x01", "X http://", "EHLO x\r\n", "\x80\x2e\x01\x03", "\x14\x03\x01\x00\x01\x01"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:min(len(b), 2*DetectBytes)]
		last := Undecided
		for n := range len(b) + 1 {
			p := Detect(b[:n])
			if last != Undecided && p != last {
				t.Fatalf("%q: %s became %s", b[:n], last, p)
			}
			if n >= DetectBytes && p == Undecided {
				t.Fatalf("%q: undecided after %d bytes", b[:n], n)
			}
			last = p
		}
	})
}
