package export

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

const (
	// facilityAudit is "log audit" of RFC 5424 section 6.2.1.
	facilityAudit = 13

	// syslogID names egressd's structured data. It has no enterprise number, since egressd has none: the
	// only numbers that nobody owns are those of examples (RFC 5612), which receivers may drop.
	syslogID = "egressd"

	syslogTime = "2006-01-02T15:04:05.000000Z"
)

// Syslog appends a message of RFC 5424 without framing and without a newline. Its MSG is the text of the
// entry. Its structured data holds the fields that receivers filter by. The argument process is the
// process id of egressd.
func Syslog(b []byte, e EncodedRecord, from Origin, process int) []byte {
	f := factsOf(e.Record)
	severities := [...]int{informational: 6, low: 5, medium: 4, high: 1}
	b = syslogHead(b, severities[f.level()], f.Time, from.Host, process, string(f.Kind), f.Seq)
	b = syslogParam(b, "seq", strconv.FormatInt(f.Seq, 10))
	b = syslogParam(b, "origin", from.Log)
	b = syslogParam(b, "id", ID(from.Log, f.Seq))
	b = syslogParam(b, "count", strconv.FormatInt(f.Times(), 10))
	b = syslogParam(b, "flow", f.Flow)
	b = syslogParam(b, "sandbox", f.Sandbox)
	b = syslogParam(b, "action", f.said.Action)
	b = syslogParam(b, "class", f.said.Class)
	b = syslogParam(b, "rule", f.said.Rule)
	b = syslogParam(b, "dst", f.name())
	b = append(b, ']', ' ')
	return append(b, e.Text...)
}

// SyslogCheckpoint appends a message of RFC 5424 about a checkpoint of the log, without framing and
// without a newline. Its structured data holds the origin, size and root of the log. Its MSG is a JSON
// object with the whole signed note in ASCII, since many receivers change newlines and the dash before the
// signature.
func SyslogCheckpoint(b, note []byte, at time.Time, from Origin, process int) []byte {
	lines := strings.SplitN(string(note), "\n", 4)
	lines = append(lines, "", "", "")
	size, _ := strconv.ParseInt(lines[1], 10, 64) // 0 if malformed
	b = syslogHead(b, 6, at, from.Host, process, "checkpoint", size)
	b = syslogParam(b, "origin", lines[0])
	b = syslogParam(b, "size", lines[1])
	b = syslogParam(b, "root", lines[2])
	b = append(b, `] {"checkpoint":`...)
	b = strconv.AppendQuoteToASCII(b, string(note)) // a note holds printable characters and newlines only, so the result is valid JSON
	return append(b, '}')
}

// syslogHead appends the header and the beginning of the structured data.
func syslogHead(b []byte, severity int, at time.Time, host string, process int, kind string, seq int64) []byte {
	b = append(b, '<')
	b = strconv.AppendInt(b, int64(facilityAudit*8+severity), 10)
	b = append(b, '>', '1', ' ')
	b = at.UTC().AppendFormat(b, syslogTime)
	b = append(b, ' ')
	b = append(b, syslogName(host, 255)...)
	b = append(b, " egressd "...)
	b = strconv.AppendInt(b, int64(process), 10)
	b = append(b, ' ')
	b = append(b, syslogName(kind, 32)...)
	b = append(b, " [meta sequenceId=\""...)
	b = strconv.AppendInt(b, seq%(1<<31-1)+1, 10) // 1 to 2147483647, RFC 5424 section 7.3.1
	return append(b, "\"]["+syslogID...)
}

// syslogName returns s as a word of the header: printable ASCII without spaces.
func syslogName(s string, limit int) string {
	s = strings.Map(func(c rune) rune {
		if c <= ' ' || c > '~' {
			return '_'
		}
		return c
	}, cut(s, limit))
	return cmp.Or(s, "-")
}

var syslogValue = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`)

// syslogParam appends a parameter of structured data (RFC 5424 section 6.3.3).
func syslogParam(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, ' ')
	b = append(b, name...)
	b = append(b, '=', '"')
	b = append(b, syslogValue.Replace(visible(value))...)
	return append(b, '"')
}

// visible escapes characters outside printable ASCII as \uXXXX, and a backslash that would look like such
// an escape. A space at either end is escaped because readers strip it. "##" is escaped as in [writer.quote].
func visible(s string) string {
	w := writer{}
	for i, c := range s {
		switch {
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
