package export

import (
	"cmp"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const (
	eveTime = "2006-01-02T15:04:05.000000-0700"

	// eveGenerator is the "gid" of alerts. It separates egressd's signature ids from those of Suricata's
	// rules, whose generator is 1.
	eveGenerator = 3128
)

// eveSignatures are the signature ids of decision classes. Published ids never change.
var eveSignatures = map[policy.Class]int64{
	policy.DefaultDeny: 1, policy.RuleDeny: 2, policy.MethodDenied: 3, policy.PathDenied: 4, policy.AddressDenied: 5,
	policy.NameMismatch: 6, policy.NoServerName: 7, policy.NotTLS: 8, policy.ECHRefused: 9, policy.MalformedRequest: 10,
	policy.MalformedHost: 11, policy.UnknownSandbox: 12, policy.AskRejected: 13, policy.TooManyFlows: 14, policy.ByteBudget: 15,
	policy.PolicyNotLoaded: 16, policy.PolicyError: 17, policy.AuditUnavailable: 18, policy.DNSTypeDenied: 19, policy.DNSBudget: 20,
	policy.UDPDenied: 21, policy.ResponseRefused: 22, policy.CredentialUnavailable: 23, policy.CertificateRefused: 24, policy.Canary: 25,
	policy.AskPending: 26, policy.AskTimeout: 27, policy.UpgradeDenied: 28,
}

// eveOther is the signature id of signals and of classes without an id.
const eveOther = 999

// eve writes events of Suricata's EVE log. A denial or a signal becomes an alert. The end of a flow
// becomes a flow event, with an http or tls event. A question becomes a dns event. Suricata has no event
// for an open flow, and none fits records about egressd itself.
func eve(b []byte, r *record.Record, from Origin) []byte {
	f := factsOf(r)
	w := &writer{b}
	switch f.kind {
	case aboutSignal:
		w.eveAlert(&f, from)
	case aboutQuestion:
		w.eveQuestions(&f, from)
	case aboutFlow, aboutRequest:
		if f.denied {
			w.eveAlert(&f, from)
		}
		if f.ended {
			w.eveEnd(&f, from)
		}
	}
	return w.b
}

func (w *writer) eveEvent(kind string, f *facts, from Origin, members func()) {
	w.line(func() {
		w.time("timestamp", f.Time, eveTime)
		id, _ := record.ParseID(f.Flow)
		w.some("flow_id", int64(id))
		w.str("event_type", kind)
		if f.kind != aboutSignal {
			src, dst := f.endpoints()
			w.str("src_ip", src)
			w.num("src_port", int64(f.srcPort))
			w.str("dest_ip", dst)
			w.num("dest_port", int64(f.dstPort))
		}
		w.str("proto", strings.ToUpper(f.transport()))
		w.str("app_proto", f.application())
		w.str("community_id", communityID(f))
		w.str("host", from.Host)
		members()
		w.object("egressd", func() { w.rest(f) })
	})
}

func (w *writer) eveAlert(f *facts, from Origin) {
	w.eveEvent("alert", f, from, func() {
		w.object("alert", func() {
			if f.denied {
				w.str("action", "blocked")
			} else {
				w.str("action", "allowed")
			}
			w.num("gid", eveGenerator)
			w.num("signature_id", eveSignature(f))
			w.num("rev", 1)
			w.str("signature", "egressd "+cmp.Or(f.said.Class, string(f.Kind)))
			w.str("category", "Egress policy")
			w.num("severity", min(3, 4-int64(f.level())))
		})
		w.eveHTTP(f)
		w.eveTLS(f)
		if f.DNS != nil {
			w.object("dns", func() {
				w.objects("query", func() { w.eveQuery(f, f.DNS.Type) })
			})
		}
	})
}

func eveSignature(f *facts) int64 {
	if n := eveSignatures[policy.Class(f.said.Class)]; n != 0 {
		return n
	}
	return eveOther
}

func (w *writer) eveEnd(f *facts, from Origin) {
	switch {
	case f.kind == aboutRequest:
		w.eveEvent("http", f, from, func() { w.eveHTTP(f) })
	case f.TLS != nil:
		w.eveEvent("tls", f, from, func() { w.eveTLS(f) })
	}
	w.eveEvent("flow", f, from, func() {
		w.object("flow", func() {
			if up, down, known := f.bytes(); known {
				w.num("bytes_toserver", up)
				w.num("bytes_toclient", down)
			}
			w.time("start", f.start(), eveTime)
			w.time("end", f.Time, eveTime)
			w.num("age", f.Duration/1000)
			w.str("state", "closed")
			w.str("reason", eveReason(f))
			w.key("alerted")
			w.b = strconv.AppendBool(w.b, f.denied)
		})
	})
}

// eveReason returns Suricata's word for the end of a flow.
func eveReason(f *facts) string {
	switch {
	case f.cut, f.denied:
		return "forced"
	case f.Outcome == "idle-timeout", f.Outcome == "lifetime":
		return "timeout"
	}
	return "" // Suricata has no word for a regular end
}

func (w *writer) eveHTTP(f *facts) {
	if f.HTTP == nil {
		return
	}
	w.object("http", func() {
		w.str("hostname", f.name())
		w.some("http_port", int64(f.dstPort))
		w.str("url", f.HTTP.Path)
		w.str("http_method", f.HTTP.Method)
		w.some("status", int64(f.HTTP.Status))
	})
}

func (w *writer) eveTLS(f *facts) {
	if f.TLS == nil {
		return
	}
	w.object("tls", func() {
		w.str("sni", f.TLS.SNI)
		w.str("ja4", f.TLS.JA4)
	})
}

func (w *writer) eveQuestions(f *facts, from Origin) {
	if f.DNS == nil {
		return
	}
	if f.denied {
		w.eveAlert(f, from)
		return
	}
	for _, kind := range f.questionTypes() {
		w.eveEvent("dns", f, from, func() {
			w.object("dns", func() {
				w.num("version", 2)
				w.eveQuery(f, kind)
			})
		})
	}
}

func (w *writer) eveQuery(f *facts, kind string) {
	w.str("type", "query")
	w.str("rrname", f.DNS.Name)
	w.str("rrtype", kind)
}

// communityID returns the Community ID (version 1, seed 0) of a captured connection, which a sensor
// between sandbox and egressd computes from the same addresses. Connections
// to and from a proxy have no ID, because no record holds all of their addresses.
func communityID(f *facts) string {
	src, err := netip.ParseAddr(f.srcIP)
	dst, err2 := netip.ParseAddr(f.dstIP)
	if err != nil || err2 != nil || src.Is4() != dst.Is4() || f.Via != string(policy.ViaTransparent) || f.transport() != "tcp" {
		return ""
	}
	from, to := netip.AddrPortFrom(src, f.srcPort), netip.AddrPortFrom(dst, f.dstPort)
	if to.Compare(from) < 0 {
		from, to = to, from
	}
	text := []byte{0, 0}
	text = append(text, from.Addr().AsSlice()...)
	text = append(text, to.Addr().AsSlice()...)
	text = append(text, 6, 0)
	text = binary.BigEndian.AppendUint16(text, from.Port())
	text = binary.BigEndian.AppendUint16(text, to.Port())
	sum := sha1.Sum(text)
	return "1:" + base64.StdEncoding.EncodeToString(sum[:])
}
