package index

import (
	"strconv"
	"strings"

	"github.com/egressd/egressd/record"
)

// A shape is what decisions that are alike have in common. Its record always has
// all parts, so one loop reads or sets all strings.
type shape struct {
	record.Record
	dst       record.Destination
	tls       record.TLS
	http      record.HTTP
	dns       record.DNS
	container record.Container
	process   record.Process
	decision  record.Decision
	shadow    record.Shadow
	names     record.Names
	argv      [1]string
	addrs     string // joined
	numbers   [4]string
	texts     []*string
}

const (
	separator = '\xff' // no text of a record holds this byte
	listed    = " "    // between the addresses of one list
)

func (s *shape) fields() []*string {
	if s.texts == nil {
		s.texts = []*string{
			(*string)(&s.Kind), &s.Sandbox, &s.Via, &s.Src, (*string)(&s.Outcome), &s.dst.Host, &s.dst.Addr, &s.dst.Class, &s.addrs, &s.tls.SNI,
			&s.http.Method, &s.http.Path, &s.dns.Name, &s.dns.Type, &s.container.ID, &s.container.Name, &s.process.Exe, &s.argv[0],
			&s.decision.Action, &s.decision.Rule, &s.decision.Layer, &s.decision.Class, &s.decision.Policy,
			&s.shadow.Action, &s.shadow.Rule, &s.shadow.Layer, &s.shadow.Class, &s.shadow.Policy, &s.names.First,
			&s.numbers[0], &s.numbers[1], &s.numbers[2], &s.numbers[3],
		}
	}
	return s.texts
}

// load copies into s what of r is shared.
func (s *shape) load(r *record.Record) {
	texts := s.fields()
	*s = shape{texts: texts}
	s.Kind, s.Sandbox, s.Via, s.Outcome = r.Kind, r.Sandbox, r.Via, r.Outcome
	if at := strings.LastIndexByte(r.Src, ':'); at >= 0 {
		s.Src = r.Src[:at]
	}
	if r.DNS != nil {
		s.dns = *r.DNS
	}
	if r.Container != nil {
		s.container.ID, s.container.Name = r.Container.ID, r.Container.Name
	}
	if r.Process != nil {
		s.process.Exe = r.Process.Exe
		if len(r.Process.Argv) > 0 {
			s.argv[0], _, _ = strings.Cut(r.Process.Argv[0], " ")
		}
	}
	if r.Names != nil {
		s.names.First = r.Names.First
	}
	s.update(r)
}

// end adds what the record of a flow's end says of the flow, as [logs.Joiner.Complete] does.
func (s *shape) end(r *record.Record) {
	s.Outcome = r.Outcome
	if r.Outcome == record.OutcomeCut && r.Decision != nil { // its traffic until then was allowed
		before := *r
		before.Decision = nil
		r = &before
	}
	s.update(r)
}

// update overwrites the parts that r has.
func (s *shape) update(r *record.Record) {
	if r.Dst != nil {
		s.dst = *r.Dst
		s.addrs, s.dst.Addrs = strings.Join(r.Dst.Addrs, listed), nil
		s.numbers[0] = strconv.Itoa(int(r.Dst.Port))
	}
	if r.TLS != nil {
		s.tls.SNI, s.numbers[3] = r.TLS.SNI, ""
		if r.TLS.Inspected {
			s.numbers[3] = "inspected"
		}
	}
	if r.HTTP != nil {
		s.http = *r.HTTP
		s.numbers[1] = strconv.Itoa(r.HTTP.Status)
	}
	if r.Decision != nil {
		s.decision = *r.Decision
	}
	if r.Shadow != nil {
		s.shadow = *r.Shadow
	}
	s.numbers[2] = ""
	if s.decision.Log {
		s.numbers[2] = "log"
	}
	if s.shadow.Inspect {
		s.numbers[2] += "inspect"
	}
}

func (s *shape) text(b []byte) []byte {
	for i, f := range s.fields() {
		if i > 0 {
			b = append(b, separator)
		}
		b = append(b, *f...)
	}
	return b
}

func (s *shape) parse(text string) {
	texts := s.fields()
	*s = shape{texts: texts}
	for _, f := range texts {
		*f, text, _ = strings.Cut(text, string([]byte{separator}))
	}
	port, _ := strconv.ParseUint(s.numbers[0], 10, 16)
	s.dst.Port = uint16(port)
	s.http.Status, _ = strconv.Atoi(s.numbers[1])
	s.decision.Log = strings.HasPrefix(s.numbers[2], "log")
	s.shadow.Inspect = strings.HasSuffix(s.numbers[2], "inspect")
	s.tls.Inspected = s.numbers[3] != ""
}

// plain leaves out what a sandbox can vary without end: at level 1 the path and addresses, at level 2 also
// the names, and above all but the verdict and its class.
func (s *shape) plain(level int) {
	if level > 2 {
		kind, decision := s.Kind, s.decision
		*s = shape{texts: s.texts}
		s.Kind, s.decision.Action, s.decision.Class = kind, decision.Action, decision.Class
		s.dst.Host = "…"
		return
	}
	if s.http.Path != "" {
		s.http.Path = "/…"
	}
	s.addrs, s.dst.Addr, s.argv[0], s.names.First = "", "", "", ""
	if level > 1 {
		s.dst.Host, s.dns.Name, s.tls.SNI, s.http.Method, s.process.Exe = "…", "", "", "", ""
		s.container.ID, s.container.Name = "", ""
	}
}

// view returns the shape as a record, valid until s is used again.
func (s *shape) view() *record.Record {
	r := &s.Record
	r.Dst, r.TLS, r.HTTP, r.DNS, r.Container, r.Process, r.Decision, r.Shadow, r.Names = nil, nil, nil, nil, nil, nil, nil, nil, nil
	if s.Src != "" && !strings.HasSuffix(s.Src, ":0") {
		s.Src += ":0"
	}
	if s.dst.Host != "" || s.dst.Port != 0 {
		r.Dst = &s.dst
		if s.addrs != "" {
			s.dst.Addrs = strings.Split(s.addrs, listed)
		}
	}
	if s.tls.SNI != "" || s.tls.Inspected {
		r.TLS = &s.tls
	}
	if s.http.Method != "" || s.http.Path != "" || s.http.Status != 0 {
		r.HTTP = &s.http
	}
	if s.dns.Name != "" || s.dns.Type != "" {
		r.DNS = &s.dns
	}
	if s.container.ID != "" || s.container.Name != "" {
		r.Container = &s.container
	}
	if s.process.Exe != "" {
		r.Process = &s.process
		if s.argv[0] != "" {
			s.process.Argv = s.argv[:]
		}
	}
	if s.decision.Action != "" {
		r.Decision = &s.decision
	}
	if s.shadow.Policy != "" {
		r.Shadow = &s.shadow
	}
	if s.names.First != "" {
		r.Names = &s.names
	}
	return r
}
