package export

import (
	"cmp"
	"strconv"

	"github.com/egressd/egressd/record"
)

// ocsfVersion is the version of the Open Cybersecurity Schema Framework that [ocsf] writes.
const ocsfVersion = "1.5.0"

// An ocsfClass is a class of events and its category.
type ocsfClass struct {
	id, category       int64
	name, categoryName string
	activity           int64
	activityName       string
	network, finding   bool
}

var (
	ocsfNetwork   = ocsfClass{id: 4001, category: 4, name: "Network Activity", categoryName: "Network Activity", network: true}
	ocsfHTTP      = ocsfClass{id: 4002, category: 4, name: "HTTP Activity", categoryName: "Network Activity", network: true}
	ocsfDNS       = ocsfClass{id: 4003, category: 4, name: "DNS Activity", categoryName: "Network Activity", network: true}
	ocsfLifecycle = ocsfClass{id: 6002, category: 6, name: "Application Lifecycle", categoryName: "Application Activity"}
	ocsfFinding   = ocsfClass{id: 2004, category: 2, name: "Detection Finding", categoryName: "Findings", finding: true}
)

// ocsfOther is the number for values that an enumeration lacks.
const ocsfOther = 99

var ocsfMethods = map[string]int64{
	"CONNECT": 1, "DELETE": 2, "GET": 3, "HEAD": 4, "OPTIONS": 5, "POST": 6, "PUT": 7, "TRACE": 8, "PATCH": 9,
}

var ocsfMethodNames = map[int64]string{
	1: "Connect", 2: "Delete", 3: "Get", 4: "Head", 5: "Options", 6: "Post", 7: "Put", 8: "Trace", 9: "Patch",
}

// ocsf writes an event of the Open Cybersecurity Schema Framework.
func ocsf(b []byte, r *record.Record, line []byte, from Origin) []byte {
	f := factsOf(r)
	c := ocsfClassOf(&f)
	w := &writer{b}
	w.line(func() {
		w.num("category_uid", c.category)
		w.str("category_name", c.categoryName)
		w.num("class_uid", c.id)
		w.str("class_name", c.name)
		w.num("activity_id", c.activity)
		w.str("activity_name", c.activityName)
		w.num("type_uid", c.id*100+c.activity)
		w.str("type_name", c.name+": "+c.activityName)
		w.num("time", r.Time.UnixMilli())
		w.ocsfTimes(&f)
		w.ocsfSeverity(&f)
		w.str("message", f.sentence())
		w.str("raw_data", string(line))
		w.ocsfMetadata(&f, c, from)
		switch {
		case c.network:
			w.ocsfTraffic(&f, from)
		case c.finding:
			w.ocsfFinding(&f, from)
		default:
			w.object("app", func() { w.ocsfProduct(from) })
		}
		w.object("unmapped", func() { w.rest(&f, from) })
	})
	return w.b
}

func ocsfClassOf(f *facts) ocsfClass {
	var c ocsfClass
	switch f.kind {
	case aboutRequest:
		c = ocsfHTTP
		c.activity = ocsfMethods[f.HTTP.Method]
		c.activityName = ocsfMethodNames[c.activity]
		if c.activity == 0 {
			c.activity, c.activityName = ocsfOther, f.HTTP.Method
		}
	case aboutQuestion:
		c = ocsfDNS
		c.activity, c.activityName = 1, "Query"
	case aboutSignal:
		c = ocsfFinding
		c.activity, c.activityName = 1, "Create"
	case aboutItself:
		c = ocsfLifecycle
		c.activity, c.activityName = ocsfOther, string(f.Kind)
		switch f.Kind {
		case record.KindStart:
			c.activity, c.activityName = 3, "Start"
		case record.KindStop:
			c.activity, c.activityName = 4, "Stop"
		}
	default:
		c = ocsfNetwork
		c.activity, c.activityName = ocsfActivity(f)
	}
	return c
}

func ocsfActivity(f *facts) (int64, string) {
	switch {
	case f.cut, f.ended && f.Outcome == record.OutcomeReset:
		return 3, "Reset"
	case f.denied:
		return 5, "Refuse"
	case f.failed:
		return 4, "Fail"
	case f.ended:
		return 2, "Close"
	default:
		return 1, "Open"
	}
}

func (w *writer) ocsfTimes(f *facts) {
	w.num("count", f.Times())
	if f.ended {
		w.num("start_time", f.start().UnixMilli())
		w.num("end_time", f.Time.UnixMilli())
		w.num("duration", f.Duration)
	}
}

func (w *writer) ocsfSeverity(f *facts) {
	names := [...]string{informational: "Informational", low: "Low", medium: "Medium", high: "High"}
	w.num("severity_id", int64(f.level())+1)
	w.str("severity", names[f.level()])
}

func (w *writer) ocsfMetadata(f *facts, c ocsfClass, from Origin) {
	w.object("metadata", func() {
		w.str("version", ocsfVersion)
		w.object("product", func() { w.ocsfProduct(from) })
		if c.network {
			w.strs("profiles", "host", "security_control")
		}
		w.str("uid", f.uid(from))
		w.str("correlation_uid", f.Flow)
		w.num("sequence", f.Seq)
		w.str("event_code", string(f.Kind))
		w.str("log_name", "audit")
		w.str("log_provider", "egressd")
	})
}

// uid identifies the event: in all logs, or in this one if the origin is unknown. A flow has several events.
func (f *facts) uid(from Origin) string {
	if id := ID(from.Log, f.Seq); id != "" {
		return id
	}
	if f.Flow == "" {
		return strconv.FormatInt(f.Seq, 10)
	}
	return f.Flow + "-" + strconv.FormatInt(f.Seq, 10)
}

func (w *writer) ocsfProduct(from Origin) {
	w.str("name", "egressd")
	w.str("vendor_name", "egressd")
	w.str("version", from.Version)
}

// ocsfTraffic writes the members shared by all classes of network activity.
func (w *writer) ocsfTraffic(f *facts, from Origin) {
	w.ocsfControl(f)
	w.object("device", func() {
		w.str("hostname", cmp.Or(from.Host, "localhost"))
		w.num("type_id", 0)
		w.str("type", "Unknown")
	})
	w.object("src_endpoint", func() {
		w.str("ip", f.srcIP)
		w.some("port", int64(f.srcPort))
		w.str("name", cmp.Or(f.Sandbox, "unknown"))
	})
	w.object("dst_endpoint", func() {
		w.str("hostname", f.host)
		w.str("ip", f.dstIP)
		w.some("port", int64(f.dstPort))
	})
	w.ocsfConnection(f)
	if up, down, known := f.bytes(); known {
		w.object("traffic", func() {
			w.num("bytes_out", up)
			w.num("bytes_in", down)
			w.num("bytes", up+down)
		})
	}
	w.ocsfProcess(f)
	w.ocsfTLS(f)
	switch f.kind {
	case aboutRequest:
		w.ocsfRequest(f)
	case aboutQuestion:
		w.ocsfQuery(f)
	}
}

// ocsfControl writes the profile "security_control".
func (w *writer) ocsfControl(f *facts) {
	type control struct {
		action, disposition         int64
		actionName, dispositionName string
	}
	words := control{1, 1, "Allowed", "Allowed"}
	switch {
	case f.cut && f.denied:
		words = control{2, 24, "Denied", "Access Revoked"}
	case f.denied:
		words = control{2, 2, "Denied", "Blocked"}
	}
	w.num("action_id", words.action)
	w.str("action", words.actionName)
	w.num("disposition_id", words.disposition)
	w.str("disposition", words.dispositionName)
	if f.denied || f.failed {
		w.num("status_id", 2)
		w.str("status", "Failure")
	} else {
		w.num("status_id", 1)
		w.str("status", "Success")
	}
	w.str("status_code", f.code())
	w.str("status_detail", cmp.Or(f.said.Reason, f.Note))
	w.object("firewall_rule", func() {
		if f.said.Rule != "" {
			w.str("name", f.said.Rule)
			w.str("type", f.said.Layer)
			w.str("category", f.said.Class)
			w.str("desc", f.said.Reason)
		}
	})
	w.object("policy", func() { w.str("uid", f.said.Policy) })
}

func (w *writer) ocsfConnection(f *facts) {
	numbers := map[string]int64{"tcp": 6, "udp": 17}
	w.object("connection_info", func() {
		w.num("direction_id", 2)
		w.str("direction", "Outbound")
		w.str("protocol_name", f.transport())
		w.some("protocol_num", numbers[f.transport()])
		w.str("uid", f.Flow)
	})
}

func (w *writer) ocsfProcess(f *facts) {
	if f.Process == nil {
		return
	}
	w.object("actor", func() {
		w.object("process", func() {
			w.num("pid", int64(f.Process.PID))
			w.str("name", f.program())
			w.str("path", f.Process.Exe)
			w.str("cmd_line", commandLine(f.Process.Argv))
		})
	})
}

// ocsfTLS writes "unknown" as the required TLS version, since client and upstream agree on the version
// only after the recorded ClientHello.
func (w *writer) ocsfTLS(f *facts) {
	if f.TLS == nil {
		return
	}
	w.object("tls", func() {
		w.str("version", "unknown")
		w.str("sni", f.TLS.SNI)
	})
	if f.TLS.JA4 != "" {
		w.objects("ja4_fingerprint_list", func() {
			w.num("type_id", 1)
			w.str("type", "JA4")
			w.str("value", f.TLS.JA4)
		})
	}
}

func (w *writer) ocsfRequest(f *facts) {
	w.object("http_request", func() {
		w.str("http_method", f.HTTP.Method)
		w.object("url", func() {
			w.str("scheme", f.scheme())
			w.str("hostname", f.name())
			w.some("port", int64(f.dstPort))
			w.str("path", f.HTTP.Path)
			w.str("url_string", f.url())
		})
	})
	if f.HTTP.Status != 0 {
		w.object("http_response", func() { w.num("code", int64(f.HTTP.Status)) })
	}
}

func (w *writer) ocsfQuery(f *facts) {
	if f.DNS == nil {
		return
	}
	w.object("query", func() {
		w.str("hostname", f.DNS.Name)
		w.str("type", f.DNS.Type)
		w.str("class", "IN")
	})
}

func (w *writer) ocsfFinding(f *facts, from Origin) {
	w.num("status_id", 1)
	w.str("status", "New")
	w.object("finding_info", func() {
		w.str("uid", f.uid(from))
		w.str("title", cmp.Or(f.noticed(), string(f.Kind)))
		w.str("desc", f.noticed())
	})
}
