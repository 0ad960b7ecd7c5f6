package audit

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

func otherKey(s *specimen, r *rand.Rand) *mutation {
	origin, _, _ := strings.Cut(s.key, "+")
	rows := []struct {
		key  string
		want int
	}{
		{"", verify.Unknown},
		{newSigner(origin).public(), verify.Unknown},
		{newSigner(newOrigin()).public(), verify.Unknown},
		{s.stolen.now.public(), verify.Unknown},
		{"x", 5},
		{s.key[1:], 5},
		{s.key + "=", 5},
		{s.key[:len(s.key)-1], 5},
		{strings.Replace(s.key, "+", "-", 1), 5},
		{strings.ToUpper(s.key[:8]) + s.key[8:], 5},
		{s.key[:len(s.key)-4] + "AAAA", 5},
	}
	row := pick(r, rows)
	if r.IntN(4) == 0 { // a tampered log does not change that
		delete(s.files, fileName(1, ".ckpt"))
		if row.want == verify.Unknown && row.key != "" && len(s.names(".ckpt")) > 0 {
			row.want = verify.Tampered // there is no first note that could show it
		}
	}
	m := s.changed(row.want, -1, "key %q", row.key)
	m.key = row.key
	return m
}

// An anchor is a note that was kept elsewhere.
type anchor struct {
	text  string
	size  int
	epoch int
}

// kept returns all notes that the log ever had.
func (s *specimen) kept() (all []anchor) {
	epoch := 0
	for _, text := range s.anchors {
		size, _ := strconv.Atoi(strings.Split(text, "\n")[1])
		all = append(all, anchor{text, size, epoch})
		if strings.Contains(text, "\nnext ") {
			epoch++
		}
	}
	return all
}

// epochs is the number of the newest epoch whose key the log names.
func (s *specimen) epochs() (n int) {
	for _, name := range s.names(".ckpt") {
		n += bytes.Count(s.files[name], []byte("\nnext "))
	}
	return n
}

func (s *specimen) names4(key string) bool {
	if key == s.key {
		return true
	}
	for _, name := range s.names(".ckpt") {
		if bytes.Contains(s.files[name], []byte("\nnext "+key+"\n")) {
			return true
		}
	}
	return false
}

// giveOwn: any checkpoints of this log, in any order, also ones that others have
// signed too.
func giveOwn(s *specimen, r *rand.Rand) *mutation {
	var given []string
	want := s.code
	for range 1 + r.IntN(3) {
		a := pick(r, s.kept())
		if a.epoch > s.epochs() {
			want = verify.Unknown
		}
		if r.IntN(2) == 0 {
			a.text += foreignLine(r)
		}
		given = append(given, a.text)
	}
	m := s.changed(want, -1, "%d of them", len(given))
	m.given = strings.Join(given, "\n") + strings.Repeat("\n", r.IntN(4))
	if r.IntN(4) == 0 {
		m.given = strings.TrimRight(m.given, "\n")
	}
	return m
}

// foreignLine is a signature by a key that nobody knows.
func foreignLine(r *rand.Rand) string {
	signed, err := newSigner(newOrigin()).signNote(&format.Checkpoint{Origin: newOrigin()})
	if err != nil {
		panic(err)
	}
	line := string(signed[bytes.Index(signed, []byte("\n\n"))+2:])
	if r.IntN(2) == 0 {
		line = "— other.example/ü AAAAAAA=\n"
	}
	return line
}

// cutAndGive cuts the end of the log off, cleanly, behind one of the last notes.
func cutAndGive(s *specimen, r *rand.Rand) *mutation {
	if s.lastLog() != s.lastNotes() {
		return nil
	}
	notesName, logName := fileName(s.lastNotes(), ".ckpt"), fileName(s.lastLog(), ".log")
	notes := cutNotes(s.files[notesName])
	k := r.IntN(len(notes))
	s.files[notesName] = noteFileOf(notes[:k+1])
	lines, _ := linesOf(s.files[logName])
	m := slices.IndexFunc(lines, func(line []byte) bool {
		seq, _, _ := place(line, 0)
		return seq >= notes[k].size
	})
	if m >= 0 {
		s.files[logName] = joined(lines[:m], nil)
	}
	a := pick(r, s.kept())
	if r.IntN(2) == 0 {
		a = last(s.kept())
	}
	want := verify.Good
	switch {
	case a.size > notes[k].size: // the key that signed it may have been cut off too
		want = verify.Truncated
	case a.epoch > s.epochs():
		want = verify.Unknown
	}
	made := s.changed(want, -1, "to %d records, with a checkpoint of %d", notes[k].size, a.size)
	made.given = a.text
	return made
}

// tamper changes the first record that is there.
func (s *specimen) tamper() {
	name := s.names(".log")[0]
	s.files[name] = bytes.Replace(s.files[name], []byte(`"seq"`), []byte(`"SEQ"`), 1)
}

func giveOther(s *specimen, r *rand.Rand) *mutation {
	origin, _, _ := strings.Cut(s.key, "+")
	own := pick(r, s.kept())
	sign := func(by *signer, size int, root [32]byte, extension string) string {
		c := format.Checkpoint{Origin: by.name, Size: int64(size), Root: root}
		text := fmt.Sprintf("%s\n%d\n%s\n%s", c.Origin, c.Size, c.Root, extension)
		signature, err := by.Sign([]byte(text))
		if err != nil {
			panic(err)
		}
		n, _ := by.signNote(&c)
		line := n[bytes.Index(n, []byte("\n\n"))+2:]
		return text + "\n" + string(replaceSignature(line, signature))
	}
	stolen := verify.Unknown
	if s.names4(s.stolen.now.public()) {
		stolen = verify.Truncated
	}
	tamper := r.IntN(3) == 0
	rows := []struct {
		name, given string
		want, worse int // worse is what is due where the log was tampered with
	}{
		{"another origin", sign(newSigner(newOrigin()), 3, [32]byte{}, ""), verify.Unknown, verify.Tampered},
		{"another key", sign(newSigner(origin), 3, [32]byte{}, ""), verify.Unknown, verify.Tampered},
		{"another root", sign(s.stolen.now, 3, [32]byte{}, "x\n"), stolen, verify.Tampered},
		{"too many records", sign(s.stolen.now, 3000, [32]byte{}, ""), verify.Truncated, verify.Tampered},
		{"another size", strings.Replace(own.text, fmt.Sprintf("\n%d\n", own.size), fmt.Sprintf("\n%d\n", own.size+1), 1), verify.Tampered, verify.Tampered},
		{"another name of the signer", own.text[:strings.Index(own.text, "\n— ")] + strings.Replace(own.text[strings.Index(own.text, "\n— "):], "egressd/", "egressd/0", 1), verify.Unknown, verify.Tampered},
	}
	row := pick(r, rows)
	if row.name == "another size" && own.epoch > s.epochs() {
		row.want = verify.Unknown
	}
	if tamper {
		s.tamper()
		row.want = row.worse
	}
	m := s.changed(row.want, -1, "%s, tampered: %v", row.name, tamper)
	m.given = row.given
	return m
}

// replaceSignature puts another signature behind the name and key hash of a line.
func replaceSignature(line, signature []byte) []byte {
	i := bytes.LastIndexByte(line, ' ') + 1
	b, err := format.Decode64(string(bytes.TrimSuffix(line[i:], []byte("\n"))))
	if err != nil {
		panic(err)
	}
	return append(append(bytes.Clone(line[:i]), encode64(append(b[:4:4], signature...))...), '\n')
}

func giveNone(s *specimen, r *rand.Rand) *mutation {
	own := pick(r, s.kept()).text
	head, signature, _ := strings.Cut(own, "\n\n")
	rows := []string{
		"x", "\n" + own, own + "\nx", own[:len(own)-2], head + "\n", head + "\n\n", signature,
		own + "— +x AAAAAAA=\n", own + "—  AAAAAAA=\n", own + "— x\u00a0y AAAAAAA=\n", own + "— x AAAA\n", own + "— x AAAAAAB=\n",
		own + "— x AAAAAAA= \n", own + "x\n", strings.Replace(own, "\n", "\r\n", 1), own[strings.Index(own, "\n"):],
		strings.Replace(own, "\ntime", "\n\x80time", 1), strings.Replace(own, "\ntime", "\n\ttime", 1),
		own + strings.Repeat("— x AAAAAAA=\n", 101), own + "— x " + strings.Repeat("AAAA", 5000) + "\n",
		strings.Replace(own, "\n", "\n0", 1), strings.Replace(own, "\n", "\n9223372036854775808\n", 1),
	}
	i := r.IntN(len(rows))
	if r.IntN(3) == 0 {
		s.tamper()
	}
	m := s.changed(5, -1, "row %d", i)
	m.given = rows[i]
	return m
}
