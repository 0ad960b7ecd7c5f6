package export

import (
	"cmp"
	"time"

	"github.com/egressd/egressd/record"
)

// ecsVersion is the version of the Elastic Common Schema that [ecs] writes. Its fields have the same names
// and meaning in 8.x and 9.x.
const ecsVersion = "8.17.0"

// ecs writes an event of the Elastic Common Schema as nested objects. Fields unknown to the schema are
// under "egressd".
func ecs(b []byte, r *record.Record, line []byte, from Origin) []byte {
	f := factsOf(r)
	w := &writer{b}
	w.line(func() {
		w.time("@timestamp", r.Time, time.RFC3339Nano)
		w.object("ecs", func() { w.str("version", ecsVersion) })
		w.str("message", f.sentence())
		w.ecsEvent(&f, line, from)
		w.object("observer", func() {
			w.str("product", "egressd")
			w.str("vendor", "egressd")
			w.str("type", "firewall")
			w.str("version", from.Version)
			w.str("hostname", from.Host)
		})
		if f.kind != aboutItself && f.kind != aboutSignal {
			w.ecsTraffic(&f)
		}
		w.object("egressd", func() { w.rest(&f, from) })
	})
	return w.b
}

func (w *writer) ecsEvent(f *facts, line []byte, from Origin) {
	category, types := ecsCategory(f)
	w.object("event", func() {
		if f.kind == aboutSignal {
			w.str("kind", "alert")
		} else {
			w.str("kind", "event")
		}
		w.strs("category", category...)
		w.strs("type", types...)
		w.str("outcome", ecsOutcome(f))
		w.str("action", ecsAction(f))
		w.str("code", f.code())
		w.str("reason", cmp.Or(f.said.Reason, f.Note))
		w.str("id", f.uid(from))
		w.num("sequence", f.Seq)
		w.str("original", string(line))
		w.str("module", "egressd")
		w.str("dataset", "egressd.audit")
		w.str("provider", "egressd")
		w.num("severity", int64(f.level()))
		if f.ended {
			w.time("start", f.start(), time.RFC3339Nano)
			w.time("end", f.Time, time.RFC3339Nano)
			w.num("duration", f.Duration*int64(time.Millisecond))
		}
	})
}

// ecsCategory returns event.category and event.type.
func ecsCategory(f *facts) (category, types []string) {
	switch f.kind {
	case aboutSignal:
		return []string{"intrusion_detection"}, []string{"info"}
	case aboutItself:
		switch f.Kind {
		case record.KindStart:
			return []string{"process"}, []string{"start"}
		case record.KindStop:
			return []string{"process"}, []string{"end"}
		case record.KindPolicy:
			return []string{"configuration"}, []string{"change"}
		}
		return []string{"process"}, []string{"info"}
	case aboutQuestion:
		types = []string{"protocol"}
	case aboutRequest:
		return []string{"network", "web"}, ecsTypes(f, []string{"access", "protocol"})
	default:
		types = []string{"connection"}
	}
	return []string{"network"}, ecsTypes(f, types)
}

func ecsTypes(f *facts, types []string) []string {
	switch {
	case f.denied:
		types = append(types, "denied")
	case !f.ended:
		types = append(types, "allowed")
	}
	if f.ended {
		types = append(types, "end")
	} else if f.kind == aboutFlow && !f.denied {
		types = append(types, "start")
	}
	return types
}

// ecsOutcome returns the outcome from the observer's view: a denial is a success, as in the schema's
// example of a firewall.
func ecsOutcome(f *facts) string {
	switch {
	case f.failed:
		return "failure"
	case f.kind == aboutFlow, f.kind == aboutRequest, f.kind == aboutQuestion:
		return "success"
	}
	return ""
}

func ecsAction(f *facts) string {
	switch {
	case f.kind == aboutItself, f.kind == aboutSignal:
		return string(f.Kind)
	case f.cut:
		return "flow-cut"
	case f.denied:
		return "flow-denied"
	case f.ended:
		return "flow-ended"
	}
	return "flow-allowed"
}

func (w *writer) ecsTraffic(f *facts) {
	up, down, known := f.bytes()
	w.object("source", func() {
		w.str("address", f.srcIP)
		w.str("ip", f.srcIP)
		w.some("port", int64(f.srcPort))
		if known {
			w.num("bytes", up)
		}
	})
	w.object("destination", func() {
		w.str("address", cmp.Or(f.host, f.dstIP))
		w.str("domain", f.host)
		w.str("ip", f.dstIP)
		w.some("port", int64(f.dstPort))
		if known {
			w.num("bytes", down)
		}
	})
	w.object("network", func() {
		w.str("direction", "egress")
		w.str("transport", f.transport())
		w.str("protocol", f.application())
		if known {
			w.num("bytes", up+down)
		}
	})
	w.ecsProtocols(f)
	w.object("rule", func() {
		w.str("name", f.said.Rule)
		w.str("ruleset", f.said.Layer)
		w.str("category", f.said.Class)
		w.str("description", f.said.Reason)
	})
	w.ecsProcess(f)
	w.object("related", func() {
		w.strs("hosts", f.name())
		if f.srcIP == f.dstIP {
			w.strs("ip", f.srcIP)
		} else {
			w.strs("ip", f.srcIP, f.dstIP)
		}
	})
}

func (w *writer) ecsProtocols(f *facts) {
	if h := f.HTTP; h != nil {
		w.object("http", func() {
			w.object("request", func() { w.str("method", h.Method) })
			w.object("response", func() { w.some("status_code", int64(h.Status)) })
		})
		w.object("url", func() {
			w.str("scheme", f.scheme())
			w.str("domain", f.name())
			w.some("port", int64(f.dstPort))
			w.str("path", h.Path)
			w.str("full", f.url())
		})
	}
	if q := f.DNS; q != nil {
		w.object("dns", func() {
			w.str("type", "query")
			w.object("question", func() {
				w.str("name", q.Name)
				w.str("type", q.Type)
				w.str("class", "IN")
			})
			if f.denied {
				w.str("response_code", "REFUSED")
			}
		})
	}
	if t := f.TLS; t != nil {
		w.object("tls", func() {
			w.object("client", func() { w.str("server_name", t.SNI) })
		})
	}
}

func (w *writer) ecsProcess(f *facts) {
	p := f.Process
	if p == nil {
		return
	}
	w.object("process", func() {
		w.num("pid", int64(p.PID))
		w.str("name", f.program())
		w.str("executable", p.Exe)
		w.strs("args", p.Argv...)
		w.str("command_line", commandLine(p.Argv))
	})
}
