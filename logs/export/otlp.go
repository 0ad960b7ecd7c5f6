package export

import (
	"time"
	"unicode/utf8"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/egressd/egressd/record"
)

// An EncodedRecord is a record with its text, which sinks send as the body.
type EncodedRecord struct {
	Record *record.Record
	Text   []byte // one line without its newline
}

// OTLP appends a protobuf request of OTLP/HTTP for logs (opentelemetry-proto 1.x, ExportLogsServiceRequest).
// Each record gets a severity, the text as body, and attributes of the semantic conventions. Times are in
// nanoseconds; observed is the time of the request. An error says that a text is not valid UTF-8.
func OTLP(b []byte, entries []EncodedRecord, from Origin, observed time.Time) ([]byte, error) {
	resource := attributes{}
	resource.str("service.name", "egressd")
	resource.str("service.version", from.Version)
	resource.str("host.name", from.Host)
	scope := &logspb.ScopeLogs{Scope: &commonpb.InstrumentationScope{Name: "github.com/egressd/egressd/audit", Version: from.Version}}
	for _, e := range entries {
		scope.LogRecords = append(scope.LogRecords, otlpRecord(e, from, observed))
	}
	// LogsData and ExportLogsServiceRequest are the same on the wire; the package of the second one needs gRPC.
	return proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, &logspb.LogsData{ResourceLogs: []*logspb.ResourceLogs{{
		Resource: &resourcepb.Resource{Attributes: resource.all}, ScopeLogs: []*logspb.ScopeLogs{scope},
	}}})
}

func otlpRecord(e EncodedRecord, from Origin, observed time.Time) *logspb.LogRecord {
	f := factsOf(e.Record)
	number, text := otlpSeverity(f.level())
	a := attributes{}
	a.record(&f, from)
	return &logspb.LogRecord{
		TimeUnixNano: uint64(f.Time.UnixNano()), ObservedTimeUnixNano: uint64(observed.UnixNano()),
		SeverityNumber: number, SeverityText: text, EventName: "egressd." + string(f.Kind),
		Body: otlpText(string(e.Text)), Attributes: a.all,
	}
}

func otlpSeverity(l level) (number logspb.SeverityNumber, text string) {
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

// attributes collects a list of keys and values.
type attributes struct{ all []*commonpb.KeyValue }

// otlpText returns a text. Bytes that are not UTF-8 become U+FFFD, as in encoding/json: protobuf refuses them.
func otlpText(text string) *commonpb.AnyValue {
	if !utf8.ValidString(text) {
		text = string([]rune(text))
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: text}}
}

func (a *attributes) value(key string, value *commonpb.AnyValue) {
	a.all = append(a.all, &commonpb.KeyValue{Key: key, Value: value})
}

func (a *attributes) str(key, value string) {
	if value != "" {
		a.value(key, otlpText(value))
	}
}

func (a *attributes) num(key string, n int64) {
	a.value(key, &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: n}})
}

func (a *attributes) some(key string, n int64) {
	if n != 0 {
		a.num(key, n)
	}
}

func (a *attributes) flag(key string, set bool) {
	if set {
		a.value(key, &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: true}})
	}
}

func (a *attributes) strs(key string, values []string) {
	if len(values) == 0 {
		return
	}
	list := &commonpb.ArrayValue{}
	for _, v := range values {
		list.Values = append(list.Values, otlpText(v))
	}
	a.value(key, &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: list}})
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
	a.str("egressd.outcome", string(f.Outcome))
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
