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
	// the default. A carriage return stands between the patterns of one line. Lines without a pattern are empty.
	text  []byte
	marks []uint32 // how many lines end before each multiple of lineStride in text
	table []uint32 // open addressing by host: 1 + the offset of a line in text, 0 for a free slot
	seed  maphash.Seed

	count    int
	most     int          // patterns of one host
	deepest  int          // labels of the longest name below which a pattern stands
	oneLabel bool         // a pattern has a star within its first label
	prefixes [2][129]bool // lengths in use, of IPv4 and IPv6

	doubts  []Problem
	lines   int     // that say something
	skipped int     // of lines, those of which something was not read
	first   Problem // the first of skipped
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
// after a space. name is for messages. An error about the text is a [FileError].
//
// If opens is set, the patterns are for allow rules. A line that is no pattern is then an error. A host that is not
// public is one, too: an exception to the baseline belongs into the policy.
//
// Otherwise the patterns are for deny rules. They may then also stand as lists of hosts to block are published: as lines of
// a hosts file, as rules for hosts of an Adblock list, or as settings of dnsmasq. "!" begins a comment there. A line that
// is none of these is skipped and counted, see [HostList.Doubts]. It is an error if no line is read.
func ReadHostList(name string, from io.Reader, opens bool) (*HostList, error) {
	l := &HostList{seed: maphash.MakeSeed(), table: make([]uint32, 16)}
	var problems FileError
	limited := &io.LimitedReader{R: from, N: maxHostList + 1}
	lines := bufio.NewScanner(limited)
	number := 1
	for ; len(problems) < maxProblems && lines.Scan(); number++ {
		line := lines.Text()
		if number == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		at := Problem{File: name, Line: number, Column: 1}
		one, err := l.read(patternOf(line), opens)
		if err == nil {
			err = l.add(one.patterns)
		}
		if err != nil {
			at.Message = err.Error()
			problems = append(problems, at)
			continue
		}
		if opens && len(one.patterns) > 0 {
			l.doubt(one.patterns[0], at)
		}
		if one.problem != "" {
			l.skip(patternOf(line), &one, at)
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
	case l.count == 0 && l.skipped > 0:
		wrong = l.first
		wrong.Message = fmt.Sprintf("none of its %d lines names a host to deny; the first: %s", l.lines, l.first.Message)
	case l.count == 0:
		wrong.Line, wrong.Message = 1, "the file has no pattern; write one a line, or remove the file from the policy"
	default:
		l.markLines()
		return l, nil
	}
	return nil, FileError{wrong}
}

// read reads a line, which may be empty. The error is about a line of a file that opens.
func (l *HostList) read(line string, opens bool) (one listedLine, err error) {
	if line == "" || !opens && isListComment(line) {
		return one, nil
	}
	l.lines++
	if one, published := publishedLine(line); published {
		if opens {
			return one, errors.New(notForAllow(line, &one))
		}
		return one, nil
	}
	p, problem := parsePattern(line)
	switch {
	case problem != "" && !opens:
		one.problem = problem
	case problem != "":
		_, err = ParsePattern(line)
	case opens && InSpecialSpace(p):
		err = fmt.Errorf("%s is not public; write it under allow in the policy", p)
	default:
		one.patterns = []Pattern{p}
	}
	return one, err
}

// notForAllow says what to write instead of a line that is read in files of denials only.
func notForAllow(line string, one *listedLine) string {
	write := textsOf(one.patterns, " and, in a line of its own, ")
	if host, isException := strings.CutPrefix(line, "@@||"); isException {
		host, _, _ = strings.Cut(host, "^")
		write = hostsIn(host)
	}
	if write == "" {
		write = "one pattern a line, such as example.com"
	}
	return quoteBriefly(line) + " has the form of a list of hosts to block, which only deny_file reads; here write " + write
}

// skip notes a line of which something was not read. Only the first is explained: a list may have a million.
func (l *HostList) skip(line string, one *listedLine, at Problem) {
	if l.skipped++; l.skipped > 1 {
		return
	}
	at.Message = quoteBriefly(line) + ": " + one.problem
	if one.write != "" {
		at.Message += "; write " + one.write
	} else if _, err := ParsePattern(line); err != nil && len(one.patterns) == 0 {
		if _, published := publishedLine(line); !published {
			at.Message = err.Error()
		}
	}
	l.first = at
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

// add adds the patterns of a line, of which there may be none.
func (l *HostList) add(patterns []Pattern) error {
	if len(patterns) == 0 {
		l.text = append(l.text, '\n')
	}
	for i, p := range patterns {
		if i > 0 {
			l.text[len(l.text)-1] = '\r'
		}
		host, offset := p.Host(), len(l.text)
		l.text = append(l.text, host...)
		if p.ports != (portSet{}) {
			l.text = append(append(l.text, ' '), p.ports.String()...)
		}
		l.text = append(l.text, '\n')
		if err := l.insert(p, host, offset); err != nil {
			return err
		}
	}
	return nil
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
		slot := l.slot(line[:bytes.IndexAny(line, " \r\n")])
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
	case '\r', '\n':
		return portSet{}, true
	case ' ':
		ports, _ := parsePorts(string(rest[1:bytes.IndexAny(rest, "\r\n")])) // as they were printed
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

// Doubts returns warnings: how many lines were skipped, with the first of them, and the first few allowed patterns that
// hold hosts of several registrants.
func (l *HostList) Doubts() []Problem {
	if l.skipped == 0 {
		return l.doubts
	}
	skipped := l.first
	skipped.Message = fmt.Sprintf("%d of %d lines skipped, the first: %s", l.skipped, l.lines, l.first.Message)
	return append([]Problem{skipped}, l.doubts...)
}
