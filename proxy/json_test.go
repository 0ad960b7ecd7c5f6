package proxy

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

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
			{"in zstd", zstandard(good), []string{kind, "Content-Encoding: zstd"}, ""},
			{"long, in zstd", zstandard(padded), []string{kind, "Content-Encoding: ZSTD"}, ""},
			{"by the command zstd", "\x28\xb5\x2f\xfd" + zstdByCommand, []string{kind, "Content-Encoding: zstd"}, ""},
			{"by the command zstd, from a pipe", "\x28\xb5\x2f\xfd" + zstdFromPipe, []string{kind, "Content-Encoding: zstd"}, ""},
			{"another model, in zstd", zstandard(bad), []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"zstd that is not said", zstandard(good), []string{kind}, policy.BodyDenied},
			{"zstd that is none", good, []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"zstd that is gzip", gzipped(good), []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"two frames of zstd", zstandard(good) + zstandard(" "), []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"one text in two frames of zstd", zstandard(good[:12]) + zstandard(good[12:]), []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"a frame without content behind", zstandard(good) + "\x50\x2a\x4d\x18\x03\x00\x00\x00abc", []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"a frame without content in front", "\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + zstandard(good), []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"zstd and more", zstandard(good) + bad, []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"zstd that is cut", zstandard(good)[:20], []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"zstd with a wrong checksum", zstandard(good)[:len(zstandard(good))-1] + "x", []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"a window of 128 MiB", "\x28\xb5\x2f\xfd\x00\x88\xa1\x00\x00" + good, []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"a block of a kind that is reserved", "\x28\xb5\x2f\xfd\x00\x58\xa7\x00\x00" + good, []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"a dictionary", "\x28\xb5\x2f\xfd\x01\x58\x07\xa1\x00\x00" + good, []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"zstd in gzip", gzipped(zstandard(good)), []string{kind, "Content-Encoding: zstd, gzip"}, policy.BodyDenied},
			{"a bomb of zstd", zstandard(`{"model":"claude-x","pad":"` + strings.Repeat("a", 90_000) + `"}`), []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
			{"too long once it is unpacked from zstd", zstandard(`{"model":"claude-x","pad":"` + strings.Repeat(randomText(1000), 110) + `"}`), []string{kind, "Content-Encoding: zstd"}, policy.BodyDenied},
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

// zstandard is text as one frame of Zstandard, with a checksum.
func zstandard(s string) string {
	z, _ := zstd.NewWriter(nil)
	return string(z.EncodeAll([]byte(s), nil))
}

// What zstd 1.5.4 makes of {"model":"claude-x"}, behind the magic number.
const (
	zstdByCommand = "\x24\x14\xa1\x00\x00\x7b\x22\x6d\x6f\x64\x65\x6c\x22\x3a\x22\x63\x6c\x61\x75\x64\x65\x2d\x78\x22\x7d\x5d\x53\xb6\xcb"
	zstdFromPipe  = "\x00\x58\xa1\x00\x00\x7b\x22\x6d\x6f\x64\x65\x6c\x22\x3a\x22\x63\x6c\x61\x75\x64\x65\x2d\x78\x22\x7d"
)

// randomText is text that gzip makes little shorter.
func randomText(n int) string {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	for i := 0; b.Len() < 2*n; i++ {
		z.Write([]byte{byte(i * i >> 3), byte(i * 7919 >> 5), byte(i >> 8)})
	}
	return strings.Map(func(c rune) rune { return 'a' + c%26 }, b.String())[:n]
}
