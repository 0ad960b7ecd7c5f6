package file

import (
	"net/netip"

	"go.yaml.in/yaml/v3"
)

// A MetricsListener is where a program on another machine reads the metrics, and nothing else: the section "metrics".
type MetricsListener struct {
	// Listen is the address and port of the listener. Beyond loopback it needs CertFile and KeyFile. Default: none.
	Listen string

	// CertFile and KeyFile are PEM files of the listener's certificate and key. Relative paths are relative to the
	// folder of the configuration. Default: none, and the listener speaks plain HTTP.
	CertFile, KeyFile string

	// TokenFile holds the Bearer token that has to be shown, and ClientCA authorities of the certificate that has to be. The
	// section has one of them, or both.
	TokenFile, ClientCA string
}

func (r *reader) metrics(m *MetricsListener) func(*yaml.Node) {
	return func(node *yaml.Node) {
		r.mapping(node, "metrics", fields{
			"listen":     r.fitting("metrics.listen", &m.Listen, checkAnswers),
			"cert_file":  r.path("metrics.cert_file", &m.CertFile),
			"key_file":   r.path("metrics.key_file", &m.KeyFile),
			"token_file": r.path("metrics.token_file", &m.TokenFile),
			"client_ca":  r.path("metrics.client_ca", &m.ClientCA),
		})
		at, err := netip.ParseAddrPort(m.Listen)
		switch {
		case m.Listen == "":
			r.fail(node, "metrics has no listener; add \"listen: 127.0.0.1:9465\"")
		case (m.CertFile == "") != (m.KeyFile == ""):
			r.fail(node, "metrics needs both cert_file and key_file; add the other, or leave both out")
		case err == nil && !at.Addr().IsLoopback() && m.CertFile == "":
			r.fail(node, "metrics.listen %s can be reached from other machines, and whoever is on the way would read the token; add cert_file and key_file", at)
		case m.TokenFile == "" && m.ClientCA == "":
			r.fail(node, "metrics would answer everybody; add token_file: FILE with a Bearer token, or client_ca: FILE with the authority of a certificate")
		case m.ClientCA != "" && m.CertFile == "":
			r.fail(node, "metrics.client_ca is about TLS; add cert_file and key_file")
		}
	}
}
