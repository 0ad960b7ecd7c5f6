package export

import (
	"strconv"
	"time"

	"github.com/egressd/egressd/record"
)

// An EncodedRecord is a record with its text, which sinks send as the body.
type EncodedRecord struct {
	Record *record.Record
	Text   []byte // one line without its newline
}

// OTLP appends a JSON request of OTLP/HTTP for logs (opentelemetry-proto 1.x, ExportLogsServiceRequest).
// Each record gets a severity, the text as body, and attributes of the semantic conventions. Times are in
// nanoseconds; observed is the time of the request.
func OTLP(b []byte, entries []EncodedRecord, from Origin, observed time.Time) []byte {
	w := &writer{b}
	w.b = append(w.b, '{')
	w.objects("resourceLogs", func() {
		w.object("resource", func() {
			w.attributes(func(a *attributes) {
				a.str("service.name", "egressd")
				a.str("service.version", from.Version)
				a.str("host.name", from.Host)
			})
		})
		w.objects("scopeLogs", func() {
			w.object("scope", func() {
				w.str("name", "github.com/egressd/egressd/audit")
				w.str("version", from.Version)
			})
			w.key("logRecords")
			w.b = append(w.b, '[')
			for _, e := range entries {
				w.otlpRecord(e, from, observed)
			}
			w.b = append(w.b, ']')
		})
	})
	w.b = append(w.b, '}')
	return w.b
}

func (w *writer) otlpRecord(e EncodedRecord, from Origin, observed time.Time) {
	f := factsOf(e.Record)
	number, text := otlpSeverity(f.level())
	w.comma()
	w.b = append(w.b, '{')
	w.str("timeUnixNano", strconv.FormatInt(f.Time.UnixNano(), 10))
	w.str("observedTimeUnixNano", strconv.FormatInt(observed.UnixNano(), 10))
	w.num("severityNumber", number)
	w.str("severityText", text)
	w.str("eventName", "egressd."+string(f.Kind))
	w.object("body", func() { w.str("stringValue", string(e.Text)) })
	w.attributes(func(a *attributes) { a.record(&f, from) })
	w.b = append(w.b, '}')
}

func otlpSeverity(l level) (number int64, text string) {
	switch l {
	case low:
		return 13, "WARN"
	case medium:
		return 14, "WARN2"
	case high:
		return 17, "ERROR"
	default:
		return 9, "INFO"
	}
}

// attributes writes a list of keys and values.
type attributes struct{ *writer }

func (w *writer) attributes(members func(*attributes)) {
	w.key("attributes")
	w.b = append(w.b, '[')
	members(&attributes{w})
	w.b = append(w.b, ']')
}

func (a *attributes) value(key string, value func()) {
	a.comma()
	a.b = append(a.b, '{')
	a.writer.str("key", key)
	a.object("value", value)
	a.b = append(a.b, '}')
}

func (a *attributes) str(key, value string) {
	if value != "" {
		a.value(key, func() { a.writer.str("stringValue", value) })
	}
}

// num writes an integer. The JSON form of protobuf writes 64-bit integers as strings.
func (a *attributes) num(key string, n int64) {
	a.value(key, func() { a.writer.str("intValue", strconv.FormatInt(n, 10)) })
}

func (a *attributes) some(key string, n int64) {
	if n != 0 {
		a.num(key, n)
	}
}

func (a *attributes) flag(key string, set bool) {
	if set {
		a.value(key, func() { a.writer.flag("boolValue", true) })
	}
}

func (a *attributes) strs(key string, values []string) {
	if len(values) == 0 {
		return
	}
	a.value(key, func() {
		a.object("arrayValue", func() {
			a.key("values")
			a.b = append(a.b, '[')
			for _, v := range values {
				a.comma()
				a.b = append(a.b, `{"stringValue":`...)
				a.quote(v)
				a.b = append(a.b, '}')
			}
			a.b = append(a.b, ']')
		})
	})
}

func (a *attributes) record(f *facts, from Origin) {
	a.str("log.record.uid", f.uid(from))
	a.str("egressd.origin", from.Log)
	a.num("egressd.seq", f.Seq)
	a.num("egressd.count", f.Times())
	a.flag("egressd.shared", f.Shared)
	if n := f.Names; n != nil {
		a.str("egressd.names.first", n.First)
		a.str("egressd.names.last", n.Last)
		a.some("egressd.names.domains", n.Domains)
	}
	a.str("egressd.flow", f.Flow)
	a.str("egressd.sandbox", f.Sandbox)
	a.str("egressd.via", f.Via)
	a.str("egressd.action", f.said.Action)
	a.str("egressd.policy", f.said.Policy)
	a.str("egressd.rules", f.said.Rules)
	a.str("egressd.revision", f.said.Revision)
	a.str("egressd.outcome", f.Outcome)
	if l := f.Log; l != nil {
		a.num("egressd.log.size", l.Size)
		a.str("egressd.log.root", l.Root)
		a.str("egressd.log.follows", l.Follows)
		a.some("egressd.log.had", l.Had)
	}
	a.str("client.address", f.srcIP)
	a.some("client.port", int64(f.srcPort))
	if f.Dst != nil {
		a.str("server.address", f.Dst.Host)
		a.some("server.port", int64(f.dstPort))
	}
	a.str("network.transport", f.transport())
	if f.dstIP != "" {
		a.str("network.peer.address", f.dstIP)
		a.some("network.peer.port", int64(f.dstPort))
	}
	a.str("security_rule.name", f.said.Rule)
	a.str("security_rule.category", f.said.Class)
	a.str("security_rule.ruleset.name", f.said.Layer)
	a.str("security_rule.description", f.said.Reason)
	a.protocols(f)
	a.process(f)
	if up, down, known := f.bytes(); known {
		a.num("egressd.bytes.up", up)
		a.num("egressd.bytes.down", down)
	}
}

func (a *attributes) protocols(f *facts) {
	if h := f.HTTP; h != nil {
		a.str("http.request.method", h.Method)
		a.some("http.response.status_code", int64(h.Status))
		a.str("url.scheme", f.scheme())
		a.str("url.path", h.Path)
		a.str("url.full", f.url())
	}
	if q := f.DNS; q != nil {
		a.str("dns.question.name", q.Name)
		a.str("egressd.dns.type", q.Type)
	}
	if t := f.TLS; t != nil {
		a.str("egressd.tls.sni", t.SNI)
		a.str("egressd.tls.ja4", t.JA4)
		a.flag("egressd.tls.inspected", t.Inspected)
	}
}

func (a *attributes) process(f *facts) {
	if c := f.Container; c != nil {
		a.str("container.id", c.ID)
		a.str("container.name", c.Name)
		a.str("container.image.name", c.Image)
		a.str("egressd.container.project", c.Project)
		a.str("egressd.container.service", c.Service)
	}
	if p := f.Process; p != nil {
		a.num("process.pid", int64(p.PID))
		a.str("process.executable.name", f.program())
		a.str("process.executable.path", p.Exe)
		a.strs("process.command_args", p.Argv)
	}
}
