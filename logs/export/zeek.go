package export

import (
	"cmp"
	"strconv"

	"github.com/egressd/egressd/record"
)

// zeek writes entries of Zeek's logs as JSON, with the name of the log in "_path". The end or denial of a
// flow becomes a conn entry, with an http or ssl entry. A question becomes a dns entry. Zeek has no entry
// for an open flow. Fields specific to egressd begin with "egressd_".
func zeek(b []byte, r *record.Record, _ Origin) []byte {
	f := factsOf(r)
	w := &writer{b}
	switch f.kind {
	case aboutQuestion:
		w.zeekQuestions(&f)
	case aboutFlow, aboutRequest:
		if f.ended || f.denied {
			w.zeekFlow(&f)
		}
	}
	return w.b
}

func (w *writer) zeekFlow(f *facts) {
	w.zeekEntry("conn", f, func() {
		w.str("proto", cmp.Or(f.transport(), "unknown_transport"))
		w.str("service", map[string]string{"http": "http", "tls": "ssl"}[f.application()])
		if f.ended {
			w.seconds("duration", f.Duration*1000)
		}
		if up, down, known := f.bytes(); known {
			w.num("orig_bytes", up)
			w.num("resp_bytes", down)
		}
		w.str("conn_state", zeekState(f))
	})
	if f.kind == aboutRequest {
		w.zeekEntry("http", f, func() {
			w.str("method", f.HTTP.Method)
			w.str("host", f.name())
			w.str("uri", f.HTTP.Path)
			w.some("status_code", int64(f.HTTP.Status))
		})
	}
	if f.TLS != nil && f.kind == aboutFlow {
		w.zeekEntry("ssl", f, func() { w.str("server_name", f.TLS.SNI) })
	}
}

// zeekState returns the conn_state. A flow refused by egressd or by the upstream is "REJ".
func zeekState(f *facts) string {
	switch {
	case f.cut, f.ended && f.Outcome == "reset":
		return "RSTR"
	case f.denied, f.Outcome == "network-refused":
		return "REJ"
	case f.failed:
		return "S0"
	}
	return "SF"
}

// zeekTypes are the numbers of DNS types that can be allowed, and of other frequent types.
var zeekTypes = map[string]int64{
	"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28, "SRV": 33, "DS": 43, "DNSKEY": 48, "SVCB": 64, "HTTPS": 65, "ANY": 255,
}

func (w *writer) zeekQuestions(f *facts) {
	if f.DNS == nil {
		return
	}
	for _, kind := range f.questionTypes() {
		w.zeekEntry("dns", f, func() {
			w.str("proto", "unknown_transport")
			w.str("query", f.DNS.Name)
			w.num("qclass", 1)
			w.str("qclass_name", "C_INTERNET")
			w.some("qtype", zeekTypes[kind])
			w.str("qtype_name", kind)
			if f.denied {
				w.num("rcode", 5)
				w.str("rcode_name", "REFUSED")
			}
		})
	}
}

// zeekEntry writes the members common to all logs around the members of one log.
func (w *writer) zeekEntry(path string, f *facts, members func()) {
	w.line(func() {
		w.str("_path", path)
		w.seconds("ts", f.start().UnixMicro())
		w.str("uid", "C"+f.Flow)
		src, dst := f.endpoints()
		w.str("id.orig_h", src)
		w.num("id.orig_p", int64(f.srcPort))
		w.str("id.resp_h", dst)
		w.num("id.resp_p", int64(f.dstPort))
		members()
		w.num("egressd_seq", f.Seq)
		w.some("egressd_count", f.Count)
		w.str("egressd_sandbox", f.Sandbox)
		if c := f.Container; c != nil {
			w.str("egressd_container", c.Name)
		}
		w.str("egressd_via", f.Via)
		w.str("egressd_host", f.host)
		w.str("egressd_action", f.said.Action)
		w.str("egressd_class", f.said.Class)
		w.str("egressd_rule", f.said.Rule)
		w.str("egressd_outcome", f.Outcome)
		w.str("egressd_process", f.program())
		w.str("egressd_raw", f.Raw)
	})
}

// seconds writes microseconds as decimal seconds.
func (w *writer) seconds(name string, micros int64) {
	w.key(name)
	w.b = strconv.AppendInt(w.b, micros/1e6, 10)
	w.b = append(w.b, '.')
	rest := strconv.FormatInt(1e6+micros%1e6, 10)
	w.b = append(w.b, rest[1:]...)
}
