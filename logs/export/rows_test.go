package export

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

const (
	rowOrigin = "egressd/8f0c5d6e7a8b9c0d1e2f3a4b5c6d7e8f"
	stored    = `{"v":1,"seq":3,"time":"2026-11-20T09:51:38.000000Z","kind":"open","flow":"01KB6ZQ4SZ","dst":{"host":"a.test","port":443},"process":{"pid":7,"exe":"/bin/x","argv":["{\"v\":1,\"seq\":4,"]},"decision":{"action":"allow","layer":"user"}}`
)

func TestARecordIsFoundInWhatAStoreReturns(t *testing.T) {
	r, err := record.Decode([]byte(stored))
	if err != nil {
		t.Fatal(err)
	}
	from := Origin{Version: "1", Host: "h", Log: rowOrigin}
	encoded := func(format string) string {
		encode := JSON
		if format != "json" {
			encode, _ = Named(format)
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
	syslog := string(Syslog(nil, EncodedRecord{Record: r, Text: []byte(sent)}, from, 7))
	for says, row := range map[string]struct{ text, origin string }{
		"a line of the log":            {stored, ""},
		"a line of a sink":             {sent, rowOrigin},
		"a syslog message":             {syslog, rowOrigin},
		"VictoriaLogs":                 {`{"_time":"2026-11-20T09:51:38Z","_stream":"{}","_msg":` + quoted(sent) + `,"process.command_args":"[\"{\\\"v\\\":1,\\\"seq\\\":4,\"]"}`, rowOrigin},
		"VictoriaLogs, a stored line":  {`{"_msg":` + quoted(stored) + `,"egressd.origin":"` + rowOrigin + `"}`, rowOrigin},
		"VictoriaLogs, an event":       {`{"_msg":` + quoted(encoded("ocsf")) + `}`, rowOrigin},
		"ECS":                          {encoded("ecs"), rowOrigin},
		"OCSF":                         {encoded("ocsf"), rowOrigin},
		"Elasticsearch":                {`{"_index":"e","_id":"1","_score":null,"_source":` + encoded("ecs") + `}`, rowOrigin},
		"Elasticsearch by Filebeat":    {`{"_index":"e","_source":{"@timestamp":"x","message":` + quoted(sent) + `}}`, rowOrigin},
		"an answer of Elasticsearch":   {`{"took":1,"hits":{"total":{"value":1},"hits":[{"_index":"e","_source":` + encoded("ecs") + `}]}}`, rowOrigin},
		"Elasticsearch, dotted fields": {`{"_source":{"event.original":` + quoted(stored) + `,"egressd":{"origin":"` + rowOrigin + `"}}}`, rowOrigin},
	} {
		n := 0
		strange, err := EachRow(strings.NewReader("\n"+row.text+"\n"), func(got Found) {
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
		strange, err := EachRow(strings.NewReader(row), func(got Found) { t.Errorf("%s holds %s", row, got.Line) })
		if strange != 1 || err != nil {
			t.Errorf("%s: %d strange rows, %v", row, strange, err)
		}
	}
}
