package audit

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

func swapFiles(s *specimen, r *rand.Rand) *mutation {
	extension := pick(r, []string{".log", ".ckpt", ".tree", "both"})
	swap := []string{extension}
	if extension == "both" {
		swap = []string{".log", ".ckpt"}
	}
	names := s.names(swap[0])
	if len(names) < 2 {
		return nil
	}
	i := numberOf(pick(r, names))
	j := numberOf(pick(r, names))
	for _, e := range swap {
		a, b := s.files[fileName(i, e)], s.files[fileName(j, e)]
		if i == j || a == nil || b == nil || bytes.Equal(a, b) {
			return nil
		}
		s.files[fileName(i, e)], s.files[fileName(j, e)] = b, a
	}
	want := verify.Tampered
	if min(i, j) == 1 && last(swap) == ".ckpt" {
		want = verify.Unknown // each segment begins an epoch, with another key
	}
	return s.changed(want, -1, "%s of %d and %d", extension, i, j)
}

func removeFile(s *specimen, r *rand.Rand) *mutation {
	extension := pick(r, []string{".log", ".ckpt", ".tree"})
	if len(s.names(extension)) == 0 {
		return nil
	}
	name := pick(r, s.names(extension))
	logs, notes := s.lastLog(), s.lastNotes()
	delete(s.files, name)
	want := verify.Tampered
	switch {
	case extension == ".log" && numberOf(name) == logs:
		want = verify.Truncated
	case extension == ".ckpt" && len(s.names(".ckpt")) == 0:
		want = verify.Unknown
	case extension == ".ckpt" && numberOf(name) == notes: // as if the crash had come earlier
		want = s.tailCode()
	}
	return s.changed(want, -1, "%s", name)
}

// removeEnd removes the last segments, with their checkpoints or without.
func removeEnd(s *specimen, r *rand.Rand) *mutation {
	logs := s.names(".log")
	if len(logs) < 2 {
		return nil
	}
	with := r.IntN(2) == 0
	from := numberOf(logs[1+r.IntN(len(logs)-1)])
	for _, name := range slices.Concat(s.names(".log"), s.names(".ckpt")) {
		if numberOf(name) >= from && (with || strings.HasSuffix(name, ".log")) {
			delete(s.files, name)
		}
	}
	return s.changed(verify.Truncated, -1, "segment %d and later ones, with checkpoints: %v", from, with)
}

func repeatFile(s *specimen, r *rand.Rand) *mutation {
	name := pick(r, slices.Concat(s.names(".log"), s.names(".ckpt")))
	extension := name[8:]
	to := fileName(s.lastLog()+1+r.IntN(2), extension)
	s.files[to] = s.files[name]
	return s.changed(verify.Tampered, -1, "%s as %s", name, to)
}

// without returns a file of notes without the i-th.
func without(notes []cutNote, i int) []byte {
	return noteFileOf(slices.Delete(slices.Clone(notes), i, i+1))
}

func noteFileOf(notes []cutNote) (file []byte) {
	for _, n := range notes {
		file = append(file, n.text...)
	}
	return file
}

func removeNote(s *specimen, r *rand.Rand) *mutation {
	name := pick(r, s.names(".ckpt"))
	notes := cutNotes(s.files[name])
	i := r.IntN(len(notes))
	n := notes[i]
	final := numberOf(name) == s.lastNotes()
	s.files[name] = without(notes, i)
	want := verify.Tampered
	switch {
	case final && i == len(notes)-1 && name == fileName(1, ".ckpt") && i == 0:
		want = verify.Unknown
	case final && i == len(notes)-1:
		want = s.tailCode()
	case name == fileName(1, ".ckpt") && i == 0 && n.next:
		want = verify.Unknown
	case n.next || name == fileName(1, ".ckpt") && i == 0:
	case s.files[fileName(numberOf(name), ".log")] == nil && s.stepsChange(name, notes, i):
	default: // it was one of several that say the same
		want = s.code
	}
	return s.changed(want, -1, "note %d of %s, of size %d", i, name, n.size)
}

// stepsChange reports whether a tree has a step for a note that no other is for.
func (s *specimen) stepsChange(name string, notes []cutNote, i int) bool {
	first := 0
	fmt.Sscanf(string(s.files[name[:8]+".tree"]), "%d", &first)
	same := 0
	for _, n := range notes {
		if n.size == notes[i].size {
			same++
		}
	}
	return same == 1 && notes[i].size != first
}

func repeatNote(s *specimen, r *rand.Rand) *mutation {
	name := pick(r, s.names(".ckpt"))
	notes := cutNotes(s.files[name])
	i := r.IntN(len(notes))
	want := s.code
	if notes[i].next {
		want = verify.Tampered
	}
	s.files[name] = noteFileOf(slices.Insert(slices.Clone(notes), i, notes[i]))
	return s.changed(want, -1, "note %d of %s", i, name)
}

func swapNotes(s *specimen, r *rand.Rand) *mutation {
	name := pick(r, s.names(".ckpt"))
	notes := cutNotes(s.files[name])
	if len(notes) < 2 {
		return nil
	}
	i := r.IntN(len(notes) - 1)
	a, b := notes[i], notes[i+1]
	want := verify.Tampered
	switch {
	case !a.next && !b.next && a.size == b.size:
		want = s.code
	case name == fileName(1, ".ckpt") && i == 0 && a.next:
		want = verify.Unknown
	}
	notes[i], notes[i+1] = b, a
	s.files[name] = noteFileOf(notes)
	return s.changed(want, -1, "notes %d and %d of %s", i, i+1, name)
}

// editNote changes the lines of a note, and says what is due.
func editNote(s *specimen, r *rand.Rand, edit func(lines []string) []string) *mutation {
	name := pick(r, s.names(".ckpt"))
	notes := cutNotes(s.files[name])
	i := r.IntN(len(notes))
	if r.IntN(4) == 0 {
		i = pick(r, []int{0, len(notes) - 1})
	}
	before := string(notes[i].text)
	lines := edit(strings.SplitAfter(strings.TrimSuffix(before, "\n"), "\n"))
	if lines == nil {
		return nil
	}
	notes[i].text = []byte(strings.Join(lines, "") + "\n")
	if strings.Join(lines, "")+"\n" == before {
		return nil
	}
	s.files[name] = noteFileOf(notes)
	return s.changed(s.noteCode(name, notes[i].at, i), -1, "note %d of %s: %s", i, name, indent(string(notes[i].text)))
}

func removeNoteLine(s *specimen, r *rand.Rand) *mutation {
	return editNote(s, r, func(lines []string) []string {
		i := r.IntN(len(lines) - 1)
		return slices.Delete(lines, i, i+1)
	})
}

func swapNoteLines(s *specimen, r *rand.Rand) *mutation {
	return editNote(s, r, func(lines []string) []string {
		i, j := r.IntN(len(lines)-1), r.IntN(len(lines)-1)
		if lines[i] == lines[j] || lines[i] == "\n" || lines[j] == "\n" {
			return nil
		}
		lines[i], lines[j] = lines[j], lines[i]
		return lines
	})
}

// resign signs the text of a note by another key.
func resign(n cutNote, by *signer) []byte {
	head, _, _ := bytes.Cut(n.text, []byte("\n\n"))
	c, err := format.ParseCheckpoint(string(head) + "\n")
	if err != nil {
		panic(err)
	}
	c.Origin = by.name
	if c.Next != "" && !strings.HasPrefix(c.Next, by.name) {
		c.Next = by.public()
	}
	signed, err := by.signNote(c)
	if err != nil {
		panic(err)
	}
	return append(signed, '\n')
}

func signByAnother(s *specimen, r *rand.Rand) *mutation {
	origin, _, _ := strings.Cut(s.key, "+")
	by := newSigner(origin)
	if r.IntN(3) == 0 {
		by = newSigner(newOrigin())
	}
	chosen, one := -1, r.IntN(2) == 0
	names := s.names(".ckpt")
	at := r.IntN(len(names))
	for f, name := range names {
		notes := cutNotes(s.files[name])
		if one && f == at {
			chosen = r.IntN(len(notes))
		}
		for i := range notes {
			if !one || f == at && i == chosen {
				notes[i].text = resign(notes[i], by)
			}
		}
		s.files[name] = noteFileOf(notes)
	}
	want := verify.Tampered
	if !one || at == 0 && chosen == 0 {
		want = verify.Unknown
	}
	return s.changed(want, -1, "one: %v, file %d note %d, by %s", one, at, chosen, by.name)
}

// signAgain: who has the key of today changes a record of an earlier epoch, and signs
// all checkpoints from there on again.
func signAgain(s *specimen, r *rand.Rand) *mutation {
	name, lines, torn, i, seq := s.aLine(r)
	old := 0 // the size of the newest note of earlier epochs
	for _, file := range s.names(".ckpt") {
		for _, n := range cutNotes(s.files[file]) {
			if n.next {
				old = n.size
			}
		}
	}
	if seq >= old {
		return nil
	}
	lines[i] = bytes.Replace(lines[i], []byte(`"n":"r`), []byte(`"n":"x`), 1)
	s.files[name] = joined(lines, torn)
	var tree format.Mark
	var all [][]byte
	for _, file := range s.names(".log") {
		each, _ := linesOf(s.files[file])
		all = append(all, each...)
	}
	if len(s.names(".tree")) > 0 {
		return nil
	}
	for _, file := range s.names(".ckpt") {
		notes := cutNotes(s.files[file])
		for k := range notes {
			head, _, _ := bytes.Cut(notes[k].text, []byte("\n\n"))
			c, err := format.ParseCheckpoint(string(head) + "\n")
			if err != nil {
				panic(err)
			}
			for tree.Size < c.Size {
				tree.Add(bytes.TrimSuffix(all[tree.Size], []byte("\n")))
			}
			if c.Size <= int64(seq) {
				continue
			}
			c.Root = tree.Root()
			if c.Sealed {
				c.Edge = tree.Edge.Bytes()
			}
			signed, err := s.stolen.now.signNote(c)
			if err != nil {
				panic(err)
			}
			notes[k].text = append(signed, '\n')
		}
		s.files[file] = noteFileOf(notes)
	}
	return s.changed(verify.Tampered, seq, "from record %d on", seq)
}

func addFile(s *specimen, r *rand.Rand) *mutation {
	rows := []struct {
		name, content string
		want          int
	}{
		{"x", "x", s.code},
		{"2.log", "x", s.code},
		{"00000000.log", "x", s.code},
		{"000000002.log", "x", s.code},
		{"00000002.torn", "x", s.code},
		{"00000099.tree", "x", s.code},
		{fileName(s.lastLog(), ".tree"), "x", s.code},
		{"00000099.ckpt", "", s.code},
		{"00000099.ckpt", "egressd/\n1\n\n", verify.TornTail},
		{"00000099.ckpt", strings.Repeat("\x00", 40000), verify.TornTail},
		{"00000099.ckpt", "\n\n", verify.TornTail},
		{"00000099.ckpt", "\n\n\n\n", verify.Tampered},
		{"00000099.log", "", verify.Tampered},
		{fileName(s.lastLog()+1, ".log"), "", verify.Good},
		{fileName(s.lastLog()+1, ".log"), "torn", verify.TornTail},
		{fileName(s.lastLog()+1, ".log"), strings.Repeat("\x00", 40000), verify.TornTail},
		{fileName(s.lastLog()+1, ".log"), "a\nb\n\n\n", verify.TornTail},
		{fileName(s.lastLog()+1, ".log"), `{"v":1,"seq":7,"time":"2026-11-20T09:51:38.362114Z","n":1}` + "\n", verify.Tampered},
	}
	row := pick(r, rows)
	s.files[row.name] = []byte(row.content)
	return s.changed(row.want, -1, "%s of %d bytes", row.name, len(row.content))
}

// followNotes puts bytes that are no note behind those of a segment.
func followNotes(s *specimen, r *rand.Rand) *mutation {
	name := pick(r, s.names(".ckpt"))
	if r.IntN(2) == 0 {
		name = last(s.names(".ckpt"))
	}
	want := verify.Tampered
	if sealed := bytes.Contains(last(cutNotes(s.files[name])).text, []byte("\nseal")); numberOf(name) == s.lastNotes() && !sealed {
		want = verify.TornTail
	}
	behind := pick(r, []string{"x", "egressd/", "\n\n", "\n", strings.Repeat("\x00", 40000), s.anchors[0][:100]})
	s.files[name] = append(s.files[name], behind...)
	return s.changed(want, -1, "%d bytes behind %s", len(behind), name)
}

func emptyFile(s *specimen, r *rand.Rand) *mutation {
	if r.IntN(6) == 0 {
		for name := range s.files {
			delete(s.files, name)
		}
		return s.changed(5, -1, "no file at all")
	}
	name := pick(r, slices.Concat(s.names(".log"), s.names(".ckpt"), s.names(".tree")))
	s.files[name] = nil
	want := verify.Tampered
	switch number := numberOf(name); {
	case strings.HasSuffix(name, ".log") && number == s.lastLog():
		want = verify.Truncated
		if s.signed() <= s.before(name) {
			want = verify.Good
		}
	case strings.HasSuffix(name, ".ckpt") && number == 1 && s.lastNotes() == 1:
		want = verify.Unknown
	case strings.HasSuffix(name, ".ckpt") && number == s.lastNotes():
		want = s.tailCode()
	}
	return s.changed(want, -1, "%s", name)
}

// before is how many records there are before a segment.
func (s *specimen) before(name string) int {
	if numberOf(name) == 1 {
		return 0
	}
	return last(cutNotes(s.files[fileName(numberOf(name)-1, ".ckpt")])).size
}
