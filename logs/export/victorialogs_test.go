//go:build victorialogs

package export

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// TestTheQueriesInLogsQL sends the records of an incident to VictoriaLogs, as a sink does, and runs the queries of the page.
// EGRESSD_VICTORIALOGS names its program: see scripts/victorialogs.sh.
func TestTheQueriesInLogsQL(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	store := exec.Command(os.Getenv("EGRESSD_VICTORIALOGS"), "-storageDataPath="+t.TempDir(), "-httpListenAddr="+at, "-loggerOutput=stdout")
	if err := store.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Process.Kill(); store.Wait() })
	call := func(path, kind string, body []byte) (int, []byte) {
		response, err := http.Post("http://"+at+path, kind, bytes.NewReader(body))
		if err != nil {
			return 0, nil
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, text
	}
	query := func(q string) []byte {
		status, text := call("/select/logsql/query", "application/x-www-form-urlencoded", []byte(url.Values{"query": {q}}.Encode()))
		if status != http.StatusOK {
			t.Fatalf("%d %s: %s", status, text, q)
		}
		return text
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if status, _ := call("/health", "", nil); status == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not answer")
		}
	}
	sent := 0
	newIncident(time.Now().Add(-2*time.Hour)).each(t, func(r *record.Record, line []byte, from Origin) {
		text := bytes.TrimSuffix(JSON(nil, r, line, from), []byte("\n"))
		body, err := OTLP(nil, []EncodedRecord{{r, text}}, from, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if status, said := call("/insert/opentelemetry/v1/logs", "application/x-protobuf", body); status != http.StatusOK {
			t.Fatalf("%d %s", status, said)
		}
		sent++
	})
	var rows []byte
	for end := time.Now().Add(30 * time.Second); bytes.Count(rows, []byte("\n")) < sent; time.Sleep(100 * time.Millisecond) {
		if rows = query("egressd.origin:*"); time.Now().After(end) {
			t.Fatalf("%d rows of %d", bytes.Count(rows, []byte("\n")), sent)
		}
	}
	found := 0
	strange, err := EachRow(bytes.NewReader(rows), func(f Found) {
		if f.Origin != "" {
			found++
		}
	})
	if found != sent || strange > 0 || err != nil {
		t.Errorf("%d of %d rows are records, %v", found, sent, err)
	}
	var answers [][]row
	for _, q := range queriesOf(t, "logsql") {
		var answer []row
		for d := json.NewDecoder(bytes.NewReader(query("_time:7d " + q))); d.More(); {
			var one row
			if err := d.Decode(&one); err != nil {
				t.Fatal(err)
			}
			answer = append(answer, one)
		}
		answers = append(answers, answer)
	}
	checkIncident(t, answers, func(column string) string {
		switch column {
		case "origin", "sandbox", "revision", "rules":
			return "egressd." + column
		case "host":
			return "server.address"
		}
		return column
	})
}
