//go:build linux

package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit"
)

// TestTheLogHasItsRecordsAndTheFlow reads what a gate wrote.
func TestTheLogHasItsRecordsAndTheFlow(t *testing.T) {
	const records = 2000
	dir := filepath.Join(t.TempDir(), "log")
	flow, key, err := writeLog(t.Context(), dir, records)
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.NewReader(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	kinds, ofFlow := map[string]int{}, 0
	for {
		line, err := log.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, mark := range []string{`"kind":"open"`, `"kind":"close"`, `"action":"deny"`} {
			if strings.Contains(string(line), mark) {
				kinds[mark]++
			}
		}
		if strings.Contains(string(line), flow) {
			ofFlow++
		}
	}
	if n := kinds[`"kind":"open"`] + kinds[`"kind":"close"`]; n < records || n > records+records/5 || kinds[`"action":"deny"`] == 0 {
		t.Errorf("%d records: %v", n, kinds)
	}
	if ofFlow != 2 || key == "" {
		t.Errorf("flow %s has %d records; the key is %q", flow, ofFlow, key)
	}
}
