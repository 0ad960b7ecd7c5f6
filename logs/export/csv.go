package export

import (
	"strconv"
	"strings"

	"github.com/egressd/egressd/record"
)

// CSV appends a row of RFC 4180 for the record, in the columns of [CSVHeader]. A cell is empty if the record
// lacks the member.
//
// A program in a sandbox chooses some of the texts, and a spreadsheet takes some texts as formulas. So a text
// that begins with = + - or @ gets an apostrophe in front, and so does one that begins with an apostrophe: a
// reader that takes one away has the text again. All characters outside printable ASCII are written as \uXXXX,
// and so is the semicolon, at which spreadsheets of some languages begin a new cell. Each row is one line.
func CSV(b []byte, r *record.Record, _ []byte, from Origin) []byte {
	v := csvRecord{
		Record: r, from: from, dst: orZero(r.Dst), tls: orZero(r.TLS), http: orZero(r.HTTP), dns: orZero(r.DNS), container: orZero(r.Container),
		process: orZero(r.Process), said: orZero(r.Decision), signal: orZero(r.Signal), names: orZero(r.Names),
	}
	for i, column := range csvColumns {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendCell(b, column.value(&v))
	}
	return append(b, '\r', '\n')
}

// CSVHeader returns the first line of a CSV file.
func CSVHeader() string {
	names := make([]string, len(csvColumns))
	for i, column := range csvColumns {
		names[i] = column.name
	}
	return strings.Join(names, ",") + "\r\n"
}

// A csvRecord is a record whose absent parts are zero.
type csvRecord struct {
	*record.Record
	from      Origin
	dst       record.Destination
	tls       record.TLS
	http      record.HTTP
	dns       record.DNS
	container record.Container
	process   record.Process
	said      record.Decision
	signal    record.Signal
	names     record.Names
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// csvColumns are named as the members of the record. Columns are added at the end, and none changes its name.
var csvColumns = []struct {
	name  string
	value func(*csvRecord) string
}{
	{"time", func(v *csvRecord) string { return v.Time.UTC().Format(syslogTime) }},
	{"seq", func(v *csvRecord) string { return strconv.FormatInt(v.Seq, 10) }},
	{"kind", func(v *csvRecord) string { return string(v.Kind) }},
	{"flow", func(v *csvRecord) string { return v.Flow }},
	{"count", func(v *csvRecord) string { return strconv.FormatInt(v.Times(), 10) }},
	{"sandbox", func(v *csvRecord) string { return v.Sandbox }},
	{"container.name", func(v *csvRecord) string { return v.container.Name }},
	{"via", func(v *csvRecord) string { return v.Via }},
	{"src", func(v *csvRecord) string { return v.Src }},
	{"dst.host", func(v *csvRecord) string { return v.dst.Host }},
	{"dst.port", func(v *csvRecord) string { return unlessZero(int64(v.dst.Port)) }},
	{"dst.addr", func(v *csvRecord) string { return v.dst.Addr }},
	{"http.method", func(v *csvRecord) string { return v.http.Method }},
	{"http.path", func(v *csvRecord) string { return v.http.Path }},
	{"http.status", func(v *csvRecord) string { return unlessZero(int64(v.http.Status)) }},
	{"tls.sni", func(v *csvRecord) string { return v.tls.SNI }},
	{"dns.name", func(v *csvRecord) string { return v.dns.Name }},
	{"dns.type", func(v *csvRecord) string { return v.dns.Type }},
	{"process.pid", func(v *csvRecord) string { return unlessZero(int64(v.process.PID)) }},
	{"process.exe", func(v *csvRecord) string { return v.process.Exe }},
	{"process.argv", func(v *csvRecord) string { return commandLine(v.process.Argv) }},
	{"decision.action", func(v *csvRecord) string { return v.said.Action }},
	{"decision.class", func(v *csvRecord) string { return v.said.Class }},
	{"decision.rule", func(v *csvRecord) string { return v.said.Rule }},
	{"decision.layer", func(v *csvRecord) string { return v.said.Layer }},
	{"decision.reason", func(v *csvRecord) string { return v.said.Reason }},
	{"decision.policy", func(v *csvRecord) string { return v.said.Policy }},
	{"bytes.up", func(v *csvRecord) string { up, _ := csvBytes(v); return up }},
	{"bytes.down", func(v *csvRecord) string { _, down := csvBytes(v); return down }},
	{"duration_ms", func(v *csvRecord) string { return unlessZero(v.Duration) }},
	{"outcome", func(v *csvRecord) string { return string(v.Outcome) }},
	{"signal.what", func(v *csvRecord) string { return v.signal.What }},
	{"signal.name", func(v *csvRecord) string { return v.signal.Name }},
	{"signal.where", func(v *csvRecord) string { return v.signal.Where }},
	{"raw", func(v *csvRecord) string { return v.Raw }},
	{"note", func(v *csvRecord) string { return v.Note }},
	{"names.first", func(v *csvRecord) string { return v.names.First }},
	{"names.last", func(v *csvRecord) string { return v.names.Last }},
	{"names.domains", func(v *csvRecord) string { return unlessZero(v.names.Domains) }},
	{"origin", func(v *csvRecord) string { return v.from.Log }},
	{"id", func(v *csvRecord) string { return ID(v.from.Log, v.Seq) }},
	{"decision.rules", func(v *csvRecord) string { return v.said.Rules }},
	{"decision.revision", func(v *csvRecord) string { return v.said.Revision }},
	{"http.query_bytes", func(v *csvRecord) string { return unlessZero(v.http.QueryBytes) }},
}

func unlessZero(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// csvBytes returns the payload bytes, where 0 is a number and not an absent member.
func csvBytes(v *csvRecord) (up, down string) {
	if v.Bytes == nil {
		return "", ""
	}
	return strconv.FormatInt(v.Bytes.Up, 10), strconv.FormatInt(v.Bytes.Down, 10)
}

func appendCell(b []byte, value string) []byte {
	text := strings.ReplaceAll(visible(value), ";", `\u003b`)
	if text != "" && strings.Contains("=+-@'", text[:1]) {
		text = "'" + text
	}
	if !strings.ContainsAny(text, `,"`) {
		return append(b, text...)
	}
	b = append(b, '"')
	b = append(b, strings.ReplaceAll(text, `"`, `""`)...)
	return append(b, '"')
}
