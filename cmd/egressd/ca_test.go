package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestJoinBundle(t *testing.T) {
	const system, ours = "# a root\n-----BEGIN A-----\n-----END A-----\n\n\n", "-----BEGIN B-----\n-----END B-----\n"
	joined := joinBundle([]byte(system), []byte(ours))
	if want := "# a root\n-----BEGIN A-----\n-----END A-----\n\n# egressd\n" + ours; string(joined) != want {
		t.Errorf("got %q, want %q", joined, want)
	}
	if again := joinBundle(joined, []byte(ours)); !bytes.Equal(again, joined) {
		t.Errorf("what the system trusts already stands twice: %q", again)
	}
	if unended := joinBundle([]byte(strings.TrimSpace(system)), []byte(ours)); !bytes.Equal(unended, joined) {
		t.Errorf("without a newline at the end of the system's: %q", unended)
	}
}

// TestBundlePathThatIsNone is about paths that would not survive the way into
// a sandbox.
func TestBundlePathThatIsNone(t *testing.T) {
	for path, format := range map[string]string{
		"bundle.pem": "sh", "./bundle.pem": "json", "/a\nb.pem": "sh", "/a\x1b[2Jb.pem": "json", "/\u202egpj.pem": "sh",
		"/my bundle.pem": "docker", "/$(id).pem": "docker", "/a*.pem": "docker",
	} {
		var out bytes.Buffer
		o := envOptions{format: format, listen: "127.0.0.1:3128", ca: path}
		if err := o.run(&out, io.Discard); err == nil || out.Len() > 0 {
			t.Errorf("%q for %s: %v, and printed %q", path, format, err, out.Bytes())
		}
	}
}
