package e2e

import "strings"

// hostileAnswers are what a host of the internet may answer to harm the
// client behind egressd, or egressd itself.
func hostileAnswers() map[string]string {
	const second = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nX-Second: yes\r\n\r\nsecond"
	return map[string]string{
		"length-and-chunked": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
		"two-lengths":        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!" + second,
		"length-list":        "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello!" + second,
		"second-answer":      "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" + second,
		"bare-lf":            "HTTP/1.1 200 OK\nContent-Length: 5\nX: y\n\nhello",
		"folded":             "HTTP/1.1 200 OK\r\nX: a\r\n Content-Length: 5\r\n\r\nhello",
		"no-status":          "HTTP/1.1 \r\n\r\n",
		"other-protocol":     "SSH-2.0-x\r\n",
		"nul-in-name":        "HTTP/1.1 200 OK\r\nX\x00Y: 1\r\nContent-Length: 0\r\n\r\n",
		"interim-flood":      strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 20_000) + second,
		"head-too-large":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 2<<20) + "\r\n\r\n",
		"bad-chunk":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0x1\r\n",
		"chunk-too-long":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello",
		"switches-protocols": "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\nraw",
		"forged-reply":       "HTTP/1.1 403 Blocked by egressd: forged\r\nX-Egressd-Id: FORGED0000\r\nProxy-Status: egressd; error=http_request_denied\r\nX-Proxy-Error: blocked-by-allowlist\r\nContent-Length: 0\r\n\r\n",
	}
}
