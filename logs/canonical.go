package logs

import "github.com/egressd/egressd/egress"

// A slot is a record with room for all its parts, to be used again. The
// strings in it are parts of the line that it was read from.
type slot struct {
	egress.Record
	dst      egress.RecordDst
	tls      egress.RecordTLS
	http     egress.RecordHTTP
	dns      egress.RecordDNS
	process  egress.RecordProcess
	contains egress.RecordContainer
	decision egress.RecordDecision
	shadow   egress.RecordShadow
	signal   egress.RecordSignal
	names    egress.RecordNames
	bytes    egress.RecordBytes
	lists    [5][]string
}

// A canonical reads lines in the one form that egressd writes: members in
// their order, no white space, printable ASCII, strings whose escapes are \",
// \\ and \u00XX. Whatever else JSON may hold is not refused here but left to
// encoding/json, which is the measure: what read takes, it reads alike.
type canonical struct {
	line    string
	at      int
	escapes bool // there is a backslash somewhere in the line
	bad     bool // the line is of another form
	room    *[5][]string
	date    string // the last one that was read
	day     int64  // the Unix time at which it begins
}

// The members of the parts of a record, in the order of the line.
var (
	recordMembers = []string{"v", "seq", "time", "kind", "flow", "count", "names", "sandbox", "container", "via", "src", "dst", "tls", "http", "dns", "process",
		"decision", "shadow", "signal", "bytes", "duration_ms", "outcome", "raw", "note"}
	dstMembers       = []string{"host", "port", "addrs", "addr", "class"}
	tlsMembers       = []string{"sni", "alpn", "ech", "ja4", "inspected"}
	httpMembers      = []string{"method", "path", "authority", "status"}
	dnsMembers       = []string{"name", "type"}
	processMembers   = []string{"pid", "exe", "argv"}
	containerMembers = []string{"id", "name", "image", "project", "service"}
	decisionMembers  = []string{"action", "rule", "layer", "reason", "class", "allowed_if", "log", "policy", "question"}
	shadowMembers    = []string{"action", "rule", "layer", "reason", "class", "inspect", "policy"}
	signalMembers    = []string{"what", "name", "where", "encoding"}
	bytesMembers     = []string{"up", "down"}
	namesMembers     = []string{"first", "last"}
)

// read fills s from line, and reports whether the line is canonical. Where it is
// not, s is half filled.
func (c *canonical) read(s *slot, line string) bool {
	plain, escapes := plainText(line)
	if !plain {
		return false
	}
	c.line, c.at, c.escapes, c.bad = line, 0, escapes, false
	*s = slot{lists: s.lists}
	c.room = &s.lists
	c.record(s)
	return !c.bad && c.at == len(line)
}

func (c *canonical) record(s *slot) {
	for m := c.object(recordMembers); c.next(&m); {
		switch m.name {
		case "v":
			s.V = int(c.number(1 << 30))
		case "seq":
			s.Seq = c.number(maxNumber)
		case "time":
			s.Time = c.time()
		case "kind":
			s.Kind = egress.Kind(c.text())
		case "flow":
			s.Flow = c.text()
		case "count":
			s.Count = c.number(maxNumber)
		case "sandbox":
			s.Sandbox = c.text()
		case "via":
			s.Via = c.text()
		case "src":
			s.Src = c.text()
		case "duration_ms":
			s.Duration = c.number(maxNumber)
		case "outcome":
			s.Outcome = c.text()
		case "raw":
			s.Raw = c.text()
		case "note":
			s.Note = c.text()
		default:
			c.part(s, m.name)
		}
	}
}

func (c *canonical) part(s *slot, name string) {
	switch name {
	case "dst":
		s.Dst = &s.dst
		c.readDst(s.Dst)
	case "tls":
		s.TLS = &s.tls
		c.readTLS(s.TLS)
	case "http":
		s.HTTP = &s.http
		c.readHTTP(s.HTTP)
	case "dns":
		s.DNS = &s.dns
		c.readDNS(s.DNS)
	case "container":
		s.Container = &s.contains
		c.readContainer(s.Container)
	case "process":
		s.Process = &s.process
		c.readProcess(s.Process)
	case "decision":
		s.Decision = &s.decision
		c.readDecision(s.Decision)
	case "shadow":
		s.Shadow = &s.shadow
		c.readShadow(s.Shadow)
	case "signal":
		s.Signal = &s.signal
		c.readSignal(s.Signal)
	case "names":
		s.Names = &s.names
		c.readNames(s.Names)
	case "bytes":
		s.Bytes = &s.bytes
		c.readBytes(s.Bytes)
	}
}

func (c *canonical) readContainer(t *egress.RecordContainer) {
	for m := c.object(containerMembers); c.next(&m); {
		switch m.name {
		case "id":
			t.ID = c.text()
		case "name":
			t.Name = c.text()
		case "image":
			t.Image = c.text()
		case "project":
			t.Project = c.text()
		case "service":
			t.Service = c.text()
		}
	}
}

func (c *canonical) readNames(n *egress.RecordNames) {
	for m := c.object(namesMembers); c.next(&m); {
		switch m.name {
		case "first":
			n.First = c.text()
		case "last":
			n.Last = c.text()
		}
	}
}

func (c *canonical) readDst(d *egress.RecordDst) {
	for m := c.object(dstMembers); c.next(&m); {
		switch m.name {
		case "host":
			d.Host = c.text()
		case "port":
			d.Port = uint16(c.number(1<<16 - 1))
		case "addrs":
			d.Addrs = c.list(0)
		case "addr":
			d.Addr = c.text()
		case "class":
			d.Class = c.text()
		}
	}
}

func (c *canonical) readTLS(t *egress.RecordTLS) {
	for m := c.object(tlsMembers); c.next(&m); {
		switch m.name {
		case "sni":
			t.SNI = c.text()
		case "alpn":
			t.ALPN = c.list(1)
		case "ech":
			t.ECH = c.flag()
		case "ja4":
			t.JA4 = c.text()
		case "inspected":
			t.Inspected = c.flag()
		}
	}
}

func (c *canonical) readHTTP(h *egress.RecordHTTP) {
	for m := c.object(httpMembers); c.next(&m); {
		switch m.name {
		case "method":
			h.Method = c.text()
		case "path":
			h.Path = c.text()
		case "authority":
			h.Authority = c.text()
		case "status":
			h.Status = int(c.number(1 << 30))
		}
	}
}

func (c *canonical) readDNS(d *egress.RecordDNS) {
	for m := c.object(dnsMembers); c.next(&m); {
		switch m.name {
		case "name":
			d.Name = c.text()
		case "type":
			d.Type = c.text()
		}
	}
}

func (c *canonical) readProcess(p *egress.RecordProcess) {
	for m := c.object(processMembers); c.next(&m); {
		switch m.name {
		case "pid":
			p.PID = int(c.number(1 << 30))
		case "exe":
			p.Exe = c.text()
		case "argv":
			p.Argv = c.list(2)
		}
	}
}

func (c *canonical) readDecision(d *egress.RecordDecision) {
	for m := c.object(decisionMembers); c.next(&m); {
		switch m.name {
		case "action":
			d.Action = c.text()
		case "rule":
			d.Rule = c.text()
		case "layer":
			d.Layer = c.text()
		case "reason":
			d.Reason = c.text()
		case "class":
			d.Class = c.text()
		case "allowed_if":
			d.AllowedIf = c.list(3)
		case "log":
			d.Log = c.flag()
		case "policy":
			d.Policy = c.text()
		case "question":
			d.Question = c.list(4)
		}
	}
}

func (c *canonical) readShadow(d *egress.RecordShadow) {
	for m := c.object(shadowMembers); c.next(&m); {
		switch m.name {
		case "action":
			d.Action = c.text()
		case "rule":
			d.Rule = c.text()
		case "layer":
			d.Layer = c.text()
		case "reason":
			d.Reason = c.text()
		case "class":
			d.Class = c.text()
		case "inspect":
			d.Inspect = c.flag()
		case "policy":
			d.Policy = c.text()
		}
	}
}

func (c *canonical) readSignal(n *egress.RecordSignal) {
	for m := c.object(signalMembers); c.next(&m); {
		switch m.name {
		case "what":
			n.What = c.text()
		case "name":
			n.Name = c.text()
		case "where":
			n.Where = c.text()
		case "encoding":
			n.Encoding = c.text()
		}
	}
}

func (c *canonical) readBytes(b *egress.RecordBytes) {
	for m := c.object(bytesMembers); c.next(&m); {
		switch m.name {
		case "up":
			b.Up = c.number(maxNumber)
		case "down":
			b.Down = c.number(maxNumber)
		}
	}
}
