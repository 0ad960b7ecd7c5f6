package proxy

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestABodyOfJSONIsJudgedAsTheUpstreamReadsIt: a body goes up as it came, with its content coding.
func TestABodyOfJSONIsJudgedAsTheUpstreamReadsIt(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newLimitedWorld(t, "version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\nallow:\n  - {host: \"allowed.test:*\", methods: [POST], json: {/model: [\"claude-*\"]}}\n", Limits{BodyBytes: 100_000}, nil)
		up := make(chan string, 1)
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			up <- string(body)
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		const good, bad, kind = `{"model":"claude-x"}`, `{"model":"gpt"}`, "Content-Type: application/json"
		padded := `{"model":"claude-x","pad":"` + randomText(60_000) + `"}`
		for _, row := range []struct {
			says, body string
			fields     []string
			class      policy.Class
		}{
			{"plain", good, []string{kind}, ""},
			{"in gzip", gzipped(good), []string{kind, "Content-Encoding: gzip"}, ""},
			{"long, in gzip", gzipped(padded), []string{kind, "Content-Encoding: GZIP"}, ""},
			{"another model", bad, []string{kind}, policy.BodyDenied},
			{"another model, in gzip", gzipped(bad), []string{kind, "Content-Encoding: gzip"}, policy.BodyDenied},
			{"gzip that is not said", gzipped(good), []string{kind}, policy.BodyDenied},
			{"gzip that is none", good, []string{kind, "Content-Encoding: gzip"}, policy.BodyDenied},
			{"one text in two parts of gzip", gzipped(good[:12]) + gzipped(good[12:]), []string{kind, "Content-Encoding: gzip"}, policy.BodyDenied},
			{"two parts of gzip", gzipped(good) + gzipped(bad), []string{kind, "Content-Encoding: gzip"}, policy.BodyDenied},
			{"gzip and more", gzipped(good) + bad, []string{kind, "Content-Encoding: gzip"}, policy.BodyDenied},
			{"gzip that is cut", gzipped(good)[:20], []string{kind, "Content-Encoding: gzip"}, policy.BodyDenied},
			{"gzip twice", gzipped(gzipped(good)), []string{kind, "Content-Encoding: gzip, gzip"}, policy.BodyDenied},
			{"a bomb", gzipped(`{"model":"claude-x","pad":"` + strings.Repeat("a", 90_000) + `"}`), []string{kind, "Content-Encoding: gzip"}, policy.BodyDenied},
			{"too long once it is unpacked", gzipped(`{"model":"claude-x","pad":"` + strings.Repeat(randomText(1000), 110) + `"}`), []string{kind, "Content-Encoding: gzip"}, policy.BodyDenied},
			{"br", good, []string{kind, "Content-Encoding: br"}, policy.BodyDenied},
			{"multipart", good, []string{"Content-Type: multipart/form-data; boundary=x"}, policy.BodyDenied},
		} {
			r := ask(t, rt, "POST", o.url("allowed.test", "/"), strings.NewReader(row.body), row.fields...)
			switch {
			case row.class != "":
				r.refused(t, 403, row.class)
			case r.StatusCode != 200:
				t.Errorf("%s: answered %d %s", row.says, r.StatusCode, r.body)
			case <-up != row.body:
				t.Errorf("%s: another body went up", row.says)
			}
			if len(up) > 0 {
				t.Fatalf("%s: it went up", row.says)
			}
		}
		w.nothingHeld(t)
	})
}

// randomText is text that gzip makes little shorter.
func randomText(n int) string {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	for i := 0; b.Len() < 2*n; i++ {
		z.Write([]byte{byte(i * i >> 3), byte(i * 7919 >> 5), byte(i >> 8)})
	}
	return strings.Map(func(c rune) rune { return 'a' + c%26 }, b.String())[:n]
}
