package policy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"strings"
)

// A HostList holds the patterns of a file that has one on each line. It finds those of one host without looking at the
// others, and takes little more memory than the file. It does not change and is safe for concurrent use.
type HostList struct {
	// text has a line for each line of the file: the host of its pattern and, behind a space, its ports unless they are
	// the default. Lines without a pattern are empty.
	text  []byte
	marks []uint32 // how many lines end before each multiple of lineStride in text
	table []uint32 // open addressing by host: 1 + the offset of a line in text, 0 for a free slot
	seed  maphash.Seed

	count    int
	most     int          // patterns of one host
	deepest  int          // labels of the longest name below which a pattern stands
	oneLabel bool         // a pattern has a star within its first label
	prefixes [2][129]bool // lengths in use, of IPv4 and IPv6

	doubts []Problem
}

const (
	lineStride = 4096

	// maxSame bounds the patterns of one host, which are compared one by one.
	maxSame = 64

	// maxHostList bounds the bytes of a file.
	maxHostList = 256 << 20

	// maxDoubts bounds the warnings about one file.
	maxDoubts = 10
)

// ReadHostList reads patterns, one a line, as [ParsePattern] does. "#" begins a comment at the beginning of a line or
// after a space. name is for messages. If opens is set, the patterns are for allow rules: hosts that are not public are
// then refused, since an exception to the baseline belongs into the policy. An error about the text is a [FileError].
func ReadHostList(name string, from io.Reader, opens bool) (*HostList, error) {
	l := &HostList{seed: maphash.MakeSeed(), table: make([]uint32, 16)}
	var problems FileError
	limited := &io.LimitedReader{R: from, N: maxHostList + 1}
	lines := bufio.NewScanner(limited)
	number := 1
	for ; len(problems) < maxProblems && lines.Scan(); number++ {
		at := Problem{File: name, Line: number, Column: 1}
		p, err := l.add(patternOf(lines.Text()), opens)
		if err != nil {
			at.Message = err.Error()
			problems = append(problems, at)
		} else if opens {
			l.doubt(p, at)
		}
	}
	wrong := Problem{File: name, Line: number, Column: 1}
	switch {
	case len(problems) > 0:
		return nil, problems
	case errors.Is(lines.Err(), bufio.ErrTooLong):
		wrong.Message = fmt.Sprintf("the line is longer than %d bytes; write one pattern a line", bufio.MaxScanTokenSize)
	case lines.Err() != nil:
		return nil, fmt.Errorf("%s: %w", name, lines.Err())
	case limited.N == 0:
		wrong.Message = fmt.Sprintf("the file is larger than %d bytes; split it", maxHostList)
	case l.count == 0:
		wrong.Line, wrong.Message = 1, "the file has no pattern; write one a line, or remove the file from the policy"
	default:
		l.markLines()
		return l, nil
	}
	return nil, FileError{wrong}
}

// doubt notes a warning about an allowed pattern.
func (l *HostList) doubt(p Pattern, at Problem) {
	if why := p.Sharing(); why != "" && len(l.doubts) < maxDoubts {
		at.Message = p.String() + " " + why
		l.doubts = append(l.doubts, at)
	}
}

// patternOf returns a line without its comment and the spaces around it.
func patternOf(line string) string {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			line = line[:i]
			break
		}
	}
	return strings.TrimSpace(line)
}

// add adds a line, which may be empty.
func (l *HostList) add(pattern string, opens bool) (p Pattern, err error) {
	offset := len(l.text)
	if pattern == "" {
		l.text = append(l.text, '\n')
		return p, nil
	}
	if p, err = ParsePattern(pattern); err != nil {
		return p, err
	}
	if opens && InSpecialSpace(p) {
		return p, fmt.Errorf("%s is not public; write it under allow in the policy", p)
	}
	host := p.Host()
	l.text = append(l.text, host...)
	if p.ports != (portSet{}) {
		l.text = append(append(l.text, ' '), p.ports.String()...)
	}
	l.text = append(l.text, '\n')
	return p, l.insert(p, host, offset)
}

func (l *HostList) insert(p Pattern, host string, offset int) error {
	same := 0
	slot := l.slot([]byte(host))
	for ; l.table[slot] != 0; slot = l.after(slot) {
		switch ports, found := l.portsAt(l.table[slot]-1, []byte(host)); {
		case found && ports == p.ports:
			return nil
		case found:
			same++
		}
	}
	if same == maxSame {
		return fmt.Errorf("%s stands there with %d other ports; write ranges of ports", host, maxSame)
	}
	l.table[slot] = uint32(offset) + 1
	l.count++
	l.most = max(l.most, same+1)
	switch p.kind {
	case addresses:
		l.prefixes[family(p.prefix.Addr())][p.prefix.Bits()] = true
	case oneLabel:
		l.oneLabel = true
	case hostsBelow:
		l.deepest = max(l.deepest, 1+strings.Count(p.name, "."))
	}
	if l.count*3 > len(l.table)*2 {
		l.grow()
	}
	return nil
}

// grow doubles the table, in which a third of the slots stays free.
func (l *HostList) grow() {
	old := l.table
	l.table = make([]uint32, 2*len(old))
	for _, entry := range old {
		if entry == 0 {
			continue
		}
		line := l.text[entry-1:]
		slot := l.slot(line[:bytes.IndexAny(line, " \n")])
		for l.table[slot] != 0 {
			slot = l.after(slot)
		}
		l.table[slot] = entry
	}
}

func (l *HostList) slot(host []byte) int {
	return int(maphash.Bytes(l.seed, host) & uint64(len(l.table)-1))
}

func (l *HostList) after(slot int) int { return (slot + 1) & (len(l.table) - 1) }

func (l *HostList) portsAt(offset uint32, host []byte) (portSet, bool) {
	rest, found := bytes.CutPrefix(l.text[offset:], host)
	if !found {
		return portSet{}, false
	}
	switch rest[0] {
	case '\n':
		return portSet{}, true
	case ' ':
		ports, _ := parsePorts(string(rest[1:bytes.IndexByte(rest, '\n')])) // as they were printed
		return ports, true
	}
	return portSet{}, false
}

// each calls yield with the ports and the number of each line of host, which is in the form of [Pattern.Host].
func (l *HostList) each(host []byte, yield func(ports portSet, line int)) {
	for slot := l.slot(host); l.table[slot] != 0; slot = l.after(slot) {
		offset := l.table[slot] - 1
		if ports, found := l.portsAt(offset, host); found {
			yield(ports, l.lineAt(int(offset)))
		}
	}
}

// All yields the patterns with the numbers of their lines.
func (l *HostList) All() iter.Seq2[int, Pattern] {
	return func(yield func(int, Pattern) bool) {
		number := 0
		for line := range bytes.Lines(l.text) {
			number++
			host, ports, hasPorts := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
			if host == "" {
				continue
			}
			p, _ := parsePatternHost(host) // as it was printed
			if hasPorts {
				p.ports, _ = parsePorts(ports)
			}
			if !yield(number, p) {
				return
			}
		}
	}
}

// Of yields the patterns for the hosts of p, with the numbers of their lines.
func (l *HostList) Of(p Pattern) iter.Seq2[int, Pattern] {
	return func(yield func(int, Pattern) bool) {
		more := true
		l.each([]byte(p.Host()), func(ports portSet, line int) {
			if p.ports = ports; more {
				more = yield(line, p)
			}
		})
	}
}

func (l *HostList) markLines() {
	ended := 0
	for at := 0; at < len(l.text); at += lineStride {
		l.marks = append(l.marks, uint32(ended))
		ended += bytes.Count(l.text[at:min(at+lineStride, len(l.text))], []byte{'\n'})
	}
}

func (l *HostList) lineAt(offset int) int {
	mark := offset / lineStride
	return int(l.marks[mark]) + bytes.Count(l.text[mark*lineStride:offset], []byte{'\n'}) + 1
}

// Len returns the number of different patterns.
func (l *HostList) Len() int { return l.count }

// Doubts returns warnings about allowed patterns that hold hosts of several registrants, the first few of them.
func (l *HostList) Doubts() []Problem { return l.doubts }
