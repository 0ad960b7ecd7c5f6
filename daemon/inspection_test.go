package daemon

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/proxy/inspect"
)

func TestAuthoritiesOfTheEnvironmentThatDoNotCountAreNamed(t *testing.T) {
	dir := t.TempDir()
	ours, err := authority.Open(filepath.Join(dir, "ca"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	system, _, err := certs.SystemRoots()
	if err != nil {
		t.Fatal(err)
	}
	corp, bundle := filepath.Join(dir, "corp.pem"), filepath.Join(dir, "bundle.pem")
	for path, text := range map[string][]byte{corp: []byte("corp"), bundle: authority.Bundle([]byte("roots\n"), ours.PEM())} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inspects := &inspect.Inspection{Authority: ours}
	for _, row := range []struct {
		says, file, folder string
		extra              []string
		with               *inspect.Inspection
		want               string
	}{
		{"another file", corp, "", nil, inspects, `SSL_CERT_FILE does not count for upstreams; write "tls: {extra_roots: [` + corp + `]}" into ` + filepath.Join(dir, "egressd.yaml")},
		{"a file that is not there", corp + "x", "", nil, inspects, "SSL_CERT_FILE"},
		{"a folder", "", dir, nil, inspects, "SSL_CERT_DIR"},
		{"none", "", "", nil, inspects, ""},
		{"no inspection", corp, "", nil, nil, ""},
		{"one that counts", corp, "", []string{"corp.pem"}, inspects, ""},
		{"the system's", system, "", nil, inspects, ""},
		{"what egressd ca bundle wrote", bundle, "", nil, inspects, ""},
	} {
		t.Setenv("SSL_CERT_FILE", row.file)
		t.Setenv("SSL_CERT_DIR", row.folder)
		c := &config.Config{Path: filepath.Join(dir, "egressd.yaml"), File: &file.File{TLS: file.TLS{ExtraRoots: row.extra}}}
		if got := unusedRoots(c, row.with); (got == "") != (row.want == "") || !strings.HasPrefix(got, row.want) {
			t.Errorf("%s: %q", row.says, got)
		}
	}
}

// TestServeNamesAuthoritiesThatDoNotCount starts a daemon that looks into TLS.
func TestServeNamesAuthoritiesThatDoNotCount(t *testing.T) {
	t.Setenv("SSL_CERT_FILE", "/somewhere/corp.pem")
	far := secureUpstream(t)
	w := serveRego(t, "allow: [{host: a.test, methods: [GET]}]\n", map[string]string{"roots.pem": far.roots})
	w.hear(t, "warning: SSL_CERT_FILE does not count for upstreams")
}
