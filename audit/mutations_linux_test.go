package audit

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// The ways of changing a log. Each says which code is due from what it has changed,
// by docs/reference/audit-format.md, and not by reading the log as a verifier does.
var kinds = []struct {
	name string
	make func(s *specimen, r *rand.Rand) *mutation
}{
	{"a bit of a segment", flipLine},
	{"a bit of the checkpoints", flipNote},
	{"a bit of a tree", flipTree},
	{"a segment cut", cutLog},
	{"checkpoints cut", cutNoteFile},
	{"a line deleted", deleteLine},
	{"a line deleted, the others numbered anew", deleteAndNumber},
	{"two lines swapped", swapLines},
	{"two lines swapped and numbered anew", swapAndNumber},
	{"a line twice", repeatLine},
	{"a line put in, the others numbered anew", insertAndNumber},
	{"files swapped", swapFiles},
	{"a file removed", removeFile},
	{"the last files removed", removeEnd},
	{"a file twice", repeatFile},
	{"a note removed", removeNote},
	{"a note twice", repeatNote},
	{"two notes swapped", swapNotes},
	{"a line of a note removed", removeNoteLine},
	{"two lines of a note swapped", swapNoteLines},
	{"notes signed by another key", signByAnother},
	{"the past signed again with today's key", signAgain},
	{"another key", otherKey},
	{"a checkpoint of this log", giveOwn},
	{"the end cut off, and a checkpoint given", cutAndGive},
	{"a checkpoint that is not of this log", giveOther},
	{"a checkpoint that is none", giveNone},
	{"a file added", addFile},
	{"a file emptied", emptyFile},
	{"bytes behind the checkpoints", followNotes},
}

// changed is s as it is now, for which a code is due.
func (s *specimen) changed(want, seq int, format string, args ...any) *mutation {
	return &mutation{name: fmt.Sprintf(format, args...), files: s.files, key: s.key, want: want, seq: seq}
}

func pick[E any](r *rand.Rand, from []E) E { return from[r.IntN(len(from))] }

// tailCode is the code of a log that is good up to the unsigned lines, which end so.
func (s *specimen) tailCode() int {
	if log := s.files[fileName(s.lastLog(), ".log")]; len(log) > 0 && last(log) != '\n' {
		return verify.TornTail
	}
	return verify.Good
}

// place returns the number of the line that byte at of a segment is in, the line's
// start, and whether it is a line: not so are bytes behind the last newline.
func place(content []byte, at int) (seq, start int, line bool) {
	start = bytes.LastIndexByte(content[:at], '\n') + 1
	number := seqForm.FindSubmatch(content[start:])
	line = bytes.IndexByte(content[start:], '\n') >= 0
	if number != nil {
		seq, _ = strconv.Atoi(string(number[1]))
	}
	return seq, start, line
}

// isLine reports whether text begins with a well-formed line that has a number.
func isLine(text []byte, seq int) bool {
	first, _, ended := bytes.Cut(text, []byte("\n"))
	number := lineForm.FindSubmatch(first)
	return ended && len(first) <= 8192 && number != nil && string(number[1]) == strconv.Itoa(seq)
}

// anyWellFormed reports whether one of the whole lines of text is well-formed.
func anyWellFormed(text []byte) bool {
	for line := range bytes.Lines(text) {
		if whole, ok := bytes.CutSuffix(line, []byte("\n")); ok && len(whole) <= 8192 && lineForm.Match(whole) {
			return true
		}
	}
	return false
}

func flipLine(s *specimen, r *rand.Rand) *mutation {
	name := pick(r, s.names(".log"))
	content := s.files[name]
	at, bit := r.IntN(len(content)), r.IntN(8)
	if r.IntN(8) == 0 { // where lines end
		at = bytes.LastIndexByte(content[:at+1], '\n')
		at = max(at, 0)
	}
	return s.flipLineAt(name, at, bit)
}

func (s *specimen) flipLineAt(name string, at, bit int) *mutation {
	content := s.files[name]
	seq, start, line := place(content, at)
	wasEnd := content[at] == '\n'
	content[at] ^= 1 << bit
	made := func(want int) *mutation {
		return s.changed(want, seq, "%s at %d, bit %d, in record %d", name, at, bit, seq)
	}
	final := numberOf(name) == s.lastLog()
	rest := content[start:]
	if wasEnd && final && isLine(rest, seq) && bytes.Count(rest, []byte("\n")) == 1 {
		// Two lines have become one of the right form and number, behind which is none.
		switch signed := s.signed(); {
		case seq+1 < signed:
			return made(verify.Truncated)
		case seq+1 > signed:
			return made(s.tailCode())
		}
		return made(verify.Tampered)
	}
	if wasEnd && isLine(rest, seq) {
		return made(verify.Tampered) // the next one has another number
	}
	switch {
	case !line && !final:
		m := made(verify.Tampered)
		m.seq = -1
		return m
	case !line: // torn already, and with no line in it
		return made(verify.TornTail)
	case seq < s.signed() && final && bytes.IndexByte(rest, '\n') < 0:
		return made(verify.Truncated)
	case seq < s.signed():
		return made(verify.Tampered)
	}
	switch {
	case isLine(rest, seq):
		return made(s.tailCode())
	case anyWellFormed(rest):
		return made(verify.Tampered)
	}
	return made(verify.TornTail)
}

// noteCode is the code of a log in which bytes of a note were changed, given the file
// that it was in as it is now. at is where the note begins.
func (s *specimen) noteCode(name string, at, index int) int {
	if numberOf(name) != s.lastNotes() {
		return verify.Tampered
	}
	empty := bytes.Count(s.files[name][at:], []byte("\n\n"))
	switch {
	case empty >= 2:
		return verify.Tampered
	case index == 0 && s.lastNotes() == 1:
		return verify.Unknown
	}
	return verify.TornTail
}

func flipNote(s *specimen, r *rand.Rand) *mutation {
	name := pick(r, s.names(".ckpt"))
	content := s.files[name]
	at, bit := r.IntN(len(content)), r.IntN(8)
	if r.IntN(8) == 0 { // in an empty line
		at = max(0, bytes.LastIndex(content[:at], []byte("\n\n"))+1)
	}
	return s.flipNoteAt(name, at, bit)
}

func (s *specimen) flipNoteAt(name string, at, bit int) *mutation {
	content := s.files[name]
	notes := cutNotes(content)
	index := 0
	for index+1 < len(notes) && notes[index+1].at <= at {
		index++
	}
	content[at] ^= 1 << bit
	want := s.noteCode(name, notes[index].at, index)
	if want == verify.Tampered && name == fileName(1, ".ckpt") && index == 0 && otherKeyHash(notes[0].text, content[:len(notes[0].text)]) {
		want = verify.Unknown
	}
	return s.changed(want, -1, "%s at %d, bit %d, note %d", name, at, bit, index)
}

// otherKeyHash reports whether all that differs between two notes is the signature,
// which has the form of one by another key.
func otherKeyHash(before, now []byte) bool {
	i := bytes.LastIndex(before, []byte("\n— ")) + len("\n— ")
	if !bytes.Equal(before[:i], now[:i]) || !bytes.HasSuffix(now, []byte("\n\n")) || !utf8.Valid(now) {
		return false
	}
	nameWas, was, _ := strings.Cut(string(before[i:]), " ")
	nameIs, is, _ := strings.Cut(string(now[i:]), " ")
	b, err := format.Decode64(strings.TrimSuffix(is, "\n\n"))
	return err == nil && len(b) >= 5 && nameIs != "" && noteName.MatchString(nameIs) && (nameIs != nameWas || is[:6] != was[:6] && !sameHash(was, b))
}

var noteName = regexp.MustCompile(`^[^\s+\x00-\x1f]+$`)

// sameHash reports whether a signature in base64 begins with the key hash of another.
func sameHash(was string, is []byte) bool {
	b, err := format.Decode64(strings.TrimSuffix(was, "\n\n"))
	return err == nil && bytes.Equal(b[:4], is[:4])
}

func flipTree(s *specimen, r *rand.Rand) *mutation {
	if len(s.names(".tree")) == 0 {
		return nil
	}
	name := pick(r, s.names(".tree"))
	at, bit := r.IntN(len(s.files[name])), r.IntN(8)
	if r.IntN(6) == 0 {
		return s.cutTreeAt(name, at)
	}
	return s.flipTreeAt(name, at, bit)
}

func (s *specimen) cutTreeAt(name string, at int) *mutation {
	s.files[name] = s.files[name][:at]
	return s.changed(verify.Tampered, -1, "%s cut at %d", name, at)
}

func (s *specimen) flipTreeAt(name string, at, bit int) *mutation {
	s.files[name][at] ^= 1 << bit
	return s.changed(verify.Tampered, -1, "%s at %d, bit %d", name, at, bit)
}

func cutLog(s *specimen, r *rand.Rand) *mutation {
	name := pick(r, s.names(".log"))
	content := s.files[name]
	at := r.IntN(len(content))
	if r.IntN(3) == 0 { // between two lines
		at = bytes.LastIndexByte(content[:at], '\n') + 1
	}
	return s.cutLogAt(name, at)
}

func (s *specimen) cutLogAt(name string, at int) *mutation {
	content := s.files[name]
	seq, _, _ := place(content, at)
	s.files[name] = content[:at]
	want := verify.Tampered
	if numberOf(name) == s.lastLog() {
		want = s.tailCode()
		if seq < s.signed() {
			want = verify.Truncated
		}
	}
	return s.changed(want, -1, "%s at %d, in record %d", name, at, seq)
}

func cutNoteFile(s *specimen, r *rand.Rand) *mutation {
	name := pick(r, s.names(".ckpt"))
	content := s.files[name]
	notes := cutNotes(content)
	at := r.IntN(len(content))
	if r.IntN(3) == 0 {
		at = pick(r, notes).at
	}
	return s.cutNotesAt(name, at)
}

func (s *specimen) cutNotesAt(name string, at int) *mutation {
	content := s.files[name]
	notes := cutNotes(content)
	s.files[name] = content[:at]
	index := slices.IndexFunc(notes, func(n cutNote) bool { return n.at == at })
	want := verify.TornTail
	switch {
	case numberOf(name) != s.lastNotes():
		want = verify.Tampered
	case s.lastNotes() == 1 && at < len(notes[0].text):
		want = verify.Unknown
	case index >= 0:
		want = s.tailCode()
	}
	return s.changed(want, -1, "%s at %d", name, at)
}

// linesOf returns the lines of a segment and the bytes behind the last newline.
func linesOf(content []byte) (lines [][]byte, torn []byte) {
	all := bytes.SplitAfter(content, []byte("\n"))
	return all[:len(all)-1], last(all)
}

func joined(lines [][]byte, torn []byte) []byte { return append(bytes.Join(lines, nil), torn...) }

var seqForm = regexp.MustCompile(`^\{"v":1,"seq":([0-9]+)`)

// renumber numbers the lines of segments anew, and moves none.
func (s *specimen) renumber(from int) {
	for _, name := range s.names(".log") {
		lines, torn := linesOf(s.files[name])
		if len(lines) == 0 {
			continue
		}
		if from < 0 {
			from, _, _ = place(lines[0], 0)
		}
		for i := range lines {
			lines[i] = seqForm.ReplaceAll(lines[i], fmt.Appendf(nil, `{"v":1,"seq":%d`, from))
			from++
		}
		s.files[name] = joined(lines, torn)
	}
}

// firstSeq is the number of the first line that is there.
func (s *specimen) firstSeq() int {
	seq, _, _ := place(s.files[s.names(".log")[0]], 0)
	return seq
}

// aLine picks a line: its segment, its index there, and its number.
func (s *specimen) aLine(r *rand.Rand) (name string, lines [][]byte, torn []byte, i, seq int) {
	name = pick(r, s.names(".log"))
	lines, torn = linesOf(s.files[name])
	i = r.IntN(len(lines))
	if r.IntN(4) == 0 {
		i = max(0, len(lines)-1-r.IntN(3))
	}
	seq, _, _ = place(lines[i], 0)
	return name, lines, torn, i, seq
}

func deleteLine(s *specimen, r *rand.Rand) *mutation {
	name, lines, torn, i, seq := s.aLine(r)
	end := i == len(lines)-1 && numberOf(name) == s.lastLog()
	s.files[name] = joined(slices.Delete(lines, i, i+1), torn)
	want := verify.Tampered
	switch {
	case end && seq < s.signed():
		want = verify.Truncated
	case end:
		want = s.tailCode()
	}
	return s.changed(want, seq, "record %d of %s", seq, name)
}

func deleteAndNumber(s *specimen, r *rand.Rand) *mutation {
	first, total := s.firstSeq(), s.records()
	name, lines, torn, i, seq := s.aLine(r)
	s.files[name] = joined(slices.Delete(lines, i, i+1), torn)
	s.renumber(first)
	want := verify.Tampered
	switch {
	case numberOf(name) != s.lastLog():
	case seq >= s.signed():
		want = s.tailCode()
	case !slices.ContainsFunc(s.sizes(), func(size int) bool { return seq < size && size <= total-1 }):
		want = verify.Truncated
	}
	return s.changed(want, -1, "record %d of %s", seq, name)
}

// records is how many lines the log has, with those that were removed.
func (s *specimen) records() int {
	lines, _ := linesOf(s.files[fileName(s.lastLog(), ".log")])
	seq, _, _ := place(last(lines), 0)
	return seq + 1
}

// sizes are those of all notes.
func (s *specimen) sizes() (all []int) {
	for _, name := range s.names(".ckpt") {
		for _, n := range cutNotes(s.files[name]) {
			all = append(all, n.size)
		}
	}
	return all
}

func swapLines(s *specimen, r *rand.Rand) *mutation {
	name, lines, torn, i, seq := s.aLine(r)
	if i+1 == len(lines) {
		return nil
	}
	lines[i], lines[i+1] = lines[i+1], lines[i]
	s.files[name] = joined(lines, torn)
	return s.changed(verify.Tampered, seq, "records %d and the next of %s", seq, name)
}

func swapAndNumber(s *specimen, r *rand.Rand) *mutation {
	first := s.firstSeq()
	name, lines, torn, i, seq := s.aLine(r)
	other := r.IntN(len(lines))
	if i == other {
		return nil
	}
	lines[i], lines[other] = lines[other], lines[i]
	s.files[name] = joined(lines, torn)
	s.renumber(first)
	want := verify.Tampered
	if low := seq + min(other-i, 0); low >= s.signed() {
		want = s.tailCode()
	}
	return s.changed(want, -1, "record %d of %s, line %d", seq, name, other)
}

func repeatLine(s *specimen, r *rand.Rand) *mutation {
	name, lines, torn, i, seq := s.aLine(r)
	s.files[name] = joined(slices.Insert(lines, i, lines[i]), torn)
	return s.changed(verify.Tampered, seq+1, "record %d of %s", seq, name).unlessPast(s, seq+1)
}

// unlessPast names no record that was never there.
func (m *mutation) unlessPast(s *specimen, seq int) *mutation {
	if seq >= s.records() {
		m.seq = -1
	}
	return m
}

func insertAndNumber(s *specimen, r *rand.Rand) *mutation {
	first := s.firstSeq()
	name, lines, torn, i, seq := s.aLine(r)
	line := bytes.Replace(lines[i], []byte(`"n":"`), []byte(`"n":"x`), 1)
	s.files[name] = joined(slices.Insert(lines, i+1, line), torn)
	s.renumber(first)
	want := verify.Tampered
	if seq+1 >= s.signed() && numberOf(name) == s.lastLog() {
		want = s.tailCode()
	}
	return s.changed(want, -1, "behind record %d of %s", seq, name)
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "|") }

func encode64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
