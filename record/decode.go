package record

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Decode decodes one line of the log. The caller may keep the record.
func Decode(line []byte) (*Record, error) {
	var d Decoder
	s := new(Buffer)
	if err := d.Decode(s, string(line)); err != nil {
		return nil, err
	}
	return &s.Record, nil
}

// Canonical reports whether a line is a record in the form that egressd writes: members in the order of the
// fields of [Record], and the escapes of [Encoder.Quote].
func Canonical(line []byte) bool {
	var d Decoder
	return d.canonical(new(Buffer), string(line))
}

// A Buffer is reusable memory for one record and all its parts. The strings of the record are substrings
// of the decoded line.
type Buffer struct {
	Record
	dst       Destination
	tls       TLS
	http      HTTP
	body      RequestBody
	git       Git
	dns       DNS
	process   Process
	container Container
	decision  Decision
	shadow    Shadow
	signal    Signal
	log       LogState
	names     Names
	bytes     Bytes
	lists     [7][]string
}

// A Decoder decodes the canonical form that egressd writes: members in a fixed order, no white space,
// printable ASCII, and in strings only the escapes \", \\ and \u00XX. It leaves all other JSON to
// encoding/json, and agrees with encoding/json on every line that it takes.
type Decoder struct {
	buf     *Buffer
	line    string
	at      int
	lists   int    // number of buf.lists in use
	escapes bool   // the line contains a backslash
	bad     bool   // the line is not canonical
	date    string // of the last time that was decoded
	day     int64  // Unix time at which date begins
}

// Decode decodes a line into s. The record in s is valid until s is used again; clone it to keep it.
func (d *Decoder) Decode(s *Buffer, line string) error {
	if !d.canonical(s, line) {
		s.reset()
		if err := json.Unmarshal([]byte(line), &s.Record); err != nil {
			return fmt.Errorf("a line of the audit log is not a record: %w", err)
		}
	}
	if s.Kind == "" {
		return fmt.Errorf("record %d of the audit log has no kind", s.Seq)
	}
	return nil
}

// reset empties s, and keeps the memory of its lists.
func (s *Buffer) reset() {
	lists := s.lists
	*s = Buffer{} // cleared in place: a composite literal with lists would be made elsewhere and copied
	s.lists = lists
}

// canonical decodes line into s and reports whether the line is canonical. If not, s is incomplete.
func (d *Decoder) canonical(s *Buffer, line string) bool {
	plain, escapes := plainText(line)
	if !plain {
		return false
	}
	s.reset()
	d.buf, d.line, d.at, d.lists, d.escapes, d.bad = s, line, 0, 0, escapes, false
	d.object([]member{
		{"v", &s.V}, {"seq", &s.Seq}, {"time", &s.Time}, {"kind", &s.Kind}, {"flow", &s.Flow}, {"count", &s.Count},
		{"names", &s.Names}, {"shared", &s.Shared}, {"sandbox", &s.Sandbox}, {"container", &s.Container}, {"via", &s.Via}, {"src", &s.Src},
		{"dst", &s.Dst}, {"tls", &s.TLS}, {"http", &s.HTTP}, {"body", &s.Body}, {"git", &s.Git}, {"dns", &s.DNS}, {"process", &s.Process},
		{"decision", &s.Decision}, {"shadow", &s.Shadow}, {"signal", &s.Signal}, {"log", &s.Log}, {"bytes", &s.Bytes},
		{"duration_ms", &s.Duration}, {"outcome", (*string)(&s.Outcome)}, {"credential", &s.Credential}, {"raw", &s.Raw}, {"note", &s.Note},
	})
	return !d.bad && d.at == len(line)
}

// A member is a member of a JSON object and the field that receives its value.
type member struct {
	name string
	into any
}

// object decodes an object with some of the members, in their order.
func (d *Decoder) object(members []member) {
	d.take('{')
	for first := true; !d.bad && d.at < len(d.line); first = false {
		if d.line[d.at] == '}' {
			d.at++
			return
		}
		if !first {
			d.take(',')
		}
		d.take('"')
		for !d.bad {
			if len(members) == 0 { // unknown, repeated or out of order
				d.bad = true
				return
			}
			m := members[0]
			members = members[1:]
			if rest := d.line[d.at:]; strings.HasPrefix(rest, m.name) && strings.HasPrefix(rest[len(m.name):], `":`) {
				d.at += len(m.name) + len(`":`)
				d.value(m.into)
				break
			}
		}
	}
	d.bad = true
}

const maxInt = 1 << 30 // of the fields of type int

// value decodes a value into a field of the record.
func (d *Decoder) value(into any) {
	switch v := into.(type) {
	case *string:
		*v = d.text()
	case *Kind:
		*v = Kind(d.text())
	case *int:
		*v = int(d.number(maxInt))
	case *int64:
		*v = d.number(maxNumber)
	case *uint16:
		*v = uint16(d.number(1<<16 - 1))
	case *bool:
		*v = d.flag()
	case *[]string:
		*v = d.list()
	case *time.Time:
		*v = d.time()
	default:
		d.part(into)
	}
}

// part decodes an object that is a part of the record.
func (d *Decoder) part(into any) {
	s := d.buf
	switch v := into.(type) {
	case **Destination:
		p := &s.dst
		*v = p
		d.object([]member{{"host", &p.Host}, {"port", &p.Port}, {"addrs", &p.Addrs}, {"from", &p.From}, {"addr", &p.Addr}, {"asked", &p.Asked}, {"class", &p.Class}})
	case **TLS:
		p := &s.tls
		*v = p
		d.object([]member{{"sni", &p.SNI}, {"alpn", &p.ALPN}, {"ech", &p.ECH}, {"ja4", &p.JA4}, {"inspected", &p.Inspected}})
	case **HTTP:
		p := &s.http
		*v = p
		d.object([]member{{"method", &p.Method}, {"path", &p.Path}, {"path_cut", &p.PathCut}, {"query_bytes", &p.QueryBytes}, {"authority", &p.Authority}, {"status", &p.Status}, {"own", &p.Own}})
	case **RequestBody:
		p := &s.body
		*v = p
		d.object([]member{{"bytes", &p.Bytes}, {"sha256", &p.SHA256}, {"says", &p.Says}})
	case **Git:
		p := &s.git
		*v = p
		d.object([]member{{"repo", &p.Repo}, {"op", &p.Op}, {"refs", &p.Refs}})
	case **DNS:
		*v = &s.dns
		d.object([]member{{"name", &s.dns.Name}, {"type", &s.dns.Type}})
	case **Container:
		p := &s.container
		*v = p
		d.object([]member{{"id", &p.ID}, {"name", &p.Name}, {"image", &p.Image}, {"project", &p.Project}, {"service", &p.Service}})
	case **Process:
		p := &s.process
		*v = p
		d.object([]member{{"pid", &p.PID}, {"exe", &p.Exe}, {"argv", &p.Argv}})
	case **Decision:
		p := &s.decision
		*v = p
		d.object([]member{
			{"action", &p.Action}, {"rule", &p.Rule}, {"layer", &p.Layer}, {"reason", &p.Reason}, {"class", &p.Class},
			{"allowed_if", &p.AllowedIf}, {"log", &p.Log}, {"policy", &p.Policy}, {"rules", &p.Rules}, {"revision", &p.Revision}, {"question", &p.Question},
		})
	case **Shadow:
		p := &s.shadow
		*v = p
		d.object([]member{
			{"action", &p.Action}, {"rule", &p.Rule}, {"layer", &p.Layer}, {"reason", &p.Reason}, {"class", &p.Class},
			{"inspect", &p.Inspect}, {"policy", &p.Policy},
		})
	case **Signal:
		p := &s.signal
		*v = p
		d.object([]member{{"what", &p.What}, {"name", &p.Name}, {"where", &p.Where}, {"encoding", &p.Encoding}})
	case **LogState:
		p := &s.log
		*v = p
		d.object([]member{{"origin", &p.Origin}, {"size", &p.Size}, {"root", &p.Root}, {"follows", &p.Follows}, {"had", &p.Had}})
	case **Names:
		*v = &s.names
		d.object([]member{{"first", &s.names.First}, {"last", &s.names.Last}, {"domains", &s.names.Domains}})
	case **Bytes:
		*v = &s.bytes
		d.object([]member{{"up", &s.bytes.Up}, {"down", &s.bytes.Down}})
	default:
		d.bad = true
	}
}

// maxNumber is the largest number of eighteen digits. Numbers with more digits may overflow.
const maxNumber = 999_999_999_999_999_999

// take skips the byte b, which must come next.
func (d *Decoder) take(b byte) {
	if d.at >= len(d.line) || d.line[d.at] != b {
		d.bad = true
		return
	}
	d.at++
}

func (d *Decoder) text() string {
	d.take('"')
	end := -1
	if !d.bad {
		end = strings.IndexByte(d.line[d.at:], '"')
	}
	if end < 0 {
		d.bad = true
		return ""
	}
	s := d.line[d.at : d.at+end]
	if d.escapes && strings.IndexByte(s, '\\') >= 0 {
		return d.unescape()
	}
	d.at += end + 1
	return s
}

// unescape decodes the rest of a string that contains escapes.
func (d *Decoder) unescape() string {
	var b strings.Builder
	for d.at < len(d.line) {
		rest := d.line[d.at:]
		switch {
		case rest[0] == '"':
			d.at++
			return b.String()
		case rest[0] != '\\':
			b.WriteByte(rest[0])
			d.at++
		case len(rest) > 1 && (rest[1] == '"' || rest[1] == '\\'):
			b.WriteByte(rest[1])
			d.at += 2
		case len(rest) >= 6 && rest[1:4] == "u00" && hexDigit(rest[4]) >= 0 && hexDigit(rest[5]) >= 0:
			b.WriteRune(rune(hexDigit(rest[4])<<4 | hexDigit(rest[5])))
			d.at += 6
		default:
			d.bad = true
			return ""
		}
	}
	d.bad = true
	return ""
}

func hexDigit(b byte) int {
	switch {
	case b >= '0' && b <= '9':
		return int(b - '0')
	case b >= 'a' && b <= 'f':
		return int(b-'a') + 10
	case b >= 'A' && b <= 'F':
		return int(b-'A') + 10
	default:
		return -1
	}
}

// number decodes a non-negative integer of at most limit without leading zeros.
func (d *Decoder) number(limit int64) int64 {
	start, n := d.at, int64(0)
	for d.at < len(d.line) && d.line[d.at]-'0' <= 9 && d.at-start < 18 {
		n = n*10 + int64(d.line[d.at]-'0')
		d.at++
	}
	if d.at == start || n > limit || d.line[start] == '0' && d.at > start+1 {
		d.bad = true
	}
	return n
}

// flag decodes true. The canonical form leaves out a false flag.
func (d *Decoder) flag() bool {
	if !strings.HasPrefix(d.line[min(d.at, len(d.line)):], "true") {
		d.bad = true
		return false
	}
	d.at += len("true")
	return true
}

// list decodes an array of strings into the next free list of the Buffer.
func (d *Decoder) list() []string {
	d.take('[')
	if d.lists == len(d.buf.lists) {
		d.bad = true
		return nil
	}
	own := &d.buf.lists[d.lists]
	d.lists++
	all := (*own)[:0]
	for first := true; !d.bad; first = false {
		if first && d.at < len(d.line) && d.line[d.at] == ']' {
			d.at++
			return []string{}
		}
		all = append(all, d.text())
		if d.at < len(d.line) && d.line[d.at] == ']' {
			d.at++
			*own = all
			return all
		}
		d.take(',')
	}
	return nil
}

const dateLength = len("2006-01-02")

// time decodes a UTC time with six digits below the second.
func (d *Decoder) time() time.Time {
	const form = `"2006-01-02T15:04:05.000000Z"`
	if len(d.line)-d.at < len(form) {
		d.bad = true
		return time.Time{}
	}
	t := d.line[d.at : d.at+len(form)]
	d.at += len(form)
	hour, minute, second := digits(t[12:14]), digits(t[15:17]), digits(t[18:20])
	micros := digits(t[21:27])
	if t[0] != '"' || t[11] != 'T' || t[14] != ':' || t[17] != ':' || t[20] != '.' || t[27:] != `Z"` ||
		hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 || micros < 0 || !d.begin(t[1:1+dateLength]) {
		d.bad = true
		return time.Time{}
	}
	return time.Unix(d.day+int64(hour*3600+minute*60+second), int64(micros)*1000).UTC()
}

// begin sets d.day to the begin of date and reports whether the date exists. Neighbouring records mostly
// share a date, so the last one is cached.
func (d *Decoder) begin(date string) bool {
	if date == d.date {
		return true
	}
	t, err := time.Parse(time.DateOnly, date)
	if err != nil {
		return false
	}
	d.date, d.day = strings.Clone(date), t.Unix()
	return true
}

// digits parses s as a decimal number. It returns -1 if s has another byte than a digit.
func digits(s string) int {
	n := 0
	for i := range len(s) {
		d := s[i] - '0'
		if d > 9 {
			return -1
		}
		n = n*10 + int(d)
	}
	return n
}

// plainText reports whether s is printable ASCII and whether s contains a backslash.
func plainText(s string) (plain, escapes bool) {
	const (
		ones  = 0x0101010101010101
		highs = ones << 7
	)
	rest := s
	for ; len(rest) >= 8; rest = rest[8:] {
		w := uint64(rest[0]) | uint64(rest[1])<<8 | uint64(rest[2])<<16 | uint64(rest[3])<<24 |
			uint64(rest[4])<<32 | uint64(rest[5])<<40 | uint64(rest[6])<<48 | uint64(rest[7])<<56
		if (w|(w-ones*' ')|(w+ones))&highs != 0 {
			return false, false
		}
	}
	for i := range len(rest) {
		if rest[i] < ' ' || rest[i] > '~' {
			return false, false
		}
	}
	return true, strings.IndexByte(s, '\\') >= 0
}
