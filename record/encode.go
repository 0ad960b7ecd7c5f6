package record

import (
	"net/netip"
	"strconv"
)

// Limits of the strings of a record, in bytes of the encoded form unless said otherwise. A record has to
// stay under the 8 KiB that the log accepts, even if every byte is escaped.
const (
	MaxRaw    = 256 // bytes of Raw before they are escaped; also the limit of names, rules and files
	MaxReason = 2 * MaxRaw
	MaxMethod = 64
	MaxPath   = 1536
	MaxNote   = 1024

	MaxList     = 16  // strings of a list
	maxListText = 128 // of one of them
	maxListSize = 512 // after which a list ends
)

// Note returns the line of a record of the kind that has only a note.
func Note(kind Kind, note string) []byte {
	e := Encoder{Line: make([]byte, 0, 256)}
	e.Open("")
	e.Text("kind", string(kind))
	e.Text("note", note)
	e.Close()
	return e.Line
}

// An Encoder appends a record in canonical JSON to Line: absent members are left out, and the text is
// printable ASCII. The caller writes the members in the order of the fields of [Record].
type Encoder struct{ Line []byte }

// Open begins an object: the record, whose name is "", or one of its parts.
func (e *Encoder) Open(name string) {
	if name != "" {
		e.Key(name)
	}
	e.Line = append(e.Line, '{')
}

// Close ends the object that was opened last.
func (e *Encoder) Close() { e.Line = append(e.Line, '}') }

// Key writes the name of a member.
func (e *Encoder) Key(name string) {
	if e.Line[len(e.Line)-1] != '{' {
		e.Line = append(e.Line, ',')
	}
	e.Line = append(e.Line, '"')
	e.Line = append(e.Line, name...)
	e.Line = append(e.Line, '"', ':')
}

// Text writes a string, cut at [MaxNote]. It leaves out an empty one.
func (e *Encoder) Text(name, value string) { e.TextWithin(name, value, MaxNote) }

// TextWithin writes a string, cut to limit bytes of its escaped form, and reports whether it was cut. It leaves
// out an empty one.
func (e *Encoder) TextWithin(name, value string, limit int) (cut bool) {
	if value == "" {
		return false
	}
	e.Key(name)
	return e.Quote(value, limit)
}

// Number writes an integer, also 0.
func (e *Encoder) Number(name string, n int64) {
	e.Key(name)
	e.Line = strconv.AppendInt(e.Line, n, 10)
}

// Flag writes true. It leaves out false.
func (e *Encoder) Flag(name string, set bool) {
	if set {
		e.Key(name)
		e.Line = append(e.Line, "true"...)
	}
}

// AddrPort writes an address with its port. It leaves out the zero value.
func (e *Encoder) AddrPort(name string, a netip.AddrPort) {
	if !a.IsValid() {
		return
	}
	e.Key(name)
	e.Line = append(e.Line, '"')
	e.Line = a.AppendTo(e.Line)
	e.Line = append(e.Line, '"')
}

// List writes at most 16 strings of at most 128 bytes each, and no further one after half a kilobyte. It
// leaves out an empty list.
func (e *Encoder) List(name string, values []string) {
	if len(values) == 0 {
		return
	}
	e.Key(name)
	e.Line = append(e.Line, '[')
	start := len(e.Line)
	for i, v := range values[:min(len(values), MaxList)] {
		if len(e.Line)-start > maxListSize {
			break
		}
		if i > 0 {
			e.Line = append(e.Line, ',')
		}
		e.Quote(v, maxListText)
	}
	e.Line = append(e.Line, ']')
}

// Addr writes an address. It leaves out the zero value.
func (e *Encoder) Addr(name string, a netip.Addr) {
	if a.IsValid() {
		e.Key(name)
		e.Line = append(a.AppendTo(append(e.Line, '"')), '"')
	}
}

// Addrs writes the first addresses of a list. It leaves out an empty list.
func (e *Encoder) Addrs(name string, addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	e.Key(name)
	e.Line = append(e.Line, '[')
	for i, a := range addrs[:min(len(addrs), MaxList)] {
		if i > 0 {
			e.Line = append(e.Line, ',')
		}
		e.Line = append(e.Line, '"')
		e.Line = a.AppendTo(e.Line)
		e.Line = append(e.Line, '"')
	}
	e.Line = append(e.Line, ']')
}

// Raw writes the first [MaxRaw] bytes of malformed input, all of them even if every byte is escaped.
func (e *Encoder) Raw(b []byte) {
	if len(b) > 0 {
		e.Key("raw")
		e.Quote(string(b[:min(len(b), MaxRaw)]), escapedLen*MaxRaw)
	}
}

// escapedLen is the length of an escaped byte.
const escapedLen = len(`\u0000`)

const hexDigits = "0123456789abcdef"

// Quote writes a JSON string of at most limit bytes between its quotes. A byte that is not printable
// ASCII becomes \u00XX with the value of the byte. A reader thus gets every byte back, and no sandbox can
// write to a terminal or begin a line of its own. Quote reports whether it left out the end of s.
func (e *Encoder) Quote(s string, limit int) (cut bool) {
	e.Line = append(e.Line, '"')
	i := 0
	for end := len(e.Line) + limit; i < len(s) && len(e.Line)+escapedLen <= end; i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			e.Line = append(e.Line, '\\', c)
		case c < 0x20 || c > 0x7e:
			e.Line = append(e.Line, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			e.Line = append(e.Line, c)
		}
	}
	e.Line = append(e.Line, '"')
	return i < len(s)
}
