package exchange

import "testing"

func TestRedaction(t *testing.T) {
	for raw, want := range map[string]string{
		"GET http://u:hun@h/?pw=2#x HTTP/1.1\r\n":                               "GET http://[redacted]@h/[redacted]\r\n",
		"GET http://u:hun/er?2 3@h/ HTTP/1.1\r\n":                               "GET http://[redacted]@h/ HTTP/1.1\r\n",
		"CONNECT u:2@h:443 HTTP/1.1\r\n":                                        "CONNECT [redacted]@h:443 HTTP/1.1\r\n",
		"GET / HTTP/1.1\r\nHost: a, b\r\nX-Auth: 2\r\nReferer: http://h/?2\r\n": "GET / HTTP/1.1\r\nHost: a, b\r\nX-Auth:[redacted]\r\nReferer:[redacted]\r\n",
		"GET / HTTP/1.1\nHost: u:2@h\n folded 2\nnocolon2\n\n":                  "GET / HTTP/1.1\nHost:[redacted]\n[redacted]\n[redacted]\n\n",
		"\x05\x01\x00\x03\x06u:2@h\x00\x50":                                     "\x05\x01\x00\x03\x06[redacted]@h\x00\x50",
	} {
		if got := string(redact([]byte(raw))); got != want {
			t.Errorf("%q became %q, want %q", raw, got, want)
		}
	}
}
