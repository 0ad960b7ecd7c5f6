package logs

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A logWriter writes the lines that egressd writes, without egressd: enough
// of them to measure with.
type logWriter struct {
	tb   testing.TB
	dir  string
	out  *bufio.Writer
	file *os.File
	size int
	seq  int64
	segs int
	now  time.Time
}

// segmentBytes is that of package audit.
const segmentBytes = 64 << 20

func newLogWriter(tb testing.TB, dir string) *logWriter {
	return &logWriter{tb: tb, dir: dir, now: time.Date(2026, 11, 20, 9, 0, 0, 123456000, time.UTC)}
}

func (w *logWriter) line(format string, arguments ...any) {
	w.tb.Helper()
	if w.file == nil || w.size > segmentBytes {
		w.close()
		w.segs++
		file, err := os.Create(filepath.Join(w.dir, fmt.Sprintf("%08d.log", w.segs)))
		if err != nil {
			w.tb.Fatal(err)
		}
		w.file, w.size, w.out = file, 0, bufio.NewWriterSize(file, 1<<20)
	}
	n, err := fmt.Fprintf(w.out, `{"v":1,"seq":%d,"time":"%s",`+format+"}\n", append([]any{w.seq, w.now.Format("2006-01-02T15:04:05.000000Z")}, arguments...)...)
	if err != nil {
		w.tb.Fatal(err)
	}
	w.size += n
	w.seq++
	w.now = w.now.Add(3617 * time.Microsecond)
}

func (w *logWriter) close() {
	if w.file == nil {
		return
	}
	if err := w.out.Flush(); err != nil {
		w.tb.Fatal(err)
	}
	if err := w.file.Close(); err != nil {
		w.tb.Fatal(err)
	}
}

const (
	anyPolicy  = "sha256:3f2a6c0ed1b7a5f0b2c4d6e8f00112233445566778899aabbccddeeff0011223"
	curlText   = `"process":{"pid":%d,"exe":"/usr/bin/curl","argv":["curl","-sS","https://%s/"]}`
	nodeText   = `"process":{"pid":%d,"exe":"/usr/local/bin/node","argv":["npm install","--no-audit","%s"]}`
	denyText   = `"decision":{"action":"deny","rule":"default","layer":"builtin","reason":"no rule speaks of %s","class":"default-deny","policy":"` + anyPolicy + `"}`
	allowText  = `"decision":{"action":"allow","rule":"preset:npm","layer":"user","policy":"` + anyPolicy + `"}`
	tunnelText = `"flow":"%s","sandbox":"%s","via":"connect","src":"127.0.0.1:%d","dst":{"host":"%s","port":443,"addrs":["104.16.%d.34","104.16.%d.35"]`
)

// ordinary writes n records of tunnels that npm opens and closes, of requests,
// of names and of refusals: hosts is from how many they choose.
func (w *logWriter) ordinary(n, hosts int) {
	random := rand.New(rand.NewPCG(1, 2))
	var open []string
	for w.seq < int64(n) {
		id := fmt.Sprintf("01KB%06X", w.seq)
		host, sandbox := fmt.Sprintf("h%d.npm.test", random.IntN(hosts)), fmt.Sprintf("ci-%d", random.IntN(4))
		port, octet := 30000+random.IntN(30000), random.IntN(200)
		tunnel := fmt.Sprintf(tunnelText, id, sandbox, port, host, octet, octet)
		switch k := random.IntN(10); {
		case k < 4:
			w.line(`"kind":"open",%s},`+nodeText+`,`+allowText, tunnel, 100+k, host)
			open = append(open, tunnel+fmt.Sprintf(`,"addr":"104.16.%d.34"},"tls":{"sni":"%s","alpn":["h2","http/1.1"],"ja4":"t13d1516h2_8daaf6152771_02713d6af862"},`+nodeText, octet, host, 100+k, host))
		case k < 5:
			w.line(`"kind":"open",%s},`+curlText+`,`+denyText, tunnel, 7, host, host)
		case k < 6:
			w.line(`"kind":"dns","flow":"%s","sandbox":"%s","via":"dns","src":"127.0.0.1:%d","dns":{"name":"%s","type":"AAAA"},`+allowText, id, sandbox, port, host)
		case len(open) > 0:
			i := random.IntN(min(len(open), 50))
			w.line(`"kind":"close",%s,`+allowText+`,"bytes":{"up":%d,"down":%d},"duration_ms":%d,"outcome":"closed"`, open[i], random.IntN(5000), random.IntN(500000), random.IntN(9000))
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
		}
	}
	w.close()
}
