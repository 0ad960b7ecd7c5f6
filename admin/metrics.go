package admin

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
)

// Metrics are written in the text format of Prometheus, version 0.0.4. Labels may hold
// what the operator's configuration says, and words of this program: nothing that a
// sandbox chose.
type Metrics struct {
	b    bytes.Buffer
	name string
}

// Kinds of families.
const (
	Counter = "counter"
	Gauge   = "gauge"
)

// Family begins one: its samples follow.
func (m *Metrics) Family(name, kind, help string) {
	m.name = name
	m.b.WriteString("# HELP " + name + " " + strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(help) + "\n")
	m.b.WriteString("# TYPE " + name + " " + kind + "\n")
}

// Sample writes a value of the family that was begun last, with the names and values of
// its labels.
func (m *Metrics) Sample(value float64, labels ...string) { m.sample(m.name, value, labels) }

func (m *Metrics) sample(name string, value float64, labels []string) {
	m.b.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		m.b.WriteByte("{,"[min(i, 1)])
		m.b.WriteString(labels[i] + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(labels[i+1], "?")) + `"`)
	}
	if len(labels) > 1 {
		m.b.WriteByte('}')
	}
	m.b.WriteByte(' ')
	m.b.Write(strconv.AppendFloat(m.b.AvailableBuffer(), value, 'g', -1, 64))
	m.b.WriteByte('\n')
}

// Only writes a family of one sample.
func (m *Metrics) Only(name, kind, help string, value float64) {
	m.Family(name, kind, help)
	m.Sample(value)
}

// Histogram writes a family of a histogram, in seconds.
func (m *Metrics) Histogram(name, help string, h egress.Histogram) {
	m.Family(name, "histogram", help)
	for i, bound := range h.Bounds {
		m.sample(name+"_bucket", float64(h.Below[i]), []string{"le", strconv.FormatFloat(bound.Seconds(), 'g', -1, 64)})
	}
	m.sample(name+"_bucket", float64(h.Count), []string{"le", "+Inf"})
	m.sample(name+"_sum", h.Sum.Seconds(), nil)
	m.sample(name+"_count", float64(h.Count), nil)
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	var m Metrics
	s.gate(&m)
	s.log(&m)
	if s.Collect != nil {
		s.Collect(&m)
	}
	m.process(time.Now())
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(m.b.Bytes())
}

// gate writes what was decided, and what became of it.
func (s *Server) gate(m *Metrics) {
	f := s.Gate.Figures()
	m.Family("egressd_decisions_total", Counter, "Decisions that were recorded, by way in, action and class of reason. A class is empty where it was allowed.")
	for _, d := range f.Decisions {
		m.Sample(float64(d.Count), "via", d.Via, "action", d.Action, "class", d.Class)
	}
	m.Only("egressd_flows_open", Gauge, "Flows that are open.", float64(f.Open))
	m.Only("egressd_flows_ended_total", Counter, "Flows that have ended.", float64(f.Ended))
	m.Family("egressd_flows_failed_total", Counter, "Flows that ended for a reason that has a class: by the network, or a refusal.")
	for _, d := range f.Failed {
		m.Sample(float64(d.Count), "class", d.Class)
	}
	m.Family("egressd_bytes_total", Counter, "Payload bytes, up to upstreams and down to clients, also of flows that are open.")
	m.Sample(float64(f.Up), "direction", "up")
	m.Sample(float64(f.Down), "direction", "down")
	m.Only("egressd_lookups_total", Counter, "Names that were not cached and had to be asked for, for flows.", float64(f.Lookups))
	m.Histogram("egressd_connect_seconds", "Time from the start of a flow until its upstream is connected: decisions, name, record and TCP.", f.Connected)
	m.Histogram("egressd_flow_seconds", "Time from the start of a flow to its end.", f.Lasted)
}

// log writes how the audit log is.
func (s *Server) log(m *Metrics) {
	l := s.Log.State()
	available := 1.0
	if l.Err != nil {
		available = 0
	}
	m.Only("egressd_log_available", Gauge, "1 while the audit log admits records; while it does not, nothing passes.", available)
	m.Only("egressd_log_records_total", Counter, "Records of the audit log, also of earlier processes.", float64(l.Written))
	m.Only("egressd_log_durable_records_total", Counter, "Records that are synced.", float64(l.Durable))
	m.Only("egressd_log_signed_records_total", Counter, "Records that the newest durable checkpoint is for.", float64(l.Signed))
	m.Only("egressd_log_refused_records_total", Counter, "Records that could not be written.", float64(l.Refused))
}
