//go:build linux

package sink

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSyslogOverTLS has a server whose certificate one sink knows, and another does
// not.
func TestSyslogOverTLS(t *testing.T) {
	lender := httptest.NewTLSServer(nil) // of its certificate
	defer lender.Close()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: lender.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	var got seqs
	var readers sync.WaitGroup
	defer readers.Wait()
	defer l.Close()
	defer w.set.Stop(0)
	readers.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			readers.Go(func() {
				readCounted(t, conn, 1<<20, &got)
				conn.Close()
			})
		}
	})
	roots := x509.NewCertPool()
	roots.AddCert(lender.Certificate())
	address := "tls:" + l.Addr().String()
	w.apply(Config{Name: "knows", Type: "syslog", Address: address, Format: "json", Roots: roots},
		Config{Name: "does-not", Type: "syslog", Address: address, Format: "json", Roots: x509.NewCertPool()})
	w.write(300)
	w.until("all over TLS", func() bool { return got.whole(300) })
	w.until("an error of the other", func() bool { s := w.state("does-not"); return strings.Contains(s.Error, "certificate") })
	if s := w.state("does-not"); s.LagRecords != 300 || s.Sent != 0 {
		t.Errorf("a server that nobody vouches for got %d", s.Sent)
	}
	w.set.Stop(time.Second)
}
