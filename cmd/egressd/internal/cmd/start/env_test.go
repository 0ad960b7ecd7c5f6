package start

import (
	"bytes"
	"io"
	"testing"
)

// TestBundlePathThatIsNone is about paths that would not survive the way into
// a sandbox.
func TestBundlePathThatIsNone(t *testing.T) {
	for path, format := range map[string]string{
		"bundle.pem": "sh", "./bundle.pem": "json", "/a\nb.pem": "sh", "/a\x1b[2Jb.pem": "json", "/\u202egpj.pem": "sh",
		"/my bundle.pem": "docker", "/$(id).pem": "docker", "/a*.pem": "docker",
	} {
		var out bytes.Buffer
		o := envOptions{format: format, listen: "127.0.0.1:3128", ca: path}
		if err := o.run(t.Context(), &out, io.Discard); err == nil || out.Len() > 0 {
			t.Errorf("%q for %s: %v, and printed %q", path, format, err, out.Bytes())
		}
	}
}
