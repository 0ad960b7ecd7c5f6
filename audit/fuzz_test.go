package audit

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// FuzzCheckpoint: a note is what its checkpoint writes, to the byte, or it is none;
// and whatever a file holds, its notes with their empty lines are what it begins with.
func FuzzCheckpoint(f *testing.F) {
	s := newSigner(newOrigin())
	var m mark
	for i := range 5 {
		m.add([]byte{byte('a' + i)})
	}
	c := &checkpoint{origin: s.name, size: 5, root: m.root(), time: "2026-11-22T00:00:00.000000Z", segment: 7, first: 3, bytes: 10}
	plain, err := s.signNote(c)
	if err != nil {
		f.Fatal(err)
	}
	c.next, c.sealed, c.edge, c.torn, c.tornSum = s.public(), true, m.edge.bytes(), 9, strings.Repeat("0a", 32)
	seal, err := s.signNote(c)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(plain, '\n'))
	f.Add(bytes.Join([][]byte{plain, seal, nil}, []byte("\n")))
	f.Add([]byte("\n\n\n\n"))
	f.Add(bytes.Repeat([]byte("x"), maxNote+100))
	f.Fuzz(func(t *testing.T, content []byte) {
		r := newNoteReader(bytes.NewReader(content))
		var read []byte
		for {
			n, err := r.next()
			if err != nil {
				if err == io.EOF && !bytes.Equal(read, content) {
					t.Error("the end of a file that goes on")
				}
				return
			}
			read = append(append(read, n...), '\n')
			if !bytes.HasPrefix(content, read) || r.at != int64(len(read)) {
				t.Fatalf("the notes up to %d are not what the file begins with", r.at)
			}
			if c, err := readNote(n); err == nil && !bytes.HasPrefix(n, []byte(c.text()+"\n— ")) {
				t.Errorf("%q was read from %q", c.text(), n)
			}
			_, _ = readGiven(n)
			_ = signedBy(n, s.public())
		}
	})
}

// FuzzProof: what is no proof of its record is not taken for one, whatever its form.
func FuzzProof(f *testing.F) {
	s := newSigner(newOrigin())
	lines := []string{
		`{"v":1,"seq":0,"time":"2026-11-22T00:00:00.000000Z","kind":"a"}`,
		`{"v":1,"seq":1,"time":"2026-11-22T00:00:00.000000Z","kind":"b"}`,
		`{"v":1,"seq":2,"time":"2026-11-22T00:00:00.000000Z","kind":"c"}`,
	}
	var m mark
	for _, line := range lines {
		m.add([]byte(line))
	}
	n, err := s.signNote(&checkpoint{origin: s.name, size: 3, root: m.root(), time: "2026-11-22T00:00:00.000000Z", segment: 1, bytes: m.bytes})
	if err != nil {
		f.Fatal(err)
	}
	p := Proof{V: 1, Record: lines[2], Index: 2, Size: 3, Hashes: []string{}, Chain: []string{}, Checkpoint: string(n)}
	p.Hashes = append(p.Hashes, m.hashes[1].String())
	text, err := json.Marshal(p)
	if err != nil {
		f.Fatal(err)
	}
	if code, err := p.Check(s.public()); code != Good {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"v":1,"record":"","index":0,"size":1,"hashes":[],"checkpoint":"","chain":[null]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParseProof(bytes.NewReader(text))
		if err != nil {
			return
		}
		code, err := p.Check(s.public())
		if (code == Good) != (err == nil) {
			t.Errorf("code %d, %v", code, err)
		}
		if code == Good && (p.Index < 0 || p.Index > 2 || p.Record != lines[p.Index]) {
			t.Errorf("%q is proved", p.Record)
		}
	})
}
