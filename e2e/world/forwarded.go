package world

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/lab"
)

// The ways in of requests that a platform forwards differ in the scheme that it names.
const (
	WayForwarded    = "forwarded"
	WayForwardedTLS = "forwarded-https"
)

// ForwardedPort is the port of listen.forwarded.
const ForwardedPort = 3180

// forwardHost is the Host field of what a platform sends to its forwardURL.
const forwardHost = "egress.example.com"

// WithForwarded is a policy with listen.forwarded, whose sandbox default has the mapping oidc.
func WithForwarded(text, oidc string) string {
	const name = "  - name: default\n"
	oidc = "oidc: " + oidc + "\n"
	if strings.Contains(text, name) {
		text = strings.Replace(text, name, name+"    "+oidc, 1)
	} else {
		text += "sandboxes:\n" + name + "    " + oidc
	}
	return text + fmt.Sprintf("listen: {open_to_network: true, proxy: [\"%[1]s:%[2]d\", \"[%[3]s]:%[2]d\"], forwarded: [\"%[1]s:%[4]d\"]}\n",
		lab.GatewayIPv4, ProxyPort, lab.GatewayIPv6, ForwardedPort)
}

// dialForwarded connects to listen.forwarded from the sandbox.
func (d *Daemon) dialForwarded() (net.Conn, error) {
	return d.World.Sandbox.Dial("tcp", net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(ForwardedPort)))
}

func isForwarded(way string) bool { return way == WayForwarded || way == WayForwardedTLS }

// forwarded carries out a vector that [Vector.Forwarded] returned.
func (c *client) forwarded(t *testing.T, v *Vector, to string) error {
	if to != "" {
		return c.get(v.Send[0])
	}
	return c.raw(t, v)
}

// Forwarded returns a vector as a platform forwards it with a token, and the way in. The vector has its first
// destination only. If no platform can forward the requests, Forwarded returns why.
func (v *Vector) Forwarded(token string) (as Vector, way, why string) {
	as, way = *v, WayForwarded
	scheme := "http"
	switch {
	case v.Ask != nil || v.Wire != nil:
		return as, "", "a question for a name"
	case v.Hex != nil:
		return as, "", "bytes that are no HTTP"
	case v.Claims != "":
		return as, "", "a claimed host beside the destination: a platform names one host"
	case v.Inside != "" && !slices.Contains(InsideWays(v), WayInside):
		return as, "", "HTTP/2, which listen.forwarded does not speak"
	case slices.Contains(v.Expect.Status, 407) || strings.Contains(strings.Join(v.Send, ""), "\r\nProxy-Authorization:"):
		return as, "", "a password for a proxy: a platform's token stands in its place"
	case v.To != nil && !slices.Contains(WaysFor(v, v.To[0]), WayHTTP):
		return as, "", "a tunnel or SOCKS"
	case v.To != nil:
		as.To = v.To[:1]
		as.Send = []string{"GET /hook HTTP/1.1\r\nHost: " + forwardHost + "\r\n" + forwardedFields(token, scheme, v.To[0], "/") + "\r\n"}
		return as, way, ""
	case v.Inside != "":
		way, scheme = WayForwardedTLS, "https"
	}
	as.Send = nil
	for _, part := range v.Send {
		requests := []string{part}
		if !strings.Contains(part, "\r\nContent-Length:") && !strings.Contains(part, "\r\nTransfer-Encoding:") { // else a body may look like a request
			requests = slices.DeleteFunc(strings.SplitAfter(part, "\r\n\r\n"), func(s string) bool { return s == "" })
		}
		forwarded := ""
		for _, request := range requests {
			one, why := forwardRequest(request, token, scheme, v.Inside)
			if why != "" {
				return as, "", why
			}
			forwarded += one
		}
		as.Send = append(as.Send, forwarded)
	}
	as.Expect.Lacks = append(slices.Clone(v.Expect.Lacks), "vercel-", forwardHost)
	return as, way, ""
}

var (
	// sentLine is a request line with a target that a platform takes apart: an absolute one of http, or a path inside TLS.
	sentLine = regexp.MustCompile(`^([^ ]+) (?:http://([^/?# ]+))?(/[^ \r\n]*)((?: HTTP/\d\.\d)?\r?\n)`)
	sentHost = regexp.MustCompile(`(?m)^Host: ([^\r\n]*)`)
)

// forwardRequest returns what a platform makes of a request in clear, or of one that the sandbox sent inside TLS.
func forwardRequest(request, token, scheme, inside string) (as, why string) {
	line := sentLine.FindStringSubmatch(request)
	switch {
	case line == nil || (line[2] == "") == (inside == ""):
		return "", "a request target of another form: a platform sends the path of forwardURL"
	case line[1] == "CONNECT":
		return "", "CONNECT, which listen.forwarded does not take"
	}
	authority := line[2] + inside // one of them is empty
	head, body := request[len(line[0]):], ""
	if end := strings.Index(head, "\r\n\r\n"); end >= 0 {
		head, body = head[:end], head[end:]
	}
	for _, host := range sentHost.FindAllStringSubmatch(head, -1) {
		if withoutPort(host[1]) != withoutPort(authority) {
			return "", "a Host field that names another host: a platform names one host"
		}
	}
	return line[1] + " /hook" + line[4] + forwardedFields(token, scheme, authority, line[3]) + sentHost.ReplaceAllString(head, "Host: "+forwardHost) + body, ""
}

// withoutPort returns a host in lower case, without the port of http or https.
func withoutPort(host string) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(host), ":80"), ":443")
}

// forwardedFields are those that a platform adds to a request.
func forwardedFields(token, scheme, authority, path string) string {
	host, port := authority, map[string]string{"http": "80", "https": "443"}[scheme]
	if colon := strings.LastIndexByte(authority, ':'); colon > strings.LastIndexByte(authority, ']') {
		host, port = authority[:colon], authority[colon+1:]
	}
	return "Vercel-Forwarded-Scheme: " + scheme + "\r\nVercel-Forwarded-Host: " + host + "\r\nVercel-Forwarded-Port: " + port +
		"\r\nVercel-Forwarded-Path: " + path + "\r\nVercel-Sandbox-Oidc-Token: " + token + "\r\n"
}
