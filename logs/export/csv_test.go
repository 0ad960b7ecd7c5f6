package export

import (
	"bytes"
	"encoding/csv"
	"reflect"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

// TestCSVColumnsAreMembersOfTheRecord, each once.
func TestCSVColumnsAreMembersOfTheRecord(t *testing.T) {
	members := map[string]bool{}
	membersOf("", reflect.TypeFor[record.Record](), members)
	members["origin"], members["id"] = true, true // of a record that leaves
	for _, column := range csvColumns {
		if !members[column.name] {
			t.Errorf("the record has no member %s, or it is a column twice", column.name)
		}
		delete(members, column.name)
	}
}

func membersOf(path string, of reflect.Type, into map[string]bool) {
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		into[path+name] = true
		if field.Type.Kind() == reflect.Pointer {
			membersOf(path+name+".", field.Type.Elem(), into)
		}
	}
}

// readCSV reads rows as encoding/csv does, by the names of their columns.
func readCSV(t *testing.T, text []byte) (rows []map[string]string) {
	t.Helper()
	all, err := csv.NewReader(bytes.NewReader(append([]byte(CSVHeader()), text...))).ReadAll()
	if err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	for _, cells := range all[1:] {
		row := map[string]string{}
		for i, name := range all[0] {
			row[name] = cells[i]
		}
		rows = append(rows, row)
	}
	return rows
}

// TestACSVRowIsARecord compares rows with the records that they were made of.
func TestACSVRowIsARecord(t *testing.T) {
	records, _ := samples(t)
	var text []byte
	for _, r := range records {
		text = CSV(text, r, nil, testOrigin)
	}
	rows := readCSV(t, text)
	if len(rows) != len(records) {
		t.Fatalf("%d rows of %d records", len(rows), len(records))
	}
	for i, r := range records {
		row := rows[i]
		if row["kind"] != string(r.Kind) || row["flow"] != r.Flow || r.Dst != nil && row["dst.host"] != r.Dst.Host || (r.Bytes != nil) != (row["bytes.up"] != "") {
			t.Errorf("%+v is the row %v", r, row)
		}
	}
}

// checkCSV expects that the text comes back from each column that holds it alone, and that no cell is a formula.
func checkCSV(t *testing.T, r *record.Record, text string) {
	t.Helper()
	line := CSV(nil, r, nil, testOrigin)
	inside, ends := bytes.CutSuffix(line, []byte("\r\n"))
	if !ends || !isPrintable(inside) || bytes.Contains(inside, []byte(";")) {
		t.Fatalf("%q", line)
	}
	rows := readCSV(t, line)
	if len(rows) != 1 {
		t.Fatalf("%d rows: %q", len(rows), line)
	}
	for name, cell := range rows[0] {
		if cell != "" && strings.Contains("=+-@", cell[:1]) {
			t.Fatalf("%s is a formula: %q", name, cell)
		}
	}
	want := string([]rune(text)) // each wrong byte on its own
	for _, name := range []string{"sandbox", "dst.host", "http.method", "http.path", "tls.sni", "dns.name", "process.exe", "decision.rule", "raw", "note"} {
		if got := seen(strings.TrimPrefix(rows[0][name], "'")); got != want {
			t.Fatalf("%s is %q, and not %q, in %q", name, got, want, line)
		}
	}
}
