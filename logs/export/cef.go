package export

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/egressd/egressd/record"
)

// cef writes a line of ArcSight's Common Event Format, version 0. The format escapes only newlines, so all
// other characters outside printable ASCII are written as \uXXXX. A backslash before "u" is escaped the
// same way, which keeps the texts distinguishable. Values beyond the length of their key are cut.
func cef(b []byte, r *record.Record, from Origin) []byte {
	f := factsOf(r)
	c := cefWriter{b: b}
	c.header(&f, from)
	c.identity(&f, from)
	if f.kind != aboutItself && f.kind != aboutSignal {
		c.traffic(&f)
	}
	c.custom(&f)
	c.str("msg", cmp.Or(f.said.Reason, f.Note, f.noticed()), 1023)
	return append(c.b, '\n')
}

type cefWriter struct {
	b       []byte
	started bool // a value was written
}

func (c *cefWriter) header(f *facts, from Origin) {
	severities := [...]string{informational: "1", low: "4", medium: "6", high: "8"}
	c.b = append(c.b, "CEF:0|egressd|egressd|"...)
	for _, field := range []string{cmp.Or(from.Version, "unknown"), cmp.Or(f.said.Class, string(f.Kind)), f.sentence()} {
		c.b = append(c.b, cefHeader.Replace(visible(cut(field, 256), false))...)
		c.b = append(c.b, '|')
	}
	c.b = append(c.b, severities[f.level()]...)
	c.b = append(c.b, '|')
}

func (c *cefWriter) identity(f *facts, from Origin) {
	c.num("rt", f.Time.UnixMilli())
	c.str("cat", string(f.Kind), 1023)
	c.str("externalId", f.Flow, 40)
	c.str("dvchost", from.Host, 100)
}

func (c *cefWriter) traffic(f *facts) {
	c.str("act", f.said.Action, 63)
	c.some("cnt", f.Count)
	c.str("outcome", f.Outcome, 63)
	c.str("reason", f.said.Class, 1023)
	c.num("deviceDirection", 1)
	c.address("src", "c6a2", "Source IPv6 Address", f.srcIP)
	c.some("spt", int64(f.srcPort))
	c.str("dhost", f.name(), 1023)
	c.address("dst", "c6a3", "Destination IPv6 Address", f.dstIP)
	c.some("dpt", int64(f.dstPort))
	c.str("proto", strings.ToUpper(f.transport()), 31)
	c.str("app", strings.ToUpper(f.application()), 31)
	if f.HTTP != nil {
		c.str("requestMethod", f.HTTP.Method, 1023)
		c.str("request", f.url(), 1023)
	}
	// CEF names the direction from source to destination "in".
	if up, down, known := f.bytes(); known {
		c.num("in", up)
		c.num("out", down)
	}
	if f.ended {
		c.num("start", f.start().UnixMilli())
		c.num("end", f.Time.UnixMilli())
	}
	if f.Process != nil {
		c.str("sproc", f.Process.Exe, 1023)
		c.num("spid", int64(f.Process.PID))
	}
}

// custom writes the fields that CEF leaves to the device, each with its label.
func (c *cefWriter) custom(f *facts) {
	c.labelled("cs1", "sandbox", f.Sandbox)
	c.labelled("cs2", "rule", f.said.Rule)
	c.labelled("cs3", "layer", f.said.Layer)
	c.labelled("cs4", "policy", f.said.Policy)
	c.labelled("cs5", "via", f.Via)
	switch {
	case f.TLS != nil:
		c.labelled("cs6", "sni", f.TLS.SNI)
	case f.DNS != nil:
		c.labelled("cs6", "question", f.DNS.Name+" "+f.DNS.Type)
	default:
		c.labelled("cs6", "raw", f.Raw)
	}
	c.num("cn1", f.Seq)
	c.str("cn1Label", "seq", 1023)
	if f.HTTP != nil && f.HTTP.Status != 0 {
		c.num("cn2", int64(f.HTTP.Status))
		c.str("cn2Label", "status", 1023)
	}
}

func (c *cefWriter) labelled(key, label, value string) {
	if value != "" {
		c.str(key, value, 4000)
		c.str(key+"Label", label, 1023)
	}
}

// address writes an address under its key. CEF has separate keys for IPv6.
func (c *cefWriter) address(key, six, label, value string) {
	if strings.Contains(value, ":") {
		c.str(six, value, 1023)
		c.str(six+"Label", label, 1023)
		return
	}
	c.str(key, value, 1023)
}

func (c *cefWriter) some(key string, n int64) {
	if n != 0 {
		c.num(key, n)
	}
}

func (c *cefWriter) num(key string, n int64) { c.str(key, strconv.FormatInt(n, 10), 1023) }

// str writes at most limit characters of a value.
func (c *cefWriter) str(key, value string, limit int) {
	if value == "" {
		return
	}
	if c.started {
		c.b = append(c.b, ' ')
	}
	c.started = true
	c.b = append(c.b, key...)
	c.b = append(c.b, '=')
	c.b = append(c.b, cefValue.Replace(visible(cut(value, limit), true))...)
}

var (
	cefHeader = strings.NewReplacer(`\`, `\\`, `|`, `\|`)
	cefValue  = strings.NewReplacer(`\`, `\\`, `=`, `\=`, "\n", `\n`, "\r", `\r`)
)

// visible escapes characters outside printable ASCII as \uXXXX, and a backslash that would look like such
// an escape. If newlines is true, the caller escapes them. A space at either end is escaped because
// readers strip it. "##" is escaped as in [writer.quote].
func visible(s string, newlines bool) string {
	w := writer{}
	for i, c := range s {
		switch {
		case newlines && (c == '\n' || c == '\r'):
			w.b = append(w.b, byte(c))
		case c == ' ' && (i == 0 || i == len(s)-1), c == '#' && i > 0 && s[i-1] == '#':
			w.unit(c)
		case c == '\\' && strings.HasPrefix(s[i+1:], "u"):
			w.unit(c)
		case c >= ' ' && c <= '~':
			w.b = append(w.b, byte(c))
		case c > 0xffff:
			c -= 0x10000
			w.unit(0xd800 + c>>10)
			w.unit(0xdc00 + c&0x3ff)
		default:
			w.unit(c)
		}
	}
	return string(w.b)
}
