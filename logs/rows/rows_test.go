package rows

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/record"
)

const (
	origin = "egressd/8f0c5d6e7a8b9c0d1e2f3a4b5c6d7e8f"
	stored = `{"v":1,"seq":3,"time":"2026-11-20T09:51:38.000000Z","kind":"open","flow":"01KB6ZQ4SZ","dst":{"host":"a.test","port":443},"process":{"pid":7,"exe":"/bin/x","argv":["{\"v\":1,\"seq\":4,"]},"decision":{"action":"allow","layer":"user"}}`
)

func TestARecordIsFoundInWhatAStoreReturns(t *testing.T) {
	r, err := record.Decode([]byte(stored))
	if err != nil {
		t.Fatal(err)
	}
	from := export.Origin{Version: "1", Host: "h", Log: origin}
	encoded := func(format string) string {
		encode := export.JSON
		if format != "json" {
			encode, _ = export.Named(format)
		}
		return strings.TrimSuffix(string(encode(nil, r, []byte(stored), from)), "\n")
	}
	quoted := func(text string) string {
		b, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	sent := encoded("json")
	syslog := string(export.Syslog(nil, export.EncodedRecord{Record: r, Text: []byte(sent)}, from, 7))
	for says, row := range map[string]struct{ text, origin string }{
		"a line of the log":            {stored, ""},
		"a line of a sink":             {sent, origin},
		"a syslog message":             {syslog, origin},
		"VictoriaLogs":                 {`{"_time":"2026-11-20T09:51:38Z","_stream":"{}","_msg":` + quoted(sent) + `,"process.command_args":"[\"{\\\"v\\\":1,\\\"seq\\\":4,\"]"}`, origin},
		"VictoriaLogs, a stored line":  {`{"_msg":` + quoted(stored) + `,"egressd.origin":"` + origin + `"}`, origin},
		"VictoriaLogs, an event":       {`{"_msg":` + quoted(encoded("ocsf")) + `}`, origin},
		"ECS":                          {encoded("ecs"), origin},
		"OCSF":                         {encoded("ocsf"), origin},
		"Elasticsearch":                {`{"_index":"e","_id":"1","_score":null,"_source":` + encoded("ecs") + `}`, origin},
		"Elasticsearch by Filebeat":    {`{"_index":"e","_source":{"@timestamp":"x","message":` + quoted(sent) + `}}`, origin},
		"an answer of Elasticsearch":   {`{"took":1,"hits":{"total":{"value":1},"hits":[{"_index":"e","_source":` + encoded("ecs") + `}]}}`, origin},
		"Elasticsearch, dotted fields": {`{"_source":{"event.original":` + quoted(stored) + `,"egressd":{"origin":"` + origin + `"}}}`, origin},
	} {
		n := 0
		strange, err := Each(strings.NewReader("\n"+row.text+"\n"), func(got Row) {
			n++
			if string(got.Line) != stored || got.Origin != row.origin {
				t.Errorf("%s: %s of %q", says, got.Line, got.Origin)
			}
		})
		if n != 1 || strange != 0 || err != nil {
			t.Errorf("%s: %d records, %d strange rows, %v", says, n, strange, err)
		}
	}
}

// TestOtherRowsHoldNoRecord has rows in which a program of a sandbox chose a text that looks like a record.
func TestOtherRowsHoldNoRecord(t *testing.T) {
	for _, row := range []string{
		`{"_msg":"nginx started"}`, `not JSON`, `{"_msg":`, `[]`, `7`, `{"hits":{"hits":[{"_source":{"message":"x"}}]}}`,
		`{"_msg":"x","process.command_args":"{\"v\":1,\"seq\":4,\"time\":\"2026-11-20T09:51:38.000000Z\",\"kind\":\"open\"}"}`,
		`{"_source":{"http":{"path":"{\"v\":1,\"seq\":4,"}}}`,
	} {
		strange, err := Each(strings.NewReader(row), func(got Row) { t.Errorf("%s holds %s", row, got.Line) })
		if strange != 1 || err != nil {
			t.Errorf("%s: %d strange rows, %v", row, strange, err)
		}
	}
}
